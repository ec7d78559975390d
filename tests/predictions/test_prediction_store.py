"""The prediction store: what goes in comes out, and a cut at any byte loses no finished image."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.made.split import store_header

from logn.errors import InputError, LogNWarning
from logn.models.proposals import Proposals
from logn.predictions.nms import Boxes
from logn.predictions.store import RECORD, PredictionStore, PredictionWriter, StoreHeader
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


def write(path: Path, rows: dict[int, int] = ROWS, header: StoreHeader = HEADER, part: int = 0) -> None:
    with PredictionWriter(path, header, part=part) as writer:
        for image_id, count in rows.items():
            if image_id not in writer.image_ids:
                writer.append(image_id, made_proposals(image_id, count, class_boxes=header.class_boxes))


def assert_holds(store: PredictionStore, rows: dict[int, int]) -> None:
    assert store.image_ids.tolist() == sorted(rows)
    for image_id, found in zip(sorted(rows), store, strict=True):
        expected = made_proposals(image_id, rows[image_id], class_boxes=store.header.class_boxes)
        np.testing.assert_array_equal(found.logits, expected.logits)
        np.testing.assert_array_equal(found.boxes, expected.boxes)
        assert (found.height, found.width) == (expected.height, expected.width)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("class_boxes", [False, True])
def test_round_trip(tmp_path, dtype, class_boxes):
    header = replace(HEADER, dtype=dtype, class_boxes=class_boxes)
    write(tmp_path, header=header)
    store = PredictionStore(tmp_path)
    assert store.header == header
    assert store[0].logits.dtype == dtype
    assert store.num_proposals == sum(ROWS.values())
    assert_holds(store, ROWS)
    store.verify()
    assert store[-1].height == store[len(store) - 1].height
    with pytest.raises(IndexError):
        store[len(store)]


def mapped_kilobytes(folder: Path) -> int:
    """How much of the files of a folder this process has mapped, as the system counts it."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(maxsplit=1)[0]:
            counts = str(folder) in line
        elif counts and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says what is mapped")
def test_what_the_system_maps_around_an_image_is_let_go_of_too(tmp_path):
    header = StoreHeader(Head(1000, background=-1, activation="softmax"))
    with PredictionWriter(tmp_path / "store", header) as writer:
        for image in range(60):
            writer.append(image, made_proposals(image, 25, columns=1000))
    store = PredictionStore(tmp_path / "store")
    opened = mapped_kilobytes(tmp_path)
    for image in range(0, 60, 3):  # the others are read by other processes
        assert np.isfinite(store[image].logits).all()
        store.release(image, image + 1)
    assert mapped_kilobytes(tmp_path) <= opened


def test_iterating_releases_each_image_after_it_was_read(tmp_path, monkeypatch):
    released = []
    monkeypatch.setattr(PredictionStore, "release", lambda _, start, stop: released.extend(range(start, stop)))
    write(tmp_path, ROWS)
    for position, _ in enumerate(PredictionStore(tmp_path)):
        assert released == list(range(position))
    assert released == list(range(len(ROWS)))


def test_views_are_read_only_and_outlive_release(tmp_path):
    write(tmp_path)
    store = PredictionStore(tmp_path)
    index = store.image_ids.tolist().index(7)
    logits = store[index].logits
    store.release(0, len(store))
    np.testing.assert_array_equal(logits, made_proposals(7, 3).logits)
    with pytest.raises(ValueError, match="read-only"):
        logits[0, 0] = 1


def test_infinite_logits_become_the_largest_number(tmp_path):
    with PredictionWriter(tmp_path, StoreHeader(Head(3, activation="softmax"))) as writer:
        writer.append(1, Proposals(np.zeros((1, 4)), np.array([[np.inf, -np.inf, 1e30]]), height=1, width=1))
    assert PredictionStore(tmp_path)[0].logits.tolist() == [[65504.0, -65504.0, 65504.0]]


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
    assert len(PredictionStore(tmp_path)) == 0


@pytest.mark.parametrize("name", ["index.bin", "logits.bin", "boxes.bin", "header.json"])
def test_cut_at_any_byte(tmp_path, name):
    """Each cut opens with the complete images or is refused in one sentence; then writing goes on to the end."""
    write(tmp_path)
    file = tmp_path / "part-00000" / name
    originals = {other.name: other.read_bytes() for other in file.parent.iterdir()}
    content = originals[name]
    bytes_up_to = {
        "index.bin": lambda number: (number + 1) * RECORD.itemsize,
        "logits.bin": lambda number: sum(list(ROWS.values())[: number + 1]) * 4 * 2,
        "boxes.bin": lambda number: sum(list(ROWS.values())[: number + 1]) * 16,
    }
    for cut in range(len(content)):
        file.write_bytes(content[:cut])
        if name == "header.json":
            if cut < len(content) - 1:  # the last byte is only the end of the line
                with pytest.raises(InputError, match=r"^`.*header\.json` is not the header of .*\.$"):
                    PredictionStore(tmp_path)
            continue
        complete = [number for number in range(len(ROWS)) if bytes_up_to[name](number) <= cut]
        assert_holds(PredictionStore(tmp_path), dict(list(ROWS.items())[: len(complete)]))
        if cut % 10 == 3:  # going on is the same work for each, and it waits for the disk
            write(tmp_path)
            assert_holds(PredictionStore(tmp_path), ROWS)
            for other, bytes_of_other in originals.items():
                assert (tmp_path / "part-00000" / other).read_bytes() == bytes_of_other


@settings(max_examples=15, deadline=None)
@given(cuts=st.tuples(*[st.integers(0, 200)] * 3))
@example(cuts=(200, 200, 200))
def test_cuts_of_several_files_at_once(tmp_path_factory, cuts):
    """And rows without a record, which are written over: what a killed process leaves where nothing is cut."""
    path = tmp_path_factory.mktemp("store")
    write(path)
    for name, cut in zip(("index.bin", "logits.bin", "boxes.bin"), cuts, strict=True):
        file = path / "part-00000" / name
        file.write_bytes(file.read_bytes()[:cut] + (b"half of an image" if min(cuts) == 200 else b""))
    found = PredictionStore(path).image_ids.tolist()
    assert found == sorted(list(ROWS)[: len(found)])
    write(path, {**ROWS, 13: 2})
    assert_holds(PredictionStore(path), {**ROWS, 13: 2})


def test_any_changed_byte_of_the_index_is_refused(tmp_path):
    write(tmp_path)
    file = tmp_path / "part-00000" / "index.bin"
    content = file.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x40
        file.write_bytes(changed)
        with pytest.raises(InputError, match=r"record \d of 4 is damaged"):
            PredictionStore(tmp_path)


@pytest.mark.parametrize("name", ["logits.bin", "boxes.bin"])
def test_reading_and_verifying_find_changed_rows(tmp_path, name):
    write(tmp_path)
    file = tmp_path / "part-00000" / name
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    store = PredictionStore(tmp_path)
    with pytest.raises(InputError, match="image 7 is damaged"):
        store.verify()
    with pytest.raises(InputError, match=r"image 7 is damaged; remove the folder `.*part-00000` and predict its"):
        store[store.image_ids.tolist().index(7)]


def test_a_second_writer_and_an_image_twice_are_refused(tmp_path):
    write(tmp_path)
    with PredictionWriter(tmp_path, HEADER) as writer:
        with pytest.raises(InputError, match="has image 7 already"):
            writer.append(7, made_proposals(7, 3))
        with pytest.raises(InputError, match="Another process is writing"):
            PredictionWriter(tmp_path, HEADER)
    PredictionWriter(tmp_path, HEADER).close()


def test_parts_are_read_as_one(tmp_path):
    write(tmp_path, {7: 3, 2: 0}, part=0)
    write(tmp_path, {11: 2, 5: 1}, part=1)
    (tmp_path / "part-00002").mkdir()  # a process that was stopped before its first byte
    assert_holds(PredictionStore(tmp_path), ROWS)


def test_exact_repeat_counts_once_and_differing_repeat_is_refused(tmp_path):
    write(tmp_path, {7: 3, 2: 0}, part=0)
    write(tmp_path, {7: 3, 5: 1}, part=1)
    assert_holds(PredictionStore(tmp_path), {7: 3, 2: 0, 5: 1})
    write(tmp_path, {2: 1}, part=2)
    with pytest.raises(InputError, match="holds image 2 twice, with different proposals"):
        PredictionStore(tmp_path)


def test_parts_of_other_models_are_refused(tmp_path):
    write(tmp_path, {7: 3})
    other = StoreHeader(Head(4, background=-1, activation="softmax"))
    write(tmp_path, {5: 1}, header=other, part=1)
    with pytest.raises(InputError, match="part-00001` has"):
        PredictionStore(tmp_path)
    with pytest.raises(InputError, match="part-00000` has"):
        PredictionWriter(tmp_path, other)


@pytest.mark.parametrize("kind", [list, np.array])
def test_names_and_ids_may_be_lists_or_arrays_also_where_a_store_is_continued(tmp_path, kind):
    for rows in ({7: 3}, {7: 3, 5: 1}):
        named = {name: kind(values) for name, values in NAMED.items()}
        header = store_header(4, background=0, num_images=2, **named)
        write(tmp_path, rows, header=header)
        assert PredictionStore(tmp_path).is_complete == (len(rows) == 2)
    written = PredictionStore(tmp_path).header
    assert written == header
    assert (written.class_names, written.category_ids) == (HEADER.class_names, HEADER.category_ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 3}, "has schema 3, but this version reads 6; predict again"),
        ({"format": "other"}, "its format is not 'logn.predictions'"),
        ({"head": {"activation": "tanh"}}, "Expected `activation`"),
        ({"dtype": "int8"}, "Expected `dtype`"),
        ({"surprise": 1}, "surprise"),
        ({"head": {"num_columns": 1, "names": None}}, "the background"),
        ({"head": {"num_columns": "4"}}, "`head`"),
        ({"head": {"num_columns": None, "names": None}}, "`num_columns`"),
        ({"head": {"names": ["cup"]}}, "`class_names`"),
        ({"head": {"names": 5}}, "`names`"),
        ({"category_ids": ["1", "2", "3"]}, "Expected `category_ids` to list a whole number for each class"),
        ({"num_images": "many"}, "Expected `num_images`"),
        ({"num_images": -1}, "Expected `num_images`"),
        ({"metadata": None}, "Expected `metadata`"),
        ({"boxes_per_proposal": 2}, "Expected `boxes_per_proposal` of 1 or more, with `class_boxes` only, but got 2"),
    ],
)
def test_bad_headers_are_refused(tmp_path, change, message):
    write(tmp_path)
    file = tmp_path / "part-00000" / "header.json"
    content = json.loads(file.read_text())
    if "head" in change:
        change = {"head": content["head"] | change["head"]}
    file.write_text(json.dumps(content | change))
    with pytest.raises(InputError, match=message) as caught:
        PredictionStore(tmp_path)
    assert str(file) in str(caught.value)


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a prediction store"):
        PredictionStore(tmp_path)


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
    for found in PredictionStore(tmp_path):
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
    assert PredictionStore(tmp_path / "five").header.boxes_per_proposal is None  # all
    store = PredictionStore(tmp_path / "two")
    store.verify()
    row, label = np.divmod(np.arange(20), 5)
    for found, proposals in zip(store, images.values(), strict=True):
        ranked = np.argsort(-proposals.logits[:, 1:], axis=1)
        np.testing.assert_array_equal(found.box_classes, ranked[:, :2])
        used = np.where(label == ranked[row, 1], label, ranked[row, 0])
        np.testing.assert_array_equal(Boxes(found, 5).at(row, label), proposals.boxes[row, used])
    with PredictionWriter(tmp_path / "again", header) as writer, pytest.raises(InputError, match=r"shape \(N, 5, 4\)"):
        writer.append(1, store[0])
