"""Instance masks: as annotation files hold them, as mask heads give them, and as outlines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError, import_extra

BoolArray = npt.NDArray[np.bool_]

# A pixel belongs to the object from here on, as in torchvision's reference evaluation.
_THRESHOLD = 0.5
_FARTHEST = 1e6  # pixels; a corner out there is a broken file, and would take long to draw


def _rle() -> Any:
    """Run-length codes of masks; imported late, since reading labels needs no masks."""
    return import_extra("hotcoco", extra="evaluate").mask


def encode_segmentation(segmentation: Any, height: int, width: int) -> Any:
    """Turn one `segmentation` field into the run lengths that hotcoco takes."""
    try:
        rles = _run_lengths(segmentation, height, width)
        if not rles:
            return _rle().encode(np.zeros((height, width), np.uint8, order="F"))
        return rles[0] if len(rles) == 1 else _rle().merge(rles)
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InputError(f"`segmentation` is neither polygons nor run lengths: {error}.") from error


def _run_lengths(segmentation: Any, height: int, width: int) -> list[Any]:
    if isinstance(segmentation, list):
        # Fewer than three corners enclose nothing; four numbers would be taken for a box.
        polygons = [polygon for polygon in segmentation if len(polygon) >= 6]
        for polygon in polygons:
            _check_polygon(polygon)
        return list(_rle().frPyObjects(polygons, height, width)) if polygons else []
    # hotcoco makes room for whatever size it is given, so what does not fit must not get that far.
    if list(segmentation["size"]) != [height, width]:
        raise InputError(f"Expected `segmentation` to have size {[height, width]}, but got {segmentation['size']}.")
    counts = segmentation["counts"]
    if not isinstance(counts, list):
        return [segmentation]
    if any(type(count) is not int or count < 0 for count in counts) or sum(counts) != height * width:
        raise InputError(
            f"The run lengths of `segmentation` do not add up to the {height * width} pixels of the image."
        )
    return [_rle().frPyObjects(segmentation, height, width)]


def _check_polygon(polygon: Sequence[float]) -> None:
    if len(polygon) % 2 or not all(abs(value) <= _FARTHEST for value in polygon):  # NaN is not less than anything
        raise InputError(f"A polygon of `segmentation` is not pairs of numbers of at most {_FARTHEST:,.0f}.")


def encode_mask(mask: BoolArray) -> dict[str, Any]:
    """Turn a mask into COCO's compressed run lengths, as JSON can hold them.

    Example:
        >>> encode_mask(np.array([[False, True], [True, False]]))
        {'size': [2, 2], 'counts': '121'}
    """
    encoded = _rle().encode(np.asfortranarray(mask, dtype=np.uint8))
    counts = encoded["counts"]
    return {
        "size": [int(side) for side in encoded["size"]],
        "counts": counts.decode("ascii") if isinstance(counts, bytes) else counts,
    }


def paste_mask(mask: npt.NDArray[np.float32], box: npt.NDArray[np.float32], height: int, width: int) -> BoolArray:
    """Bring a mask `(R, R)` from the frame of its box to the image, as torchvision does.

    The mask gets a border of one empty pixel, its box grows accordingly and is cut to whole pixels, and the mask is
    interpolated linearly over it.

    Example:
        >>> pasted = paste_mask(np.ones((28, 28), np.float32), np.array([10, 10, 40, 30], np.float32), 50, 60)
        >>> int(pasted.sum()), pasted[20, 8:12].tolist()
        (640, [False, True, True, True])
    """
    bordered = np.pad(np.asarray(mask, np.float32), 1)
    scale = np.float32(len(bordered) / len(mask))
    centre, half = (box[:2] + box[2:]) * np.float32(0.5), (box[2:] - box[:2]) * np.float32(0.5) * scale
    left, top = (centre - half).astype(np.int64).tolist()
    right, bottom = (centre + half).astype(np.int64).tolist()
    pasted = np.zeros((height, width), np.bool_)
    columns, rows = slice(max(left, 0), min(right + 1, width)), slice(max(top, 0), min(bottom + 1, height))
    if columns.start >= columns.stop or rows.start >= rows.stop:
        return pasted
    sides = (bordered.shape[1], max(right - left + 1, 1)), (bordered.shape[0], max(bottom - top + 1, 1))
    across, down = (_interpolation((np.arange(target) + 0.5) * source / target, source) for source, target in sides)
    across, down = across[columns.start - left : columns.stop - left], down[rows.start - top : rows.stop - top]
    pasted[rows, columns] = down @ bordered @ across.T > _THRESHOLD
    return pasted


def combine_prototypes(
    prototypes: npt.NDArray[np.float32],
    coefficients: npt.NDArray[np.float32],
    boxes: npt.NDArray[np.float32],
    x: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
) -> Iterator[BoolArray]:
    """Masks of an image as YOLACT and YOLO make them: sums of prototypes, above 0, inside their boxes.

    Args:
        prototypes: `(K, h, w)`.
        coefficients: `(D, K)`.
        boxes: `(D, 4)` corners in pixels of the image.
        x: `(W,)` where the middle of each column of the image lies among the prototypes; 0.5 is the first one's middle.
        y: `(H,)` the same of each row.

    Example:
        >>> ones, box = np.ones((1, 2, 2), np.float32), np.array([[1.0, 0.0, 4.0, 2.0]], np.float32)
        >>> next(combine_prototypes(ones, ones[0, :1, :1], box, np.arange(4) / 2, np.arange(4) / 2)).sum()
        np.int64(6)
    """
    across, down = _interpolation(x, prototypes.shape[2]), _interpolation(y, prototypes.shape[1])
    for weights, box in zip(coefficients, boxes, strict=True):
        # As Ultralytics crops: a pixel is inside from the one at the corner on.
        left, top, right, bottom = np.ceil(box).clip(0, [len(x), len(y)] * 2).astype(np.int64).tolist()
        mask = np.zeros((len(y), len(x)), np.bool_)
        logits = np.tensordot(weights, prototypes, axes=1)
        mask[top:bottom, left:right] = down[top:bottom] @ logits @ across[left:right].T > 0
        yield mask


def _interpolation(position: npt.NDArray[np.float64], source: int) -> npt.NDArray[np.float32]:
    """The matrix `(targets, source)` of linear interpolation between pixel centres, constant beyond the outer ones.

    Args:
        position: `(targets,)` where each target lies; 0.5 is the centre of the first pixel.
        source: How many pixels there are.
    """
    position = np.clip(position - 0.5, 0.0, source - 1)
    below = position.astype(np.intp)
    share = (position - below).astype(np.float32)
    matrix = np.zeros((len(position), source), np.float32)
    place = np.arange(len(position))
    matrix[place, below] += 1 - share
    matrix[place, np.minimum(below + 1, source - 1)] += share
    return matrix


def outline_of(encoded: Mapping[str, Any]) -> str:
    """The outline of a run-length encoded mask as an SVG path along the edges of its pixels; empty for no pixels.

    Example:
        >>> outline_of(encode_mask(np.array([[False, True, True]])))
        'M1 0H3V1H1Z'
    """
    parts = []
    for loop in edge_loops(np.asarray(_rle().decode(encoded), np.bool_)):
        (x, y), *others = loop
        words = [f"M{x} {y}"]
        for step_x, step_y in others:
            words.append(f"V{step_y}" if step_x == x else f"H{step_x}")
            x, y = step_x, step_y
        parts.append("".join(words) + "Z")
    return "".join(parts)


def edge_loops(mask: BoolArray) -> list[list[tuple[int, int]]]:
    """Closed walks of corners `(x, y)` along the edges between mask and surroundings, mask on the right hand.

    Example:
        >>> edge_loops(np.array([[False, True, True]]))
        [[(1, 0), (3, 0), (3, 1), (1, 1)]]
    """
    padded = np.pad(np.asarray(mask, np.bool_), 1)
    steps: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for step_y, step_x, begin in (
        (-1, 0, (0, 0, 1, 0)),  # nothing above: rightwards along the top edge
        (0, 1, (1, 0, 1, 1)),  # nothing to the right: downwards
        (1, 0, (1, 1, 0, 1)),  # nothing below: leftwards
        (0, -1, (0, 1, 0, 0)),  # nothing to the left: upwards
    ):
        edge = padded & ~np.roll(padded, (-step_y, -step_x), axis=(0, 1))
        from_x, from_y, to_x, to_y = begin
        for y, x in np.argwhere(edge).tolist():
            start = (x - 1 + from_x, y - 1 + from_y)
            steps.setdefault(start, []).append((x - 1 + to_x, y - 1 + to_y))
    loops = []
    while steps:
        start = corner = next(iter(steps))
        loop: list[tuple[int, int]] = []
        while corner in steps:
            following = steps[corner].pop()
            if not steps[corner]:
                del steps[corner]
            loop.append(corner)
            corner = following
        loops.append(_without_straight_corners(loop) if corner == start else loop)
    return loops


def _without_straight_corners(loop: list[tuple[int, int]]) -> list[tuple[int, int]]:
    neighbours = zip(loop[-1:] + loop[:-1], loop, loop[1:] + loop[:1], strict=True)
    return [here for before, here, after in neighbours if before[0] != after[0] and before[1] != after[1]] or loop
