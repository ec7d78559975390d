"""A run that is small enough to know: six classes, three of them with names that try to be code."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from logn.data.class_counts import ClassCounts
from logn.measure.compare import compare
from logn.measure.comparison import CompareSettings
from logn.models.proposals import Proposals
from logn.predictions.store import PredictionWriter, StoreHeader
from logn.report.page import write_report
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

HOSTILE = "<script>alert(1)</script>"
NAMES = ("cup", HOSTILE, 'a "quoted" & <b>bold</b> name', "spoon", "fork", "{{ 7 * 7 }} {% saucer %}")
COUNTS = (400, 150, 60, 20, 6, 3)
GROUPS = ("f", "f", "c", "c", "r", "r")
WIDTH, HEIGHT, IMAGES = 96, 64, 12
METHODS = ("logn", "recommended", "norcal", "loga")


def annotation_file(path: Path, images: int, rng: np.random.Generator, shares: np.ndarray) -> dict:
    """Objects on a grid, so that none overlaps another."""
    categories = [
        {"id": place + 1, "name": name, "frequency": group, "image_count": count, "instance_count": count}
        for place, (name, group, count) in enumerate(zip(NAMES, GROUPS, COUNTS, strict=True))
    ]
    listed, annotations = [], []
    for image in range(1, images + 1):
        labels = rng.choice(len(NAMES), 6, p=shares)
        for place, label in enumerate(labels):
            entry = {"id": len(annotations) + 1, "image_id": image, "category_id": int(label) + 1, "area": 484}
            box = [place % 3 * 32 + 4, place // 3 * 32 + 4, 22, 22]
            annotations.append(entry | {"bbox": box, "iscrowd": 0, "segmentation": []})
        absent = [label + 1 for label in range(len(NAMES)) if label not in labels]
        entry = {"id": image, "width": WIDTH, "height": HEIGHT, "file_name": f"images/{image}.png"}
        listed.append(entry | {"neg_category_ids": absent, "not_exhaustive_category_ids": []})
    content = {"images": listed, "categories": categories, "annotations": annotations}
    path.write_text(json.dumps(content))
    return content


def write_images(folder: Path, rng: np.random.Generator) -> None:
    from PIL import Image

    folder.mkdir()
    for image in range(1, IMAGES + 1):
        small = rng.integers(0, 255, (8, 12, 3), np.uint8)
        Image.fromarray(small).resize((WIDTH, HEIGHT)).save(folder / f"{image}.png")


def proposals_of(content: dict, image: int, rng: np.random.Generator) -> Proposals:
    """Two proposals near each object and twenty elsewhere; logits lean to frequent classes."""
    objects = [item for item in content["annotations"] if item["image_id"] == image for _ in range(2)]
    boxes = [np.add(item["bbox"], [0, 0, *item["bbox"][:2]]) + rng.normal(0, 1.2, 4) for item in objects]
    corners = rng.uniform(0, [WIDTH - 12, HEIGHT - 12], (20, 2))
    boxes += [*np.hstack([corners, corners + 10])]
    labels = [item["category_id"] for item in objects] + [0] * 20
    logits = rng.normal(0, 1, (len(labels), len(NAMES) + 1))
    logits[:, 1:] += 0.7 * np.log(COUNTS) - 5
    logits[np.arange(len(labels)), labels] += 4.0
    return Proposals(np.array(boxes, np.float32), logits, height=HEIGHT, width=WIDTH)


def make_run(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    (folder / "data").mkdir(parents=True)
    annotation_file(folder / "data" / "train.json", 60, rng, np.array(COUNTS) / sum(COUNTS))
    content = annotation_file(folder / "data" / "test.json", IMAGES, rng, np.full(len(NAMES), 1 / len(NAMES)))
    write_images(folder / "data" / "images", rng)
    header = StoreHeader(Head.of_classes(NAMES, 7, background=0, activation="softmax"), category_ids=tuple(range(1, 7)))
    metadata = Head(names=("background", *NAMES), background=0, activation="softmax")
    moments = ClassMoments(replace(metadata, num_columns=7), sample_rows=256)
    with PredictionWriter(folder / "predictions", header) as writer:
        for image in range(1, IMAGES + 1):
            proposals = proposals_of(content, image, rng)
            writer.append(image, proposals)
            moments.update(proposals.logits)
    moments.save(folder / "statistics.safetensors")
    comparison = compare(
        folder / "predictions",
        folder / "data" / "test.json",
        METHODS,
        settings=CompareSettings(num_bootstrap=50, errors=True),
        moments=moments,
        counts=ClassCounts.load(folder / "data" / "train.json").at_least(1),
    )
    comparison.save(folder)
    return folder


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """Read only: everything that a run can have."""
    pytest.importorskip("PIL")
    return make_run(tmp_path_factory.mktemp("report") / "run")


ROW_NAMES, ROW_COUNTS = ("cup", HOSTILE, "spoon", "{{ 7 * 7 }}"), np.array([500, 60, 30, 5])
ROW_METHODS = ["logn", "loga", "recommended", "logn:margin=0,use_std=false", "logn:strength=0.25", "loga:tau=0.5"]
ROW_METHODS += ["loga:tau=2", "temperature:value=2", "iif"]  # nine: their names are titles of columns, too


def logit_rows(labels: np.ndarray, seed: int) -> np.ndarray:
    """Logits of a classifier that favours frequent classes."""
    noise = np.random.default_rng(seed).normal(size=(len(labels), 4))
    return 2 * np.eye(4)[labels] + noise + 0.7 * np.log(ROW_COUNTS)


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory):
    """Read only: a comparison of a classifier, with its page."""
    folder, labels = tmp_path_factory.mktemp("classifier"), np.repeat(np.arange(4), 50)
    train = logit_rows(np.repeat(np.arange(4), ROW_COUNTS), 0)
    inputs = {"train_logits": train, "counts": ROW_COUNTS, "class_names": ROW_NAMES}
    settings = CompareSettings(num_bootstrap=50)
    compare(logit_rows(labels, 1), labels, ROW_METHODS, settings=settings, **inputs).save(folder)
    assert write_report(folder, folder / "report.html").missing == {}
    return folder
