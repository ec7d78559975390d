"""`logn collect` and `logn merge`: from files of logits to statistics, in real processes where it matters."""

import signal
import subprocess
import sys

import numpy as np

from logn.base.arrays import softmax
from logn.statistics.moments import ClassMoments
from logn.statistics.row_sample import SAMPLE_ROWS


def _assert_bit_equal(one, two):
    first, second = ClassMoments.load(one).to_arrays(), ClassMoments.load(two).to_arrays()
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_statistics_of_shards(run, logits, tmp_path):
    output = tmp_path / "stats.safetensors"
    ClassMoments(7).save(output)
    result = run("collect", tmp_path / "shards/*.npy", "-o", output, "--background", "last", "--json", "--overwrite")
    assert (result.code, result.json["rows"], result.json["files"], result.json["warnings"]) == (0, 300, 3, [])
    moments = ClassMoments.load(output)
    np.testing.assert_allclose(moments.mean, logits.mean(0, dtype=float), rtol=1e-6)
    np.testing.assert_allclose(moments.std, logits.astype(float).std(0, ddof=1), rtol=1e-6)
    np.testing.assert_allclose(moments.mean_probability, softmax(logits).mean(axis=0), rtol=1e-6)
    assert (moments.head.background, moments.sample_rows) == (-1, SAMPLE_ROWS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards", "stats.safetensors"]


def test_a_folder_means_its_files_and_metadata_is_kept(run, logits, tmp_path):
    (tmp_path / "names.txt").write_text("cup\nspoon\nfork\n")
    options = ("--background", "first", "--activation", "softmax", "--class-names", tmp_path / "names.txt")
    result = run("collect", tmp_path / "shards", "-o", tmp_path / "a.safetensors", *options)
    assert "300 rows of 3 classes and a background (first) from 3 files" in result.out
    metadata = ClassMoments.load(tmp_path / "a.safetensors").head
    assert metadata.names == ("background", "cup", "spoon", "fork")
    assert (metadata.background, metadata.activation) == (0, "softmax")


# `logn` in a process that says so on stdout and waits when it gives its output its name.
PAUSING = """
import os, sys
from logn.cli.main import run

def pause(source, target):
    print("paused", flush=True)
    sys.stdin.read()

os.replace = pause
run()
"""


def test_interrupting_leaves_one_sentence_and_code_130(logits, tmp_path):
    output = tmp_path / "a.safetensors"
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSING, "collect", str(tmp_path / "shards"), "-o", str(output)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Where the tests run in the background of a shell, children would ignore interruptions.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.readline() == b"paused\n"
    process.send_signal(signal.SIGINT)
    process.wait()  # before stdin is closed, which would let it go on
    _, errors = process.communicate()
    assert (process.returncode, errors.decode()) == (130, "Error: Interrupted.\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards"]


def test_merging_equals_one_run(run, logits, tmp_path):
    parts = [tmp_path / f"part{index}.safetensors" for index in range(3)]
    for index, part in enumerate(parts):
        assert run("collect", tmp_path / f"shards/{index}.npy", "-o", part).code == 0
    assert run("collect", tmp_path / "shards", "-o", tmp_path / "whole.safetensors").code == 0
    result = run("merge", *parts, "-o", tmp_path / "all.safetensors", "--json")
    assert (result.code, result.json["rows"], result.json["files"]) == (0, 300, 3)
    merged, whole = (ClassMoments.load(tmp_path / f"{name}.safetensors") for name in ("all", "whole"))
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-9, atol=1e-9)


def test_probabilities_are_warned_of_when_collected_and_refused_when_fitted(run, refused, tmp_path):
    np.save(tmp_path / "scores.npy", np.random.default_rng(0).dirichlet(np.ones(6), 300))
    stats = tmp_path / "stats.safetensors"
    collected = run("collect", tmp_path / "scores.npy", "-o", stats, "--json")
    [sentence] = collected.json["warnings"]
    assert f"Warning: {sentence}" in collected.err
    assert "LogN needs the logits, before the softmax." in sentence
    assert "are of probabilities" in refused("fit", stats, "-o", tmp_path / "affine.safetensors")
    assert not (tmp_path / "affine.safetensors").exists()
    assert "No recommendation: `moments` are of probabilities" in run("inspect", stats).err
