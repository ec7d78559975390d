"""What the page shows is computed apart from drawing: known numbers."""

import numpy as np
import pytest

from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.comparison import CompareSettings
from logn.evaluate.decode.decoder import decode
from logn.evaluate.decode.detections import Detections
from logn.evaluate.detection.gallery import ALARMS, FOUND, LOST, Outcomes, choose_images
from logn.evaluate.detection.ground_truth import load_ground_truth
from logn.evaluate.detection.matching import match_detections
from logn.evaluate.detection.metrics import RecallAtCount
from logn.report.class_changes_data import class_changes
from logn.report.page_classes import ClassRow, most_changed
from logn.report.run_folder import open_run
from logn.report.svg_charts import Axis, log_ticks, ring_parts, round_ticks, step_path

RARE = np.array([False, True])


def truth_of(boxes, num_images, *, num_classes=2, negatives=None):
    """Boxes are (image, class); each is ten pixels wide at x = 20 · its number in the image."""
    annotations, seen = [], {}
    for number, (image, label) in enumerate(boxes, start=1):
        place = seen[image] = seen.get(image, -1) + 1
        item = {"id": number, "image_id": image, "category_id": label + 1, "bbox": [20 * place, 0, 10, 10], "area": 100}
        annotations.append(item)
    negative = list(range(1, num_classes + 1)) if negatives is None else negatives
    images = [
        {"id": image, "neg_category_ids": negative, "not_exhaustive_category_ids": []} for image in range(num_images)
    ]
    categories = [{"id": place + 1, "name": f"class {place}"} for place in range(num_classes)]
    return load_ground_truth({"images": images, "categories": categories, "annotations": annotations})


def detections(*rows):
    """Rows are (image, class, score, place): place is the number of the box, or -1 for elsewhere."""
    rows = sorted(rows, key=lambda row: (row[0], -row[2]))
    left = [20 * place if place >= 0 else 500 for *_, place in rows]
    return Detections(
        np.array([row[0] for row in rows], np.int32),
        np.array([row[1] for row in rows], np.int32),
        np.array([row[2] for row in rows], np.float32),
        np.array([[x, 0, x + 10, 10] for x in left], np.float32).reshape(-1, 4),
        np.arange(len(rows), dtype=np.int32),
    )


def outcomes(found, truth):
    return Outcomes.of(found, match_detections(found, truth))


def test_matches_tell_hits_duplicates_and_what_nobody_looked_for():
    truth = truth_of([(0, 0)], 1, num_classes=3, negatives=[2])
    found = outcomes(detections((0, 0, 0.9, 0), (0, 0, 0.8, 0), (0, 1, 0.7, 0), (0, 2, 0.6, 0)), truth)
    assert found.box.tolist() == [0, -1, -1, -1]
    assert found.is_false_alarm.tolist() == [False, True, True, False]
    assert found.judged.tolist() == [True, True, True, False]
    assert found.take(found.detections.scores > 0.75).is_false_alarm.tolist() == [False, True]


@pytest.fixture
def pair():
    """Class 1 is rare. Image 0 gains a rare object, image 1 loses one, image 2 gains a false alarm."""
    truth = truth_of([(0, 1), (1, 0), (2, 0)], 4)
    before = detections((0, 1, 0.1, 0), (1, 0, 0.9, 0), (2, 0, 0.8, 0), (3, 0, 0.7, -1))
    after = detections((0, 1, 0.6, 0), (1, 0, 0.1, 0), (2, 0, 0.5, 0), (2, 1, 0.4, -1))
    return truth, outcomes(before, truth), outcomes(after, truth)


def test_the_gallery_shows_gains_losses_and_false_alarms(pair):
    chosen = choose_images(*pair, RecallAtCount(0.5, 3, 0.25, 2, 3, 0.75, {}), RARE)
    assert [(image.part, image.amount, image.image_id) for image in chosen] == [
        (FOUND, 1, 0),
        (LOST, 1, 1),
        (ALARMS, 1, 2),
    ]
    found, lost, alarms = chosen
    assert [(mark.kind, mark.changed) for mark in found.before] == [("missed", True)]
    assert [(mark.kind, mark.changed) for mark in found.after] == [("hit", True)]
    assert [(mark.kind, mark.changed) for mark in lost.before] == [("hit", True)]
    assert [(mark.kind, mark.changed) for mark in lost.after] == [("missed", True)]
    assert [(mark.kind, mark.changed) for mark in alarms.after] == [("hit", False), ("alarm", True)]


def test_an_image_is_shown_once_and_equal_ones_go_by_id():
    truth = truth_of([(image, 1) for image in range(6)], 6)
    before = detections(*((image, 1, 0.1, 0) for image in range(6)))
    after = detections(*((image, 1, 0.8, 0) for image in range(6)), *((image, 0, 0.7, -1) for image in range(6)))
    many = truth, outcomes(before, truth), outcomes(after, truth)
    point = RecallAtCount(0.5, 0, 0.5, 6, 6, 1.0, {})
    chosen = choose_images(*many, point, RARE, each=2)
    assert [(image.part, image.image_id) for image in chosen] == [(FOUND, 0), (FOUND, 1), (ALARMS, 2), (ALARMS, 3)]


def test_a_correction_flattens_mean_and_spread(run_folder):
    run = open_run(run_folder)
    changes = class_changes(run.comparison, "logn")
    assert changes.follows_count(changes.mean_before) > 0.9
    np.testing.assert_allclose(changes.mean_after * changes.std_before, changes.mean_before.min(), atol=1e-3)
    np.testing.assert_allclose(changes.std_after, 1.0, atol=1e-3)
    assert changes.images.tolist() == run.counts.image_counts.tolist()


def test_few_images_stand_for_many(run_folder):
    run = open_run(run_folder)
    options = {"moments": run.moments, "counts": run.counts}
    settings = CompareSettings(num_bootstrap=0, report_images=3)
    quick = compare(run.store, run.path("annotations"), ["logn"], settings=settings, **options)
    few = quick["logn"].details
    assert (few.images, few.of_images) == (3, 12)
    found = decode(run.store)
    kept = np.isin(found.image_index, [0, 6, 11])
    assert few.histograms["all"].before.sum() == kept.sum()
    assert {image.image_id for image in few.gallery} <= {1, 7, 12}
    settings = CompareSettings(num_bootstrap=0, report_images=0)
    none = compare(run.store, run.path("annotations"), ["logn"], settings=settings, **options)
    assert none["logn"].details is None


def test_classes_without_boxes_neither_gain_nor_lose():
    assert most_changed([ClassRow("empty", None, None, 0, float("nan"), float("nan"))], 3) == ((), ())


def test_ticks_are_round_and_inside():
    assert round_ticks(0, 1) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert round_ticks(-7.3, -1.2) == [-6.0, -4.0, -2.0]
    assert log_ticks(1e-4, 1) == [1e-4, 1e-3, 1e-2, 0.1, 1.0]


def test_a_histogram_starts_and_ends_at_the_base_line():
    x, y = Axis(1, 100, 0, 10, logarithmic=True), Axis(1, 10, 20, 0, logarithmic=True)
    assert step_path(x, y, [1, 10, 100], [10, 0]) == "M0,20L0,0L5,0L5,20L10,20L10,20"


def test_a_ring_leaves_out_what_is_nothing():
    assert [name for name, _ in ring_parts({"Cls": 3.0, "Loc": 0.0})] == ["Cls"]
    assert ring_parts({"Cls": 0.0, "Loc": 0.0}) == []


def test_a_ring_of_one_part_is_whole():
    """An arc from a point to itself draws nothing, so there is a point half way."""
    ((_, path),) = ring_parts({"Cls": 3.0}, radius=70, hole=42)
    outer, inner = path.split("L")
    assert outer == "M0,-70A70,70 0 0 1 0,70A70,70 0 0 1 0,-70"
    assert inner == "0,-42A42,42 0 0 0 0,42A42,42 0 0 0 0,-42Z"
