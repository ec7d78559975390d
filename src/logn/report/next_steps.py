"""What to choose and what to type: the recommended correction at several strengths, and the next steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from logn.base.commands import command, corrected_name, values_of
from logn.errors import InputError
from logn.measure.comparison.comparison import DETECTION, Comparison, MethodResult
from logn.measure.comparison.method_fitting import STRENGTHS
from logn.measure.comparison.tables import is_number, tone
from logn.methods.catalog import needs
from logn.methods.recommend import CLASSIFIER_STRENGTH, DETECTOR_STRENGTH, RECOMMENDED
from logn.report.sections import UNKNOWN, WORDS, Section, at_count, class_mean, metric_text
from logn.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, line_path, padded, symbol_path

# What is shown, where it was measured; of detectors at an equal number of detections.
DETECTOR = {
    "recall": "Class-mean recall",
    "precision": "Class-mean precision",
    "F1": "Class-mean F1",
    "found": "Objects found",
    "found-r": "Rare objects found",
    "false-alarms-r": "False alarms of rare classes",
}
CLASSIFIER = {
    "balanced": "Class-mean accuracy",
    "long-tailed": "Accuracy with the class mix of the training",
    "top-1": "Accuracy on these rows",
    "few": "Accuracy, few-shot",
}
# The methods that take `strength`.
IN_PART = ("recommended", "logn", "p2p")


class _StrengthAxis(Axis):
    """From 0 to 1, with the strengths that were measured."""

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Their places and texts."""
        return [(self(strength), f"{strength:g}") for strength in STRENGTHS]


X = _StrengthAxis(0, 1, LEFT, WIDTH - RIGHT)


def strengths(comparison: Comparison, focus: MethodResult) -> Section:
    """Curves, rows of a table, and for each strength what the slider shows."""
    reached = comparison.strengths
    if not reached:
        raise InputError("The recommendation was not compared. Compare again with statistics and `recommended`.")
    is_detector = comparison.task == DETECTION
    titles = {at_count(comparison, name): title for name, title in DETECTOR.items()} if is_detector else CLASSIFIER
    known = {name: title for name, title in titles.items() if not math.isnan(reached[0].values.get(name, math.nan))}
    charts = [_chart(comparison, name, title) for name, title in known.items()]
    texts = [[metric_text(name, point.values[name]) for name in known] for point in reached]
    before = [chart["before"] for chart in charts]
    points = []
    for point, values in zip(reached, texts, strict=True):
        columns = zip(known.values(), before, values, strict=True)
        changes = ", ".join(f"{title[0].lower()}{title[1:]} {old} → {new}" for title, old, new in columns)
        threshold = "" if point.threshold is None else f" Score threshold {point.threshold:.2g}."
        text = f"{changes[0].upper()}{changes[1:]}.{threshold}"
        points.append(
            {"strength": f"{point.strength:g}", "text": text, "command": correct_command(comparison, point.method)}
        )
    chosen = [row.settings.get("strength") for row in comparison.rows if row.name == RECOMMENDED]
    usual = DETECTOR_STRENGTH if is_detector else CLASSIFIER_STRENGTH
    own = next((strength for strength in chosen if strength is not None), usual)
    places = [[chart["places"][place] for chart in charts] for place in range(len(reached))]
    return {
        "charts": charts,
        "columns": ["strength", *known.values()],
        "before": before,
        "rows": list(zip([point.strength for point in reached], texts, strict=True)),
        "own": min(range(len(reached)), key=lambda place: abs(reached[place].strength - own)),
        "points": points,
        "is_forced": "force=true" in reached[0].method,
        "is_detector": is_detector,
        "start": "nothing changes" if texts[0] == before else "the margin alone",
        "script": {"points": [{**point, "places": place} for point, place in zip(points, places, strict=True)]},
    }


def _chart(comparison: Comparison, name: str, title: str) -> Section:
    """One metric over the strength, and that of the uncorrected model as a line across."""
    scale = 1.0 if is_number(name) else 100.0
    values = [scale * point.values[name] for point in comparison.strengths]
    first = comparison.baseline.values.get(name)
    if first is None:  # of classifiers, where no strength changes nothing
        first = comparison.strengths[0].values[name]
    y = Axis(*padded([*values, scale * first], 0.12), HEIGHT - BOTTOM, TOP + 8)
    places = [
        (round(X(point.strength), 1), round(y(value), 1))
        for point, value in zip(comparison.strengths, values, strict=True)
    ]
    drawn = {"line": line_path(places), "marks": symbol_path("circle", places, 3.2), "places": places}
    return {"title": title, "x": X, "y": y, "level": y(scale * first), "before": metric_text(name, first), **drawn}


def steps(comparison: Comparison, focus: MethodResult) -> Section:
    """What follows from the numbers for somebody who wants to use the method."""
    return {"steps": list(_steps(comparison, focus))}


def _steps(comparison: Comparison, focus: MethodResult) -> Iterator[tuple[str, str]]:
    words = WORDS[comparison.task]
    score, of_classes = (tone(focus.differences.get(name, UNKNOWN)) for name in (words.metric, class_mean(comparison)))
    if score == "down" and of_classes != "up":
        best = max(comparison.rows, key=lambda row: row.values.get(words.metric, math.nan))
        other = f", or look at {best.name}, the best of the table" if best.name not in (focus.name, "none") else ""
        yield f"{focus.name} lowers {words.score} here: keep the model as it is{other}.", ""
    else:
        sure = (
            "" if "up" in (score, of_classes) else ", if the groups that matter to you gain more than the others lose"
        )
        yield _use(comparison, focus.name, sure)
    frequent = [*words.groups][-2]
    is_lost = frequent in focus.differences and tone(focus.differences[frequent]) == "down"
    if is_lost and comparison.strengths and focus.name.partition(":")[0] == RECOMMENDED:
        yield "If frequent classes matter more to you than rare ones, take less of it: see “How far?”.", ""
    elif is_lost and focus.name.partition(":")[0] in IN_PART and "strength=" not in focus.name:
        half = f"{focus.name}{',' if ':' in focus.name else ':'}strength={focus.settings.get('strength', 1.0) / 2:g}"
        yield f"If frequent classes matter more to you than rare ones, compare with half the strength: {half}.", ""
    if comparison.task == DETECTION:
        typed = _thresholds_command(comparison, focus.name)
        yield f"Change the score threshold.{' One per class, chosen from labels:' if typed else ''}", typed
    yield (
        "Confirm it on other images: a method chosen by this table has to be measured on images it was not chosen on.",
        "",
    )


def _use(comparison: Comparison, method: str, sure: str) -> tuple[str, str]:
    """How to correct the model that was measured; where it is not known, how to make the correction."""
    recorded = [*values_of(comparison.provenance.command, "--statistics")]
    if _model_words(comparison) or not recorded:
        text = f"Use it{sure}: correct the model file; it runs as fast as before."
        return text, correct_command(comparison, method)
    typed = ["logn", "fit", recorded[0], "--method", method, "-o", "affine.safetensors"]
    return f"Use it{sure}: make the correction, which can be folded into the model's weights.", command(*typed)


def _model_words(comparison: Comparison) -> list[str]:
    """How the model that was measured was typed; empty where that is not known."""
    words: list[str] = (comparison.provenance.inputs.get("predictions") or {}).get("model_words") or []
    return words


def correct_command(comparison: Comparison, method: str) -> str:
    """The command that corrects the model that was measured; what is not known of it stands in capitals."""
    model = _model_words(comparison)
    output = corrected_name(model[0]) if model else "CORRECTED"
    return command(
        "logn", "correct", *(model or ["MODEL"]), "--images", "TRAIN_IMAGES", "--method", method, "-o", output
    )


def _thresholds_command(comparison: Comparison, method: str) -> str:
    """The command that chooses thresholds after a method; empty where `logn thresholds` cannot fit it."""
    made = comparison.provenance
    predictions = (made.inputs.get("predictions") or {}).get("path", "PREDICTIONS")
    typed = ["logn", "thresholds", str(predictions), "-d", str(made.inputs.get("annotations") or "LABELS")]
    typed += ["--method", method]
    if not method.endswith(".safetensors"):  # a file of `logn fit` needs nothing else
        options = {"moments": "--statistics", "counts": "--counts"}
        needed = needs(method)
        if not {*needed} <= {*options}:
            return ""
        lacking = [options[name] for name in needed if not [*values_of(made.command, options[name])]]
        typed += [word for option in lacking for word in (option, option.strip("-").upper())]
    return command(*typed, "-o", "points.json", keep=("--statistics", "--counts"), typed=made.command)
