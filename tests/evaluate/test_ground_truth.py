"""Annotations that do not fit are refused, and the sentence names the difference."""

import copy
import json

import numpy as np
import pytest

from logn.errors import InputError
from logn.evaluate.detection.ground_truth import (
    groups_of_classes,
    load_ground_truth,
    read_results,
    refuse_without_objects,
)

TOY = {
    "images": [
        {"id": 7, "neg_category_ids": [5], "not_exhaustive_category_ids": []},
        {"id": 3, "neg_category_ids": [], "not_exhaustive_category_ids": [2]},
    ],
    "categories": [{"id": 5, "name": "spoon", "frequency": "r"}, {"id": 2, "name": "cup", "frequency": "f"}],
    "annotations": [
        {
            "id": 1,
            "image_id": 3,
            "category_id": 2,
            "bbox": [1, 2, 3, 4],
            "area": 12,
            "segmentation": [[1, 2, 4, 2, 4, 6]],
        }
    ],
}


def changed(change):
    toy = copy.deepcopy(TOY)
    change(toy)
    return toy


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
    assert "segmentation" not in truth.dataset["annotations"][0]


def test_a_part_keeps_the_chosen_images_only():
    part = load_ground_truth(TOY).part(np.array([False, True]))
    assert part.image_ids.tolist() == [3]
    assert part.image_index.tolist() == [0]
    assert [image["id"] for image in part.dataset["images"]] == [3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda toy: toy["images"][1].pop("neg_category_ids"),
            r"`neg_category_ids` for the LVIS protocol, but image 3 has",
        ),
        (lambda toy: toy["images"][0].pop("not_exhaustive_category_ids"), r"`not_exhaustive_category_ids` .* image 7"),
        (
            lambda toy: toy["annotations"][0].update(category_id=9),
            "category 9 of annotation 1 is not listed",
        ),
        (lambda toy: toy["annotations"][0].pop("bbox"), r"`annotations` in .* to have `bbox`, but entry 0 has none"),
        (
            lambda toy: toy["annotations"][0].update(bbox="abc"),
            r"annotation 1 of .* four finite numbers, but got 'abc'",
        ),
        (lambda toy: toy["annotations"][0].update(bbox=[[1, 2], [3, 4]]), r"four finite numbers, but got \[\[1, 2\]"),
        (lambda toy: toy["annotations"][0].update(bbox=[1, 2, 3, 10**400]), "four finite numbers"),
        (lambda toy: toy["annotations"][0].update(bbox=[1, 2, 3]), r"four finite numbers, but got \[1, 2, 3\]"),
        (lambda toy: toy["annotations"][0].update(bbox=[1, 2, 3, float("nan")]), r"annotation 1 .* nan\]"),
        (lambda toy: toy["categories"][0].update(id="2"), r"`id` of every entry of `categories` .* but got '2'"),
        (lambda toy: toy["annotations"][0].update(category_id=[5]), r"`category_id` .* an integer, but got \[5\]"),
        (lambda toy: toy["images"][0].update(neg_category_ids=None), r"`neg_category_ids` .* but image 7 has none"),
        (lambda toy: toy["categories"].clear(), r"to list `categories`, but it lists none"),
    ],
)
def test_what_is_missing_is_named(change, message):
    with pytest.raises(InputError, match=message):
        load_ground_truth(changed(change))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"category_ids": [2, 5, 8]}, r"1 of them, category 8 for one, are not annotated"),
        ({"category_ids": [2]}, r"1 annotated ones, category 5 for one, are not predicted"),
        ({"num_classes": 3}, r"the 3 classes of the predictions, but it has 2"),
        ({"class_names": ["spoon", "fork"]}, r"the model has no cup, of which there are 1 objects"),
        ({"class_names": ["knife", "fork"]}, r"share no name: the model has knife, fork, the labels have cup, spoon"),
        ({"image_ids": [3, 4, 7]}, r"1 of them, image 4 for one, are not annotated\."),
        ({"image_ids": [3]}, r"image 7 for one, are not predicted; only_predicted=True leaves the others out"),
        ({"style": "voc"}, r'`style` to be "auto", "lvis" or "coco", but got \'voc\''),
    ],
)
def test_other_classes_or_images_than_predicted_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        load_ground_truth(TOY, **given)


def test_areas_are_those_of_the_annotations_or_of_the_boxes():
    assert load_ground_truth(changed(lambda toy: toy["annotations"][0].update(area=5))).areas.tolist() == [5]
    assert load_ground_truth(changed(lambda toy: toy["annotations"][0].pop("area"))).areas.tolist() == [12]
    with pytest.raises(InputError, match="`area` of annotation 1 of `annotations` to be a number, but got 'large'"):
        load_ground_truth(changed(lambda toy: toy["annotations"][0].update(area="large")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "a JSON list of COCO results, but it is not"),
        ("[3]", "a JSON list of COCO results, but it is not"),
        ('[{"image_id": 3}]', "to have bbox, category_id, image_id, score; entry 0 lacks one"),
        ('[{"image_id": 4, "category_id": 2, "bbox": [1, 1, 1, 1], "score": 1}]', "`image_id` .* but 4 is not"),
        ('[{"image_id": 3, "category_id": 9, "bbox": [1, 1, 1, 1], "score": 1}]', "`category_id` .* but 9 is not"),
        ('[{"image_id": 3, "category_id": 2, "bbox": [1, 1, 1], "score": 1}]', "`bbox` .* four finite numbers"),
        ('[{"image_id": 3, "category_id": 2, "bbox": [1, 1, 1, 1], "score": null}]', "`score` .* a finite number"),
    ],
)
def test_results_that_do_not_fit_are_refused(tmp_path, content, message):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(InputError, match=message):
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


def test_annotations_without_objects_are_refused():
    with pytest.raises(InputError, match="`annotations` to have objects in the evaluated images, but there are none"):
        refuse_without_objects(load_ground_truth({**TOY, "annotations": []}))


def test_a_file_that_is_no_json_is_refused(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"images": [')
    with pytest.raises(InputError, match=r"a\.json"):
        load_ground_truth(path)
    with pytest.raises(InputError, match="there is none"):
        load_ground_truth(tmp_path / "b.json")


def test_lvis_annotations_need_the_frequency_or_counts():
    truth = load_ground_truth(changed(lambda toy: toy["categories"][0].pop("frequency")))
    with pytest.raises(InputError, match=r"`frequency` \(r, c or f\) for the LVIS protocol, but category 5 has none"):
        groups_of_classes(truth)
    assert groups_of_classes(truth, [500, 2])[0].tolist() == ["f", "r"]


def test_counts_of_another_number_of_classes_are_refused():
    with pytest.raises(InputError, match=r"each of the 2 classes, but got shape \(3,\)"):
        groups_of_classes(load_ground_truth(TOY), [1, 2, 3])
