"""Images with one class each, from arrays, class folders and list files."""

import re

import numpy as np
import pytest
from logn_research.datasets.labelled_images import array_images, open_images, read_class_list
from PIL import Image

from logn.errors import InputError


def write_pictures(folder, counts):
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (3, 2)).save(folder / name / f"{number}.png")


@pytest.fixture
def splits(tmp_path):
    root = tmp_path / "folders"
    write_pictures(root / "train", {"cat": 4, "dog": 3, "hen": 2})
    write_pictures(root / "val", {"dog": 2, "cat": 3})
    write_pictures(root / "test", {"cat": 1, "dog": 1, "hen": 1})
    (root / "train" / "cat" / "notes.txt").write_text("no picture")
    return root


@pytest.fixture
def lists(tmp_path):
    root = tmp_path / "lists"
    root.mkdir()
    (root / "ImageNet_LT_train.txt").write_text("a.png 0\nb c.png 1\n")
    (root / "ImageNet_LT_val.txt").write_text("c.png 1\n")
    (root / "ImageNet_LT_test.txt").write_text("d.png\t0\n")
    (root / "readme.txt").write_text("no list")
    return root


def test_split_folders_share_the_classes_of_training(splits):
    assert open_images(splits).image_counts.tolist() == [4, 3, 2]
    dev = open_images(splits, "dev")
    assert (dev.class_names, dev.image_counts.tolist()) == (("cat", "dog", "hen"), [3, 2, 0])
    assert dev.image(0).shape == (2, 3, 3)
    assert dev.stack([0, 1]).shape == (2, 2, 3, 3)
    (splits / "test").rename(splits / "other")  # as ImageNet's results are reported
    assert len(open_images(splits, "test")) == 5


def test_folders_without_splits_are_training_images(tmp_path):
    write_pictures(tmp_path, {"b": 2, "a": 1})
    assert open_images(tmp_path).class_names == ("a", "b")
    with pytest.raises(InputError, match="has no dev images"):
        open_images(tmp_path, "dev")


@pytest.mark.parametrize("name", ["", "ImageNet_LT_train.txt", "ImageNet_LT_test.txt"])
def test_the_lists_of_all_splits_are_found_from_the_folder_or_from_one_of_them(lists, name):
    found = {split: open_images(lists / name, split) for split in ("train", "dev", "test")}
    assert [images.pixels[-1].name for images in found.values()] == ["b c.png", "c.png", "d.png"]
    assert {images.num_classes for images in found.values()} == {2}


def test_lists_take_a_root_and_names(lists, tmp_path):
    Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    (tmp_path / "names.csv").write_text("cat\ndog\n")
    images = open_images(lists, root=tmp_path, class_names=tmp_path / "names.csv")
    assert (images.image(0).shape, images.class_names) == ((2, 3, 3), ("cat", "dog"))
    with pytest.raises(InputError, match=re.escape("b c.png")):
        images.image(1)


def test_subsets_keep_all_classes():
    images = array_images(np.arange(3, dtype=np.uint8).repeat(48).reshape(3, 4, 4, 3), [2, 0, 2], families=[0, 0, 1])
    part = images.subset([2, 1])
    assert (part.labels.tolist(), part.num_classes, part.families) == ([2, 0], 3, (0, 0, 1))
    assert part.image(0)[0, 0].tolist() == [2, 2, 2]
    assert [labels.tolist() for labels in part.labels_per_image()] == [[2], [0]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a.png", "line 1 of"),
        ("a.png 0\nb.png -1\n", "line 2 of"),
        ("a.png one\n", "a whole number from 0, but got 'a.png one'"),
        ("\n", "is empty"),
    ],
)
def test_a_list_that_does_not_parse_is_refused(tmp_path, text, sentence):
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(InputError, match=re.escape(sentence)):
        read_class_list(tmp_path / "list.txt")


def test_what_does_not_fit_is_refused(lists, splits, tmp_path):
    (lists / "ImageNet_LT_test.txt").write_text("d.png 0\ne.png 2\n")
    with pytest.raises(InputError, match="to be from 0 to 1, but got 2 for image 1"):
        open_images(lists, "test")
    (lists / "Places_LT_train.txt").write_text("a.png 0\n")
    with pytest.raises(InputError, match="several lists for one split"):
        open_images(lists)
    (splits / "val" / "cow").mkdir()
    with pytest.raises(InputError, match="The class `cow` of"):
        open_images(splits, "dev")
    with pytest.raises(InputError, match="are for list files"):
        open_images(splits, root=tmp_path)
    for source, split, words in (
        (tmp_path / "none", "train", "neither a folder nor a list (.txt)"),
        (splits, "val", "Expected `split` to be one of"),
    ):
        with pytest.raises(InputError, match=re.escape(words)):
            open_images(source, split)
    for pixels, labels in ((np.zeros((2, 4, 4)), [0, 0]), (np.zeros((2, 4, 4, 3), np.uint8), [0])):
        with pytest.raises(InputError, match="Expected `"):
            array_images(pixels, labels)
