"""What is refused: one sentence, code 2, the same with --json; no file is written, changed or replaced by mistake."""

import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from logn.methods.affine import ClassAffine
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

TEXTS = {
    "text.npy": "logits",
    "two.json": '["cup", "spoon"]',
    "mapping.json": '{"cup": 1}',
    "table.csv": "name,image_count\ncup,1\nspoon,2\nfork,3\n",  # four lines, three classes
    "gap.json": '["", "cup", "spoon"]',
    "gap.txt": "cup\n\nspoon\n",
    "short.json": "[1, 2]",
    "model.onnx": "",
}
ARRAYS = {
    "wide.npy": np.zeros((3, 9)),
    "nan.npy": np.array([[0.0, np.nan]]),
    "nan4.npy": np.array([[0.0] * 4, [0, 0, np.nan, 0]]),
    "empty.npy": np.zeros((0, 4)),
    "one.npy": np.ones((3, 1), np.float32),
    "x.npy": np.zeros((2, 4)),
    "half.npy": np.full((1, 4), 60000, np.float16),
    "whole.npy": np.zeros((2, 4), np.int64),
}


@pytest.fixture
def folder(stats, tmp_path, monkeypatch):
    """Shards and statistics of four columns, a correction, and files that are wrong, each in its own way."""
    monkeypatch.chdir(tmp_path)
    ClassAffine([2.0, 0.5, 1.0, 1.0], [1.0, -1.0, 0.0, 0.25], method="example").save("affine.safetensors")
    save_file({"fc.weight": np.ones((4, 2), np.float32)}, "weights.safetensors")  # somebody's own
    np.savez("two.npz", first=np.zeros((9, 3)), second=np.zeros((9, 3)))
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    for name, array in ARRAYS.items():
        np.save(name, array)
    for name, columns, population in (("anchors", 4, "anchors"), ("queries", 4, "queries"), ("nine", 9, "anchors")):
        moments = ClassMoments(Head(columns, population=population))
        moments.update(np.zeros((3, columns)))
        moments.save(f"{name}.safetensors")
    os.symlink("anchors.safetensors", "soft.safetensors")
    os.link("anchors.safetensors", "hard.safetensors")
    return tmp_path


INPUT, EXISTS = "is one of the inputs: choose another name", "exists already: choose another"
REFUSED = [
    ("collect shards wide.npy -o new.safetensors", " columns, but `"),
    ("collect nan.npy -o new.safetensors", "nan for class 1"),
    ("collect empty.npy -o new.safetensors", "holds no row of logits"),
    ("collect text.npy -o new.safetensors", "text.npy` cannot be read as a .npy file"),
    ("collect no-such.npy -o new.safetensors", "no-such.npy"),
    ("collect nowhere -o new.safetensors", "no file of logits (.npy, .npz, .safetensors) and no model at `nowhere`."),
    ("collect shards model.onnx -o new.safetensors", "`model.onnx` is a model: pass it alone"),
    ("collect model.onnx -o new.safetensors", "Pass training images: --images FOLDER or --data FILE."),
    (
        "collect shards --like yolox -o new.safetensors",
        "`like`",
    ),
    ("collect shards --images shards -o new.safetensors", "`images`"),
    ("collect one.npy --background last -o new.safetensors", "There is only 1 column, the background"),
    ("collect two.npz -o new.safetensors", "has several arrays"),
    ("collect one.npy --key first -o new.safetensors", "`key`"),
    ("collect shards --class-names no-such.txt -o new.safetensors", "no-such.txt"),
    ("collect shards --class-names two.json -o new.safetensors", "names 2 classes, but the logits have 4 columns"),
    ("collect shards --class-names mapping.json -o new.safetensors", "is not a list of class names"),
    ("collect shards --class-names table.csv -o new.safetensors", "is a table"),
    # Left out, an empty name would leave as many names as there are classes beside the background.
    ("collect shards --background last --class-names gap.json -o new.safetensors", "Name 1"),
    ("collect shards --background last --class-names gap.txt -o new.safetensors", "Name 2"),
    ("collect shards/0.npy -o shards/0.npy", INPUT),
    ("collect shards/1.npy -o shards/0.npy", EXISTS),
    ("collect shards/0.npy -o weights.safetensors", EXISTS),
    ("collect shards/1.npy -o stats.safetensors", EXISTS),
    ("collect shards/0.npy -o shards", "is a folder"),
    ("merge anchors.safetensors queries.safetensors -o new.safetensors", "'anchors' and 'queries'"),
    ("merge anchors.safetensors nine.safetensors -o new.safetensors", "nine.safetensors"),
    ("merge anchors.safetensors ./anchors.safetensors -o new.safetensors", "listed twice"),
    ("merge anchors.safetensors soft.safetensors -o new.safetensors", "soft.safetensors` is listed twice"),
    ("merge anchors.safetensors hard.safetensors -o new.safetensors", "hard.safetensors` is listed twice"),
    ("merge anchors.safetensors x.npy -o new.safetensors", "x.npy"),
    ("merge stats.safetensors -o stats.safetensors", INPUT),
    ("merge stats.safetensors -o weights.safetensors", EXISTS),
    ("inspect stats.safetensors --counts short.json", "3 foreground classes, but got 2"),
    ("inspect stats.safetensors --plot p.gif", "p.gif"),
    ("inspect stats.safetensors --plot no/p.svg", "does not exist"),
    ("inspect stats.safetensors --plot stats.safetensors", INPUT),
    ("inspect short.json", "short.json"),
    ("inspect no-such.safetensors", "`no-such.safetensors` does not exist."),
    ("inspect shards", "`shards` is a folder, not a file."),
    ("inspect best.onnx", "`best.onnx` is a model, but this command takes statistics. Make them with `logn collect"),
    ("fit stats.safetensors --method nonsense -o new.safetensors", "to be one of"),
    ("fit stats.safetensors --method norcal -o new.safetensors", "`counts`"),
    ("fit stats.safetensors --method logn:strength=1 --strength 0.5 -o new.safetensors", "once, but got it twice"),
    ("fit stats.safetensors --strength 2 -o new.safetensors", "`strength`"),
    ("fit stats.safetensors --method norcal --counts no-such.csv -o new.safetensors", "no-such.csv"),
    ("fit stats.safetensors --counts x.csv -o new.safetensors", "`counts`"),
    ("fit stats.safetensors --target no-such.json -o new.safetensors", "no-such.json"),
    ("fit affine.safetensors -o new.safetensors", "is `logn.affine`, not `logn.statistics`: pass what `logn collect`"),
    ("fit shards/0.npy -o new.safetensors", "0.npy"),
    ("fit no-such.safetensors -o new.safetensors", "no-such"),
    ("fit shards -o new.safetensors", "is a folder, not a file"),
    ("fit best.pt -o new.safetensors", "`logn collect best.pt --images train/ -o stats.safetensors --trust`"),
    ("fit stats.safetensors -o stats.safetensors", INPUT),
    ("fit stats.safetensors -o weights.safetensors", EXISTS),
    ("fit stats.safetensors -o affine.safetensors", EXISTS),
    ("fit stats.safetensors -o no/such.safetensors", "does not exist: create"),
    ("apply stats.safetensors x.npy -o y.npy", "not `logn.affine`"),
    ("apply affine.safetensors wide.npy -o y.npy", "The number of columns differs: 4 in"),
    ("apply affine.safetensors nan4.npy -o y.npy", "Row 1, class 2 of"),
    ("apply affine.safetensors half.npy -o y.npy", "does not fit float16 once it is corrected"),
    ("apply affine.safetensors empty.npy -o y.npy", "holds no row of logits"),
    ("apply affine.safetensors whole.npy -o y.npy", "int64"),
    ("apply affine.safetensors x.npy -o y.txt", "must end in .npy or .safetensors"),
    ("apply affine.safetensors x.npy -o x.npy", INPUT),
    ("apply affine.safetensors x.npy -o stats.safetensors", EXISTS),
    ("fold model.onnx affine.safetensors -o affine.safetensors", INPUT),
]


@pytest.mark.parametrize(("line", "sentence"), REFUSED)
def test_refusals(refused, folder, line, sentence):
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    assert sentence in refused(*line.split())
    assert {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} == before
