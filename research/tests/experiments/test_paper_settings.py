"""The settings that the paper states, as the finished parts have them: a changed default is noticed here."""

from pathlib import Path

import numpy as np
import pytest
import torch
from logn_research.estimators import MovingAverage
from logn_research.experiments import imagenet_lt, online_table
from logn_research.experiments.bench_detectors import BENCHMARK
from logn_research.experiments.classifier_spec import ClassifierSpec
from logn_research.experiments.detector_spec import DetectorSpec
from logn_research.experiments.model_spec import Folders
from logn_research.figures.error_data import COMPONENTS
from logn_research.losses.loss_factory import make_loss
from logn_research.training.feature_memory import FeatureMemory
from logn_research.training.layers import NormedConv2d, NormedLinear
from logn_research.training.recipes import ClassifierTrainingConfig, DetectorTrainingConfig
from logn_research.training.settings import DetectorSettings
from logn_research.training.trainer import Process, Trainer
from torch import nn

import logn
from logn.calibrators.methods import fit
from logn.classes.counts import ClassCounts
from logn.statistics.moments import StatisticsMetadata

FOLDERS = Folders(Path("data"), Path("run"))


def optimizer_settings(config):
    context = Process(torch.device("cpu"))
    trainer = Trainer(config, context, config.schedule(1600), nn.Linear(2, 2), class_names=("a", "b"))
    (group,) = trainer.optimizer.param_groups
    return {name: group[name] for name in ("momentum", "weight_decay", "nesterov")}


@pytest.mark.parametrize("model", ["small", "light", "mask-rcnn-r50", "mask-rcnn-r101", "cascade-r101"])
def test_detectors_are_trained_with_momentum_and_the_weight_decay_of_the_paper(model, tmp_path):
    config = DetectorTrainingConfig("data", tmp_path, model=model)
    assert optimizer_settings(config) == {"momentum": 0.9, "weight_decay": 1e-4, "nesterov": False}


@pytest.mark.parametrize("model", ["small", "resnext50"])
def test_classifiers_are_trained_with_momentum_and_the_weight_decay_of_the_paper(model, tmp_path):
    config = ClassifierTrainingConfig("data", tmp_path, model=model)
    assert optimizer_settings(config) == {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": False}


def test_imagenet_lt_is_learnt_as_by_the_decoupled_classifiers(tmp_path):
    config = ClassifierTrainingConfig("data", tmp_path, model="resnext50")
    schedule = config.schedule(115_846)  # images of ImageNet-LT
    assert (schedule.total, schedule.peak, schedule.warmup) == (90 * 453, 0.1, 0)
    assert schedule.learning_rate(45 * 453) == pytest.approx(0.05)  # half of a cosine
    settings = config.settings(1000)
    assert (config.images_per_iteration, settings.image_size, settings.resize) == (256, 224, 256)
    assert (config.augmentation.least_area, config.augmentation.flip, config.augmentation.colour) == (0.08, 0.5, 0.4)
    for part, epochs in (("classifier", 10), ("new-classifier", 10), ("scales", 5)):
        for model in ("resnext50", "small"):
            second = ClassifierTrainingConfig("data", tmp_path, model=model, start="first", only=part)
            assert second.recipe.epochs == epochs
    # A mirrored glyph may be another class.
    assert ClassifierTrainingConfig("data", tmp_path, model="small").augmentation.flip == 0.0


def test_detectors_see_the_sizes_of_the_paper(tmp_path):
    augmentation = DetectorTrainingConfig("data", tmp_path, model="mask-rcnn-r101").augmentation
    assert augmentation.short_sides == (640, 672, 704, 736, 768, 800)
    assert (augmentation.longest_side, augmentation.flip, augmentation.colour) == (1333, 0.5, 0.0)
    assert DetectorTrainingConfig("data", tmp_path, model="small").augmentation.flip == 0.0


def test_the_memory_of_loce_is_that_of_its_reference():
    memory = FeatureMemory(3)
    memory.add(torch.zeros(100, 1), torch.zeros(100, dtype=torch.int64))
    assert len(memory.features_of(0)) == 80
    drawn = memory.draw(torch.tensor([1e-9, 1.0, 1.0]))  # the first class only, as good as surely
    assert drawn.classes.tolist() == [0] * 8 * 4


def test_normalised_layers_have_the_temperature_of_the_paper():
    # The layers themselves, what is built from settings, and what the bench trains.
    assert NormedLinear(2, 3).temperature.tolist() == [20.0] * 3
    assert NormedConv2d(2, 3).temperature.tolist() == [20.0] * 3
    assert DetectorSettings("small", 3, classifier="cosine").temperature == 20.0
    assert DetectorTrainingConfig("data", "run", classifier="cosine").detector(3).temperature == 20.0
    assert DetectorSpec(classifier="cosine").training_config(FOLDERS).detector(3).temperature == 20.0
    assert ClassifierSpec("cosine").training_config(FOLDERS).temperature == 20.0


def test_a_moving_average_has_the_momentum_and_the_start_of_the_official_code():
    average = MovingAverage(1)
    average.update(np.array([[1.0], [3.0]]))
    moments = average.moments()
    assert moments.mean[0] == pytest.approx(5e-5 * 2.0, rel=1e-12)
    assert moments.variance[0] == pytest.approx((1 - 5e-5) * 1.0 + 5e-5 * 2.0, rel=1e-12)


def test_the_parts_of_logn_in_the_figure_of_errors_are_those_of_the_equation():
    generator = np.random.default_rng(0)
    moments = logn.ClassMoments(4, metadata=StatisticsMetadata(background=0, activation="softmax"))
    moments.update(generator.normal([5.0, -1.0, 0.0, -2.0], [1.0, 0.5, 1.5, 2.0], (200, 4)))
    mean, std = moments.mean[1:], np.sqrt(moments.variance[1:] + 1e-5)
    expected = {
        "Baseline": (np.ones(3), np.zeros(3)),
        "+ mean": (np.ones(3), -mean),
        "+ std": (1 / std, np.zeros(3)),
        "+ margin": (np.ones(3), np.full(3, mean.min())),
        "LogN (all)": (1 / std, (mean.min() - mean) / std),
    }
    assert list(COMPONENTS) == list(expected)
    for title, (scale, shift) in expected.items():
        affine = fit(COMPONENTS[title].replace("{min}", repr(float(mean.min()))), moments=moments)
        np.testing.assert_allclose(affine.scale, [1.0, *scale], rtol=1e-9, err_msg=title)
        np.testing.assert_allclose(affine.shift, [0.0, *shift], rtol=1e-9, atol=1e-12, err_msg=title)


def test_imagenet_lts_rows_have_the_classifiers_of_the_paper():
    rows = {row.label: row for row in imagenet_lt.sections(0)[0].rows}
    assert {label for label, row in rows.items() if row.model.classifier == "cosine"} == {"Seesaw", "LogA", "LogN"}
    assert (rows["LogA"].method, rows["LogN"].method) == ("loga", "logn")
    assert {row.model.classifier for row in imagenet_lt.sections(0)[1].rows} == {"cosine"}


def test_the_bench_repeats_rare_classes_as_much_as_on_lvis():
    config = BENCHMARK.plain("rfs", seed=0).training_config(FOLDERS)
    # 0.001 of LVIS's 99,388 annotated images, as a share of the 2,400 glyph scenes.
    assert config.repeat_threshold == pytest.approx(0.001 * 99_388 / BENCHMARK.glyphs.train, rel=0.05)
    assert BENCHMARK.plain("random", seed=0).training_config(FOLDERS).repeat_threshold == 0.001


def test_the_averages_of_the_online_rows_span_a_thousand_batches_and_hold_no_start():
    for section in online_table.sections(BENCHMARK, 0):
        rows = {row.label: row.detector for row in section.rows}
        for label, margin in (("online LogN", 0.0), ("online LogN, margin min", "min")):
            loss = make_loss(rows[label].loss, ClassCounts([1.0, 1.0]))
            assert (loss.momentum, loss.bias_corrected, loss.margin) == (0.001, True, margin)
