"""`logn collect` and `logn merge`: from files of logits to statistics, in real processes where it matters."""

import os
import signal
import subprocess
import sys

import numpy as np

from logn.base.arrays import softmax
from logn.base.files import read_safetensors
from logn.statistics.from_files import collect_shards
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


# `logn` in a process that stops at a call of `os.replace`, which brings the journal to its place: before or after it.
# It says so on stdout, and goes on when stdin ends.
PAUSING = """
import os, sys
from logn.cli.main import run
from logn.statistics.from_files import collect_shards

collect_shards.__kwdefaults__ |= {"journal_seconds": 0.0, "threads": 2}
calls, moment = int(sys.argv.pop(1)), sys.argv.pop(1)
plain_replace = os.replace

def pause():
    print("paused", flush=True)
    sys.stdin.read()

def replace(source, target):
    global calls
    calls -= 1
    if calls == 0 and moment == "before":
        pause()
    plain_replace(source, target)
    if calls == 0 and moment == "after":
        pause()

os.replace = replace
run()
"""


def _start_and_wait_for_journal(folder, calls, moment, output):
    """Start a collection that waits in the middle, wherever the machine is busy, until it is sent a signal."""
    command = [sys.executable, "-c", PAUSING, calls, moment, "collect", f"{folder}/shards", "-o", output]
    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Where the tests run in the background of a shell, children would ignore interruptions.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.readline() == b"paused\n"
    return process


def _write_many_shards(folder):
    (folder / "shards").mkdir()
    random = np.random.default_rng(0)
    for index in range(40):
        np.save(folder / "shards" / f"{index:03}.npy", random.standard_normal((64, 50), dtype=np.float32))


def test_a_killed_run_resumes_to_the_same_bits(run, tmp_path):
    """SIGKILL a real process in the middle, twice, then let it finish."""
    _write_many_shards(tmp_path)
    whole, resumed = tmp_path / "whole.safetensors", tmp_path / "resumed.safetensors"
    journal = tmp_path / "resumed.safetensors.partial"
    assert run("collect", tmp_path / "shards", "-o", whole).code == 0

    # Once with the journal in its place, once with a new one beside it that nobody will finish.
    for moment, reached in (("after", 3), ("before", 5)):
        process = _start_and_wait_for_journal(tmp_path, 3, moment, resumed)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not resumed.exists()
        _, text = read_safetensors(journal, expected_format="logn.collect-journal", schema=3)
        assert text["rows"].count("64") == reached

    assert run("collect", tmp_path / "shards", "-o", resumed).code == 0
    _assert_bit_equal(whole, resumed)
    assert ClassMoments.load(resumed).count.tolist() == [40 * 64] * 50
    assert not journal.exists()


def test_a_changed_input_is_noticed_when_resuming(refused, logits, tmp_path, monkeypatch):
    """An error in the last shard leaves a journal; a changed first shard then may not be counted on."""
    for name, value in (("journal_seconds", 0.0), ("threads", 1)):
        monkeypatch.setitem(collect_shards.__kwdefaults__, name, value)
    output = tmp_path / "a.safetensors"
    np.save(tmp_path / "shards" / "9.npy", np.full((5, 4), np.nan))
    arguments = ("collect", tmp_path / "shards", "-o", output)
    assert "9.npy" in refused(*arguments)
    os.utime(tmp_path / "shards" / "0.npy", ns=(1, 1))
    assert "has changed since the interrupted run: delete" in refused(*arguments)


def test_interrupting_leaves_one_sentence_and_code_130(tmp_path):
    _write_many_shards(tmp_path)
    output = tmp_path / "a.safetensors"
    process = _start_and_wait_for_journal(tmp_path, 1, "after", output)
    process.send_signal(signal.SIGINT)
    process.wait()  # before stdin is closed, which would let it go on
    _, errors = process.communicate()
    assert (process.returncode, errors.decode()) == (130, "Error: Interrupted.\n")
    assert not output.exists()
    assert (tmp_path / "a.safetensors.partial").exists()


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
    assert "`STATISTICS` are of probabilities" in refused("fit", stats, "-o", tmp_path / "affine.safetensors")
    assert not (tmp_path / "affine.safetensors").exists()
    assert "No recommendation: `STATISTICS` are of probabilities" in run("inspect", stats).err
