"""What to choose and what to type: the recommended correction at several strengths, and the next steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from logn.base.commands import command, corrected_name, values_of
from logn.errors import InputError
from logn.measure.fitted_methods import STRENGTHS
from logn.measure.tables import is_number, tone
from logn.methods.catalog import METHODS, Spec, needs, parse
from logn.methods.recommend import CLASSIFIER_STRENGTH, DETECTOR_STRENGTH, RECOMMENDED
from logn.report.sections import Section
from logn.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, line_path, padded, symbol_path
from logn.report.view import PredictionInput, View, metric_of, metric_text

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


X = Axis(0, 1, LEFT, WIDTH - RIGHT, marked=STRENGTHS)


def strengths(view: View) -> Section:
    """Curves, rows of a table, and for each strength what the slider shows."""
    reached = view.comparison.strengths
    if not reached:
        raise InputError("The recommendation was not compared. Compare again with statistics and `recommended`.")
    titles = {view.at_count(name): title for name, title in DETECTOR.items()} if view.is_detector else CLASSIFIER
    shown = {name: title for name, title in titles.items() if not math.isnan(reached[0].values.get(name, math.nan))}
    charts = [_chart(view, name, title) for name, title in shown.items()]
    texts = [[metric_text(name, point.values[name]) for name in shown] for point in reached]
    before = [chart["before"] for chart in charts]
    points = []
    for point, values in zip(reached, texts, strict=True):
        columns = zip(shown.values(), before, values, strict=True)
        changes = ", ".join(f"{title[0].lower()}{title[1:]} {old} → {new}" for title, old, new in columns)
        threshold = "" if point.threshold is None else f" Score threshold {point.threshold:.2g}."
        text = f"{changes[0].upper()}{changes[1:]}.{threshold}"
        points.append({"strength": f"{point.strength:g}", "text": text, "command": correct_command(view, point.method)})
    chosen = [row.settings.get("strength") for row in view.comparison.rows if row.name == RECOMMENDED]
    usual = DETECTOR_STRENGTH if view.is_detector else CLASSIFIER_STRENGTH
    own = next((strength for strength in chosen if strength is not None), usual)
    places = [[chart["places"][index] for chart in charts] for index in range(len(reached))]
    return {
        "charts": charts,
        "columns": ["strength", *shown.values()],
        "before": before,
        "rows": list(zip([point.strength for point in reached], texts, strict=True)),
        "own": min(range(len(reached)), key=lambda index: abs(reached[index].strength - own)),
        "points": points,
        "is_forced": parse(reached[0].method).options.get("force", False),
        "start": "nothing changes" if texts[0] == before else "the margin alone",
        "script": {"points": [{**point, "places": of_point} for point, of_point in zip(points, places, strict=True)]},
    }


def _chart(view: View, name: str, title: str) -> Section:
    """One metric over the strength, and that of the uncorrected model as a line across."""
    reached, scale = view.comparison.strengths, 1.0 if is_number(name) else 100.0
    values = [scale * point.values[name] for point in reached]
    # Of classifiers some are measured at strengths only, and no strength changes nothing.
    first = view.before.values.get(name, reached[0].values[name])
    y = Axis(*padded([*values, scale * first], 0.12), HEIGHT - BOTTOM, TOP + 8)
    places = [(round(X(point.strength), 1), round(y(value), 1)) for point, value in zip(reached, values, strict=True)]
    drawn = {"line": line_path(places), "marks": symbol_path("circle", places, 3.2), "places": places}
    return {"title": title, "x": X, "y": y, "level": y(scale * first), "before": metric_text(name, first), **drawn}


def steps(view: View) -> Section:
    """What follows from the numbers for somebody who wants to use the method."""
    return {"steps": list(_steps(view))}


def _steps(view: View) -> Iterator[tuple[str, str]]:
    words, focus = view.words, view.focus
    score, of_classes = (tone(view.change(name)) for name in (words.metric, view.class_mean))
    if score == "down" and of_classes != "up":
        best = max(view.comparison.rows, key=lambda row: metric_of(row, words.metric))
        other = f", or look at {best.name}, the best of the table" if best.name not in (focus.name, "none") else ""
        yield f"{focus.name} lowers {words.score} here: keep the model as it is{other}.", ""
    elif "up" in (score, of_classes):
        yield _use(view, "")
    else:
        yield _use(view, ", if the groups that matter to you gain more than the others lose")
    frequent = [*words.groups][-2]
    spec = _spec_of(focus.name)
    if spec and tone(view.change(frequent)) == "down":
        if spec.name == RECOMMENDED and view.comparison.strengths:
            yield "If frequent classes matter more to you than rare ones, take less of it: see “How far?”.", ""
        elif spec.name in IN_PART and "strength" not in spec.options:
            half = spec.with_options(strength=focus.settings.get("strength", 1.0) / 2)
            yield f"If frequent classes matter more to you than rare ones, compare with half the strength: {half}.", ""
    if view.is_detector:
        typed = _thresholds_command(view, spec)
        yield f"Change the score threshold.{' One per class, chosen from labels:' if typed else ''}", typed
    yield (
        "Confirm it on other images: a method chosen by this table has to be measured on images it was not chosen on.",
        "",
    )


def _spec_of(name: str) -> Spec | None:
    """The method of a row; None for a map that was read from a file or that has a name of the user's."""
    return parse(name) if name.partition(":")[0] in METHODS else None


def _use(view: View, condition: str) -> tuple[str, str]:
    """How to correct the model that was measured; where it is not known, how to make the correction."""
    recorded = [*values_of(view.comparison.provenance.command, "--statistics")]
    if _model_words(view) or not recorded:
        text = f"Use it{condition}: correct the model file; it runs as fast as before."
        return text, correct_command(view, view.focus.name)
    typed = ["logn", "fit", recorded[0], "--method", view.focus.name, "-o", "affine.safetensors"]
    return f"Use it{condition}: make the correction, which can be folded into the model's weights.", command(*typed)


def _model_words(view: View) -> tuple[str, ...]:
    """How the model that was measured was typed; empty where that is not known."""
    return (view.inputs.predictions and view.inputs.predictions.model_words) or ()


def correct_command(view: View, method: str) -> str:
    """The command that corrects the model that was measured; what is not known of it stands in capitals."""
    model = _model_words(view)
    output = corrected_name(model[0]) if model else "CORRECTED"
    return command(
        "logn", "correct", *(model or ["MODEL"]), "--images", "TRAIN_IMAGES", "--method", method, "-o", output
    )


def _thresholds_command(view: View, spec: Spec | None) -> str:
    """The command that chooses thresholds after a method; empty where `logn thresholds` cannot fit it."""
    made, predictions = view.comparison.provenance, view.inputs.predictions or PredictionInput()
    typed = ["logn", "thresholds", predictions.path, "-d", view.inputs.annotations or "LABELS"]
    typed += ["--method", view.focus.name]
    if spec is None and not view.focus.name.endswith(".safetensors"):
        return ""
    if spec is not None:  # a file of `logn fit` needs nothing else
        options = {"moments": "--statistics", "counts": "--counts"}
        needed = needs(spec.name)
        if not {*needed} <= {*options}:
            return ""
        lacking = [options[name] for name in needed if not [*values_of(made.command, options[name])]]
        typed += [word for option in lacking for word in (option, option.strip("-").upper())]
    return command(*typed, "-o", "points.json", keep=("--statistics", "--counts"), typed=made.command)
