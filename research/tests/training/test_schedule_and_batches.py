"""Learning rates follow the paper; batches depend on the seed and the iteration alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logn_research.datasets.sample_dataset import SampleDataset, find_annotations
from logn_research.datasets.samplers import RandomSampler, RepeatFactorSampler
from logn_research.training.augmentation import Augmentation
from logn_research.training.batches import DetectorBatches, ImageStream, SampleCache
from logn_research.training.recipes import DETECTOR_RECIPES, DetectorTrainingConfig

from logn.errors import InputError


def schedule_of(model="mask-rcnn-r50", images=100_000, **options):
    return DetectorTrainingConfig("data", "run", model=model, **options).schedule(images)


def test_the_papers_schedule_on_lvis():
    schedule = schedule_of()
    assert schedule.total == 24 * 6250
    rates = [schedule.learning_rate(epoch * 6250) for epoch in (1, 15.9, 16, 21.9, 22, 23.9)]
    np.testing.assert_allclose(rates, [0.02, 0.02, 0.002, 0.002, 0.0002, 0.0002])
    warmup = [schedule.learning_rate(iteration) for iteration in (0, 250, 500)]
    np.testing.assert_allclose(warmup, [0.00002, 0.01001, 0.02])


def test_the_learning_rate_scales_with_the_batch_unless_it_is_given():
    assert schedule_of(images=100, batch=8).peak == pytest.approx(0.01)
    assert schedule_of(images=100, batch=8, learning_rate=0.3).peak == 0.3


def test_the_small_schedule_falls_to_nearly_nothing():
    schedule = schedule_of("small", images=100)
    assert schedule.total == 1000
    assert schedule.learning_rate(999) < 1e-5
    assert schedule.learning_rate(500) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("model", "rate", "warmup", "decay", "iterations", "longest_gradient"),
    [
        ("mask-rcnn-r101", 0.02, 500, "step", None, None),
        ("small", 0.04, 100, "cosine", 1000, 10.0),
    ],
)
def test_presets_are_those_of_the_page(model, rate, warmup, decay, iterations, longest_gradient):
    schedule = schedule_of(model)
    assert (schedule.peak, schedule.warmup, schedule.decay) == (rate, warmup, decay)
    recipe = DETECTOR_RECIPES.get(model, DETECTOR_RECIPES["paper"])
    assert (recipe.iterations, recipe.gradient_norm) == (iterations, longest_gradient)


def test_a_short_run_warms_up_for_a_quarter_of_it():
    assert schedule_of(images=100, batch=16, iterations=1000).warmup == 250
    assert schedule_of(images=100, batch=16, iterations=2000).warmup == 500


def test_the_last_images_of_an_epoch_are_an_iteration_too():
    assert schedule_of(images=33, batch=16, epochs=2).total == 2 * 3


def test_shorter_runs_keep_the_share_of_the_milestones():
    schedule = schedule_of(images=160, batch=16, epochs=12)
    assert (schedule.total, schedule.drops) == (120, (80, 110))


def test_milestones_are_epochs_of_the_run_itself(tmp_path):
    # LOCE's second stage on LVIS: 6 epochs, drops after 3 and 5.
    config = DetectorTrainingConfig("data", tmp_path, model="mask-rcnn-r50", epochs=6, milestones=(3, 5))
    schedule = config.schedule(100_000)
    assert (schedule.total, schedule.drops) == (6 * 6250, (3 * 6250, 5 * 6250))
    rates = [schedule.learning_rate(epoch * 6250) for epoch in (2.9, 3, 4.9, 5)]
    np.testing.assert_allclose(rates, [0.02, 0.002, 0.002, 0.0002])
    assert config.plan()["milestones"] == [3, 5]
    usual = DetectorTrainingConfig("data", tmp_path, model="mask-rcnn-r50", epochs=6)
    assert usual.schedule(100_000).drops == (4 * 6250, round(5.5 * 6250))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"model": "small", "milestones": (3, 5)},
            "Expected no `milestones` where the learning rate falls",
        ),
        ({"model": "mask-rcnn-r50", "milestones": (5, 3)}, "Expected `milestones` to be epochs above 0 that rise"),
        ({"model": "mask-rcnn-r50", "milestones": ()}, "Expected `milestones` to be epochs above 0 that rise"),
    ],
)
def test_milestones_that_make_no_sense_are_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        DetectorTrainingConfig("data", "run", **options)


def test_milestones_after_the_end_are_refused():
    config = DetectorTrainingConfig("data", "run", model="mask-rcnn-r50", epochs=4, milestones=(3, 5))
    with pytest.raises(InputError, match="Expected `milestones` to lie inside the run of 4 epochs, but got"):
        config.schedule(1600)


@settings(max_examples=30, deadline=None)
@given(images=st.integers(1, 9), batch=st.integers(1, 7), iterations=st.integers(1, 12), seed=st.integers(0, 5))
def test_any_order_of_asking_gives_the_same_stream(images, batch, iterations, seed):
    labels = [[0]] * images
    forward = ImageStream(RandomSampler(labels, 1), batch, seed)
    listed = [forward.indices(i) for i in range(iterations)]
    backward = ImageStream(RandomSampler(labels, 1), batch, seed)
    again = [backward.indices(i) for i in reversed(range(iterations))][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(listed, again, strict=True))
    whole = np.concatenate(listed)
    for epoch in range(len(whole) // images):
        assert sorted(whole[epoch * images : (epoch + 1) * images]) == list(range(images))


def test_epochs_of_changing_length_are_joined_without_gaps():
    labels = [[0]] * 8 + [[1]]
    sampler = RepeatFactorSampler(labels, 2, threshold=0.7, rounding="stochastic")
    stream = ImageStream(sampler, 4, seed=3)
    joined = np.concatenate([sampler.indices(epoch, 3) for epoch in range(6)])
    asked = np.concatenate([stream.indices(i) for i in range(8)])
    assert np.array_equal(asked, joined[: len(asked)])


def batches_of(folder, **options):
    dataset = SampleDataset(folder / "train.json")
    sampler = RandomSampler(dataset.labels_per_image(), dataset.num_classes)
    return DetectorBatches(
        ImageStream(sampler, 4, seed=0), SampleCache(dataset).__getitem__, Augmentation(flip=0.5, colour=0.2), **options
    )


def same(first, second):
    return first.image_ids == second.image_ids and all(
        torch.equal(a, b) for a, b in zip(first.images, second.images, strict=True)
    )


def test_batches_do_not_depend_on_workers_or_on_where_the_run_starts(lvis_folder):
    here = list(batches_of(lvis_folder).iterate(0, 4))
    ahead = list(batches_of(lvis_folder).iterate(2, 4, workers=1))
    assert same(here[2], ahead[0])
    assert same(here[3], ahead[1])


def test_processes_share_the_very_images_of_one_process(lvis_folder):
    whole = batches_of(lvis_folder)[5]
    parts = [batches_of(lvis_folder, rank=rank, world_size=2)[5] for rank in range(2)]
    assert whole.image_ids[0::2] == parts[0].image_ids
    assert whole.image_ids[1::2] == parts[1].image_ids
    assert torch.equal(whole.images[1], parts[1].images[0])


def test_cached_samples_equal_fresh_ones(lvis_folder):
    dataset = SampleDataset(lvis_folder / "train.json")
    cache, full = SampleCache(dataset), SampleCache(dataset, room=0)
    for _ in range(2):
        for index in range(3):
            for sample in (cache[index], full[index]):
                assert np.array_equal(sample.image, dataset[index].image)
                assert np.array_equal(sample.masks(), dataset[index].masks())
                assert sample.masks().dtype == np.bool_


def test_the_annotation_file_of_a_folder_is_found(lvis_folder, tmp_path):
    assert find_annotations(lvis_folder) == lvis_folder / "train.json"
    (tmp_path / "mine.json").write_text("{}")
    assert find_annotations(tmp_path) == tmp_path / "mine.json"
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match=r"has no `train\.json`, but mine\.json, other\.json: name the file itself"):
        find_annotations(tmp_path)
    with pytest.raises(InputError, match="There is no"):
        find_annotations(tmp_path / "none")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"model": "yolo"}, "Expected `model` to be one of"),
        ({"preset": "long"}, "Expected `preset` to be one of"),
        ({"sampler": "sorted"}, "Expected `sampler` to be one of"),
        ({"repeat_threshold": 0.0}, "Expected `repeat_threshold` to be above 0"),
        ({"batch": 0}, "Expected `batch` to be above 0, but got 0"),
        ({"seed": -1}, "Expected `seed` to be 0 or more, but got -1"),
        ({"iterations": 1, "epochs": 1.0}, "Expected one of `iterations` and `epochs`, but got both"),
    ],
)
def test_wrong_configs_get_a_sentence(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        DetectorTrainingConfig("data", "run", **wrong)


def test_the_image_size_moves_the_papers_augmentation():
    config = DetectorTrainingConfig("data", "run", model="mask-rcnn-r50", image_size=400)
    assert (config.augmentation.short_sides, config.augmentation.longest_side) == ((400,), 666)
    assert DetectorTrainingConfig("data", "run", model="mask-rcnn-r50").augmentation.short_sides[0] == 640
