"""No verb writes over a file that it did not make: a typo must not cost a trained model."""

import os

import numpy as np
import pytest

from logn.methods.affine import ClassAffine

LINEAR = "(float[N, 4] x) => (float[N, 4] y) { y = Gemm(x, w) }"


def test_what_is_asked_for_is_replaced(run, stats, tmp_path):
    affine = tmp_path / "affine.safetensors"
    for _ in range(2):
        assert run("fit", stats, "-o", affine, "--overwrite").code == 0
        assert run("collect", tmp_path / "shards", "--background", "last", "-o", stats, "--overwrite").code == 0
        assert run("merge", stats, "-o", tmp_path / "all.safetensors", "--overwrite").code == 0


def test_statistics_in_the_folder_of_the_logits_are_no_logits(run, refused, logits, tmp_path):
    """The second call once stumbled over what the first one wrote."""
    output = tmp_path / "shards" / "stats.safetensors"
    for _ in range(2):
        result = run("collect", tmp_path / "shards", "-o", output, "--json", "--overwrite")
        assert (result.code, result.json["rows"], result.json["files"]) == (0, 300, 3)
    pattern = str(tmp_path / "shards" / "*")
    assert run("collect", pattern, "-o", output, "--json", "--overwrite").json["rows"] == 300
    sentence = refused("collect", output, "-o", tmp_path / "new.safetensors")
    assert sentence == f"`{output}` holds `logn.statistics`, not logits."
    assert run("fit", output, "-o", tmp_path / "affine.safetensors").code == 0
    assert "not logits" in refused("apply", tmp_path / "affine.safetensors", output, "-o", tmp_path / "x.npy")


@pytest.fixture
def commands(run, stats, tmp_path):
    """Each verb that writes files of other kinds, without its output."""
    affine = tmp_path / "affine.safetensors"
    assert run("fit", stats, "-o", affine).code == 0
    return {
        "apply": ("corrected.npy", "apply", affine, tmp_path / "shards" / "0.npy", "-o"),
        "fold": ("other.onnx", "fold", tmp_path / "model.onnx", affine, "-o"),
        "inspect": ("plot.svg", "inspect", stats, "--plot"),
    }


@pytest.mark.parametrize("verb", ["apply", "fold", "inspect"])
def test_an_existing_file_is_replaced_only_where_the_user_says_so(run, refused, commands, tmp_path, request, verb):
    if verb == "fold":
        request.getfixturevalue("save_onnx")(tmp_path / "model.onnx", LINEAR, w=np.ones((4, 4)))
    if verb == "inspect":
        pytest.importorskip("matplotlib")
    name, *command = commands[verb]
    output = tmp_path / name
    output.write_text("somebody's own")
    sentence = f"`{output}` exists already: choose another "
    assert refused(*command, output).startswith(sentence)
    assert "(`--overwrite`) to replace it" in refused(*command, output)
    assert output.read_text() == "somebody's own"
    done = run(*command, output, "--overwrite")
    assert done.code == 0, done.err
    assert output.read_bytes() != b"somebody's own"


def test_a_fold_does_not_replace_a_data_file(run, refused, save_onnx, tmp_path):
    paths = (tmp_path / "model.onnx", tmp_path / "affine.safetensors", tmp_path / "c.onnx.data")
    stored = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    save_onnx(paths[0], LINEAR, stored, w=np.ones((4, 4)))
    ClassAffine([2.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, 0.0]).save(paths[1])
    paths[2].write_bytes(b"the weights of another model")
    command = ("fold", *paths[:2], "-o", tmp_path / "c.onnx")
    assert f"`{paths[2]}` exists already" in refused(*command)
    assert paths[2].read_bytes() == b"the weights of another model"
    assert not (tmp_path / "c.onnx").exists()
    assert run(*command, "--overwrite").code == 0


def test_a_comparison_does_not_replace_files_of_others(refused, logits, tmp_path):
    (tmp_path / "comparison.md").write_text("mine")
    logit_file = tmp_path / "shards" / "0.npy"
    sentence = refused("compare", logit_file, "--labels", logit_file, "-o", tmp_path)
    assert "comparison.md` would be overwritten, but `logn compare -o` did not write it" in sentence
    assert (tmp_path / "comparison.md").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_is_neither_waited_for_nor_replaced(refused, stats, tmp_path):
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    sentence = f"`{pipe}` cannot be written: it is a pipe or a device."
    assert refused("fit", stats, "-o", pipe) == sentence
    assert refused("inspect", pipe) == f"`{pipe}` is a pipe or a device, not a file."
    assert pipe.is_fifo()
