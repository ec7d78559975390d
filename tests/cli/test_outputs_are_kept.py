"""No verb writes over a file that it did not make: a typo must not cost a trained model."""

import json
import os

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from PIL import Image
from safetensors.numpy import save_file

from logn.calibrators.affine import ClassAffine
from logn.cli.options.evaluation import make_folder
from logn.errors import InputError


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
    assert f"`{stats}` not to exist yet, but it does: choose another" in refused("apply", affine, shard, "-o", stats)
    assert stats.read_bytes() == before


@pytest.fixture
def commands(run, stats, tmp_path):
    """Each verb that writes files of other kinds, without its output."""
    affine, dev = tmp_path / "affine.safetensors", tmp_path / "dev.json"
    assert run("fit", stats, "-o", affine).code == 0
    labels = {
        "images": [{"id": 1, "file_name": "a.png", "height": 9, "width": 9}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4], "area": 16, "iscrowd": 0}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    dev.write_text(json.dumps(labels))
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 4] y) { y = Gemm(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.float32), "w"))
    onnx.save_model(model, str(tmp_path / "model.onnx"))
    return {
        "apply": ("corrected.npy", "apply", affine, tmp_path / "shards" / "0.npy", "-o"),
        "fold": ("other.onnx", "fold", tmp_path / "model.onnx", affine, "-o"),
        "inspect": ("plot.svg", "inspect", stats, "--plot"),
        "federate": ("federated.json", "data", "federate", dev, "-o"),
        "preview": ("sheet.png", "data", "preview", dev, "-o"),
    }


@pytest.mark.parametrize("verb", ["apply", "fold", "inspect", "federate", "preview"])
def test_an_existing_file_is_replaced_only_where_the_user_says_so(run, refused, commands, tmp_path, verb):
    name, *command = commands[verb]
    output = tmp_path / name
    output.write_text("somebody's own")
    sentence = f"Expected `{output}` not to exist yet, but it does: choose another "
    assert refused(*command, output).startswith(sentence)
    assert refused(*command, output).endswith(", or pass `--overwrite` to replace it.")
    assert output.read_text() == "somebody's own"
    done = run(*command, output, "--overwrite")
    assert done.code == 0, done.err
    assert output.read_bytes() != b"somebody's own"


def test_a_fold_does_not_replace_a_data_file(run, refused, tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] y) { y = Gemm(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    paths = (tmp_path / "model.onnx", tmp_path / "affine.safetensors", tmp_path / "c.onnx.data")
    onnx.save_model(model, str(paths[0]), save_as_external_data=True, location="weights.bin", size_threshold=0)
    ClassAffine([2.0, 1.0, 1.0], [0.0, 1.0, 2.0]).save(paths[1])
    paths[2].write_bytes(b"the weights of another model")
    command = ("fold", *paths[:2], "-o", tmp_path / "c.onnx")
    assert f"Expected `{paths[2]}` not to exist yet, but it does" in refused(*command)
    assert paths[2].read_bytes() == b"the weights of another model"
    assert not (tmp_path / "c.onnx").exists()
    assert run(*command, "--overwrite").code == 0


def test_a_comparison_does_not_replace_files_of_others(tmp_path):
    (tmp_path / "per_class.csv").write_text("mine")
    with pytest.raises(InputError, match=r"but its `per_class.csv` is another file, which would be lost"):
        make_folder(tmp_path)
    assert (tmp_path / "per_class.csv").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_is_neither_waited_for_nor_replaced(refused, stats, tmp_path):
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    sentence = f"Expected `{pipe}` to be a file to write, but it is a pipe or a device."
    assert refused("fit", stats, "-o", pipe) == sentence
    assert refused("inspect", pipe) == f"Expected `{pipe}` to be a file, but it is a pipe or a device."
    assert pipe.is_fifo()
