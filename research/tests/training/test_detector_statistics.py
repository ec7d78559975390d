"""Statistics of a detector by other estimators."""

from functools import partial

import numpy as np
import pytest
import torch
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.estimators import MovingAverage, PositiveMoments
from logn_research.experiments.detector_statistics import collect_detector_statistics
from logn_research.training.detectors import make_detector

from logn.models.images import as_tensor

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # The detector has no class names, and takes those of the labels in their order.
    pytest.mark.filterwarnings("ignore:The labels have class names:logn.errors.LogNWarning"),
]


@pytest.fixture(scope="module")
def dataset(lvis_folder):
    return SampleDataset(lvis_folder / "train.json")


@pytest.fixture(scope="module")
def detector():
    model = make_detector("small", 4, image_size=64).eval()
    torch.manual_seed(0)
    torch.nn.init.normal_(model.roi_heads.box_predictor.cls_score.weight, std=0.5)
    return model


def test_every_image_is_a_batch_of_the_moving_average(detector, dataset):
    found = collect_detector_statistics(detector, dataset, estimator=partial(MovingAverage, momentum=0.1))
    average = MovingAverage(5, momentum=0.1)
    for index in np.random.default_rng(0).permutation(len(dataset)):
        average.update(detector.propose([as_tensor(dataset.read_image(int(index)))])[0].logits)
    np.testing.assert_allclose(found.mean, average.moments().mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.variance, average.moments().variance, rtol=1e-4)
    assert found.head.population == "test proposals, moving average"
    assert len(found.sample) > 100


def test_positives_are_the_proposals_on_objects_of_a_class(detector, dataset):
    found = collect_detector_statistics(detector, dataset, estimator=PositiveMoments)
    everything = collect_detector_statistics(detector, dataset)
    assert found.head.population == "test proposals, positives"
    assert found.count[0] == 0  # the background has none
    assert 0 < found.count[1:].sum() < everything.count[1]
    strict = collect_detector_statistics(detector, dataset, estimator=partial(PositiveMoments, require_correct=True))
    assert (strict.count <= found.count).all()
