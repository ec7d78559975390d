"""Tables of the measurements, and the rule that chooses what LogN recommends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import nan
from pathlib import Path
from statistics import mean
from typing import Any

from logn_research.strong.measure import LANDSCAPE

Measured = dict[str, Any]
# The label-free candidates, simplest first: one formula for every head, then those that need more.
CANDIDATES = (
    *("half prior", "prior", "mean", "mean centred, margin -4"),
    *("logn, square root of std", "logn, relative std", "logn, sampled regions", "logn, official"),
)
PROTOCOLS = ("federated", "exhaustive")
# What the page calls the methods.
LABELS = {
    "logn": "LogN, paper",
    "half prior": "**LogN, recommended: half prior**",
    "mean": "mean, not divided",
    "prior": "prior (Prior2Posterior)",
    "norcal": "NorCal 0.6 (counts)",
    "loga": "LogA, raw counts",
    "fracal": "FRACAL, frequencies alone (counts)",
    "fracal, boxes": "FRACAL (counts and boxes)",
    "margin -4": "margin -4 alone",
}
# What is shown apart for normalised and linear class layers: the paper's methods, and what LogN recommends.
PAPER_SETTING = ("none", "logn", "mean", "loga", "prior", "half prior")
FORMS = ("none", "half prior", "prior", "mean", "mean, std")
# A candidate within so many points of the best mean gain is as good.
CLOSE = 0.2


def read(path: Path) -> Mapping[str, Measured]:
    """The measurements of dev and test, from the folder of all results or from a file of them."""
    if path.is_file():
        found: dict[str, Measured] = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {split: collect(path, split) for split in ("dev", "test")}


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
    values = methods[name][metric], methods["none"][metric]
    return nan if None in values else 100 * float(values[0] - values[1])


def lowers(methods: Mapping[str, Any], name: str) -> bool:
    """Whether the whole interval of the change of AP lies below 0."""
    return bool(methods[name]["AP change"][2] < 0)


def choose(measured: Measured) -> dict[str, Any]:
    """The rule: of the candidates that lower no head's AP beyond noise, the simplest within 0.2 of the best."""
    gains: dict[str, float] = {}
    lowered: dict[str, list[str]] = {}
    everywhere = [found.keys() for _, protocols in heads(measured, "softmax") for found in protocols.values()]
    candidates = [name for name in CANDIDATES if all(name in names for names in everywhere)]
    for name in candidates:
        values = []
        for head, protocols in heads(measured, "softmax"):
            for protocol, methods in protocols.items():
                values.append(gain(methods, name))
                if lowers(methods, name):
                    lowered.setdefault(name, []).append(f"{head}, {protocol}")
        gains[name] = mean(values)
    allowed = [name for name in candidates if name not in lowered]
    best = max(gains[name] for name in allowed)
    chosen = next(name for name in allowed if gains[name] >= best - CLOSE)
    return {"chosen": chosen, "gains": gains, "lowered": lowered}


def ap_table(measured: Measured, activation: str = "softmax") -> list[tuple[str, ...]]:
    """Mean change of AP and its parts over the heads, federated | exhaustive, and the worst head."""
    rows = []
    all_heads = [protocols for _, protocols in heads(measured, activation)]
    for name in all_heads[0][PROTOCOLS[0]]:
        if name == "none" or _is_landscape(name):
            continue
        cells = [LABELS.get(name, name)]
        for metric in ("AP", "AP50", "AP75", "APr", "APc", "APf"):
            means = [mean(gain(protocols[kind], name, metric) for protocols in all_heads) for kind in PROTOCOLS]
            cells.append(" | ".join(f"{value:+.1f}" for value in means))
        worst = [min(gain(protocols[kind], name) for protocols in all_heads) for kind in PROTOCOLS]
        cells.append(" | ".join(f"{value:+.1f}" for value in worst))
        rows.append(tuple(cells))
    return rows


def recall_table(measured: Measured, at: str, activation: str) -> list[tuple[str, ...]]:
    """Class-mean recall, that of the groups, and objects found at an equal number of detections; exhaustive labels."""
    rows = []
    all_heads = [protocols["exhaustive"] for _, protocols in heads(measured, activation)]
    for name in all_heads[0] if all_heads else ():
        if _is_landscape(name):
            continue
        rows.append((LABELS.get(name, name), *recall_cells(all_heads, name, at)))
    return rows


def _is_landscape(name: str) -> bool:
    return any(name == f"{form} {shift:+g}" for form in FORMS for shift in LANDSCAPE)


def recall_cells(all_heads: list[Measured], name: str, at: str, groups: str = "rcf") -> list[str]:
    """Class-mean recall, that of some groups, and the change of objects found, at an equal number of detections."""
    points = [methods[name]["recall"][at] for methods in all_heads]
    found = sum(point["found"] for point in points) / max(1, sum(m["none"]["recall"][at]["found"] for m in all_heads))
    values = [mean(point["recall"] for point in points)]
    values += [mean(point["groups"].get(group, nan) for point in points) for group in groups]
    return [*(f"{100 * value:.1f}" for value in values), f"{100 * (found - 1):+.1f} %"]


def cost_table(measured: Measured, at: str, activation: str) -> list[tuple[str, ...]]:
    """Class-mean precision and F1, and objects found and false alarms of rare classes; none where not measured."""
    rows = []
    all_heads = [protocols["exhaustive"] for _, protocols in heads(measured, activation)]
    for name in all_heads[0] if all_heads else ():
        points = [] if _is_landscape(name) else [methods[name]["recall"][at] for methods in all_heads]
        if points and "f1" in points[0]:
            shares = [f"{100 * mean(point[key] for point in points):.1f}" for key in ("precision", "f1")]
            rare = [
                f"{mean(point[key].get('r', nan) for point in points):.0f}" for key in ("found_in", "false_alarms_in")
            ]
            rows.append((LABELS.get(name, name), *shares, *rare))
    return rows


def layer_tables(measured: Measured, names: Iterable[str], at: str = "0.25") -> tuple[list[tuple[str, ...]], ...]:
    """AP, and recall at an equal number, apart for normalised and linear class layers and for both kinds of labels.

    The normalised layer with federated labels is the setting of the paper. Each cell of AP has the mean change and on
    how many heads it is a gain, that of "none" the mean AP; recall is the same with both kinds of labels.
    """
    layers = [[found for _, found in heads(measured, f"softmax-{layer}")] for layer in ("cosine", "linear")]
    gains, recalls = [], []
    for name in names:
        cells, found = [LABELS.get(name, name)], [LABELS.get(name, name)]
        for layer in layers:
            for kind in PROTOCOLS:
                values = [gain(protocols[kind], name) for protocols in layer]
                raised = f"{mean(values):+.2f} ({sum(value > 0 for value in values)} of {len(values)})"
                plain = f"{100 * mean(protocols[kind]['none']['AP'] for protocols in layer):.1f}"
                cells.append(plain if name == "none" else raised)
            found += recall_cells([protocols["exhaustive"] for protocols in layer], name, at, groups="r")
        gains.append(tuple(cells))
        recalls.append(tuple(found))
    return gains, recalls


def landscape_table(measured: Measured, protocol: str) -> list[tuple[str, ...]]:
    """AP on dev of each form over the shift of the foreground, mean over the heads that have it; the best in bold."""
    with_it = [p[protocol] for _, p in heads(measured, "softmax") if f"none {LANDSCAPE[0]:+g}" in p[protocol]]
    rows = []
    for form in FORMS if with_it else ():
        values = [mean(100 * methods[f"{form} {shift:+g}"]["AP"] for methods in with_it) for shift in LANDSCAPE]
        cells = [f"**{value:.1f}**" if value == max(values) else f"{value:.1f}" for value in values]
        rows.append((form, *cells))
    return rows


def public_table(measured: Measured) -> list[tuple[str, ...]]:
    """Public detectors as they are: AP, and class-mean recall and objects found at the count of a score of 0.25.

    What `logn correct` leaves alone is called so; what half of the prior would do is in brackets there.
    """
    rows: list[tuple[str, ...]] = []
    for name, protocols in measured["public"].items():
        for method in ("none", "logn", "mean", "prior", "half prior"):
            first, second = (protocols[kind] for kind in PROTOCOLS)
            aps = [100 * first[method]["AP"], 100 * second[method]["AP"]]
            if method != "none":
                aps = [gain(first, method), gain(second, method)]
            shown = " | ".join(f"{value:.1f}" if method == "none" else f"{value:+.1f}" for value in aps)
            cells = [LABELS.get(method, method), shown, *recall_cells([second], method, "0.25", groups="")]
            if "left alone" in second[method]:
                cells = ["**left alone**, half prior in brackets", *(f"({cell})" for cell in cells[1:])]
            rows.append((name, *cells))
    return rows


def page(measured: Mapping[str, Measured]) -> str:
    """All tables of the page on strong detectors, from what was measured on dev and test."""
    strong = {
        split: {name: found for name, found in parts.items() if name != "public"} for split, parts in measured.items()
    }
    test, dev = strong["test"], strong.get("dev", {})
    parts = ["## The heads: AP without correction, federated | exhaustive"]
    rows = [
        (head, *(f"{100 * protocols[kind]['none']['AP']:.1f}" for kind in PROTOCOLS),
         *(f"{gain(protocols[kind], 'half prior'):+.1f}" for kind in PROTOCOLS))
        for head, protocols in heads(test, "softmax")
    ]  # fmt: skip
    parts.append(markdown(("head", "federated", "exhaustive", "half prior, federated", "half prior, exhaustive"), rows))
    titles = ("method", "AP", "AP50", "AP75", "APr", "APc", "APf", "AP, worst head")
    parts += ["## AP on test", markdown(titles, ap_table(test))]
    gains, recalls = layer_tables(test, PAPER_SETTING)
    kinds = tuple(f"{layer}, {kind}" for layer in ("normalised", "linear") for kind in PROTOCOLS)
    parts += ["## By class layer: AP on test", markdown(("method", *kinds), gains)]
    columns = ("class mean", "rare", "found")
    layers = tuple(f"{layer}: {column}" for layer in ("normalised", "linear") for column in columns)
    parts += ["## By class layer: recall at the count of 0.25", markdown(("method", *layers), recalls)]
    parts += _at_equal_counts(test)
    for kind in PROTOCOLS:
        if landscapes := landscape_table(dev, kind):
            header = ("form", *(f"{s:+g}" for s in LANDSCAPE))
            parts += [f"## Landscape on dev, {kind}", markdown(header, landscapes)]
    if "public" in measured["test"]:
        header = ("detector", "method", "AP, federated | exhaustive", "class-mean recall", "found")
        parts += ["## Public detectors", markdown(header, public_table(measured["test"]))]
    for split, found in strong.items():
        if any(True for _ in heads(found, "softmax")):
            parts += [f"## The rule on {split}", json.dumps(choose(found), indent=1)]
    return "\n\n".join(parts)


def _at_equal_counts(measured: Measured) -> list[str]:
    """Recall, then costs, of softmax and sigmoid heads, with a heading each."""
    parts: list[str] = []
    for activation in ("softmax", "sigmoid"):
        for at in ("0.5", "0.25", "0.05"):
            if recalls := recall_table(measured, at, activation):
                header = ("method", "class mean", "rare", "common", "frequent", "found")
                parts += [f"## {activation}: recall at the count of {at}", markdown(header, recalls)]
    for activation in ("softmax", "sigmoid"):
        if costs := cost_table(measured, "0.25", activation):
            columns = ("method", "class-mean precision", "class-mean F1", "rare: found", "rare: false alarms")
            parts += [f"## {activation}: costs at the count of 0.25", markdown(columns, costs)]
    return parts


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(markdown(("method", "AP"), [("half prior", "+2.1")]))
        | method | AP |
        |---|--:|
        | half prior | +2.1 |
    """
    titles, *lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, *rows))
    return "\n".join([titles, "|---|" + "--:|" * (len(header) - 1), *lines])
