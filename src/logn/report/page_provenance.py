"""How the numbers were made: versions, files, settings, and the commands that make them again."""

from __future__ import annotations

import json
import platform
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import ClassVar

from logn import __version__
from logn.report.comparison_record import MethodRecord
from logn.report.run_folder import Run

PACKAGES = ("numpy", "hotcoco", "torch", "torchvision")


@dataclass(frozen=True)
class Fact:
    """One thing to know of the numbers: `code` is a name or a value as it is typed, before the words of `text`."""

    name: str
    text: str = ""
    code: str = ""


@dataclass(frozen=True)
class Provenance:
    """Everything that somebody needs who wants to check or repeat the page."""

    template: ClassVar[str] = "provenance.html.jinja"
    facts: tuple[Fact, ...]
    commands: tuple[str, ...]


def provenance(run: Run, focus: MethodRecord, output: Path) -> Provenance:
    """Say what the numbers were made from, and how to make them again."""
    comparison = run.comparison
    facts = [
        Fact("Made", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC with LogN {__version__}, {_versions()}"),
        Fact("Protocol", comparison.protocol["description"]),
        Fact("Intervals", _intervals(run)),
    ]
    if run.has("statistics"):
        facts.append(Fact("Statistics", _statistics(run), code=run.path("statistics").name))
    if run.has("predictions"):
        store = run.store
        sizes = f"{len(store):,} images, {store.num_proposals:,} proposals, {store.num_columns:,} logits each"
        facts.append(Fact("Predictions", sizes))
    facts += [Fact(f"Settings of {method.name}", code=_settings(method)) for method in comparison.methods[1:]]
    return Provenance(tuple(facts), tuple(commands(run, focus.name, output)))


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


def _statistics(run: Run) -> str:
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
    return f": {int(moments.count.max()):,} logits of each class; {words}"


def _settings(method: MethodRecord) -> str:
    return json.dumps(method.settings, ensure_ascii=False) if method.settings else method.name


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
