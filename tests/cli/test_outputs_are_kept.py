"""No verb writes over a file that it did not make: a typo must not cost a trained model."""

import os

import numpy as np
import pytest
from safetensors.numpy import save_file


@pytest.fixture
def stats(run, logits, tmp_path):
    path = tmp_path / "stats.safetensors"
    assert run("collect", tmp_path / "shards", "--background", "last", "-o", path).code == 0
    return path


@pytest.fixture
def weights(tmp_path):
    """A file of somebody's own."""
    path = tmp_path / "model.safetensors"
    save_file({"fc.weight": np.ones((4, 2), np.float32)}, path)
    return path


def test_statistics_are_not_replaced_by_their_own_correction(refused, stats):
    before = stats.read_bytes()
    assert "to be another file than the inputs" in refused("fit", stats, "-o", stats)
    assert stats.read_bytes() == before


def test_logits_are_not_replaced_by_their_statistics(refused, logits, tmp_path):
    shard = tmp_path / "shards" / "0.npy"
    before = shard.read_bytes()
    assert "to be another file than the inputs" in refused("collect", shard, "-o", shard)
    assert "which would be lost" in refused("collect", tmp_path / "shards" / "1.npy", "-o", shard)
    assert shard.read_bytes() == before


def test_a_merge_into_one_of_its_parts_would_count_it_twice(run, refused, stats, tmp_path):
    other = tmp_path / "other.safetensors"
    assert run("collect", tmp_path / "shards/0.npy", "--background", "last", "-o", other).code == 0
    assert "to be another file than the inputs" in refused("merge", stats, other, "-o", stats)


def test_files_of_others_are_kept(refused, stats, weights, tmp_path):
    before = weights.read_bytes()
    sentence = refused("fit", stats, "-o", weights)
    assert "to be new or a file that `logn fit` wrote" in sentence
    assert "which would be lost" in refused("collect", tmp_path / "shards", "-o", weights)
    assert "which would be lost" in refused("merge", stats, "-o", weights)
    assert weights.read_bytes() == before


def test_a_plot_does_not_replace_the_statistics(refused, stats):
    assert "to be another file than the inputs" in refused("inspect", stats, "--plot", stats)


def test_files_of_the_same_kind_are_replaced(run, stats, tmp_path):
    affine = tmp_path / "affine.safetensors"
    for _ in range(2):
        assert run("fit", stats, "-o", affine).code == 0
        assert run("collect", tmp_path / "shards", "--background", "last", "-o", stats).code == 0


def test_statistics_in_the_folder_of_the_logits_are_no_logits(run, refused, logits, tmp_path):
    """The second call once stumbled over what the first one wrote."""
    output = tmp_path / "shards" / "stats.safetensors"
    for _ in range(2):
        result = run("collect", tmp_path / "shards", "-o", output, "--json")
        assert (result.code, result.json["rows"], result.json["files"]) == (0, 300, 3)
    pattern = str(tmp_path / "shards" / "*")
    assert run("collect", pattern, "-o", output, "--json").json["rows"] == 300
    sentence = refused("collect", output, "-o", tmp_path / "new.safetensors")
    assert sentence == f"Expected `{output}` to hold logits, but it holds `logn.statistics`."
    assert run("fit", output, "-o", tmp_path / "affine.safetensors").code == 0
    assert "to hold logits" in refused("apply", tmp_path / "affine.safetensors", output, "-o", tmp_path / "x.npy")


def test_a_fold_does_not_replace_its_map(refused, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "affine.safetensors").write_bytes(b"map")
    paths = (tmp_path / "model.onnx", tmp_path / "affine.safetensors")
    assert "to be another file than the inputs" in refused("fold", *paths, "-o", paths[1])
    assert paths[1].read_bytes() == b"map"


def test_corrected_logits_do_not_replace_the_statistics(run, refused, stats, tmp_path):
    affine, shard = tmp_path / "affine.safetensors", tmp_path / "shards" / "0.npy"
    assert run("fit", stats, "-o", affine).code == 0
    before = stats.read_bytes()
    assert "it is what `logn collect` wrote, which would be lost" in refused("apply", affine, shard, "-o", stats)
    assert stats.read_bytes() == before
    for _ in range(2):  # logits that were corrected before may be
        assert run("apply", affine, shard, "-o", tmp_path / "corrected.npy").code == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_is_neither_waited_for_nor_replaced(refused, stats, tmp_path):
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    sentence = f"Expected `{pipe}` to be a file to write, but it is a pipe or a device."
    assert refused("fit", stats, "-o", pipe) == sentence
    assert refused("inspect", pipe) == f"Expected `{pipe}` to be a file, but it is a pipe or a device."
    assert pipe.is_fifo()
