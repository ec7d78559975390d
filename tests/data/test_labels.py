"""Labels of COCO and LVIS files: the arrays are what is in the file, and a fault is named by file and entry."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logn.data.class_counts import ClassCounts
from logn.data.dataset import DetectionDataset
from logn.data.labels import Labels
from logn.errors import InputError
from logn.matching.ground_truth import load_ground_truth

IMAGES, CATEGORIES = (7, 3, 2**40), (5, 1)
OUTLINES = [[[1.5, 2, 3, 4, 5, 6]], {"size": [2, 2], "counts": "04"}, []]
NUMBERS = st.one_of(st.integers(-1000, 1000), st.floats(-1e6, 1e6))
OBJECTS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2**60) | st.text(),
        "image_id": st.sampled_from(IMAGES),
        "category_id": st.sampled_from(CATEGORIES),
        "bbox": st.tuples(NUMBERS, NUMBERS, NUMBERS.map(abs), NUMBERS.map(abs)).map(list),
        "segmentation": st.sampled_from(OUTLINES),
    },
    optional={"iscrowd": st.sampled_from([0, 1, True, None]), "area": st.floats(0, 1e6) | st.none()},
)


def content_of(objects):
    images = [{"id": number, "file_name": f"{number}.png", "height": 9, "width": 8} for number in IMAGES]
    categories = [{"id": number, "name": f"class {number} é"} for number in CATEGORIES]
    return {"info": {"year": 2026}, "images": images, "categories": categories, "annotations": objects, "licenses": [1]}


def write(folder, content, **options):
    path = folder / "a.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content, **options), encoding="utf-8")
    return path


@given(st.lists(OBJECTS, max_size=12), st.booleans())
def test_arrays_are_those_of_the_parsed_file(tmp_path_factory, objects, ascii_only):
    path = write(tmp_path_factory.mktemp("labels"), content_of(objects), ensure_ascii=ascii_only)
    outlined = Labels.load(path, outlines=True)
    for labels in (outlined, Labels.load(path), Labels.load(content_of(objects))):
        assert labels.image_ids.tolist() == list(IMAGES)
        assert labels.class_names == ("class 1 é", "class 5 é")
        assert labels.image_ids[labels.image_index].tolist() == [entry["image_id"] for entry in objects]
        assert labels.category_ids[labels.classes].tolist() == [entry["category_id"] for entry in objects]
        assert labels.boxes.tolist() == [[float(value) for value in entry["bbox"]] for entry in objects]
        assert labels.crowd.tolist() == [bool(entry.get("iscrowd")) for entry in objects]
        areas = [entry.get("area") for entry in objects]
        boxes = [entry["bbox"][2] * entry["bbox"][3] for entry in objects]
        assert labels.areas.tolist() == [box if area is None else area for area, box in zip(areas, boxes, strict=True)]
    assert Labels.load(path).outlines is None
    assert [json.loads(bytes(outline)) for outline in outlined.outlines or ()] == [
        entry["segmentation"] for entry in objects
    ]


CUP = {"image_id": 7, "category_id": 5, "bbox": [1, 2, 3, 4]}


def test_what_other_parsers_read_is_read(tmp_path):
    """A byte order mark, another encoding, NaN in a field that nobody reads, and arrays in content."""
    text = json.dumps(content_of([{**CUP, "score": float("nan")}]))
    path = tmp_path / "a.json"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path.write_bytes(text.encode(encoding))
        assert Labels.load(path).boxes.tolist() == [[1, 2, 3, 4]]
    arrays = {"image_id": np.int64(7), "category_id": 5, "bbox": np.array([1, 2, 3, 4])}
    assert Labels.load(content_of([arrays])).boxes.tolist() == [[1, 2, 3, 4]]
    without_area = Labels.load(content_of([CUP | {"area": float("nan")}]))
    assert without_area.areas.tolist() == [12]


FAULTS = {
    "no object": ({"annotations": [7]}, r"annotations\[0\]"),
    "a list of another kind": ({"images": {"a": 1}}, "images"),
    "no id": ({"categories": [{"name": "cup"}]}, "`id`"),
    "text for a number": ({"images": [{"id": "7", "file_name": "a", "height": 2, "width": 2}]}, r"images\[0\].id"),
    "a truth value for a number": ({"categories": [{"id": True}]}, r"categories\[0\].id"),
    "no category": ({"categories": []}, "`categories`"),
    "no image": ({"images": []}, "`images`"),
    "category twice": ({"categories": [{"id": 5}, {"id": 5}]}, "category 5 twice"),
    "image twice": ({"images": content_of([])["images"] * 2}, "image .* twice"),
    "a number beyond 64 bits": ({"categories": [{"id": 2**70}]}, "`a.json`|a.json"),
    "no box": ({"annotations": [{"id": 3, "image_id": 7, "category_id": 5}]}, "`bbox`"),
    "three numbers": ({"annotations": [CUP | {"bbox": [1, 1, 2]}]}, r"annotations\[0\].bbox"),
    "no number": ({"annotations": [CUP | {"bbox": ["1", 2, 3, 4]}]}, r"annotations\[0\].bbox"),
    "a truth value in a box": ({"annotations": [CUP | {"bbox": [1, 2, 3, True]}]}, r"annotations\[0\].bbox"),
    "a number beyond all floats": ({"annotations": [CUP | {"bbox": [1, 2, 3, 10**400]}]}, r"annotations\[0\].bbox"),
    "an infinite box": ({"annotations": [CUP | {"bbox": [1, 2, 3, float("inf")]}]}, r"annotations\[0\].bbox"),
    "a box that is not a number": ({"annotations": [CUP | {"bbox": [1, 2, 3, float("nan")]}]}, r"annotations\[0\]"),
    "negative width": ({"annotations": [CUP | {"bbox": [30, 20, -28, 17]}]}, "`bbox` of entry 0"),
    "a crowd in quotes": ({"annotations": [CUP | {"iscrowd": "0"}]}, "iscrowd"),
    "a crowd of two": ({"annotations": [CUP | {"iscrowd": 2}]}, "iscrowd"),
    "image not listed": ({"annotations": [CUP | {"image_id": 99}]}, "image 99"),
    "category not listed": ({"annotations": [CUP | {"category_id": 9}]}, "category 9"),
    "negatives in lists": ({"images": [{"id": 7, "neg_category_ids": [[1]]}]}, "neg_category_ids"),
    "negatives in quotes": ({"images": [{"id": 7, "neg_category_ids": ["1"]}]}, "neg_category_ids"),
}
READERS = {"training": DetectionDataset, "evaluation": load_ground_truth}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_all_who_read(tmp_path, fault, reader):
    change, words = FAULTS[fault]
    with pytest.raises(InputError, match=words) as caught:
        READERS[reader](write(tmp_path, {**content_of([]), **change}))
    assert "a.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"images": [1, 2', "{} []", "[" * 100_000, None])
@pytest.mark.parametrize("read", [Labels.load, ClassCounts.load])
def test_files_that_are_no_labels_are_named(tmp_path, text, read):
    path = tmp_path / "a.json" if text is None else write(tmp_path, text)
    if text == "[1, 2]" and read == ClassCounts.load:
        return  # a list of counts
    with pytest.raises(InputError, match=r"a\.json"):
        read(path)
