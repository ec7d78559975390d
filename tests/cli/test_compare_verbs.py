"""`logn evaluate` and `logn compare`: what they print, what they write, and what they refuse."""

import json

import numpy as np
import pytest

from logn.calibrators.affine import ClassAffine
from logn.cli.main import execute
from logn.errors import LogNWarning
from logn.evaluate.store.store import PredictionWriter, StoreHeader
from logn.labels.annotation_columns import fingerprint_images
from logn.logits.proposals import Proposals
from logn.statistics.moments import ClassMoments, StatisticsMetadata

COUNTS = [500, 40, 3]


@pytest.fixture
def files(tmp_path):
    """Twelve images with two boxes each; the store, the annotations, statistics and counts."""
    rng = np.random.default_rng(0)
    images, annotations = [], []
    metadata = StatisticsMetadata(background=-1, activation="softmax")
    moments = ClassMoments(4, sample_rows=64, mean_probability=True, metadata=metadata)
    with PredictionWriter(tmp_path / "store", StoreHeader(num_columns=4, background=-1)) as writer:
        for image in range(1, 13):
            labels = rng.integers(0, 3, 2)
            boxes = np.array([[0, 0, 20, 20], [40, 40, 80, 70]])[rng.integers(0, 2, 8)] + rng.normal(0, 1, (8, 4))
            logits = rng.normal(0, 1, (8, 4)) + np.log([*COUNTS, 100])
            moments.update(logits)
            writer.append(image, Proposals(boxes.astype(np.float32), logits.astype(np.float32), 100, 100))
            images.append({"id": image, "neg_category_ids": [1, 2, 3], "not_exhaustive_category_ids": []})
            for label, box in zip(labels.tolist(), [[0, 0, 20, 20], [40, 40, 40, 30]], strict=True):
                annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1}
                annotations.append(annotation | {"bbox": box, "area": box[2] * box[3]})
    categories = [{"id": n + 1, "name": f"c{n}", "frequency": "fcr"[n]} for n in range(3)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "gt.json").write_text(json.dumps(content))
    (tmp_path / "counts.json").write_text(json.dumps(COUNTS))
    moments.save(tmp_path / "stats.safetensors")
    return tmp_path


def common(files):
    return ["-p", str(files / "store"), "-a", str(files / "gt.json")]


def compare(files, *more):
    return ["compare", *common(files), "-s", str(files / "stats.safetensors"), "--bootstrap", "20", *more]


def test_compare_prints_a_table_with_its_protocol_and_a_verdict(files, capsys):
    methods = ["--methods", "none,logn,logn:margin=0,use_std=false,loga", "--counts", str(files / "counts.json")]
    assert execute(compare(files, *methods, "--method", "norcal:gamma=0.3")) == 0
    printed = capsys.readouterr().out
    for name in ("none", "logn", "logn:margin=0,use_std=false", "loga", "norcal:gamma=0.3"):
        assert f"\n{name} " in printed
    assert "federated, at most 300 detections per image, score threshold 0, NMS 0.5" in printed
    assert "20 paired draws of images" in printed


def test_compare_as_json_and_as_files(files, capsys):
    output = files / "result"
    assert execute(compare(files, "--json", "-o", str(output), "--fixed", "--errors")) == 0
    content = json.loads(capsys.readouterr().out)
    assert [method["method"] for method in content["methods"]] == ["none", "recommended", "logn"]
    assert content["methods"][1]["errors"]["gains"].keys() >= {"Cls", "Miss", "FP", "FN"}
    assert content["protocols"]["AP-Fixed"]["per_class_limit"] == 10_000
    assert (
        json.loads((output / "comparison.json").read_text())["methods"][1]["metrics"]
        == content["methods"][1]["metrics"]
    )


def test_methods_that_need_other_files(files, capsys):
    np.save(files / "weight.npy", np.random.default_rng(0).normal(size=(4, 6)))
    np.save(files / "dimensions.npy", np.array([1.8, 1.4, 1.0]))
    more = ["--weights", str(files / "weight.npy"), "--dimensions", str(files / "dimensions.npy")]
    methods = ["--methods", "tau-norm:tau=0.5,fracal:num_images=600", "--counts", str(files / "counts.json"), "--json"]
    assert execute(compare(files, *more, *methods)) == 0
    names = [method["method"] for method in json.loads(capsys.readouterr().out)["methods"]]
    assert names == ["none", "tau-norm:tau=0.5", "fracal:num_images=600"]


def test_compare_chooses_on_one_half(files, capsys):
    more = ["--sweep", "margin=-1:1:1", "--split", "--methods", "none", "--format", "markdown"]
    assert execute(compare(files, *more)) == 0
    assert "the other half of the images chose logn:margin=" in capsys.readouterr().out


def test_a_saved_correction_is_a_method(files, capsys):
    affine = ClassAffine.over_foreground(np.ones(3), [0.0, 1.0, 2.0], -1, method="mine")
    affine.save(files / "mine.safetensors")
    assert execute(compare(files, "--correction", str(files / "mine.safetensors"), "--json")) == 0
    assert json.loads(capsys.readouterr().out)["methods"][-1]["method"].endswith("mine.safetensors")


def test_a_correction_of_another_model_is_refused_or_warned_of(files, capsys):
    source = StatisticsMetadata(background=-1, activation="sigmoid")
    affine = ClassAffine.over_foreground(np.ones(3), [0.0, 1.0, 2.0], -1, method="mine", source=source)
    affine.save(files / "mine.safetensors")
    correction = ["--correction", str(files / "mine.safetensors")]
    assert execute(compare(files, *correction)) == 2
    told = capsys.readouterr().err
    assert "mine.safetensors` to be of a softmax, the activation of the predictions, but got a sigmoid" in told
    assert "`--allow-mismatch`" in told
    with pytest.warns(LogNWarning, match="to be of a softmax"):
        assert execute(compare(files, *correction, "--allow-mismatch", "--json")) == 0
    moved = ClassAffine.over_foreground(np.ones(3), [0.0, 1.0, 2.0], 0, method="mine")
    moved.save(files / "mine.safetensors")
    assert execute(compare(files, *correction, "--allow-mismatch")) == 2
    assert "background at -1 (last), its place in the predictions, but got 0 (first)" in capsys.readouterr().err


def test_evaluate_equals_the_first_row_of_compare(files, capsys):
    assert execute(["evaluate", *common(files), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert execute(compare(files, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["methods"][0]["metrics"] == alone["methods"][0]["metrics"]


def test_evaluate_a_result_file_as_coco(files, capsys):
    results = [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 20, 20], "score": 0.9}]
    (files / "results.json").write_text(json.dumps(results))
    command = ["evaluate", "-r", str(files / "results.json"), "-a", str(files / "gt.json"), "--coco", "--json"]
    assert execute(command) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["protocol"]["style"] == "coco"
    assert content["protocol"]["score_threshold"] is None
    assert content["methods"][0]["method"] == "results.json"


@pytest.mark.parametrize("source", ["predictions", "results"])
def test_counts_say_the_groups_where_the_annotations_do_not(files, capsys, source):
    change_annotations(files, lambda gt: [category.pop("frequency") for category in gt["categories"]])
    (files / "results.json").write_text("[]")
    given = common(files) if source == "predictions" else ["-r", str(files / "results.json"), *common(files)[2:]]
    assert execute(["evaluate", *given, "--counts", str(files / "counts.json"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["protocol"]["groups"] == "training counts up to 10, up to 100, above"
    assert [known["group"] for known in content["classes"]] == ["f", "c", "r"]


def change_annotations(files, change):
    content = json.loads((files / "gt.json").read_text())
    change(content)
    (files / "gt.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda gt: gt["images"][0].pop("neg_category_ids"), "to have `neg_category_ids` for the LVIS protocol"),
        (lambda gt: gt["categories"][1].pop("frequency"), "category 2 has none; give training counts"),
        (
            lambda gt: gt["categories"].append({"id": 9, "name": "x", "frequency": "r"}),
            "the 3 classes of the predictions",
        ),
        (lambda gt: gt["images"].pop(), "image 12 for one, are not annotated"),
    ],
)
def test_annotations_that_do_not_fit_are_refused_in_one_sentence(files, capsys, change, sentence):
    change_annotations(files, change)
    assert execute(compare(files)) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--methods", "norcl"], "`--method` to be one of none, recommended, logn"),
        (["--methods", "use_std=false"], "`--methods` to begin with a method"),
        (["--methods", "loga"], "`--counts` for the method `loga`"),
        (["--bootstrap", "-1"], "`--bootstrap` to be at least 0"),
        (["--confidence", "95"], "`--confidence` to lie between 0 and 1"),
        (["--bounds", "10"], "two numbers like 10,100"),
        (["--bounds", "5,50"], "`--counts` with `--bounds`"),
        (["--nms", "2"], "`--nms-iou` to be from 0 to 1"),
        (["--nms", "soft"], "`--nms` to be one of class-wise, class-agnostic, none, or an overlap like 0.5"),
        (["--nms", "0.5", "--nms-iou", "0.6"], "the overlap once"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_sentence(files, capsys, more, sentence):
    assert execute(compare(files, *more)) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1


def test_evaluate_needs_predictions_or_results(files, refused):
    truth = ["-a", files / "gt.json"]
    assert "Expected `SOURCE`, but got none" in refused("evaluate", *truth)
    both = ["-p", files / "store", "-r", files / "results.json"]
    assert "one of `--predictions` and `--results`" in refused("evaluate", *both, *truth)
    for option in (["--correction", "affine.safetensors"], ["--nms", "0.5"], ["--score-threshold", "0.1"]):
        sentence = refused("evaluate", files / "results.json", *option, *truth)
        assert sentence == (
            f"Expected `{option[0]}` only with predictions of `logn predict`, but got a result file "
            f"(`{files / 'results.json'}`)."
        )


def test_the_source_says_the_task(files, run, refused, tmp_path):
    """The store comes first, and `-p` and `--task` say the same; what does not fit it is refused by name."""
    options = ["-a", files / "gt.json", "-s", files / "stats.safetensors", "--bootstrap", "0", "--json"]

    def metrics(*source):
        return [method["metrics"] for method in run("compare", *source, *options).json["methods"]]

    expected = metrics(files / "store")
    assert metrics("-p", files / "store") == expected
    assert metrics("--task", "detection", files / "store") == expected
    assert refused("compare", files / "store") == (
        f"Expected `--annotations` with predictions of a detector (`{files / 'store'}`), but got none."
    )
    sentence = refused("compare", files / "store", "--labels", files / "gt.json", *options[:2])
    assert sentence.startswith("Expected `--labels` only with a classifier, but got predictions of a detector (`")
    assert f"`{files}` to be what `logn predict` wrote" in refused("compare", files, *options[:2])
    assert refused("compare", files / "stor", *options[:2]).endswith(
        "there is none; `logn predict MODEL --data val.json -o predictions` makes predictions."
    )


def test_groups_by_counts_with_own_bounds(files, capsys):
    more = ["--counts", str(files / "counts.json"), "--bounds", "2,600", "--json"]
    assert execute(compare(files, *more)) == 0
    metrics = json.loads(capsys.readouterr().out)["methods"][0]["metrics"]
    assert metrics["APr"] is None
    assert metrics["APc"] == pytest.approx(metrics["AP"])


def test_another_split_with_the_same_ids_is_noticed(files, capsys):
    """Ids count from 1 in many a split, so they alone do not tell whose annotations these are."""
    names = [(image, (f"test/{image}.jpg",)) for image in range(1, 13)]
    header = files / "store" / "part-00000" / "header.json"
    content = json.loads(header.read_text()) | {"metadata": {"images": fingerprint_images(names), "data": "test.json"}}
    header.write_text(json.dumps(content))

    def name_images(split):
        change_annotations(
            files, lambda data: [image.update(file_name=f"{split}/{image['id']}.jpg") for image in data["images"]]
        )

    name_images("test")
    assert execute(["evaluate", *common(files), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
    name_images("dev")
    with pytest.warns(LogNWarning, match="other file names"):
        assert execute(["evaluate", *common(files), "--json"]) == 0
    [note] = json.loads(capsys.readouterr().out)["notes"]
    assert note.endswith("(the predictions were made from `test.json`): check that it is the same split.")
    with pytest.warns(LogNWarning):
        assert execute(compare(files, "--methods", "logn", "--sweep", "margin=0:1:1", "--split", "--json")) == 0
    assert len([note for note in json.loads(capsys.readouterr().out)["notes"] if "other file names" in note]) == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"score": float("nan")}, "`score` of every result of `{}` to be a finite number, but entry 1 has nan"),
        ({"score": None}, "`score` of every result of `{}` to be a finite number, but entry 1 has None"),
        ({"bbox": [1, 2, 3]}, "`bbox` of every result of `{}` to be four finite numbers, but entry 1 has [1, 2, 3]"),
        ({"bbox": [1, 2, 3, None]}, "`bbox` of every result of `{}` to be four finite numbers"),
        ({"image_id": None}, "every `image_id` of `{}` to be annotated, but None is not"),
        ({"image_id": [1]}, "every `image_id` of `{}` to be annotated, but [1] is not"),
        ({"segmentation": "outline"}, "to be polygons or run lengths, but that of entry 1 is neither"),
        ({"segmentation": {"size": [100, 100]}}, "to be polygons or run lengths, but that of entry 1 is neither"),
        (
            {"segmentation": {"size": [50, 100], "counts": [10, 20, 4970]}},
            "of entry 1 has height and width [50, 100] where image 1 has [100, 100]",
        ),
    ],
)
def test_results_of_other_tools_are_checked_entry_by_entry(files, capsys, change, sentence):
    good = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9], "score": 0.5}
    change_annotations(files, lambda data: [image.update(height=100, width=100) for image in data["images"]])
    if "segmentation" in change:
        good["segmentation"] = [[1, 1, 9, 1, 9, 9]]
    results = files / "results.json"
    results.write_text(json.dumps([good, good | change]))
    assert execute(["evaluate", "-r", str(results), "-a", str(files / "gt.json")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence.format(results) in printed.err
    assert printed.err.count("\n") == 1
