"""Made detections on made LVIS annotations: the same numbers as the `lvis` and `tidecv` packages, to 1e-6."""

import json

import hotcoco
import numpy as np
import pytest
from tests.measure.detection.conftest import assert_errors_equal_tidecv, lvis_values

from logn.matching.ground_truth import load_ground_truth
from logn.matching.results import read_results
from logn.measure.detection.metrics import EvaluationProtocol, evaluate_detections

CLASSES, SIDE = 14, 300


def rectangle(box):
    x, y, w, h = box
    return [[x, y, x + w, y, x + w, y + h, x, y + h]]


def run_lengths(box):
    mask = hotcoco.mask.fr_poly(rectangle(box)[0], SIDE, SIDE)
    return {**mask, "counts": mask["counts"].decode()}


def made_files(folder, seed, images=25):
    """Federated annotations, and a result file with masks, written to `folder`."""
    rng = np.random.default_rng(seed)
    listed, annotations, results = [], [], []
    share = 1.0 / np.arange(1, CLASSES + 1)
    share /= share.sum()
    for image in range(1, images + 1):
        number = int(rng.poisson(6))
        labels = rng.choice(CLASSES - 1, number, p=share[1:] / share[1:].sum())  # the last class has no box at all
        boxes = np.hstack([rng.uniform(0, 200, (number, 2)), rng.uniform(8, 120, (number, 2))]).round(1)
        absent = np.setdiff1d(rng.choice(CLASSES, 5, replace=False), labels)
        unsure = np.unique(labels)[rng.random(len(np.unique(labels))) < 0.3]
        entry = {"id": image, "width": SIDE, "height": SIDE, "coco_url": f"{image}.jpg"}
        entry |= {"neg_category_ids": (absent + 1).tolist(), "not_exhaustive_category_ids": (unsure + 1).tolist()}
        listed.append(entry)
        for label, box in zip(labels.tolist(), boxes.tolist(), strict=True):
            annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1, "bbox": box}
            annotations.append(annotation | {"area": box[2] * box[3], "segmentation": rectangle(box), "iscrowd": 0})
        for _ in range(40):
            near = number and rng.random() < 0.7
            chosen = int(rng.integers(number)) if near else 0
            box = boxes[chosen] * rng.normal(1, 0.12, 4) if near else rng.uniform(5, 140, 4)
            box = np.abs(box).clip(1, 150).round(2)
            label = labels[chosen] if near and rng.random() < 0.7 else rng.integers(CLASSES)
            result = {"image_id": image, "category_id": int(label) + 1, "bbox": box.tolist()}
            results.append(result | {"score": float(rng.random()), "segmentation": run_lengths(box.tolist())})
    categories = [
        {"id": number, "name": f"c{number}", "synset": f"c{number}", "frequency": "fffcccrrrr"[number % 10]}
        for number in range(1, CLASSES + 1)
    ]
    content = {"images": listed, "annotations": annotations, "categories": categories, "info": {}, "licenses": []}
    (folder / "annotations.json").write_text(json.dumps(content))
    (folder / "results.json").write_text(json.dumps(results))
    return folder / "annotations.json", folder / "results.json"


@pytest.fixture(params=[0, 1])
def files(tmp_path, request):
    return made_files(tmp_path, request.param)


def read(files):
    """Ground truth, detections and their masks."""
    truth = load_ground_truth(files[0], masks=True)
    detections, entries = read_results(files[1], truth), json.loads(files[1].read_text())
    return truth, detections, [entries[place]["segmentation"] for place in detections.proposal]


def test_box_and_mask_metrics_equal_the_lvis_package(files, lvis_package):
    truth, detections, masks = read(files)
    found = {}
    for kind, given in (("bbox", None), ("segm", masks)):
        expected = lvis_values(lvis_package, files, iou_type=kind)
        assert len(expected) == 9
        found[kind] = evaluate_detections(detections, truth, groups=truth.frequency, masks=given)
        assert {name: found[kind][name] for name in expected} == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert found["segm"]["AP"] != pytest.approx(found["bbox"]["AP"], abs=1e-4)


@pytest.mark.parametrize("limit", [12, -1])
def test_limits_equal_the_lvis_package(files, lvis_package, limit):
    truth, detections, _ = read(files)
    expected = lvis_values(lvis_package, files, limit=limit)
    protocol = EvaluationProtocol(max_detections=None if limit == -1 else limit)
    found = evaluate_detections(detections, truth, protocol, groups=truth.frequency)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_average_precision_equals_that_of_hotcoco(files):
    truth, detections, _ = read(files)
    theirs = hotcoco.COCO(str(files[0]))
    evaluation = hotcoco.COCOeval(theirs, theirs.load_res(str(files[1])), "bbox", lvis_style=True)
    evaluation.evaluate()
    evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, -1].mean(axis=(0, 1))
    ours = evaluate_detections(detections, truth).per_class
    np.testing.assert_allclose(ours, np.where(precision < 0, np.nan, precision), atol=1e-12)


def test_error_types_equal_tidecv(files):
    assert_errors_equal_tidecv(*files, "lvis")


def test_coco_metrics_equal_pycocotools(files, capsys):
    pycocotools = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval

    content = json.loads(files[0].read_text())
    for annotation in content["annotations"][::7]:
        annotation["iscrowd"] = 1
    files[0].write_text(json.dumps(content))
    truth = load_ground_truth(files[0], style="coco")
    protocol = EvaluationProtocol(style="coco", max_detections=100)
    ours = evaluate_detections(read_results(files[1], truth), truth, protocol)
    theirs = pycocotools.COCO(str(files[0]))
    results = [{k: v for k, v in entry.items() if k != "segmentation"} for entry in json.loads(files[1].read_text())]
    evaluation = COCOeval(theirs, theirs.loadRes(results), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    names = ("AP", "AP50", "AP75", "APs", "APm", "APl")
    assert [ours[name] for name in names] == pytest.approx(evaluation.stats[:6].tolist(), abs=1e-6)
    assert protocol.describe().startswith("COCO box AP, not federated, at most 100 detections")
