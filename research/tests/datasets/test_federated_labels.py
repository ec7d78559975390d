"""Federated labels are part of the exhaustive ones they are drawn from, the same by seed, and evaluate as promised."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logn_research.datasets.federated_labels import federate, federate_file, summarise

from logn.cli.main import execute
from logn.errors import InputError
from logn.matching.labels import load_ground_truth
from logn.measure.detection.metrics import evaluate_detections
from logn.predictions.detections import Detections

IMAGES, CATEGORIES = (3, 1, 8, 20, 21, 30), (2, 7, 9)


def content(pairs, **extra):
    entries = enumerate(pairs, start=1)
    return {
        "images": [{"id": image, "height": 40, "width": 40} for image in IMAGES],
        "categories": [{"id": category, "name": f"class {category}", "frequency": "r"} for category in CATEGORIES],
        "annotations": [
            {"id": number, "image_id": image, "category_id": category, "bbox": [0, 0, 9, 9], "area": 81, **extra}
            for number, (image, category) in entries
        ],
    }


def negatives(federated):
    return {(image["id"], category) for image in federated["images"] for category in image["neg_category_ids"]}


PAIRS = st.lists(st.tuples(st.sampled_from(IMAGES), st.sampled_from(CATEGORIES)), max_size=12)


@given(PAIRS, st.integers(0, 7), st.integers(0, 5))
def test_each_class_is_verified_absent_where_it_is_absent(pairs, number, seed):
    exhaustive = content(pairs)
    federated = federate(exhaustive, number, seed=seed)
    assert federated["annotations"] == exhaustive["annotations"]
    found = negatives(federated)
    assert not found & set(pairs)
    for category in CATEGORIES:
        room = sum((image, category) not in pairs for image in IMAGES)
        assert sum(label == category for _, label in found) == min(number, room)


@given(PAIRS, st.integers(0, 6), st.integers(0, 3))
def test_fewer_negatives_are_part_of_more(pairs, number, seed):
    exhaustive = content(pairs)
    fewer, more = (federate(exhaustive, count, seed=seed) for count in (number, number + 1))
    assert negatives(fewer) <= negatives(more) <= negatives(federate(exhaustive, None, seed=seed))


def test_the_seed_decides_and_the_order_of_the_file_does_not():
    exhaustive = content([(3, 2), (8, 7)])
    turned = {**exhaustive, "images": exhaustive["images"][::-1], "categories": exhaustive["categories"][::-1]}
    assert negatives(federate(exhaustive, 2)) == negatives(federate(turned, 2))
    assert len({frozenset(negatives(federate(exhaustive, 2, seed=seed))) for seed in range(5)}) > 1


def test_the_images_of_a_class_do_not_depend_on_the_boxes_of_others():
    few, many = content([(3, 2)]), content([(3, 2), (1, 9), (8, 9), (20, 9)])
    of_first = [{pair for pair in negatives(federate(each, 2)) if pair[1] in (2, 7)} for each in (few, many)]
    assert of_first[0] == of_first[1]


def test_the_input_stays_as_it_was():
    exhaustive = content([(3, 2)])
    before = json.dumps(exhaustive)
    federate(exhaustive, 2)
    assert json.dumps(exhaustive) == before


def test_a_crowd_is_neither_a_box_nor_an_absence():
    exhaustive = content([(3, 2)], iscrowd=1)
    federated = federate(exhaustive, None)
    assert federated["annotations"] == []
    image = federated["images"][0]
    assert image["not_exhaustive_category_ids"] == [2]
    assert image["neg_category_ids"] == [7, 9]


def test_all_negatives_evaluate_as_the_exhaustive_file_and_none_hides_every_confusion(tmp_path):
    exhaustive = content([(3, 2), (1, 7)])
    # One detection on each image of each class: on most images a false alarm.
    image, label = (axis.ravel() for axis in np.indices((len(IMAGES), len(CATEGORIES))))
    scores = np.where(image == 4, 0.9, 0.5)
    box = np.tile([0, 0, 9, 9], (len(image), 1))
    found = Detections(
        *(np.asarray(c, t) for c, t in ((image, "i4"), (label, "i4"), (scores, "f4"), (box, "f4"), (image, "i4")))
    )
    source = tmp_path / "exhaustive.json"
    source.write_text(json.dumps(exhaustive))
    result = {}
    for number in (0, None):
        summary = federate_file(source, tmp_path / "federated.json", number)
        result[number] = evaluate_detections(found, load_ground_truth(tmp_path / "federated.json"))["AP"]
        assert summary.verified == pytest.approx(1 if number is None else 2 / 18)
    coco = evaluate_detections(found, load_ground_truth(exhaustive, style="coco"))["AP"]
    assert result[0] == pytest.approx(1.0)
    assert result[None] == pytest.approx(coco)
    assert coco < 0.6


def test_federated_input_is_refused():
    federated = federate(content([(3, 2)]), 1)
    with pytest.raises(InputError, match="`annotations` is not exhaustive: on image"):
        federate(federated, 1)
    exhaustive = federate(content([(3, 2)]), None)
    assert negatives(federate(exhaustive, 2)) == negatives(federate(content([(3, 2)]), 2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": []}, "lists no `images`"),
        ({"categories": [{"name": "cup"}]}, "Entry 0 of `categories` in `annotations` has no `id`"),
        ({"annotations": [{"image_id": 5, "category_id": 2}]}, "does not list image 5"),
        ({"annotations": [{"image_id": 3, "category_id": 4}]}, "does not list category 4"),
        ({"annotations": [{"image_id": [3], "category_id": 4}]}, r"`image_id` .* must be an integer, but is \[3\]"),
        (
            {"categories": [{"id": "2"}, {"id": 5}]},
            "`id` of entry 0 of `categories` .* must be an integer, but is the text '2'",
        ),
    ],
)
def test_bad_annotations_get_one_sentence(change, words):
    with pytest.raises(InputError, match=words):
        federate({**content([]), **change}, 1)


def test_command_writes_a_file_and_says_what_it_verifies(tmp_path, capsys):
    source, target = tmp_path / "coco.json", tmp_path / "federated.json"
    source.write_text(json.dumps(content([(3, 2)])))
    assert (
        execute(["data", "federate", str(source), "-o", str(target), "--negatives", "2", "--seed", "1", "--json"]) == 0
    )
    printed = json.loads(capsys.readouterr().out)
    written = json.loads(target.read_text())
    assert negatives(written) == negatives(federate(content([(3, 2)]), 2, seed=1))
    assert printed["verified_absent"] == 6
    assert printed["share_of_verified_pairs"] == pytest.approx(summarise(written).verified, abs=1e-4)
    assert execute(["data", "federate", str(source), "-o", str(target), "--negatives", "-1", "--overwrite"]) == 0
    assert len(negatives(json.loads(target.read_text()))) == 17
    capsys.readouterr()
    assert execute(["data", "federate", str(tmp_path / "none.json"), "-o", str(target)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
