"""Masks as polygons, for annotation files that are written here."""

from __future__ import annotations

import numpy as np

from logn.data.masks import BoolArray


def outline_mask(mask: BoolArray) -> list[list[int]]:
    """Turn a mask into one polygon that runs along the edges of its pixels, as COCO's `segmentation` wants it.

    Parts and holes are joined by cuts of zero width; readers fill by the even-odd rule, so the mask comes
    back exactly.

    Example:
        >>> from logn_research.datasets.masks import decode_segmentation
        >>> ring = np.ones((3, 3), np.bool_)
        >>> ring[1, 1] = False
        >>> bool((decode_segmentation(outline_mask(ring), 3, 3) == ring).all())
        True
    """
    loops = _edge_loops(mask)
    if not loops:
        return []
    path = [*loops[0], loops[0][0]]
    for loop in loops[1:]:
        path += [*loop, loop[0], loops[0][0]]
    return [[coordinate for corner in path for coordinate in corner]]


def _edge_loops(mask: BoolArray) -> list[list[tuple[int, int]]]:
    """Closed walks of corners `(x, y)` along the edges between mask and surroundings, mask on the right hand."""
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
