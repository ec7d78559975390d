"""The forms of the margin pass through the known methods, and curves are read off rightly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from margin_landscape import FORMS, foreground_mass, margin_forms, measure_maps, plateau

from logn.calibrators.methods.logit_normalization import logit_normalization
from logn.errors import InputError
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.evaluate.store.format import StoreHeader
from logn.evaluate.store.prediction_store import PredictionStore
from logn.evaluate.store.writer import PredictionWriter
from logn.logits.proposals import Proposals
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments

CLASSES, IMAGES, PROPOSALS = 6, 8, 12


@pytest.fixture(scope="module")
def logits():
    random = np.random.default_rng(0)
    foreground = random.standard_normal((IMAGES, PROPOSALS, CLASSES)) * np.linspace(0.5, 2, CLASSES)
    foreground += np.linspace(-3, 1, CLASSES)
    return np.concatenate([random.normal(3, 2, (IMAGES, PROPOSALS, 1)), foreground], axis=2).astype(np.float32)


@pytest.fixture(scope="module")
def moments(logits):
    recorded = ClassMoments(CLASSES + 1, sample_rows=500, metadata=StatisticsMetadata(background=0))
    for image in logits:
        recorded.update(image)
    return recorded


def test_every_form_keeps_the_foreground_mass_at_its_centre_and_raises_it_with_the_shift(moments):
    forms = margin_forms(moments)
    assert tuple(forms) == FORMS
    own = foreground_mass(moments.sample, forms["none"].centre)
    for form in forms.values():
        masses = [foreground_mass(moments.sample, form.at(shift)) for shift in (-2, 0, 2)]
        assert masses[0] < masses[1] < masses[2]
        assert masses[1] == pytest.approx(own, abs=1e-6)
        assert form.direction[0] == 0
        assert form.direction[1:].mean() == pytest.approx(1)


def test_known_margins_lie_on_the_forms(moments):
    forms = margin_forms(moments)
    paper = logit_normalization(moments, form="paper")
    again = forms["paper"].at(forms["paper"].shift_of(paper.settings["margin_value"]))
    np.testing.assert_allclose(again.scale, paper.scale)
    np.testing.assert_allclose(again.shift, paper.shift, atol=1e-9)
    plain = logit_normalization(moments, margin=0.0)
    for form in ("paper", "undivided"):
        np.testing.assert_allclose(forms[form].at(forms[form].shift_of(0.0)).shift, plain.shift, atol=1e-9)
    balanced = logit_normalization(moments, margin="balance", relative_std=True)
    np.testing.assert_allclose(forms["balanced"].at(0).shift, balanced.shift)
    shifted = forms["undivided"].at(1.5).shift - forms["undivided"].at(0).shift
    np.testing.assert_allclose(shifted[1:], 1.5)


def test_statistics_without_background_or_sample_are_refused(logits):
    for metadata, rows in ((StatisticsMetadata(), 10), (StatisticsMetadata(background=0), 0)):
        recorded = ClassMoments(CLASSES + 1, sample_rows=rows, metadata=metadata)
        recorded.update(logits[0])
        with pytest.raises(InputError, match="background and to hold a row sample"):
            margin_forms(recorded)


def test_measurements_are_those_of_compare(logits, moments, tmp_path):
    random = np.random.default_rng(1)
    corners = random.uniform(0, 60, (IMAGES, PROPOSALS, 2))
    boxes = np.concatenate([corners, corners + random.uniform(8, 30, corners.shape)], axis=2)
    header = StoreHeader(num_columns=CLASSES + 1, background=0, activation="softmax", category_ids=tuple(range(1, 7)))
    with PredictionWriter(tmp_path / "store", header) as writer:
        for number in range(IMAGES):
            writer.append(number + 1, Proposals(boxes[number], logits[number], height=100, width=100))
    objects = [
        (image, proposal, int(logits[image, proposal, 1:].argmax())) for image in range(IMAGES) for proposal in (0, 5)
    ]
    content = {
        "images": [
            {"id": n + 1, "neg_category_ids": [1, 2, 3], "not_exhaustive_category_ids": []} for n in range(IMAGES)
        ],
        "categories": [{"id": n + 1, "name": f"c{n}", "frequency": "rcf"[n % 3]} for n in range(CLASSES)],
        "annotations": [
            {
                "id": place + 1,
                "image_id": image + 1,
                "category_id": label + 1,
                "bbox": [*boxes[image, box, :2].tolist(), *(boxes[image, box, 2:] - boxes[image, box, :2]).tolist()],
                "area": float(np.prod(boxes[image, box, 2:] - boxes[image, box, :2])),
            }
            for place, (image, box, label) in enumerate(objects)
        ],
    }
    everywhere = {
        **content,
        "images": [{**image, "neg_category_ids": list(range(1, 7))} for image in content["images"]],
    }
    truths = {"some": load_ground_truth(content), "all": load_ground_truth(everywhere)}
    maps = {"none": margin_forms(moments)["none"].at(0), "logn": logit_normalization(moments, form="paper")}
    store = PredictionStore(tmp_path / "store")
    found = measure_maps(store, truths, maps, moments.sample)
    for protocol, labels in (("some", content), ("all", everywhere)):
        rows = compare(store, labels, ["logn"], settings=CompareSettings(num_bootstrap=0), moments=moments)
        for name in maps:
            for metric, value in found[name].metrics[protocol].items():
                assert value == pytest.approx(rows[name][metric], abs=1e-12, nan_ok=True)
    assert found["none"].metrics["some"]["AP"] > found["none"].metrics["all"]["AP"]
    assert found["logn"].mass < found["none"].mass
    assert 0 < found["none"].detections <= PROPOSALS * CLASSES


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.floats(0.001, 0.5))
def test_a_plateau_holds_its_best_point_and_nothing_much_worse(values, tolerance):
    places = list(range(len(values)))
    found = plateau(places, values, tolerance)
    assert found.value == max(values)
    assert found.low <= found.best <= found.high
    for place in np.linspace(found.low, found.high, 7):
        assert np.interp(place, places, values) >= found.value - tolerance - 1e-9
