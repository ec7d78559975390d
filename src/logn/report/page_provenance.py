"""How the numbers were made: versions, files, settings, and the commands that make them again."""

from __future__ import annotations

import json
import platform
import shlex
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from logn import __version__
from logn.report.comparison_record import MethodRecord
from logn.report.markup import Markup, join, tag
from logn.report.page_parts import section, spec
from logn.report.run_folder import Run

PACKAGES = ("numpy", "hotcoco", "torch", "torchvision")


def provenance_section(run: Run, focus: MethodRecord, output: Path) -> Markup:
    """Everything that somebody needs who wants to check or repeat the page."""
    comparison = run.comparison
    facts: list[tuple[str, Any]] = [
        ("Made", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC with LogN {__version__}, {_versions()}"),
        ("Protocol", comparison.protocol["description"]),
        ("Intervals", _intervals(run)),
    ]
    if run.has("statistics"):
        facts.append(("Statistics", _statistics(run)))
    if run.has("predictions"):
        store = run.store
        facts.append(
            (
                "Predictions",
                f"{len(store):,} images, {store.num_proposals:,} proposals, {store.num_columns:,} logits each",
            )
        )
    facts += [(f"Settings of {method.name}", _settings(method)) for method in comparison.methods[1:]]
    items = [join([tag("dt", name), tag("dd", content)]) for name, content in facts]
    return section(
        "provenance",
        "How it was made",
        "Every number on this page comes from the files below; these commands make it again.",
        tag("dl", *items),
        tag("pre", "\n".join(commands(run, focus.name, output))),
    )


def _versions() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join([*found, f"Python {platform.python_version()}"])


def _intervals(run: Run) -> str:
    comparison = run.comparison
    if not comparison.draws:
        return "none were computed"
    return f"{100 * comparison.confidence:g} %, from {comparison.draws:,} paired draws of images"


def _statistics(run: Run) -> Markup:
    moments = run.moments
    metadata = moments.metadata
    known = {
        "layer": metadata.layer,
        "population": metadata.population,
        "estimator": metadata.estimator,
        "activation": metadata.activation,
        "model": metadata.fingerprint and f"{metadata.fingerprint[:12]}…",
    }
    words = ", ".join(f"{name} {value}" for name, value in known.items() if value)
    return join(
        [tag("code", run.path("statistics").name), f": {int(moments.count.max()):,} logits of each class; {words}"]
    )


def _settings(method: MethodRecord) -> Markup | str:
    if not method.settings:
        return spec(method.name)
    return tag("code", json.dumps(method.settings, ensure_ascii=False))


def commands(run: Run, focus: str, output: Path) -> list[str]:
    """The commands that compare the methods and write the page again.

    Example:
        >>> print(commands(Run(Path("run"), {}), "logn", Path("report.html"))[-1])
        logn report run --method logn -o report.html
    """
    options = {"-p": "predictions", "-s": "statistics", "-a": "annotations", "--counts": "counts"}
    named = [(option, str(run.paths[piece])) for option, piece in options.items() if run.has(piece)]
    lines = []
    if run.has("comparison"):
        comparison = run.comparison
        methods = [part for method in comparison.methods[1:] for part in ("--method", method.name)]
        lines.append(
            _shell(
                "logn compare",
                [word for pair in named for word in pair]
                + ["--methods", "none", *methods]
                + (["--errors"] if comparison.baseline.errors else [])
                + (["--coco"] if comparison.protocol["style"] == "coco" else [])
                + ["--bootstrap", str(comparison.draws), "-o", str(run.folder)],
            )
        )
    inside = {f"--{piece}": run.paths[piece] for piece in run.paths if run.folder not in run.paths[piece].parents}
    elsewhere = [word for option, path in inside.items() for word in (option, str(path))]
    lines.append(_shell("logn report", [str(run.folder), *elsewhere, "--method", focus, "-o", str(output)]))
    return lines


def _shell(command: str, words: list[str]) -> str:
    return " ".join([command, *map(shlex.quote, words)])
