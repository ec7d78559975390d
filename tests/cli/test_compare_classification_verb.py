"""`logn compare` of classifiers: the very numbers of the Python API, what it writes, and what it refuses."""

import contextlib
import io
import json

import numpy as np
import pytest

from logn.classes.counts import ClassCounts
from logn.cli.main import execute
from logn.evaluate.classification.compare import compare_classification

COUNTS = [400, 90, 20, 4]
METHODS = "none,logn,recommended,loga:tau=0.5,tau-norm"


@pytest.fixture
def files(tmp_path):
    """Logits of training, dev and test rows with their labels, counts, families, a weight and statistics."""
    rng = np.random.default_rng(0)
    for name, per_class in (("train", COUNTS), ("dev", [20] * 4), ("test", [40] * 4)):
        labels = np.repeat(np.arange(4), per_class)
        logits = 2 * np.eye(4)[labels] + rng.normal(size=(len(labels), 4)) + 0.7 * np.log(COUNTS)
        np.save(tmp_path / f"{name}.npy", logits.astype(np.float32))
        np.save(tmp_path / f"{name}_labels.npy", labels)
    lines = [f"{name},{count},{family}" for name, count, family in zip("abcd", COUNTS, "xxyy", strict=True)]
    (tmp_path / "classes.csv").write_text("\n".join(["name,image_count,family", *lines]))
    np.save(tmp_path / "weight.npy", rng.normal(size=(4, 5)))
    return tmp_path


def command(files, *more):
    return ["compare", files / "test.npy", "--labels", files / "test_labels.npy", "--bootstrap", "50", *more]


def fitting(files):
    return ["--train-logits", files / "train.npy", "--counts", files / "classes.csv", "--methods", METHODS,
            "--weights", files / "weight.npy", "--families", files / "classes.csv"]  # fmt: skip


def test_the_numbers_are_those_of_the_python_api(files, run):
    printed = run(*command(files, *fitting(files), "--json"))
    assert printed.code == 0
    found = compare_classification(
        np.load(files / "test.npy"),
        np.load(files / "test_labels.npy"),
        METHODS.split(",")[1:],
        train_logits=np.load(files / "train.npy"),
        counts=ClassCounts(COUNTS, names=list("abcd")),
        weight=np.load(files / "weight.npy"),
        families=list("xxyy"),
        num_bootstrap=50,
    )
    expected = json.loads(json.dumps(found.to_dict()))
    times = ("seconds", "settings", "provenance")  # and the settings, of which the command line names all
    for content in (printed.json, expected):
        for name in times:
            content.pop(name)
        for method in content["methods"]:
            method.pop("seconds")
    assert printed.json == expected


def test_statistics_that_were_collected_give_the_same_as_the_training_logits(files, run):
    assert run("collect", files / "train.npy", "--activation", "softmax", "-o", files / "stats.safetensors").code == 0
    collected = run(*command(files, "-s", files / "stats.safetensors", "--json")).json
    direct = run(*command(files, "--train-logits", files / "train.npy", "--json")).json
    for one, other in zip(collected["methods"], direct["methods"], strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], abs=1e-9)


def test_the_table_and_the_verdicts_are_printed_and_all_files_written(files, run):
    printed = run(*command(files, *fitting(files), "-o", files / "result", "--progress"))
    assert printed.code == 0
    for name in METHODS.split(","):
        assert f"\n{name} " in printed.out
    assert "logn raises few-shot accuracy by " in printed.out
    assert "Statistics of 514 training rows." in printed.out
    names = {path.name for path in (files / "result").iterdir()}
    written = {"comparison.json", "comparison.safetensors", "comparison.md", "comparison.csv", "comparison.tex"}
    assert names == {*written, "per_class.csv"}
    assert "Comparing" in printed.err


def test_a_correction_from_a_file_and_bounds_of_ones_own(files, run):
    run("collect", files / "train.npy", "--activation", "softmax", "-o", files / "stats.safetensors")
    run("fit", files / "stats.safetensors", "--method", "recommended", "-o", files / "affine.safetensors")
    more = ["--train-logits", files / "train.npy", "--methods", "recommended", "--counts", files / "classes.csv"]
    printed = run(*command(files, *more, "--correction", files / "affine.safetensors", "--bounds", "4,20", "--json"))
    _, named, saved = printed.json["methods"]
    assert saved["metrics"] == pytest.approx(named["metrics"], abs=1e-6)
    assert [known["group"] for known in printed.json["classes"]] == ["many", "many", "medium", "few"]


def test_a_sweep_is_chosen_on_dev(files, run):
    more = ["--counts", files / "classes.csv", "--methods", "none", "--sweep", "tau=0:2:1"]
    dev = ["--dev-logits", files / "dev.npy", "--dev-labels", files / "dev_labels.npy"]
    printed = run(*command(files, *more, *dev, "--json"))
    (curve,) = printed.json["curves"]
    assert curve["chosen"] in ("loga:tau=0", "loga:tau=1", "loga:tau=2")
    assert [method["method"] for method in printed.json["methods"]] == ["none", curve["chosen"]]
    assert "other rows chose" in run(*command(files, *more, "--split", "--format", "markdown")).out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A classifier of eight glyphs that has hardly been trained, and its data."""
    folder = tmp_path_factory.mktemp("classifier")
    data = ["data", "glyph-classes", "-o", "classes", "--classes", "8", "--most", "30", "--fewest", "3"]
    train = ["train", "classes", "-o", "run", "--iterations", "3", "--batch", "16"]
    dump = ["predict", "run", "-d", "classes", "-o", "logits"]
    dump += ["--split", "train", "--split", "dev", "--split", "test"]
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        for arguments in ([*data, "--dev", "3", "--test", "5"], train, dump):
            assert execute(arguments) == 0
    return folder


def test_a_trained_run_and_its_dumped_logits_give_the_same(trained, run):
    options = ["--bootstrap", "0", "--json"]
    methods = ["--methods", "logn,recommended,loga", "--sweep", "tau-norm:tau=0:1:0.5"]
    families = ["--families", trained / "classes" / "classes.json"]
    dumped = run("compare", trained / "logits", *options, *methods, *families).json
    direct = run("compare", trained / "run", *options, *methods, "--data", trained / "classes").json
    names = [method["method"] for method in dumped["methods"]]
    assert names[:4] == ["none", "logn", "recommended", "loga"]
    assert names[4].startswith("tau-norm:tau=")
    for one, other in zip(dumped["methods"], direct["methods"], strict=True):
        assert one["method"] == other["method"]
        assert one["metrics"] == pytest.approx(other["metrics"], abs=1e-6)
    assert "within-family" in direct["methods"][0]["metrics"]


def test_old_spellings_of_the_source_give_the_same(trained, run):
    options = ["--bootstrap", "0", "--methods", "logn", "--json"]
    dumped, model = trained / "logits", ["--data", trained / "classes"]
    labels = ["--labels", dumped / "test_labels.npy", "-s", dumped / "statistics.safetensors"]

    def metrics(*arguments):
        return [method["metrics"] for method in run("compare", *arguments, *options).json["methods"]]

    expected = metrics(dumped)
    assert metrics("-p", dumped) == expected
    assert metrics("--task", "classification", "--predictions", dumped) == expected
    assert metrics("-l", dumped / "test_logits.npy", *labels) == metrics(dumped / "test_logits.npy", *labels)
    assert metrics("--model", trained / "run", *model) == metrics(trained / "run", *model)


def test_the_source_of_the_logits_must_be_one(trained, refused):
    logits = trained / "logits" / "test_logits.npy"
    assert "Expected `SOURCE`, but got none" in refused("compare", "--task", "classification")
    assert refused("compare", "-p", trained / "logits", "-l", logits) == (
        "Expected one of `--predictions` and `--logits`, which are the same, but got both."
    )
    assert "one of `SOURCE` and `--model`" in refused("compare", trained / "logits", "-m", trained / "run")
    assert f"`--labels` with the logits `{logits}`" in refused("compare", logits)
    assert "`--data` with the trained classifier" in refused("compare", trained / "run")
    for option in ("--data", "--images"):
        sentence = refused("compare", trained / "logits", option, trained / "classes")
        assert f"Expected `{option}` only with a trained classifier" in sentence
    assert "none of them" in refused("compare", trained)
    assert "to hold `test_logits.npy`, which `logn predict" in refused("compare", trained, "--task", "classification")


def test_options_of_detectors_are_refused(trained, refused):
    for option in (["--annotations", "gt.json"], ["--fixed"], ["--nms", "0.5"]):
        sentence = f"Expected `{option[0]}` only with predictions of a detector, but got a classifier"
        assert sentence in refused("compare", trained / "logits", *option)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (["--methods", "logn"], "statistics (`--statistics`) or `--train-logits` for the method"),
        (["--labels", "bad.txt"], "bad.txt`: Expected line 2 to end in the number of a class, but got 'b.jpg x'."),
        (["--labels", "far.txt"], "far.txt`: Expected `labels` to be from 0 to 3, but row 1 has class 9."),
        (["--labels", "short.txt"], "one for each of the 160 rows"),
        (["nan.npy", "--methods", "none"], "nan.npy` to be finite, but row 5, class 2 is nan."),
        (["none.npy"], "none.npy` to be a file, but there is none."),
        (["--train-logits", "nan.npy"], "nan.npy` to be finite, but row 5, class 2 is nan."),
        (["--methods", "loga", "--counts", "zero.csv"], "but class 2 (c) has no training sample"),
        (["--methods", "loga", "--counts", "few.json"], "`--counts` to be of the 4 classes of the logits, got 2."),
        (["--bootstrap", "-1"], "`--bootstrap` to be at least 0"),
        (["--bounds", "20"], "two numbers like"),
        (["--dev-labels", "bad.txt"], "`--dev-logits` and `--dev-labels` go together"),
        (["--dev-logits", "dev.npy"], "`--dev-logits` and `--dev-labels` go together"),
    ],
)
def test_bad_input_gets_one_sentence(files, refused, monkeypatch, change, sentence):
    monkeypatch.chdir(files)
    broken = np.load("test.npy")
    broken[5, 2] = np.nan
    np.save("nan.npy", broken)
    (files / "bad.txt").write_text("a.jpg 0\nb.jpg x\n")
    (files / "far.txt").write_text("a.jpg 0\nb.jpg 9\n")
    (files / "short.txt").write_text("0\n1\n")
    (files / "zero.csv").write_text("name,image_count\na,9\nb,9\nc,0\nd,9\n")
    (files / "few.json").write_text("[5, 5]")
    *options, last = command(files)[2:], change
    source = [last.pop(0)] if last[0].endswith(".npy") else ["test.npy"]
    assert sentence in refused("compare", *source, *options[0], *last)


def test_an_unknown_task_is_refused(files, refused):
    assert "detection" in refused("compare", "--task", "segmentation", "-p", "x", "-a", "y")


def test_a_seed_below_zero_is_refused(files, refused):
    assert "'--seed'" in refused(*command(files, "--seed", "-1"))
    assert "'--seed'" in refused("compare", "-p", "store", "-a", "gt.json", "--seed", "-1")


def test_a_name_that_utf8_cannot_hold_does_not_cost_the_result(files, run):
    """A cut-off emoji in JSON is half of a pair of surrogates; the comparison was made, and then lost."""
    (files / "names.json").write_text(json.dumps(dict(zip(["a\ud83d", "b", "c", "d"], COUNTS, strict=True))))
    options = ("--methods", "loga", "--counts", files / "names.json", "-o", files / "out")
    assert run(*command(files, *options, "--json")).code == 0
    assert r"a\ud83d" in (files / "out" / "per_class.csv").read_text(encoding="utf-8")
    stored = json.loads((files / "out" / "comparison.json").read_text(encoding="utf-8"))
    assert r"a\ud83d" in json.dumps(stored)
