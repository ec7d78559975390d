"""`logn report`: one page that shows whether, where and why a correction helped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logn.cli import options
from logn.cli.console import echo, print_json, print_note, print_text, progress
from logn.errors import InputError


def report(
    run: Annotated[Path, typer.Argument(metavar="COMPARISON", help="Folder that logn compare -o wrote.")],
    output: options.OptionalOutput = None,
    method: options.Method = None,
    images: options.Images = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Write one page that shows whether, where and why a correction helped.

    The page is one HTML file that needs no network; by default it is report.html
    in the folder. --method names the method to look at; default: the first one.

    Examples:
      logn report comparison
      logn report comparison --method logn --images coco -o report.html
    """
    from logn.report.page import write_report

    if run.name == "comparison.json" and run.is_file():
        run = run.parent
    target = output if output is not None else run / "report.html"
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"Expected `--output` to end in .html, but got `{target}`.")
    options.check_output(target, *run.glob("comparison.*"), overwrite=overwrite)
    with progress("Writing the page", None):
        summary = write_report(run, target, method=method, images=images, overwrite=overwrite)
    size = target.stat().st_size
    if json:
        values = {"method": summary.method, "verdict": summary.verdict, "missing": summary.missing}
        print_json({"report": target, "bytes": size, **values})
        return
    for title, reason in summary.missing.items():
        print_note(f"Not shown: {title}. {reason}")
    print_text(summary.verdict)
    echo(f"The page is {target} ({size / 1e6:.1f} MB).")
