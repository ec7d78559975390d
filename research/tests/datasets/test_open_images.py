"""Class folders and list files, told apart by what lies in the folder."""

import re

import pytest
from logn_research.datasets.labelled_images import open_images, read_class_folders
from PIL import Image

from logn.errors import InputError


def write_pictures(folder, counts):
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (3, 2)).save(folder / name / f"{number}.png")


@pytest.fixture
def splits(tmp_path):
    write_pictures(tmp_path / "train", {"cat": 10, "dog": 10, "hen": 10})
    write_pictures(tmp_path / "val", {"dog": 2, "cat": 3})
    write_pictures(tmp_path / "test", {"cat": 1, "dog": 1, "hen": 1})
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no picture")
    return tmp_path


def test_split_folders_are_recognised_and_share_their_classes(splits):
    assert open_images(splits).image_counts.tolist() == [10, 10, 10]
    dev = open_images(splits, "dev")
    assert (dev.class_names, dev.image_counts.tolist()) == (("cat", "dog", "hen"), [3, 2, 0])
    assert len(open_images(splits, "test")) == 3
    assert dev.image(0).shape == (2, 3, 3)


def test_only_the_training_folder_is_thinned(splits):
    assert open_images(splits, imbalance=10).image_counts.tolist() == [10, 3, 1]
    assert open_images(splits, "dev", imbalance=10).image_counts.tolist() == [3, 2, 0]


def test_without_split_folders_all_images_are_for_training(tmp_path):
    write_pictures(tmp_path, {"b": 2, "a": 1})
    assert open_images(tmp_path).class_names == ("a", "b")
    with pytest.raises(InputError, match=r"to have a folder `dev` or `val` or .* but it has none"):
        open_images(tmp_path, "dev")
    with pytest.raises(InputError, match="to have a folder `test`"):
        open_images(tmp_path, "test")


def test_validation_stands_in_for_a_missing_test_folder(splits):
    (splits / "test").rename(splits / "other")
    assert open_images(splits, "test").image_counts.tolist() == [3, 2, 0]


def test_class_folders_that_do_not_fit_are_refused(splits, tmp_path_factory):
    (splits / "val" / "cow").mkdir()
    with pytest.raises(InputError, match="but `cow` is not"):
        read_class_folders(splits, "dev")
    with pytest.raises(InputError, match="there is none"):
        read_class_folders(splits / "none")
    with pytest.raises(InputError, match="one of"):
        read_class_folders(splits, "val")
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(InputError, match="a folder for each class, but it holds none"):
        open_images(empty)
    (empty / "cat").mkdir()
    with pytest.raises(InputError, match=r"to hold images .* but none is"):
        open_images(empty)


@pytest.fixture
def lists(tmp_path):
    (tmp_path / "ImageNet_LT_train.txt").write_text("a.png 0\nb.png 1\n")
    (tmp_path / "ImageNet_LT_val.txt").write_text("c.png 1\n")
    (tmp_path / "ImageNet_LT_test.txt").write_text("d.png 0\n")
    (tmp_path / "readme.txt").write_text("no list")
    return tmp_path


@pytest.mark.parametrize("name", ["", "ImageNet_LT_train.txt", "ImageNet_LT_test.txt"])
def test_the_lists_of_all_splits_are_found_from_the_folder_or_from_one_of_them(lists, name):
    found = {split: open_images(lists / name, split) for split in ("train", "dev", "test")}
    assert [images.pixels.paths[-1] for images in found.values()] == ["b.png", "c.png", "d.png"]
    assert {images.num_classes for images in found.values()} == {2}


def test_lists_take_a_root_and_names(lists, tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    Image.new("RGB", (3, 2)).save(root / "a.png")
    (lists / "names.csv").write_text("cat\ndog\n")
    images = open_images(lists, root=root, class_names=lists / "names.csv")
    assert (images.image(0).shape, images.class_names) == ((2, 3, 3), ("cat", "dog"))


def test_validation_stands_in_for_a_missing_test_list(lists):
    (lists / "ImageNet_LT_test.txt").unlink()
    assert open_images(lists, "test").pixels.paths == ("c.png",)


def test_a_label_beyond_the_training_classes_is_named(lists):
    (lists / "ImageNet_LT_test.txt").write_text("d.png 0\ne.png 2\n")
    with pytest.raises(InputError, match=r"line 2 of `.*test\.txt` to be below 2"):
        open_images(lists, "test")


def test_sources_that_cannot_be_told_are_refused(lists, splits):
    (lists / "Places_LT_train.txt").write_text("a.png 0\n")
    with pytest.raises(InputError, match="one list of train images"):
        open_images(lists)
    assert len(open_images(lists / "ImageNet_LT_train.txt")) == 2
    (lists / "all.txt").write_text("a.png 0\n")
    assert len(open_images(lists / "all.txt")) == 1
    with pytest.raises(InputError, match="a list of test images next to"):
        open_images(lists / "all.txt", "test")
    (lists / "some.csv").write_text("a.png 0\n")
    for source, more, words in (
        (lists / "some.csv", {}, "a list (.txt) or a folder"),
        (lists / "none", {}, "there is none"),
        (lists / "all.txt", {"split": "val"}, "Expected `split` to be one of"),
        (lists / "all.txt", {"imbalance": 10}, "Expected `imbalance` for CIFAR and class folders only"),
        (lists / "all.txt", {"dev_each": 1}, "Expected `dev_each` for CIFAR"),
    ):
        with pytest.raises(InputError, match=re.escape(words)):
            open_images(source, **more)


def test_a_root_is_for_lists_only(tmp_path):
    write_pictures(tmp_path, {"a": 1})
    with pytest.raises(InputError, match="to come with list files only"):
        open_images(tmp_path, root=tmp_path)
