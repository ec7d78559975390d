"""The logits of a trained classifier, and their statistics."""

import numpy as np
import pytest
import torch
from logn_research.datasets.labelled_images import array_images
from logn_research.training.classifiers import (
    classifier_logits,
    classifier_statistics,
    logits_and_statistics,
    make_classifier,
)

import logn
from logn.errors import InputError


@pytest.fixture(scope="module")
def model(one_thread):
    made = make_classifier("small", 3)
    made.cls_score.weight.data.mul_(100)
    return made


@pytest.fixture(scope="module")
def images():
    pixels = np.random.default_rng(0).integers(0, 256, (11, 32, 32, 3)).astype(np.uint8)
    return array_images(pixels, np.arange(11) % 3, ("a", "b", "c"))


def test_logits_are_the_models_in_the_order_of_the_images(model, images):
    seen = []
    logits = classifier_logits(model, images, batch=4, progress=seen.append)
    pixels = torch.from_numpy(images.pixels).permute(0, 3, 1, 2) / 255
    np.testing.assert_allclose(logits, model(pixels).detach(), rtol=1e-4, atol=1e-5)
    assert logits.dtype == np.float32
    assert seen == [4, 4, 3]


def test_statistics_know_the_model_and_its_classes(model, images):
    moments = classifier_statistics(model, images)
    logits = classifier_logits(model, images)
    np.testing.assert_allclose(moments.mean, logits.mean(0, dtype=np.float64), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(moments.variance, logits.var(0, ddof=1, dtype=np.float64), rtol=1e-4)
    about = moments.metadata
    assert (about.class_names, about.background, about.activation) == (("a", "b", "c"), None, "softmax")
    assert (about.layer, about.population) == ("cls_score", "images")
    assert about.fingerprint is not None
    assert len(moments.sample) == 11
    logn.logit_normalization(moments)


def test_one_pass_gives_both(model, images):
    logits, moments = logits_and_statistics(model, images)
    np.testing.assert_array_equal(logits, classifier_logits(model, images))
    np.testing.assert_array_equal(moments.mean, classifier_statistics(model, images).mean)


def test_a_model_in_training_mode_is_run_in_evaluation_and_left_in_training(model, images):
    expected = classifier_logits(model, images)
    model.train()
    try:
        np.testing.assert_array_equal(classifier_logits(model, images), expected)
        assert model.training
    finally:
        model.eval()


def test_other_images_are_refused(model, images):
    with pytest.raises(InputError, match="has 4 classes, but the classifier has 3"):
        classifier_logits(model, array_images(images.pixels, images.labels, ("a", "b", "c", "d")))
    model.class_names = ("a", "b", "z")
    try:
        with pytest.raises(InputError, match=r"Class 2 of `images` is .*, but that of the classifier is `z`"):
            classifier_logits(model, images)
    finally:
        model.class_names = None
    with pytest.raises(InputError, match="Expected `batch` to be at least 1"):
        classifier_logits(model, images, batch=0)


def test_images_of_another_size_are_brought_to_the_models(model):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 40, 50, 3)).astype(np.uint8)
    assert classifier_logits(model, array_images(pixels, [0, 1], ("a", "b", "c"))).shape == (2, 3)
