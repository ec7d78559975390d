"""Which images the page shows, and what is drawn on them."""

import numpy as np
import pytest

from logn.matching.ground_truth import load_ground_truth
from logn.matching.match import match_detections
from logn.measure.comparison import Comparison
from logn.measure.detection.example_images import (
    ALARMS,
    FOUND,
    LOST,
    RARE,
    SAME,
    GalleryImage,
    Mark,
    ShownDetections,
    choose_images,
)
from logn.predictions.detections import Detections
from logn.report.gallery import draw_image, gallery
from logn.report.view import View

CLASS_1_IS_RARE = np.array([False, True])


def truth_of(boxes, num_images, *, num_classes=2, negatives=(1, 2)):
    """Boxes are (image, class), one at most in an image; each has its corner at 0 and is ten pixels wide."""
    annotations = [
        {"id": number, "image_id": image, "category_id": label + 1, "bbox": [0, 0, 10, 10], "area": 100}
        for number, (image, label) in enumerate(boxes, start=1)
    ]
    federated = {"neg_category_ids": [*negatives], "not_exhaustive_category_ids": []}
    images = [{"id": image, **federated} for image in range(num_images)]
    categories = [{"id": label + 1, "name": f"class {label}"} for label in range(num_classes)]
    return load_ground_truth({"images": images, "categories": categories, "annotations": annotations})


def shown(truth, *rows, threshold=0.0):
    """Rows are (image, class, score, place): 0 for the place of the box, or -1 for elsewhere."""
    image, label, score, place = np.array(sorted(rows, key=lambda row: (row[0], -row[2]))).T
    boxes = np.array([[0, 0, 10, 10]]) + np.where(place >= 0, 0, 500)[:, None]
    columns = image.astype(np.int32), label.astype(np.int32), score.astype(np.float32), boxes.astype(np.float32)
    found = Detections(*columns, np.arange(len(rows), dtype=np.int32))
    return ShownDetections.of(match_detections(found, truth), found.boxes, threshold)


def chosen(truth, before, after, thresholds=(0.5, 0.25), **options):
    pairs = zip((before, after), thresholds, strict=True)
    sides = (shown(truth, *rows, threshold=threshold) for rows, threshold in pairs)
    return choose_images(truth, *sides, CLASS_1_IS_RARE, **options)


def test_matches_tell_hits_duplicates_and_what_was_not_looked_for():
    truth = truth_of([(0, 0)], 1, num_classes=3, negatives=[2])
    outcomes = shown(truth, (0, 0, 0.9, 0), (0, 0, 0.8, 0), (0, 1, 0.7, 0), (0, 2, 0.6, 0)).outcomes
    assert outcomes.object.tolist() == [0, -1, -1, -1]
    assert outcomes.hits.tolist() == [True, False, False, False]
    assert outcomes.alarms.tolist() == [False, True, True, False]


def test_gains_of_rare_classes_losses_and_false_alarms_are_shown():
    """Image 0 gains a rare object, image 1 loses one, image 2 gains a false alarm."""
    truth = truth_of([(0, 1), (1, 0), (2, 0)], 4)
    before = [(0, 1, 0.1, 0), (1, 0, 0.9, 0), (2, 0, 0.8, 0), (3, 0, 0.7, -1)]
    found = chosen(truth, before, [(0, 1, 0.6, 0), (1, 0, 0.1, 0), (2, 0, 0.5, 0), (2, 1, 0.4, -1)])
    listed = [(image.part, image.amount, image.image_id) for image in found]
    assert listed == [(RARE, 1, 0), (LOST, 1, 1), (ALARMS, 1, 2)]
    kinds = [[[(mark.kind, mark.changed) for mark in side] for side in (image.before, image.after)] for image in found]
    assert kinds[0] == [[("missed", True)], [("hit", True)]]
    assert kinds[1] == [[("hit", True)], [("missed", True)]]
    assert kinds[2][1] == [("hit", False), ("alarm", True)]


@pytest.mark.parametrize(
    ("after", "parts"),
    [
        ([(0, 0, 0.6, 0), (1, 1, 0.6, 0)], [(FOUND, 0)]),
        ([(0, 0, 0.1, 0), (1, 1, 0.1, 0)], [(LOST, 1)]),
        ([(0, 0, 0.1, 0), (1, 1, 0.6, 0)], [(SAME, 1), (SAME, 0)]),
    ],
)
def test_there_is_always_something_to_see(after, parts):
    """Frequent objects where no rare one is found, then what is lost, then what stays."""
    truth = truth_of([(0, 0), (1, 1)], 2)
    found = chosen(truth, [(0, 0, 0.1, 0), (1, 1, 0.9, 0)], after)
    assert [(image.part, image.image_id) for image in found] == parts


def test_an_image_is_shown_once_and_equal_ones_go_by_id():
    truth = truth_of([(image, 1) for image in range(6)], 6)
    before = [(image, 1, 0.1, 0) for image in range(6)]
    after = [(image, label, 0.8, place) for image in range(6) for label, place in ((1, 0), (0, -1))]
    found = chosen(truth, before, after, (0.5, 0.5), each=2)
    assert [(image.part, image.image_id) for image in found] == [(RARE, 0), (RARE, 1), (ALARMS, 2), (ALARMS, 3)]


def test_boxes_carry_class_and_score_and_the_caption_what_changed():
    box, other = (10.0, 40.0, 60.0, 80.0), (90.0, 40.0, 120.0, 80.0)
    before = (Mark("hit", box, 0, 0.5, changed=True), Mark("missed", other, 1, changed=True))
    after = (Mark("missed", box, 0, changed=True), Mark("hit", other, 1, 0.1, changed=True))
    image = GalleryImage(LOST, 1, 0, 7, before, after)
    picture = draw_image(image, "", (100, 170), ["cup", "a class with a long name"])
    labels = [[(label.kind, label.text) for label in view["labels"]] for view in picture["views"]]
    assert labels == [[("lost", "cup 0.50")], [("hit", "a class with … 0.10"), ("lost", "cup")]]
    assert [frame["kind"] for frame in picture["views"][0]["frames"]] == ["missed", "lost"]
    assert picture["views"][1]["frames"][-1]["title"] == "lost: cup"
    assert picture["captions"] == [("hit", "found", "a class with a long name 0.10"), ("lost", "lost", "cup 0.50")]


def test_labels_hide_no_other_and_stay_in_the_picture(run_folder):
    comparison = Comparison.load(run_folder)
    content = gallery(View.of(comparison, comparison["recommended"]))
    assert content["lacking"] == ""
    views = [view for _, _, pictures in content["parts"] for picture in pictures for view in picture["views"]]
    assert sum(len(view["labels"]) for view in views) > 10
    for view in views:
        boxes = [label.box for label in view["labels"]]
        for place, (x, y, width, height) in enumerate(boxes):
            assert min(x, y) >= 0
            assert x + width <= 96.001
            assert y + height <= 64.001
            for x2, y2, width2, _ in boxes[:place]:
                assert x >= x2 + width2 - 1e-6 or x2 >= x + width - 1e-6 or abs(y - y2) >= height - 1e-6
