"""The small reader of `data.yaml` agrees with a whole one where it reads, and refuses the rest by file and line."""

import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logn.errors import InputError
from logn.labels.data_yaml import read_data_yaml

KEYS = ("path", "train", "val", "validation", "test", "names", "nc", "kpt_shape")
ROBOFLOW = """\
train: ../train/images
val: ../valid/images
test: ../test/images

nc: 3
names: ['head', 'hard-hat', "it's #1"]

roboflow:
  workspace: hats
  license: {name: CC BY 4.0}
  url: https://example.org/hats
"""
ULTRALYTICS = """\
# Ultralytics
---
path: coco8 # dataset root dir
train:
- images/train
- images/more
val: images/val  # 4 images
test: # optional

names:
  0: person
  1: traffic light
download: |
  names: not these
  - nor: this
"""
FLOW = """\
names: {0: cup, 1: "tea: pot",
  2: a b}
train: [images/a,
  'images/b',
]
"""


def read(tmp_path, text):
    file = tmp_path / "data.yaml"
    file.write_text(text, encoding="utf-8")
    return read_data_yaml(file, KEYS)


def test_files_as_people_have_them(tmp_path):
    assert read(tmp_path, ROBOFLOW) == {
        "train": "../train/images",
        "val": "../valid/images",
        "test": "../test/images",
        "nc": "3",
        "names": ["head", "hard-hat", "it's #1"],
    }
    assert read(tmp_path, ULTRALYTICS) == {
        "path": "coco8",
        "train": ["images/train", "images/more"],
        "val": "images/val",
        "test": None,
        "names": {"0": "person", "1": "traffic light"},
    }
    assert read(tmp_path, FLOW) == {
        "names": {"0": "cup", "1": "tea: pot", "2": "a b"},
        "train": ["images/a", "images/b"],
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("names: &all [a]\n", 1),
        ("train: x\nnames: |\n  a\n  b\n", 3),
        ("names:\n  - [a, b]\n", 2),
        ("names: [a, [b]]\n", 1),
        ("names: [a, b\n", 1),
        ("names: [a b: c, d]\n", 1),
        ("train: a\n\ntrain: b\n", 3),
        ("names:\n  0: a\n  0: b\n", 3),
        ("names:\n  0: a\n    1: b\n", 3),
        ("names:\n\t0: a\n", 2),
        ("val: images: more\n", 1),
        ("val: 'one' 'two'\n", 1),
        ("just a text\n", 1),
        ("val: images\n  more of it\n", 2),
        ("val: *other\n", 1),
    ],
)
def test_what_is_not_understood_is_refused_by_line(tmp_path, text, line):
    with pytest.raises(InputError, match=rf"in line {line} of `.*data\.yaml`, but got"):
        read(tmp_path, text)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1), min_size=1))
def test_quoted_names_are_read_as_they_are(tmp_path_factory, names):
    quoted = [name.replace("'", "''") for name in names]
    file = tmp_path_factory.mktemp("yaml") / "data.yaml"
    file.write_text("names:\n" + "".join(f"  {place}: '{name}'\n" for place, name in enumerate(quoted)), "utf-8")
    assert list(read_data_yaml(file, KEYS)["names"].values()) == names
    file.write_text("names: [" + ", ".join(f"'{name}'" for name in quoted) + "]  # all\n", "utf-8")
    assert read_data_yaml(file, KEYS)["names"] == names


def as_text(value):
    if isinstance(value, dict):
        return {str(key): as_text(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [as_text(entry) for entry in value]
    return None if value is None else str(value)


def test_it_agrees_with_a_whole_reader_on_the_files_of_ultralytics():
    yaml = pytest.importorskip("yaml")
    package = importlib.util.find_spec("ultralytics")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs ultralytics, for its files alone")
    files = sorted(Path(package.submodule_search_locations[0]).glob("cfg/datasets/*.yaml"))
    assert files
    for file in files:
        whole = yaml.safe_load(re.sub(r"[^\x00-\x7f]", "", file.read_text(encoding="utf-8")))
        assert read_data_yaml(file, KEYS) == {key: as_text(whole[key]) for key in whole if key in KEYS}, file.name
