"""Glyph scenes: the same by seed, whole after a kill, readable by everybody."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import sys

import numpy as np
import pytest
from logn_research.datasets.glyphs import scenes as glyph_scenes
from logn_research.datasets.glyphs.alphabet import glyph_styles
from logn_research.datasets.glyphs.scenes import GlyphSettings, generate_glyph_scenes
from logn_research.datasets.sample_dataset import SampleDataset

from logn.demo.scene import draw_scene
from logn.errors import InputError


def styles(characters):
    return [glyph_styles(character) for character in characters]


SETTINGS = GlyphSettings(classes=12, train=40, dev=16, test=6, size=64, seed=3)
FILES = ("train.json", "dev.json", "test.json", "dev_exhaustive.json", "test_exhaustive.json")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return generate_glyph_scenes(tmp_path_factory.mktemp("scenes"), SETTINGS)


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_layout(scenes):
    assert {path.name for path in scenes.iterdir()} == {*FILES, "settings.json", "images"}
    assert len(list((scenes / "images" / "train").iterdir())) == 40
    assert json.loads((scenes / "settings.json").read_text())["settings"] == dataclasses.asdict(SETTINGS)


def test_workers_do_not_matter(scenes, tmp_path):
    assert digest(generate_glyph_scenes(tmp_path / "two", SETTINGS, workers=2)) == digest(scenes)


def test_another_seed_is_another_problem(scenes, tmp_path):
    other = generate_glyph_scenes(tmp_path, dataclasses.replace(SETTINGS, seed=4))
    ours, theirs = SampleDataset(scenes / "train.json"), SampleDataset(other / "train.json")
    assert ours.class_names != theirs.class_names
    assert not np.array_equal(ours.read_image(0), theirs.read_image(0))


def test_counts_in_the_file_are_those_of_the_annotations(scenes):
    content = json.loads((scenes / "train.json").read_text())
    dataset = SampleDataset(scenes / "train.json")
    assert [entry["image_count"] for entry in content["categories"]] == dataset.image_counts.tolist()
    assert [entry["instance_count"] for entry in content["categories"]] == dataset.instance_counts.tolist()
    for name in FILES:  # the others repeat the counts of the training set, as LVIS does
        assert json.loads((scenes / name).read_text())["categories"] == content["categories"]
    for entry in content["categories"]:
        bound = {"r": (1, 10), "c": (11, 100), "f": (101, 10**9)}[entry["frequency"]]
        assert bound[0] <= entry["image_count"] <= bound[1]
        assert entry["synset"] == f"{entry['name']}.n.01"


@pytest.mark.parametrize("name", FILES)
def test_boxes_and_areas_are_those_of_the_masks(scenes, name):
    dataset = SampleDataset(scenes / name)
    content = json.loads((scenes / name).read_text())
    areas = iter(entry["area"] for entry in content["annotations"])
    for sample in dataset:
        masks = sample.masks()
        assert not (masks.sum(axis=0) > 1).any()  # a pixel belongs to one object
        for box, mask in zip(sample.boxes, masks, strict=True):
            rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
            assert box.tolist() == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            assert int(mask.sum()) == next(areas)
    assert next(areas, None) is None


def test_federated_file_is_part_of_its_exhaustive_twin(scenes):
    federated = json.loads((scenes / "dev.json").read_text())
    exhaustive = json.loads((scenes / "dev_exhaustive.json").read_text())
    everything = {(e["image_id"], e["category_id"], tuple(e["bbox"])) for e in exhaustive["annotations"]}
    marked = {(e["image_id"], e["category_id"], tuple(e["bbox"])) for e in federated["annotations"]}
    assert marked <= everything
    left_out = {(image, category) for image, category, _ in everything - marked}
    not_exhaustive = {(e["id"], label) for e in federated["images"] for label in e["not_exhaustive_category_ids"]}
    assert left_out == not_exhaustive
    present = {(image, category) for image, category, _ in everything}
    for image in federated["images"]:
        assert not any((image["id"], label) in present for label in image["neg_category_ids"])
    for image in exhaustive["images"]:
        mine = {category for number, category in present if number == image["id"]}
        assert mine | set(image["neg_category_ids"]) == set(range(1, 13))
        assert image["not_exhaustive_category_ids"] == []


def test_each_class_is_verified_absent_on_8_to_16_images(tmp_path):
    folder = generate_glyph_scenes(tmp_path, dataclasses.replace(SETTINGS, train=1, test=1, dev=60))
    content = json.loads((folder / "dev.json").read_text())
    negatives = np.bincount([label for image in content["images"] for label in image["neg_category_ids"]], minlength=13)
    assert negatives[1:].min() >= 8
    assert negatives[1:].max() <= 16
    assert len(np.unique(negatives[1:])) > 1


def test_polygons_are_the_same_masks(scenes, tmp_path):
    settings = dataclasses.replace(SETTINGS, masks="polygon")
    polygons = SampleDataset(generate_glyph_scenes(tmp_path, settings) / "dev.json")
    runs = SampleDataset(scenes / "dev.json")
    for ours, theirs in zip(polygons, runs, strict=True):
        np.testing.assert_array_equal(ours.masks(), theirs.masks())
        np.testing.assert_array_equal(ours.image, theirs.image)


@pytest.mark.parametrize("name", FILES)
def test_opens_in_lvis_pycocotools_and_hotcoco(scenes, name, monkeypatch):
    import hotcoco
    from pycocotools.coco import COCO

    monkeypatch.setattr(np, "float", float, raising=False)  # lvis 0.5.3 was written for an older NumPy
    from lvis import LVIS

    ours = SampleDataset(scenes / name)
    with contextlib.redirect_stdout(io.StringIO()):
        readers = LVIS(str(scenes / name)), COCO(str(scenes / name)), hotcoco.COCO(str(scenes / name))
    lvis, coco, hot = readers
    assert sorted(lvis.get_img_ids()) == sorted(coco.getImgIds()) == sorted(hot.getImgIds()) == sorted(ours.image_ids)
    assert len(lvis.anns) == len(coco.anns) == len(hot.getAnnIds()) == int(ours.instance_counts.sum())
    sample = ours[0]
    entries = coco.loadAnns(coco.getAnnIds(imgIds=[sample.image_id]))
    for mask, entry in zip(sample.masks(), entries, strict=True):
        np.testing.assert_array_equal(coco.annToMask(entry).astype(np.bool_), mask)
        np.testing.assert_array_equal(lvis.ann_to_mask(entry).astype(np.bool_), mask)


def test_perfect_detections_score_one_in_the_lvis_evaluator(scenes, monkeypatch):
    monkeypatch.setattr(np, "float", float, raising=False)
    from lvis import LVIS, LVISEval, LVISResults

    truth = LVIS(str(scenes / "dev.json"))
    detections = [
        {key: entry[key] for key in ("image_id", "category_id", "bbox", "segmentation")} | {"score": 0.9}
        for entry in truth.dataset["annotations"]
    ]
    evaluation = LVISEval(truth, LVISResults(truth, detections), iou_type="segm")
    evaluation.run()
    assert evaluation.get_results()["AP"] == pytest.approx(1.0)


class StopError(Exception):
    pass


def test_other_settings_other_versions_and_other_files_are_refused(scenes, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="there classes is 12 and not 13"):
        generate_glyph_scenes(scenes, dataclasses.replace(SETTINGS, classes=13))
    monkeypatch.setattr(glyph_scenes, "VERSION", 99)
    with pytest.raises(InputError, match="version is 1 and not 99"):
        generate_glyph_scenes(scenes, SETTINGS)
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files than"):
        generate_glyph_scenes(tmp_path, SETTINGS)
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(InputError, match="holds other files than"):
        generate_glyph_scenes(tmp_path, SETTINGS)
    with pytest.raises(InputError, match="`workers`"):
        generate_glyph_scenes(tmp_path, SETTINGS, workers=0)


@pytest.mark.parametrize("size", [64, 128])
def test_objects_are_visible_and_hardly_covered(size):
    for seed in range(10):
        scene = draw_scene(styles("gqpdb96aeoc8"), styles("xyz"), size, np.random.default_rng(seed))
        assert scene.masks.sum(axis=(1, 2)).min() >= 8
        assert not (scene.masks.sum(axis=0) > 1).any()
        inside, outside = scene.image[scene.masks[0]], scene.image[~scene.masks.any(axis=0)]
        assert np.linalg.norm(inside.mean(axis=0) - outside.mean(axis=0)) > 10


def test_missing_packages_are_named_before_anything_is_written(tmp_path, monkeypatch):
    from logn.errors import MissingExtraError

    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match="pillow"):
        generate_glyph_scenes(tmp_path / "none", SETTINGS)
    assert not (tmp_path / "none").exists()
