"""The measurements that pages rest on can be repeated: at a tiny size here."""

import json
import sys

import pytest
from logn_research.evidence import deployment_prior
from logn_research.pages import ROOT
from PIL import Image

pytestmark = pytest.mark.usefixtures("one_thread")


def write_lists(folder):
    """Three classes of plain colours, long-tailed, as the folder of the road signs has them."""
    for split, counts in (("train", (12, 6, 3)), ("dev", (3, 3, 3)), ("test", (4, 3, 2))):
        lines = []
        for label, count in enumerate(counts):
            for number in range(count):
                name = f"{split}-{label}-{number}.png"
                Image.new("RGB", (32, 32), (80 * label, 10 * number, 0)).save(folder / name)
                lines.append(f"{name} {label}\n")
        (folder / f"{split}.txt").write_text("".join(lines))
    (folder / "classes.txt").write_text("stop\nyield\nslippery\n")


def test_the_class_mix_of_road_signs(tmp_path, monkeypatch):
    write_lists(tmp_path)
    monkeypatch.setattr(deployment_prior, "EPOCHS", 1)
    monkeypatch.setattr(deployment_prior, "DRAWS", 2)
    output = tmp_path / "measured.json"
    words = ["--data", str(tmp_path), "--root", str(tmp_path / "runs"), "-o", str(output)]
    monkeypatch.setattr(sys, "argv", ["deployment_prior", *words])
    deployment_prior.main()
    measured = json.loads(output.read_text())
    published = json.loads((ROOT / "results" / "deployment-prior.json").read_text())
    assert measured.keys() == published.keys()
    assert {row["name"] for row in published["linear"]["methods"]} <= {
        row["name"] for row in measured["linear"]["methods"]
    }
    assert "21 training" in deployment_prior.results(measured)
