"""The measurements that pages rest on can be repeated: at a tiny size here."""

import json
import sys

import pytest
from logn_research.cifar import keep, small
from logn_research.evidence import deployment_prior
from logn_research.pages import ROOT
from PIL import Image

pytestmark = pytest.mark.usefixtures("one_thread")


def write_lists(folder):
    """Three classes of plain colours, long-tailed, as the folder of the road signs has them."""
    for split, counts in (("train", (12, 6, 3)), ("test", (4, 3, 2))):
        lines = []
        for label, count in enumerate(counts):
            for number in range(count):
                name = f"{split}-{label}-{number}.png"
                Image.new("RGB", (32, 32), (80 * label, 10 * number, 0)).save(folder / name)
                lines.append(f"{name} {label}\n")
        (folder / f"{split}.txt").write_text("".join(lines))


def test_the_class_mix_of_road_signs(tmp_path, monkeypatch):
    write_lists(tmp_path)
    small.train(small.pictures(tmp_path), "convolutions", tmp_path / "run", steps=2)
    keep.keep(tmp_path / "run", tmp_path / "kept")
    monkeypatch.setattr(deployment_prior, "DRAWS", 2)
    output = tmp_path / "measured.json"
    monkeypatch.setattr(sys, "argv", ["deployment_prior", str(tmp_path / "kept"), "-o", str(output)])
    deployment_prior.main()
    measured = json.loads(output.read_text())
    published = json.loads((ROOT / "results" / "deployment-prior.json").read_text())
    assert measured.keys() == published.keys()
    assert [row["name"] for row in published["methods"]] == [row["name"] for row in measured["methods"]]
    assert "21 training" in deployment_prior.results(measured)
