"""Post-hoc methods on heads and public detectors: AP, its parts, and recall at an equal number of detections."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import logn
from logn import ClassAffine, ClassMoments
from logn.base.arrays import FloatArray
from logn.data.fractal_dimensions import read_dimensions
from logn.measure.comparison import CompareSettings
from logn.statistics.head import Head, foreground_columns
from logn.statistics.summary import active_classes

BOOTSTRAP = 200
# Both kinds of labels of a split: federated as in LVIS, and exhaustive.
LABELS = {"federated": "{split}.json", "exhaustive": "{split}_exhaustive.json"}
# Shifts of the whole foreground, for the landscape of margins.
LANDSCAPE = (2.0, 0.0, -2.0, -4.0, -6.0, -8.0)
# Strengths of the recommendation besides one half, at its constant margin.
STRENGTHS = (0.0, 0.25, 0.75, 1.0)
METRICS = ("AP", "AP50", "AP75", "APr", "APc", "APf")


def statistics_of(moments: ClassMoments) -> dict[str, FloatArray]:
    """What each method takes away of a live foreground class, in units of its logit."""
    foreground = foreground_columns(moments.num_columns, moments.head.background)
    prior = moments.mean_probability
    if prior is None:
        raise ValueError("The statistics hold no mean probability.")
    return {"mean": moments.mean[foreground], "prior": np.log(np.maximum(prior[foreground], 1e-300))}


def methods(
    moments: ClassMoments,
    counts: Any = None,
    dimensions: FloatArray | None = None,
    others: Mapping[str, ClassMoments] | None = None,
) -> dict[str, ClassAffine]:
    """The maps that are compared, by name; a common shift is free for sigmoids, so they have no margins.

    Args:
        moments: Exact statistics over all training proposals.
        counts: Of the training labels, for the methods that need them.
        dimensions: Fractal dimension of each class, for FRACAL.
        others: Other statistics of the same head, by name, for the paper's equation.
    """
    place = moments.head.background
    foreground = foreground_columns(moments.num_columns, place)
    live = active_classes(moments, place)[foreground]
    advice = logn.recommend(moments)
    maps = {"logn": logn.logit_normalization(moments)}
    maps |= {f"logn, {name}": logn.logit_normalization(found) for name, found in (others or {}).items()}
    maps["logn, relative std"] = relative_std(moments)
    maps["logn, square root of std"] = logn.logit_normalization(moments, std_power=0.5)
    maps["mean"] = logn.logit_normalization(moments, use_std=False)
    maps["prior"] = logn.prior2posterior(moments)
    maps["half prior"] = advice.fit(moments, force=True)
    maps |= {f"strength {value:g}": advice.fit(moments, strength=value, force=True) for value in STRENGTHS}
    if place is not None:
        values = statistics_of(moments)

        def centred(shift: FloatArray) -> ClassAffine:
            moved = np.where(live, shift, 0.0)
            return ClassAffine.over_foreground(np.ones(len(live)), moved, Head(background=place), method="")

        mean, prior = values["mean"], values["prior"]
        maps["mean centred, margin -4"] = centred(mean[live].mean() - mean - 4.0)
        maps["half prior centred, margin -4"] = centred(0.5 * (prior[live].mean() - prior) - 4.0)
        maps["margin -4"] = centred(np.full(len(live), -4.0))
    if counts is not None:
        images, objects = np.maximum(counts.image_counts, 1), np.maximum(counts.instance_counts, 1)
        maps["norcal"] = logn.methods.norcal(images, background=place)
        maps["loga"] = logn.methods.logit_adjustment(objects, priors=False, background=place)
        if place is not None:
            maps["fracal"] = logn.methods.fracal(images, counts.num_images, None, background=place)
            maps["fracal, boxes"] = logn.methods.fracal(images, counts.num_images, dimensions, background=place)
    return maps


def relative_std(moments: ClassMoments) -> ClassAffine:
    """The paper's equation, divided by the standard deviation relative to its mean over the live classes."""
    place = moments.head.background
    foreground = foreground_columns(moments.num_columns, place)
    live = active_classes(moments, place)[foreground]
    size = np.sqrt(moments.variance[foreground] + 1e-5)
    factor = np.where(live, size[live].mean(), 1.0)
    paper = logn.logit_normalization(moments)
    return ClassAffine.over_foreground(
        factor * paper.scale[foreground], factor * paper.shift[foreground], Head(background=place), method=""
    )


def landscape(moments: ClassMoments) -> dict[str, ClassAffine]:
    """Each form with the average class left where it is, then the whole foreground shifted."""
    place = moments.head.background
    live = active_classes(moments, place)[foreground_columns(moments.num_columns, place)]
    found = statistics_of(moments)
    std = np.sqrt(moments.variance[foreground_columns(moments.num_columns, place)] + 1e-5)
    forms = {"none": 0.0 * std, "mean": found["mean"], "half prior": 0.5 * found["prior"], "prior": found["prior"]}
    maps = {}
    for shift in LANDSCAPE:
        for name, values in forms.items():
            moved = np.where(live, values[live].mean() - values + shift, 0.0)
            maps[f"{name} {shift:+g}"] = ClassAffine.over_foreground(
                np.ones(len(std)), moved, Head(background=place), method=""
            )
        relative = np.where(live, std[live].mean() / std, 1.0)
        moved = np.where(live, relative * (found["mean"][live].mean() - found["mean"]) + shift, 0.0)
        maps[f"mean, std {shift:+g}"] = ClassAffine.over_foreground(relative, moved, Head(background=place), method="")
    return maps


def measure(
    store: Path, annotations: Path, maps: Mapping[str, ClassAffine], *, max_detections: int | None = None
) -> dict[str, Any]:
    """All metrics of each map, with the interval of its difference in AP to no correction."""
    settings = CompareSettings(
        num_bootstrap=BOOTSTRAP, report_images=0, allow_missing_classes=True, only_predicted=True
    )
    if max_detections is not None:
        decode = type(settings.decode)(max_detections=max_detections)
        settings = CompareSettings(
            num_bootstrap=0, report_images=0, allow_missing_classes=True, only_predicted=True, decode=decode
        )
    comparison = logn.compare(store, annotations, dict(maps), settings=settings)
    result = {}
    for row in comparison.rows:
        values: dict[str, Any] = {name: _number(row[name]) for name in METRICS if name in row.values}
        if "AP" in row.differences:
            change = row.differences["AP"]
            values["AP change"] = [_number(change.difference), _number(change.low), _number(change.high)]
        values["recall"] = {f"{at:g}": asdict(point) for at, point in (row.recall or {}).items()}
        result[row.name] = values
    return result


def _number(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None


def measure_folder(folder: Path, data: Path, counts: Any, *, split: str, with_landscape: bool = False) -> None:
    """Measure one head or detector under both kinds of labels; what is there already is not measured again."""
    moments = ClassMoments.load(folder / "statistics.safetensors")
    advice = logn.recommend(moments)
    others = {path.stem.split(", ")[1]: ClassMoments.load(path) for path in sorted(folder.glob("statistics, *"))}
    dimensions = None if counts is None else read_dimensions(data / "train.json")
    for labels, name in LABELS.items():
        output = folder / f"{split}-{labels}.json"
        if output.exists():
            continue
        annotations = data / name.format(split=split)
        maps = methods(moments, counts, dimensions, others) | (landscape(moments) if with_landscape else {})
        found = measure(folder / split, annotations, maps)
        if advice.method == "none":  # what `logn correct` says, and does nothing
            found["half prior"]["left alone"] = advice.finding
        output.write_text(json.dumps(found, indent=1))
        print(f"{folder.parent.parent.name} {folder.name} {split} {labels}", flush=True)
