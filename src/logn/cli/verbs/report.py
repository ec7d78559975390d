"""`logn report`: one page that shows whether, where and why a correction helped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logn.cli.console import JsonOption, echo, print_json, print_note
from logn.cli.paths import OverwriteOption, check_output
from logn.errors import InputError

RunArgument = Annotated[Path, typer.Argument(help="Folder of the run: what `logn compare -o` or `logn demo` wrote.")]
MethodOption = Annotated[
    str | None, typer.Option("--method", "-m", help="The method to look at; by default the first of the comparison.")
]
PredictionsOption = Annotated[
    Path | None, typer.Option("--predictions", "-p", help="Where they are, if not in the run.")
]
StatisticsOption = Annotated[Path | None, typer.Option("--statistics", "-s", help="Where they are, if not in the run.")]
AnnotationsOption = Annotated[Path | None, typer.Option("--annotations", "-a", help="Ground truth of the predictions.")]
CountsOption = Annotated[Path | None, typer.Option(help="Training annotations, or class counts.")]
ImagesOption = Annotated[
    Path | None, typer.Option(help="Folder that the paths of the images start from; by default as it was compared.")
]


def report(
    run: RunArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page; by default in the run.")] = None,
    method: MethodOption = None,
    images: ImagesOption = None,
    overwrite: OverwriteOption = False,
    predictions: Annotated[Path | None, typer.Option("--predictions", "-p", hidden=True)] = None,
    statistics: Annotated[Path | None, typer.Option("--statistics", "-s", hidden=True)] = None,
    annotations: Annotated[Path | None, typer.Option("--annotations", "-a", hidden=True)] = None,
    counts: Annotated[Path | None, typer.Option(hidden=True)] = None,
    json: JsonOption = False,
) -> None:
    """Write one HTML file that needs no network: verdict, tables, charts, error types, thresholds, images.

    Everything but the pictures comes from what `logn compare -o` wrote, of a detector or of a classifier; nothing is
    fitted or decoded again. A section that lacks its input says what it needs.

    **Examples**

    `logn report runs/demo/standard/seed-0 -o report.html`

    `logn report run -m recommended --images coco`
    """
    from logn.report.page import write_report
    from logn.report.run_folder import open_run

    if run.name == "comparison.json" and run.is_file():
        run = run.parent
    target = output if output is not None else run / "report.html"
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"Expected `{target}` to end in .html, but it does not.")
    places = {"predictions": predictions, "statistics": statistics, "annotations": annotations, "counts": counts}
    opened = open_run(run, images=images, places=places)
    check_output(target, overwrite=overwrite or _is_page(target))
    for option in ("predictions", "statistics", "counts"):
        if places[option] is not None:
            print_note(f"`--{option}` is not needed any more: the comparison holds what the page shows.")
    summary = write_report(opened, target, method=method)
    size = target.stat().st_size
    if json:
        print_json(
            {
                "report": target,
                "bytes": size,
                "method": summary.method,
                "verdict": summary.verdict,
                "missing": summary.missing,
            }
        )
        return
    for title, reason in summary.missing.items():
        print_note(f"Not shown: {title}. {reason}")
    echo(summary.verdict)
    echo(f"The page is {target} ({size / 1e6:.1f} MB).")


def _is_page(path: Path) -> bool:
    """Whether an earlier call wrote the file: such a page is replaced."""
    return path.is_file() and b"<title>LogN report" in path.read_bytes()[:4096]
