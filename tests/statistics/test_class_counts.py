"""Class counts from every kind of file that people keep them in."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.classes.counts import ClassCounts, frequency_groups
from logn.classes.tables import read_class_names
from logn.errors import InputError, LogNWarning

COCO = {
    "images": [{"id": 7}, {"id": 9}, {"id": 11}],
    "categories": [{"id": 30, "name": "saucer"}, {"id": 4, "name": "cup"}, {"id": 12, "name": "fork"}],
    "annotations": [
        {"image_id": 7, "category_id": 4},
        {"image_id": 7, "category_id": 4},
        {"image_id": 9, "category_id": 4},
        {"image_id": 9, "category_id": 30},
        {"image_id": 11, "category_id": 30, "iscrowd": 1},
    ],
}


def _json(path, content):
    path.write_text(json.dumps(content))
    return path


def test_coco_annotations_are_counted_in_the_order_of_the_ids(tmp_path):
    counts = ClassCounts.load(_json(tmp_path / "coco.json", COCO))
    assert counts.names == ("cup", "fork", "saucer")
    assert counts.image_counts.tolist() == [2, 0, 1]
    assert counts.instance_counts.tolist() == [3, 0, 1]
    assert counts.num_images == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "name,image_count\ndog,7\ncat,1,000\n",
            r"line 3 to have 2 fields like the first line, but got 3 \('cat,1,000'\)",
        ),
        ("name,image_count\nrice, fried,7\n", "put names with a comma in quotes"),
        ("40\n500\n", "the first line must name the columns"),
    ],
)
def test_a_line_with_too_many_fields_is_refused(tmp_path, text, words):
    (tmp_path / "counts.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        ClassCounts.load(tmp_path / "counts.csv")


def test_empty_fields_at_the_end_of_a_line_are_no_fault(tmp_path):
    (tmp_path / "counts.csv").write_text("name,image_count\ndog,7,\ncat,1,,\n")
    assert ClassCounts.load(tmp_path / "counts.csv").image_counts.tolist() == [7.0, 1.0]


@pytest.mark.parametrize(
    "text",
    [
        '{"cat": 5, "dog": 3, "cat": 50}',
        '{"image_counts": [5, 3], "image_counts": [1, 2]}',
        '{"categories": [{"id": 1, "id": 2, "name": "cat", "image_count": 4}]}',
        '{"annotations": [], "categories": [{"id": 1, "name": "cat", "image_count": 4}], "annotations": []}',
    ],
)
def test_keys_that_come_twice_are_refused(tmp_path, text):
    (tmp_path / "counts.json").write_text(text)
    with pytest.raises(InputError, match=r"the key '.*' comes twice"):
        ClassCounts.load(tmp_path / "counts.json")
    with pytest.raises(InputError):
        read_class_names(tmp_path / "counts.json", 2)


def test_named_counts_warn_where_the_model_has_no_names():
    named, plain = ClassCounts([5, 3], names=("cat", "dog")), ClassCounts([5, 3])
    words = (
        "The counts have class names, but those of the model are unknown: .* 'cat' for the first .* 'dog' for the last"
    )
    with pytest.warns(LogNWarning, match=words):
        assert named.aligned_to(None) is named
    # A list has no names to go by, so its order is what is meant.
    assert plain.aligned_to(None) is plain
    assert plain.aligned_to(["dog", "cat"]) is plain
    assert named.aligned_to(["dog", "cat"]).image_counts.tolist() == [3.0, 5.0]


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


OUTLINES = ([[1.5, 2, 3, 4, 5, 6]], {"size": [2, 2], "counts": "04"}, {"size": [2, 2], "counts": [0, 4]}, [])
LVIS = {
    "info": {"year": 2020},
    "images": [{"id": image, "neg_category_ids": [3]} for image in (7, 9, 11)],
    "categories": [
        {"id": 30, "name": "saucer", "image_count": 5, "instance_count": 8},
        {"id": 4, "name": "caf\u00e9", "image_count": 3},
        {"id": 12, "name": "fork", "image_count": 0, "instance_count": 0},
    ],
    "annotations": [
        {**item, "id": index, "segmentation": OUTLINES[index % len(OUTLINES)], "bbox": [1, 2, 3, 4]}
        for index, item in enumerate(COCO["annotations"])
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
    path = tmp_path / "lvis.json"
    path.write_text(json.dumps(LAYOUTS[layout], **form), encoding="utf-8")
    counts = ClassCounts.load(path)
    found = (counts.names, counts.image_counts.tolist(), counts.instance_counts.tolist(), counts.num_images)
    assert found == counted_whole(path)


def test_memory_does_not_grow_with_the_outlines(tmp_path):
    """Read whole, LVIS's gigabyte of outlines took several gigabytes to count."""
    outline = json.dumps({"size": [480, 640], "counts": "0" * 500_000})
    entries = (f'{{"image_id": {index}, "segmentation": {outline}, "category_id": 1}}' for index in range(81))
    path = tmp_path / "large.json"
    path.write_text(f'{{"categories": [{{"id": 1, "name": "cup"}}], "annotations": [{", ".join(entries)}]}}')
    size = path.stat().st_size
    assert size > 40e6
    tracemalloc.start()
    try:
        counts = ClassCounts.load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert counts.image_counts.tolist() == [81]
    assert peak < size / 2


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=60))
def test_counting_agrees_with_sets(tmp_path_factory, pairs):
    content = {
        "images": [{"id": image} for image in range(1, 10)],
        "categories": [{"id": label, "name": str(label)} for label in range(1, 6)],
        "annotations": [{"category_id": label, "image_id": image} for label, image in pairs],
    }
    counts = ClassCounts.load(_json(tmp_path_factory.mktemp("coco") / "a.json", content))
    for label in range(1, 6):
        assert counts.instance_counts[label - 1] == sum(label == other for other, _ in pairs)
        assert counts.image_counts[label - 1] == len({image for other, image in pairs if other == label})


def test_lvis_categories_without_annotations_give_their_own_counts(tmp_path):
    categories = [
        {"id": 2, "name": "b", "image_count": 3, "instance_count": 8},
        {"id": 1, "name": "a", "image_count": 5},
    ]
    counts = ClassCounts.load(_json(tmp_path / "lvis.json", {"categories": categories}))
    assert counts.image_counts.tolist() == [5, 3]
    assert counts.instance_counts.tolist() == [5, 8]
    assert counts.num_images is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,name,image_count,instance_count\n2,spoon,20,40\n1,cup,60,90\n"),
        ("b.csv", "\ufeffName, Image_Count , instance_count\ncup,60,90\nspoon,20,40\n"),
        ("c.csv", "class,images,instances\ncup,60,90\nspoon,20,40\n"),
        ("d.json", '{"names": ["cup", "spoon"], "image_counts": [60, 20], "instance_counts": [90, 40]}'),
    ],
)
def test_tables_with_both_counts(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    counts = ClassCounts.load(tmp_path / name)
    assert counts.names == ("cup", "spoon")
    assert counts.image_counts.tolist() == [60, 20]
    assert counts.instance_counts.tolist() == [90, 40]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "name,count\ncup,60\nspoon,20\n"),
        ("b.csv", "name,instance_count\ncup,60\nspoon,20\n"),
        ("f.csv", "name,share\ncup,60\nspoon,20\n"),
        ("g.json", '{"names": ["cup", "spoon"], "shares": [60, 20]}'),
        ("c.json", "[60, 20]"),
        ("d.json", '{"cup": 60, "spoon": 20}'),
        ("e.npy", None),
    ],
)
def test_a_single_count_serves_for_both(tmp_path, name, content):
    path = tmp_path / name
    np.save(path, np.array([60, 20])) if content is None else path.write_text(content)
    counts = ClassCounts.load(path)
    assert counts.image_counts.tolist() == counts.instance_counts.tolist() == [60, 20]


def test_counts_are_put_in_the_order_of_the_model(tmp_path):
    counts = ClassCounts(np.array([60.0, 20, 1]), names=("cup", "spoon", "fork"))
    assert counts.aligned_to(("fork", "cup")).image_counts.tolist() == [1, 60]
    with pytest.warns(LogNWarning, match="taken in their order"):
        assert counts.aligned_to(None) is counts
    with pytest.raises(InputError, match="'knife'"):
        counts.aligned_to(("cup", "knife"))


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


BAD_FILES = {
    "no column": ("x.csv", "name,frequency\ncup,r\n", "`image_count`.*name, frequency"),
    "no number": ("x.csv", "name,image_count\ncup,60\nspoon,many\n", "'many' for class 1"),
    "no rows": ("x.csv", "name,image_count\n", "no classes"),
    "negative": ("x.csv", "name,image_count\ncup,-1\n", "-1 for class 0"),
    "not a number": ("x.csv", "name,image_count\ncup,nan\n", "nan for class 0"),
    "binary": ("x.csv", b"\x93NUMPY\xff\xfe", "cannot be read"),
    "broken json": ("x.json", '{"a": ', "cannot be read"),
    "text json": ("x.json", '"hello"', "list of counts"),
    "nested json": ("x.json", '{"a": {"b": 1}}', "list of numbers"),
    "empty list": ("x.json", "[]", "one number per class"),
    "coco with a list for an object": (
        "x.json",
        '{"categories": [{"id": 1, "name": "cup"}], "annotations": [[1, 2]]}',
        "to hold objects",
    ),
    "cut annotations": (
        "x.json",
        '{"categories": [{"id": 1, "name": "a"}], "annotations": [{"category_id": 1, "image_id": 1}, {"categ',
        r"to be a \.json file, but it cannot be read: Unterminated string",
    ),
    "text behind annotations": (
        "x.json",
        '{"categories": [{"id": 1, "name": "a"}], "annotations": [{"category_id": 1, "image_id": 1}]} []',
        r"to be a \.json file, but it cannot be read: Extra data",
    ),
    "annotations in an object": (
        "x.json",
        '{"categories": [{"id": 1, "name": "a", "image_count": 1}], "annotations": {"a": 1}}',
        "to be a list",
    ),
    "incomplete annotation before an incomplete category": (
        "x.json",
        '{"annotations": [{"image_id": 1}], "categories": [{"id": 1}]}',
        "to have `category_id`",
    ),
    "coco without ids": ("x.json", '{"categories": [{"name": "cup"}]}', "to have `id`"),
    "coco without counts": ("x.json", '{"categories": [{"id": 1, "name": "cup"}]}', "to have objects to count"),
    "stray annotation": (
        "x.json",
        '{"categories": [{"id": 1, "name": "a"}], "annotations": [{"category_id": 2, "image_id": 1}]}',
        "to list category 2",
    ),
    "names and counts differ": ("x.json", '{"names": ["a"], "image_counts": [1, 2]}', "2 names"),
    "letters for names": ("x.json", '{"names": "ab", "image_counts": [1, 2]}', "list of names, but got 'ab'"),
    "a number for names": ("x.json", '{"names": 5, "image_counts": [1, 2]}', "list of names, but got 5"),
    "number beyond floats": ("x.json", f"[1{'0' * 400}, 2]", "list of numbers"),
    "number of thousands of digits": ("x.json", f"[1{'0' * 5000}, 2]", "cannot be read"),
    "nested too deep": ("x.json", "[" * 100_000, "cannot be read"),
    "nested too deep in an object": ("x.json", '{"annotations": ' + "[" * 100_000, "cannot be read"),
    "a superscript for an id": ("x.csv", "id,name\n²,cup\n", "`image_count`"),
    "category with a fraction": (
        "x.json",
        '{"categories": [{"id": 1, "name": "a"}], "annotations": [{"category_id": 1.5, "image_id": 1}]}',
        "an integer, but got 1.5",
    ),
    "id beyond 64 bits": (
        "x.json",
        f'{{"categories": [{{"id": 1, "name": "a"}}], "annotations": [{{"category_id": 1, "image_id": {2**70}}}]}}',
        "to be an integer",
    ),
    "two categories with one id": (
        "x.json",
        '{"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]'
        ', "annotations": [{"category_id": 1, "image_id": 1}]}',
        "category 1 comes twice",
    ),
    "not npy": ("x.npy", "hello", "cannot be read"),
    "suffix": ("x.txt", "1 2 3", r"\.json, \.csv"),
    "missing": ("x.json", None, "there is none"),
}


@pytest.mark.parametrize("values", [np.array([1j, 2]), np.array(["1", "2"]), np.array([1, 2], "M8[s]")], ids=str)
def test_arrays_of_other_things_are_no_counts(tmp_path, values):
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(InputError, match=r"x\.npy.*Expected `counts` to be numbers, but got"):
        ClassCounts.load(tmp_path / "x.npy")


def test_a_byte_order_mark_is_no_part_of_the_content(tmp_path):
    """As Windows editors write it: tables were read with it, lists and names were not."""
    (tmp_path / "x.json").write_text("[60, 20]", encoding="utf-8-sig")
    assert ClassCounts.load(tmp_path / "x.json").image_counts.tolist() == [60, 20]
    for name, content in (("x.txt", "cup\nspoon\n"), ("x.json", '["cup", "spoon"]')):
        (tmp_path / name).write_text(content, encoding="utf-8-sig")
        assert read_class_names(tmp_path / name, 2) == ("cup", "spoon")


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_in_one_sentence_that_names_them(tmp_path, case):
    name, content, sentence = BAD_FILES[case]
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=sentence) as caught:
        ClassCounts.load(tmp_path / name)
    assert name in str(caught.value)


def test_pickled_arrays_are_never_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        ClassCounts.load(tmp_path / "x.npy")


def test_a_class_may_be_called_as_a_section_of_annotations_is(tmp_path):
    assert ClassCounts.load(_json(tmp_path / "b.json", {"cup": 3, "segmentation": 5})).names == ("cup", "segmentation")
