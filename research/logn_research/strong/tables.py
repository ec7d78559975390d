"""Tables of the measurements, and the rule that chooses what LogN recommends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

Measured = dict[str, Any]
# The label-free candidates, simplest first: one formula for every head, then those that need more.
CANDIDATES = ("half prior", "prior", "mean", "mean centred, margin -4")
PROTOCOLS = ("federated", "exhaustive")
# A candidate within so many points of the best mean gain is as good.
CLOSE = 0.2


def collect(root: Path, split: str) -> Measured:
    """All measurements of a split: `{detector: {head: {protocol: {method: values}}}}`."""
    found: Measured = {}
    for path in sorted(root.glob(f"*/heads/*/{split}-*.json")):
        detector, head, protocol = path.parts[-4], path.parts[-2], path.stem.removeprefix(f"{split}-")
        found.setdefault(detector, {}).setdefault(head, {})[protocol] = json.loads(path.read_text())
    return found


def heads(measured: Measured, activation: str) -> Iterable[tuple[str, Measured]]:
    """Each head of an activation with its measurements."""
    for detector, of_detector in measured.items():
        for head, protocols in of_detector.items():
            if head.startswith(activation):
                yield f"{detector} {head}", protocols


def gain(methods: Mapping[str, Any], name: str, metric: str = "AP") -> float:
    """Change of a metric against no correction, in points."""
    return 100 * float(methods[name][metric] - methods["none"][metric])


def lowers(methods: Mapping[str, Any], name: str) -> bool:
    """Whether the whole interval of the change of AP lies below 0."""
    return bool(methods[name]["AP change"][2] < 0)


def choose(measured: Measured) -> dict[str, Any]:
    """The rule: of the candidates that lower no head's AP beyond noise, the simplest within 0.2 of the best."""
    gains: dict[str, float] = {}
    lowered: dict[str, list[str]] = {}
    for name in CANDIDATES:
        values = []
        for head, protocols in heads(measured, "softmax"):
            for protocol, methods in protocols.items():
                values.append(gain(methods, name))
                if lowers(methods, name):
                    lowered.setdefault(name, []).append(f"{head}, {protocol}")
        gains[name] = mean(values)
    allowed = [name for name in CANDIDATES if name not in lowered]
    best = max(gains[name] for name in allowed)
    chosen = next(name for name in allowed if gains[name] >= best - CLOSE)
    return {"chosen": chosen, "gains": gains, "lowered": lowered}


def ap_table(measured: Measured, activation: str = "softmax") -> list[tuple[str, ...]]:
    """Mean change of AP and its parts over the heads, federated | exhaustive, and the worst head."""
    rows = []
    all_heads = [protocols for _, protocols in heads(measured, activation)]
    for name in all_heads[0][PROTOCOLS[0]]:
        if name == "none":
            continue
        cells = [name]
        for metric in ("AP", "AP50", "AP75", "APr", "APc", "APf"):
            means = [mean(gain(protocols[kind], name, metric) for protocols in all_heads) for kind in PROTOCOLS]
            cells.append(" | ".join(f"{value:+.1f}" for value in means))
        worst = [min(gain(protocols[kind], name) for protocols in all_heads) for kind in PROTOCOLS]
        cells.append(" | ".join(f"{value:+.1f}" for value in worst))
        rows.append(tuple(cells))
    return rows


def recall_table(measured: Measured, at: str, activation: str) -> list[tuple[str, ...]]:
    """At an equal number of detections: class-mean recall, that of the groups, and objects found, by exhaustive labels."""
    rows = []
    all_heads = [protocols["exhaustive"] for _, protocols in heads(measured, activation)]
    for name in all_heads[0]:
        points = [methods[name]["recall"][at] for methods in all_heads]
        plain = [methods["none"]["recall"][at] for methods in all_heads]
        found = mean(point["found"] / other["found"] for point, other in zip(points, plain, strict=True))
        groups = [mean(100 * point["groups"][group] for point in points) for group in "rcf"]
        recall = mean(100 * point["recall"] for point in points)
        rows.append((name, f"{recall:.1f}", *(f"{value:.1f}" for value in groups), f"{100 * (found - 1):+.1f} %"))
    return rows


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(markdown(("method", "AP"), [("half prior", "+2.1")]))
        | method | AP |
        |---|--:|
        | half prior | +2.1 |
    """
    lines = ["| " + " | ".join(header) + " |", "|---|" + "--:|" * (len(header) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])
