"""`logn compare` of detectors and classifiers: what it prints, what it writes, and what it refuses."""

import json

import numpy as np
import pytest

from logn.data.class_counts import ClassCounts
from logn.data.coco import LabelledImage
from logn.data.labels import fingerprint_images
from logn.errors import LogNWarning
from logn.measure.compare import compare as compare_in_python
from logn.measure.comparison import CompareSettings
from logn.methods.affine import ClassAffine
from logn.statistics.head import Head


@pytest.fixture
def files(make_files, tmp_path, monkeypatch):
    """The store, the annotations, statistics and counts."""
    monkeypatch.chdir(tmp_path)
    return make_files(tmp_path)


def change_annotations(change):
    with open("gt.json") as file:
        content = json.load(file)
    change(content)
    with open("gt.json", "w") as file:
        json.dump(content, file)


def words(*more):
    return ("compare", "store", "-d", "gt.json", "-s", "stats.safetensors", "--bootstrap", "20", *more)


def test_two_short_tables_of_80_columns_and_one_verdict(files, run):
    printed = run(*words("-o", "result"))
    assert printed.code == 0
    lines = (printed.out + printed.err).splitlines()
    assert len(lines) <= 16
    assert lines[5].startswith("With ")
    assert lines[5].endswith(" detections, as many as none has above 0.25:")
    for table in (lines[:5], lines[6:11]):
        assert [line.split()[0] for line in table] == ["method", table[1], "none", "recommended", "logn"]
        assert max(map(len, table)) <= 80
    assert lines[6].split("  ")[-2:] == ["rare right", "rare false"]
    assert sum("raises" in line or "lowers" in line or "changes" in line for line in lines) <= 1
    assert lines[-1].endswith("logn report result")


def test_verbose_prints_the_protocol_and_every_verdict(files, run):
    methods = ("--methods", "none,logn,logn:margin=0,use_std=false,loga", "--counts", "counts.json", "--verbose")
    printed = run(*words(*methods)).out
    for name in ("none", "logn", "logn:margin=0,use_std=false", "loga"):
        assert f"\n{name} " in printed
    assert "federated, at most 300 detections per image, score threshold 0, NMS 0.5" in printed
    assert "20 paired draws of images" in printed


def test_the_uncorrected_model_alone(files, run):
    """Without methods and statistics there is nothing to compare: this is an evaluation."""
    alone = run("compare", "store", "-d", "gt.json", "--json").json
    assert [method["name"] for method in alone["rows"]] == ["none"]
    assert alone["rows"][0]["values"] == run(*words("--json")).json["rows"][0]["values"]
    printed = run("compare", "store", "-a", "gt.json")
    assert printed.out.splitlines()[0].split()[:2] == ["method", "AP"]
    assert printed.err == ""


def test_json_and_files_agree(files, run):
    content = run(*words("--json", "-o", "result")).json
    assert [method["name"] for method in content["rows"]] == ["none", "recommended", "logn"]
    saved = json.loads((files / "result" / "comparison.json").read_text())
    assert saved["rows"][1]["values"] == content["rows"][1]["values"]


def test_a_saved_correction_is_a_method_unless_it_is_of_another_model(files, run, refused):
    for activation in ("softmax", "sigmoid"):
        head = Head(background=-1, activation=activation)
        affine = ClassAffine.over_foreground(np.ones(3), [0.0, 1.0, 2.0], head, method="mine")
        affine.save(f"{activation}.safetensors")
    result = run(*words("--methods", "logn,softmax.safetensors", "--json")).json
    assert [method["name"] for method in result["rows"]] == ["none", "logn", "softmax.safetensors"]
    assert "The activation differs: sigmoid in" in refused(*words("--methods", "logn,sigmoid.safetensors"))


def test_counts_say_the_groups_where_the_annotations_do_not(files, run):
    change_annotations(lambda gt: [category.pop("frequency") for category in gt["categories"]])
    content = run("compare", "store", "-d", "gt.json", "--counts", "counts.json", "--json").json
    assert content["protocols"]["AP"]["groups"] == "training counts up to 10, up to 100, above"
    assert [known["group"] for known in content["classes"]] == ["f", "c", "r"]


def test_images_without_predictions_are_left_out_with_a_note(files, run):
    change_annotations(lambda gt: gt["images"].append({**gt["images"][0], "id": 99}))
    printed = run("compare", "store", "-d", "gt.json")
    assert printed.err == "Note: 1 of 13 annotated images have no predictions and are left out.\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("compare store", "Pass the annotations of `store`: --data FILE."),
        ("compare test.npy", "Pass the class of each row of `test.npy`: --labels FILE."),
        ("compare store -d gt.json --labels x.npy", "`labels`"),
        ("compare test.npy --labels x.npy -d gt.json", "`data`"),
        ("compare . -d gt.json", "`.` is neither a folder from `logn predict` nor a file of logits."),
        ("compare stor -d gt.json", "`stor` does not exist. Make predictions with `logn predict MODEL --data val.json"),
        ("compare best.pt -d gt.json", "`logn predict best.pt --data val.json -o predictions --trust`"),
        ("compare stats.safetensors -d gt.json", "holds statistics, not predictions: pass it as `-s stats"),
        ("compare store -d gt.json --methods norcl", "to be one of none, recommended, logn"),
        ("compare store -d gt.json --methods use_std=false", "`methods`"),
        ("compare store -d gt.json --methods loga", "The method `loga` needs"),
        ("compare store -d gt.json --methods logn", "The method `logn` needs"),
        ("compare store -d gt.json -o gt.json", "`gt.json` is a file, but the comparison is a folder"),
        ("compare test.npy --labels labels.npy --methods logn", "The method `logn` needs"),
        ("compare test.npy --labels bad.txt", "bad.txt`"),
        ("compare nan.npy --labels labels.npy", "nan.npy` to be finite, but row 5, class 2 is nan."),
        ("compare none.npy --labels labels.npy", "none.npy` does not exist."),
        ("compare test.npy --labels labels.npy --train-logits nan.npy", "nan.npy` to be finite, but row 5, class 2 is"),
        (
            "compare test.npy --labels labels.npy --methods loga --counts two.json",
            "`counts`",
        ),
        (
            "compare test.npy --labels labels.npy --class-names two.txt",
            "names 2 classes, but the logits have 3 columns",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(files, refused, line, sentence):
    broken = np.load("test.npy")
    broken[5, 2] = np.nan
    np.save("nan.npy", broken)
    for name, text in {"bad.txt": "a.jpg 0\nb.jpg x\n", "two.json": "[5, 5]", "two.txt": "a\nb\n"}.items():
        (files / name).write_text(text)
    assert sentence in refused(*line.split())


def test_another_split_with_the_same_ids_is_noticed(files, run):
    """Ids count from 1 in many a split, so they alone do not tell whose annotations these are."""
    images = [LabelledImage(number, f"test/{number}.jpg") for number in range(1, 13)]
    header = files / "store" / "header.json"

    def record(fingerprint):
        content = json.loads(header.read_text())
        content["header"]["metadata"] = {"images": fingerprint, "data": "test.json"}
        header.write_text(json.dumps(content))

    def name_images(split):
        change_annotations(lambda gt: [image.update(file_name=f"{split}/{image['id']}.jpg") for image in gt["images"]])

    record(fingerprint_images(images))

    name_images("test")
    assert run("compare", "store", "-d", "gt.json", "--json").json["notes"] == []
    name_images("dev")
    with pytest.warns(LogNWarning, match="other file names"):
        assert run("thresholds", "store", "-d", "gt.json", "--bootstrap", "0", "--json").code == 0
    with pytest.warns(LogNWarning, match="other file names"):
        [note] = run("compare", "store", "-d", "gt.json", "--json").json["notes"]
    assert note.endswith("(the predictions were made from `test.json`). Check that it is the same split.")
    record(None)  # the images of a source in Python may have no names
    assert run("compare", "store", "-d", "gt.json", "--json").json["notes"] == []


TRAINED = [400, 90, 20, 4]
METHODS = "none,logn,recommended,loga:tau=0.5"


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Logits of training and test rows of a classifier with their labels, and counts."""
    rng = np.random.default_rng(0)
    for name, per_class in (("train", TRAINED), ("test", [40] * 4)):
        labels = np.repeat(np.arange(4), per_class)
        logits = 2 * np.eye(4)[labels] + rng.normal(size=(len(labels), 4)) + 0.7 * np.log(TRAINED)
        np.save(tmp_path / f"{name}.npy", logits.astype(np.float32))
        np.save(tmp_path / f"{name}_labels.npy", labels)
    lines = [f"{name},{count}" for name, count in zip("abcd", TRAINED, strict=True)]
    (tmp_path / "classes.csv").write_text("\n".join(["name,image_count", *lines]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


CLASSIFIER = ("compare", "test.npy", "--labels", "test_labels.npy", "--bootstrap", "50")


@pytest.mark.filterwarnings("ignore:The counts have class names:logn.errors.LogNWarning")
def test_the_numbers_of_a_classifier_are_those_of_the_python_api(rows, run):
    printed = run(*CLASSIFIER, "--train-logits", "train.npy", "--counts", "classes.csv", "--methods", METHODS, "--json")
    expected = compare_in_python(
        np.load("test.npy"),
        np.load("test_labels.npy"),
        METHODS.split(",")[1:],
        train_logits=np.load("train.npy"),
        counts=ClassCounts(TRAINED, names=list("abcd")),
        settings=CompareSettings(num_bootstrap=50),
    )
    for one, row in zip(printed.json["rows"], expected.rows, strict=True):
        assert (one["name"], one["values"]) == (row.name, pytest.approx(dict(row.values), nan_ok=True))


def test_statistics_that_were_collected_give_the_same_as_the_training_logits(rows, run):
    assert run("collect", "train.npy", "--activation", "softmax", "-o", "stats.safetensors").code == 0
    collected = run(*CLASSIFIER, "-s", "stats.safetensors", "--json").json
    direct = run(*CLASSIFIER, "--train-logits", "train.npy", "--json").json
    for one, other in zip(collected["rows"], direct["rows"], strict=True):
        assert one["values"] == pytest.approx(other["values"], abs=1e-9)


@pytest.mark.filterwarnings("ignore:The counts have class names:logn.errors.LogNWarning")
def test_the_table_of_a_classifier(rows, run):
    printed = run(*CLASSIFIER, "--train-logits", "train.npy", "--counts", "classes.csv", "-o", "result")
    lines = (printed.out + printed.err).splitlines()
    assert len(lines) <= 10
    assert lines[0].split() == ["method", "top-1", "change", "many", "medium", "few", "ECE"]
    assert (rows / "result" / "comparison.json").exists()


@pytest.mark.filterwarnings("ignore:The counts have class names:logn.errors.LogNWarning")
def test_a_name_that_utf8_cannot_hold_does_not_cost_the_result(rows, run):
    """A cut-off emoji in JSON is half of a pair of surrogates; the comparison was made, and then lost."""
    (rows / "names.json").write_text(json.dumps(dict(zip(["a\ud83d", "b", "c", "d"], TRAINED, strict=True))))
    assert run(*CLASSIFIER, "--methods", "loga", "--counts", "names.json", "-o", "out", "--json").code == 0
    assert r"a\ud83d" in (rows / "out" / "comparison.json").read_text(encoding="utf-8").replace("\\\\", "\\")
