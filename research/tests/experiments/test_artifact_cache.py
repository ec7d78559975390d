"""One cache for detectors and classifiers: models trained side by side, to the same bits, each on its own."""

import multiprocessing
import os
import shutil
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
from logn_research.datasets.glyphs.settings import GlyphClassSettings, GlyphSettings
from logn_research.experiments.artifact_cache import ArtifactCache
from logn_research.experiments.bench_detectors import BenchLength
from logn_research.experiments.classifier_spec import ClassifierProblem, ClassifierSpec
from logn_research.experiments.model_spec import Folders
from logn_research.experiments.training_jobs import train_side_by_side

LENGTH = BenchLength("tiny", GlyphSettings(classes=6, train=24, dev=1, test=2), iterations=4)
PROBLEM = ClassifierProblem("glyph classes", GlyphClassSettings(4, 40, 3, dev=1, test=1, size=32), epochs=1)

# A module of its own, since the processes that train must be able to import it.
MADE_UP_MODEL = """
import os, signal, time
from dataclasses import dataclass

import torch

from logn.errors import InputError


@dataclass(frozen=True)
class MadeUpModel:
    fate: str

    def train(self, folders):
        if self.fate == "dies":
            os._exit(7)
        if self.fate == "fails":
            raise InputError("Expected the disk to have room, but it is full.")
        if self.fate == "hears the keyboard":
            os.kill(os.getpid(), signal.SIGINT)
        if self.fate == "tells its threads":
            raise InputError(f"{os.environ['OMP_NUM_THREADS']} {torch.get_num_threads()}")
        if self.fate == "never ends":
            time.sleep(10_000)
"""
FOLDERS = Folders(Path("data"), Path("run"))


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "made_up_model.py").write_text(MADE_UP_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    return import_module("made_up_model").MadeUpModel


def test_one_process_or_two_train_the_same_bits(tmp_path):
    specs = [LENGTH.second("BAGS", "random", seed=0), ClassifierSpec(problem=PROBLEM)]
    caches = [ArtifactCache(tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2)]
    caches[0].draw(specs)
    shutil.copytree(caches[0].root, caches[1].root)
    wanted = {}
    for cache in caches:
        assert cache.train(specs) == {}
        for spec in (specs[0].start, *specs):
            assert cache.is_trained(spec)
            weights = (cache.model_folder(spec) / "checkpoint.safetensors").read_bytes()
            assert wanted.setdefault(spec.name, weights) == weights


def test_every_training_ends_on_its_own(model, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    fates = ("dies", "fails", "hears the keyboard", "tells its threads")
    found = {job[0].fate: failure for job, failure in train_side_by_side([(model(each), FOLDERS) for each in fates], 2)}
    assert found == {
        "dies": "The process that trained it ended with exit code 7.",
        "fails": "Expected the disk to have room, but it is full.",
        "hears the keyboard": None,
        "tells its threads": "1 1",
    }
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert "MKL_NUM_THREADS" not in os.environ


def test_who_leaves_early_leaves_no_process(model):
    jobs = [(model(fate), FOLDERS) for fate in ("never ends", "fails")]
    before = set(multiprocessing.active_children())
    with closing(train_side_by_side(jobs, 2)) as results:
        assert next(results)[1] == "Expected the disk to have room, but it is full."
        assert set(multiprocessing.active_children()) - before
    assert set(multiprocessing.active_children()) <= before


def test_a_second_stage_without_its_first_is_told(tmp_path, monkeypatch):
    second = LENGTH.second("BAGS", "random", seed=0)
    monkeypatch.setattr("logn_research.experiments.detector_spec.train_detector", _full_disk)
    assert ArtifactCache(tmp_path).train([second]) == {
        second.start.name: "No space left on device",
        second.name: f"The detector {second.start.name} that it starts from was not trained.",
    }


def _full_disk(config, **options):
    raise OSError("No space left on device")
