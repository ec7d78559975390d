"""Which box each detection found: right, false alarm, or neither, where its class was not verified."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.ground_truth import GroundTruth
from logn.evaluate.detection.matching import best_first, box_overlap, matched_boxes, same_class_pairs, verified_rows

LEAST_OVERLAP = 0.5


@dataclass(frozen=True, eq=False)
class DetectionMatches:
    """Detections of all images with what became of each; all arrays are in their order.

    Args:
        detections: The detections, best first within each image.
        box: `(D,)` the annotated box that it found, or -1.
        judged: `(D,)` False where it is neither right nor wrong: its class was not verified in the image, or the
            objects of the class are not all annotated there.
    """

    detections: Detections
    box: npt.NDArray[np.intp]
    judged: npt.NDArray[np.bool_]

    @property
    def is_false_alarm(self) -> npt.NDArray[np.bool_]:
        """`(D,)` whether it is wrong."""
        return (self.box < 0) & self.judged

    def above(self, threshold: float) -> DetectionMatches:
        """What is left above a score threshold; stronger detections choose first, so the others change nothing."""
        kept = self.detections.scores > threshold
        return DetectionMatches(self.detections.take(kept), self.box[kept], self.judged[kept])

    def found(self, num_boxes: int) -> npt.NDArray[np.bool_]:
        """`(G,)` which annotated boxes were found."""
        found = np.zeros(num_boxes, bool)
        found[self.box[self.box >= 0]] = True
        return found


def find_matches(
    detections: Detections, truth: GroundTruth, *, least_overlap: float = LEAST_OVERLAP
) -> DetectionMatches:
    """Match detections to the boxes of their class, greedily by score, and say which are evaluated at all.

    Example:
        >>> toy = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "cup"}],
        ...     "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10]}]}
        >>> from logn.evaluate.detection.ground_truth import load_ground_truth
        >>> two = Detections(np.zeros(2, np.int32), np.zeros(2, np.int32), np.array([0.9, 0.8], np.float32),
        ...     np.array([[0, 0, 10, 8], [0, 0, 10, 10]], np.float32), np.arange(2, dtype=np.int32))
        >>> found = find_matches(two, load_ground_truth(toy, style="coco"))
        >>> found.box.tolist(), found.is_false_alarm.tolist()
        ([0, -1], [False, True])
    """
    labels, images = detections.labels.astype(np.int64), detections.image_index.astype(np.int64)
    detection, box = same_class_pairs(images, labels, truth)
    detection, box, overlap = best_first(detection, box, box_overlap(detections, truth)(detection, box))
    close = overlap >= least_overlap
    matched, into_crowd = matched_boxes(detection[close], box[close], len(labels), truth)
    judged = np.zeros(len(labels), bool)
    judged[verified_rows(images, labels, truth)] = True
    judged[into_crowd] = False
    if truth.not_exhaustive is not None:
        judged &= ~truth.not_exhaustive[images, labels]
    return DetectionMatches(detections, matched, judged | (matched >= 0))
