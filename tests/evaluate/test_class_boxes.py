"""Boxes of some classes only: what is kept is kept exactly, and what is missing is never missing silently."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.calibrators.class_affine import ClassAffine
from logn.errors import InputError, LogNWarning
from logn.evaluate.comparison.compare import CompareSettings, compare
from logn.evaluate.decode.borrowed_boxes import count_borrowed
from logn.evaluate.decode.decoder import DecodeSettings, Purpose, decode, decode_chunks, decode_for, decode_many
from logn.evaluate.detection.assignment import one_box_each
from logn.evaluate.store import size
from logn.evaluate.store.box_candidates import candidate_boxes
from logn.evaluate.store.format import StoreHeader
from logn.evaluate.store.predict import predict
from logn.evaluate.store.size import image_bytes, say_size
from logn.evaluate.store.store import PredictionStore
from logn.evaluate.store.writer import PredictionWriter
from logn.logits.proposals import ClassBoxes, Proposals

COLUMNS = ("image_index", "labels", "scores", "boxes", "proposal")


def made(seed: int, rows: int, header: StoreHeader) -> Proposals:
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 12, (rows, header.num_classes, 2)) * 2.0
    boxes = np.concatenate([corner, corner + rng.integers(0, 10, corner.shape)], axis=-1)
    logits = np.round(rng.normal(0, 2, (rows, header.num_columns)) * 4) / 4  # rounded, so that scores are equal
    objectness = np.round(rng.normal(0, 2, rows), 1) if header.objectness else None
    return Proposals(boxes.astype(np.float32), logits.astype(np.float32), 40, 40, objectness)


def write(path, header: StoreHeader, images: dict[int, Proposals]) -> PredictionStore:
    with PredictionWriter(path, header) as writer:
        for image_id, proposals in images.items():
            if image_id not in writer.image_ids:
                writer.append(image_id, proposals)
    return PredictionStore(path)


def header_with(kept: int | None, columns: int = 9, **changes) -> StoreHeader:
    choices = {"background": -1, "dtype": "float32", "class_boxes": True} | changes
    return StoreHeader(num_columns=columns, kept_class_boxes=kept, **choices)


def assert_same(left, right) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


HEADERS = [
    header_with(None, background=background, activation=activation, objectness=objectness, class_columns=columns)
    for background, columns in ((None, None), (0, None), (-1, None), (-1, (5, 2, 0)))
    for activation in ("softmax", "sigmoid")
    for objectness in (False, True)
]


@settings(max_examples=30, deadline=None)
@given(header=st.sampled_from(HEADERS), seed=st.integers(0, 10**6), kept=st.integers(1, 9), rows=st.integers(0, 12))
def test_what_is_kept_comes_back_and_is_what_the_rule_says(tmp_path_factory, header, seed, kept, rows):
    """The four ways in which a pair can be good, each by a plain sort."""
    proposals = made(seed, rows, header)
    few = replace(header, kept_class_boxes=kept)
    store = write(tmp_path_factory.mktemp("store"), few, {1: made(seed + 1, 3, header), 2: proposals})
    store.verify()
    found = store[1]
    own = found.class_boxes
    np.testing.assert_array_equal(found.logits, proposals.logits)
    foreground = proposals.logits[:, header.columns].astype(np.float64)
    scores = foreground.copy()
    if header.activation == "softmax":
        scores -= np.log(np.exp(proposals.logits.astype(np.float64)).sum(axis=1, keepdims=True))
    if header.objectness:
        scores -= np.log1p(np.exp(-proposals.objectness))[:, None]
    standing = (foreground - foreground.mean(axis=0)) / np.maximum(foreground.std(axis=0), 1e-3) if rows else foreground
    is_kept = np.zeros((rows, header.num_classes), bool)
    is_kept.reshape(-1)[own.pairs] = True
    for proposal, label in np.ndindex(*is_kept.shape):
        beaten_by = [
            (foreground[proposal] > foreground[proposal, label]).sum() < kept,
            (standing[proposal] > standing[proposal, label] + 1e-5).sum() < kept,
            (scores[:, label] > scores[proposal, label] + 1e-5).sum() < kept,
            (scores > scores[proposal, label] + 1e-5).sum() < kept * rows,
        ]
        unbeaten = [
            (foreground[proposal] >= foreground[proposal, label]).sum() <= kept,
            (standing[proposal] >= standing[proposal, label] - 1e-5).sum() <= kept,
            (scores[:, label] >= scores[proposal, label] - 1e-5).sum() <= kept,
            (scores >= scores[proposal, label] - 1e-5).sum() <= kept * rows,
        ]
        # Of equal ones any may be kept.
        assert any(beaten_by) or not is_kept[proposal, label]
        assert not any(unbeaten) or is_kept[proposal, label]
    assert (np.diff(own.pairs.astype(np.int64)) > 0).all()
    np.testing.assert_array_equal(own.boxes, proposals.boxes.reshape(-1, 4)[own.pairs])
    np.testing.assert_array_equal(found.boxes, one_box_each(proposals, header.columns))
    assert own.has(np.arange(rows), foreground.argmax(axis=1) if rows else np.empty(0, int)).all()


@settings(max_examples=40, deadline=None)
@given(
    header=st.sampled_from(HEADERS),
    seed=st.integers(0, 10**6),
    kept=st.integers(1, 8),
    limit=st.sampled_from([None, 1, 3, 20]),
    threshold=st.sampled_from([0.0, 1e-4, 0.05, 0.3]),
    nms=st.sampled_from(["class-wise", "class-agnostic", "none"]),
    fixed=st.booleans(),
)
def test_without_a_warning_the_result_is_that_of_all_boxes(
    tmp_path_factory, header, seed, kept, limit, threshold, nms, fixed
):
    """The theorem that the warning rests on: if no candidate that decided borrowed its box, nothing is different."""
    images = {number: made(seed + number, 8, header) for number in range(3)}
    rng = np.random.default_rng(seed)
    columns = header.num_columns
    affine = ClassAffine(rng.choice([0.5, 1.0, 2.0], columns), rng.choice([-3.0, 0.0, 2.0], columns))
    chosen = DecodeSettings(
        score_threshold=threshold, max_detections=limit, nms=nms, max_per_class=2 if fixed and limit is None else None
    )
    whole = decode_many(write(tmp_path_factory.mktemp("all"), header, images), [None, affine], chosen, threads=1)
    few = write(tmp_path_factory.mktemp("few"), replace(header, kept_class_boxes=kept), images)
    for method, expected in zip((None, affine), whole, strict=True):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = decode(few, method, chosen, threads=1)
        borrowed = count_borrowed(few, found)
        assert said or not borrowed
        if not said:
            assert_same(found, expected)


def test_every_candidate_is_kept_where_as_many_are_as_there_are_classes_or_proposals(tmp_path):
    header = header_with(None)
    images = {1: made(1, 5, header), 2: made(2, 8, header)}
    for kept in (8, 20):
        store = write(tmp_path / str(kept), replace(header, kept_class_boxes=kept), images)
        assert [len(proposals.class_boxes.pairs) for proposals in store] == [5 * 8, 8 * 8]
    whole = write(tmp_path / "all", header, images)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(decode(store), decode(whole))


@pytest.fixture
def crowd(tmp_path):
    """Three proposals, each sure of two classes of six; one box is kept of each proposal, class and so on."""
    header = header_with(1, columns=6, background=None, activation="sigmoid")
    logits = np.array([[4, 3, -9, -9, -9, -9], [3.5, 2.9, -9, -9, -9, -9], [3, 2.5, -9, -9, -9, -9]], np.float32)
    logits[[0, 1, 2], [2, 3, 4]] += 1  # where each stands out, so that no other is kept for that
    boxes = np.zeros((3, 6, 4), np.float32)
    boxes[..., 2:] = 10
    boxes += 20 * np.arange(3, dtype=np.float32)[:, None, None]  # apart from each other
    boxes[:, 1] += 3  # the box of the second class is another
    return write(tmp_path / "store", header, {1: Proposals(boxes, logits, 90, 90)})


def test_detections_without_a_box_take_that_of_the_strongest_class_and_are_counted(crowd):
    with pytest.warns(LogNWarning, match=r"33 % \(no correction\) of the detections have that of .* strongest class"):
        found = decode(crowd, None, DecodeSettings(score_threshold=0.5))
    assert count_borrowed(crowd, found) == 2
    of_second = found.take(found.labels == 1)
    assert of_second.proposal.tolist() == [0, 1, 2]
    assert of_second.boxes[:, 0].tolist() == [3, 20, 40]


@pytest.mark.parametrize(("limit", "of_all_boxes"), [(None, [0, 0, 1, 2]), (300, [0, 0, 1, 2]), (3, [0, 0, 1])])
def test_a_suppressed_candidate_that_borrowed_is_said_too(tmp_path, limit, of_all_boxes):
    """Its own box might not have been suppressed, also where a limit is reached without it."""
    header = header_with(1, columns=3, background=None, activation="sigmoid")
    logits = np.array([[4, 3.0, -9], [3, 2.9, -8], [2, -9, -9]], np.float32)
    boxes = np.tile(np.array([0, 0, 10, 10], np.float32), (3, 3, 1))
    boxes[1, 1] = [50, 50, 60, 60]  # which is not kept: that of the second proposal's strongest class overlaps
    boxes[2] += 70
    image = {1: Proposals(boxes, logits, 90, 90)}
    store = write(tmp_path / "few", header, image)
    chosen = DecodeSettings(score_threshold=0.5, max_detections=limit)
    words = r"none of the detections have .* own \(of the candidates that were suppressed or left out, 1\)"
    with pytest.warns(LogNWarning, match=words):
        found = decode(store, None, chosen)
    assert found.proposal.tolist() == [0, 0, 2]
    whole = write(tmp_path / "all", replace(header, kept_class_boxes=None), image)
    assert decode(whole, None, chosen).proposal.tolist() == of_all_boxes


def test_a_tiny_borrowed_box_is_not_left_out_in_silence(tmp_path):
    header = header_with(1, columns=3, background=None, activation="sigmoid")
    boxes = np.tile(np.array([0, 0, 10, 10], np.float32), (2, 3, 1))
    boxes[1, 0] = [5, 5, 5, 5]
    logits = np.array([[4, 3.0, -9], [3, 2.9, -9]], np.float32)
    store = write(tmp_path, header, {1: Proposals(boxes, logits, 90, 90)})
    with pytest.warns(LogNWarning, match=r"33 % \(no correction\)"):
        decode(store, None, DecodeSettings(score_threshold=0.5))


def test_all_ways_of_decoding_say_it(crowd):
    chosen = DecodeSettings(score_threshold=0.5)
    with pytest.warns(LogNWarning, match="33 %"):
        chunks = list(decode_chunks(crowd, [None], chosen, threads=1))
    assert len(chunks[0][0]) == 6
    fixed = replace(chosen, max_detections=None, max_per_class=100)
    with pytest.warns(LogNWarning, match=r"33 % \(one\), 33 % \(two\) of the detections for AP-Fixed"):
        decode_for(crowd, [None, None], [Purpose(fixed)], names=["one", "two"], threads=1)


def test_the_warning_says_what_to_type(tmp_path):
    header = header_with(2, columns=9)
    store = write(tmp_path, header, {1: made(1, 40, header)})
    with pytest.warns(LogNWarning) as said:
        decode(store, None, DecodeSettings(score_threshold=1e-4))
    assert "`--class-boxes 4` in a new folder keeps more, `--class-boxes all` keeps all." in str(said[0].message)


def test_compare_says_it_of_each_method(tmp_path):
    header = header_with(1, columns=5, class_names=tuple("abcd"), category_ids=(1, 2, 3, 4))
    images = {number: made(number, 12, header) for number in (1, 2, 3)}
    store = write(tmp_path / "store", header, images)
    annotations = {
        "images": [{"id": number, "width": 40, "height": 40} for number in images],
        "annotations": [
            {"id": number, "image_id": number, "category_id": number, "bbox": [2, 2, 9, 9], "area": 81, "iscrowd": 0}
            for number in images
        ],
        "categories": [{"id": number + 1, "name": name} for number, name in enumerate("abcd")],
    }
    (tmp_path / "val.json").write_text(json.dumps(annotations))
    chosen = CompareSettings(num_bootstrap=0, report_images=0)
    with pytest.warns(LogNWarning, match=r"% \(none\)"):
        found = compare(store, tmp_path / "val.json", ["none"], settings=chosen)
    assert any(
        "of its detections have the box of their proposal's strongest class" in note for note in found.rows[0].notes
    )


@pytest.mark.parametrize("name", ["index.bin", "pairs.bin", "class_boxes.bin", "boxes.bin", "logits.bin"])
def test_a_cut_at_any_place_loses_no_finished_image(tmp_path, name):
    header = header_with(1, columns=5)
    images = {7: made(7, 3, header), 2: made(2, 0, header), 11: made(11, 2, header)}
    write(tmp_path, header, images)
    file = tmp_path / "part-00000" / name
    originals = {other.name: other.read_bytes() for other in file.parent.iterdir()}
    content = originals[name]
    for cut in range(0, len(content), 7):
        file.write_bytes(content[:cut])
        store = PredictionStore(tmp_path)
        store.verify()
        assert store.image_ids.tolist() in ([], [7], [2, 7])
    write(tmp_path, header, images)
    for other, bytes_of_other in originals.items():
        assert (tmp_path / "part-00000" / other).read_bytes() == bytes_of_other


@pytest.mark.parametrize("name", ["pairs.bin", "class_boxes.bin"])
def test_reading_and_verifying_find_changed_bytes(tmp_path, name):
    header = header_with(1, columns=5)
    write(tmp_path, header, {7: made(7, 3, header)})
    file = tmp_path / "part-00000" / name
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match="image 7 is damaged"):
        PredictionStore(tmp_path).verify()
    store = PredictionStore(tmp_path)
    with pytest.raises(InputError, match="image 7 is damaged; remove the folder and predict its images again"):
        store[store.image_ids.tolist().index(7)]


def test_stores_of_earlier_schemas_are_read(tmp_path):
    header = header_with(None, columns=5)
    images = {7: made(7, 3, header)}
    before = write(tmp_path, header, images)[0]
    file = tmp_path / "part-00000" / "header.json"
    content = json.loads(file.read_text())
    del content["kept_class_boxes"]
    file.write_text(json.dumps({**content, "schema": 2}))
    store = PredictionStore(tmp_path)
    store.verify()
    np.testing.assert_array_equal(store[0].boxes, before.boxes)
    write(tmp_path, header, {**images, 8: made(8, 2, header)})  # and continued
    assert PredictionStore(tmp_path).image_ids.tolist() == [7, 8]


def test_parts_and_other_numbers_of_boxes(tmp_path):
    header = header_with(2, columns=6)
    first, second = made(1, 6, header), made(2, 6, header)
    write(tmp_path, header, {1: first})
    with PredictionWriter(tmp_path, header, part=1) as writer:
        writer.append(2, second)
    store = PredictionStore(tmp_path)
    for proposals, found in zip((first, second), store, strict=True):
        expected = candidate_boxes(proposals, header, proposals.logits).class_boxes
        np.testing.assert_array_equal(found.class_boxes.pairs, expected.pairs)
        np.testing.assert_array_equal(found.class_boxes.boxes, expected.boxes)
    with pytest.raises(InputError, match="to have kept_class_boxes 2, but it has 3"):
        PredictionWriter(tmp_path, replace(header, kept_class_boxes=3))


def test_infinite_logits_have_candidates(tmp_path):
    header = header_with(1, columns=5)
    image = made(1, 4, header)
    logits = image.logits.copy()
    logits[0, 1], logits[1, 2], logits[2, -1] = np.inf, -np.inf, np.inf
    store = write(tmp_path, header, {1: replace(image, logits=logits)})
    assert store[0].class_boxes.has(np.array([0]), np.array([1])).all()


def test_refusals(tmp_path):
    header = header_with(2, columns=5)
    store = write(tmp_path / "few", header, {1: made(1, 3, header)})
    for other in (header, replace(header, kept_class_boxes=None), StoreHeader(num_columns=5, background=-1)):
        words = "it comes from a store that keeps those of some pairs"
        with PredictionWriter(tmp_path / "other", other) as writer, pytest.raises(InputError, match=words):
            writer.append(1, store[0])
        shutil.rmtree(tmp_path / "other")
    with pytest.raises(InputError, match="`kept_class_boxes` to be at least 1, or None for all, but got 0"):
        header_with(0)
    with pytest.raises(InputError, match="only where each class has a box of its own, but got 2"):
        StoreHeader(num_columns=5, kept_class_boxes=2)
    with pytest.raises(InputError, match=r"beside `class_boxes` to have shape \(N, 4\)"):
        Proposals(np.zeros((3, 4, 4)), np.zeros((3, 4)), 9, 9, class_boxes=store[0].class_boxes)
    with pytest.raises(InputError, match="a box for each of the 2 pairs"):
        ClassBoxes(np.array([1, 2], np.uint32), np.zeros((1, 4), np.float32), 4)


class MadeData:
    image_ids = np.array([4, 9, 6])
    class_names = ("ant", "bee", "cat", "dog")
    category_ids = np.array([1, 2, 3, 4])

    def read_image(self, index: int) -> np.ndarray:
        return np.full((40, 40, 3), index, np.uint8)


class MadeDetector:
    background, activation, num_classes = -1, "softmax", 4
    class_names = MadeData.class_names

    def __init__(self, *, class_boxes: bool = True, stop_after: int | None = None) -> None:
        self._class_boxes, self._stop_after, self.run = class_boxes, stop_after, 0

    def propose(self, images):
        if self._stop_after is not None and self.run >= self._stop_after:
            raise KeyboardInterrupt
        self.run += len(images)
        found = [made(round(float(image.max()) * 255), 5, header_with(None, columns=5)) for image in images]
        return found if self._class_boxes else [replace(one, boxes=one.boxes[:, 0]) for one in found]


def test_predict_keeps_as_many_as_it_is_told_and_goes_on_with_them(tmp_path):
    pytest.importorskip("torch")
    with pytest.raises(KeyboardInterrupt):
        predict(MadeDetector(stop_after=1), MadeData(), tmp_path, class_boxes=2, batch=1)
    assert len(PredictionStore(tmp_path)) == 1
    for other in (None, 3, 4):
        with pytest.raises(
            InputError, match=r"Expected `class_boxes` to be 2, as in .* but got (all|3); use a new folder"
        ):
            predict(MadeDetector(), MadeData(), tmp_path, class_boxes=other)
    assert predict(MadeDetector(), MadeData(), tmp_path, class_boxes=2) == 2
    store = PredictionStore(tmp_path)
    store.verify()
    assert store.is_complete
    assert store.header.kept_class_boxes == 2


def test_predict_refuses_what_does_not_fit(tmp_path):
    pytest.importorskip("torch")
    with pytest.raises(InputError, match="Expected `class_boxes` only for a detector with a box for each class"):
        predict(MadeDetector(class_boxes=False), MadeData(), tmp_path / "one", class_boxes=2)
    assert not (tmp_path / "one").exists()
    with pytest.raises(InputError, match="Expected `class_boxes` to be at least 1, but got 0"):
        predict(MadeDetector(), MadeData(), tmp_path / "two", class_boxes=0)
    predict(MadeDetector(), MadeData(), tmp_path / "three", class_boxes=4)  # as many as there are: all
    assert PredictionStore(tmp_path / "three").header.kept_class_boxes is None


def test_the_size_is_said_before_anything_is_written(tmp_path):
    lvis = StoreHeader(num_columns=1204, background=0, class_boxes=True, num_images=19_809)
    one = Proposals(np.zeros((1000, 1203, 4), np.float16), np.zeros((1000, 1204), np.float16), 480, 640)
    said: list[str] = []
    say_size(lvis, [one], tmp_path / "store", said.append)
    assert said[0].startswith(
        "The predictions will take about 429 GB (19,809 images of 21.7 MB), of which 381 GB are boxes of each class; "
        "`--class-boxes 40` (in Python `class_boxes=40`) keeps those that corrections may need, in at most 115 GB"
    )
    with pytest.warns(LogNWarning, match="429 GB"):
        say_size(lvis, [one], tmp_path / "store")
    few = replace(lvis, kept_class_boxes=40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        say_size(few, [one], tmp_path / "store")
        say_size(replace(lvis, num_images=10), [one], tmp_path / "store", said.append)
    assert len(said) == 1
    assert not (tmp_path / "store").exists()


def test_predict_says_the_size_once(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(size, "_WORTH_A_WORD", 1)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        predict(MadeDetector(stop_after=1), MadeData(), tmp_path / "new", class_boxes=2, batch=1, announce=said.append)
    predict(MadeDetector(), MadeData(), tmp_path / "new", class_boxes=2, announce=said.append)
    assert len(said) == 1
    assert said[0].startswith("The predictions will take at most 0.0 MB (3 images of 0.0 MB)")


def test_a_disk_that_is_too_small_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(size, "_WORTH_A_WORD", 1)
    monkeypatch.setattr(size.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    header = StoreHeader(num_columns=4, num_images=5)
    said: list[str] = []
    say_size(header, [Proposals(np.zeros((3, 4)), np.zeros((3, 4)), 9, 9)], tmp_path / "new" / "store", said.append)
    assert said == ["The predictions will take about 0.0 MB (5 images of 0.0 MB); 0.0 MB are free there."]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), kept=st.integers(1, 7), rows=st.integers(0, 30))
def test_a_store_is_at_most_as_large_as_was_said(tmp_path_factory, seed, kept, rows):
    header = header_with(kept)
    path = tmp_path_factory.mktemp("store")
    write(path, header, {1: made(seed, rows, header)})
    written = sum(file.stat().st_size for file in path.glob("part-*/*.bin"))
    assert written <= image_bytes(header, rows)
