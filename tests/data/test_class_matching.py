"""Classes are matched by name: order, case and spaces do not matter, and what is left out is said."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logn.data.class_counts import ClassCounts
from logn.data.class_names import match_classes, places_of
from logn.errors import InputError
from logn.matching.ground_truth import load_ground_truth
from logn.measure.compare import CompareSettings, compare
from logn.models.proposals import Proposals
from logn.predictions.store import Predictions, PredictionWriter, StoreHeader
from logn.statistics.head import Head

CLASSES = ("person", "traffic light", "cow", "cup", "fork", "tree")
NAMES = st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


@given(NAMES, st.randoms(use_true_random=False))
def test_any_order_and_any_part_is_matched(names, random):
    labels = random.sample(names, random.randint(1, len(names)))
    match = match_classes(names, labels)
    assert [match.model_names[place] for place in match.model_of_label] == labels
    assert [match.label_names[place] for place in match.label_of_model if place >= 0] == [
        name for name in names if name in labels
    ]
    assert set(match.only_in_model) == set(names) - set(labels)
    assert match.only_in_labels == ()
    assert match.identical == (names == labels)
    assert bool(match.describe()) == bool(match.only_in_model)


@given(NAMES, st.randoms(use_true_random=False))
def test_other_ways_to_write_a_name_are_the_same_name(names, random):
    ways = [str.upper, str.title, lambda name: f" {name} ", lambda name: name]
    written = [random.choice(ways)(name) for name in names]
    assert match_classes(names, written).identical
    assert match_classes(written, names[::-1]).label_of_model.tolist() == list(range(len(names)))[::-1]


def test_spaces_hyphens_and_underscores_are_the_same_and_the_very_same_name_comes_first():
    assert match_classes(["traffic light", "hot dog"], ["Hot_Dog", "traffic-light"]).label_of_model.tolist() == [1, 0]
    assert match_classes(["bow", "Bow"], ["Bow", "bow"]).label_of_model.tolist() == [1, 0]
    assert match_classes(["Bow"], ["bow", "Bow"]).label_of_model.tolist() == [1]


@pytest.mark.parametrize(
    ("model", "labels", "message"),
    [
        (["cat", "dog"], ["Cat", "CAT", "dog"], "'Cat' and 'CAT' of the labels differ only in case"),
        (["Cat", "CAT", "dog"], ["cat", "dog"], "'Cat' and 'CAT' of the model differ only in case"),
        (["cat", "dog"], ["cat", "cat", "dog"], "2 classes of the labels are called 'cat'"),
        (["cat"], ["dog"], "share no class name: the model has cat, the labels have dog"),
    ],
)
def test_what_could_be_two_classes_or_none_is_refused(model, labels, message):
    with pytest.raises(InputError, match=message):
        match_classes(model, labels)


def test_counts_are_matched_the_same_way():
    counts = ClassCounts([3, 5], names=["Traffic_Light", "cow"]).aligned_to(["cow", "traffic light"])
    assert counts.image_counts.tolist() == [5, 3]
    with pytest.raises(InputError, match="The counts do not have the class 'tree'"):
        counts.aligned_to(["COW", "tree"])


SIDE = 100
SETTINGS = CompareSettings(num_bootstrap=20, errors=True)
POINT = CompareSettings(num_bootstrap=0, errors=True)
METHODS = {"none": None, "norcal": "norcal"}
COUNTS = ClassCounts([900, 90, 40, 9, 5, 2], names=CLASSES)


def made_store(folder, category_ids=None):
    """A store with a softmax, and its labels as COCO content in the classes of the model."""
    rng = np.random.default_rng(5)
    columns = len(CLASSES) + 1
    header = StoreHeader(
        Head.of_classes(CLASSES, columns, background=0, activation="softmax"),
        dtype="float32",
        category_ids=category_ids,
    )
    categories = [{"id": place + 1, "name": name} for place, name in enumerate(CLASSES)]
    content = {"images": [], "annotations": [], "categories": categories}
    with PredictionWriter(folder / "store", header) as writer:
        for image in range(1, 13):
            corner, size = rng.uniform(0, 60, (3, 2)), rng.uniform(15, 40, (3, 2))
            labels = rng.integers(0, len(CLASSES), 3)
            logits = rng.normal(0, 1, (9, columns))
            logits[np.arange(9), np.tile(labels, 3) + 1] += 2
            proposals = np.tile(np.hstack([corner, corner + size]), (3, 1)) + rng.normal(0, 3, (9, 4))
            writer.append(image, Proposals(proposals.astype(np.float32), logits.astype(np.float32), SIDE, SIDE))
            content["images"].append({"id": image, "width": SIDE, "height": SIDE})
            for label, box in zip(labels.tolist(), np.hstack([corner, size]).tolist(), strict=True):
                entry = {"image_id": image, "category_id": label + 1, "bbox": box, "area": box[2] * box[3]}
                content["annotations"].append({"id": len(content["annotations"]) + 1, **entry})
    return Predictions(folder / "store"), content


def renumbered(content, order):
    """The same labels with their classes in another order and with other ids; classes not in `order` are dropped."""
    new_id = {old + 1: 10 * (place + 1) for place, old in enumerate(order)}
    made = copy.deepcopy(content)
    made["categories"] = [{"id": new_id[old + 1], "name": CLASSES[old].upper()} for old in order]
    kept = [entry for entry in made["annotations"] if entry["category_id"] in new_id]
    made["annotations"] = [{**entry, "category_id": new_id[entry["category_id"]]} for entry in kept]
    for image in made["images"]:
        for field in {"neg_category_ids", "not_exhaustive_category_ids"} & image.keys():
            image[field] = [new_id[number] for number in image[field]]
    return made


def same(first, second):
    for one, other in zip(first.rows, second.rows, strict=True):
        assert dict(one.values) == pytest.approx(dict(other.values), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("category_ids", "style"), [(None, "coco"), ((1, 2, 3, 4, 5, 6), "coco"), (None, "lvis")], ids=str
)
def test_labels_in_another_order_give_the_same_numbers(tmp_path, category_ids, style):
    store, content = made_store(tmp_path, category_ids)
    if style == "lvis":
        for image in content["images"]:
            image |= {"neg_category_ids": [1 + image["id"] % 6], "not_exhaustive_category_ids": [1 + image["id"] % 5]}
    expected = compare(store, content, METHODS, settings=SETTINGS, counts=COUNTS)
    found = compare(store, renumbered(content, [4, 0, 5, 2, 1, 3]), METHODS, settings=SETTINGS, counts=COUNTS)
    same(found, expected)
    assert [one.name for one in found.classes] == list(CLASSES)
    assert expected.settings.style == found.settings.style == style


def test_classes_that_the_labels_lack_are_left_out_and_that_is_said(tmp_path):
    store, content = made_store(tmp_path)
    found = compare(store, renumbered(content, [0, 2, 3]), METHODS, settings=SETTINGS, counts=COUNTS)
    note = "3 of the 6 classes of the model are in the labels and measured; 3 are not (traffic light, fork, tree)."
    assert note in found.notes
    per_class = found.rows[0].per_class
    assert np.isnan(per_class[[1, 4, 5]]).all()
    whole = compare(store, content, METHODS, settings=SETTINGS, counts=COUNTS)
    np.testing.assert_allclose(per_class[[0, 2, 3]], whole.rows[0].per_class[[0, 2, 3]], atol=1e-12)
    assert found.rows[0]["AP"] == pytest.approx(np.nanmean(per_class), abs=1e-12)


def test_detections_of_left_out_classes_are_neither_right_nor_wrong(tmp_path):
    """What remains equals a ground truth in which these classes were never looked for."""
    store, content = made_store(tmp_path)
    part = renumbered(content, [0, 2, 3])
    truth = load_ground_truth(part, class_names=CLASSES)
    assert truth.verified is not None
    assert truth.verified.tolist() == [[True, False, True, True, False, False]] * len(content["images"])
    federated = copy.deepcopy(content)
    federated["annotations"] = [item for item in federated["annotations"] if item["category_id"] in (1, 3, 4)]
    for image in federated["images"]:
        image |= {"neg_category_ids": [1, 3, 4], "not_exhaustive_category_ids": []}
    ours = compare(store, part, {}, settings=POINT).rows[0]
    theirs = compare(store, federated, {}, settings=POINT, counts=COUNTS).rows[0]
    for name in ("AP", "AP50", "AP-Pool", "ECE"):
        assert ours[name] == pytest.approx(theirs[name], abs=1e-12), name
    assert ours.errors.gains == pytest.approx(theirs.errors.gains, abs=1e-12)
    assert ours.errors.counts == theirs.errors.counts


def test_classes_that_the_model_lacks_are_refused_unless_allowed(tmp_path):
    store, content = made_store(tmp_path)
    content["categories"] += [{"id": 70, "name": "helmet"}, {"id": 71, "name": "never seen"}]
    compare(store, content, {}, settings=SETTINGS)  # they have no objects: nothing is lost
    content["annotations"].append({**content["annotations"][0], "id": 999, "category_id": 70})
    message = (
        r"1 objects of classes that the model does not have: helmet\. Take .* \(in Python allow_missing_classes=True"
    )
    with pytest.raises(InputError, match=message):
        compare(store, content, {}, settings=SETTINGS)
    allowed = CompareSettings(num_bootstrap=0, allow_missing_classes=True)
    found = compare(store, content, {}, settings=allowed)
    assert "2 classes of the labels (helmet, never seen) are not in the model and left out." in found.notes
    content["annotations"].pop()
    same(found, compare(store, content, {}, settings=CompareSettings(num_bootstrap=0)))


def test_many_classes_are_matched_in_linear_time():
    """They took 18 seconds."""
    names = [f"class {number}" for number in range(20_000)]
    assert match_classes(names, names[::-1]).label_of_model[0] == len(names) - 1
    assert places_of(names[:2], names).tolist() == [0, 1]
    with pytest.raises(InputError, match="'class 7'"):
        match_classes(names, [*names, "class 7"])
