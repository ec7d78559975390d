"""Trees as people have them are found and read; what is wrong with one is named by file and line."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.made.labels import NAMES, SIZES, THINGS, coco_content, write_yolo

from logn.data.class_counts import ClassCounts
from logn.data.dataset import DetectionDataset
from logn.data.label_sources import find_labels, with_split
from logn.data.labels import Labels
from logn.data.yolo import read_yolo_data
from logn.errors import InputError, LogNWarning


@pytest.fixture
def yolo(tmp_path):
    return write_yolo(tmp_path / "yolo", SIZES, THINGS)


def rewrite(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def stems(source):
    return [Path(image.file_name).stem for image in Labels.load(source).images]


def test_a_roboflow_export_names_the_folder_above_its_own(yolo):
    root = yolo.parent
    (root / "valid").mkdir()
    shutil.move(root / "images" / "val", root / "valid" / "images")
    shutil.move(root / "labels" / "val", root / "valid" / "labels")
    yolo.write_text(f"train: ../train/images\nval: ../valid/images\nnc: 3\nnames: {list(NAMES)}\n")
    assert stems(yolo) == stems(root) == ["a", "b", "empty"]
    assert len(Labels.load(yolo)) == 5
    assert DetectionDataset(root).read_image(0).shape == (40, 60, 3)
    with pytest.raises(InputError, match=r"`train` of `.*data\.yaml` leads to `.*`, which does not exist"):
        Labels.load(f"{yolo}:train")


@pytest.mark.parametrize(("link", "target"), [("loop", "."), ("up", ".."), ("deep/back", "..")])
def test_links_that_lead_back_add_no_images(yolo, link, target):
    before, folder = stems(yolo), yolo.parent / "images" / "val"
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(target, target_is_directory=True)
    assert stems(yolo) == before


def test_folders_behind_links_are_read(yolo, tmp_path):
    for kind in ("images", "labels"):
        shutil.move(yolo.parent / kind / "val", tmp_path / "elsewhere" / kind)
        (yolo.parent / kind / "val").mkdir()
        (yolo.parent / kind / "val" / "linked").symlink_to(tmp_path / "elsewhere" / kind, target_is_directory=True)
    assert stems(yolo) == ["a", "b", "empty"]
    assert len(Labels.load(yolo)) == 5


def test_a_split_may_be_a_list_file_an_image_or_several(yolo):
    root = yolo.parent
    (root / "val.txt").write_text("./images/val/b.png\n\n")
    rewrite(yolo, "val: images/val", "val: val.txt")
    assert stems(yolo) == ["b"]
    rewrite(yolo, "val: val.txt", "val: [val.txt, images/val/a.png]")
    assert stems(yolo) == ["a", "b"]
    rewrite(yolo, "val: [val.txt, images/val/a.png]", "val:\n  - images/val\n  - val.txt")
    assert stems(yolo) == ["a", "b", "empty"]
    (root / "val.txt").write_text("./images/val/b.png\n./images/val/gone.png\n")
    with pytest.raises(InputError, match=r"Line 2 of `.*val\.txt` names an image that does not exist: `.*gone\.png`"):
        Labels.load(yolo)


def test_paths_are_relative_to_the_file_wherever_one_stands(yolo, monkeypatch):
    root = yolo.parent
    rewrite(yolo, f"path: {root}", "path: .")
    names = [image.file_name for image in Labels.load(yolo).images]
    assert names[0] == "images/val/a.png"
    monkeypatch.chdir(root)
    assert [image.file_name for image in Labels.load("data.yaml").images] == names
    assert DetectionDataset("data.yaml").images_fingerprint == DetectionDataset(yolo).images_fingerprint
    rewrite(yolo, "path: .", f"path: {root.name}")  # as Ultralytics writes it, from the folder above
    assert [image.file_name for image in Labels.load(yolo).images] == names
    rewrite(yolo, f"path: {root.name}", "path: elsewhere")
    with pytest.raises(InputError, match=r"`path` of `.*` is not a folder: nothing is at .*elsewhere"):
        Labels.load(yolo)


def test_images_named_by_numbers_have_these_as_ids(tmp_path):
    sizes = {"000000000139": (4, 4), "000000000025": (4, 4)}
    file = write_yolo(tmp_path / "coco", sizes, {"000000000139": (), "000000000025": ()})
    assert [image.id for image in Labels.load(file).images] == [25, 139]


def test_an_outline_is_the_box_around_it_and_lines_that_come_twice_count_once(yolo):
    labels = yolo.parent / "labels" / "val" / "a.txt"
    labels.write_text("2 0.1 0.5 0.5 0.25 0.3 0.75\n" * 2)
    annotations = Labels.load(yolo)
    assert annotations.boxes[0].tolist() == pytest.approx([6, 10, 24, 20])
    assert len(annotations) == 3


def test_images_without_any_label_file_are_warned_of(yolo):
    shutil.rmtree(yolo.parent / "labels")
    with pytest.warns(LogNWarning, match=r"None of the 3 images .* looked for at `.*labels/val/a\.txt`"):
        assert len(Labels.load(yolo)) == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3 0.5 0.5 0.1 0.1", r"a class from 0 to 2, but has '3'"),
        ("-1 0.5 0.5 0.1 0.1", "a class from 0 to 2"),
        ("0.5 0.5 0.5 0.1 0.1", "a class from 0 to 2"),
        ("0 0.5 1.2 0.1 0.1", r"coordinates from 0 to 1, as shares of the image, but has '1\.2'"),
        ("0 0.5 -0.1 0.1 0.1", "coordinates from 0 to 1"),
        ("0 12 14 30 40", "coordinates from 0 to 1"),
        ("0 nan 0.1 0.1 0.1", "coordinates from 0 to 1"),
        ("0 0.5 0.5 0.1", "a class and a box"),
        ("0 0.5 0.5 0.1 0.1 0.9", "a class and a box"),
        ("cat 0.5 0.5 0.1 0.1", "numbers, but has 'cat"),
    ],
)
def test_a_wrong_line_is_named(yolo, line, message):
    (yolo.parent / "labels" / "val" / "b.txt").write_text(f"0 0.5 0.5 0.1 0.1\n{line}\n")
    for read in (Labels.load, ClassCounts.load):
        with pytest.raises(InputError, match=rf"Line 2 of `.*b\.txt` must have {message}"):
            read(yolo)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  2: traffic light", "  3: traffic light", "must number the classes from 0 to 2, but lacks 2"),
        ("names:", "nc: 4\nnames:", "`nc` of .* is 4, but `names` has 3 classes"),
        ("names:", "nc: many\nnames:", "nc"),
        ("val: images/val", "test: images/val", "has no split `val`; it has `.*:train`, `.*:test`"),
        ("val: images/val", "val: images/other", "leads to `.*images/other`, which does not exist"),
        ("val: images/val", "val: labels", "has no images"),
        ("names:", "kpt_shape: [17, 3]\nnames:", "describes poses"),
        ("val: images/val", "val: {0: a}", "val"),
    ],
)
def test_a_wrong_description_is_named(yolo, old, new, message):
    rewrite(yolo, old, new)
    with pytest.raises(InputError, match=message):
        Labels.load(yolo)


def test_images_that_are_none_or_to_be_turned_are_named(yolo):
    turned = Image.Exif()
    turned[0x0112] = 6
    picture = yolo.parent / "images" / "val" / "c.jpg"
    Image.fromarray(np.zeros((8, 4, 3), np.uint8)).save(picture, exif=turned)
    with pytest.warns(LogNWarning, match=r"1 images, such as `.*c\.jpg`, have an EXIF rotation"):
        Labels.load(yolo)
    (yolo.parent / "images" / "val" / "b.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"The image `.*b\.png` cannot be read"):
        Labels.load(yolo)


def test_which_form_it_is_and_which_split(tmp_path, yolo):
    assert find_labels(tmp_path / "train.json").form == "json"
    assert find_labels(yolo.parent) == find_labels(yolo)
    assert with_split(yolo.parent, "train").name == "data.yaml:train"
    roboflow = tmp_path / "valid"
    roboflow.mkdir()
    (roboflow / "_annotations.coco.json").write_text(json.dumps(coco_content(SIZES, THINGS)))
    assert len(Labels.load(roboflow)) == 5
    odd = tmp_path / "odd:name.json"
    odd.write_text(json.dumps(coco_content(SIZES, THINGS)))
    assert len(Labels.load(odd)) == 5


@pytest.mark.parametrize("file", ["Annotations/a.xml", "a.xml"])
def test_pascal_voc_is_refused(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("<annotation/>")
    for read in (Labels.load, ClassCounts.load, DetectionDataset):
        with pytest.raises(InputError, match=r"Pascal VOC.*convert"):
            read(tmp_path)


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
    names, data = read_yolo_data(file)
    return names, data.splits()


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
        ("just a text\n", "key: value"),
        ("names: |\n  a\n  b\n", "names"),
        ("names: [a, [b]]\n", "names"),
        ("names: []\n", "names"),
        ("nc: 3000000000\nval: .\n", "nc"),
        ("names: " + "[" * 5_000, "YAML"),
    ],
)
def test_what_is_unclear_in_a_data_yaml_is_refused(tmp_path, text, message):
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
        assert read_yolo_data(copy)[0], file.name
