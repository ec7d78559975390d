"""The `data.yaml` of YOLO labels, as people have them; what is unclear is refused."""

import importlib.util
from pathlib import Path

import pytest

from logn.errors import InputError
from logn.labels.yolo import read_yolo_data

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
    data = read_yolo_data(file)
    return data.names, dict(data.splits)


def test_files_as_people_have_them(tmp_path):
    (tmp_path / "coco8").mkdir()
    assert read(tmp_path, ROBOFLOW) == (
        ("head", "hard-hat", "it's #1"),
        {"train": ("../train/images",), "val": ("../valid/images",), "test": ("../test/images",)},
    )
    assert read(tmp_path, ULTRALYTICS) == (
        ("person", "traffic light"),
        {"train": ("images/train", "images/more"), "val": ("images/val",)},
    )
    assert read(tmp_path, FLOW) == (("cup", "tea: pot", "a b"), {"train": ("images/a", "images/b")})
    # What other readers take for a truth value, a number or nothing is a name here.
    assert read(tmp_path, "names: [no, 1e3, 007, off]\nnc: 4\n")[0] == ("no", "1e3", "007", "off")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names: [a, b\n", "is not valid YAML: .*line 2"),
        ("names:\n\t0: a\n", "is not valid YAML: .*line 2"),
        ("val: images: more\nnames: [a]\n", "is not valid YAML: .*line 1"),
        ("names: [a]\nval: *other\n", "is not valid YAML: .*undefined alias"),
        ("just a text\n", "has no `key: value` lines"),
        ("names: [a]\n\nnames: [b]\n", "Line 3 of .* has `names` for the second time"),
        ("names:\n  0: a\n  0: b\n", "Line 3 of .* has `0` for the second time"),
        ("names: |\n  a\n  b\n", "`names` of .* must name the classes"),
        ("names: [a, [b]]\n", "`names` of .* must name the classes"),
    ],
)
def test_what_is_unclear_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)


def test_the_files_of_ultralytics_are_read(tmp_path):
    package = importlib.util.find_spec("ultralytics")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs ultralytics, for its files alone")
    files = sorted(Path(package.submodule_search_locations[0]).glob("cfg/datasets/*.yaml"))
    assert files
    for file in files:
        copy = tmp_path / file.name  # without `path`, whose folder is not here
        copy.write_text(
            "\n".join(line for line in file.read_text("utf-8").splitlines() if not line.startswith("path:"))
        )
        if "kpt_shape" in copy.read_text():
            continue
        assert read_yolo_data(copy).names, file.name
