"""What the tables of the bench consist of, and what their pages say."""

import json
from pathlib import Path

import numpy as np
import pytest
from logn_research.experiments import components, margins, online_table, sampler_table, table1
from logn_research.experiments.bench_detectors import BENCHMARK, EQL_THRESHOLD, QUICK, BenchLength
from logn_research.experiments.bench_pages import section_table, to_dict, to_markdown, to_text, write_pages
from logn_research.experiments.detector_spec import DetectionProblem
from logn_research.experiments.experiment import BenchResult, BenchSection, RowResult, SectionResult
from logn_research.experiments.model_spec import Folders
from logn_research.experiments.run_experiment import detectors_of
from logn_research.training.recipes import DetectorTrainingConfig

from logn.calibrators.methods import fit, parse
from logn.demo.plan import long_tailed_counts
from logn.statistics.moments import ClassMoments
from logn.text_table import TextStyle

EXPERIMENTS = [module.EXPERIMENT for module in (table1, components, margins, online_table, sampler_table)]
NAMES = [experiment.name for experiment in EXPERIMENTS]
METRICS = ("AP", "APr", "APc", "APf")


def made_up(experiment, seeds=(0,), fail=None):
    """Results with numbers that tell row, metric and seed apart; row `fail` has none."""
    sections = []
    for place, section in enumerate(experiment.sections(BENCHMARK, 0)):
        rows = []
        for line, row in enumerate(section.rows):
            numbers = {
                seed: {
                    f"{name}{suffix}": (10 * place + line + seed / 2 + kind / 10 + (5 if suffix else 0)) / 100
                    for kind, name in enumerate(METRICS)
                    for suffix in ("", "-mask")
                }
                for seed in seeds
            }
            if row.label == fail:
                rows.append(RowResult(row, failures=dict.fromkeys(seeds, "Expected luck, but got none.")))
                continue
            same = {seed: float(line) for seed in seeds}
            errors = {seed: {"Cls": 0.2, "Miss": 0.1, "FP": 0.05, "FN": 0.15} for seed in seeds}
            rows.append(RowResult(row, numbers, {}, errors if experiment.errors else {}, same, same, same, same, same))
        sections.append(SectionResult(section.title, tuple(rows)))
    return BenchResult(experiment, tuple(sections), tuple(seeds), BENCHMARK)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=NAMES)
@pytest.mark.parametrize("length", [BENCHMARK, QUICK], ids=["benchmark", "quick"])
def test_every_row_can_be_trained_and_fitted(experiment, length, tmp_path):
    sections = experiment.sections(length, 3)
    for spec in detectors_of(sections):
        assert spec.seed == 3
        start = None if spec.start is None else tmp_path
        # A configuration refuses losses, parts and samplers that do not exist.
        DetectorTrainingConfig(
            "data",
            "run",
            loss=spec.loss,
            start=start,
            only=spec.only,
            feature_memory=spec.feature_memory,
            seed=spec.seed,
        )
    for section in sections:
        labels = [row.label for row in section.rows]
        assert len(set(labels)) == len(labels)
        for row in section.rows:
            parse(row.correction.filled(-5.35))
    # Detectors of different training have different folders.
    specs = detectors_of(sections)
    assert len({spec.name for spec in specs}) == len(set(specs))


def test_table1_has_every_rival_under_both_samplers():
    wanted = {"CE", "CE, normalised", "EQL", "EQL v2", "Seesaw", "BAGS", "LOCE", "LOCE + MFS", "LogA", "LogN"}
    wanted |= {"focal", "cRT", "LWS", "tau-norm", "online LogN", "Seesaw, linear", "LogA, linear"}
    wanted |= {"LogA with priors, linear", "LogN, linear"}
    wanted |= {"recommended", "recommended, linear"}
    wanted |= {f"{name}, linear" for name in ("NorCal", "FRACAL", "IIF")}
    for section in table1.sections(BENCHMARK, 0):
        assert {row.label for row in section.rows} == wanted
    random, rfs = table1.sections(BENCHMARK, 0)
    papers = {row.label: row.paper for row in rfs.rows}
    assert papers["LogN"].box_ap == 29.8
    assert papers["CE, normalised"].box_ap == 27.5  # the baseline of table 2
    assert papers["LOCE + MFS"] is None
    papers = {row.label: row.paper for row in random.rows}
    assert papers["LogN"].box_ap == 28.4
    assert papers["LOCE + MFS"].sampler == "mfs"  # random images, and a memory in place of a sampler
    assert not any(row.paper for row in (*random.rows, *rfs.rows) if row.label.endswith("linear"))
    assert all(row.detector.start.sampler == "rfs" for row in rfs.rows if row.label in ("BAGS", "cRT", "LWS", "LOCE"))


def test_table1_has_the_heads_of_the_paper():
    for section in table1.sections(BENCHMARK, 0):
        heads = {row.label: row.detector.classifier for row in section.rows}
        normalised = {"CE, normalised", "Seesaw", "online LogN", "LogA", "LogN", "recommended"}
        assert {label for label, head in heads.items() if head == "cosine"} == normalised


@pytest.mark.parametrize("table", [table1, sampler_table])
def test_logit_adjustment_beside_the_papers_numbers_keeps_the_score_of_the_background(table):
    (row,) = (row for row in table.sections(BENCHMARK, 0)[0].rows if row.label == "LogA")
    assert row.paper.box_ap == 27.9
    affine = fit(row.correction.method, counts=[100, 10, 1], background=-1)
    # The worked numbers of the reference for raw counts: what is taken from the classes goes to the background.
    logits = np.exp(affine(np.array([1.0, 0.8, 0.2, 1.5])))
    np.testing.assert_allclose(logits / logits.sum(), [0.004566, 0.037386, 0.205180, 0.752867], atol=2e-6)


LVIS = DetectionProblem(Path("lvis_v1_train.json"), Path("lvis_v1_val.json"), Path("coco"), Path("resnet101.pth"))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=NAMES)
def test_every_table_is_one_of_lvis_and_the_papers_detectors_too(experiment, tmp_path):
    length = BenchLength(iterations=None, model="mask-rcnn-r101", device="cuda", problem=LVIS)
    for spec in detectors_of(experiment.sections(length, 0)):
        start = None if spec.start is None else tmp_path
        config = spec.training_config(Folders(spec.data_folder(tmp_path), tmp_path / spec.name, start))
        assert (config.data, config.images, config.weights) == (LVIS.train, LVIS.images, LVIS.weights)
        assert (config.model, config.repeat_threshold, spec.device) == ("mask-rcnn-r101", 0.001, "cuda")
        samplers = {"random": "random", "rfs": "repeat-factor-ceil", "balanced": "class-balanced"}
        assert config.sampler == samplers[spec.sampler]
        epochs = config.schedule(99_388 * 16).total / 99_388
        assert epochs == (24 if spec.start is None else 6)
        assert config.milestones == ((3.0, 5.0) if spec.stage.startswith("loce") else None)
        assert spec.name.startswith("lvis_v1_train-mask-rcnn-r101-")
        assert config.classifier in spec.name or config.classifier == "linear"


def test_the_threshold_of_eql_on_lvis_is_its_own():
    length = BenchLength(iterations=None, problem=LVIS)
    assert length.trained("EQL", "random", seed=0).loss == "eql"


def test_components_has_every_subset():
    mean, std, margin = np.array([-2.0, -5.0]), np.array([2.0, 4.0]), -5.0
    moments = ClassMoments(3)
    moments.update(np.array([[7, *(mean - std)], [7, *(mean + std)]]))
    std = np.sqrt(moments.variance[1:] + 1e-5)
    for label, correction in list(components.CORRECTIONS.items())[1:8]:  # the first is no correction at all
        words = label.partition(":")[0]
        taken, divided, raised = (part in words for part in ("mean", "std", "margin"))
        affine = fit(correction.filled(margin), moments=moments, background=0)
        divisor = std if divided else np.ones(2)
        np.testing.assert_allclose(affine.scale[1:], 1 / divisor)
        np.testing.assert_allclose(affine.shift[1:], (margin * raised - mean * taken) / divisor)
    assert len(components.CORRECTIONS) == 11
    assert parse(components.CORRECTIONS["LogN, squared std"].method)[1] == {"std_power": 2.0}
    assert components.CORRECTIONS["LogN, positives only"].statistics == "positives"


def test_the_threshold_of_eql_spares_as_many_classes_as_on_lvis():
    shares = long_tailed_counts(100, 2400) / 2400
    assert (shares < EQL_THRESHOLD).mean() == pytest.approx(815 / 1203, abs=0.02)


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=NAMES)
def test_pages_have_ours_and_the_papers_numbers(experiment):
    page = to_markdown(made_up(experiment), "logn bench it")
    assert page.startswith(f"# {experiment.title}\n")
    assert "`logn bench it`" in page
    assert "glyph scenes" in page
    assert experiment.reading in page
    assert "Rows without numbers" not in page
    for row in experiment.paper:
        assert f"{row.ap:.1f}" in page
    if experiment.paper:
        assert "LVIS v1" in page
        assert "LVIS: mask APr" in page
    assert "## What it says" in page
    widths = {line.count("|") for line in page.split("## ")[1].splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_a_row_has_the_numbers_of_its_metrics():
    result = made_up(table1.EXPERIMENT)
    table = section_table(result, result.sections[1])
    row = dict(zip(table.header, next(row for row in table.rows if row[0] == "EQL"), strict=True))
    assert (row["box AP"], row["box APr"], row["mask AP"], row["mask APf"]) == ("12.0", "12.1", "17.0", "17.3")
    assert (row["training s"], row["inference"], row["LVIS: box AP"]) == ("2", "2.00", "27.6")
    logn = dict(zip(table.header, next(row for row in table.rows if row[0] == "LogN"), strict=True))
    assert (logn["training s"], logn["inference"]) == ("0", "folds, none")


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=NAMES)
def test_the_tables_fit_a_terminal(experiment, columns):
    text = to_text(made_up(experiment, seeds=(0, 1)), TextStyle(width=columns, prose=columns))
    assert [line for line in text.splitlines() if len(line) > columns] == []


def test_several_seeds_give_mean_and_range():
    result = made_up(margins.EXPERIMENT, seeds=(0, 1))
    table = section_table(result, result.sections[0])
    assert table.rows[1][1] == "1.2 (1.0 to 1.5)"
    assert "mean of 2 seeds" in table.caption
    assert to_dict(result, "")["sections"][0]["rows"][1]["metrics"]["1"]["AP"] == pytest.approx(0.015)


def test_a_row_that_failed_is_told_with_its_sentence():
    result = made_up(sampler_table.EXPERIMENT, fail="LogN")
    page = to_markdown(result, "")
    assert "## Rows without numbers" in page
    assert page.count("Expected luck, but got none.") == 3  # one for each sampler
    row = next(row for row in section_table(result, result.sections[0]).rows if row[0] == "LogN")
    assert row[1] == "failed"
    assert "an unknown amount" in to_text(result)
    assert to_dict(result, "")["failures"][0].startswith("Random sampling, seed 0 (LogN):")


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=NAMES)
def test_findings_survive_without_any_number(experiment):
    result = made_up(experiment)
    nothing = tuple(
        SectionResult(section.title, tuple(RowResult(found.row, failures={0: "Gone."}) for found in section.rows))
        for section in result.sections
    )
    empty = BenchResult(experiment, nothing, (0,), BENCHMARK)
    assert "Gone." in to_markdown(empty, "")


def test_the_claims_about_online_logn_are_checked():
    result = made_up(online_table.EXPERIMENT)  # later rows are higher here: CE < online < online min < LogN
    sentences = online_table.findings(result.sections)
    assert [("so it is here" in sentence) for sentence in sentences[:3]] == [False, True, True]


def test_files_are_written_and_read_back(tmp_path):
    result = made_up(margins.EXPERIMENT)
    paths = write_pages(result, tmp_path / "new" / "folder", "logn bench margins")
    content = json.loads(paths["json"].read_text())
    assert content["table"] == "margins"
    assert content["paper"][0]["data"] == "LVIS v1"
    assert content["sections"][0]["rows"][0]["detector"] == "families-linear-random-ce-s0"
    assert paths["markdown"].read_text() == to_markdown(result, "logn bench margins")
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["margins.json", "margins.md"]


def test_a_section_counts_each_detector_once():
    plain = BENCHMARK.plain("random", seed=0)
    row = margins.EXPERIMENT.sections(BENCHMARK, 0)[0].rows[0]
    assert detectors_of([BenchSection("twice", (row, row))]) == [plain]
