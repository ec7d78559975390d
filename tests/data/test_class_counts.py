"""Class counts and fractal dimensions from every kind of file that people keep them in."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.data.class_counts import ClassCounts, frequency_groups
from logn.data.class_tables import read_class_names
from logn.data.fractal_dimensions import read_dimensions
from logn.errors import InputError, LogNWarning


def write(path, content):
    """Content in bytes or text as it is, else as JSON."""
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def counted_whole(path):
    """The counts of an annotation file that `json` reads in one go, with a set for each class."""
    content = json.loads(path.read_text())
    categories = sorted(content["categories"], key=lambda category: category["id"])
    objects = [item for item in content.get("annotations") or () if not item.get("iscrowd")]
    by_class = [[item["image_id"] for item in objects if item["category_id"] == entry["id"]] for entry in categories]
    images, instances = [len(set(found)) for found in by_class], [len(found) for found in by_class]
    if not objects:
        images = [category["image_count"] for category in categories]
        instances = [category.get("instance_count", category["image_count"]) for category in categories]
    names = tuple(category["name"] for category in categories)
    return names, images, instances, len(content.get("images") or ()) or None


def counted(path):
    counts = ClassCounts.load(path)
    return counts.names, counts.image_counts.tolist(), counts.instance_counts.tolist(), counts.num_images


OUTLINES = ([[1.5, 2, 3, 4, 5, 6]], {"size": [2, 2], "counts": "04"}, {"size": [2, 2], "counts": [0, 4]}, [])
PAIRS = [(7, 4), (7, 4), (9, 4), (9, 30), (11, 30)]
LVIS = {
    "info": {"year": 2020},
    "images": [{"id": image, "neg_category_ids": [3]} for image in (7, 9, 11)],
    "categories": [
        {"id": 30, "name": "saucer", "image_count": 5, "instance_count": 8},
        {"id": 4, "name": "caf\u00e9", "image_count": 3},
        {"id": 12, "name": "fork", "image_count": 0, "instance_count": 0},
    ],
    "annotations": [
        {"image_id": image, "category_id": label, "iscrowd": int(index == 4), "id": index}
        | {"segmentation": OUTLINES[index % len(OUTLINES)], "bbox": [1, 2, 3, 4]}
        for index, (image, label) in enumerate(PAIRS)
    ],
}
LAYOUTS = {
    "as LVIS writes it": LVIS,
    "annotations first": {name: LVIS[name] for name in ("annotations", "categories", "images")},
    "annotations last": {name: LVIS[name] for name in ("images", "info", "categories", "annotations")},
    "no images": {name: LVIS[name] for name in ("annotations", "categories")},
    "empty images": {**LVIS, "images": []},
    "only groups": {**LVIS, "annotations": [{**item, "iscrowd": 1} for item in LVIS["annotations"]]},
    "no annotations": {name: LVIS[name] for name in ("images", "categories")},
    "empty annotations": {**LVIS, "annotations": []},
}


@pytest.mark.parametrize("form", [{"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_streamed_annotations_are_counted_as_those_read_whole(tmp_path, layout, form):
    path = write(tmp_path / "lvis.json", json.dumps(LAYOUTS[layout], **form))
    assert counted(path) == counted_whole(path)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=60))
def test_any_annotations_are_counted_as_those_read_whole(tmp_path_factory, pairs):
    content = {
        "images": [{"id": image} for image in range(1, 10)],
        "categories": [{"id": label, "name": str(label)} for label in range(1, 6)],
        "annotations": [{"category_id": label, "image_id": image} for label, image in pairs],
    }
    path = write(tmp_path_factory.mktemp("coco") / "a.json", content)
    assert counted(path) == counted_whole(path)


def test_memory_does_not_grow_with_the_outlines(tmp_path):
    """Read whole, LVIS's gigabyte of outlines took several gigabytes to count."""
    outline = json.dumps({"size": [480, 640], "counts": "0" * 500_000})
    entries = (f'{{"image_id": {index}, "segmentation": {outline}, "category_id": 1}}' for index in range(81))
    text = f'{{"categories": [{{"id": 1, "name": "cup"}}], "annotations": [{", ".join(entries)}]}}'
    path = write(tmp_path / "large.json", text)
    assert len(text) > 40e6
    tracemalloc.start()
    try:
        counts = ClassCounts.load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts.image_counts.tolist() == [81]
    assert peak < len(text) / 2


BOTH, ONE, NAMES = ([60, 20], [90, 40]), ([60, 20], [60, 20]), ("cup", "spoon")


@pytest.mark.parametrize(
    ("name", "content", "names", "expected"),
    [
        ("x.csv", "id,name,image_count,instance_count\n2,spoon,20,40\n1,cup,60,90\n", NAMES, BOTH),
        ("x.csv", "\ufeffName, Image_Count , instance_count\ncup,60,90\nspoon,20,40\n", NAMES, BOTH),
        ("x.csv", "class,count,instance_count\ncup,60,90\nspoon,20,40\n", NAMES, BOTH),
        ("x.csv", "name,count\ncup,60\nspoon,20\n", NAMES, ONE),
        ("x.csv", "name,instance_count\ncup,60\nspoon,20\n", NAMES, ONE),
        ("x.csv", "name,share\ncup,60,\nspoon,20,,\n", NAMES, ONE),  # empty fields at the end of a line are no fault
        ("x.json", {"cup": 60, "segmentation": 20}, ("cup", "segmentation"), ONE),  # called as a section of annotations
        ("x.json", "[60, 20]", None, ONE),
        ("x.json", b"\xef\xbb\xbf[60, 20]", None, ONE),  # a byte order mark, as Windows editors write it
    ],
)
def test_tables_lists_and_arrays(tmp_path, name, content, names, expected):
    assert counted(write(tmp_path / name, content)) == (names, *expected, None)


def test_a_byte_order_mark_is_no_part_of_a_class_name(tmp_path):
    for name, content in (("x.txt", b"cup\nspoon\n"), ("x.json", b'["cup", "spoon"]')):
        assert read_class_names(write(tmp_path / name, b"\xef\xbb\xbf" + content), 2) == NAMES


def test_counts_are_put_in_the_order_of_the_model():
    named, plain = ClassCounts(np.array([60.0, 20, 1]), names=("cup", "spoon", "fork")), ClassCounts([5, 3])
    assert named.aligned_to(("fork", "cup")).image_counts.tolist() == [1, 60]
    words = "The counts have class names, but those of the model are unknown: .* 'cup' for the first .* 'fork' for the"
    with pytest.warns(LogNWarning, match=words):
        assert named.aligned_to(None) is named
    # A list has no names to go by, so its order is what is meant.
    assert plain.aligned_to(None) is plain
    assert plain.aligned_to(["dog", "cat"]) is plain
    with pytest.raises(InputError, match="'knife'"):
        named.aligned_to(("cup", "knife"))


def test_counts_cannot_be_changed_and_leave_their_input_alone():
    given_counts = np.array([3.0, 2.0])
    counts = ClassCounts(given_counts)
    with pytest.raises(ValueError, match="read-only"):
        counts.image_counts[0] = 1
    given_counts[0] = 5
    assert counts.image_counts.tolist() == [3, 2]


def test_lvis_groups():
    assert frequency_groups([0, 1, 10, 11, 100, 101, 9999]).tolist() == ["r", "r", "r", "c", "c", "f", "f"]
    assert frequency_groups([19, 20, 100], bounds=(19, 100)).tolist() == ["r", "c", "c"]


def coco(*annotations, **category):
    """Annotations as text, by default of one class with id 1."""
    return json.dumps({"categories": [{"id": 1, "name": "a"} | category], "annotations": annotations})


CUP = {"category_id": 1, "image_id": 1}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.csv", "name,image_count\ndog,7\ncat,1,000\n", "Line 3"),
        ("x.csv", "name,image_count\nrice, fried,7\n", "Line 2"),
        ("x.csv", "40\n500\n", "`image_count`"),
        ("x.csv", "name,frequency\ncup,r\n", "`image_count`"),
        ("x.csv", "name,count,count\na,1,9\nb,2,8\n", "`count` twice"),
        ("x.csv", "name,image_count\ncup,60\nspoon,many\n", "class 1"),
        ("x.csv", "name,image_count\n", "no classes"),
        ("x.csv", "name,image_count\ncup,-1\n", "class 0"),
        ("x.csv", "name,image_count\ncup,nan\n", "class 0"),
        ("x.csv", "id,name\n²,cup\n", "`image_count`"),
        ("x.csv", b"\x93NUMPY\xff\xfe", r"x\.csv"),
        ("x.json", '{"a": ', "x.json"),
        ("x.json", '"hello"', "list of counts"),
        ("x.json", '{"a": {"b": 1}}', "list of numbers"),
        ("x.json", "[]", "one number per class"),
        ("x.json", '{"cat": 5, "dog": 3, "cat": 50}', "'cat'"),
        ("x.json", '{"names": ["a", "b"], "image_counts": [1, 2]}', "counts"),
        ("x.json", coco([1, 2]), r"annotations\[0\]"),
        ("x.json", coco(CUP, CUP)[:-10], "x.json"),
        ("x.json", f"{coco(CUP)} []", "x.json"),
        ("x.json", '{"categories": [{"id": 1, "name": "a"}], "annotations": {"a": 1}}', "annotations"),
        ("x.json", '{"annotations": [{"image_id": 1}], "categories": [{"id": 1}]}', "category_id"),
        ("x.json", '{"categories": [{"name": "cup"}]}', "`id`"),
        ("x.json", '{"categories": [{"id": 1}], "annotations": [{"category_id": 1, "image_id": 1}]}', "`name`"),
        ("x.json", coco(), "no objects to count"),
        ("x.json", coco({"category_id": 2, "image_id": 1}), "category 2"),
        ("x.json", coco({"category_id": 1.5, "image_id": 1}), r"annotations\[0\].category_id"),
        ("x.json", coco({"category_id": 1, "image_id": 2**70}), "x.json"),
        ("x.json", coco(CUP).replace("[", '[{"id": 1, "name": "b"}, ', 1), "category 1 twice"),
        ("x.json", f"[1{'0' * 400}, 2]", "list of numbers"),
        ("x.json", f"[1{'0' * 5000}, 2]", "x.json"),
        ("x.json", "[" * 100_000, "x.json"),
        ("x.json", '{"categories": ' + "[" * 100_000, "x.json"),
        ("x.npy", "hello", r"x\.npy"),
        ("x.txt", "1 2 3", "one class only"),
        ("x.zip", "1 2 3", r"x\.zip"),
        ("x.json", None, "does not exist"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_files_are_refused_in_one_sentence_that_names_them(tmp_path, name, content, sentence):
    if content is not None:
        write(tmp_path / name, content)
    with pytest.raises(InputError, match=sentence) as caught:
        ClassCounts.load(tmp_path / name)
    assert name in str(caught.value)


# The worked example of FRACAL's reference: nine spread centres, four in a corner, two alone.
CENTRES = {
    1: [(0.1, 0.1), (0.9, 0.1), (0.1, 0.9), (0.9, 0.9), (0.5, 0.5), (0.3, 0.7), (0.7, 0.3), (0.5, 0.1), (0.1, 0.5)],
    2: [(0.10, 0.10), (0.12, 0.12), (0.14, 0.10), (0.60, 0.12)],
    3: [(0.2, 0.2), (0.4, 0.4)],
}


def test_annotations_give_the_worked_dimensions(tmp_path):
    width, height = 200, 100
    boxes = [
        {"category_id": label, "image_id": 5, "bbox": [x * width - 2, y * height - 3, 4, 6]}
        for label, centres in CENTRES.items()
        for x, y in centres
    ]
    # Spread out, so that they would show in the dimension of their class.
    crowds = [
        {"category_id": 3, "image_id": 5, "bbox": [x * width, y * height, 1, 1], "iscrowd": 1} for x, y in CENTRES[1]
    ]
    content = {
        "images": [{"id": 5, "width": width, "height": height}],
        "categories": [{"id": 3, "name": "c"}, {"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
        "annotations": [*boxes, *crowds],
    }
    path = write(tmp_path / "train.json", content)
    np.testing.assert_allclose(read_dimensions(path), [1.795877, 1.0, 1.0], atol=2e-6)
    np.testing.assert_allclose(read_dimensions(path, ["b", "a"]), [1.0, 1.795877], atol=2e-6)
    with pytest.raises(InputError, match=r"train\.json` has no `width` or `height`"):
        read_dimensions(write(path, content | {"images": [{"id": 5, "width": width, "height": 0}]}))


def test_tables_of_dimensions(tmp_path):
    path = write(tmp_path / "a.csv", "name,fractal_dimension\ncup,1.5\nspoon,1.2\n")
    assert read_dimensions(path).tolist() == [1.5, 1.2]
    assert read_dimensions(path, ["spoon"]).tolist() == [1.2]
    # Nothing to match by: the order of the file stays.
    assert read_dimensions(write(path, "fractal_dimension\n1.5\n1.2\n"), NAMES[::-1]).tolist() == [1.5, 1.2]
    for name, content, sentence in (
        ("x.csv", "name,count\ncup,1\n", "`fractal_dimension`"),
        ("x.json", '{"images": [{"id": 1}]}', "`categories`"),
        ("x.json", "[[1]]", r"x\.json"),
    ):
        with pytest.raises(InputError, match=sentence):
            read_dimensions(write(tmp_path / name, content))
    with pytest.raises(InputError, match=r"y\.csv` does not exist"):
        read_dimensions(tmp_path / "y.csv")
