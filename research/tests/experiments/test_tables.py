"""The tables from nothing to JSON on tiny problems: trained once, measured once, failures told."""

import json
import os
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from logn_research.datasets.glyphs.settings import GlyphSettings
from logn_research.experiments import tables
from logn_research.experiments.cache import ArtifactCache
from logn_research.experiments.measure import NOT_TRAINED, Protocol, detector_statistics, run_table
from logn_research.experiments.paper import COMPONENTS, MARGINS, TABLE1, paper_row
from logn_research.experiments.specs import SCENES, ModelSpec, Problem
from logn_research.experiments.tables import POSITIVES, TABLES, Row, Table
from logn_research.pages import bench_table, table_text

from logn import logit_normalization
from logn.errors import InputError
from logn.predictions.store import Predictions
from logn.statistics.moments import ClassMoments

pytestmark = pytest.mark.usefixtures("one_thread")
GLYPHS = GlyphSettings(classes=5, train=16, dev=1, test=4, size=64)
TINY = Problem("tiny", GLYPHS, iterations=4, eql="eql:threshold=0.3")


class Steps:
    """Remembers what was done."""

    def __init__(self):
        self.names = []

    @contextmanager
    def __call__(self, name, total):
        self.names.append(name)
        yield lambda amount: None


def tiny_sections(problem, seed):
    plain = ModelSpec(problem, seed=seed)
    rows = [
        Row("CE", plain),
        Row("BAGS", replace(plain, stage="bags")),
        Row("LogN", plain, "logn"),
        Row("margin alone", plain, "logn:strength=0,use_std=false,margin=min"),
        Row("positives", plain, "logn", POSITIVES),
        Row("tau-norm", plain, "tau-norm:tau=0.7"),
        Row("FRACAL", plain, "fracal"),
        Row("impossible", plain, "loga:tau=nan"),
    ]
    return {"Everything": rows}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    steps, folder = Steps(), tmp_path_factory.mktemp("bench")
    tables.TABLES["tiny"] = Table("", tiny_sections, errors=True)
    content = run_table("tiny", ArtifactCache(folder, step=steps), TINY, [0], command="logn bench tiny")
    yield folder, content, steps.names
    del tables.TABLES["tiny"]


def rows_of(content):
    return {row["method"]: row for section in content["sections"] for row in section["rows"]}


def test_every_row_is_measured_and_a_failure_holds_up_its_own_only(bench):
    rows = rows_of(bench[1])
    assert "tau" in rows.pop("impossible")["failures"]["0"]
    assert all(row["metrics"]["0"]["AP"] is not None and not row["failures"] for row in rows.values())
    assert all({"Cls", "FP"} < row["errors"]["0"].keys() for row in rows.values())
    assert rows["margin alone"]["margin"]["0"] == pytest.approx(rows["LogN"]["margin"]["0"])
    assert json.loads(json.dumps(bench[1])) == bench[1]
    assert "| tau-norm" in bench_table(bench[1])


def test_a_second_call_makes_nothing_again_and_new_weights_void_measurements(bench):
    folder, content, _ = bench
    steps = Steps()
    again = run_table("tiny", ArtifactCache(folder, step=steps), TINY, [0], command="logn bench tiny")
    assert again == content
    assert not [name for name in steps.names if name.startswith(("Training", "Drawing", "Statistics"))]
    cache = ArtifactCache(folder)
    spec = ModelSpec(TINY)
    assert cache.records(spec)
    checkpoint = cache.run(spec) / "checkpoint.safetensors"
    before = checkpoint.read_bytes()
    checkpoint.write_bytes((cache.run(replace(spec, stage="bags")) / "checkpoint.safetensors").read_bytes())
    assert cache.records(spec) == {}
    checkpoint.write_bytes(before)


def test_without_training_rows_say_so(tmp_path):
    tables.TABLES["tiny"] = Table("", tiny_sections)
    content = run_table("tiny", ArtifactCache(tmp_path), TINY, [0], train=False)
    assert {failure for row in rows_of(content).values() for failure in row["failures"].values()} == {NOT_TRAINED}
    assert "not measured" in table_text(content)


def test_the_protocol_is_part_of_what_is_measured(bench):
    folder, content, _ = bench
    cache, protocol = ArtifactCache(folder), Protocol(threshold=0.2)
    measured = run_table("tiny", cache, TINY, [0], protocol=protocol, train=False)
    assert rows_of(measured)["LogN"]["metrics"]["0"].keys() == rows_of(content)["LogN"]["metrics"]["0"].keys()
    assert f"logn{protocol.suffix}" in cache.records(ModelSpec(TINY))
    with pytest.raises(InputError, match="Expected `stages` to be one of"):
        Protocol(stages="last")


@pytest.mark.usefixtures("few_weights", "few_regions")
def test_each_stage_of_a_cascade_is_corrected_by_its_own_statistics(tmp_path):
    """The paper normalises stages before they are averaged; `stages="average"` normalises the average."""
    glyphs = replace(GLYPHS, train=4, test=2)
    problem = replace(TINY, name="cascade", glyphs=glyphs, model="cascade-r101", iterations=4)
    cache, spec = ArtifactCache(tmp_path), ModelSpec(problem)
    spec.draw(spec.data_folder(tmp_path), workers=1, step=cache.step)
    from logn_research.training.checkpoint import Checkpoint
    from logn_research.training.detectors import make_detector

    detector = make_detector("cascade-r101", GLYPHS.classes, image_size=64)
    plan = cache.config(spec).plan()
    cache.run(spec).mkdir(parents=True)
    names = cache.dataset(spec, "train").class_names
    Checkpoint(detector.settings, 4, detector.state_dict(), run=plan, class_names=names).save(
        cache.run(spec) / "checkpoint.safetensors"
    )
    assert cache.is_trained(spec)
    tables.TABLES["tiny"] = Table("", lambda problem, seed: {"All": [Row("CE", spec), Row("LogN", spec, "logn")]})
    each = run_table("tiny", cache, problem, [0], train=False)
    average = run_table("tiny", cache, problem, [0], protocol=Protocol(stages="average"), train=False)
    assert not [row for row in (*rows_of(each).values(), *rows_of(average).values()) if row["failures"]]
    stages = [ClassMoments.load(cache.run(spec) / f"statistics.{stage}.safetensors") for stage in range(3)]
    assert len({moments.mean.tobytes() for moments in stages}) == 3
    corrected = Predictions(cache.run(spec) / "predictions-test-logn")
    (moments,) = detector_statistics(cache, spec, Protocol(stages="average"))
    plain = Predictions(cache.run(spec) / "predictions-test")
    of_average = logit_normalization(moments)(plain[0].logits.astype(np.float64))
    assert np.abs(corrected[0].logits - of_average).max() > 0.01
    assert "logn, average of stages" in cache.records(spec)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_training_that_fails_is_told(tmp_path, jobs):
    missing = replace(TINY, weights=tmp_path / "none.pth", model="mask-rcnn-r50")
    failures = ArtifactCache(tmp_path, jobs=jobs).train([ModelSpec(missing)])
    assert "There is no file" in failures[ModelSpec(missing).name]


def test_the_threads_of_children_are_set_once_around_all_trainings(tmp_path, monkeypatch):
    """Two trainings that end in the order of their start took the variable from each other once."""
    first_is_in, second_is_out = threading.Event(), threading.Event()

    def train(spec):
        if spec == "first":
            first_is_in.set()
            second_is_out.wait()
        else:
            first_is_in.wait()
            second_is_out.set()
        return os.environ["OMP_NUM_THREADS"]

    cache = ArtifactCache(tmp_path, jobs=2)
    monkeypatch.setattr(cache, "_train_in_process", train)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = dict(os.environ)
    assert cache._train_all(["first", "second"]) == ["1", "1"]
    assert dict(os.environ) == before


class TestRows:
    def test_the_paper_numbers_beside_ours_are_those_of_the_same_detector(self):
        for model, framework in (
            ("mask-rcnn-r50", "Mask-R50"),
            ("cascade-r101", "Cascade-R101"),
            ("small", "Mask-R101"),
        ):
            problem = replace(SCENES, model=model)
            for rows in tables.table1(problem, 0).values():
                assert {row.paper["framework"] for row in rows if row.paper} == {framework}
        assert paper_row(TABLE1, "LogN", framework="Cascade-R101").box_ap == 33.8
        ablation = tables.margins(replace(SCENES, model="cascade-r101"), 0)
        assert not [row for rows in ablation.values() for row in rows if row.paper]

    def test_loga_comes_with_both_counts(self):
        (rows, _) = tables.table1(SCENES, 0).values()
        methods = {row.label: row.method for row in rows}
        assert methods["LogA"] == "loga:priors=false"
        assert methods["LogA, image counts"] == "loga:priors=false,count_kind=images"

    def test_the_class_layers_are_those_of_the_paper(self):
        (rows, _) = tables.table1(SCENES, 0).values()
        heads = {row.label: row.model.classifier for row in rows}
        assert {heads[name] for name in ("CE", "EQL", "EQL v2", "BAGS", "LOCE", "LOCE + MFS")} == {"linear"}
        assert {heads[name] for name in ("Seesaw", "LogA", "LogN", "online LogN")} == {"cosine"}

    def test_models_are_shared(self):
        trained = {
            name: {row.model.name for rows in TABLES[name].sections(SCENES, 0).values() for row in rows}
            for name in ("table1", "components", "margins", "online")
        }
        assert trained["components"] == trained["margins"] <= trained["table1"]
        assert len(trained["online"] - trained["table1"]) == 2

    def test_every_paper_row_has_one_of_ours(self):
        ours = {row.label for rows in tables.table1(SCENES, 0).values() for row in rows}
        assert {row.method for row in TABLE1} <= ours
        assert {row.method for row in COMPONENTS} <= {*tables.PARTS}
        assert {row.method for row in MARGINS} <= {*tables.MARGIN_ROWS}

    def test_lvis_is_trained_by_the_papers_recipe(self, tmp_path):
        lvis = Problem("lvis", train=tmp_path / "train.json", test=tmp_path / "val.json", model="mask-rcnn-r101")
        config = ModelSpec(lvis, sampler="rfs").training_config(tmp_path / "train.json", tmp_path / "run", None)
        assert (config.sampler, config.repeat_threshold, config.recipe.epochs) == ("repeat-factor-ceil", 0.001, 24.0)
        loce = ModelSpec(lvis, stage="loce-memory").training_config(tmp_path / "t.json", tmp_path / "r", tmp_path)
        assert (loce.epochs, loce.milestones, loce.feature_memory) == (6.0, (3.0, 5.0), True)
        bags = ModelSpec(lvis, stage="bags").training_config(tmp_path / "t.json", tmp_path / "r", tmp_path)
        assert (bags.epochs, bags.only, bags.milestones) == (12.0, "classifier", None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["margins", "--test", "x.json"], "`--test` needs `--data`"),
        (["margins", "--images", "x"], "`--images` and `--weights` need `--data`"),
        (["margins", "--data", "x.json"], "Pass the annotations to test on: `--test FILE`"),
        (["margins", "--data", "x.json", "--test", "x.json"], "There is no file `x.json`"),
        (["margins", "--iterations", "2"], "`iterations`"),
        (["margins", "--iterations", "8", "--epochs", "1"], "`--iterations`"),
        (["table1", "--stages", "both"], "`stages`"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, sentence, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in refused("bench", *arguments)
