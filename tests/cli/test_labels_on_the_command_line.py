"""Labels in any form on the command line: bad ones are one sentence with exit code 2, and nothing is written."""

import json

import numpy as np
import pytest
from tests.made.labels import NAMES, SIZES, THINGS, write_yolo

from logn.cli.main import execute
from logn.models.proposals import Proposals
from logn.predictions.store import PredictionWriter, StoreHeader
from logn.statistics.head import Head


@pytest.fixture
def store(tmp_path):
    """A detector that finds everything, with its classes in another order and one more."""
    names = ("Dog", "cat", "bird", "traffic_light")
    column = {0: 1, 1: 0, 2: 3}
    with PredictionWriter(tmp_path / "store", StoreHeader(Head.of_classes(names, 4, activation="sigmoid"))) as writer:
        for number, (stem, (width, height)) in enumerate(sorted(SIZES.items()), start=1):
            things = THINGS.get(stem, ())
            boxes = np.array([[t.left, t.top, t.right, t.bottom] for t in things], np.float32).reshape(-1, 4)
            logits = np.full((len(things), 4), -9, np.float32)
            for row, thing in enumerate(things):
                logits[row, column[thing.label]] = 4
            writer.append(number, Proposals(boxes, logits, height=height, width=width))
    return tmp_path / "store"


@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")
@pytest.mark.parametrize(("names", "note"), [(NAMES, "3 of the 4 classes"), (("cat", "helmet", NAMES[2]), "helmet")])
def test_classes_are_matched_by_name_and_thresholds_sees_the_protocol_as_compare_does(
    tmp_path, store, capsys, names, note
):
    labels = write_yolo(tmp_path / "labels", SIZES, THINGS, names)
    assert execute(["compare", str(store), "-d", str(labels), "--json"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["settings"]["style"] == "coco"
    assert comparison["rows"][0]["values"]["AP"] == pytest.approx(1.0, abs=1e-9)
    assert any(note in sentence for sentence in comparison["notes"]), comparison["notes"]
    # The groups come from the training split; here each class has few images.
    assert comparison["rows"][0]["values"]["APr"] == pytest.approx(1.0, abs=1e-9)
    assert {entry["group"] for entry in comparison["classes"]} == {"r"}
    if names == NAMES:
        assert execute(["thresholds", str(store), "-d", str(labels), "--bootstrap", "0", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["settings"]["labels"] == "coco"


def test_bad_labels_are_one_sentence_and_nothing_is_written(tmp_path, store, capsys):
    labels = write_yolo(tmp_path / "labels", SIZES, THINGS)
    (labels.parent / "labels" / "val" / "a.txt").write_text("7 0.5 0.5 0.1 0.1\n")
    assert execute(["compare", str(store), "-d", str(labels), "-o", str(tmp_path / "out")]) == 2
    assert "a.txt" in "".join(capsys.readouterr().err.split())
    assert not list((tmp_path / "out").glob("*"))
