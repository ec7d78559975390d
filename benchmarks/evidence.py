"""When does which form of LogN help? Every method on every trained detector, choices on dev, numbers on test."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from logn.calibrators.advice import advise
from logn.classes.dimensions import read_dimensions
from logn.errors import InputError
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.decode.mask_maker import mask_maker
from logn.experiments.artifact_cache import ArtifactCache
from logn.experiments.detector_spec import DetectorSpec, training_counts
from logn.files import atomic_path
from logn.logits.fingerprint import fingerprint

#: What is measured, by the name it has in the tables. Nothing here was tuned on these detectors.
METHODS: Mapping[str, str] = {
    "none": "none",
    "mean": "logn:use_std=false,margin=0",
    "std": "logn:use_mean=false,margin=0",
    "margin min alone": "logn:use_mean=false,use_std=false,margin=min",
    "LogN (paper)": "logn",
    "LogN, margin 0": "logn:margin=0",
    "LogN, margin mean": "logn:margin=mean",
    "LogN, margin max": "logn:margin=max",
    "LogN, margin background": "logn:margin=background",
    "LogN balanced": "logn:balanced",
    "relative std alone": "logn:use_mean=false,relative_std=true,margin=0",
    "mean, mass kept": "logn:use_std=false,margin=balance",
    "std not relative, mass kept": "logn:margin=balance",
    "mean and relative std, margin 0": "logn:relative_std=true,margin=0",
    "LogA": "loga",
    "LogA, raw counts": "loga:priors=false",
    "NorCal": "norcal",
    "FRACAL": "fracal",
    "tau-norm": "tau-norm",
}
#: Rivals with a parameter, whose value is also chosen on dev, as their authors do.
TUNED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "LogA, tuned": (
        "loga:tau={}",
        tuple(f"{tau}{kind}" for kind in ("", ",priors=false") for tau in (0.2, 0.5, 0.75, 1)),
    ),
    "NorCal, tuned": ("norcal:gamma={}", ("0.2", "0.4", "0.6", "0.8", "1", "1.2")),
    "tau-norm, tuned": ("tau-norm:tau={}", ("0.2", "0.4", "0.6", "0.8", "1")),
}
#: The methods that are also measured with masks, without a limit per image, and with intervals over images.
MAIN = ("none", "LogN (paper)", "LogN, margin 0", "LogN balanced", "LogA, raw counts", "NorCal")

#: The grid: heads, samplers, data.
HEADS = (("linear", 20.0), ("cosine", 20.0), ("cosine", 10.0))
METRICS = ("AP", "APr", "APc", "APf")


@dataclass(frozen=True)
class Evidence:
    """What was measured on one detector.

    Args:
        name: Of the detector.
        settings: What the detector is: scenes, head, sampler, loss, model, seed, iterations.
        federated: Metrics of each method under federated labels, as in LVIS: AP, APr, APc, APf, and for some methods
            the same with -Fixed and -mask.
        exhaustive: The same where every class is labelled in every image.
        dev: AP under federated labels on the images on which choices were made.
        chosen: The values that were chosen on dev.
        intervals: 95 % intervals over draws of test images of the change of federated AP against no correction.
        advice: What the diagnosis recommends from the statistics alone, and its indicators.
    """

    name: str
    settings: Mapping[str, Any]
    federated: Mapping[str, Mapping[str, float]]
    exhaustive: Mapping[str, Mapping[str, float]]
    dev: Mapping[str, float]
    chosen: Mapping[str, str]
    intervals: Mapping[str, tuple[float, float]]
    advice: Mapping[str, Any] = field(default_factory=dict)


def grid(seeds: Sequence[int], *, iterations: int) -> list[DetectorSpec]:
    """Two-stage detectors: {linear, cosine 20, cosine 10} x {random, RFS} x {families, distinct} x seeds.

    Example:
        >>> len(grid([0, 1], iterations=800))
        24
    """
    return [
        DetectorSpec(scenes, classifier=head, temperature=degree, sampler=sampler, seed=seed, iterations=iterations)
        for seed, scenes, sampler, (head, degree) in itertools.product(
            seeds, ("families", "distinct"), ("random", "rfs"), HEADS
        )
    ]


def measure(cache: ArtifactCache, spec: DetectorSpec, *, num_bootstrap: int = 500) -> Evidence:
    """Measure every method on one trained detector; what was measured before is read from its folder."""
    path, weights = cache.model_folder(spec) / "evidence.json", fingerprint(cache.model(spec))
    known = json.loads(path.read_text()) if path.exists() else {}
    if not known or known.get("weights", weights) != weights:  # files of an earlier version do not tell the weights
        known = {**_measure(cache, spec, num_bootstrap).__dict__, "weights": weights}
        with atomic_path(path) as temporary:
            Path(temporary).write_text(json.dumps(known, indent=1) + "\n")
        known = json.loads(path.read_text())
    known.pop("weights", None)
    # The advice needs no labels and no time, so it is always that of the present rule.
    advice = advise(cache.statistics(spec))
    indicators = {name: round(value, 4) for name, value in advice.indicators.items()}
    kept = {"form": advice.form, "confidence": advice.confidence, "strength": advice.strength, "indicators": indicators}
    return replace(Evidence(**known), advice=kept)


def _measure(cache: ArtifactCache, spec: DetectorSpec, num_bootstrap: int) -> Evidence:
    inputs = _fit_inputs(cache, spec)
    fixed_methods = _measurable(METHODS, inputs)
    dev, chosen = _choose(cache, spec, inputs, fixed_methods)
    methods = {**fixed_methods, **chosen}
    data, store = cache.data_folder(spec), cache.predictions(spec, "test")
    plain = CompareSettings(num_bootstrap=0)
    federated = compare(store, data / "test.json", methods, settings=plain, **inputs)
    exhaustive = compare(store, data / "test_exhaustive.json", methods, settings=plain, **inputs)
    main = {name: methods[name] for name in MAIN}
    detector = cache.model(spec)
    two_stages = spec.model == "small"  # the one-stage detector has no masks
    masks = mask_maker(detector, cache.dataset(spec, "test"), store) if two_stages else None
    special = compare(
        store,
        data / "test.json",
        main,
        settings=CompareSettings(num_bootstrap=num_bootstrap, fixed=True),
        mask_maker=masks,
        **inputs,
    )
    more = {row.name: _rounded(row.values) for row in special.rows}
    return Evidence(
        name=spec.name,
        settings={
            name: getattr(spec, name)
            for name in ("scenes", "model", "classifier", "temperature", "sampler", "loss", "seed", "iterations")
        },
        federated={row.name: {**_rounded(row.values), **more.get(row.name, {})} for row in federated.rows},
        exhaustive={row.name: _rounded(row.values) for row in exhaustive.rows},
        dev=dev,
        chosen=dict(chosen),
        intervals={
            row.name: (round(row.differences["AP"].low, 5), round(row.differences["AP"].high, 5))
            for row in special.rows[1:]
        },
    )


def _fit_inputs(cache: ArtifactCache, spec: DetectorSpec) -> dict[str, Any]:
    """All that methods are fitted to: statistics without labels, and for the rivals counts, dimensions, weights."""
    training = cache.data_folder(spec) / "train.json"
    counts = training_counts(cache.dataset(spec, "train"))
    inputs = {
        "moments": cache.statistics(spec),
        "counts": counts,
        "dimensions": read_dimensions(training, counts.names),
    }
    if spec.classifier == "linear" and spec.model == "small":  # the weights of a cosine head have no length to undo
        layer = cache.model(spec).get_submodule("roi_heads.box_predictor.cls_score")
        inputs |= {"weight": layer.weight.detach().numpy(), "bias": layer.bias.detach().numpy()}
    return inputs


def _measurable(methods: Mapping[str, str], inputs: Mapping[str, Any]) -> dict[str, str]:
    """Leave out what a detector has no place for: tau-norm without weights, margins of a background without one."""
    background = inputs["moments"].metadata.background
    return {
        name: spec
        for name, spec in methods.items()
        if not (spec.startswith("tau-norm") and "weight" not in inputs)
        and not ("background" in spec and background is None)
    }


def _choose(
    cache: ArtifactCache, spec: DetectorSpec, inputs: Mapping[str, Any], methods: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, str]]:
    """AP on dev of all methods, and the values of the tuned ones that are best there."""
    tuned = {
        name: _measurable({value: form.format(value) for value in values}, inputs)
        for name, (form, values) in TUNED.items()
    }
    every = dict(methods) | {method: method for options in tuned.values() for method in options.values()}
    store = cache.predictions(spec, "dev")
    found = compare(
        store, cache.data_folder(spec) / "dev.json", every, settings=CompareSettings(num_bootstrap=0), **inputs
    )
    precision = {row.name: round(float(row["AP"]), 5) for row in found.rows}
    if not any(value == value for value in precision.values()):
        raise InputError(f"Expected `{store}` to give an AP on dev, but there is none.")
    chosen = {
        name: max(options.values(), key=lambda method: precision[method]) for name, options in tuned.items() if options
    }
    return precision, chosen


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    kept = [f"{metric}{suffix}" for suffix in ("", "-Fixed", "-mask") for metric in METRICS]
    return {name: round(float(values[name]), 5) for name in (*kept, "ECE") if name in values}
