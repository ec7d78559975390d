"""The evidence: what is measured on a real, if tiny, detector, and what the tables make of numbers."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import evidence
import evidence_tables
import pytest
from evidence import MAIN, METHODS, TUNED, Evidence, grid, measure
from evidence_figure import draw_evidence, head_of
from evidence_page import evidence_page

from logn.calibrators.advice import recommended_method
from logn.calibrators.method_spec import parse_method
from logn.datasets.glyphs.settings import GlyphSettings
from logn.experiments.artifact_cache import ArtifactCache
from logn.experiments.detector_spec import DetectorSpec


def made_evidence(name="families-linear-random-ce-s0", *, ours=0.24, paper=0.15, norcal=0.20, high=0.01, form="none"):
    federated = {
        "none": {"AP": 0.18, "APr": 0.0},
        "LogN (paper)": {"AP": paper, "APr": 0.03},
        "LogN balanced": {"AP": ours, "APr": 0.10},
        "NorCal": {"AP": norcal, "APr": 0.03},
    }
    settings = {"model": "small", "classifier": "linear", "temperature": 20.0, "iterations": 800}
    intervals = {"LogN (paper)": (-0.04, paper - 0.18), "LogN balanced": (-0.01, high), "NorCal": (-0.01, 0.03)}
    return Evidence(name, settings, federated, federated, {}, {}, intervals, {"form": form})


def test_every_method_can_be_parsed_and_none_is_named_twice():
    for spec in METHODS.values():
        parse_method(spec)
    for form, values in TUNED.values():
        for value in values:
            parse_method(form.format(value))
    assert len({*METHODS, *TUNED}) == len(METHODS) + len(TUNED)
    assert set(MAIN) <= set(METHODS)


def test_the_grid_has_every_combination_once():
    names = [spec.name for spec in grid([0, 1], iterations=800)]
    assert len(set(names)) == 24
    assert "distinct-cosine10-rfs-ce-s1" in names


def test_changes_are_in_points_and_against_the_same_detector():
    found = evidence_tables.changes([made_evidence(), made_evidence(ours=0.20)], "LogN balanced")
    assert found == pytest.approx([6.0, 2.0])
    assert evidence_tables.changes([made_evidence()], "FRACAL") == []


def test_seeds_of_a_kind_are_one_value_of_the_interval():
    pair = [made_evidence(f"a-s{seed}", ours=ours) for seed, ours in enumerate((0.20, 0.22))]
    other = [made_evidence(f"b-s{seed}", ours=ours) for seed, ours in enumerate((0.23, 0.25))]
    once = [made_evidence("a-s0", ours=0.21), made_evidence("b-s0", ours=0.24)]
    assert evidence_tables.mean_and_interval(pair + other, "LogN balanced") == "+4.5 ± 19.1"
    assert evidence_tables.mean_and_interval(once, "LogN balanced") == "+4.5 ± 19.1"
    assert evidence_tables.mean_and_interval(pair, "LogN balanced", against="LogN balanced") == "+0.0"


def test_a_detector_counts_as_lowered_only_beyond_the_noise():
    members = [made_evidence(high=0.01), made_evidence("other-s1", high=-0.001)]
    assert evidence_tables.clearly_lowered(members, "LogN balanced") == ["other-s1"]
    assert len(evidence_tables.clearly_lowered(members, "LogN (paper)")) == 2


def test_the_advice_is_judged_by_the_form_that_it_names():
    record = evidence_tables.advice_record([made_evidence(form="logn:balanced"), made_evidence(form="none")])
    assert record == {
        "detectors": 2,
        "not worse than none": 2,
        "better than the paper's form": 2,
        "within 0.5 of the best": 1,
    }


def test_the_page_says_what_the_numbers_say(tmp_path):
    members = [made_evidence(), made_evidence("families-linear-random-ce-s1", ours=0.22)]
    page = evidence_page(members)
    assert "+5.0 with the balanced form" in page  # one kind has no interval, whatever its seeds
    assert "LogN (paper) lowers AP beyond the noise of the test images on 2 of 2" in page
    assert "23.0** ± 1.0" in page  # mean and half range over the seeds
    draw_evidence(members, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert head_of(members[0]) == "linear"


def test_values_are_chosen_on_dev_and_the_highest_there_is_taken(monkeypatch):
    asked = []
    best = {"loga:tau=0.5,priors=false", "norcal:gamma=0.8"}

    class Row(dict):
        name = ""

    def compared(store, annotations, methods, **options):
        asked.append((store, annotations.as_posix()))
        rows = [Row(AP=0.3 if name in best else 0.2 + 0.001 * place) for place, name in enumerate(methods)]
        for row, name in zip(rows, methods, strict=True):
            row.name = name
        return SimpleNamespace(rows=rows)

    monkeypatch.setattr(evidence, "compare", compared)
    cache = SimpleNamespace(
        predictions=lambda spec, split: f"predictions on {split}", data_folder=lambda spec: Path("data")
    )
    inputs = {"moments": SimpleNamespace(metadata=SimpleNamespace(background=0))}  # no weight, so no tau-norm
    dev, chosen = evidence._choose(cache, DetectorSpec(), inputs, {"none": "none", "NorCal": "norcal"})
    assert asked == [("predictions on dev", "data/dev.json")]
    assert chosen == {"LogA, tuned": "loga:tau=0.5,priors=false", "NorCal, tuned": "norcal:gamma=0.8"}
    assert dev["norcal:gamma=0.8"] == 0.3


def test_a_tiny_detector_is_trained_measured_and_not_measured_again(tmp_path, monkeypatch):
    glyphs = GlyphSettings(classes=8, train=24, dev=8, test=8, size=64)
    spec = DetectorSpec("families", glyphs, iterations=3)
    cache = ArtifactCache(tmp_path)
    assert cache.train([spec]) == {}
    found = measure(cache, spec, num_bootstrap=10)
    assert set(found.federated) == {*METHODS, *TUNED}
    assert set(found.exhaustive) == set(found.federated)
    assert {"AP", "AP-Fixed", "AP-mask"} <= set(found.federated["LogN balanced"])
    assert "AP-mask" not in found.federated["FRACAL"]
    assert set(found.intervals) == set(MAIN) - {"none"}
    assert found.advice["form"] in ("none", recommended_method(0, "softmax"))
    path = cache.model_folder(spec) / "evidence.json"
    changed = json.loads(path.read_text()) | {"name": "read, not measured"}
    path.write_text(json.dumps(changed))
    assert measure(cache, spec).name == "read, not measured"
    path.write_text(json.dumps(changed | {"weights": "others"}))
    monkeypatch.setattr(evidence, "_measure", lambda *arguments: replace(found, name="measured again"))
    assert measure(cache, spec).name == "measured again"
    assert measure(cache, spec).name == "measured again"
    del changed["weights"]  # as earlier versions wrote it
    path.write_text(json.dumps(changed))
    assert measure(cache, spec).name == "read, not measured"
    assert cache.train([spec]) == {}  # at once: it is trained
    assert cache.training_seconds(spec) > 0
