"""Labels in any form on the command line: bad ones are one sentence with exit code 2, and nothing is written."""

import json

import numpy as np
import pytest
from tests.labels.conftest import NAMES, SIZES, THINGS, write_voc, write_yolo

from logn.cli.main import execute
from logn.evaluate.store.store import PredictionWriter, StoreHeader
from logn.logits.proposals import Proposals


@pytest.fixture
def store(tmp_path):
    """A detector that finds everything, with its classes in another order and one more."""
    names = ("Dog", "cat", "bird", "traffic_light")
    column = {0: 1, 1: 0, 2: 3}
    with PredictionWriter(tmp_path / "store", StoreHeader(4, activation="sigmoid", class_names=names)) as writer:
        for number, (stem, (width, height)) in enumerate(sorted(SIZES.items()), start=1):
            things = THINGS.get(stem, ())
            boxes = np.array([[t.left, t.top, t.right, t.bottom] for t in things], np.float32).reshape(-1, 4)
            logits = np.full((len(things), 4), -9, np.float32)
            for row, thing in enumerate(things):
                logits[row, column[thing.label]] = 4
            writer.append(number, Proposals(boxes, logits, height=height, width=width))
    return tmp_path / "store"


def run(capsys, *words):
    code = execute([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("write", [write_yolo, write_voc])
def test_compare_matches_classes_by_name(tmp_path, store, capsys, write):
    labels = write(tmp_path / "labels", SIZES, THINGS)
    code, out, _ = run(capsys, "compare", store, "-a", labels, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["settings"]["style"] == "coco"
    assert found["rows"][0]["values"]["AP"] == pytest.approx(1.0, abs=1e-9)
    assert any("3 of the 4 classes of the model are in the labels" in note for note in found["notes"])


@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")
@pytest.mark.parametrize("write", [write_yolo, write_voc])
def test_thresholds_sees_the_protocol_as_compare_does(tmp_path, store, capsys, write):
    labels = write(tmp_path / "labels", SIZES, THINGS)
    code, out, err = run(capsys, "thresholds", store, "-a", labels, "--bootstrap", "0", "--json")
    assert code == 0, err
    assert json.loads(out)["settings"]["labels"] == "coco"


def test_bad_labels_are_one_sentence_and_nothing_is_written(tmp_path, store, capsys):
    labels = write_yolo(tmp_path / "labels", SIZES, THINGS)
    (labels.parent / "labels" / "val" / "a.txt").write_text("7 0.5 0.5 0.1 0.1\n")
    code, _, err = run(capsys, "compare", store, "-a", labels, "-o", tmp_path / "out")
    assert code == 2
    assert "must have a class from 0 to 2, but has '7'" in " ".join(err.split())
    assert not list((tmp_path / "out").glob("*"))


def test_classes_that_the_model_lacks_are_left_out_with_a_note(tmp_path, store, capsys):
    names = ("cat", "helmet", NAMES[2])
    labels = write_yolo(tmp_path / "labels", SIZES, THINGS, names)
    code, out, _ = run(capsys, "compare", store, "-d", labels, "--json")
    comparison = json.loads(out)
    assert code == 0
    assert comparison["rows"][0]["values"]["AP"] == pytest.approx(1.0, abs=1e-9)
    assert any("helmet" in note for note in comparison["notes"]), comparison["notes"]
