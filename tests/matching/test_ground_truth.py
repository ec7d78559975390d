"""Annotations that do not fit are refused, and the sentence names the difference."""

import copy
import json

import pytest

from logn.errors import InputError
from logn.matching.ground_truth import groups_of_classes, load_ground_truth, truth_of_predictions
from logn.matching.results import read_results

TOY = {
    "images": [
        {"id": 7, "neg_category_ids": [5], "not_exhaustive_category_ids": []},
        {"id": 3, "neg_category_ids": [], "not_exhaustive_category_ids": [2]},
    ],
    "categories": [{"id": 5, "name": "spoon", "frequency": "r"}, {"id": 2, "name": "cup", "frequency": "f"}],
    "annotations": [
        {"id": 1, "image_id": 3, "category_id": 2, "bbox": [1, 2, 3, 4], "area": 12}
        | {"segmentation": [[1, 2, 4, 2, 4, 6]]}
    ],
}


def changed(change):
    toy = copy.deepcopy(TOY)
    change(toy)
    return toy


def with_area(area):
    return changed(lambda toy: toy["annotations"][0].update(area=area))


def test_images_take_the_order_of_the_predictions_and_classes_that_of_their_ids(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(TOY))
    truth = load_ground_truth(path, image_ids=[3, 7])
    assert truth.image_ids.tolist() == [3, 7]
    assert truth.class_names == ("cup", "spoon")
    assert truth.frequency.tolist() == ["f", "r"]
    assert (truth.image_index.tolist(), truth.labels.tolist()) == ([0], [0])
    assert truth.verified.tolist() == [[True, False], [False, True]]
    assert truth.not_exhaustive.tolist() == [[True, False], [False, False]]
    assert truth.outlines is None
    assert [bytes(outline) for outline in load_ground_truth(TOY, masks=True).outlines] == [b"[[1,2,4,2,4,6]]"]


@pytest.mark.parametrize(
    ("toy", "message"),
    [
        (changed(lambda toy: toy["images"][1].pop("neg_category_ids")), "Image 3 of .* has no `neg_category_ids`"),
        (changed(lambda toy: toy["images"][0].update(neg_category_ids=None)), "Image 7 of .* `neg_category_ids`"),
        (changed(lambda toy: toy["images"][0].pop("not_exhaustive_category_ids")), "Image 7 of .* no `not_exhaustive"),
        (changed(lambda toy: toy["annotations"][0].update(bbox=[[1, 2], [3, 4]])), r"annotations\[0\].bbox"),
        (with_area("large"), r"annotations\[0\].area"),
    ],
)
def test_what_is_missing_is_named(toy, message):
    with pytest.raises(InputError, match=message):
        load_ground_truth(toy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"category_ids": [2, 5, 8]}, r": 1 predicted but not annotated \(such as category 8\)\. Predict again"),
        ({"category_ids": [2]}, r": 1 annotated but not predicted \(such as category 5\)\."),
        ({"category_ids": [5, 2]}, "they stand in another order"),
        ({"num_classes": 3}, "has 2 classes, but the predictions have 3"),
        ({"class_names": ["spoon", "fork"]}, "1 objects of classes that the model does not have: cup"),
        ({"class_names": ["knife", "fork"]}, "knife, fork.* cup, spoon"),
        ({"image_ids": [3, 4, 7]}, r"1 predicted but not annotated \(such as image 4\)\. Use the labels"),
        (
            {"image_ids": [3]},
            r"1 annotated but not predicted \(such as image 7\)\. Use .* \(in Python only_predicted=True",
        ),
        ({"style": "voc"}, "`style`"),
    ],
)
def test_other_classes_or_images_than_predicted_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        load_ground_truth(TOY, **arguments)


def test_areas_are_those_of_the_annotations_or_of_the_boxes():
    assert load_ground_truth(with_area(5)).areas.tolist() == [5]
    assert load_ground_truth(changed(lambda toy: toy["annotations"][0].pop("area"))).areas.tolist() == [12]


RESULT = {"image_id": 3, "category_id": 2, "bbox": [1, 1, 1, 1], "score": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", ""),
        (json.dumps(TOY), "array"),
        ("[3]", r"\[0\]"),
        ('[{"image_id": 3}]', r"\[0\]"),
        (json.dumps([RESULT | {"image_id": 4}]), "`image_id` 4"),
        (json.dumps([RESULT | {"category_id": 9}]), "`category_id` 9"),
        (json.dumps([RESULT, RESULT | {"bbox": [1, 1, 1]}]), r"\[1\].bbox"),
        (json.dumps([RESULT | {"score": 97.5}]), r"\[0\].score"),
        (json.dumps([RESULT | {"bbox": [5, 5, 2, -2]}]), r"\[0\].bbox"),
        (json.dumps([RESULT | {"score": None}]), r"\[0\].score"),
        (json.dumps([RESULT | {"score": float("nan")}]), r"\[0\].score"),
    ],
)
def test_results_that_do_not_fit_are_refused(tmp_path, content, message):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(InputError, match=f"results.json.*{message}"):
        read_results(tmp_path / "results.json", load_ground_truth(TOY))


def test_only_the_predicted_images_on_demand():
    assert load_ground_truth(TOY, image_ids=[3], only_predicted=True).num_images == 1


def test_coco_annotations_need_no_federated_fields():
    toy = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "cup"}], "annotations": []}
    truth = load_ground_truth(toy, style="coco")
    assert truth.verified is None
    assert groups_of_classes(truth) == (None, None)
    groups, source = groups_of_classes(truth, [7], bounds=(5, 50))
    assert (groups.tolist(), source) == (["c"], "training counts up to 5, up to 50, above")


def test_a_file_that_is_no_json_or_not_there_is_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"images": [')
    for name in ("a.json", "b.json"):
        with pytest.raises(InputError, match=name):
            load_ground_truth(tmp_path / name)


def test_lvis_annotations_need_objects_and_the_frequency_or_counts():
    with pytest.raises(InputError, match="`annotations` has no objects in the evaluated images, so AP is undefined"):
        truth_of_predictions({**TOY, "annotations": []})
    truth = load_ground_truth(changed(lambda toy: toy["categories"][0].pop("frequency")))
    with pytest.raises(InputError, match="`frequency`"):
        groups_of_classes(truth)
    assert groups_of_classes(truth, [500, 2])[0].tolist() == ["f", "r"]
    for arguments, message in (
        (([1, 2, 3],), r"each of the 2 classes, but got shape \(3,\)"),
        (([1, 2], (10, 10)), "`bounds` to ascend, but got 10 and 10"),
    ):
        with pytest.raises(InputError, match=message):
            groups_of_classes(truth, *arguments)


def test_results_that_name_some_images_by_number_and_some_by_name(tmp_path):
    """Ultralytics writes the name 2.jpg as the number 2, which is the id of another image."""
    images = [{"id": place + 1, "file_name": name} for place, name in enumerate(("2.jpg", "10.jpg", "a.jpg"))]
    truth = load_ground_truth({"images": images, "categories": [{"id": 1, "name": "cup"}], "annotations": []})
    rest = {"category_id": 1, "bbox": [0, 0, 4, 4], "score": 0.5}
    file = tmp_path / "results.json"
    file.write_text(json.dumps([{"image_id": image, **rest} for image in (2, 10, "a")]))
    assert read_results(file, truth).image_index.tolist() == [0, 1, 2]
    file.write_text(json.dumps([{"image_id": image, **rest} for image in (2, 3)]))  # ids of the labels
    assert read_results(file, truth).image_index.tolist() == [1, 2]
    file.write_text(json.dumps([{"image_id": image, **rest} for image in (3, "a")]))
    with pytest.raises(InputError, match="`image_id` '3', which the annotations do not have"):
        read_results(file, truth)
