"""Files that an earlier version wrote: every format is still read, with the content that was put in."""

import json
import re
from pathlib import Path

import pytest

import logn
from logn.predictions.classifier import ClassifierPredictions

from .make_samples import SAMPLES, VERSION

FORMATS = Path(__file__).parents[2] / "docs" / "reference" / "file-formats.md"
VERSIONS = sorted(SAMPLES.glob("*"))


@pytest.fixture(params=VERSIONS, ids=[path.name for path in VERSIONS])
def sample(request):
    return request.param


@pytest.fixture
def expected(sample):
    return json.loads((sample / "expected.json").read_text(encoding="utf-8"))


def test_statistics(sample, expected):
    moments = logn.ClassMoments.load(sample / "statistics.safetensors")
    assert moments.count.tolist() == expected["statistics"]["count"]
    assert moments.mean.tolist() == expected["statistics"]["mean"]
    assert list(moments.head.names) == expected["statistics"]["names"]
    assert logn.methods.fit("logn", moments=moments).shift.tolist() == pytest.approx(expected["correction"]["shift"])
    assert logn.recommend(moments) is not None


def test_correction(sample, expected):
    affine = logn.ClassAffine.load(sample / "correction.safetensors")
    read = {"method": affine.method, "scale": affine.scale.tolist(), "shift": affine.shift.tolist()}
    assert read == expected["correction"]


def test_predictions(sample, expected):
    store = logn.PredictionStore(sample / "predictions")
    store.verify()
    detections = logn.decode(store, logn.ClassAffine.load(sample / "correction.safetensors"))
    read = {"images": len(store), "detections": len(detections), "best": float(detections.scores.max())}
    assert read == pytest.approx(expected["predictions"])


def test_predictions_of_a_classifier(sample, expected):
    kept = ClassifierPredictions.load(sample / "classifier.safetensors")
    assert kept.paths[0] == expected["classifier"]["first"]
    comparison = logn.compare(sample / "classifier.safetensors", None, [])
    assert comparison.rows[0]["top-1"] == pytest.approx(expected["classifier"]["top-1"])


@pytest.mark.parametrize(("task", "metric"), [("detector", "AP"), ("classifier", "few")])
def test_comparison(sample, expected, tmp_path, task, metric):
    comparison = logn.Comparison.load(sample / f"comparison-{task}")
    assert {row.name: row[metric] for row in comparison.rows} == expected[f"comparison-{task}"]
    logn.write_report(sample / f"comparison-{task}", tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["thresholds.json", "thresholds.csv"])
def test_thresholds(sample, expected, name):
    points = logn.OperatingPoints.load(sample / name)
    assert {point.name: point.threshold for point in points.points} == pytest.approx(expected["thresholds"])


def test_every_format_of_the_page_has_a_sample_of_its_schema():
    """A new format or schema needs samples: run make_samples.py, with a new `VERSION` if this one is released."""
    written = "\n".join(
        path.read_bytes().decode("latin-1") for path in (SAMPLES / VERSION).rglob("*") if path.is_file()
    )
    for name, schema in re.findall(r"^`(logn\.\w+)`, schema (\d+)", FORMATS.read_text(encoding="utf-8"), flags=re.M):
        assert re.search(rf'"{name}",\s*"schema":\s*"?{schema}"?', written) or (
            f'"format":"{name}"' in written and f'"schema":"{schema}"' in written
        ), f"no sample of {name}, schema {schema}"
