"""Ultralytics' models from their model files, without weights: their logits, and their detections against its own.

Ultralytics is AGPL: it is used by these tests only, and the package itself imports it only to open a `.pt` file.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import logn
from logn.data.dataset import DetectionDataset
from logn.errors import InputError
from logn.measure.comparison import CompareSettings
from logn.models.frameworks.ultralytics import UltralyticsDetector, _letterbox
from logn.models.images import as_tensor
from logn.models.layer import find_modules
from logn.models.locate import locate_logits

ultralytics = pytest.importorskip("ultralytics", reason="the extra `frameworks` is not installed")
tasks = pytest.importorskip("ultralytics.nn.tasks")

CLASSES = 5
TWO_HEADS = {"yolov10n", "yolo26n", "yolo26n-seg"}


def network_of(name, spread=None):
    torch.manual_seed(0)
    kinds = {"obb": tasks.OBBModel, "pose": tasks.PoseModel, "seg": tasks.SegmentationModel}
    kind = kinds.get(name.partition("-")[2], tasks.DetectionModel)
    model = kind(f"{name}.yaml", nc=CLASSES, verbose=False).eval()
    if spread is not None:
        spread(model, locate_logits(model))
    return model


def images():
    return torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(1))


def predictions(model):
    with torch.inference_mode():
        output = model(images())
    return output[0][0] if isinstance(output[0], tuple) else output[0]


def own_logits(model):
    """The raw class scores that the head returns beside its predictions."""
    with torch.inference_mode():
        raw = model(images())[1]
    raw = raw if isinstance(raw, dict) else raw[-1]
    heads = [raw["one2many"], raw["one2one"]] if "one2one" in raw else [raw]
    return [head["scores"].permute(0, 2, 1).reshape(-1, CLASSES) for head in heads if "scores" in head]


@pytest.mark.parametrize("name", ["yolov8n", "yolo11n", "yolo12n", "yolov10n", "yolo26n", "yolo26n-seg"])
def test_recorded_attached_and_folded_agree_with_the_model(name, agreement, spread):
    model = network_of(name, spread)
    layer, folded = agreement(model, own_logits)
    assert (layer.background, layer.activation, layer.class_axis) == (None, "sigmoid", 1)
    assert len(layer.paths) == model.model[-1].nl * (2 if name in TWO_HEADS else 1)
    assert layer.stages == ((0, 0, 0, 1, 1, 1) if name in TWO_HEADS else False)
    assert layer.paths[0].endswith(".cv3.0.2")
    assert layer.paths[-1].endswith(".one2one_cv3.2.2" if name in TWO_HEADS else ".cv3.2.2")

    # Fusing merges the normalisation into the convolutions and drops a head that does not predict.
    for end_to_end in (False, True) if name in TWO_HEADS else (False,):
        fused = copy.deepcopy(folded)
        fused.end2end = end_to_end
        before, boxes = own_logits(fused)[-1 if end_to_end else 0], predictions(fused)
        fused.fuse(verbose=False)
        np.testing.assert_allclose(own_logits(fused)[-1 if end_to_end else 0], before, atol=1e-3)
        np.testing.assert_allclose(predictions(fused), boxes, atol=1e-2)


@pytest.mark.parametrize("name", ["yolo11n", "yolo26n"])
def test_an_attached_map_stays_when_the_model_is_fused(name, class_map, spread):
    model = network_of(name, spread)
    layer, affine = locate_logits(model), class_map(CLASSES)
    model.end2end = name == "yolo26n"
    plain = own_logits(model)[-1]
    logn.attach(model, layer, affine)
    model.fuse(verbose=False)
    np.testing.assert_allclose(own_logits(model)[-1], affine(plain), atol=1e-3)


def test_a_fused_model_has_the_predicting_head_only(agreement, spread):
    model = network_of("yolo26n", spread)
    model.end2end = True
    model.fuse(verbose=False)
    layer, _ = agreement(model, own_logits)
    assert (len(layer.paths), layer.stages) == (3, False)


def test_the_predictions_change_with_the_map(class_map, spread):
    model = network_of("yolov8n", spread)
    affine, plain = class_map(CLASSES), predictions(model)
    logn.fold(model, locate_logits(model), affine)
    logits = torch.logit(plain[:, 4:].double())
    np.testing.assert_allclose(predictions(model)[:, 4:], affine(logits, axis=1).sigmoid(), atol=1e-4)
    np.testing.assert_array_equal(predictions(model)[:, :4], plain[:, :4])


def test_calibrate_corrects_each_head_by_its_own_statistics(spread):
    model = network_of("yolo26n", spread)
    assert len(logn.calibrate(model, [images()], method="logn", margin=0.0).affine) == 2
    for mapped in own_logits(model):
        np.testing.assert_allclose(mapped.mean(dim=0), 0.0, atol=1e-3)
        np.testing.assert_allclose(mapped.std(dim=0), 1.0, atol=1e-2)


@pytest.mark.parametrize("name", ["yolov5n", "yolov8n-p2", "yolo11n-obb", "yolo11n-pose", "yolo11n-seg"])
def test_other_heads_have_their_class_layers_at_the_same_place(name):
    model = network_of(name)
    layer = locate_logits(model, num_columns=CLASSES)
    assert len(layer.paths) == model.model[-1].nl
    assert all(".cv3." in path for path in layer.paths)


def test_the_other_kinds_of_model(spread):
    wrapped = ultralytics.YOLO("yolo11n.yaml")
    assert locate_logits(wrapped).paths[0] == f"model.{locate_logits(wrapped.model).paths[0]}"
    classifier = tasks.ClassificationModel("yolo11n-cls.yaml", nc=CLASSES, verbose=False)
    layer = locate_logits(classifier, num_columns=CLASSES)
    assert (layer.path, layer.activation) == ("model.10.linear", "softmax")
    with torch.device("meta"):
        head = tasks.RTDETRDecoder(nc=CLASSES, ch=(8, 8, 8), hd=16, nq=4, nh=2, ndl=2, d_ffn=16)
    layer = locate_logits(head)
    assert (layer.path, layer.activation, layer.background) == ("dec_score_head.1", "sigmoid", None)
    with pytest.raises(InputError, match="WorldModel"):
        locate_logits(tasks.WorldModel("yolov8s-worldv2.yaml", nc=CLASSES, verbose=False))
    renamed = network_of("yolov8n", spread)
    head = renamed.model[-1]
    head.labels, head.cv3 = head.cv3, None
    with pytest.raises(InputError, match=r"model\.22\.labels\.2\.2"):
        locate_logits(renamed, num_columns=CLASSES)


def picture(size, seed):
    """Large patches with noise on them: of noise alone all anchors see the same."""
    rng = np.random.default_rng(seed)
    patches = np.kron(rng.integers(0, 200, (size[0] // 24 + 1, size[1] // 24 + 1, 3)), np.ones((24, 24, 1)))
    return (patches[: size[0], : size[1]] + rng.integers(0, 55, (*size, 3))).astype(np.uint8)


PICTURES = [picture(size, seed) for seed, size in enumerate(((90, 140), (128, 64), (96, 96)))]


def make(name, *, size=192, end2end=False):
    """A model that finds something, fused as Ultralytics fuses it before it predicts: else the last bits differ."""
    torch.manual_seed(0)
    yolo = (ultralytics.RTDETR if name.startswith("rtdetr") else ultralytics.YOLO)(f"{name}.yaml")
    network = type(yolo.model)(f"{name}.yaml", nc=CLASSES, verbose=False).eval()
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
    layers = find_modules(network, locate_logits(network))
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
            values = seen[layer].movedim(1 if seen[layer].ndim == 4 else -1, 0).flatten(1)
            scale = 2 / values.std(dim=1).clamp(min=1e-6)
            layer.bias.copy_((layer.bias - values.mean(dim=1)) * scale - 1)
            layer.weight.mul_(scale.reshape(-1, *[1] * (layer.weight.ndim - 1)))


@pytest.fixture
def as_ultralytics(same_detections):
    """Check an adapter against `own(image)`, which takes an array and gives rows of box, score and label."""

    def check(detector, own, **changes):
        def split(image):
            rows = own((image * 255).round().permute(1, 2, 0).to(torch.uint8).numpy())
            return rows[:, :4], rows[:, 4], rows[:, 5]

        images = [as_tensor(image) for image in PICTURES]
        found = same_detections(detector, images, split, atol=1e-3, rtol=1e-4, decimals=1, **changes)
        assert sum(map(len, found)) > 30
        assert len({label for image in found for label in image.labels.tolist()}) > 2

    return check


@pytest.mark.parametrize(
    ("name", "end2end"),
    [
        *((name, False) for name in ("yolov5n", "yolov8n", "yolov9t", "yolo11n", "yolo12n", "yolov10n", "yolo26n")),
        *((name, True) for name in ("yolov10n", "yolo26n")),
        ("rtdetr-resnet50", None),
    ],
)
def test_decode_equals_what_predict_gives(name, end2end, as_ultralytics):
    yolo = make(name, end2end=end2end)
    detector = logn.detector(yolo, end2end=end2end or None)
    assert isinstance(detector, UltralyticsDetector)
    assert detector.class_names == tuple("abcde")
    assert detector.postprocessing.nms == ("class-wise" if end2end is False else "none")
    options = {"nms": False} if end2end else {}

    def own(image):
        return yolo.predict(image[..., ::-1], imgsz=192, verbose=False, **options)[0].boxes.data

    as_ultralytics(detector, own, score_threshold=0.25, **({"multi_label": False} if end2end is False else {}))


@pytest.mark.parametrize(("name", "end2end"), [("yolov8n", False), ("yolov8n-seg", False), ("yolo26n-seg", True)])
def test_several_classes_for_a_box_as_val_has_them(name, end2end, as_ultralytics):
    """Segmentation too, whose `predict` then drops boxes with an empty mask."""
    from ultralytics.data.augment import LetterBox
    from ultralytics.utils import nms, ops

    detector = logn.detector(make(name, end2end=end2end))

    def own(image):
        batch = torch.from_numpy(LetterBox(192, auto=True, stride=32)(image=image)).permute(2, 0, 1)[None] / 255
        with torch.inference_mode():
            output = detector.network(batch)[0]
        settings = {"multi_label": True, "max_det": 300, "nc": CLASSES, "end2end": end2end}
        (theirs,) = nms.non_max_suppression(output, 1e-3, 0.7, **settings)
        theirs[:, :4] = ops.scale_boxes(batch.shape[2:], theirs[:, :4], image.shape)
        return theirs

    as_ultralytics(detector, own)


def test_evaluate_and_val_agree_on_the_same_folder(tmp_path, yolo_folder, own_decode):
    yolo = make("yolov8n")
    detector = logn.detector(yolo)
    with torch.no_grad():
        for block in yolo.model.model[-1].cv2:  # shorter sides: most boxes lie inside the image then
            block[-1].bias.sub_(torch.arange(16.0).repeat(4))
    # `val` matches boxes before they are clipped.
    detector.postprocessing = replace(detector.postprocessing, clip_boxes=False)
    # Without any padding, of which `val` gives more: random weights see quite other things then.
    images = [picture((192, 192), seed) for seed in range(8)]
    found = own_decode(detector, [as_tensor(image) for image in images], tmp_path / "store", score_threshold=0.6)
    rng = np.random.default_rng(0)

    def labels_of(number, image):
        """Labels that the model finds in part and not quite: some of its own detections, moved a little."""
        here = found[number]
        inside = ((here.boxes > 0) & (here.boxes < 192)).all(axis=1)
        chosen = np.flatnonzero(inside & (rng.random(len(here)) < 0.6))
        sides = here.boxes[chosen, 2:] - here.boxes[chosen, :2]
        moved = here.boxes[chosen] + np.tile(sides, 2) * rng.normal(0, 0.05, (len(chosen), 4))
        return here.labels[chosen], np.clip(moved, 0, 192)

    data = yolo_folder(tmp_path, "abcde", images, labels_of)
    settings = {"imgsz": 192, "batch": 1, "workers": 0, "plots": False, "verbose": False, "project": str(tmp_path)}
    theirs = yolo.val(data=str(data), rect=False, **settings).box
    logn.predict(detector, DetectionDataset(f"{data}:val"), tmp_path / "predictions", dtype="float32")
    coco = CompareSettings("coco", num_bootstrap=0)
    ours = logn.compare(tmp_path / "predictions", f"{data}:val", [], settings=coco).rows[0].values
    assert 20 < 100 * ours["AP"] < 95
    assert abs(ours["AP"] - theirs.map) < 0.005
    assert abs(ours["AP50"] - theirs.map50) < 0.005


@pytest.mark.parametrize("size", [(90, 140), (64, 33), (128, 128), (7, 300)])
def test_images_are_padded_as_there(size):
    from ultralytics.data.augment import LetterBox

    image = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    np.testing.assert_array_equal(_letterbox(image, 128, 32).pixels, LetterBox(128, auto=True, stride=32)(image=image))


def test_what_a_detector_proposes():
    """The logits that are recorded, the same alone and in a batch, or the strongest anchors only."""
    yolo = make("yolo11n")
    detector, images = logn.detector(yolo), [as_tensor(image) for image in PICTURES]
    alone = [detector.propose([image])[0] for image in images]
    with logn.record(detector.network, detector.logit_layer) as moments:
        together = detector.propose(images)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-4)
        np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-2)
    rows = np.concatenate([found.logits for found in together])
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-5)
    assert moments.count[0] == len(rows)
    some = logn.detector(yolo, max_proposals=20)
    strongest = np.sort(alone[0].logits.max(axis=1))[-20:]
    np.testing.assert_array_equal(np.sort(some.propose(images[:1])[0].logits.max(axis=1)), strongest)
    assert some.head.population == "kept anchors"


def test_a_file_is_opened_only_when_it_is_trusted_and_whole(tmp_path):
    yolo, file = ultralytics.YOLO("yolov8n.yaml"), tmp_path / "best.pt"
    yolo.save(file)
    with pytest.raises(InputError, match=r"best\.pt` is a pickle"):
        logn.detector(file)
    opened, image = logn.detector(file, trust=True, size=128), as_tensor(PICTURES[0])
    expected = logn.detector(yolo, size=128).propose([image])[0]
    np.testing.assert_allclose(opened.propose([image])[0].logits, expected.logits, atol=2e-2)  # saved in half precision
    file.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"best\.pt`"):
        logn.detector(file, trust=True)


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("yolo11n-obb", {}, "oriented"),
        ("yolov8s-world", {}, "`model`"),
        ("yolo11n-cls", {}, "`model`"),
        ("yolo11n", {"end2end": True}, "`end2end`"),
        ("yolo11n", {"size": 3}, "`size`"),
    ],
)
def test_models_that_cannot_propose_are_refused(name, options, word):
    with pytest.raises(InputError, match=word):
        logn.detector(ultralytics.YOLO(f"{name}.yaml", verbose=False), **options)
