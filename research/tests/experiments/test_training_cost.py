"""The cost of an iteration: of the iterations alone, whatever a training does before them."""

from types import SimpleNamespace

import pytest
from logn_research.experiments import measurements as training_cost
from logn_research.experiments.artifact_cache import ArtifactCache
from logn_research.experiments.detector_spec import DetectorSpec


def test_the_warm_up_of_a_run_does_not_count(monkeypatch, tmp_path):
    def made_up_training(config, **options):
        assert options == {"device": "cpu", "progress": False}
        return SimpleNamespace(processor_seconds=3.0 + 0.5 * config.iterations)

    monkeypatch.setattr(training_cost, "train_detector", made_up_training)
    assert training_cost.seconds_per_iteration(ArtifactCache(tmp_path), DetectorSpec()) == pytest.approx(0.5)
