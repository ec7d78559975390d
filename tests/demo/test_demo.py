"""The demonstration: the shipped detector, the drawn scenes and the commands that it shows."""

import contextlib
import io
import json
import shlex

import pytest

pytest.importorskip("onnxruntime", reason="the demonstration runs an ONNX file")

from logn.cli.main import execute
from logn.cli.verbs import demo as verb
from logn.demo.problem import alphabet, draw_problem, plan, training_counts
from logn.measure.comparison import Comparison

IMAGES = {"train": 12, "test": 30}
AP_OF_30_SCENES = 44.24


class Terminal(io.StringIO):
    """Takes what is printed on it."""

    def isatty(self):
        return True


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The folder of a small demonstration on a terminal of 80 columns, what it printed, and its bars."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "80")
        patch.setattr(verb, "TRAINING_IMAGES", IMAGES["train"])
        patch.setattr(verb, "TEST_IMAGES", IMAGES["test"])
        out, err = io.StringIO(), Terminal()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert execute(["demo"]) == 0
        yield folder, out.getvalue().splitlines(), err.getvalue()


def test_it_tells_what_was_gained_and_lost_in_few_lines(told):
    folder, lines, _ = told
    assert len(lines) <= 40
    assert [line for line in lines if len(line) > 80] == []
    start = next(place for place, line in enumerate(lines) if line.split()[:1] == ["AP"])
    assert [line.split()[0] for line in lines[start + 1 : start + 5]] == ["none", "recommended", "logn", "norcal"]
    assert any(line.startswith("Gained: ") for line in lines)
    assert any(line.startswith("Lost: ") for line in lines)
    assert (folder / "runs/demo/report.html").stat().st_size > 10_000


def test_each_step_has_a_bar(told):
    bars = told[2]
    for step in ("Drawing scenes", "Collecting", "Predicting", "Comparing", "Writing the page"):
        assert f"{step} " in bars
    assert "Wrote " not in bars  # what the steps print is kept


def test_its_commands_can_be_typed(told, monkeypatch, tmp_path):
    folder, lines, _ = told
    monkeypatch.chdir(folder)
    whole = "\n".join(lines).replace("\\\n", "").splitlines()  # as a shell reads them
    commands = [shlex.split(line.removeprefix("$ logn ")) for line in whole if line.startswith("$ ")]
    assert [words[0] for words in commands] == ["correct", "predict", "compare", "report"]
    for words in commands[:1] + commands[2:]:
        again = words if "--overwrite" in words else [*words[:-1], str(tmp_path / words[-1].rpartition("/")[2])]
        assert execute(again) == 0


def test_the_detector_reads_the_same_everywhere(told):
    """Pictures and weights are the package's own: AP on 30 scenes is equal to a tenth of a point."""
    folder, *_ = told
    before = Comparison.load(folder / "runs/demo/comparison").rows[0]
    assert 100 * before["AP"] == pytest.approx(AP_OF_30_SCENES, abs=0.1)


def test_labels_are_those_of_the_plan(tmp_path):
    root = draw_problem(tmp_path, train=2, test=1)
    labels = json.loads((root / "train.json").read_text())
    drawn = [entry["category_id"] - 1 for entry in labels["annotations"]]
    assert drawn == [label for image in plan()["train"][:2] for label in image.tolist()]
    assert all(min(entry["bbox"][2:]) > 4 for entry in labels["annotations"])


def test_the_problem_is_long_tailed():
    counts = training_counts()
    assert len(counts) == len(alphabet().names) == 100
    assert counts.max() / counts.min() >= 100
    assert {len(glyph) for glyph in alphabet().glyphs} == {6}


def test_training_needs_the_research_package(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(verb, "entry_points", lambda **_: ())
    monkeypatch.setattr(verb, "TRAINING_IMAGES", 1)
    monkeypatch.setattr(verb, "TEST_IMAGES", 1)
    assert execute(["demo", str(tmp_path / "demo"), "--train"]) == 2
    assert "research package" in capsys.readouterr().err
