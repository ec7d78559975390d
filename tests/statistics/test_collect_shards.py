"""Collecting over shards: the same as one pass in memory, bit-equal for any threads and after any interruption."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.base.arrays import softmax
from logn.data import logit_files as shards_module
from logn.data.logit_files import open_shards
from logn.errors import InputError
from logn.statistics.from_files import collect_shards, in_order
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

CLASSES = 6


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(shards_module, "_BLOCK_BYTES", 24 * CLASSES * 4)


def _make_shards(folder, count=4):
    random = np.random.default_rng(3)
    arrays = [random.normal(-4, 2, (50 + 13 * index, CLASSES)).astype(np.float32) for index in range(count)]
    for index, array in enumerate(arrays):
        if index % 2:
            np.savez_compressed(folder / f"{index}.npz", array)
        else:
            np.save(folder / f"{index}.npy", array)
    paths = sorted(folder.iterdir())
    return open_shards(paths), np.concatenate(arrays)


def _exact(sample_rows=20):
    return ClassMoments(Head(CLASSES, background=-1), sample_rows=sample_rows)


def test_shards_give_what_one_pass_in_memory_gives(tmp_path):
    shards, rows = _make_shards(tmp_path)
    moments = collect_shards(shards, _exact(), batch_rows=8)
    np.testing.assert_array_equal(moments.count, len(rows))
    np.testing.assert_allclose(moments.mean, rows.astype(float).mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments.variance, rows.astype(float).var(0, ddof=1), rtol=1e-6)
    assert len(moments.sample) == 20
    assert {tuple(row) for row in moments.sample.tolist()} <= {tuple(row) for row in rows.astype(np.float16).tolist()}
    np.testing.assert_allclose(moments.mean_probability, softmax(rows).mean(axis=0), rtol=1e-6)
    assert moments.head.background == -1


@pytest.mark.parametrize("threads", [2, 5])
def test_the_number_of_threads_does_not_change_a_bit(tmp_path, threads):
    shards, _ = _make_shards(tmp_path)
    one, many = (collect_shards(shards, _exact(), batch_rows=8, threads=number) for number in (1, threads))
    assert one.to_bytes() == many.to_bytes()


class _StopError(Exception):
    pass


def _stopped(shards, journal, moments, blocks):
    """Collect with an interruption after so many blocks, of which the last is not in the journal."""
    left = iter(range(blocks))

    def progress(rows):
        if next(left, None) is None:
            raise _StopError

    with pytest.raises(_StopError):
        collect_shards(shards, moments, batch_rows=8, journal=journal, journal_seconds=0, progress=progress)


@settings(deadline=None, max_examples=25)
@given(stops=st.lists(st.integers(1, 3), max_size=4), kept=st.sampled_from([0, 5]))
def test_interruptions_do_not_change_a_bit(tmp_path_factory, stops, kept):
    folder = tmp_path_factory.mktemp("shards")
    shards, _ = _make_shards(folder)
    whole = collect_shards(shards, _exact(kept), batch_rows=8)
    for blocks in stops:
        _stopped(shards, folder / "out.partial", _exact(kept), blocks)
    resumed = collect_shards(shards, _exact(kept), batch_rows=8, threads=3, journal=folder / "out.partial")
    assert resumed.to_bytes() == whole.to_bytes()


def test_what_differs_is_noticed_when_resuming(tmp_path):
    shards, _ = _make_shards(tmp_path)
    journal = tmp_path / "out.partial"
    _stopped(shards, journal, _exact(), 5)

    def refused(sentence, shards=shards, moments=None, batch_rows=8):
        with pytest.raises(InputError, match=sentence):
            collect_shards(shards, moments or _exact(), journal=journal, batch_rows=batch_rows)

    refused("`batch_rows` was 8 in the interrupted run and is 16 now", batch_rows=16)
    refused("`sample_rows` was 20", moments=_exact(sample_rows=0))
    refused(r"0\.npy` was file 1 of the interrupted run", shards=shards[1:])
    os.utime(shards[0].path, ns=(1, 1))
    changed = open_shards([shard.path for shard in shards])
    refused(r"0\.npy` has changed .*: delete `.*out\.partial` to start again", shards=changed)
    content = bytearray(journal.read_bytes())
    content[-9] ^= 1
    journal.write_bytes(content)
    refused(r"out\.partial` is damaged: its checksum differs\. Delete it and make it")


def test_a_value_that_is_not_finite_is_refused_with_file_and_class_or_skipped(tmp_path):
    rows = np.zeros((30, CLASSES))
    rows[20, 4] = np.nan
    np.save(tmp_path / "bad.npy", rows)
    shards = open_shards([tmp_path / "bad.npy"])
    with pytest.raises(InputError, match=r"bad\.npy`, rows \d+ to \d+.*nan for class 4"):
        collect_shards(shards, _exact())
    assert collect_shards(shards, ClassMoments(CLASSES, nonfinite="skip")).skipped.tolist() == [0, 0, 0, 0, 1, 0]


def test_a_failing_item_stops_the_pool():
    def work(number):
        if number == 3:
            raise InputError("three")
        return number

    done = []
    with pytest.raises(InputError, match="three"):
        done.extend(result for _, result in in_order(range(1000), work, threads=3))
    with pytest.raises(InputError, match="threads"):
        collect_shards([], _exact(), threads=0)


@pytest.mark.parametrize("shape", [(4, 80, 13, 13), (2, 5, 5, 3), (1, 2, 3, 4, 5)])
def test_maps_of_logits_are_asked_for_the_axis_of_the_classes(tmp_path, shape):
    np.save(tmp_path / "maps.npy", np.zeros(shape, np.float32))
    shards = open_shards([tmp_path / "maps.npy"])
    with pytest.raises(InputError, match=r"maps\.npy` has shape .* save numpy\.moveaxis"):
        collect_shards(shards, ClassMoments(shards[0].num_columns))
