"""The tables on the pages of `research/docs`, from the JSON of `research/results`: `python -m logn_research.pages`.

A page has `<!-- NAME -->` and `<!-- end -->`; what stands between them is made from `results/NAME.json`, and everything
else is written by hand.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from logn.base.files import write_text
from logn_research.evidence import deployment_prior, thresholds

ROOT = Path(__file__).parents[1]
Rows = Sequence[Sequence[str]]

METRICS = {
    **{f"box {name}": name for name in ("AP", "APr", "APc", "APf")},
    **{f"mask {name}": f"{name}-mask" for name in ("AP", "APr", "APc", "APf")},
}
ERROR_KINDS = ("Cls", "Miss", "FP", "FN")
PAPER_COLUMNS = {"box AP": "box_ap", "mask AP": "ap", "mask APr": "rare", "mask APc": "common", "mask APf": "frequent"}


def spread(values: Iterable[float | None], *, digits: int = 1) -> str:
    """Write a number, or the mean and the range of several.

    Example:
        >>> spread([25.43]), spread([25.0, 26.0]), spread([None])
        ('25.4', '25.5 (25.0 to 26.0)', '-')
    """
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return "-"
    mean = f"{sum(known) / len(known):.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ({min(known):.{digits}f} to {max(known):.{digits}f})"


def markdown(header: Sequence[str], rows: Rows) -> str:
    """A table in Markdown, in columns of one width: the first to the left, the others to the right."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    lines = [f"|:{'-' * (widths[0] + 1)}|" + "".join(f"{'-' * (width + 1)}:|" for width in widths[1:])]
    for line in (header, *rows):
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([lines[1], lines[0], *lines[2:]])


def bench_table(content: Mapping[str, Any]) -> str:
    """The part of a page that a table of the bench makes: its sections, then the paper's rows."""
    parts = [
        f"## {title}\n\n{markdown(header, rows)}\n\n{caption}" for title, header, rows, caption in _tables(content)
    ]
    if content["paper"]:
        header = ("method", "detector", "sampler", "epochs", *PAPER_COLUMNS)
        names = ("method", "framework", "sampler", "epochs")
        rows = [(*(row[name] for name in names), *_paper_cells(row)) for row in content["paper"]]
        caption = f"{content['paper_title']}, on {content['paper'][0]['data']}."
        parts.append(f"## The paper's rows, on {content['paper'][0]['data']}\n\n{markdown(header, rows)}\n\n{caption}")
    return "\n\n".join(parts) + "\n"


def table_text(content: Mapping[str, Any]) -> str:
    """The same for a terminal."""
    return "\n\n".join(f"{caption}\n\n{markdown(header, rows)}" for _, header, rows, caption in _tables(content))


def _tables(content: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str], Rows, str]]:
    """Title, header, rows and caption of each section."""
    for section in content["sections"]:
        header, rows, caption = _precisions(content, section)
        yield section["title"], header, rows, f"{section['title']}. {caption}"


def _precisions(content: Mapping[str, Any], section: Mapping[str, Any]) -> tuple[list[str], Rows, str]:
    """What we measured, then the paper's numbers where any row has some."""
    rows = section["rows"]
    has = {name: any(row.get(name) for row in rows) for name in ("errors", "margin", "relative_cost", "paper")}
    has["margin"] = has["margin"] and content["table"] == "margins"
    has["errors"] = all(row.get("errors") for row in rows if row["metrics"]) and has["errors"]
    header = ["method", *METRICS]
    header += ["margin"] if has["margin"] else []
    header += [f"{kind} error" for kind in ERROR_KINDS] if has["errors"] else []
    header += ["training s", "with its start s", "inference"] if has["relative_cost"] else []
    header += [f"LVIS: {name}" for name in PAPER_COLUMNS] if has["paper"] else []
    cells = [_precision_cells(row, has) for row in rows]
    framework = next((row["paper"]["framework"] for row in rows if row["paper"]), "")
    paper = f"; the last columns: the paper's {framework} on LVIS v1" if has["paper"] else ""
    seeds = len(content["settings"]["seeds"])
    over = "" if seeds == 1 else f", mean of {seeds} seeds (lowest to highest)"
    return header, cells, f"Points on {content['data']}{over}{paper}."


def _precision_cells(row: Mapping[str, Any], has: Mapping[str, bool]) -> list[str]:
    cells = [row["method"]]
    if row["metrics"]:
        of_seeds = row["metrics"].values()
        cells += [spread(_points(metrics.get(name) for metrics in of_seeds)) for name in METRICS.values()]
    else:
        cells += ["not measured", *[""] * (len(METRICS) - 1)]
    if has["margin"]:
        cells.append(spread(row["margin"].values(), digits=2))
    if has["errors"]:
        cells += [spread(_points(gains[kind] for gains in row["errors"].values())) for kind in ERROR_KINDS]
    if has["relative_cost"]:
        # A correction is folded into the last layer: it costs neither training nor inference.
        is_folded = row["correction"] != "none"
        own = "0" if is_folded else spread(row["training_seconds"].values(), digits=0)
        cost = "folds, none" if is_folded else spread(row["relative_cost"].values(), digits=2)
        cells += [own, spread(row["total_seconds"].values(), digits=0), cost]
    return cells + (_paper_cells(row["paper"]) if has["paper"] else [])


def _points(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else 100 * value for value in values]


def _paper_cells(row: Mapping[str, Any] | None) -> list[str]:
    numbers = ["" if row is None else row[name] for name in PAPER_COLUMNS.values()]
    return ["-" if number is None else f"{number:.1f}" if number != "" else "" for number in numbers]


#: From the content of a JSON file to Markdown, by the name of the file.
TABLES: dict[str, Callable[[Any], str]] = {
    "deployment-prior": deployment_prior.results,
    "thresholds": thresholds.results,
    "thresholds-heads": thresholds.head_results,
}
_BLOCK = re.compile(r"(<!-- ([\w-]+) -->\n).*?(<!-- end -->\n)", flags=re.S)


def filled(text: str, results: Path = ROOT / "results") -> str:
    """The page with the tables of its blocks made anew.

    Args:
        text: The page.
        results: Folder of the JSON files.
    """

    def block(match: re.Match[str]) -> str:
        content = json.loads((results / f"{match[2]}.json").read_text(encoding="utf-8"))
        make: Callable[[Any], str] = TABLES.get(match[2], bench_table)
        return f"{match[1]}{make(content)}{match[3]}"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Fill in all pages."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (again := filled(text)) != text:
            write_text(page, again)
            print(page)


if __name__ == "__main__":
    main()
