"""`logn inspect TRAINING DEPLOYED`: how far the logits of a deployment drifted from those of training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from logn.cli.console import print_fitting, print_json, print_text

if TYPE_CHECKING:
    from rich.table import Table

    from logn.statistics.drift import Drift


def inspect_drift(training: Path, deployed: Path, top: int, *, as_json: bool) -> None:
    """Print the drift of the statistics `deployed` from those of `training`, `top` classes of it; 0 for all."""
    from logn.statistics.drift import drift
    from logn.statistics.moments import ClassMoments

    first = ClassMoments.load(training)
    found = drift(first, ClassMoments.load(deployed))
    if as_json:
        print_json({"training": training, "deployed": deployed, **found.to_dict()})
        return
    before, after = found.rows
    print_text(f"Training: {before:,} rows, deployment: {after:,} rows; largest drift first (*: more than chance).")
    print_fitting(_table(found, top, probabilities=True), _table(found, top, probabilities=False))
    print_text(f"\n{found.conclusion}")
    if first.metadata.background is not None:
        print_text("Mind: the rows are proposals, and those of one image are alike: the errors are larger than shown.")


def _table(found: Drift, top: int, *, probabilities: bool) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("class", no_wrap=True, max_width=24)
    chances = found.mean_probability if probabilities else None
    for title in ("mean", "drift (std)", "std", *(() if chances is None else ("mean probability",))):
        table.add_column(title, justify="right", no_wrap=True)
    shown = found.order[: top or None]
    for column in shown:
        mark = "*" if found.drifted[column] else " "
        cells = [escape(found.names[column]), _arrow(found.mean, column, "{:.3f}")]
        cells.append(f"{found.difference[column]:+.2f} ± {found.error[column]:.2f}{mark}")
        cells.append(_arrow(found.std, column, "{:.3f}"))
        if chances is not None:
            cells.append(_arrow(chances, column, "{:.2g}"))
        table.add_row(*cells)
    if len(shown) < len(found.names):
        table.add_row(f"… {len(found.names) - len(shown)} more")
    return table


def _arrow(values: object, column: int, form: str) -> str:
    import numpy as np

    before, after = np.asarray(values)[:, column]
    return f"{form.format(before)} → {form.format(after)}"
