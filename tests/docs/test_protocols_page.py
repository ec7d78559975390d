"""The page on protocols: its comparison in Python runs, on a detector that is trained here."""

import re
import shutil
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"
pytestmark = [
    pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests"),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture
def predicted(workplace, run_logn):
    run_logn(
        "logn predict runs/glyphs --data glyphs/test.json -o predictions\n"
        "logn collect runs/glyphs --data glyphs/train.json -o statistics.safetensors"
    )
    return workplace


def test_the_lines_of_python_compare(predicted, blocks, run_python, capsys):
    shutil.copy(predicted / "glyphs" / "test.json", predicted / "lvis_v1_val.json")
    shutil.copy(predicted / "glyphs" / "train.json", predicted / "lvis_v1_train.json")
    (code,) = blocks("python")
    comparison = run_python(code, shorter={"num_bootstrap=1000": "num_bootstrap=50"})["comparison"]
    printed = capsys.readouterr().out
    assert "AP-Fixed" in printed
    assert comparison.verdict("logn") in printed
    change = comparison["logn"].differences["APr"]
    assert change.low <= comparison["logn"]["APr"] - comparison["none"]["APr"] <= change.high
    assert len(comparison["logn"].metrics.per_class) == 6


def test_the_commands_draw_federated_labels_and_compare(predicted, run_logn):
    for before, after in {
        "predictions": "store",
        "statistics.safetensors": "stats.safetensors",
        "glyphs/train.json": "train.json",
        "glyphs/test_exhaustive.json": "instances_val2017.json",
    }.items():
        (predicted / before).rename(predicted / after)
    (commands,) = re.findall(r"(?:^    logn .+\n)+", PAGE.read_text(encoding="utf-8"), flags=re.M)
    printed = run_logn(commands.replace("    ", ""), shorter={"logn compare": "logn compare --bootstrap 50"})
    assert "recommended" in printed
