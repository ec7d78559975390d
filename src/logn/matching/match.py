"""Which detection found which object, at every overlap threshold: matched once, a few images at a time.

The rules are those of the reference evaluators: within an image and a class detections, strongest first, each take the
free object that they overlap most; objects that are not counted (crowds, other sizes) come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.boxes import box_iou
from logn.errors import import_extra
from logn.matching.ground_truth import SIZES, GroundTruth
from logn.matching.outcomes import IOU_THRESHOLDS, Bits, Floats, Index, Marks, Outcomes, pack
from logn.predictions.detections import Detections

# Images that are matched at once: their arrays stay in the cache.
IMAGES_AT_ONCE = 16


def match_detections(
    detections: Detections,
    truth: GroundTruth,
    *,
    thresholds: Floats = IOU_THRESHOLDS,
    masks: Sequence[Any] | None = None,
) -> Outcomes:
    """Match detections to objects greedily by score within image and class, as the reference evaluators do.

    Limits on the number of detections are the caller's: everything given is looked at. Detections of classes that were
    not verified in their image are neither right nor wrong.

    Args:
        detections: Sorted by image, then by descending score.
        truth: The ground truth, in the same numbering of images and classes.
        thresholds: Overlaps, ascending.
        masks: Run-length encoded mask of each detection; without them boxes are compared.

    Example:
        >>> toy = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "cup"}],
        ...     "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10]}]}
        >>> from logn.matching.ground_truth import load_ground_truth
        >>> detections = Detections(np.zeros(2, np.int32), np.zeros(2, np.int32), np.array([0.9, 0.8], np.float32),
        ...     np.array([[0, 0, 10, 8], [0, 0, 10, 10]], np.float32), np.arange(2, dtype=np.int32))
        >>> truth = load_ground_truth(toy, style="coco")
        >>> match_detections(detections, truth, thresholds=np.array([0.5, 0.9])).hits
        array([ True, False])
    """
    parts = _parts(detections, truth, thresholds, masks)
    return Outcomes.joined(part.outcomes(*part.settled()) for part in parts)


def match_sizes(
    detections: Detections, truth: GroundTruth, *, masks: Sequence[Any] | None = None
) -> tuple[Outcomes, Outcomes]:
    """Outcomes at all overlaps, and those of small, medium and large objects as if each size were a class of its own.

    Class `c` of size `s` is class `s * F + c` there. Objects of other sizes, and detections of other sizes that find
    nothing, are not counted, and what is not counted is left out.
    """
    of_parts = []
    for part in _parts(detections, truth, IOU_THRESHOLDS, masks):
        settled = part.settled(SIZES.values())
        of_parts.append((part.outcomes(*settled), part.by_size(*settled)))
    outcomes, by_size = zip(*of_parts, strict=True)
    return Outcomes.joined(outcomes), Outcomes.joined(by_size)


@dataclass(frozen=True, eq=False)
class _Overlaps:
    """Detections of some images, and the objects of their class that they overlap enough at the lowest threshold.

    Args:
        detections: The detections.
        truth: The ground truth.
        thresholds: `(T,)` overlaps.
        evaluated: `(E,)` rows of the detections whose class was looked for in their image.
        pair: `(P,)` position among the evaluated of each pair of detection and object, ascending.
        object: `(P,)` its object.
        iou: `(P,)` its overlap.
        excused: `(E,)` whether a detection that finds nothing is not wrong: not all objects are annotated.
        areas: `(E,)` area of each evaluated detection.
    """

    detections: Detections
    truth: GroundTruth
    thresholds: Floats
    evaluated: Index
    pair: Index
    object: Index
    iou: Floats
    excused: Marks
    areas: Floats

    def settled(self, sizes: Iterable[tuple[float, float]] = ()) -> tuple[Bits, Bits, npt.NDArray[np.int32]]:
        """Bits of right and of counted, and the object found at the first threshold, `(1 + S, E)` each.

        Of all objects first, then of those of each range of areas.
        """
        truth, ranges = self.truth, [(-np.inf, np.inf), *sizes]
        excused = self.excused | _outside(self.areas, ranges)
        right = np.zeros(excused.shape, np.uint16)
        counted = np.where(excused, 0, (1 << len(self.thresholds)) - 1).astype(np.uint16)
        first = np.full(excused.shape, -1, np.int32)
        if len(self.pair):
            rows, detection = np.unique(self.pair, return_inverse=True)
            objects, candidate = np.unique(self.object, return_inverse=True)
            ignored = truth.crowd[objects] | _outside(truth.areas[objects], ranges)
            choice = self._choices(detection, candidate, ignored, truth.crowd[objects])
            into_ignored = (choice >= 0) & ignored[np.arange(len(ranges))[:, None], choice]
            correct = (choice >= 0) & ~into_ignored
            right[:, rows] = pack(correct)
            counted[:, rows] = pack(correct | ~(into_ignored | (excused[:, rows] & (choice < 0))))
            first[:, rows] = np.where(correct[0], objects[choice[0]], -1)
        return right, counted, first

    def _choices(self, detection: Index, candidate: Index, ignored: Marks, shared: Marks) -> Index:
        """`(T, V, D)` the object that each of D detections takes at each threshold; -1 for none.

        All thresholds and all V ranges of areas are settled at once, as if each had detections and objects of its own.

        Args:
            detection: `(P,)` detection of each pair.
            candidate: `(P,)` object of each pair.
            ignored: `(V, G)` objects that are not counted: they are taken last.
            shared: `(G,)` objects that any number of detections may take.
        """
        best_first = np.lexsort((-self.object, -self.iou, detection))  # ties: the later object
        detection, candidate, iou = detection[best_first], candidate[best_first], self.iou[best_first]
        (num_views, num_objects), num_detections = ignored.shape, int(detection[-1]) + 1
        view_detection = np.arange(num_views)[:, None] * num_detections + detection
        order = np.argsort(2 * view_detection + ignored[:, candidate], axis=None, kind="stable")
        view, pair = np.divmod(order, len(iou))
        level, row = np.nonzero(iou[pair] >= np.minimum(self.thresholds, 1 - 1e-10)[:, None])
        case, pair = level * num_views + view[row], pair[row]
        num_cases = len(self.thresholds) * num_views
        choice = greedy_matches(
            case * num_detections + detection[pair],
            case * num_objects + candidate[pair],
            num_cases * num_detections,
            np.tile(shared, num_cases),
        )
        return np.where(choice >= 0, choice % num_objects, -1).reshape(-1, num_views, num_detections)

    def outcomes(self, right: Bits, counted: Bits, first: npt.NDArray[np.int32]) -> Outcomes:
        """The outcome of each detection when all objects are asked for."""
        detections, truth = self.detections, self.truth
        outcomes = Outcomes(
            image=_small(detections.image_index, truth.num_images),
            label=_small(detections.labels, truth.num_classes),
            score=detections.scores,
            right=np.zeros(len(detections), np.uint16),
            counted=np.zeros(len(detections), np.uint16),
            object=np.full(len(detections), -1, np.int32),
            num_objects=truth.boxes_per_class,
            thresholds=self.thresholds,
        )
        outcomes.right[self.evaluated], outcomes.counted[self.evaluated] = right[0], counted[0]
        outcomes.object[self.evaluated] = first[0]
        return outcomes

    def by_size(self, right: Bits, counted: Bits, first: npt.NDArray[np.int32]) -> Outcomes:
        """The outcomes that count when the objects of each size are asked for."""
        truth, (size, row) = self.truth, np.nonzero(counted[1:])
        detections = self.detections.take(self.evaluated[row])
        return Outcomes(
            image=_small(detections.image_index, truth.num_images),
            label=_small(detections.labels + size * truth.num_classes, len(truth.objects_per_size)),
            score=detections.scores,
            right=right[1 + size, row],
            counted=counted[1 + size, row],
            object=first[1 + size, row],
            num_objects=truth.objects_per_size,
            thresholds=self.thresholds,
        )


def _small(numbers: npt.NDArray[np.integer[Any]], limit: int) -> npt.NDArray[np.integer[Any]]:
    """Numbers below a limit in as small a type as fits."""
    return numbers.astype(np.uint16 if limit <= 1 << 16 else np.int32)


def _outside(areas: Floats, ranges: Sequence[tuple[float, float]]) -> Marks:
    """`(V, N)` whether areas are outside of each range."""
    return np.stack([(areas < low) | (areas > high) for low, high in ranges])


def _parts(
    detections: Detections, truth: GroundTruth, thresholds: Floats, masks: Sequence[Any] | None
) -> Iterator[_Overlaps]:
    """Overlaps of detections and objects, some images at a time."""
    first, last = (int(detections.image_index[end]) for end in (0, -1)) if len(detections) else (0, 0)
    for start in range(first, last + 1, IMAGES_AT_ONCE):
        rows = slice(*np.searchsorted(detections.image_index, [start, start + IMAGES_AT_ONCE]).tolist())
        objects = truth.rows_of_images(start, start + IMAGES_AT_ONCE)
        yield _overlaps(detections.take(rows), truth, objects, thresholds, None if masks is None else masks[rows])


def _overlaps(
    detections: Detections, truth: GroundTruth, objects: Index, thresholds: Floats, masks: Sequence[Any] | None
) -> _Overlaps:
    evaluated = np.flatnonzero(truth.looked_for(detections.image_index, detections.labels))
    image, label = (column[evaluated].astype(np.int64) for column in (detections.image_index, detections.labels))
    excused = np.zeros(len(evaluated), bool)
    if truth.not_exhaustive is not None:
        excused = truth.not_exhaustive[image, label]
    keys = truth.image_index[objects] * truth.num_classes + truth.labels[objects]
    pair, candidate = joined_pairs(image * truth.num_classes + label, keys)
    candidate = objects[candidate]
    iou = overlaps(detections, truth, evaluated[pair], candidate, masks)
    near = iou >= min(float(thresholds.min()), 1 - 1e-10)
    areas = _areas(detections, evaluated, masks)
    return _Overlaps(detections, truth, thresholds, evaluated, pair[near], candidate[near], iou[near], excused, areas)


def _areas(detections: Detections, rows: Index, masks: Sequence[Any] | None) -> Floats:
    if masks is None:
        boxes = detections.boxes[rows].astype(np.float64)
        return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    area = import_extra("hotcoco", extra="evaluate").mask.area
    return np.atleast_1d(area([masks[row] for row in rows.tolist()])).astype(np.float64) if len(rows) else np.empty(0)


def joined_pairs(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> tuple[Index, Index]:
    """All pairs of rows with equal keys, ordered by the row on the left.

    Example:
        >>> [rows.tolist() for rows in joined_pairs(np.array([7, 8, 7]), np.array([7, 7, 9]))]
        [[0, 0, 2, 2], [0, 1, 0, 1]]
    """
    order = np.argsort(right, kind="stable")
    ordered = right[order]
    first = np.searchsorted(ordered, left, side="left")
    count = np.searchsorted(ordered, left, side="right") - first
    left_rows = np.repeat(np.arange(len(left)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return left_rows, order[np.repeat(first, count) + within]


def overlaps(
    detections: Detections, truth: GroundTruth, rows: Index, boxes: Index, masks: Sequence[Any] | None = None
) -> Floats:
    """Overlap of pairs of detection and box; with a crowd, the share of the detection that lies in it."""
    if masks is None:
        # Column by column, as `box_iou` takes them apart.
        left = np.ascontiguousarray(detections.boxes.T, np.float64).take(rows, axis=1)
        objects = truth.corners_and_areas.take(boxes, axis=1)
        crowd = truth.crowd.take(boxes)
        iou: Floats = box_iou(
            left.T, objects[:4].T, right_area=objects[4], share_of_left=crowd if crowd.any() else None
        )
        return iou
    result = np.zeros(len(rows))
    mask_iou = import_extra("hotcoco.primitives", extra="evaluate").mask_iou
    images = truth.image_index[boxes]
    order = np.argsort(images, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(images[order])) + 1) if len(rows) else ():
        left_rows, left_place = np.unique(rows[part], return_inverse=True)
        right_rows, right_place = np.unique(boxes[part], return_inverse=True)
        crowd = truth.crowd[right_rows].tolist()
        matrix = mask_iou([masks[row] for row in left_rows], [truth.masks[box] for box in right_rows], crowd)
        result[part] = matrix[left_place, right_place]
    return result


def greedy_matches(detection: Index, box: Index, num_detections: int, shared: Marks) -> Index:
    """Let the detections, strongest first, each take the best box that is still free; -1 for those without.

    The pairs are sorted by detection (a lower number is stronger), the best box first. A detection's choice is settled
    as soon as no stronger detection that is still open could take that box. All such choices are made at once, so a few
    rounds do for a whole data set.

    Args:
        detection: Of each pair.
        box: Of each pair.
        num_detections: How many detections there are.
        shared: `(G,)` boxes that any number of detections may take: crowds.

    Example:
        >>> greedy_matches(np.array([0, 1, 1]), np.array([5, 5, 2]), 3, np.zeros(6, bool)).tolist()
        [5, 2, -1]
    """
    matched = np.full(num_detections, -1)
    free = np.ones(len(shared), bool)
    strongest = np.empty(len(shared), np.intp)
    while len(detection):
        strongest[box[::-1]] = detection[::-1]  # of repeated positions the last one written stays
        is_best = np.concatenate([[True], detection[1:] != detection[:-1]])
        chooser, choice = detection[is_best], box[is_best]
        settled = (strongest[choice] == chooser) | shared[choice]
        matched[chooser[settled]] = choice[settled]
        free[choice[settled]] = shared[choice[settled]]
        still_open = free[box] & (matched[detection] < 0)
        detection, box = detection[still_open], box[still_open]
    return matched
