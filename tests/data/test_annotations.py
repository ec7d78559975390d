"""One reader of annotations: what it gives is what is in the file, and a fault has one sentence for all who read."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logn.data.annotations import read_annotations
from logn.data.dataset import DetectionDataset
from logn.errors import InputError
from logn.matching.labels import load_ground_truth

IMAGES, CATEGORIES = (7, 3, 2**40), (5, 1)
OUTLINES = [[[1.5, 2, 3, 4, 5, 6]], {"size": [2, 2], "counts": "04"}, []]
NUMBERS = st.one_of(st.integers(-1000, 1000), st.floats(-1e6, 1e6))
OBJECTS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2**60),
        "image_id": st.sampled_from(IMAGES),
        "category_id": st.sampled_from(CATEGORIES),
        "bbox": st.tuples(NUMBERS, NUMBERS, NUMBERS.map(abs), NUMBERS.map(abs)).map(list),
        "segmentation": st.sampled_from(OUTLINES),
    },
    optional={"iscrowd": st.sampled_from([0, 1])},
)


def content_of(objects):
    images = [{"id": number, "file_name": f"{number}.png", "height": 9, "width": 8} for number in IMAGES]
    categories = [{"id": number, "name": f"class {number} é"} for number in CATEGORIES]
    return {"info": {"year": 2026}, "images": images, "categories": categories, "annotations": objects, "licenses": [1]}


@given(st.lists(OBJECTS, max_size=12))
def test_columns_are_those_of_the_parsed_file(tmp_path_factory, objects):
    path = tmp_path_factory.mktemp("annotations") / "a.json"
    path.write_text(json.dumps(content_of(objects), ensure_ascii=False), encoding="utf-8")
    whole = read_annotations(path, entries=True, outlines=True)
    assert whole.entries == objects
    assert whole.rest == {"licenses": [1]}
    for found in (whole, read_annotations(path), read_annotations(content_of(objects))):
        assert found.images == content_of([])["images"]
        assert found.categories == content_of([])["categories"]
        for column, field in (("ids", "id"), ("image_ids", "image_id"), ("category_ids", "category_id")):
            assert getattr(found, column).tolist() == [entry[field] for entry in objects]
        assert found.boxes.tolist() == [[float(value) for value in entry["bbox"]] for entry in objects]
        assert found.crowd.tolist() == [entry.get("iscrowd", 0) == 1 for entry in objects]
        assert found.positions("image", IMAGES).tolist() == [IMAGES.index(entry["image_id"]) for entry in objects]
    for (start, stop), entry in zip(whole.places.tolist(), objects, strict=True):
        assert json.loads(path.read_bytes()[start:stop]) == entry


def test_entries_come_without_outlines_unless_they_are_asked_for(tmp_path):
    cups = [{"image_id": 7, "category_id": 5, "bbox": [1, 2, 3, 4], "segmentation": outline} for outline in OUTLINES]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content_of(cups)))
    plain = read_annotations(path, entries=True)
    assert plain.entries == [{key: cup[key] for key in ("image_id", "category_id", "bbox")} for cup in cups]
    assert plain.ids.tolist() == [-1, -1, -1]
    assert read_annotations(path).entries == []
    mine = content_of(cups)
    read_annotations(mine, entries=True)
    assert mine == content_of(cups)


READERS = {
    "training": DetectionDataset,
    "evaluation": lambda path: load_ground_truth(path, style="coco"),
}
FAULTS = {
    "no object": ({"annotations": [7]}, "Entry 0 of `annotations` in `{}` must be an object, but is 7."),
    "no id": ({"categories": [{"name": "cup"}]}, "Entry 0 of `categories` in `{}` has no `id`."),
    "text for a number": (
        {"images": [{"id": "7", "file_name": "a", "height": 2, "width": 2}]},
        "`id` of entry 0 of `images` in `{}` must be an integer, but is the text '7': write it without quotes.",
    ),
    "a truth value for a number": (
        {"categories": [{"id": True}]},
        "`id` of entry 0 of `categories` in `{}` must be an integer, but is True.",
    ),
    "no category": (
        {"categories": []},
        "`{}` lists no `categories`: pass annotations in COCO's or LVIS's format.",
    ),
    "category twice": ({"categories": [{"id": 5}, {"id": 5}]}, "`{}` lists category 5 twice."),
    "a number beyond 64 bits": (
        {"categories": [{"id": 2**70}]},
        "`id` of entry 0 of `categories` in `{}` must be an integer, but is 1180591620717411303424.",
    ),
    "no box": (
        {"annotations": [{"id": 3, "image_id": 7, "category_id": 5}]},
        "Entry 0 of `annotations` in `{}` has no `bbox`.",
    ),
    "box that is none": (
        {"annotations": [{"id": 3, "image_id": 7, "category_id": 5, "bbox": [1, 1, 2]}]},
        "`bbox` of annotation 3 of `{}` must be four finite numbers, but is [1, 1, 2].",
    ),
    "category not listed": (
        {"annotations": [{"id": 3, "image_id": 7, "category_id": 9, "bbox": [0, 0, 2, 2]}]},
        "`{}` does not list category 9 of annotation 3 (1 such annotations).",
    ),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_one_sentence_for_all_who_read(tmp_path, fault, reader):
    change, sentence = FAULTS[fault]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**content_of([]), **change}))
    with pytest.raises(InputError) as caught:
        READERS[reader](path)
    assert str(caught.value) == sentence.format(path)


def test_content_that_lists_nothing_is_refused():
    with pytest.raises(InputError, match=r"`images` of `here` must be a list, but is \{'a': 1\}\."):
        read_annotations({"images": {"a": 1}}, name="here")


BOXES = [[1, 2, 3, 10**400], [1, 2, 3, float("inf")], ["1", 2, 3, 4], [1, 2, 3], [1, 2, 3, True], "abcd", None]


@pytest.mark.parametrize("box", BOXES, ids=lambda box: str(box)[:20])
def test_boxes_are_four_finite_numbers(box):
    with pytest.raises(InputError, match="`bbox` of entry 0 of `annotations` in `a` must be four finite numbers"):
        read_annotations(content_of([{"image_id": 7, "category_id": 5, "bbox": box}]), name="a")


def test_arrays_will_do_as_boxes():
    cup = {"image_id": np.int64(7), "category_id": 5, "bbox": np.array([1, 2, 3, 4])}
    assert read_annotations(content_of([cup])).boxes.tolist() == [[1, 2, 3, 4]]
