"""Proposals of Ultralytics' models, decoded, against what Ultralytics itself gives.

The models are made from their model files, without weights; their class layers are spread out so that they find things.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import logn
from logn.errors import InputError
from logn.evaluate.comparison.comparison import CompareSettings
from logn.evaluate.decode.decoder import DecodeSettings, decode
from logn.evaluate.models.collect import as_tensor
from logn.evaluate.models.ultralytics import UltralyticsDetector, _letterbox
from logn.evaluate.store.store import PredictionStore, PredictionWriter, StoreHeader
from logn.labels.dataset import DetectionDataset
from logn.logits.layer import find_modules

ultralytics = pytest.importorskip("ultralytics", reason="the extra `frameworks` is not installed")

CLASSES = 5
SIZES = ((90, 140), (128, 64), (96, 96))
MODELS = ["yolov5n", "yolov8n", "yolov9t", "yolo11n", "yolo12n", "yolov10n", "yolo26n"]


def picture(size, seed):
    """Large patches with noise on them: of noise alone all anchors see the same."""
    rng = np.random.default_rng(seed)
    patches = np.kron(rng.integers(0, 200, (size[0] // 24 + 1, size[1] // 24 + 1, 3)), np.ones((24, 24, 1)))
    return (patches[: size[0], : size[1]] + rng.integers(0, 55, (*size, 3))).astype(np.uint8)


def pictures():
    return [picture(size, seed) for seed, size in enumerate(SIZES)]


def make(name, *, size=192, end2end=False):
    """A model that finds something, fused as Ultralytics fuses it before it predicts: else the last bits differ."""
    torch.manual_seed(0)
    front = ultralytics.RTDETR if name.startswith("rtdetr") else ultralytics.YOLO
    yolo = front(f"{name}.yaml")
    build = type(yolo.model)
    network = build(f"{name}.yaml", nc=CLASSES, verbose=False).eval()
    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d) and layer.weight.requires_grad:  # else all places look alike
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    network.names = dict(enumerate("abcde"))
    network.args = {**(yolo.overrides or {}), "imgsz": size}
    yolo.model = network
    yolo.overrides["imgsz"] = size
    spread_out(network, size)
    if end2end:
        network.end2end = True
    network.fuse(verbose=False)
    return yolo


def spread_out(network, size):
    """Standardise the class logits per level, so that anchors differ: random weights say nearly the same of all."""
    layers = find_modules(network, logn.locate_logits(network))
    seen = {}
    hooks = [
        layer.register_forward_hook(lambda layer, inputs, output: seen.setdefault(layer, output)) for layer in layers
    ]
    with torch.inference_mode():
        network(torch.stack([as_tensor(picture((size, size), seed)) for seed in range(5, 8)]))
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for layer in layers:
            axis = 1 if seen[layer].ndim == 4 else -1
            values = seen[layer].movedim(axis, 0).flatten(1)
            scale = 2 / values.std(dim=1).clamp(min=1e-6)
            layer.bias.copy_((layer.bias - values.mean(dim=1)) * scale - 1)
            layer.weight.mul_(scale.reshape(-1, *[1] * (layer.weight.ndim - 1)))


def store_of(detector, folder, images):
    header = StoreHeader(
        num_columns=CLASSES, activation="sigmoid", dtype="float32", postprocessing=detector.postprocessing
    )
    with PredictionWriter(folder, header) as writer:
        for number, image in enumerate(images):  # one by one, as there: a batch is computed in another order
            writer.append(number, detector.propose([as_tensor(image)])[0])
    return PredictionStore(folder)


def assert_as_ultralytics(found, results):
    """The same boxes, labels and scores; those whose scores are as good as equal in any order."""
    kept = 0
    for number, result in enumerate(results):
        here, theirs = found.of_image(number), result.boxes.data.cpu().numpy()
        kept += len(here)
        assert len(here) == len(theirs)
        np.testing.assert_allclose(here.scores, theirs[:, 4], atol=1e-5)
        order, expected = (
            np.lexsort((boxes[:, 2], boxes[:, 1], boxes[:, 0], labels))
            for boxes, labels in ((here.boxes.round(1), here.labels), (theirs[:, :4].round(1), theirs[:, 5]))
        )
        np.testing.assert_array_equal(here.labels[order], theirs[expected, 5])
        np.testing.assert_allclose(here.scores[order], theirs[expected, 4], atol=1e-4)
        np.testing.assert_allclose(here.boxes[order], theirs[expected, :4], atol=1e-3, rtol=1e-4)
    assert kept > 30
    assert len(set(found.labels.tolist())) > 2


@pytest.mark.parametrize("name", MODELS)
def test_decode_equals_what_predict_gives(name, tmp_path):
    yolo = make(name)
    detector = logn.detector(yolo)
    assert isinstance(detector, UltralyticsDetector)
    assert detector.class_names == tuple("abcde")
    store = store_of(detector, tmp_path / "store", pictures())
    own = DecodeSettings.of_framework(replace(detector.postprocessing, score_threshold=0.25, multi_label=False))
    results = [yolo.predict(image[..., ::-1], imgsz=192, verbose=False)[0] for image in pictures()]
    assert_as_ultralytics(decode(store, settings=own), results)


@pytest.mark.parametrize("name", ["yolov10n", "yolo26n"])
def test_decode_equals_what_predict_gives_without_suppression(name, tmp_path):
    yolo = make(name, end2end=True)
    detector = logn.detector(yolo, end2end=True)
    assert detector.postprocessing.nms == "none"
    store = store_of(detector, tmp_path / "store", pictures())
    own = DecodeSettings.of_framework(replace(detector.postprocessing, score_threshold=0.25))
    results = [yolo.predict(image[..., ::-1], imgsz=192, nms=False, verbose=False)[0] for image in pictures()]
    assert_as_ultralytics(decode(store, settings=own), results)


def test_decode_equals_what_rtdetr_gives(tmp_path):
    model = make("rtdetr-resnet50")
    detector = logn.detector(model)
    store = store_of(detector, tmp_path / "store", pictures())
    own = DecodeSettings.of_framework(replace(detector.postprocessing, score_threshold=0.25))
    results = [model.predict(image[..., ::-1], imgsz=192, verbose=False)[0] for image in pictures()]
    assert_as_ultralytics(decode(store, settings=own), results)


@pytest.mark.parametrize(("name", "end2end"), [("yolov8n", False), ("yolov8n-seg", False), ("yolo26n-seg", True)])
def test_several_classes_for_a_box_as_val_has_them(name, end2end, tmp_path):
    """Segmentation too, whose `predict` then drops boxes with an empty mask."""
    from ultralytics.data.augment import LetterBox
    from ultralytics.utils import nms, ops

    detector = logn.detector(make(name, end2end=end2end))
    store = store_of(detector, tmp_path / "store", pictures())
    found = decode(store, settings=DecodeSettings.of_framework(detector.postprocessing))
    results = []
    for image in pictures():
        batch = torch.from_numpy(LetterBox(192, auto=True, stride=32)(image=image)).permute(2, 0, 1)[None] / 255
        with torch.inference_mode():
            output = detector.model(batch)[0]
        settings = {"multi_label": True, "max_det": 300, "nc": CLASSES, "end2end": end2end}
        (theirs,) = nms.non_max_suppression(output, 1e-3, 0.7, **settings)
        theirs[:, :4] = ops.scale_boxes(batch.shape[2:], theirs[:, :4], image.shape)
        results.append(SimpleNamespace(boxes=SimpleNamespace(data=theirs[:, :6])))
    assert_as_ultralytics(found, results)


def write_yolo_folder(folder, detector, images):
    """Labels that the model finds in part and not quite: some of its own detections, moved a little."""
    for kind in ("images", "labels"):
        (folder / kind / "val").mkdir(parents=True)
    rng = np.random.default_rng(0)
    found = decode(store_of(detector, folder / "store", images), settings=DecodeSettings(score_threshold=0.6))
    for number, image in enumerate(images):
        height, width = image.shape[:2]
        Image.fromarray(image).save(folder / "images" / "val" / f"{number}.png")
        here = found.of_image(number)
        inside = ((here.boxes > 0) & (here.boxes < [width, height] * 2)).all(axis=1)
        chosen = np.flatnonzero(inside & (rng.random(len(here)) < 0.6))
        sides = here.boxes[chosen, 2:] - here.boxes[chosen, :2]
        moved = here.boxes[chosen] + np.tile(sides, 2) * rng.normal(0, 0.05, (len(chosen), 4))
        moved = np.clip(moved, 0, [width, height] * 2) / ([width, height] * 2)
        lines = [
            f"{label} {(box[0] + box[2]) / 2} {(box[1] + box[3]) / 2} {box[2] - box[0]} {box[3] - box[1]}\n"
            for label, box in zip(here.labels[chosen], moved, strict=True)
        ]
        (folder / "labels" / "val" / f"{number}.txt").write_text("".join(lines))
    names = "".join(f"  {place}: {name}\n" for place, name in enumerate("abcde"))
    data = folder / "data.yaml"
    data.write_text(f"path: {folder}\ntrain: images/val\nval: images/val\nnames:\n{names}")
    return data


def test_evaluate_and_val_agree_on_the_same_folder(tmp_path):
    yolo = make("yolov8n")
    detector = logn.detector(yolo)
    with torch.no_grad():
        for block in yolo.model.model[-1].cv2:  # shorter sides: most boxes lie inside the image then
            block[-1].bias.sub_(torch.arange(16.0).repeat(4))
    # `val` matches boxes before they are clipped.
    detector.postprocessing = replace(detector.postprocessing, clip_boxes=False)
    # Without any padding, of which `val` gives more: random weights see quite other things then.
    images = [picture((192, 192), seed) for seed in range(8)]
    data = write_yolo_folder(tmp_path, detector, images)
    settings = {"imgsz": 192, "batch": 1, "workers": 0, "plots": False, "verbose": False, "project": str(tmp_path)}
    settings["rect"] = False
    theirs = yolo.val(data=str(data), **settings).box
    dataset = DetectionDataset(f"{data}:val")
    logn.predict(detector, dataset, tmp_path / "predictions", dtype="float32")
    found = logn.compare(tmp_path / "predictions", f"{data}:val", [], settings=CompareSettings("coco", num_bootstrap=0))
    ours = found.rows[0].values
    assert 20 < 100 * ours["AP"] < 95
    assert abs(ours["AP"] - theirs.map) < 0.005
    assert abs(ours["AP50"] - theirs.map50) < 0.005


@pytest.mark.parametrize("size", [(90, 140), (64, 33), (128, 128), (7, 300)])
def test_images_are_padded_as_there(size):
    from ultralytics.data.augment import LetterBox

    image = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    np.testing.assert_array_equal(_letterbox(image, 128, 32).pixels, LetterBox(128, auto=True, stride=32)(image=image))


def test_an_image_gives_the_same_alone_and_among_others():
    detector = logn.detector(make("yolo11n"))
    images = [as_tensor(image) for image in pictures()]
    for alone, among in zip([detector.propose([image])[0] for image in images], detector.propose(images), strict=True):
        np.testing.assert_allclose(alone.logits, among.logits, atol=1e-4)
        np.testing.assert_allclose(alone.boxes, among.boxes, atol=1e-2)


def test_the_logits_are_those_that_are_recorded():
    detector = logn.detector(make("yolo11n"))
    images = [as_tensor(image) for image in pictures()]
    with logn.record(detector.model, detector.logit_layer) as moments:
        rows = np.concatenate([found.logits for found in detector.propose(images)])
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-5)
    assert moments.count[0] == len(rows)


def test_fewer_anchors_can_be_kept():
    yolo = make("yolo11n")
    every, some = logn.detector(yolo), logn.detector(yolo, max_proposals=20)
    image = as_tensor(pictures()[0])
    strongest = np.sort(every.propose([image])[0].logits.max(axis=1))[-20:]
    np.testing.assert_array_equal(np.sort(some.propose([image])[0].logits.max(axis=1)), strongest)
    assert some.population == "kept anchors"


def test_a_file_is_opened_only_when_it_is_trusted(tmp_path):
    yolo = ultralytics.YOLO("yolov8n.yaml")
    yolo.save(tmp_path / "best.pt")
    with pytest.raises(InputError, match=r"`trust=True` .* which is a pickle"):
        logn.detector(tmp_path / "best.pt")
    opened = logn.detector(tmp_path / "best.pt", trust=True, size=128)
    image = as_tensor(pictures()[0])
    expected = logn.detector(yolo, size=128).propose([image])[0]
    np.testing.assert_allclose(opened.propose([image])[0].logits, expected.logits, atol=2e-2)  # saved in half precision


def test_what_is_no_file_of_ultralytics_is_refused(tmp_path):
    (tmp_path / "best.pt").write_bytes(b"nothing")
    with pytest.raises(InputError, match="to be a model of Ultralytics, but it cannot be read"):
        logn.detector(tmp_path / "best.pt", trust=True)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("yolo11n-obb", {}, "upright boxes"),
        ("yolov8s-world", {}, "to be a detector of Ultralytics"),
        ("yolo11n-cls", {}, "to be a detector of Ultralytics"),
        ("yolo11n", {"end2end": True}, "`end2end` to be False"),
        ("yolo11n", {"size": 3}, "`size` to be at least 32"),
    ],
)
def test_models_that_cannot_propose_are_refused(name, options, sentence):
    with pytest.raises(InputError, match=sentence):
        logn.detector(ultralytics.YOLO(f"{name}.yaml", verbose=False), **options)
