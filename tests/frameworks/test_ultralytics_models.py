"""Ultralytics' YOLO from its model files, without weights: every level, both heads, before and after `fuse()`.

Ultralytics is AGPL: it is used by these tests only, and the package itself never imports it.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from logn.deploy.attach import attach
from logn.deploy.calibrate import calibrate
from logn.deploy.fold import fold
from logn.errors import InputError
from logn.logits.locate import locate_logits

tasks = pytest.importorskip("ultralytics.nn.tasks", reason="the extra `frameworks` is not installed")

CLASSES = 5
TWO_HEADS = {"yolov10n", "yolo26n", "yolo26n-seg"}
MODELS = ["yolov8n", "yolo11n", "yolo12n", "yolov10n", "yolo26n", "yolo26n-seg"]


def make(name, spread):
    torch.manual_seed(0)
    kind = tasks.SegmentationModel if name.endswith("-seg") else tasks.DetectionModel
    model = kind(f"{name}.yaml", nc=CLASSES, verbose=False).eval()
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


@pytest.mark.parametrize("name", MODELS)
def test_recorded_attached_and_folded_agree_with_the_model(name, agreement, spread):
    model = make(name, spread)
    layer, folded = agreement(model, own_logits)
    assert (layer.background, layer.activation, layer.class_axis) == (None, "sigmoid", 1)
    levels = model.model[-1].nl
    assert len(layer.paths) == levels * (2 if name in TWO_HEADS else 1)
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
    model = make(name, spread)
    layer, affine = locate_logits(model), class_map(CLASSES)
    model.end2end = name == "yolo26n"
    plain = own_logits(model)[-1]
    attach(model, layer, affine)
    model.fuse(verbose=False)
    np.testing.assert_allclose(own_logits(model)[-1], affine(plain), atol=1e-3)


def test_a_fused_model_has_the_predicting_head_only(agreement, spread):
    model = make("yolo26n", spread)
    model.end2end = True
    model.fuse(verbose=False)
    layer, _ = agreement(model, own_logits)
    assert len(layer.paths) == 3
    assert not layer.stages


def test_the_predictions_change_with_the_map(class_map, spread):
    model = make("yolov8n", spread)
    affine, plain = class_map(CLASSES), predictions(model)
    fold(model, locate_logits(model), affine)
    logits = torch.logit(plain[:, 4:].double())
    np.testing.assert_allclose(predictions(model)[:, 4:], affine(logits, axis=1).sigmoid(), atol=1e-4)
    np.testing.assert_array_equal(predictions(model)[:, :4], plain[:, :4])


def test_calibrate_corrects_each_head_by_its_own_statistics(spread):
    model = make("yolo26n", spread)
    maps = calibrate(model, [images()], method="logn", margin=0.0).affine
    assert len(maps) == 2
    for mapped in own_logits(model):
        np.testing.assert_allclose(mapped.mean(dim=0), 0.0, atol=1e-3)
        np.testing.assert_allclose(mapped.std(dim=0), 1.0, atol=1e-2)


def test_the_model_inside_its_wrapper_is_found(spread):
    from ultralytics import YOLO

    wrapped = YOLO("yolo11n.yaml")
    assert locate_logits(wrapped).paths[0] == f"model.{locate_logits(wrapped.model).paths[0]}"


@pytest.mark.parametrize("name", ["yolov5n", "yolov8n-p2", "yolo11n-obb", "yolo11n-pose", "yolo11n-seg"])
def test_other_heads_have_their_class_layers_at_the_same_place(name):
    kinds = {"obb": tasks.OBBModel, "pose": tasks.PoseModel, "seg": tasks.SegmentationModel}
    kind = kinds.get(name.partition("-")[2], tasks.DetectionModel)
    model = kind(f"{name}.yaml", nc=CLASSES, verbose=False)
    layer = locate_logits(model, num_columns=CLASSES)
    assert len(layer.paths) == model.model[-1].nl
    assert all(".cv3." in path for path in layer.paths)


def test_the_other_kinds_of_model():
    classifier = tasks.ClassificationModel("yolo11n-cls.yaml", nc=CLASSES, verbose=False)
    layer = locate_logits(classifier, num_columns=CLASSES)
    assert (layer.path, layer.activation) == ("model.10.linear", "softmax")
    with torch.device("meta"):
        head = tasks.RTDETRDecoder(nc=CLASSES, ch=(8, 8, 8), hd=16, nq=4, nh=2, ndl=2, d_ffn=16)
    layer = locate_logits(head)
    assert (layer.path, layer.activation, layer.background) == ("dec_score_head.1", "sigmoid", None)


def test_open_vocabulary_and_renamed_heads_are_not_guessed(spread):
    with pytest.raises(InputError, match="but got WorldModel"):
        locate_logits(tasks.WorldModel("yolov8s-worldv2.yaml", nc=CLASSES, verbose=False))
    model = copy.deepcopy(make("yolov8n", spread))
    head = model.model[-1]
    head.labels, head.cv3 = head.cv3, None
    with pytest.raises(InputError) as caught:
        locate_logits(model, num_columns=CLASSES)
    assert 'logn.LogitLayer("model.22.labels.2.2", background=None)' in str(caught.value)
    assert "model.22.labels.0.2 (Conv2d, 5)" in str(caught.value)
