"""The part of `logn inspect` on the forms of LogN: what each would do, and which one we recommend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from logn.cli.console import command

if TYPE_CHECKING:
    from logn.calibrators.advice import Advice
    from logn.calibrators.form_effects import FormEffect, FormEffects


def print_forms(effects: FormEffects, advice: Advice, statistics: Path) -> None:
    """Print the table and the advice on the file `statistics`."""
    if effects.before is None:
        typer.echo(f"\nWhat each form would do: unknown. {effects.note}")
    else:
        _print_table(effects, effects.before)
    typer.echo(f"\nAdvice: {advice.form} (confidence {advice.confidence}). {advice.reason}")
    for caution in advice.cautions:
        typer.echo(f"Mind: {caution}")
    if advice.form != "none":
        fit = command("logn", "fit", statistics, "--method", advice.form, "-o", "affine.safetensors")
        typer.echo(f"To do so: {fit}")


def _print_table(effects: FormEffects, before: FormEffect) -> None:
    from rich.console import Console
    from rich.table import Table

    typer.echo(f"\nWhat each form would do, on {effects.rows:,} sampled rows:")
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("form", no_wrap=True)
    titles = ("margin", effects.quantity, f"scores > {effects.threshold:g} per 1,000 rows", "other best class")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for effect in (before, *effects.forms):
        table.add_row(*_row(effect, is_before=effect is before))
    console = Console()
    if not console.is_terminal:
        console.width = 100
    console.print(table)


def _row(effect: FormEffect, *, is_before: bool) -> list[str]:
    margin = "" if effect.margin is None else f"{effect.margin:.3f}"
    winners = "" if is_before else f"{100 * effect.winners_changed:.0f} %"
    return [effect.label, margin, f"{effect.mass:.4f}", f"{effect.detections:,.0f}", winners]
