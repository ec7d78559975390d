"""`logn prior`: from deployed logits to a file that `--target` takes."""

import json

import numpy as np
import pytest

from logn.calibrators.class_affine import ClassAffine
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments

TRAINING, DEPLOYED = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])


def draw(mix, rows, seed):
    rng = np.random.default_rng(seed)
    classes = rng.choice(3, size=rows, p=mix)
    return 3 * (3 * np.eye(3)[classes] + rng.normal(size=(rows, 3))) + np.log(TRAINING), classes


@pytest.fixture
def files(tmp_path):
    metadata = StatisticsMetadata(class_names=("car", "bus", "unicycle"), activation="softmax")
    moments = ClassMoments(3, sample_rows=500, mean_probability=True, metadata=metadata)
    moments.update(draw(TRAINING, 5000, 0)[0])
    moments.save(tmp_path / "stats.safetensors")
    deployed, _ = draw(DEPLOYED, 6000, 1)
    np.save(tmp_path / "deployed.npy", deployed)
    dev, labels = draw(TRAINING, 2000, 2)
    np.save(tmp_path / "dev.npy", dev)
    np.save(tmp_path / "dev_labels.npy", labels)
    collected = ClassMoments(3, sample_rows=6000, metadata=metadata)
    collected.update(deployed)
    collected.save(tmp_path / "deployed.safetensors")
    return tmp_path


def test_a_mix_is_found_written_and_aimed_at(run, files):
    common = ("-s", files / "stats.safetensors", "--bootstrap", "20")
    result = run("prior", files / "deployed.npy", *common, "-o", files / "mix.json")
    assert result.code == 0
    assert "The class mix shifted" in result.out
    assert "Nobody checked the calibration" in result.out
    written = json.loads((files / "mix.json").read_text())
    np.testing.assert_allclose(written["shares"], DEPLOYED, atol=0.02)
    assert written["names"] == ["car", "bus", "unicycle"]
    fitted = ("fit", files / "stats.safetensors", "-m", "p2p", "-o", files / "affine.safetensors")
    assert run(*fitted, "--target", files / "mix.json", "--strength", "0.5").code == 0
    affine = ClassAffine.load(files / "affine.safetensors")
    recorded = ClassMoments.load(files / "stats.safetensors").mean_probability
    expected = 0.5 * np.log(written["shares"] / recorded)
    np.testing.assert_allclose(affine.shift - affine.shift[0], expected - expected[0], atol=1e-9)


def test_labelled_rows_and_statistics_serve(run, files):
    common = ("-s", files / "stats.safetensors", "--bootstrap", "20", "--json")
    dev = ("--dev", files / "dev.npy", "--dev-labels", files / "dev_labels.npy")
    by_file = run("prior", files / "deployed.npy", *common).json
    by_sample = run("prior", files / "deployed.safetensors", *common).json
    np.testing.assert_allclose(by_sample["column_shares"], by_file["column_shares"], atol=2e-3)
    for method in ("em", "bbse"):
        found = run("prior", files / "deployed.npy", *common, *dev, "--method", method).json
        np.testing.assert_allclose(found["column_shares"], DEPLOYED, atol=0.03)
    assert run("prior", files / "deployed.npy", *common, *dev).json["temperature"] == pytest.approx(1.0, abs=0.15)


def test_mistakes_get_a_sentence_and_nothing_is_written(refused, files):
    common = ("-s", files / "stats.safetensors", "-o", files / "mix.json")
    assert "--dev-labels` together" in refused("prior", files / "deployed.npy", *common, "--dev", files / "dev.npy")
    np.save(files / "wide.npy", np.zeros((30, 5)) + np.arange(5))
    assert "the 3 columns of the statistics, but got 5" in refused("prior", files / "wide.npy", *common)
    np.save(files / "empty.npy", np.zeros((0, 3)))
    assert "empty.npy" in refused("prior", files / "empty.npy", *common)
    assert "none.npy" in refused("prior", files / "none.npy", *common)
    assert "end in .json or .csv" in refused("prior", files / "deployed.npy", "-o", files / "mix.txt")
    assert not (files / "mix.json").exists()
    lost = refused("fit", files / "stats.safetensors", "-o", files / "a.safetensors", "--target", "evenly")
    assert "uniform, counts, training or a file" in lost
