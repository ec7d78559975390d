"""The stages of a cascade are normalised each by its own statistics, as the official code does."""

import numpy as np
import pytest
import torch
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.experiments.detector_statistics import (
    collect_stage_statistics,
    correct_stages,
)
from logn_research.training.detectors import make_detector

from logn.errors import InputError
from logn.methods.logit_normalization import logit_normalization
from logn.models.images import as_tensor
from logn.models.layer import fingerprint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def dataset(lvis_folder):
    return SampleDataset(lvis_folder / "train.json")


@pytest.fixture
def cascade(few_weights):
    model = make_detector("cascade-r101", 4, image_size=64).eval()
    torch.manual_seed(0)
    for number, predictor in enumerate(model.roi_heads.box_predictor):
        torch.nn.init.normal_(predictor.cls_score.weight, std=0.1 * (number + 1))
    return model


def stage_logits(cascade, image):
    """What each stage says of the proposals of an image, without any hook of ours left."""
    seen = []
    handles = [
        predictor.cls_score.register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
        for predictor in cascade.roi_heads.box_predictor
    ]
    cascade.propose([image])
    for handle in handles:
        handle.remove()
    return [rows.numpy() for rows in seen]


@pytest.mark.filterwarnings("ignore:The labels have class names:logn.errors.LogNWarning")
def test_each_stage_has_its_own_statistics_and_its_own_map(cascade, dataset):
    images = [as_tensor(dataset.read_image(index)) for index in range(2)]
    stages = collect_stage_statistics(cascade, dataset, max_images=2, batch=1)
    chosen = np.random.default_rng(0).permutation(len(dataset))[:2].tolist()
    by_hand = [stage_logits(cascade, as_tensor(dataset.read_image(index))) for index in chosen]
    for place, moments in enumerate(stages):
        rows = np.concatenate([logits[place] for logits in by_hand])
        np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-4, atol=1e-5)
        assert moments.head.layer == f"roi_heads.box_predictor.{place}.cls_score"
    maps = [logit_normalization(moments) for moments in stages]
    raw, plain = stage_logits(cascade, images[0]), fingerprint(cascade)
    digest = correct_stages(cascade, maps)
    corrected = cascade.propose([images[0]])[0].logits
    # Normalise, then average: not what a map of the average does.
    wanted = np.mean([affine(rows) for affine, rows in zip(maps, raw, strict=True)], axis=0)
    np.testing.assert_allclose(corrected, wanted, rtol=1e-3, atol=1e-4)
    assert digest.startswith("stages:")
    assert plain not in digest


def test_a_detector_without_stages_is_refused():
    with pytest.raises(InputError, match="Only a cascade"):
        correct_stages(make_detector("small", 4, image_size=64).eval(), [])
