"""Every detector trains, proposes with full logits, and says where these logits come from."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from logn_research.training import heads as cascade_heads
from logn_research.training.backbones import load_backbone, read_backbone_weights
from logn_research.training.detectors import DetectorSettings, build_detector, make_detector
from logn_research.training.heads import CascadeRegionHeads
from logn_research.training.layers import NormedConv2d, NormedLinear
from logn_research.training.regions import sample_regions
from logn_research.training.small import RegionSampler
from torchvision.models.detection import MaskRCNN
from torchvision.ops import roi_align

from logn.errors import InputError


def scene(size=64, objects=3, classes=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(3, size, size, generator=generator)
    corner = torch.rand(objects, 2, generator=generator) * (size - 24)
    boxes = torch.cat((corner, corner + 16 + 8 * torch.rand(objects, 2, generator=generator)), dim=1)
    masks = torch.zeros(objects, size, size, dtype=torch.uint8)
    for mask, box in zip(masks, boxes.long(), strict=True):
        mask[box[1] : box[3], box[0] : box[2]] = 1
    labels = torch.randint(1, classes + 1, (objects,), generator=generator)
    return image, {"boxes": boxes, "labels": labels, "masks": masks}


def hooked_logits(model, images):
    seen = []
    modules = dict(model.named_modules())
    handles = [
        modules[path].register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
        for path in model.logit_layer_paths
    ]
    proposals = model.propose(images)
    for handle in handles:
        handle.remove()
    return seen, proposals


@pytest.fixture(scope="module")
def cascade():
    # Large, so it is built once.
    return make_detector("cascade-r101", 7, classifier="cosine", image_size=64)


@pytest.fixture(scope="module")
def paper_detector():
    return make_detector("mask-rcnn-r50", 1203, classifier="cosine", image_size=64)


def test_labels_without_masks_leave_the_masks_alone():
    """All weights still have gradients, which processes that train together wait for."""
    torch.manual_seed(0)
    model = make_detector("small", 5).train()
    image, target = scene()
    del target["masks"]
    losses = model([image], [target])
    assert float(losses["loss_mask"].detach()) == 0.0
    torch.stack(list(losses.values())).sum().backward()
    heads = {name: weight.grad for name, weight in model.named_parameters() if "mask" in name}
    assert heads
    assert all(gradient is not None and not gradient.any() for gradient in heads.values())
    with pytest.raises(ValueError, match="to have `boxes` and `labels` in training, but some lack them"):
        model.roi_heads.check_targets([{"boxes": target["boxes"]}])


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_small_detector_learns_a_batch_by_heart(classifier, learn_by_heart):
    torch.manual_seed(0)
    model = make_detector("small", 5, classifier=classifier).train()
    history = learn_by_heart(model, [scene(seed=seed) for seed in range(2)], steps=25, rate=0.005)
    totals = [sum(losses.values()) for losses in history]
    assert set(history[0]) == {
        "loss_classifier",
        "loss_box_reg",
        "loss_mask",
        "loss_objectness",
        "loss_rpn_box_reg",
    }
    assert np.mean(totals[-3:]) < 0.8 * np.mean(totals[:2])


def test_proposals_have_all_columns_and_boxes_inside_the_given_image():
    model = make_detector("small", 5, image_size=64)
    images = [scene(size=64)[0], torch.rand(3, 96, 150)]
    first, second = model.propose(images)
    assert first.logits.shape[1] == second.logits.shape[1] == 6
    assert (second.height, second.width) == (96, 150)
    assert 0 < len(first.boxes) <= 300
    assert second.boxes.min() >= 0
    assert (second.boxes <= np.array([150, 96, 150, 96]) + 1e-3).all()
    assert second.boxes[:, 2].max() > 100  # scaled back from the 64 rows that the network saw


@pytest.mark.parametrize("name", ["small", "paper_detector", "cascade"])
def test_located_logits_are_those_of_the_proposals(name, request):
    model = make_detector("small", 5) if name == "small" else request.getfixturevalue(name)
    seen, proposals = hooked_logits(model, [scene()[0], scene(seed=1)[0]])
    assert len(seen) == len(model.logit_layer_paths) == (3 if name == "cascade" else 1)
    average = seen[0] if len(seen) == 1 else (seen[0] + seen[1] + seen[2]) / 3
    given = np.concatenate([entry.logits for entry in proposals])
    assert np.array_equal(given, average.numpy())


def test_logit_layer_names_what_locate_needs(cascade):
    layer = make_detector("small", 5).logit_layer
    assert (layer.paths, layer.background, layer.activation) == (
        ("roi_heads.box_predictor.cls_score",),
        0,
        "softmax",
    )
    assert cascade.logit_layer.stages
    assert cascade.logit_layer.paths == tuple(f"roi_heads.box_predictor.{i}.cls_score" for i in range(3))


def mask_layers(model):
    predictors = model.roi_heads.mask_predictor
    stages = predictors if isinstance(predictors, torch.nn.ModuleList) else [predictors]
    return [type(stage.mask_fcn_logits) for stage in stages]


def test_masks_are_normalised_as_the_classes_are(cascade, paper_detector):
    assert mask_layers(paper_detector) == [NormedConv2d]
    assert mask_layers(cascade) == [NormedConv2d] * 3
    assert (paper_detector.roi_heads.mask_predictor.mask_fcn_logits.temperature == 20.0).all()
    assert (paper_detector.roi_heads.box_predictor.cls_score.temperature == 20.0).all()


@pytest.mark.parametrize(
    ("classifier", "mask_classifier", "class_layer", "mask_layer"),
    [
        ("linear", None, torch.nn.Linear, torch.nn.Conv2d),
        ("linear", "cosine", torch.nn.Linear, NormedConv2d),  # LOCE's
        ("cosine", "linear", NormedLinear, torch.nn.Conv2d),
    ],
)
def test_classes_and_masks_are_normalised_each_for_itself(classifier, mask_classifier, class_layer, mask_layer):
    settings = DetectorSettings("mask-rcnn-r50", 3, classifier=classifier, mask_classifier=mask_classifier)
    with torch.device("meta"):
        model = build_detector(settings)
    assert type(model.roi_heads.box_predictor.cls_score) is class_layer
    assert mask_layers(model) == [mask_layer]


def test_settings_from_before_the_mask_classifier_are_those_of_today():
    old = {"model": "mask-rcnn-r50", "num_classes": 3, "classifier": "cosine", "temperature": 20.0}
    assert DetectorSettings.from_dict(old) == DetectorSettings("mask-rcnn-r50", 3, "cosine", mask_classifier="cosine")
    assert DetectorSettings("small", 3).mask_classifier is None


def test_cascade_trains_each_stage_on_tighter_matches(cascade):
    heads = cascade.roi_heads
    assert isinstance(heads, CascadeRegionHeads)
    assert [matcher.high_threshold for matcher in heads.stage_matchers] == [0.5, 0.6, 0.7]
    assert [coder.weights[0] for coder in heads.stage_coders] == [10.0, 20.0, 30.0]
    image, target = scene()
    cascade.train()
    losses = cascade([image, image], [target, target])
    cascade.eval()
    stages = {name for name in losses if name[-1] in "012"}
    assert stages == {f"loss_{part}_{i}" for part in ("classifier", "box_reg", "mask") for i in range(3)}
    assert all(torch.isfinite(loss) for loss in losses.values())


def test_later_stages_weigh_less_and_see_the_boxes_of_the_one_before(cascade, monkeypatch):
    heads, seen = cascade.roi_heads, []
    monkeypatch.setattr(cascade_heads, "box_losses", lambda logits, *others, **options: (logits.sum() * 0 + 1,) * 2)
    monkeypatch.setattr(cascade_heads, "mask_loss", lambda logits, *others: logits.sum() * 0 + 1)

    def sampled(proposals, *others):
        samples = sample_regions(proposals, *others)
        seen.append((len(proposals[0]), samples))
        return samples

    monkeypatch.setattr(cascade_heads, "sample_regions", sampled)
    image, target = scene()
    cascade.train()
    losses = cascade([image], [target])
    cascade.eval()
    for part in ("classifier", "box_reg", "mask"):
        assert [losses[f"loss_{part}_{stage}"].item() for stage in range(3)] == [1.0, 0.5, 0.25]
    for (_, before), (number, _) in pairwise(seen):
        assert number == int((~before.is_truth[0]).sum())  # true boxes are added anew, not taken over
    assert heads.fg_bg_sampler.positive_fraction == 0.25


def test_each_stage_scores_what_the_one_before_refined(cascade, monkeypatch):
    heads, runs = cascade.roi_heads, []
    run_stage = heads.run_stage

    def spied(stage, features, boxes, shapes):
        logits, offsets = run_stage(stage, features, boxes, shapes)
        runs.append((boxes, logits, offsets, shapes))
        return logits, offsets

    monkeypatch.setattr(heads, "run_stage", spied)
    (found,) = cascade.propose([scene()[0]])
    for stage, (before, after) in enumerate(pairwise(runs)):
        refined = heads.refine(stage, before[2], before[0], before[3])
        torch.testing.assert_close(after[0][0], refined[0])
        assert not torch.equal(after[0][0], before[0][0])
    mean = torch.stack([logits for _, logits, _, _ in runs]).mean(0)
    np.testing.assert_allclose(found.logits, mean.numpy(), rtol=1e-4, atol=1e-5)


def test_paper_detector_is_torchvisions_and_trains_with_lvis_classes(paper_detector):
    assert isinstance(paper_detector, MaskRCNN)
    image, target = scene(classes=1203)
    paper_detector.train()
    losses = paper_detector([image, image], [target, target])
    sum(losses.values()).backward()
    paper_detector.eval()
    assert paper_detector.roi_heads.box_predictor.cls_score.weight.grad.abs().sum() > 0
    proposals = paper_detector.propose([image])[0]
    assert proposals.boxes.shape == (len(proposals.logits), 1203, 4)
    assert proposals.logits.shape[1] == 1204


def test_masks_come_in_the_frame_of_the_given_boxes(paper_detector):
    boxes = [np.array([[4.0, 4.0, 30.0, 40.0], [10.0, 10.0, 20.0, 20.0]]), np.zeros((0, 4))]
    labels = [np.array([0, 1202]), np.zeros(0, int)]
    images = [scene()[0], scene(seed=1)[0]]
    for model in (make_detector("small", 5), paper_detector):
        masks = model.predict_masks(images, boxes, [np.minimum(rows, model.num_classes - 1) for rows in labels])
        assert [mask.shape for mask in masks] == [(2, 28, 28), (0, 28, 28)]
        assert masks[0].dtype == np.float32
        assert 0 <= masks[0].min() <= masks[0].max() <= 1


def test_repeated_boxes_get_the_masks_that_they_would_get_alone():
    model, image = make_detector("small", 5), scene()[0]
    boxes = np.array([[4.0, 4.0, 30.0, 40.0], [10.0, 10.0, 20.0, 20.0], [4.0, 4.0, 30.0, 40.0]])
    together = model.predict_masks([image], [boxes], [np.array([0, 1, 2])])[0]
    alone = [model.predict_masks([image], [boxes[[i]]], [np.array([i])])[0][0] for i in range(3)]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-6)


def test_detections_in_torchvisions_form():
    image, _ = scene()
    model = make_detector("small", 5).eval()
    found = model([image])[0]
    assert found["boxes"].shape[0] == found["scores"].shape[0] <= 300
    assert found["masks"].shape[1:] == (1, 64, 64)
    assert found["labels"].min() >= 1


def test_images_without_objects_give_finite_losses():
    image, target = scene()
    empty = {name: values[:0] for name, values in target.items()}
    model = make_detector("small", 5).train()
    losses = model([image, image], [empty, empty])
    sum(losses.values()).backward()
    assert all(torch.isfinite(loss) for loss in losses.values())
    assert all(parameter.grad is not None for parameter in model.parameters())  # what DDP asks for


def test_a_custom_classification_loss_is_used():
    image, target = scene()
    model = make_detector("small", 5).train()
    model.roi_heads.classification_loss = lambda logits, labels: logits.sum() * 0 + 42.0
    assert model([image], [target])["loss_classifier"].item() == 42.0


def test_building_leaves_the_random_state_alone_and_follows_the_seed():
    before = torch.random.get_rng_state()
    first, again, other = (
        make_detector("small", 3, seed=1),
        make_detector("small", 3, seed=1),
        make_detector("small", 3, seed=2),
    )
    assert torch.equal(before, torch.random.get_rng_state())
    weights = [model.backbone.stem[0].weight for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_proposing_does_not_change_the_model():
    model = make_detector("small", 3).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.propose([scene()[0]])
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_region_sampler_equals_torchvisions_roi_align_with_gradients():
    torch.manual_seed(0)
    features = torch.randn(2, 6, 16, 20, requires_grad=True)
    corner = torch.rand(9, 2) * 40
    boxes = torch.cat((corner, corner + 2 + torch.rand(9, 2) * 20), dim=1)
    given = [boxes[:4], boxes[4:]]
    ours = RegionSampler(7)({"0": features}, given, None)
    image = torch.tensor([0.0] * 4 + [1.0] * 5)[:, None]
    theirs = roi_align(features, torch.cat((image, boxes), 1), 7, 0.25, 1, aligned=True)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    upstream = torch.randn_like(theirs)
    ours_gradient = torch.autograd.grad(ours, features, upstream)[0]
    torch.testing.assert_close(ours_gradient, torch.autograd.grad(theirs, features, upstream)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"model": "yolo"}, "Expected `model` to be one of"),
        ({"num_classes": 0}, "Expected `num_classes` to be at least 1, but got 0."),
        ({"temperature": -1.0}, "Expected `temperature` to be above 0, but got -1.0."),
    ],
)
def test_wrong_settings_get_a_sentence(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        DetectorSettings(**{"model": "small", "num_classes": 3, **wrong})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"model": "small", "batch_norm": "affine"},
            "Expected no `batch_norm` for 'small' without weights",
        ),
        (
            {"model": "cascade-r101", "batch_norm": "frozen"},
            "Expected no `batch_norm` for 'cascade-r101' without weights",
        ),
        ({"model": "cascade-r101", "pretrained": True, "batch_norm": "sync"}, "Expected `batch_norm` to be one of"),
    ],
)
def test_a_normalisation_that_does_not_fit_is_refused(values, sentence):
    with pytest.raises(InputError, match=sentence):
        DetectorSettings(num_classes=3, **values)


def test_settings_survive_a_file_and_refuse_unknown_names():
    settings = DetectorSettings("small", 3, classifier="cosine", temperature=10.0)
    assert DetectorSettings.from_dict(settings.as_dict()) == settings
    with pytest.raises(InputError, match="flavour"):
        DetectorSettings.from_dict({**settings.as_dict(), "flavour": "mint"})


def test_backbone_weights_come_from_a_local_file_and_freeze_the_first_stages(tmp_path):
    from torchvision.models import resnet50

    source = resnet50(weights=None)
    torch.save(source.state_dict(), tmp_path / "resnet50.pth")
    weights = read_backbone_weights(tmp_path / "resnet50.pth")
    model = make_detector("mask-rcnn-r50", 3, weights=weights)
    body = model.backbone.body
    assert torch.equal(body.layer4[0].conv1.weight, source.layer4[0].conv1.weight)
    assert not body.layer1[0].conv1.weight.requires_grad
    assert body.layer2[0].conv1.weight.requires_grad
    # As MMDetection: the statistics stay, scale and shift are trained where the stage is.
    assert not body.bn1.weight.requires_grad
    norms = [module for module in body.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert len(norms) == 53
    model.train()
    assert not any(norm.training for norm in norms)
    sum(value.mean() for value in model.backbone(torch.rand(2, 3, 64, 64)).values()).backward()
    assert body.layer2[0].bn1.weight.grad.abs().sum() > 0
    assert body.layer2[0].bn1.bias.grad.abs().sum() > 0
    assert body.layer1[0].bn1.weight.grad is None
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in body.state_dict().items())


def test_wrong_backbone_weights_get_a_sentence(tmp_path):
    from torchvision.models import resnet18, resnet50

    with pytest.raises(InputError, match="There is no file"):
        read_backbone_weights(tmp_path / "none.pth")
    (tmp_path / "bad.pth").write_bytes(b"not weights")
    with pytest.raises(InputError, match=r"The weights `.*bad\.pth` cannot be read"):
        read_backbone_weights(tmp_path / "bad.pth")
    with pytest.raises(InputError, match=r"do not fit the ResNet: .* are missing"):
        load_backbone(resnet50(weights=None), dict(resnet18(weights=None).state_dict()))
    with pytest.raises(InputError, match="The small detector takes no backbone `weights`"):
        build_detector(DetectorSettings("small", 3, pretrained=True), weights={})
