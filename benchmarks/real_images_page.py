"""The page, the tables and the figure of the evidence on photographs, from the data alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from real_rule import BOTH, judge

from logn.files import atomic_path
from logn.report.figure_style import BLUE, GREEN, GREY, ORANGE, PAGE, PURPLE, VERMILION, paper_style, save_figure

TEMPLATE = Path(__file__).parent / "real_images_page.md"
PROTOCOLS = ("federated", "exhaustive")
KINDS = {"photographs": "photographs", "drawn": "glyph scenes"}
SHIFTS = (-8, -6, -4, -3, -2, -1, 0, 1)
FORMS = {
    "none": "no correction",
    "paper": "LogN, the paper's equation",
    "balanced": "LogN, mean and relative std",
    "relative std": "relative std alone",
    "prior": "Prior2Posterior",
    "scaled prior": "root of the relative std, then Prior2Posterior",
    "average": "average of balanced and Prior2Posterior",
}
COLOURS = dict(zip(FORMS, (GREY, VERMILION, ORANGE, PURPLE, BLUE, GREEN, "#000000"), strict=True))
#: The rows of the table of methods: name in the data, name on the page.
METHODS = {
    "logn": "LogN, the paper's recipe",
    "logn:margin=0": "LogN, margin 0",
    "balanced +0": "LogN balanced: mass kept",
    "balanced -2": "LogN balanced, shift -2",
    "none -2": "shift -2 alone",
    "prior +0": "Prior2Posterior, mass kept",
    "prior -1": "Prior2Posterior, shift -1",
    "prior -2": "Prior2Posterior, shift -2",
    "prior -3": "Prior2Posterior, shift -3",
    "scaled prior -2": "with the root of the relative std, shift -2",
    "norcal:gamma=0.6": "NorCal 0.6 (needs counts)",
    "loga": "LogA (needs counts)",
}
CLASSIFIER_METHODS = {
    "none": "none",
    "logn": "LogN, equation 1",
    "logn:use_std=false": "mean alone",
    "p2p": "Prior2Posterior",
    "p2p:strength=0.75": "Prior2Posterior, strength 0.75",
    "p2p:strength=0.5": "Prior2Posterior, strength 0.5",
    "p2p:strength=0.25": "Prior2Posterior, strength 0.25",
    "p2p:std_power=0.5": "root of the relative std, then Prior2Posterior",
    "loga": "LogA (needs counts)",
    "loga:tau=0.5": "LogA, tau 0.5 (needs counts)",
}
Record = Mapping[str, Any]
Rows = Iterator[Sequence[str]]


def of_kind(records: Sequence[Record], kind: str) -> list[Record]:
    return [one for one in records if one["kind"] == kind]


def change(one: Record, split: str, protocol: str, name: str, metric: int = 0) -> float:
    """Change of a metric against no correction, in points."""
    table = one[split][protocol]
    return float(table[name][metric] - table["none"][metric])


def write_figure(records: Sequence[Record], path: str | os.PathLike[str]) -> None:
    """Mean change of AP on dev over the shift of the foreground, a panel for each kind of data and of labels."""
    with paper_style() as make:
        figure = make(PAGE, 4.2)
        axes = figure.subplots(2, 2, sharex=True)
        for row, kind in zip(axes, KINDS, strict=True):
            members = of_kind(records, kind)
            for axis, protocol in zip(row, PROTOCOLS, strict=True):
                axis.axhline(0, color=GREY, linewidth=0.8)
                axis.axvline(0, color=GREY, linewidth=0.4)
                for form, label in FORMS.items():
                    means = [
                        np.mean([change(one, "dev", protocol, f"{form} {shift:+d}") for one in members])
                        for shift in SHIFTS
                    ]
                    axis.plot(SHIFTS, means, color=COLOURS[form], label=label, linewidth=1.2, marker="o", markersize=2)
                axis.set_title(f"{KINDS[kind]}, {protocol} labels")
        for axis in axes[1]:
            axis.set_xlabel("shift of the foreground (0: mass kept)")
        for row in axes:
            row[0].set_ylabel("change of AP")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        save_figure(figure, path)


def detector_rows(records: Sequence[Record]) -> Rows:
    yield ["detector", "AP, federated", "AP50 of it", "APr / APc / APf", "AP, exhaustive", "training, minutes"]
    for kind in KINDS:
        for one in of_kind(records, kind):
            federated, exhaustive = (one["test"][protocol]["none"] for protocol in PROTOCOLS)
            groups = " / ".join(f"{federated[place]:.1f}" for place in (1, 2, 3))
            yield [
                f"{KINDS[kind]}, {one['classifier']}, {one['sampler']}, {one['iterations']}",
                f"{federated[0]:.1f}",
                f"{federated[4]:.1f}",
                groups,
                f"{exhaustive[0]:.1f}",
                f"{one['training_seconds'] / 60:.0f}",
            ]


def method_rows(records: Sequence[Record]) -> Rows:
    yield ["change of AP on test", *(f"{KINDS[kind]}, {protocol}" for kind in KINDS for protocol in PROTOCOLS)]
    for name, label in METHODS.items():
        cells = []
        for kind in KINDS:
            for protocol in PROTOCOLS:
                found = [change(one, "test", protocol, name) for one in of_kind(records, kind)]
                rises = sum(value > 0 for value in found)
                cells.append(f"**{np.mean(found):+.2f}** ({min(found):+.2f}; {rises} of {len(found)})")
        yield [label, *cells]


def group_rows(records: Sequence[Record]) -> Rows:
    yield [
        "photographs, test",
        *(f"{metric}, {protocol}" for protocol in PROTOCOLS for metric in ("APr", "APc", "APf")),
    ]
    members = of_kind(records, "photographs")
    for name in ("none", *METHODS):
        cells = [
            f"{np.mean([one['test'][protocol][name][place] for one in members]):.1f}"
            for protocol in PROTOCOLS
            for place in (1, 2, 3)
        ]
        yield [METHODS.get(name, "none"), *cells]


def landscape_rows(records: Sequence[Record], kind: str, protocol: str) -> Rows:
    yield [f"{KINDS[kind]}, {protocol}", *(f"{shift:+d}" for shift in SHIFTS)]
    members = of_kind(records, kind)
    for form, label in FORMS.items():
        means = [np.mean([change(one, "dev", protocol, f"{form} {s:+d}") for one in members]) for s in SHIFTS]
        best = int(np.argmax(means))
        yield [label, *(f"**{value:+.2f}**" if place == best else f"{value:+.2f}" for place, value in enumerate(means))]


def rule_rows(records: Sequence[Record], protocol: str) -> Rows:
    yield ["candidate", "mean", "photographs", "glyph scenes", "worst", "lowered beyond noise", "mean on test", "worst"]
    on_test = {found.name: found for found in judge(records, protocol, "test", intervals=False)}
    for found in judge(records, protocol)[:8]:
        later = on_test.get(found.name)
        yield [
            _form_label(found.name),
            f"{found.mean:+.2f}",
            *(f"{found.by_kind.get(kind, np.nan):+.2f}" for kind in KINDS),
            f"{found.worst:+.2f}",
            f"{len(found.harmed)} of {found.count}",
            "" if later is None else f"{later.mean:+.2f}",
            "" if later is None else f"{later.worst:+.2f}",
        ]


def _form_label(name: str) -> str:
    form, _, shift = name.rpartition(" ")
    return f"{FORMS[form]}, {shift}" if form in FORMS else METHODS.get(name, name)


def sign_rows(records: Sequence[Record]) -> Rows:
    yield [
        "detector",
        "best shift, federated",
        "exhaustive",
        "classes in competition",
        "foreground mass",
        "mean spread",
    ]
    for kind in KINDS:
        for one in of_kind(records, kind):
            best = [
                SHIFTS[int(np.argmax([one["dev"][protocol][f"prior {shift:+d}"][0] for shift in SHIFTS]))]
                for protocol in PROTOCOLS
            ]
            signs = one["signs"]
            yield [
                f"{KINDS[kind]}, {one['classifier']}, {one['sampler']}, {one['iterations']}",
                *(f"{value:+d}" for value in best),
                f"{signs['classes in competition']:.1f}",
                f"{signs['foreground mass']:.3f}",
                f"{signs['mean_spread']:.1f}",
            ]


def why_rows(records: Sequence[Record], what: str) -> Rows:
    """AP over the shift of Prior2Posterior's map, under varied labels or decoding."""
    yield ["detector", what, *(f"{shift:+d}" for shift in SHIFTS)]
    for one in records:
        for setting, curves in one.get("why", {}).get(what, {}).items():
            for label, curve in _labelled(curves):
                best = int(np.argmax(curve))
                cells = [f"**{value:.2f}**" if place == best else f"{value:.2f}" for place, value in enumerate(curve)]
                yield [f"{KINDS[one['kind']]}, {one['name']}", f"{setting}{label}", *cells]


def _labelled(curves: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[float]]]:
    if "prior" in curves:
        yield "", curves["prior"]
        return
    for protocol in PROTOCOLS:
        yield f", {protocol}", curves[protocol]["prior"]


def foreground_rows(records: Sequence[Record]) -> Rows:
    yield ["detector", "objects among sampled regions", "among test proposals", "difference of log odds", "best shift"]
    for one in records:
        if "why" in one:
            shares = one["why"]["foreground"]
            curve = [one["dev"]["exhaustive"][f"prior {shift:+d}"][0] for shift in SHIFTS]
            yield [
                f"{KINDS[one['kind']]}, {one['name']}",
                f"{shares['training']:.1%}",
                f"{shares['test']:.1%}",
                f"{shares['shift']:+.1f}",
                f"{SHIFTS[int(np.argmax(curve))]:+d}",
            ]


def image_rows(records: Sequence[Record]) -> Rows:
    subjects = [one for one in records if "images" in one]
    counts = list(subjects[0]["images"]) if subjects else []
    yield ["detector, map, labels", *(f"{count} images" for count in counts)]
    for one in subjects:
        for name in ("balanced", "prior"):
            for protocol in PROTOCOLS:
                values = [one["images"][count][name][protocol] for count in counts]
                yield [f"{KINDS[one['kind']]}, {FORMS[name]}, {protocol}", *(f"{value:.2f}" for value in values)]


def classifier_rows(records: Sequence[Record]) -> Rows:
    members = of_kind(records, "signs")
    yield [
        "on test, mean over the classifiers",
        "class mean",
        "many",
        "medium",
        "few",
        "top-1",
        "worst change of top-1",
    ]
    for head in ("linear", "cosine"):
        some = [one for one in members if one["classifier"] == head]
        for name, label in CLASSIFIER_METHODS.items():
            means = np.mean([one["test"][name][:5] for one in some], axis=0)
            worst = min(one["test"][name][4] - one["test"]["none"][4] for one in some)
            yield [f"{head}: {label}", *(f"{value:.1f}" for value in means), f"{worst:+.1f}"]


def _classifier_effect(records: Sequence[Record]) -> str:
    signs = of_kind(records, "signs")
    gains = [
        np.mean([one["test"]["p2p:strength=0.5"][place] - one["test"]["none"][place] for one in signs])
        for place in (0, 4)
    ]
    return f"class mean {gains[0]:+.1f}, top-1 {gains[1]:+.1f} ({len(signs)} classifiers of road signs)"


def summary(records: Sequence[Record]) -> str:
    """What came out, in sentences, every number from the data."""

    def effect(kind: str, protocol: str, name: str) -> str:
        found = [change(one, "test", protocol, name) for one in of_kind(records, kind)]
        rises = sum(value > 0 for value in found)
        return f"{np.mean(found):+.2f} (worst {min(found):+.2f}, raised on {rises} of {len(found)})"

    photos, drawn = (of_kind(records, kind) for kind in KINDS)
    frequent = max(one["test"]["federated"]["none"][3] for one in photos)
    strongest = max(photos, key=lambda one: one["test"]["federated"]["none"][0])
    lines = [
        f"**In short**, over {len(photos)} detectors of photographs and {len(drawn)} of drawn scenes, change of AP on "
        "test in points:",
        "",
        "| for whom | recommended | photographs | glyph scenes |",
        "|---|---|---|---|",
    ]
    for protocol, name, spec in (
        ("federated", "prior -2", "p2p:extra_margin=-2"),
        ("exhaustive", "prior -1", "p2p:extra_margin=-1"),
    ):
        cells = [effect(kind, protocol, name) for kind in KINDS]
        lines.append(f"| {protocol} labels, softmax detector | `{spec}` | {cells[0]} | {cells[1]} |")
    lines.append(f"| softmax classifier | `p2p:strength=0.5` | {_classifier_effect(records)} | not measured here |")
    balanced = {protocol: effect("photographs", protocol, "balanced +0") for protocol in PROTOCOLS}
    paper = {protocol: effect("photographs", protocol, "logn") for protocol in PROTOCOLS}
    counts = {protocol: effect("photographs", protocol, "norcal:gamma=0.6") for protocol in PROTOCOLS}
    lines += [
        "",
        "- **LogN's balanced form does not keep on photographs what it gains on drawn scenes**: federated "
        f"{balanced['federated']},",
        f"  exhaustive {balanced['exhaustive']}. The paper's recipe: federated {paper['federated']},",
        f"  exhaustive {paper['exhaustive']}.",
        "- **With exhaustive labels nothing is lost by the recommended form, and next to nothing gained**: who is",
        "  measured by every false alarm should expect no rise of AP from any of these corrections on photographs.",
        f"- NorCal, which needs the class counts, is on a level: federated {counts['federated']},",
        f"  exhaustive {counts['exhaustive']}.",
        "- The foreground should go down against the background, further under federated labels and with normalised",
        "  heads; keeping its mass, as the balanced form does, is too much foreground on photographs.",
        f"- The detectors are weak: the strongest ({strongest['name']}) has an AP of "
        f"{strongest['test']['federated']['none'][0]:.1f} (AP50 {strongest['test']['federated']['none'][4]:.1f}) with",
        f"  federated labels; AP of frequent classes reaches {frequent:.1f}. YOLOX-nano and NanoDet, which were not",
        "  trained on long-tailed data, [change by nothing to speak of](how-to/onnx.md).",
    ]
    return "\n".join(lines)


def table(rows: Rows) -> str:
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def page(records: Sequence[Record]) -> str:
    """The page: the text of the template with the tables in their places."""
    parts = {
        "summary": summary(records),
        "detectors": table(detector_rows(records)),
        "methods": table(method_rows(records)),
        "groups": table(group_rows(records)),
        "rule_federated": table(rule_rows(records, "federated")),
        "rule_exhaustive": table(rule_rows(records, "exhaustive")),
        "rule_both": table(rule_rows(records, BOTH)),
        "signs": table(sign_rows(records)),
        "labels": table(why_rows(records, "labels")),
        "decoding": table(why_rows(records, "decoding")),
        "foreground": table(foreground_rows(records)),
        "images": table(image_rows(records)),
        "scenes": table(scene_rows(records)),
        "few_labels": table(few_label_rows(records)),
        "classifiers": table(classifier_rows(records)),
        **{
            f"landscape_{kind}_{protocol}": table(landscape_rows(records, kind, protocol))
            for kind in KINDS
            for protocol in PROTOCOLS
        },
    }
    text = TEMPLATE.read_text()
    for name, content in parts.items():
        text = text.replace(f"{{{name}}}", content)
    return text


#: The detector that the harder scenes are compared with, and what was changed in each.
PLAIN_SCENES = "families-linear-random-ce-s0"
HARDER = {
    PLAIN_SCENES: "glyph scenes as they are",
    "families-linear-random-ce-i400-s0": "half of the training",
    "cluttered-linear-random-ce-s0": "four times the clutter",
    "unlabelled-linear-random-ce-s0": "half of the training labels dropped",
    "cluttered-unlabelled-linear-random-ce-i400-s0": "all three",
}


def scene_rows(records: Sequence[Record]) -> Rows:
    yield [
        "one linear detector, random sampling",
        *(f"{title}, {labels}" for labels in PROTOCOLS for title in ("AP", "best shift", "gain there")),
    ]
    by_name = {one["name"]: one for one in records}
    shown = {name: words for name, words in HARDER.items() if name in by_name}
    photographs = {one["name"]: f"photographs, {one['name']}" for one in of_kind(records, "photographs")}
    wanted = ("linear-random-800-s0", "linear-random-1600-s0")
    for name, words in {**shown, **{name: photographs[name] for name in wanted if name in photographs}}.items():
        cells = []
        for protocol in PROTOCOLS:
            plain, curve = _prior_curve(by_name[name], protocol)
            best = int(np.argmax(curve))
            cells += [f"{plain:.1f}", f"{SHIFTS[best]:+d}", f"{curve[best] - plain:+.1f}"]
        yield [words, *cells]


def _prior_curve(one: Record, protocol: str) -> tuple[float, list[float]]:
    """AP on dev without a correction, and of Prior2Posterior at every shift."""
    if "curves" in one:
        curves = one["curves"][protocol]
        return curves["none"][SHIFTS.index(0)], curves["prior"]
    dev = one["dev"][protocol]
    return dev["none"][0], [dev[f"prior {shift:+d}"][0] for shift in SHIFTS]


def few_label_rows(records: Sequence[Record]) -> Rows:
    """What a shift that was chosen on few labelled images gives on test, beside the one that is recommended."""
    found = [one for one in of_kind(records, "photographs") if "few labels" in one]
    counts = list(found[0]["few labels"][PROTOCOLS[0]]) if found else []
    yield ["detector, labels", *(f"{count} images" for count in counts), "recommended", "best on test"]
    for one in found:
        for protocol, recommended in zip(PROTOCOLS, (-2, -1), strict=True):
            gains = {shift: change(one, "test", protocol, f"prior {shift:+d}") for shift in (-3, -2, -1, 0)}
            drawn = [[gains[shift] for shift in one["few labels"][protocol][count]] for count in counts]
            cells = [f"{np.mean(values):+.2f} ({min(values):+.2f})" for values in drawn]
            best = max(gains, key=lambda shift: gains[shift])
            yield [
                f"{one['classifier']}, {one['iterations']}, {protocol}",
                *cells,
                f"{gains[recommended]:+.2f} at {recommended}",
                f"{gains[best]:+.2f} at {best:+d}",
            ]


def write_page(records: Sequence[Record], path: Path) -> None:
    with atomic_path(path) as temporary:
        Path(temporary).write_text(page(records))
