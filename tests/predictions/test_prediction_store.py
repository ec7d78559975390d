"""Predictions on disk: what goes in comes out, whoever writes it and however a run ends."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.made.split import make_split, store_header

from logn import InputError, Predictions, Proposals
from logn.errors import LogNWarning
from logn.matching.ground_truth import truth_of_predictions
from logn.predictions import store as predictions_store
from logn.predictions.nms import Boxes
from logn.predictions.store import PredictionWriter, StoreHeader
from logn.statistics.head import Head

NAMED = {"class_names": ("cup", "cat", "owl"), "category_ids": (3, 5, 9)}
HEADER = store_header(4, background=0, metadata={"model": "made"}, **NAMED)
ROWS = {7: 3, 2: 0, 11: 2, 5: 1}


def made_proposals(image_id: int, rows: int, *, columns: int = 4, class_boxes: bool = False) -> Proposals:
    rng = np.random.default_rng(image_id)
    shape = (rows, columns - 1, 4) if class_boxes else (rows, 4)
    corners = np.sort(rng.uniform(0, 90, (*shape[:-1], 2, 2)), axis=-2)
    return Proposals(
        boxes=corners.reshape(shape).astype(np.float32),
        logits=rng.normal(0, 3, (rows, columns)).astype(np.float16).astype(np.float32),
        height=60 + image_id,
        width=80 + image_id,
    )


def write(path: Path, rows: dict[int, int] = ROWS, header: StoreHeader = HEADER) -> None:
    with PredictionWriter(path, header) as writer:
        for image_id, count in rows.items():
            if image_id not in writer.image_ids:
                writer.append(image_id, made_proposals(image_id, count, class_boxes=header.class_boxes))


def assert_holds(store: Predictions, rows: dict[int, int]) -> None:
    assert store.image_ids.tolist() == sorted(rows)
    for image_id, found in zip(sorted(rows), store, strict=True):
        expected = made_proposals(image_id, rows[image_id], class_boxes=store.header.class_boxes)
        np.testing.assert_array_equal(found.logits, expected.logits)
        np.testing.assert_array_equal(found.boxes, expected.boxes)
        assert (found.height, found.width) == (expected.height, expected.width)


def shards(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


@pytest.fixture
def small_shards(monkeypatch):
    """A shard for every two images."""
    monkeypatch.setattr(predictions_store, "SHARD_IMAGES", 2)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("class_boxes", [False, True])
def test_round_trip(tmp_path, small_shards, dtype, class_boxes):
    header = replace(HEADER, dtype=dtype, class_boxes=class_boxes)
    write(tmp_path, header=header)
    store = Predictions(tmp_path)
    assert len(shards(tmp_path)) == 2
    assert store.header == header
    assert store[0].logits.dtype == dtype
    assert store.num_proposals == sum(ROWS.values())
    assert store.sizes.tolist() == [[60 + image, 80 + image] for image in sorted(ROWS)]
    assert_holds(store, ROWS)
    assert_holds(store.part(np.array([1, 3])), {5: 1, 11: 2})
    assert store[-1].height == store[len(store) - 1].height
    with pytest.raises(IndexError):
        store[len(store)]


def test_a_writer_keeps_little_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(predictions_store, "SHARD_BYTES", 40)
    with PredictionWriter(tmp_path, HEADER) as writer:
        for image_id, count in ROWS.items():
            writer.append(image_id, made_proposals(image_id, count))
        assert len(Predictions(tmp_path)) >= 3
    assert_holds(Predictions(tmp_path), ROWS)


def test_a_run_that_was_killed_is_continued_from_its_whole_shards(tmp_path, small_shards):
    writer = PredictionWriter(tmp_path, HEADER)
    for image_id in (7, 2, 11):
        writer.append(image_id, made_proposals(image_id, ROWS[image_id]))
    (tmp_path / ".shard.partial").mkdir()  # what a process leaves that was killed while it wrote
    assert_holds(Predictions(tmp_path), {7: 3, 2: 0})
    write(tmp_path)
    assert_holds(Predictions(tmp_path), ROWS)


def test_several_writers_are_read_as_one(tmp_path, small_shards):
    """Two that write the same images at the same time write the same file."""
    writers = [PredictionWriter(tmp_path, HEADER) for _ in range(3)]
    for writer, images in zip(writers, ([7, 2], [7, 2], [11, 5]), strict=True):
        for image_id in images:
            writer.append(image_id, made_proposals(image_id, ROWS[image_id]))
    for writer in writers:
        writer.close()
    assert len(shards(tmp_path)) == 2
    assert_holds(Predictions(tmp_path), ROWS)


def test_exact_repeat_counts_once_and_differing_repeat_is_refused(tmp_path):
    for folder, rows in (("one", {7: 3, 2: 0}), ("two", {7: 3, 5: 1}), ("three", {2: 1})):
        write(tmp_path / folder, rows)
    shutil.copy(*shards(tmp_path / "two"), tmp_path / "one")
    assert_holds(Predictions(tmp_path / "one"), {7: 3, 2: 0, 5: 1})
    shutil.copy(*shards(tmp_path / "three"), tmp_path / "one")
    with pytest.raises(InputError, match="image 2 twice"):
        Predictions(tmp_path / "one")


def test_a_shard_that_is_cut_anywhere_is_refused_by_its_name(tmp_path):
    write(tmp_path)
    (shard,) = shards(tmp_path)
    size = shard.stat().st_size
    for cut in range(size - 1, -1, -7):
        os.truncate(shard, cut)
        with pytest.raises(InputError, match=shard.name):
            Predictions(tmp_path)
    with pytest.raises(InputError, match=shard.name):
        PredictionWriter(tmp_path, HEADER)
    shard.unlink()
    write(tmp_path)
    assert_holds(Predictions(tmp_path), ROWS)


@pytest.mark.parametrize(
    "other",
    [
        {"background": -1},
        {"class_names": ("cup", "cat", "elk")},
        {"dtype": "float32"},
        {"source": "torch:other"},
        {"objectness": True},
    ],
    ids=lambda words: next(iter(words)),
)
def test_other_models_and_settings_are_refused(tmp_path, other):
    words = {"num_columns": 4, "background": 0, "source": "torch:one", **NAMED}
    one, two = store_header(**words), store_header(**(words | other))
    write(tmp_path / "one", {7: 3}, one)
    with pytest.raises(InputError, match="one"):
        PredictionWriter(tmp_path / "one", two)
    PredictionWriter(tmp_path / "two", two)
    shutil.copy(tmp_path / "two" / "header.json", tmp_path / "one")
    with pytest.raises(InputError, match=shards(tmp_path / "one")[0].name):
        Predictions(tmp_path / "one")


def test_a_model_that_tells_no_weights_and_notes_that_differ_go_on(tmp_path):
    known = replace(HEADER.head, source="torch:one")
    write(tmp_path, {7: 3}, replace(HEADER, head=known))
    write(tmp_path, ROWS, replace(HEADER, metadata={"model": "elsewhere/made"}))
    assert_holds(Predictions(tmp_path), ROWS)


def test_an_image_twice_is_refused(tmp_path):
    write(tmp_path)
    with PredictionWriter(tmp_path, HEADER) as writer:
        writer.append(8, made_proposals(8, 1))
        for image_id in (7, 8):
            with pytest.raises(InputError, match=f"image {image_id} already"):
                writer.append(image_id, made_proposals(image_id, 3))


def test_infinite_logits_become_the_largest_number(tmp_path):
    with PredictionWriter(tmp_path, StoreHeader(Head(3, activation="softmax"))) as writer:
        writer.append(1, Proposals(np.zeros((1, 4)), np.array([[np.inf, -np.inf, 1e30]]), height=1, width=1))
    assert Predictions(tmp_path)[0].logits.tolist() == [[65504.0, -65504.0, 65504.0]]


BOXES, LOGITS = np.zeros((1, 4)), np.zeros((1, 4))


@pytest.mark.parametrize(
    ("image_id", "proposals", "message"),
    [
        (1, (BOXES, np.full((1, 4), np.nan)), "image 1 to be numbers"),
        (1, (np.full((1, 4), np.inf), LOGITS), "image 1 to be finite"),
        (1, (BOXES, np.zeros((1, 5))), "to have 4 columns, but got 5"),
        (1, (np.zeros((1, 3, 4)), LOGITS), r"shape \(N, 4\)"),
        ("seven", (BOXES, LOGITS), "but got str and Proposals"),
        (7, None, "but got int and tuple"),
    ],
)
def test_bad_proposals_are_refused_and_leave_nothing(tmp_path, image_id, proposals, message):
    given = (BOXES, LOGITS) if proposals is None else Proposals(*proposals, height=1, width=1)
    with PredictionWriter(tmp_path, HEADER) as writer, pytest.raises(InputError, match=message):
        writer.append(image_id, given)
    assert len(Predictions(tmp_path)) == 0


@pytest.mark.parametrize("kind", [list, np.array])
def test_names_and_ids_may_be_lists_or_arrays_also_where_a_store_is_continued(tmp_path, kind):
    for rows in ({7: 3}, {7: 3, 5: 1}):
        named = {name: kind(values) for name, values in NAMED.items()}
        header = store_header(4, background=0, num_images=2, **named)
        write(tmp_path, rows, header=header)
        assert Predictions(tmp_path).is_complete == (len(rows) == 2)
    written = Predictions(tmp_path).header
    assert written == header
    assert (written.head.class_names, written.category_ids) == (HEADER.head.class_names, HEADER.category_ids)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head", replace(HEADER.head, activation=None)),
        ("head", Head(activation="softmax")),
        ("dtype", "int8"),
        ("category_ids", [1, 2]),
        ("num_images", -1),
        ("boxes_per_proposal", 2),
    ],
)
def test_bad_settings_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        replace(HEADER, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head", {"num_columns": 4, "activation": "tanh"}),
        ("head", {"num_columns": "4", "activation": "softmax"}),
        ("head", None),
        ("dtype", "int8"),
        ("dtype", 16),
        ("category_ids", ["1", "2", "3"]),
        ("num_images", "many"),
        ("metadata", None),
        ("postprocessing", {"nms": "soft"}),
    ],
)
def test_bad_headers_are_refused(tmp_path, name, value):
    write(tmp_path)
    file = tmp_path / "header.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "header": {**content["header"], name: value}}))
    with pytest.raises(InputError, match=f"{file}.*{name}"):
        Predictions(tmp_path)


def test_files_that_are_no_header_are_refused(tmp_path):
    with pytest.raises(InputError, match=str(tmp_path)):
        Predictions(tmp_path)
    write(tmp_path)
    file = tmp_path / "header.json"
    content = file.read_text()
    for text in (
        content[:-3],
        "",
        "[]",
        content.replace("logn.predictions", "other"),
        content.replace('"schema": 7', '"schema": 6'),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=r"header\.json"):
            Predictions(tmp_path)


def test_tensors_and_lists_are_proposals_too(tmp_path):
    """What a loop over a model has at hand are tensors, with gradients and in any precision."""
    torch = pytest.importorskip("torch")
    boxes, logits = [[0.0, 0.0, 5.0, 5.0]], [[1.0, 2.0, 3.0, -1.5]]
    kinds = {
        1: Proposals(boxes, logits, 10, 20),
        2: Proposals(torch.tensor(boxes), torch.tensor(logits, requires_grad=True), 10, 20),
        3: Proposals(torch.tensor(boxes).double(), torch.tensor(logits).bfloat16(), 10, 20),
    }
    with PredictionWriter(tmp_path, HEADER) as writer:
        for image_id, proposals in kinds.items():
            writer.append(image_id, proposals)
    for found in Predictions(tmp_path):
        assert (found.boxes.tolist(), found.logits.tolist()) == (boxes, logits)
    for arguments, message in (
        ((BOXES, "logits", 9, 9), "`logits` to be an array of numbers, but got str"),
        ((None, LOGITS, 9, 9), "`boxes` to have shape"),
        ((BOXES, LOGITS, 0, 9), "`height` and `width` to be at least 1, but got 0 and 9"),
    ):
        with pytest.raises(InputError, match=message):
            Proposals(*arguments)


def test_widths_in_the_place_of_corners_are_noticed_once(tmp_path):
    boxes = np.array([[50, 40, 12, 9], [30, 60, 8, 8], [1, 1, 5, 5]])
    proposals = Proposals(boxes, np.zeros((3, 4)), 90, 90)
    with PredictionWriter(tmp_path, HEADER) as writer:
        with pytest.warns(LogNWarning, match="widths and heights"):
            writer.append(1, proposals)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            writer.append(2, proposals)


def test_the_boxes_of_the_top_classes_are_kept_and_others_use_that_of_the_top_one(tmp_path):
    header = StoreHeader(Head(6, background=0, activation="softmax"), dtype="float32", class_boxes=True)
    images = {image: made_proposals(image, 4, columns=6, class_boxes=True) for image in (1, 2)}
    for kept, folder in ((2, "two"), (5, "five")):
        with PredictionWriter(tmp_path / folder, replace(header, boxes_per_proposal=kept)) as writer:
            for image, proposals in images.items():
                writer.append(image, proposals)
    assert Predictions(tmp_path / "five").header.boxes_per_proposal is None  # all
    store = Predictions(tmp_path / "two")
    row, label = np.divmod(np.arange(20), 5)
    for found, proposals in zip(store, images.values(), strict=True):
        ranked = np.argsort(-proposals.logits[:, 1:], axis=1)
        np.testing.assert_array_equal(found.box_classes, ranked[:, :2])
        used = np.where(label == ranked[row, 1], label, ranked[row, 0])
        np.testing.assert_array_equal(Boxes(found, 5).at(row, label), proposals.boxes[row, used])
    with PredictionWriter(tmp_path / "again", header) as writer, pytest.raises(InputError, match=r"shape \(N, 5, 4\)"):
        writer.append(1, store[0])


def test_labels_of_images_of_another_size_are_refused(tmp_path):
    split = make_split(tmp_path, images=4)
    content = json.loads(split.annotations.read_text())
    truth_of_predictions(content, split.store)
    for image in content["images"][:2]:
        image |= {"height": 2000, "width": 2000}
    with pytest.raises(InputError, match=r"image 1 .*2 such images"):
        truth_of_predictions(content, split.store)
    for image in content["images"]:
        del image["height"], image["width"]  # labels need not tell
    truth_of_predictions(content, split.store)
