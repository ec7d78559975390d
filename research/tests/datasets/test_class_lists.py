"""List files of ImageNet-LT, Places-LT and iNaturalist."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logn_research.datasets.labelled_images import read_class_list
from PIL import Image

from logn.errors import InputError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images" / "train").mkdir(parents=True)
    for number in range(3):
        picture = Image.new("RGB", (4 + number, 3), (10 * number, 0, 0))
        picture.save(tmp_path / "images" / "train" / f"a {number}.png")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "train.txt").write_text("train/a 0.png 0\n\ntrain/a 1.png  2\r\ntrain/a 2.png\t0\n")
    return tmp_path


def test_paths_may_hold_spaces_and_lie_below_another_root(folder):
    images = read_class_list(folder / "lists" / "train.txt", folder / "images")
    assert images.labels.tolist() == [0, 2, 0]
    assert images.class_names == ("0", "1", "2")
    assert images.image_counts.tolist() == [2, 0, 1]
    assert images.image(1).shape == (3, 5, 3)
    assert images.image(2)[0, 0, 0] == 20


def test_names_may_be_given_or_read(folder):
    file = folder / "lists" / "train.txt"
    (folder / "names.txt").write_text("tench\ngold fish\nhen\ncock\n")
    assert read_class_list(file, class_names=folder / "names.txt").class_names == ("tench", "gold fish", "hen", "cock")
    assert read_class_list(file, class_names=["a", "b", "c"]).class_names == ("a", "b", "c")
    assert read_class_list(file, num_classes=7).num_classes == 7
    with pytest.raises(InputError, match="to be 5 names, but got 3"):
        read_class_list(file, class_names=["a", "b", "c"], num_classes=5)


@given(
    st.lists(st.tuples(st.from_regex(r"[a-z]([a-z ./]{0,8}[a-z])?", fullmatch=True), st.integers(0, 20)), min_size=1)
)
def test_what_is_written_is_read(tmp_path_factory, entries):
    file = tmp_path_factory.mktemp("lists") / "list.txt"
    file.write_text("".join(f"{path} {label}\n" for path, label in entries))
    images = read_class_list(file)
    assert list(images.pixels.paths) == [path for path, _ in entries]
    np.testing.assert_array_equal(images.labels, [label for _, label in entries])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a.png 0\nb.png\n", "Expected line 2 of `{}` to be a path and a label, but got 'b.png'."),
        ("a.png 0\nb.png one\n", "Expected line 2 of `{}` to end in a label, a whole number, but got 'one'."),
        ("a.png 0\n\nb.png 1.5\n", "Expected line 3 of `{}` to end in a label, a whole number, but got '1.5'."),
        ("a.png -1\n", "Expected the label on line 1 of `{}` to be 0 or more, but got -1."),
        ("a.png 3\nb.png 4\n", "Expected the label on line 2 of `{}` to be below 4, the number of classes, but got 4."),
        ("\n", "Expected `{}` to have one `path label` line an image, but it is empty."),
    ],
)
def test_bad_lines_are_named(tmp_path, content, words):
    file = tmp_path / "list.txt"
    file.write_text(content)
    with pytest.raises(InputError, match=re.escape(words.format(file))):
        read_class_list(file, num_classes=4)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.txt` to be a list of images, but there is none"):
        read_class_list(tmp_path / "none.txt")
    (tmp_path / "list.txt").write_text("gone.png 0\n")
    with pytest.raises(InputError, match=r"gone\.png` to exist"):
        read_class_list(tmp_path / "list.txt").image(0)
    (tmp_path / "list.txt").write_bytes(b"\xff\xff 0\n")
    with pytest.raises(InputError, match="UTF-8"):
        read_class_list(tmp_path / "list.txt")
