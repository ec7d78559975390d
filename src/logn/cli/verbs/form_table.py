"""The part of `logn inspect` on the forms of LogN: what each would do, and which one we recommend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from logn.cli.console import command, print_fitting
from logn.cli.option_words import in_options

if TYPE_CHECKING:
    from rich.table import Table

    from logn.calibrators.advice import Advice
    from logn.calibrators.form_preview import FormEffect, FormEffects


def print_forms(effects: FormEffects, advice: Advice, statistics: Path, activation: str | None = None) -> None:
    """Print the table and the advice on the file `statistics`; `activation` is what the user says of it."""
    if effects.before is None:
        typer.echo(f"\nWhat each form would do: unknown. {in_options(effects.note)}")
    else:
        _print_table(effects, effects.before)
    typer.echo(f"\nAdvice: {advice.form} (confidence {advice.confidence}). {advice.reason}")
    for caution in advice.cautions:
        typer.echo(f"Mind: {caution}")
    if advice.form != "none":
        said = () if activation is None else ("--activation", str(activation))
        fit = command("logn", "fit", statistics, "--method", advice.form, *said, "-o", "affine.safetensors")
        typer.echo(f"To do so: {fit}")


def _print_table(effects: FormEffects, before: FormEffect) -> None:
    typer.echo(f"\nWhat each form would do, on {effects.rows:,} sampled rows:")
    titles = ("margin", effects.quantity, f"scores > {effects.threshold:g} per 1,000 rows", "other best class")
    lower = (
        "margin",
        effects.quantity.replace(" ", "\n"),
        f"scores > {effects.threshold:g}\nper 1,000 rows",
        "other\nbest class",
    )
    print_fitting(_table(effects, before, titles), _table(effects, before, lower))


def _table(effects: FormEffects, before: FormEffect, titles: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("form", no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for effect in (before, *effects.forms):
        table.add_row(*_row(effect, is_before=effect is before))
    return table


def _row(effect: FormEffect, *, is_before: bool) -> list[str]:
    margin = "" if effect.margin is None else f"{effect.margin:.3f}"
    winners = "" if is_before else f"{100 * effect.winners_changed:.0f} %"
    return [effect.label, margin, f"{effect.mass:.4f}", f"{effect.detections:,.0f}", winners]
