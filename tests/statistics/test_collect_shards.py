"""Collecting over shards: the same as one pass in memory, bit-equal for any number of threads."""

import numpy as np
import pytest

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
