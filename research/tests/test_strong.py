"""The instrument from end to end on a made detector file, and the rule that chooses."""

import json
import sys
from pathlib import Path

import logn_research.strong.heads as heads
import logn_research.strong.measure as measuring
import numpy as np
import onnx
import pytest
from logn_research.estimators import MovingAverage
from logn_research.evidence import thresholds
from logn_research.pages import ROOT
from logn_research.strong import more_classes, tables
from logn_research.strong.__main__ import app
from logn_research.strong.features import DETECTORS, FeatureCache, PublicDetector, _resize_yolov8
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from typer.testing import CliRunner

import logn
from logn.statistics.head import Head

SIDE, CELLS = 32, 16


def made_detector(path):
    """A file in the layout of YOLOv8: one map of features, and boxes on a grid whose scores follow the image."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(4) * 8 + 4, np.arange(4) * 8 + 4), 0).reshape(2, CELLS)
    boxes = np.concatenate([grid, np.full((2, CELLS), 10)])[None].astype(np.float32)
    weights = {"w": rng.normal(size=(6, 3, 8, 8)), "v": rng.normal(size=(2, 6, 1, 1)), "boxes": boxes}
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["features"], strides=[8, 8]),
        helper.make_node("Conv", ["features", "v"], ["raw"]),
        helper.make_node("Sigmoid", ["raw"], ["scores"]),
        helper.make_node("Reshape", ["scores", "shape"], ["classes"]),
        helper.make_node("Concat", ["boxes", "classes"], ["output0"], axis=1),
    ]
    initializers = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    initializers.append(numpy_helper.from_array(np.array([1, 2, CELLS]), "shape"))
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 6, CELLS])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, str(path))


def made_data(folder):
    """Photographs of noise with an object or two each, in the form of LVIS."""
    rng = np.random.default_rng(1)
    (folder / "images").mkdir(parents=True)
    classes = [{"id": number, "name": name, "frequency": "f"} for number, name in ((3, "ant"), (7, "bee"))]
    for split, number in (("train", 8), ("dev", 4), ("test", 4)):
        images, annotations = [], []
        for index in range(number):
            name = f"{split}{index}.png"
            Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(folder / "images" / name)
            about = {"neg_category_ids": [3, 7], "not_exhaustive_category_ids": []}
            images.append({"id": len(images) + 1, "file_name": f"images/{name}", "width": 64, "height": 64, **about})
            for kind in (3, 7)[: 1 + index % 2]:
                x, y = (float(value) for value in rng.integers(0, 4, 2) * 16)
                box = {"bbox": [x, y, 20.0, 20.0], "area": 400.0, "iscrowd": 0, "segmentation": []}
                annotations.append({"id": len(annotations) + 1, "image_id": index + 1, "category_id": kind, **box})
        content = {"images": images, "annotations": annotations, "categories": classes}
        for file in (f"{split}.json", f"{split}_exhaustive.json"):
            (folder / file).write_text(json.dumps(content))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(DETECTORS, "made", PublicDetector(SIDE, {"features": 8}, "yolov8"))
    monkeypatch.setattr(heads, "ITERATIONS", 2)
    monkeypatch.setattr(heads, "SOFTMAX_HEADS", (heads.HeadSpec("linear"), heads.HeadSpec("cosine", sampler="rfs")))
    monkeypatch.setattr(heads, "SIGMOID_HEADS", (heads.HeadSpec("linear", "sigmoid"),))
    monkeypatch.setattr(measuring, "BOOTSTRAP", 5)


def run(*words):
    found = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_features_heads_measures_and_tables(small, tmp_path, monkeypatch):
    made_detector(tmp_path / "made.onnx")
    made_data(tmp_path / "data")
    places = ("--data", tmp_path / "data", "--root", tmp_path / "runs")
    run("features", "made", tmp_path / "made.onnx", *places)
    cache = FeatureCache(tmp_path / "runs" / "made", "train", 8)
    assert (cache.done, cache.width) == (8, 6 * 4)
    before = np.array(cache.features)
    run("features", "made", tmp_path / "made.onnx", *places)  # nothing is done again
    np.testing.assert_array_equal(FeatureCache(tmp_path / "runs" / "made", "train", 8).features, before)
    run("heads", "made", *places)
    run("measure", *places)
    written = {path.name for path in (tmp_path / "runs" / "made" / "heads").iterdir()}
    assert written == {"softmax-linear-random-0", "softmax-cosine-rfs-0", "sigmoid-linear-random-0"}
    printed = run("tables", tmp_path / "runs", "-o", tmp_path / "all.json")
    assert run("tables", tmp_path / "all.json") == printed
    assert "| half prior |" in printed
    assert '"chosen":' in printed
    found = json.loads((tmp_path / "all.json").read_text())["test"]["made"]["softmax-linear-random-0"]["federated"]
    assert {"none", "logn", "mean", "prior", "half prior", "norcal", "loga", "fracal", "margin -4"} <= found.keys()
    statistics = {f"logn, {name}" for name in ("moving average", "sampled regions", "official")}
    forms = {"logn, relative std", "logn, square root of std", "fracal, boxes", "strength 0", "strength 1"}
    assert statistics | forms <= found.keys()
    head = tmp_path / "runs" / "made" / "heads" / "softmax-linear-random-0"
    words = [str(head), "--data", str(tmp_path / "data"), "--bootstrap", "3", "-o", str(tmp_path / "heads.json")]
    monkeypatch.setattr(sys, "argv", ["thresholds", *words])
    thresholds.main()
    measured, published = (
        json.loads(path.read_text()) for path in (tmp_path / "heads.json", ROOT / "results" / "thresholds-heads.json")
    )
    assert measured["rows"][1]["goals"]["f1"].keys() == published["rows"][1]["goals"]["f1"].keys()
    assert "| softmax-linear-random-0 | exhaustive | fppi=1 | recall |" in thresholds.head_results(measured)


def test_a_yolov8_file_is_changed_to_another_size():
    """The grid of cells, the strides and the shapes that hold their number; what is below them is left alone."""
    held = {"grid": np.zeros((1, 2, 84), np.float32), "strides": np.zeros((1, 84), np.float32)}
    held |= {"shape": np.array([1, 4, 84]), "split": np.array([64, 80]), "scale": np.float32(2)}
    nodes = [
        helper.make_node("Constant", [], [k], value=numpy_helper.from_array(np.asarray(v))) for k, v in held.items()
    ]
    sides = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in
             {"images": [1, 3, 64, 64], "output0": [1, 6, 84]}.items()}  # fmt: skip
    graph = helper.make_graph(nodes, "made", [sides["images"]], [sides["output0"]])
    _resize_yolov8(graph, 32)
    grid, strides, shape, split, scale = (numpy_helper.to_array(node.attribute[0].t) for node in graph.node)
    np.testing.assert_array_equal(grid[0, :, :6], [[0.5, 1.5, 2.5, 3.5, 0.5, 1.5], [0.5] * 4 + [1.5] * 2])
    np.testing.assert_array_equal(grid[0, :, 16:], [[0.5, 1.5, 0.5, 1.5, 0.5], [0.5, 0.5, 1.5, 1.5, 0.5]])
    np.testing.assert_array_equal(strides[0], [8] * 16 + [16] * 4 + [32])
    assert (shape.tolist(), split.tolist(), scale) == ([1, 4, 21], [64, 80], 2)
    assert [size.dim_value for size in graph.input[0].type.tensor_type.shape.dim] == [1, 3, 32, 32]


def test_the_official_average_keeps_what_it_keeps_on_lvis():
    average = MovingAverage(1, momentum=1 - heads.KEPT_OF_START ** (1 / 50))
    for _ in range(50):
        average.update(np.array([[1.0], [3.0]]))
    assert average.moments().mean[0] == pytest.approx(2 * (1 - heads.KEPT_OF_START))
    assert round(heads.KEPT_OF_START, 2) == 0.29


def test_a_std_relative_to_its_mean_keeps_the_size_of_logits():
    moments = logn.ClassMoments(Head(3, background=0, activation="softmax"))
    moments.update(np.random.default_rng(0).normal([0, 1, 2], [1, 2, 6], (500, 3)))
    map_, paper = measuring.relative_std(moments), logn.logit_normalization(moments)
    size = np.sqrt(moments.variance[1:] + 1e-5).mean()
    np.testing.assert_allclose(map_.scale, paper.scale * [1, size, size])
    np.testing.assert_allclose(map_.shift, paper.shift * [1, size, size])


def test_costs_are_shown_where_they_were_measured():
    point = {"recall": 0.5, "found": 10, "groups": {}}
    costs = {"precision": 0.25, "f1": 0.3, "found_in": {"r": 4}, "false_alarms_in": {"r": 9}}
    for more, rows in (({}, []), (costs, [("none", "25.0", "30.0", "4", "9")])):
        methods = {"none": {"AP": 0.2, "recall": {"0.25": point | more}}}
        found = {"made": {"softmax-linear-random-0": {"federated": methods, "exhaustive": methods}}}
        assert tables.cost_table(found, "0.25", "softmax") == rows


def test_what_the_command_leaves_alone_is_called_so():
    point = {"recall": 0.5, "found": 10, "groups": {}}
    level = {"AP": 0.2, "recall": {"0.25": point}}
    methods = {name: dict(level) for name in ("none", "logn", "mean", "prior", "half prior")}
    for alone in ({}, {"left alone": "The classes are nearly level."}):
        methods["half prior"] = level | alone
        *_, row = tables.public_table({"public": {"made": {"federated": methods, "exhaustive": methods}}})
        assert ("left alone" in row[1], row[2]) == (bool(alone), "(+0.0 | +0.0)" if alone else "+0.0 | +0.0")


def measured(**gains):
    """One head under both kinds of labels, with made gains of AP and the upper ends of their intervals."""
    methods = {"none": {"AP": 0.2}}
    for name, (gain, high) in gains.items():
        methods[name.replace("_", " ")] = {"AP": 0.2 + gain / 100, "AP change": [gain / 100, 0.0, high / 100]}
    methods["mean centred, margin -4"] = {"AP": 0.2, "AP change": [0.0, 0.0, 0.0]}
    return {"made": {"softmax-linear-random-0": {"federated": methods, "exhaustive": methods}}}


@pytest.mark.parametrize(
    ("gains", "chosen"),
    [
        ({"half_prior": (2.0, 3.0), "prior": (2.1, 3.0), "mean": (2.0, 3.0)}, "half prior"),  # the simplest within 0.2
        ({"half_prior": (1.0, 3.0), "prior": (2.1, 3.0), "mean": (2.0, 3.0)}, "prior"),
        ({"half_prior": (1.0, 3.0), "prior": (3.0, -0.1), "mean": (2.0, 3.0)}, "mean"),  # one that lowers is out
    ],
)
def test_the_rule(gains, chosen):
    assert tables.choose(measured(**gains))["chosen"] == chosen


def test_the_page_has_the_tables_of_the_measurements():
    root = Path(__file__).parents[2]
    page = (root / "research" / "docs" / "evidence.md").read_text(encoding="utf-8")
    found = tables.read(root / "research" / "results" / "strong.json")
    printed = tables.page(found)
    sections = dict(part.split("\n\n", 1) for part in printed.removeprefix("## ").split("\n\n## "))
    shown = [
        "AP on test",
        "By class layer: AP on test",
        "By class layer: recall at the count of 0.25",
        "softmax: recall at the count of 0.25",
        "sigmoid: recall at the count of 0.25",
        "Landscape on dev, federated",
        "Landscape on dev, exhaustive",
        "Public detectors",
    ]
    for title in shown:
        assert sections[title] in page, title
    softmax = [protocols for _, protocols in tables.heads(found["test"], "softmax")]
    assert len(softmax) == 16
    assert all(tables.gain(protocols[kind], "half prior") > 0 for protocols in softmax for kind in tables.PROTOCOLS)


def test_the_product_pages_have_the_numbers_of_the_papers_setting():
    root = Path(__file__).parents[2]
    found = tables.read(root / "research" / "results" / "strong.json")["test"]
    parts = tables.layer_tables({k: v for k, v in found.items() if k != "public"}, ("logn", "half prior"))
    page = (root / "docs" / "worth-it.md").read_text(encoding="utf-8")
    readme = (root / "README.md").read_text(encoding="utf-8")
    for gains, recalls in zip(*parts, strict=True):
        assert " | ".join(gains[1:]) in page
        assert " | ".join(recalls[1:]) in page
        assert f"→ {recalls[1]} (12.5 → {recalls[2]})* | *{float(recalls[3].split()[0]):.0f} %*" in readme


def test_the_page_has_the_numbers_of_stronger_heads():
    """One table of the page joins AP, recall and costs of the heads on YOLOv8s."""
    root = Path(__file__).parents[2]
    page = (root / "research" / "docs" / "evidence.md").read_text(encoding="utf-8")
    found = tables.read(root / "research" / "results" / "strong-yolov8s.json")
    test = found["test"]
    gains = {row[0]: row[1] for row in tables.ap_table(test)}
    recalls = {row[0]: row[1:] for row in tables.recall_table(test, "0.25", "softmax")}
    costs = {row[0]: row[1:] for row in tables.cost_table(test, "0.25", "softmax")}
    names = ["LogN, paper", "logn, official", "logn, square root of std", "strength 0.25", "strength 1"]
    for name in [*names, "**LogN, recommended: half prior**", "FRACAL (counts and boxes)"]:
        mean, rare, _, _, objects = recalls[name]
        precision, f1, right, wrong = costs[name]
        gain = gains[name].replace("|", "\\|")
        assert f"| {name} | {gain} | {mean} | {rare} | {objects} | {precision} | {f1} | {right} / {wrong} |" in page
    assert {tables.choose(found[split])["chosen"] for split in ("dev", "test")} == {"half prior"}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A folder in the form of Tiny-ImageNet, and an instrument that takes seconds."""
    rng, source = np.random.default_rng(0), tmp_path / "tiny"
    names = ["n1", "n2", "n3", "n4"]

    def picture(folder, name):
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(folder / name)
        return name

    for name in names:
        files = [picture(source / "train" / name / "images", f"{name}_{i}.JPEG") for i in range(24)]
        lines = [f"{file}\t4\t8\t51\t55" for file in files]
        (source / "train" / name / f"{name}_boxes.txt").write_text("\n".join(lines))
    files = [picture(source / "val" / "images", f"val_{i}.JPEG") for i in range(64)]
    lines = [f"{file}\t{names[i // 2 % 4]}\t0\t0\t63\t63" for i, file in enumerate(files)]
    (source / "val" / "val_annotations.txt").write_text("\n".join(lines))
    (source / "wnids.txt").write_text("\n".join(names))
    monkeypatch.setitem(DETECTORS, "made", PublicDetector(SIDE, {"features": 8}, "yolov8"))
    small = {
        "DETECTOR": "made",
        "CLASSES": (4, 2),
        "ITERATIONS": 2,
        "MOST": 20,
        "NEGATIVES": {"0": 0, "10": 1, "all": None},
    }
    for name, value in small.items():
        monkeypatch.setattr(more_classes, name, value)
    return source


def test_the_rarest_class_has_the_fewest_pictures_and_boxes_follow_the_mosaic(tiny, tmp_path):
    found = more_classes.pictures(tiny, 4)
    assert np.bincount([category for *_, category in found["train"]])[1:].tolist() == [20, 13, 8, 5]
    assert len(found["test"]) == 32
    assert {file for file, *_ in more_classes.pictures(tiny, 2)["test"]} < {file for file, *_ in found["test"]}
    more_classes.write_mosaics(found, 4, tmp_path / "data")
    content = json.loads((tmp_path / "data" / "train.json").read_text())
    assert [category["frequency"] for category in content["categories"]] == ["c", "c", "r", "r"]
    assert content["annotations"][5]["bbox"] == [96 + 6.0, 96 + 12.0, 72.0, 72.0]
    assert len(content["images"]) == 3


def test_more_classes_and_their_tables(tiny, tmp_path):
    made_detector(tmp_path / "made.onnx")
    output = tmp_path / "found.json"
    printed = run("more-classes", tiny, tmp_path / "made.onnx", "--root", tmp_path / "runs", "-o", output)
    assert printed.endswith(run("more-classes", output))
    found = json.loads(output.read_text())
    assert found["linear"].keys() == found["cosine"].keys() == {"4", "2"}
    assert found["cosine"]["4"]["0"].keys() == {"none", *more_classes.METHODS}
    values = found["cosine"]["4"]["all"]
    ahead = values["logn"]["AP"] - values["half prior"]["AP"]
    assert values["logn"]["ahead of half prior"][0] == pytest.approx(ahead, abs=2e-6)


def test_the_page_has_the_tables_of_more_classes():
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "results" / "more-classes.json").read_text())
    for table in more_classes.page(measured).split("\n\n")[1::2]:
        assert table in page
