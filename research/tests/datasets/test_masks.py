"""Masks against pycocotools, which wrote the format."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import array_shapes, arrays
from logn_research.datasets.masks import decode_segmentation
from logn_research.datasets.outlines import outline_mask
from pycocotools import mask as coco_mask

from logn.data.masks import encode_mask
from logn.errors import InputError

small_masks = arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9))


@settings(max_examples=200, deadline=None)
@given(small_masks)
def test_run_lengths_are_those_of_pycocotools(mask):
    encoded = encode_mask(mask)
    wanted = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    assert encoded == {"size": wanted["size"], "counts": wanted["counts"].decode()}
    np.testing.assert_array_equal(decode_segmentation(encoded, *mask.shape), mask)


@settings(max_examples=200, deadline=None)
@given(small_masks)
def test_uncompressed_run_lengths(mask):
    flat = np.concatenate([[False], mask.ravel(order="F")])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    counts = np.diff(np.concatenate([[0], changes, [mask.size]])).tolist()
    segmentation = {"size": list(mask.shape), "counts": counts}
    np.testing.assert_array_equal(decode_segmentation(segmentation, *mask.shape), mask)


@settings(max_examples=200, deadline=None)
@given(small_masks)
def test_outline_gives_the_mask_back(mask):
    outline = outline_mask(mask)
    np.testing.assert_array_equal(decode_segmentation(outline, *mask.shape), mask)
    if outline:
        by_pycocotools = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(outline, *mask.shape)))
        np.testing.assert_array_equal(by_pycocotools.astype(np.bool_), mask)


def test_polygons_are_united_as_pycocotools_does():
    polygons = [[1.3, 1.1, 9.7, 2.2, 6.1, 8.4], [4.0, 4.0, 11.5, 4.5, 11.0, 9.0, 4.2, 10.9]]
    wanted = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(polygons, 12, 13)))
    np.testing.assert_array_equal(decode_segmentation(polygons, 12, 13), wanted.astype(np.bool_))


def test_nothing_is_an_empty_mask():
    assert not decode_segmentation([], 3, 4).any()
    assert not decode_segmentation([[1.0, 2.0, 3.0, 4.0]], 3, 4).any()


@pytest.mark.parametrize(
    "segmentation",
    [
        5,
        None,
        {"size": [2, 2]},
        {"size": [2, 3], "counts": [6]},
        {"size": [10**9, 10**9], "counts": "1"},
        {"size": [2, 2], "counts": [5]},
        {"size": [2, 2], "counts": [5, -1]},
        [["a"] * 6],
        [[0, 0, 1, 0, 1]] * 2 + [[0.0] * 7],
        [[0, 0, 1, 0, 1, float("nan")]],
        [[0, 0, 1, 0, 1, 1e300]],
    ],
)
def test_other_things_are_refused(segmentation):
    with pytest.raises(InputError, match="`segmentation`"):
        decode_segmentation(segmentation, 2, 2)
