"""How the numbers were made: versions, files, settings, and the commands that make them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from logn.evaluate.comparison.comparison import CLASSIFICATION, Comparison, MethodResult
from logn.report.commands import command
from logn.report.run_folder import Run
from logn.report.task_words import words_of

# What a classifier is not measured by.
DETECTOR_SETTINGS = ("style", "decode", "fixed", "errors", "only_predicted", "report_images")


@dataclass(frozen=True)
class Fact:
    """One thing to know of the numbers: `code` is a name or a value as it is typed, before the words of `text`."""

    name: str
    text: str = ""
    code: str = ""


@dataclass(frozen=True)
class ProvenanceSection:
    """Everything that somebody needs who wants to check or repeat the page."""

    template: ClassVar[str] = "provenance.html.jinja"
    facts: tuple[Fact, ...]
    commands: tuple[str, ...]


def provenance(run: Run, focus: MethodResult, output: Path) -> ProvenanceSection:
    """Say what the numbers were made from, and how to make them again."""
    comparison = run.comparison
    inputs = comparison.provenance.inputs
    facts = [
        Fact("Compared", _made(comparison)),
        Fact("Protocol", comparison.description),
        Fact("Intervals", _intervals(comparison)),
    ]
    if statistics := inputs.get("statistics"):
        facts.append(Fact("Statistics", _statistics(statistics)))
    if predictions := inputs.get("predictions"):
        facts.append(
            Fact(
                "Predictions",
                f"{predictions['images']:,} images, {predictions['proposals']:,} proposals, "
                f"{predictions['columns']:,} logits each",
            )
        )
    if logits := inputs.get("logits"):
        facts.append(Fact("Logits", f"{logits['rows']:,} rows, {logits['columns']:,} logits each"))
    facts.append(Fact("Settings", code=json.dumps(_compare_settings(comparison), ensure_ascii=False)))
    facts += [Fact(f"Settings of {row.name}", code=_settings(row)) for row in comparison.rows[1:]]
    return ProvenanceSection(tuple(facts), tuple(commands(run, focus.name, output)))


def subject(run: Run) -> str:
    """Which model was measured on which data, as far as the comparison knows; else the folder of the run."""
    inputs = run.comparison.provenance.inputs
    model = (inputs.get("predictions") or {}).get("model")
    labels = inputs.get("annotations")
    data = Path(str(labels)).name if labels else (inputs.get("logits") or {}).get("name")
    name = run.folder.name or run.folder.resolve().name
    return f"{model or name} on {data}" if data not in (None, "", "logits") else str(model or name)


def _compare_settings(comparison: Comparison) -> dict[str, Any]:
    """The settings that concern the task."""
    settings = asdict(comparison.settings)
    if comparison.task == CLASSIFICATION:
        return {name: value for name, value in settings.items() if name not in DETECTOR_SETTINGS}
    return settings


def _made(comparison: Comparison) -> str:
    made = comparison.provenance
    if not made.created:
        return "by a version of LogN that did not write down when and how"
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    how = "" if made.command else "; from Python, so there is no command to repeat"
    return f"{made.created} with {versions}{how}"


def _intervals(comparison: Comparison) -> str:
    settings = comparison.settings
    if not settings.num_bootstrap:
        return "none were computed"
    drawn = f"{settings.num_bootstrap:,} paired draws of {words_of(comparison).units}"
    return f"{100 * settings.confidence:g} %, from {drawn}, seed {settings.seed}"


def _statistics(known: Mapping[str, Any]) -> str:
    named = {name: known.get(name) for name in ("layer", "population", "activation")}
    named["model"] = known.get("fingerprint") and f"{known['fingerprint'][:12]}…"
    words = ", ".join(f"{name} {value}" for name, value in named.items() if value)
    return f"{known['logits']:,} logits of each class; {words}"


def _settings(row: MethodResult) -> str:
    return json.dumps(row.settings, ensure_ascii=False) if row.settings else row.name


def commands(run: Run, focus: str, output: Path) -> list[str]:
    """The command that compared the methods, as it was given, and the one that writes the page again.

    Example:
        >>> print(commands(Run(Path("run"), {}), "logn", Path("report.html"))[-1])
        logn report run --method logn -o report.html
    """
    lines = []
    if run.has("comparison") and run.comparison.provenance.command:
        lines.append(command(*run.comparison.provenance.command))
    where = [] if run.images is None else ["--images", str(run.images)]
    lines.append(command("logn", "report", run.folder, *where, "--method", focus, "-o", output))
    return lines
