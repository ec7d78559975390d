"""The page on classification shows code that runs, and commands that give the numbers of the Python API."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "classification.md"
EXAMPLE = ROOT / "examples" / "classification.py"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """What the example computes; it writes its files into a folder of its own."""
    folder, here = tmp_path_factory.mktemp("classification"), Path.cwd()
    os.chdir(folder)
    try:
        return {"folder": folder, **runpy.run_path(str(EXAMPLE))}
    finally:
        os.chdir(here)


def test_the_example_helps_the_few(example):
    assert example["after"]["few"] > example["before"]["few"] + 0.1
    change = example["comparison"]["recommended"].differences["few"]
    assert change.low > 0


def test_the_printed_numbers_are_near_those_of_the_page(example, blocks):
    """Other versions of scikit-learn may round otherwise; a page that is plainly out of date fails."""
    (text,) = blocks("text")
    for line in text.splitlines():
        name, before, _, after = line.split()
        assert 100 * example["before"][name] == pytest.approx(float(before), abs=2.0)
        assert 100 * example["after"][name] == pytest.approx(float(after), abs=2.0)


def test_the_commands_give_what_the_example_gives(example, blocks, shell):
    folder, (compare, correct) = example["folder"], blocks("sh")
    compare = compare.replace("recommended,logn,loga", "recommended,logn,loga --json > all.json")
    shell(compare + correct, folder)
    printed = json.loads((folder / "all.json").read_text())
    # In a process of its own, as the command is: tests that ran before in this one may have changed its threads.
    again = f"import json, runpy; print(json.dumps(runpy.run_path({str(EXAMPLE)!r})['comparison'].to_dict()))"
    told = subprocess.run([sys.executable, "-c", again], cwd=folder, check=True, capture_output=True)
    assert printed["methods"] == json.loads(told.stdout.splitlines()[-1])["methods"]
    assert json.loads((folder / "tau" / "comparison.json").read_text())["curves"][0]["chosen"].startswith("loga:tau=")
    corrected = np.load(folder / "corrected.npy")
    np.testing.assert_allclose(corrected, example["affine"](example["test_logits"]), atol=1e-2)


@pytest.mark.usefixtures("one_thread")
def test_a_classifier_that_is_trained_here_is_compared(tmp_path, monkeypatch, blocks, run_logn):
    for package in ("torch", "PIL", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    (commands,) = blocks("console")
    few = "-o classes --classes 4 --most 12 --fewest 3 --dev 2 --test 2 --workers 1"
    printed = run_logn(commands, shorter={"-o classes": few, "-o run": "-o run --iterations 2"})
    assert "recommended" in printed
