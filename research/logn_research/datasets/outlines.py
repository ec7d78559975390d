"""Masks as polygons, for annotation files that are written here."""

from __future__ import annotations

from logn.data.masks import BoolArray, edge_loops


def outline_mask(mask: BoolArray) -> list[list[int]]:
    """Turn a mask into one polygon that runs along the edges of its pixels, as COCO's `segmentation` wants it.

    Parts and holes are joined by cuts of zero width; readers fill by the even-odd rule, so the mask comes
    back exactly.

    Example:
        >>> import numpy as np
        >>> from logn_research.datasets.masks import decode_segmentation
        >>> ring = np.ones((3, 3), np.bool_)
        >>> ring[1, 1] = False
        >>> bool((decode_segmentation(outline_mask(ring), 3, 3) == ring).all())
        True
    """
    loops = edge_loops(mask)
    if not loops:
        return []
    path = [*loops[0], loops[0][0]]
    for loop in loops[1:]:
        path += [*loop, loop[0], loops[0][0]]
    return [[coordinate for corner in path for coordinate in corner]]
