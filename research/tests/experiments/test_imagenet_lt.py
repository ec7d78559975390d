"""The ImageNet-LT tables from data to page, on a problem so small that it trains in seconds."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from logn_research.datasets.glyphs.settings import GlyphClassSettings
from logn_research.experiments import classifier_spec
from logn_research.experiments.artifact_cache import ArtifactCache
from logn_research.experiments.classifier_measurements import describe_data, run_sections
from logn_research.experiments.classifier_spec import ClassifierProblem, ClassifierSpec
from logn_research.experiments.imagenet_lt import MAIN, sections

from logn.cli.main import execute
from logn.errors import InputError

TINY = ClassifierProblem(
    "glyph classes",
    GlyphClassSettings(classes=4, most=120, fewest=3, dev=2, test=5, size=32),
    epochs=1,
    stage_epochs=1,
    eql="eql-softmax:threshold=0.1",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return ArtifactCache(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def found(cache):
    return run_sections(cache, TINY, [3])


@pytest.fixture
def own_cache(found, cache, tmp_path):
    """A copy of the finished cache, for a test that changes it."""
    return ArtifactCache(shutil.copytree(cache.root, tmp_path / "copy"))


def test_every_row_is_measured_on_its_own_classifier(found, cache):
    for section in found:
        for row in section.rows:
            assert not row.failures
            assert 0 <= row.metrics[3]["top-1"] <= 1
            assert row.seconds[3] > 0
    assert found[0]["tau-norm"].choices[3].startswith("tau-norm:tau=")
    facts = describe_data(cache, TINY, 3)
    assert (facts["classes"], facts["test"], facts["epochs"]) == (4, 20, 1)
    assert facts["groups"] == {"many": 1, "medium": 1, "few": 2}


def test_the_accuracy_is_that_of_the_logits_in_the_folder(found, cache):
    spec = ClassifierSpec(seed=3, problem=TINY)
    logits = np.load(cache.predictions(spec, "test"))
    labels = cache.dataset(spec, "test").labels
    assert found[0]["Softmax"].metrics[3]["top-1"] == pytest.approx((logits.argmax(1) == labels).mean())


def test_nothing_is_done_twice(found, own_cache, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("trained or run again")

    monkeypatch.setattr(classifier_spec, "train_classifier", refuse)
    monkeypatch.setattr(classifier_spec, "classifier_logits", refuse)
    again = run_sections(own_cache, TINY, [3])
    assert [row.metrics for row in again[0].rows] == [row.metrics for row in found[0].rows]


def test_another_length_counts_as_not_trained(found, cache):
    assert cache.is_trained(ClassifierSpec(seed=3, problem=TINY))
    assert not cache.is_trained(ClassifierSpec(seed=3, problem=replace(TINY, epochs=2)))


def test_logits_and_statistics_of_older_weights_are_made_anew(own_cache):
    copy, spec = own_cache, ClassifierSpec(seed=3, problem=TINY)
    before, wanted = copy.predictions(spec, "train"), copy.statistics(spec)
    kept = np.load(before)
    np.save(before, kept + 1)
    wrong = copy.predictions(spec, "train")
    assert np.array_equal(np.load(wrong), kept + 1)  # newer than the weights, so they are believed
    checkpoint = copy.model_folder(spec) / "checkpoint.safetensors"
    later = before.stat().st_mtime_ns + 1_000_000_000
    os.utime(checkpoint, ns=(later, later))
    assert np.array_equal(np.load(copy.predictions(spec, "train")), kept)
    np.testing.assert_array_equal(copy.statistics(spec).mean, wanted.mean)


def test_a_training_that_fails_holds_up_its_own_rows_only(own_cache, monkeypatch):
    real = classifier_spec.train_classifier

    def fail_for_seesaw(config, **options):
        if config.loss == "seesaw":
            raise InputError("Expected the disk to have room, but it is full.")
        return real(config, **options)

    monkeypatch.setattr(classifier_spec, "train_classifier", fail_for_seesaw)
    (own_cache.model_folder(ClassifierSpec("cosine", "seesaw", seed=3, problem=TINY)) / classifier_spec.DONE).unlink()
    again = run_sections(own_cache, TINY, [3])
    assert again[0]["Seesaw"].failures == {3: "Expected the disk to have room, but it is full."}
    assert not again[0]["Seesaw"].metrics
    assert all(row.metrics for row in again[0].rows if row.row.label != "Seesaw")


def test_measuring_only_trains_nothing(tmp_path):
    cache = ArtifactCache(tmp_path)
    cache.draw([ClassifierSpec(problem=TINY)])
    rows = run_sections(cache, TINY, [0], train=False)[0].rows
    assert all("not trained yet" in row.failures[0] for row in rows)


def test_rows_share_classifiers():
    names = {row.model.name for section in sections(1) for row in section.rows}
    assert {"linear-ce-s1", "linear-ce+crt-s1", "linear-ce+lws-s1", "cosine-ce-s1", "cosine-seesaw-s1"} <= names
    assert len(sections(0)[0].rows) == 10
    assert sections(0)[0].title == MAIN


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset", "cifar"], "Expected `--dataset` to be one of ('glyphs', 'imagenet-lt'), but got 'cifar'."),
        (["--dataset", "imagenet-lt"], "Expected `--data` to name ImageNet-LT's training list"),
        (["--data", "list.txt"], "Expected `--data` and `--images` with `--dataset imagenet-lt` only"),
        (["--dataset", "imagenet-lt", "--data", "none.txt"], "there is none"),
    ],
)
def test_bad_input_is_one_sentence(arguments, words, capsys, tmp_path):
    root = ["--root", str(tmp_path / "root"), "-o", str(tmp_path / "out")]
    assert execute(["bench", "imagenet-lt", *arguments, *root, "--json"]) == 2
    assert words in json.loads(capsys.readouterr().out)["error"]


def test_list_files_are_the_same_data_for_every_seed(tmp_path):
    (tmp_path / "ImageNet_LT_train.txt").write_text("a.png 0\nb.png 1\n")
    (tmp_path / "ImageNet_LT_test.txt").write_text("c.png 1\n")
    lists = tmp_path / "ImageNet_LT_train.txt"
    problem = ClassifierProblem("ImageNet-LT", data=lists, images=tmp_path / "images", model="resnext50")
    cache = ArtifactCache(tmp_path / "root")
    first, second = (ClassifierSpec("cosine", seed=seed, problem=problem) for seed in (0, 1))
    cache.draw([first, second])
    assert not (tmp_path / "root").exists()
    assert cache.dataset(first, "train").labels.tolist() == [0, 1]
    assert cache.dataset(second, "test").pixels.root == tmp_path / "images"
    config = second.training_config(cache.folders(second))
    assert (config.model, config.recipe.epochs, config.data, config.seed) == ("resnext50", 90, lists, 1)
    last = ClassifierSpec(stage="lws", problem=problem)
    stage = last.training_config(cache.folders(last))
    assert (stage.only, stage.sampler, stage.start.name) == ("scales", "class-balanced", "linear-ce-s0")
    with pytest.raises(InputError, match="one of `glyphs` and `data`"):
        ClassifierProblem("both", GlyphClassSettings(), lists)
    with pytest.raises(InputError, match="Expected `jobs`"):
        ArtifactCache(tmp_path, jobs=0)
    with pytest.raises(InputError, match="Expected `stage`"):
        ClassifierSpec(stage="bags")
