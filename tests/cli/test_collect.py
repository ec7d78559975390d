"""`logn collect` and `logn merge`: from files of logits to statistics, in real processes where it matters."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from logn.files import read_safetensors
from logn.logits.arrays import softmax
from logn.statistics.moments import ClassMoments
from logn.statistics.record import SAMPLE_ROWS


def _assert_bit_equal(one, two):
    first, second = ClassMoments.load(one).to_arrays(), ClassMoments.load(two).to_arrays()
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_statistics_of_shards(run, logits, tmp_path):
    output = tmp_path / "stats.safetensors"
    result = run("collect", tmp_path / "shards/*.npy", "-o", output, "--background", "last", "--json")
    assert result.code == 0
    assert result.json["rows"] == 300
    assert result.json["files"] == 3
    moments = ClassMoments.load(output)
    np.testing.assert_allclose(moments.mean, logits.mean(0, dtype=float), rtol=1e-6)
    np.testing.assert_allclose(moments.std, logits.astype(float).std(0, ddof=1), rtol=1e-6)
    assert moments.metadata.background == -1
    assert moments.sample_rows == SAMPLE_ROWS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards", "stats.safetensors"]


def test_the_mean_probability_is_kept_unless_it_is_refused(run, logits, tmp_path):
    output = tmp_path / "stats.safetensors"
    assert run("collect", tmp_path / "shards", "-o", output).code == 0
    np.testing.assert_allclose(ClassMoments.load(output).mean_probability, softmax(logits).mean(axis=0), rtol=1e-6)
    assert run("collect", tmp_path / "shards", "-o", output, "--no-prior").code == 0
    assert ClassMoments.load(output).mean_probability is None


def test_a_folder_means_its_files_and_the_output_is_replaced(run, logits, tmp_path):
    output = tmp_path / "stats.safetensors"
    ClassMoments(7).save(output)
    result = run("collect", tmp_path / "shards", "-o", output)
    assert result.code == 0
    assert "300 rows of 4 classes from 3 files" in result.out
    assert ClassMoments.load(output).count.tolist() == [300] * 4


def test_metadata_is_kept(run, logits, tmp_path):
    (tmp_path / "names.txt").write_text("cup\nspoon\nfork\n")
    options = ("--background", "first", "--activation", "softmax", "--layer", "head", "--population", "anchors")
    run(
        "collect",
        tmp_path / "shards",
        "-o",
        tmp_path / "a.safetensors",
        *options,
        "--class-names",
        tmp_path / "names.txt",
    )
    metadata = ClassMoments.load(tmp_path / "a.safetensors").metadata
    assert metadata.class_names == ("background", "cup", "spoon", "fork")
    assert (metadata.background, metadata.activation) == (0, "softmax")
    assert (metadata.layer, metadata.population) == ("head", "anchors")


def test_skipping_values_that_are_not_finite(run, tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1.0, np.nan], [2.0, 1.0], [3.0, 0.0]]))
    result = run("collect", tmp_path / "a.npy", "-o", tmp_path / "a.safetensors", "--nonfinite", "skip")
    assert "Skipped 1 values" in result.err
    assert ClassMoments.load(tmp_path / "a.safetensors").count.tolist() == [3, 2]


def test_progress_is_drawn_on_stderr_only(run, logits, tmp_path):
    result = run("collect", tmp_path / "shards", "-o", tmp_path / "a.safetensors", "--progress")
    assert "Collecting" in result.err
    assert "Collecting" not in result.out


def test_the_inputs_that_users_get_wrong(refused, logits, tmp_path):
    output = tmp_path / "a.safetensors"

    def sentence(*arguments):
        return refused("collect", *arguments, "-o", output)

    np.save(tmp_path / "wide.npy", np.zeros((3, 9)))
    assert "to have 4 classes like" in sentence(tmp_path / "shards", tmp_path / "wide.npy")
    np.save(tmp_path / "nan.npy", np.array([[0.0, np.nan]]))
    assert "nan.npy" in sentence(tmp_path / "nan.npy")
    assert "nan for class 1" in sentence(tmp_path / "nan.npy")
    (tmp_path / "a.safetensors.partial").unlink(missing_ok=True)
    np.save(tmp_path / "empty.npy", np.zeros((0, 4)))
    assert "at least one row" in sentence(tmp_path / "empty.npy")
    (tmp_path / "text.npy").write_text("logits")
    assert "text.npy` to be a .npy file" in sentence(tmp_path / "text.npy")
    assert "no-such.npy" in sentence(tmp_path / "no-such.npy")
    assert "matches none" in sentence(tmp_path / "no*such.npy")
    assert not output.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--batch-rows", "0"], "`--batch-rows` to be at least 1"),
        (["--threads", "0"], "`--threads` to be at least 1"),
        (["--sample-rows", "-1"], "`--sample-rows` to be at least 0"),
        (["--background", "middle"], "middle"),
        (["--class-names", "no-such.txt"], "no-such.txt"),
    ],
)
def test_options_that_do_not_fit(refused, logits, tmp_path, options, sentence):
    assert sentence in refused("collect", tmp_path / "shards", "-o", tmp_path / "a.safetensors", *options)


def test_class_names_must_be_as_many_as_classes(refused, logits, tmp_path):
    (tmp_path / "names.json").write_text('["cup", "spoon"]')
    arguments = ("collect", tmp_path / "shards", "-o", tmp_path / "a.safetensors", "--class-names")
    assert "to name 4 classes, but it names 2" in refused(*arguments, tmp_path / "names.json")
    (tmp_path / "names.json").write_text('{"cup": 1}')
    assert "something else" in refused(*arguments, tmp_path / "names.json")
    (tmp_path / "names.csv").write_text("name,image_count\ncup,1\nspoon,2\nfork,3\n")  # four lines, three classes
    assert "but it is a table" in refused(*arguments, tmp_path / "names.csv")


def test_an_output_that_cannot_be_written_is_refused_before_the_work(refused, logits, tmp_path):
    assert "to exist" in refused("collect", tmp_path / "shards", "-o", tmp_path / "no/such/a.safetensors")
    assert "is a folder" in refused("collect", tmp_path / "shards", "-o", tmp_path)


# `logn` in a process that stops at a call of `os.replace`, which brings the journal to its place: before or after it.
# It says so on stdout, and goes on when stdin ends.
PAUSING = """
import os, sys
from logn.cli.main import run

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


def _start_and_wait_for_journal(folder, calls, moment, *options):
    """Start a collection that waits in the middle, wherever the machine is busy, until it is sent a signal."""
    command = [sys.executable, "-c", PAUSING, calls, moment, "collect", f"{folder}/shards", "--journal-seconds", "0"]
    process = subprocess.Popen(
        [str(part) for part in (*command, *options)],
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
    options = ("--sample-rows", "100", "--threads", "2")
    assert run("collect", tmp_path / "shards", "-o", whole, *options).code == 0

    # Once with the journal in its place, once with a new one beside it that nobody will finish.
    for moment, reached in (("after", 3), ("before", 5)):
        process = _start_and_wait_for_journal(tmp_path, 3, moment, "-o", resumed, *options)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not resumed.exists()
        _, text = read_safetensors(journal, expected_format="logn.collect-journal", schema=2)
        assert text["rows"].count("64") == reached

    assert run("collect", tmp_path / "shards", "-o", resumed, *options).code == 0
    _assert_bit_equal(whole, resumed)
    assert ClassMoments.load(resumed).count.tolist() == [40 * 64] * 50
    assert not journal.exists()


def test_a_changed_input_is_noticed_when_resuming(refused, logits, tmp_path):
    """An error in the last shard leaves a journal; a changed first shard then may not be counted on."""
    output = tmp_path / "a.safetensors"
    np.save(tmp_path / "shards" / "9.npy", np.full((5, 4), np.nan))
    arguments = ("collect", tmp_path / "shards", "-o", output, "--journal-seconds", "0", "--threads", "1")
    assert "9.npy" in refused(*arguments)
    os.utime(tmp_path / "shards" / "0.npy", ns=(1, 1))
    assert "has changed; delete" in refused(*arguments)


def test_interrupting_leaves_one_sentence_and_code_130(tmp_path):
    _write_many_shards(tmp_path)
    output = tmp_path / "a.safetensors"
    process = _start_and_wait_for_journal(tmp_path, 1, "after", "-o", output)
    process.send_signal(signal.SIGINT)
    process.wait()  # before stdin is closed, which would let it go on
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.decode() == "Error: Interrupted.\n"
    assert not output.exists()
    assert (tmp_path / "a.safetensors.partial").exists()


def _collect(run, folder, pattern, output, *options):
    assert run("collect", folder / "shards" / pattern, "-o", output, *options).code == 0


def test_merging_equals_one_run(run, logits, tmp_path):
    parts = [tmp_path / f"part{index}.safetensors" for index in range(3)]
    for index, part in enumerate(parts):
        _collect(run, tmp_path, f"{index}.npy", part)
    _collect(run, tmp_path, "*.npy", tmp_path / "whole.safetensors")
    result = run("merge", *parts, "-o", tmp_path / "all.safetensors", "--json")
    assert result.code == 0
    assert (result.json["rows"], result.json["files"]) == (300, 3)
    merged, whole = (ClassMoments.load(tmp_path / f"{name}.safetensors") for name in ("all", "whole"))
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(merged.variance, whole.variance, rtol=1e-7)
    np.testing.assert_array_equal(merged.sample, whole.sample)


def test_what_does_not_merge_is_refused(run, refused, logits, tmp_path):
    one, other = (tmp_path / f"{name}.safetensors" for name in ("one", "other"))
    _collect(run, tmp_path, "0.npy", one, "--population", "anchors")
    _collect(run, tmp_path, "1.npy", other, "--population", "queries")
    sentence = refused("merge", one, other, "-o", tmp_path / "all.safetensors")
    assert "`population`" in sentence
    assert "'anchors' and 'queries'" in sentence
    assert str(other) in sentence
    assert "listed twice" in refused("merge", one, tmp_path / "." / one.name, "-o", tmp_path / "all.safetensors")
    for name, link in (("soft", os.symlink), ("hard", os.link)):
        link(one, tmp_path / f"{name}.safetensors")
        sentence = refused("merge", one, tmp_path / f"{name}.safetensors", "-o", tmp_path / "all.safetensors")
        assert "listed twice" in sentence
    np.save(tmp_path / "wide.npy", np.zeros((3, 9)))
    assert run("collect", tmp_path / "wide.npy", "-o", tmp_path / "wide.safetensors").code == 0
    assert "4 columns, but got 9" in refused(
        "merge", one, tmp_path / "wide.safetensors", "-o", tmp_path / "b.safetensors"
    )
    assert "0.npy" in refused("merge", one, tmp_path / "shards" / "0.npy", "-o", tmp_path / "all.safetensors")
    assert not (tmp_path / "all.safetensors").exists()


def test_a_background_alone_is_refused(refused, tmp_path):
    np.save(tmp_path / "one.npy", np.ones((3, 1), np.float32))
    sentence = refused("collect", tmp_path / "one.npy", "--background", "last", "-o", tmp_path / "s.safetensors")
    assert "Expected a column for a class as well as one for the background, but got only 1 column." in sentence


@pytest.mark.parametrize(("name", "text"), [("a.json", '["", "cup", "spoon"]'), ("a.txt", "cup\n\nspoon\n")])
def test_a_class_without_a_name_does_not_shift_the_others(refused, logits, tmp_path, name, text):
    """Left out, it would leave as many names as there are classes beside the background."""
    (tmp_path / name).write_text(text)
    options = ("--background", "last", "--class-names", tmp_path / name)
    sentence = refused("collect", tmp_path / "shards", *options, "-o", tmp_path / "s.safetensors")
    assert "to name every class, but name" in sentence


def test_which_array_to_take_is_an_option(refused, tmp_path):
    np.savez(tmp_path / "two.npz", first=np.zeros((9, 3)), second=np.zeros((9, 3)))
    output = tmp_path / "stats.safetensors"
    assert "Expected `--key` to say which array" in refused("collect", tmp_path / "two.npz", "-o", output)
    np.save(tmp_path / "one.npy", np.zeros((9, 3)))
    sentence = refused("collect", tmp_path / "one.npy", "--key", "first", "-o", output)
    assert "Expected no `--key` for" in sentence


def test_few_rows_exchanged_axes_and_one_column_are_warned_of(run, tmp_path):
    rows = np.random.default_rng(0).standard_normal((300, 40))
    output = tmp_path / "stats.safetensors"
    for array, words in ((rows[:3, :2], "only 3 rows"), (rows.T, "(300) than rows (40)"), (rows[:, :1], "one logit")):
        np.save(tmp_path / "logits.npy", np.ascontiguousarray(array))
        result = run("collect", tmp_path / "logits.npy", "-o", output, "--json")
        assert result.code == 0
        [sentence] = result.json["warnings"]
        assert words in sentence
        assert f"Warning: {sentence}" in result.err
    np.save(tmp_path / "logits.npy", rows)
    assert run("collect", tmp_path / "logits.npy", "-o", output, "--json").json["warnings"] == []


def test_probabilities_are_warned_of_when_collected_and_refused_when_fitted(run, refused, tmp_path):
    rows = np.random.default_rng(0).dirichlet(np.ones(6), 300)
    np.save(tmp_path / "scores.npy", rows)
    stats = tmp_path / "stats.safetensors"
    [sentence] = run("collect", tmp_path / "scores.npy", "-o", stats, "--json").json["warnings"]
    assert "LogN needs the logits, before the softmax." in sentence
    sentence = refused("fit", stats, "-o", tmp_path / "affine.safetensors")
    assert "Expected `STATISTICS` to be of logits, but they are of probabilities" in sentence
    assert not (tmp_path / "affine.safetensors").exists()


def test_a_doubt_is_said_once_when_fitted(run, tmp_path):
    np.save(tmp_path / "scores.npy", np.random.default_rng(0).uniform(size=(300, 6)))
    stats = tmp_path / "stats.safetensors"
    run("collect", tmp_path / "scores.npy", "-o", stats)
    result = run("fit", stats, "-o", tmp_path / "affine.safetensors", "--json")
    assert sum("as probabilities do" in sentence for sentence in result.json["warnings"]) == 1
    assert result.err.count("as probabilities do") == 1
