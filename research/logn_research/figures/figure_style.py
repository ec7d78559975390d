"""The look of the figures for papers: sizes of a column, colours that everybody can tell apart, no decoration."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from logn.errors import InputError, MissingExtraError
from logn.files import atomic_path

FORMATS = (".svg", ".png", ".pdf")
# Inches: one column and the whole width of a two-column page.
COLUMN, PAGE = 3.4, 7.0
# Okabe and Ito's colours, told apart with any colour vision.
BLUE, SKY, GREEN, YELLOW, ORANGE, VERMILION, PURPLE, GREY = (
    *("#0072B2", "#56B4E9", "#009E73", "#F0E442", "#E69F00", "#D55E00", "#CC79A7", "#7A7F87"),
)
SERIES = (GREY, BLUE, ORANGE, GREEN, VERMILION, PURPLE)
ERROR_COLOURS = {"Cls": BLUE, "Loc": SKY, "Both": GREEN, "Dupe": YELLOW, "Bkg": ORANGE, "Miss": VERMILION}
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "grid.color": "#E0E0E0",
    "grid.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "logn",
}


def check_format(path: str | os.PathLike[str]) -> None:
    """Refuse a file whose suffix names no format that we draw.

    Example:
        >>> check_format("figure.svg")
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"Expected `{path}` to end in one of {', '.join(FORMATS)}, but it does not.")


@contextlib.contextmanager
def paper_style() -> Iterator[Callable[..., Any]]:
    """Draw in the look of the figures; yields what makes an empty figure of a size in inches."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError("matplotlib", extra="report") from error

    def make(width: float, height: float) -> Any:
        return Figure(figsize=(width, height), layout="constrained")

    with mpl.rc_context(STYLE):
        yield make


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure in one step; the same figure gives the same bytes."""
    check_format(path)
    dateless = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(Path(path).suffix.lower())
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=200, metadata=dateless)
