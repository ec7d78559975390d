"""The evidence on photographs: the page is that of the data, and what is recommended stands in it."""

import json
from pathlib import Path

import pytest
from margin_landscape import foreground_mass, further_forms
from real_images_page import page
from real_rule import judge
from real_why import foreground_shares

from logn.calibrators.advice import EXTRA_MARGINS
from logn.evaluate.store.format import StoreHeader
from logn.evaluate.store.prediction_store import PredictionStore
from logn.evaluate.store.writer import PredictionWriter
from logn.logits.proposals import Proposals

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def records():
    return json.loads((DOCS / "results" / "real-images.json").read_text())


def test_the_page_is_that_of_the_data(records):
    assert (DOCS / "real-images.md").read_text() == page(records)


@pytest.mark.parametrize("labels", ["federated", "exhaustive"])
def test_what_is_recommended_lowers_no_detector_of_the_dev_sets(records, labels):
    found = {verdict.name: verdict for verdict in judge(records, labels)}
    recommended, best = found[f"prior {EXTRA_MARGINS[labels]:+d}"], next(iter(found.values()))
    assert recommended.harmed == ()
    assert recommended.mean > 0
    # Where it is not the rule's very first, that one is ahead on drawn scenes alone: the page says so.
    assert recommended.by_kind["photographs"] >= best.by_kind["photographs"]


def test_harm_is_what_lies_below_nothing_for_sure():
    table = {"none": [5.0] * 7, "prior -1": [4.9, 0, 0, 0, 0, -0.3, 0.1], "prior -2": [4.8, 0, 0, 0, 0, -0.3, -0.1]}
    one = {"name": "a", "kind": "drawn", "dev": {"federated": table}}
    found = {verdict.name: verdict.harmed for verdict in judge([one], "federated")}
    assert found["prior -1"] == ()
    assert found["prior -2"] == ("a",)


def test_shares_of_objects_are_counted(tmp_path):
    boxes = [[0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60], [70, 70, 80, 80]]
    with PredictionWriter(tmp_path / "store", StoreHeader(num_columns=3, background=0)) as writer:
        writer.append(1, Proposals(boxes, [[0.0, 0.0, 0.0]] * 4, height=100, width=100))
    truth = {"annotations": [{"image_id": 1, "bbox": [0, 0, 10, 10]}]}
    shares = foreground_shares(PredictionStore(tmp_path / "store"), truth, regions=8)
    assert shares["test"] == 0.5
    assert shares["training"] == 0.25  # two of eight: no more than a quarter are objects
    assert shares["model"] == pytest.approx(2 / 3, abs=1e-3)


def test_every_form_keeps_the_mass_at_its_centre():
    import numpy as np

    from logn.statistics.metadata import StatisticsMetadata
    from logn.statistics.moments import ClassMoments

    moments = ClassMoments(5, sample_rows=300, mean_probability=True, metadata=StatisticsMetadata(background=0))
    rows = np.random.default_rng(0).normal([3, 1, -1, -2, -3], [1, 2, 1.5, 1, 1], (300, 5))
    moments.update(rows)
    odds = np.exp(moments.sample.astype(np.float64))
    mass = float((1 - odds[:, 0] / odds.sum(axis=1)).mean())
    for form in further_forms(moments).values():
        assert foreground_mass(moments.sample, form.centre) == pytest.approx(mass, abs=1e-6)
