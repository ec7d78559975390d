"""The bench from nothing to a page on a tiny problem: trained once, measured once, failures told."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from logn_research.datasets.glyphs.scenes import generate_glyph_scenes
from logn_research.datasets.glyphs.settings import GlyphSettings
from logn_research.experiments import margins
from logn_research.experiments.artifact_cache import ArtifactCache
from logn_research.experiments.bench_detectors import BenchLength
from logn_research.experiments.bench_pages import to_markdown
from logn_research.experiments.detector_spec import DetectionProblem
from logn_research.experiments.detector_statistics import collect_detector_statistics
from logn_research.experiments.experiment import NOT_TRAINED, BenchRow, BenchSection, Correction, Experiment
from logn_research.experiments.measurements import FILE_NAME, RecordFile, measure
from logn_research.experiments.run_experiment import run_experiment
from logn_research.training.detectors import build_detector
from logn_research.training.layers import BoxPredictor
from logn_research.training.settings import DetectorSettings
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from logn.cli.main import execute
from logn.cli.verbs import bench as bench_command
from logn.errors import InputError
from logn.statistics.moments import ClassMoments

TINY = BenchLength("tiny", GlyphSettings(classes=6, train=40, dev=1, test=12), iterations=12)


class Steps:
    """Remembers what was done."""

    def __init__(self):
        self.names = []

    @contextmanager
    def __call__(self, name, total):
        self.names.append(name)
        yield lambda amount: None


def sections(length, seed):
    plain = length.plain("random", seed=seed)
    rows = (
        BenchRow("CE", plain),
        BenchRow("BAGS", length.second("BAGS", "random", seed=seed)),
        BenchRow("LogN", plain, Correction("logn")),
        BenchRow("recommended", plain, Correction("recommended")),
        BenchRow("margin alone", plain, Correction("logn:strength=0,use_std=false,margin={min}")),
        BenchRow("positives", plain, Correction("logn", "positives")),
        BenchRow("tau-norm", plain, Correction("tau-norm:tau=0.7")),
        BenchRow("FRACAL", plain, Correction("fracal")),
        BenchRow("impossible", plain, Correction("loga:tau=nan")),
    )
    return [BenchSection("Everything", rows)]


EXPERIMENT = Experiment(
    "tiny", "Tiny", "Tiny.", sections, lambda results: ["Done."], errors=True, costs=True, margins=True
)


def run(root, **options):
    steps = Steps()
    cache = ArtifactCache(root, step=steps)
    return run_experiment(EXPERIMENT, cache, length=TINY, seeds=(0,), **options), steps.names


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Read only: the folder of a run, its result and its steps."""
    root = tmp_path_factory.mktemp("bench")
    return root, *run(root)


@pytest.fixture
def own_root(finished, tmp_path):
    """A copy of the run's folder, for a test that goes on with it."""
    return shutil.copytree(finished[0], tmp_path / "copy")


def test_every_row_is_measured_and_the_impossible_one_is_told(finished):
    _, result, _ = finished
    section = result.sections[0]
    assert [found.row.label for found in section.measured()] == [
        "CE",
        "BAGS",
        "LogN",
        "recommended",
        "margin alone",
        "positives",
        "tau-norm",
        "FRACAL",
    ]
    assert "tau" in section["impossible"].failures[0]
    for found in section.measured():
        assert {"AP", "AP-mask"} <= set(found.metrics[0])
        assert set(found.errors[0]) >= {"Cls", "FP", "FN"}
        assert np.isfinite([found.total_seconds[0], found.training_seconds[0]]).all()
        assert found.logged_seconds[0] > 0
    own, first = section["BAGS"].training_seconds[0], section["CE"].training_seconds[0]
    assert section["BAGS"].total_seconds[0] == pytest.approx(own + first)
    assert section["CE"].relative_cost[0] == 1.0
    assert section["BAGS"].relative_cost[0] > 0
    moments = ClassMoments.load(finished[0] / "models" / "tiny-linear-random-ce-i12-s0" / "statistics.safetensors")
    assert section["LogN"].margins[0] == pytest.approx(moments.mean[1:].min())
    assert section["margin alone"].margins == section["LogN"].margins
    assert not section["CE"].margins


def test_nothing_is_done_twice(finished, own_root):
    _, first, done = finished
    assert any(name.startswith("Training") for name in done)
    again, steps = run(own_root)
    # Only the row that failed is tried again, and its fit fails before anything is run.
    assert not [name for name in steps if not name.startswith("Predicting")]
    assert [found.metrics for found in again.sections[0].rows] == [found.metrics for found in first.sections[0].rows]
    assert again.sections[0]["BAGS"].relative_cost == first.sections[0]["BAGS"].relative_cost


def test_what_a_kill_left_out_is_measured_the_same(finished, own_root):
    first = finished[1]
    path = own_root / "models" / "tiny-linear-random-ce-i12-s0" / FILE_NAME
    content = json.loads(path.read_text())
    whole = path.read_text()
    del content["corrections"]["logn"]
    path.write_text(json.dumps(content))
    again, steps = run(own_root)
    assert [name for name in steps if name.startswith("Measuring")] == [
        "Measuring 1 rows of tiny-linear-random-ce-i12-s0"
    ]
    assert again.sections[0]["LogN"].metrics == first.sections[0]["LogN"].metrics
    assert json.loads(path.read_text())["corrections"] == json.loads(whole)["corrections"]


def test_measurements_of_other_weights_do_not_count(finished, tmp_path):
    root = finished[0]
    source = root / "models" / "tiny-linear-random-ce-i12-s0"
    (tmp_path / "checkpoint.safetensors").write_bytes((source / "checkpoint.safetensors").read_bytes())
    (tmp_path / FILE_NAME).write_text((source / FILE_NAME).read_text())
    assert RecordFile(tmp_path).read()["corrections"]
    other = (root / "models" / "tiny-linear-random-ce+bags-i3-s0" / "checkpoint.safetensors").read_bytes()
    (tmp_path / "checkpoint.safetensors").write_bytes(other)
    assert not RecordFile(tmp_path).read()["corrections"]


def test_statistics_and_predictions_of_other_weights_do_not_count(own_root):
    spec = TINY.plain("random", seed=0)
    cache = ArtifactCache(own_root)
    before = cache.statistics(spec)
    _move_weights(cache.model_folder(spec) / "checkpoint.safetensors")
    after = cache.statistics(spec)
    assert after.metadata.fingerprint != before.metadata.fingerprint
    assert not np.allclose(after.mean, before.mean)
    with pytest.raises(InputError, match="continued with the same weights, but they differ"):
        cache.predictions(spec, "test")
    shutil.rmtree(cache.model_folder(spec) / "predictions-test")
    metrics, _ = measure(cache, spec, [Correction("logn", "positives")])
    assert metrics
    positives = ClassMoments.load(cache.model_folder(spec) / "statistics-positives.safetensors")
    assert positives.metadata.fingerprint == after.metadata.fingerprint


def _move_weights(path):
    with safe_open(path, framework="np") as file:
        metadata = {key: value for key, value in file.metadata().items() if key != "checksum"}
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("box_predictor.cls_score.bias"))
    tensors[name] = tensors[name] + np.arange(len(tensors[name]), dtype=np.float32)
    save_file(tensors, path, metadata=metadata)


def test_statistics_are_those_of_the_training_images(own_root):
    spec, cache = TINY.plain("random", seed=0), ArtifactCache(own_root)
    wanted = collect_detector_statistics(cache.model(spec), cache.dataset(spec, "train"))
    found = cache.statistics(spec)
    assert found.count.tolist() == wanted.count.tolist()
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-6)


def test_a_file_that_is_no_json_is_refused(finished, tmp_path):
    source = finished[0] / "models" / "tiny-linear-random-ce-i12-s0" / "checkpoint.safetensors"
    (tmp_path / "checkpoint.safetensors").write_bytes(source.read_bytes())
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(InputError, match="to be JSON"):
        RecordFile(tmp_path).read()
    with pytest.raises(InputError, match="no checkpoint"):
        RecordFile(tmp_path / "nowhere")


def test_statistics_of_positives_are_those_of_proposals_on_their_boxes(finished):
    folder = finished[0] / "models" / "tiny-linear-random-ce-i12-s0"
    everything, positives, correct = (
        ClassMoments.load(folder / f"{name}.safetensors")
        for name in ("statistics", "statistics-positives", "statistics-positives-correct")
    )
    assert positives.metadata.population.endswith(", positives")
    assert 0 < positives.count.sum() < everything.count[0]
    assert (correct.count <= positives.count).all()
    np.testing.assert_array_equal(positives.count[0], 0)


def test_a_training_that_fails_holds_up_nobody(own_root):
    def broken(length, seed):
        rows = sections(length, seed)[0].rows[:1]
        other = replace(length.trained("Seesaw", "random", seed=seed), model="no such model")
        return [BenchSection("All", (*rows, BenchRow("Seesaw", other)))]

    experiment = replace(EXPERIMENT, sections=broken, costs=False)
    result = run_experiment(experiment, ArtifactCache(own_root), length=TINY, seeds=(0,))
    assert result.sections[0]["CE"].metrics
    assert result.sections[0]["Seesaw"].failures[0].startswith("Expected `model` to be one of")


def test_without_training_rows_are_told_as_not_trained(tmp_path, capsys):
    code = execute(
        ["bench", "margins", "--measure-only", "--root", str(tmp_path / "r"), "-o", str(tmp_path / "o"), "--json"]
    )
    content = json.loads(capsys.readouterr().out)
    assert code == 1
    assert len(content["failures"]) == 4
    assert all(sentence.endswith(NOT_TRAINED) for sentence in content["failures"])
    assert (tmp_path / "o" / "margins.md").exists()
    assert str(tmp_path) not in (tmp_path / "o" / "margins.md").read_text()


def test_the_command_prints_and_writes_the_table(own_root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("logn_research.experiments.bench_detectors.QUICK", TINY)
    monkeypatch.setattr(margins, "EXPERIMENT", EXPERIMENT)
    arguments = ["bench", "margins", "--quick", "--root", str(own_root), "-o", str(tmp_path)]
    assert execute(arguments) == 0
    printed = capsys.readouterr()
    assert "Done." in printed.out
    assert "Failed: Everything, seed 0 (impossible):" in printed.err
    assert "`logn bench margins --quick --seeds 1`" in (tmp_path / "tiny.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds", "0"], "Expected `--seeds` to be at least 1, but got 0."),
        (["--jobs", "0"], "Expected `--jobs` to be at least 1, but got 0."),
        (["--iterations", "2"], "Expected `--iterations` to be at least 4, but got 2."),
    ],
)
def test_bad_options_get_one_sentence(arguments, sentence, tmp_path, capsys):
    folders = ["--root", str(tmp_path / "r"), "-o", str(tmp_path / "o")]
    assert execute(["bench", "table1", *arguments, *folders]) == 2
    assert capsys.readouterr().err == f"Error: {sentence}\n"
    assert not (tmp_path / "o").exists()


def test_every_table_has_a_command(capsys):
    for name in bench_command.TABLES:
        assert execute(["bench", name, "--help"]) == 0
        assert f"logn bench {name} --quick" in " ".join(capsys.readouterr().out.split())


def test_every_table_is_found_by_its_command(tmp_path, capsys):
    """Without training nothing can be measured, but each command gets as far as its rows."""
    for name in bench_command.TABLES:
        options = ["--measure-only", "--quick", "--root", str(tmp_path / "root"), "-o", str(tmp_path / name)]
        execute(["bench", name, *options])
        assert "is not trained yet" in capsys.readouterr().err


def test_data_that_is_read_takes_the_place_of_scenes(tmp_path):
    data = tmp_path / "scenes"
    generate_glyph_scenes(data, TINY.glyphs)
    problem = DetectionProblem(data / "train.json", data / "test.json")
    length = BenchLength(iterations=4, device="cpu", problem=problem)

    def rows(length, seed):
        plain = length.plain("rfs", seed=seed)
        return [BenchSection("Read", (BenchRow("CE", plain), BenchRow("LogN", plain, Correction("logn"))))]

    experiment = replace(EXPERIMENT, sections=rows, errors=False)
    result = run_experiment(experiment, ArtifactCache(tmp_path / "cache"), length=length, seeds=(0,))
    assert not result.failures
    models = tmp_path / "cache" / "models"
    assert [folder.name for folder in models.iterdir()] == ["train-linear-rfs-ce-i4-s0"]
    assert not (tmp_path / "cache" / "data").exists()  # nothing was drawn
    page = to_markdown(result, "logn bench it")
    assert "small on train.json, tested on test.json; 4 iterations, second stages a quarter of it" in page
    assert "Points on train." in page


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--test", "val.json"], "Expected `--test` only with `--data`, but got no `--data`."),
        (["--epochs", "2"], "Expected `--epochs` only with `--data`, but got no `--data`."),
        (["--class-boxes", "40"], "Expected `--class-boxes` only with `--data`, but got no `--data`."),
        (
            ["--data", "a.json", "--test", "b.json", "--class-boxes", "40"],
            "Expected `--class-boxes` only with mask-rcnn-r50 or mask-rcnn-r101, which have a box for each class, but "
            "got `--model small`; leave it out.",
        ),
        (
            ["--data", "train.json"],
            "Expected `--test` to name the annotations to test on, with `--data`, but got none.",
        ),
        (["--data", "a.json", "--test", "b.json"], "Expected `a.json` to be an annotation file, but there is none."),
        (["--data", "a.json", "--test", "b.json", "--quick"], "Expected `--quick` only without `--data`, but got both"),
        (["--iterations", "2"], "Expected `--iterations` to be at least 4, but got 2."),
    ],
)
def test_data_that_is_not_there_is_refused(options, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert execute(["bench", "online", *options]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", ["small", "light", "mask-rcnn-r50", "mask-rcnn-r101", "cascade-r101"])
def test_the_models_with_a_box_for_each_class_are_known(model):
    built = build_detector(DetectorSettings(model, 3), seed=0)
    (sizes,) = {module.bbox_pred.out_features for module in built.modules() if isinstance(module, BoxPredictor)}
    assert sizes == (16 if model in bench_command.MODELS_WITH_CLASS_BOXES else 4)
