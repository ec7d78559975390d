"""The figures: of the paper's LogN, from training images and from tables."""

import json

import numpy as np
import pytest
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.figures.data import (
    background_ratio,
    error_panels,
    label_shift,
    logit_statistics,
    margin_effect,
    online_comparison,
    training_pass,
)
from logn_research.pages import ROOT

from logn.models.proposals import Proposals

RUN_FIGURES = ("label-shift", "background-ratio", "logit-statistics", "positive-statistics", "margin-effect")


class PerfectDetector:
    """Proposes every object twice and as many boxes far away from all; its logits are its classes."""

    background, activation = 0, "softmax"

    def __init__(self, dataset):
        self.dataset = dataset
        self.shown = []

    def propose(self, images):
        (image,) = images
        index = next(i for i in range(len(self.dataset)) if i not in self.shown and self.same(i, image))
        self.shown.append(index)
        boxes, labels = self.dataset.boxes_of(index).repeat(2, 0), self.dataset.labels_of(index).repeat(2)
        far = np.tile(np.float32([[0, 0, 1, 1]]), (len(boxes), 1))
        logits = np.zeros((2 * len(boxes), self.dataset.num_classes + 1), np.float32)
        logits[np.arange(len(labels)), labels + 1] = 5.0
        return [Proposals(np.concatenate([boxes, far]), logits, height=64, width=64)]

    def same(self, index, image):
        return np.array_equal(self.dataset.read_image(index), (image.numpy() * 255).round().transpose(1, 2, 0))


@pytest.fixture(scope="module")
def seen(trained):
    dataset = SampleDataset(trained / "glyphs" / "train.json")
    return dataset, training_pass(PerfectDetector(dataset), dataset)


def test_proposals_are_counted_over_training_images(seen):
    dataset, counted = seen
    assert (counted.per_class == 2 * dataset.instance_counts).all()
    assert (counted.objects == dataset.instance_counts).all()
    assert counted.images == len(dataset)
    assert counted.positives.mean[1:].tolist() == [5.0] * dataset.num_classes
    ratio = background_ratio(counted)
    assert ratio.cumulative[-1] == pytest.approx(1.0)
    assert (np.diff(ratio.ratio) <= 0).all()


def test_without_a_bias_of_the_proposals_only_the_sampler_shifts_labels(seen):
    dataset, counted = seen
    shift = label_shift(dataset, counted, threshold=0.5)
    np.testing.assert_allclose(shift.internal, 0.0, atol=1e-12)
    np.testing.assert_allclose(shift.both, shift.external, atol=1e-12)
    assert shift.external[-1] > shift.external[0]  # rare classes gain


def test_statistics_follow_the_order_of_the_counts(seen):
    dataset, counted = seen
    statistics = logit_statistics(counted.moments, dataset.instance_counts)
    assert (np.diff(dataset.instance_counts[statistics.order]) <= 0).all()
    assert statistics.mean_link > 0.9


def test_the_margin_is_a_shift_of_the_background():
    effect = margin_effect([0.0, -1.0], own=-3.0)
    assert effect.margins == (0.0, -1.0, -3.0)
    np.testing.assert_allclose(effect.foreground[0], 1 - effect.background)
    assert (np.diff(effect.foreground, axis=0) < 0).all()


def table(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_figures_from_tables_show_the_papers_logn():
    series = online_comparison(table("online")).series
    rows = {row["method"]: row for row in table("online")["sections"][-1]["rows"]}
    expected = np.mean([numbers["AP"] for numbers in rows["LogN"]["metrics"].values()])
    assert series["Post-hoc LogN"][-1] == pytest.approx(expected)
    assert rows["LogN"]["correction"] == "logn"
    panels = error_panels(table("components"), ["none", "mean, std and margin: LogN"])
    rows = {row["method"]: row for row in table("components")["sections"][-1]["rows"]}
    assert rows["mean, std and margin: LogN"]["correction"] == "logn"
    gains = [gains["Cls"] for gains in rows["mean, std and margin: LogN"]["errors"].values()]
    assert panels["LogN (all)"]["Cls"] == pytest.approx(np.mean(gains))


@pytest.mark.parametrize("name", RUN_FIGURES)
def test_a_figure_of_a_run_is_drawn_from_its_training_images(name, workplace, run):
    arguments = ["figure", name, "runs/glyphs", "-d", "glyphs/train.json", "--max-images", 4, "-o", "figure.svg"]
    assert run(*arguments).code == 0
    assert b"</svg>" in (workplace / "figure.svg").read_bytes()
    assert run(*arguments).code == 2  # it is there
    assert run(*arguments, "--overwrite", "--json").json["name"] == name


@pytest.mark.parametrize(
    ("name", "source"), [("online", "online"), ("tide", "components"), ("tide-components", "components")]
)
def test_a_figure_of_a_table(name, source, tmp_path, run):
    assert run("figure", name, ROOT / "results" / f"{source}.json", "-o", tmp_path / "figure.pdf").code == 0
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tide", ROOT / "results" / "online.json"], "the JSON file that `logn bench components` writes"),
        (["tide", "nowhere"], "is not a JSON file: pass the one that `logn bench` writes"),
        (["tide", ROOT / "results" / "components.json", "--section", "none"], "`--section`"),
        (["label-shift", "runs/glyphs"], "Pass the training annotations of the run: `--data FILE`"),
        (["label-shift", "nowhere", "-d", "glyphs"], "`nowhere` is not a run"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, sentence, workplace, refused):
    assert sentence in refused("figure", *arguments, "-o", "figure.svg")


def test_other_formats_are_refused(refused):
    assert "to end in one of .svg, .png, .pdf" in refused("figure", "tide", "x.json", "-o", "figure.gif")
