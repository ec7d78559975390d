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
    name, *command = commands[verb]
    output = tmp_path / name
    output.write_text("somebody's own")
    sentence = f"`{output}` exists already: choose another "
    assert refused(*command, output).startswith(sentence)
    assert "`overwrite`" in refused(*command, output)
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


# Every verb that writes: what it is called with, and its output; {f} is the folder of all files.
WRITING = {
    "apply": ("apply {f}/affine.safetensors {f}/test.npy", "-o", "out.npy"),
    "collect": ("collect {f}/test.npy", "-o", "out.safetensors"),
    "collect, a model": (
        "collect {f}/model.onnx --like imagenet --size 8 --images {f}/images",
        "-o",
        "out.safetensors",
    ),
    "compare": ("compare {f}/store -d {f}/gt.json --bootstrap 0", "-o", "comparison/comparison.json"),
    "correct": ("correct {f}/model.onnx --like imagenet --size 8 --images {f}/images -m logn", "-o", "out.onnx"),
    "fit": ("fit {f}/stats.safetensors", "-o", "out.safetensors"),
    "fold": ("fold {f}/model.onnx {f}/affine.safetensors", "-o", "out.onnx"),
    "fold, thresholds": (
        "fold {f}/sigmoid.onnx --thresholds {f}/wanted.json --class-names {f}/names.txt",
        "-o",
        "out.onnx",
    ),
    "inspect": ("inspect {f}/stats.safetensors", "--plot", "out.svg"),
    "merge": ("merge {f}/stats.safetensors", "-o", "out.safetensors"),
    "report": ("report {f}/compared", "-o", "out.html"),
    "thresholds": ("thresholds {f}/store -d {f}/gt.json --bootstrap 0", "-o", "out.json"),
    "thresholds, a correction": (
        "thresholds {f}/store -d {f}/gt.json --bootstrap 0 --thresholds fppi=1 --at 0.74",
        "--affine",
        "out.safetensors",
    ),
}
# What each reads, as far as an output could have its name.
READ = {
    "apply": ("affine.safetensors", "test.npy"),
    "collect": ("test.npy",),
    "collect, a model": ("model.onnx", "weights.bin", "images/0.png"),
    "correct": ("model.onnx",),
    "fit": ("stats.safetensors",),
    "fold": ("model.onnx", "affine.safetensors", "weights.bin"),
    "fold, thresholds": ("sigmoid.onnx", "wanted.json", "names.txt"),
    "inspect": ("stats.safetensors",),
    "merge": ("stats.safetensors",),
    "thresholds": ("gt.json", "store/header.json"),
    "thresholds, a correction": ("gt.json", "store/header.json"),
}
EXTERNAL = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
CLASSIFIER = "(float[N, 3, 8, 8] x) => (float[N, 3] y) { p = GlobalAveragePool(x) f = Flatten(p) y = Gemm(f, w) }"
SIGMOID = "(float[N, 3] x) => (float[N, 3] y) { z = Gemm(x, w) y = Sigmoid(z) }"
pytestmark = pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")


@pytest.fixture
def files(run, make_files, save_onnx, draw_images, tmp_path):
    pytest.importorskip("onnxruntime")
    folder = make_files(tmp_path)
    save_onnx(folder / "model.onnx", CLASSIFIER, EXTERNAL, w=np.diag([3.0, 2.0, 1.0]))
    save_onnx(folder / "sigmoid.onnx", SIGMOID, w=np.eye(3))
    draw_images(folder / "images", 6, (8, 8))
    ClassAffine([2.0, 1.0, 1.0], [0.0, 1.0, 2.0]).save(folder / "affine.safetensors")
    (folder / "wanted.json").write_text('{"a": 0.5, "b": 0.2}')
    (folder / "names.txt").write_text("a\nb\nc\n")
    words = ("-s", folder / "stats.safetensors", "--methods", "logn", "--bootstrap", "0", "-o", folder / "compared")
    assert run("compare", folder / "store", "-d", folder / "gt.json", *words).code == 0
    return folder


def written(files, verb):
    words, option, name = WRITING[verb]
    output = files / name
    target = output.parent if "comparison" in name else output
    return [*words.format(f=files).split(), option, target], output


def everything(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("verb", WRITING)
def test_no_verb_replaces_a_file_unless_it_is_asked_to(run, refused, files, verb):
    command, _ = written(files, verb)
    assert run(*command).code == 0
    before = everything(files)
    assert "exists already" in refused(*command)
    assert everything(files) == before
    done = run(*command, "--overwrite")
    assert done.code == 0, done.err
    assert everything(files).keys() == before.keys()


@pytest.mark.parametrize("verb", WRITING)
def test_an_output_that_appears_during_the_run_stays(run, files, monkeypatch, verb):
    """Two runs into one file: one of them says so; both ended with 0 once."""
    command, output = written(files, verb)
    before, lexists = everything(files), os.path.lexists

    def late(target):
        if os.path.realpath(target) == os.path.realpath(output):
            output.write_text("of another run")
        return lexists(target)

    monkeypatch.setattr(os.path, "lexists", late)
    done = run(*command)
    assert done.code == 2
    assert done.err.strip().splitlines()[-1].startswith(f"Error: `{output}` exists already")
    assert everything(files) == before | {output: b"of another run"}


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb, names in READ.items() for name in names])
def test_no_verb_replaces_what_it_reads(refused, files, verb, name):
    command, _ = written(files, verb)
    before = everything(files)
    sentence = refused(*command[:-1], files / name, "--overwrite")
    assert "one of the inputs" in sentence or "is the model itself" in sentence
    assert everything(files) == before


def test_what_lies_beside_a_corrected_model_replaces_no_input(refused, files):
    given = files / "out.affine.safetensors"
    (files / "affine.safetensors").rename(given)
    before = everything(files)
    words = WRITING["correct"][0].format(f=files).replace("logn", str(given)).split()
    assert "one of the inputs" in refused(*words, "-o", files / "out.onnx", "--overwrite")
    assert everything(files) == before


def test_two_outputs_of_one_name_are_refused(refused, files):
    output = files / "both.safetensors"
    words = WRITING["thresholds"][0].format(f=files).split()
    sentence = refused(*words, "-o", output, "--affine", output)
    assert sentence == f"Two outputs are `{output}`: choose another name for one of them."
    assert not output.exists()


@pytest.mark.parametrize("verb", ["fold", "correct"])
@pytest.mark.parametrize("at", range(4))
def test_a_model_never_lies_beside_the_data_file_of_another(run, files, monkeypatch, verb, at):
    """After an interrupt at any of the renames there is no model, the old one with its data, or the new one."""
    command, output = written(files, verb)
    assert run(*command).code == 0
    (files / "affine.safetensors").unlink()
    ClassAffine([1.0, 5.0, 1.0], [0.0, 0.0, 7.0]).save(files / "affine.safetensors")
    before, steps, replace = everything(files), {"left": at}, os.replace

    def interrupted(source, target):
        if os.path.dirname(target) == str(files):
            steps["left"] -= 1
            if steps["left"] == -1:
                raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    code = run(*command, "--overwrite").code
    assert code == (0 if steps["left"] >= 0 else 130)
    after = everything(files)
    assert output not in after if code else after[output] != before[output]
