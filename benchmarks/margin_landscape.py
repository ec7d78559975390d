"""Margin landscape: AP as the foreground is shifted against the background, and where known margins lie on it.

Every form of a correction has one shift at which the mean foreground probability of the recorded logits is that of the
detector itself. Measured from there, margins of different forms, detectors and data sets can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.methods.logit_normalization import logit_normalization
from logn.calibrators.methods.prior2posterior import prior2posterior
from logn.errors import InputError
from logn.evaluate.decode.decoder import DecodeSettings, decode_many
from logn.evaluate.detection.class_groups import groups_of_classes
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.metrics import evaluate_detections
from logn.evaluate.store.prediction_store import PredictionStore
from logn.logits.arrays import FloatArray, foreground_columns
from logn.statistics.moments import ClassMoments

#: The detector's own logits; `(x - mean + margin) / std`, as in the paper; `(x - mean) / std + margin`, the same shift
#: for every class; and the balanced form, `(x - mean) / relative std + margin`.
FORMS = ("none", "paper", "undivided", "balanced")
#: Those that need the mean probability, or do without the mean; all with the same shift for every class.
FURTHER_FORMS = ("relative std", "prior", "half prior", "scaled prior", "average")
METRICS = ("AP", "AP50", "APr", "APc", "APf")
_SEARCH_RANGE = 60.0  # logits; no detector is so far from its own foreground mass
_MAPS_AT_ONCE = 16  # detections of so many maps are in memory together


@dataclass(frozen=True, eq=False)
class MarginForm:
    """A correction whose margin is free.

    Args:
        name: One of `FORMS`.
        centre: The map at which the mean foreground probability is the detector's own.
        direction: `(C,)` what one unit of shift adds to each logit: 0 for the background, 1 on average elsewhere.
        margin: The margin at the centre, in the units of the form's own formula.
        margin_per_shift: How much the margin grows by one unit of shift.
    """

    name: str
    centre: ClassAffine
    direction: FloatArray
    margin: float
    margin_per_shift: float

    def at(self, shift: float) -> ClassAffine:
        """The map with the foreground shifted so many logits, on average over the classes, from the centre."""
        return replace(self.centre, shift=self.centre.shift + shift * self.direction)

    def shift_of(self, margin: float) -> float:
        """Where a margin lies, in logits from the centre."""
        return (margin - self.margin) / self.margin_per_shift


def margin_forms(moments: ClassMoments) -> dict[str, MarginForm]:
    """The forms whose margin is studied, centred where each keeps the detector's foreground mass.

    Args:
        moments: Statistics with a row sample, of a softmax head with a background.

    Example:
        >>> from logn.statistics.metadata import StatisticsMetadata
        >>> moments = ClassMoments(3, sample_rows=9, metadata=StatisticsMetadata(background=0))
        >>> moments.update(np.array([[2, 1, -1], [3, 0, -4], [-1, 2, 1], [1, 1, -2.0]]))
        >>> forms = margin_forms(moments)
        >>> [round(foreground_mass(moments.sample, form.centre), 4) for form in forms.values()]
        [0.455, 0.455, 0.455, 0.455]
        >>> round(float(forms["paper"].direction[1:].mean()), 6)
        1.0
    """
    background = moments.metadata.background
    if background is None or not len(moments.sample):
        raise InputError("Expected `moments` to be of a head with a background and to hold a row sample, but got none.")
    foreground = foreground_columns(moments.num_classes, background)
    uniform = np.zeros(moments.num_classes)
    uniform[foreground] = 1.0
    normalised = logit_normalization(moments, margin=0.0)
    divided = uniform * normalised.scale  # what the paper's margin adds: more where the std is small
    per_margin = float(divided[foreground].mean())
    balanced = logit_normalization(moments, margin="balance", relative_std=True)
    forms = (
        MarginForm("none", ClassAffine.identity(moments.num_classes, background), uniform, 0.0, 1.0),
        _centred("paper", normalised, divided / per_margin, 1.0 / per_margin, moments),
        _centred("undivided", normalised, uniform, 1.0, moments),
        MarginForm("balanced", balanced, uniform, float(balanced.settings["margin_value"]), 1.0),
    )
    return {form.name: form for form in forms}


def further_forms(moments: ClassMoments) -> dict[str, MarginForm]:
    """More forms, centred likewise.

    The relative standard deviation without the mean; Prior2Posterior, whole and half; Prior2Posterior of the model
    whose logits were divided by the root of the relative standard deviation; the average of the balanced map and that
    of Prior2Posterior.

    Example:
        >>> from logn.statistics.metadata import StatisticsMetadata
        >>> moments = ClassMoments(3, sample_rows=9, mean_probability=True, metadata=StatisticsMetadata(background=0))
        >>> moments.update(np.array([[2, 1, -1], [3, 0, -4], [-1, 2, 1], [1, 1, -2.0]]))
        >>> {round(foreground_mass(moments.sample, form.centre), 4) for form in further_forms(moments).values()}
        {0.455}
    """
    foreground = foreground_columns(moments.num_classes, moments.metadata.background)
    uniform = np.zeros(moments.num_classes)
    uniform[foreground] = 1.0
    balanced = logit_normalization(moments, margin="balance", relative_std=True)
    prior = prior2posterior(moments)
    average = replace(balanced, scale=(balanced.scale + prior.scale) / 2, shift=(balanced.shift + prior.shift) / 2)
    maps = {
        "relative std": logit_normalization(moments, use_mean=False, margin="balance", relative_std=True),
        "prior": prior,
        "half prior": prior2posterior(moments, strength=0.5),
        "scaled prior": prior2posterior(moments, std_power=0.5),
        "average": average,
    }
    return {name: _centred(name, affine, uniform, 1.0, moments) for name, affine in maps.items()}


def _centred(
    name: str, affine: ClassAffine, direction: FloatArray, margin_per_shift: float, moments: ClassMoments
) -> MarginForm:
    """The form of a map with margin 0, moved along `direction` until the foreground mass is the detector's own."""
    target = foreground_mass(moments.sample, ClassAffine.identity(moments.num_classes, affine.background))
    low, high = -_SEARCH_RANGE, _SEARCH_RANGE
    for _ in range(50):  # the mass grows with the shift
        middle = (low + high) / 2
        mass = foreground_mass(moments.sample, replace(affine, shift=affine.shift + middle * direction))
        low, high = (middle, high) if mass < target else (low, middle)
    shift = (low + high) / 2
    centre = replace(affine, shift=affine.shift + shift * direction)
    return MarginForm(name, centre, direction, shift * margin_per_shift, margin_per_shift)


def foreground_mass(rows: npt.NDArray[Any], affine: ClassAffine) -> float:
    """Mean foreground probability of mapped logits.

    Example:
        >>> foreground_mass(np.zeros((1, 4)), ClassAffine.identity(4, 0))
        0.75
    """
    if affine.background is None:
        raise InputError("Expected `affine` to have a background column, but got none.")
    logits = affine(rows.astype(np.float64))
    logits -= logits.max(axis=1, keepdims=True)
    odds = np.exp(logits)
    return float(1.0 - (odds[:, affine.background] / odds.sum(axis=1)).mean())


@dataclass(frozen=True)
class MapResult:
    """What one map does to a detector.

    Args:
        mass: Mean foreground probability of the recorded logits under the map.
        detections: Detections an image, before classes that were not looked for are left out.
        metrics: AP and its groups, between 0 and 1, by protocol.
    """

    mass: float
    detections: float
    metrics: Mapping[str, Mapping[str, float]]


def measure_maps(
    store: PredictionStore,
    truths: Mapping[str, GroundTruth],
    maps: Mapping[str, ClassAffine],
    rows: npt.NDArray[Any],
    *,
    decode: DecodeSettings | None = None,
    threads: int | None = None,
) -> dict[str, MapResult]:
    """Decode the proposals once under each map and evaluate them by each protocol.

    Args:
        store: The proposals.
        truths: Ground truth of the same images by protocol.
        maps: The maps by name.
        rows: Recorded logits, for the foreground mass.
        decode: Threshold, suppression and limits.
        threads: Of the decoder.
    """
    names = list(maps)
    results: dict[str, MapResult] = {}
    for first in range(0, len(names), _MAPS_AT_ONCE):
        some = names[first : first + _MAPS_AT_ONCE]
        found = decode_many(store, [maps[name] for name in some], decode, threads=threads)
        for name, detections in zip(some, found, strict=True):
            metrics = {}
            for protocol, truth in truths.items():
                values = evaluate_detections(detections, truth, groups=groups_of_classes(truth)[0])
                metrics[protocol] = {metric: values[metric] for metric in METRICS}
            results[name] = MapResult(foreground_mass(rows, maps[name]), len(detections) / len(store), metrics)
    return results


@dataclass(frozen=True)
class Plateau:
    """The best point of a curve and how far it is nearly as good.

    Args:
        best: Where the best point is.
        value: The best value.
        low: The curve is within the tolerance of it from here, between points by straight lines,
        high: to here; an end of the curve where it never falls off.
    """

    best: float
    value: float
    low: float
    high: float


def plateau(places: Sequence[float], values: Sequence[float], tolerance: float) -> Plateau:
    """Find the best point of a curve and the stretch around it that loses no more than `tolerance`.

    Example:
        >>> plateau([-2, -1, 0, 1], [0.0, 4.0, 5.0, 3.0], tolerance=1.5)
        Plateau(best=0.0, value=5.0, low=-1.125, high=0.75)
    """
    top = int(np.argmax(values))
    least = values[top] - tolerance
    ends = []
    for step, last in ((-1, 0), (1, len(values) - 1)):
        place = top
        while place != last and values[place + step] >= least:
            place += step
        if place == last:
            ends.append(float(places[last]))
            continue
        share = (values[place] - least) / (values[place] - values[place + step])
        ends.append(float(places[place] + share * (places[place + step] - places[place])))
    return Plateau(float(places[top]), float(values[top]), ends[0], ends[1])
