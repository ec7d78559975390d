"""The light detector: its backbones compute what the originals do, and its runs are runs like any other."""

import json

import pytest
import torch
from logn_research.losses import make_loss
from logn_research.training.backbones import (
    BACKBONES,
    FoldedConv2d,
    LightBackbone,
)
from logn_research.training.checkpoint import read_checkpoint
from logn_research.training.detectors import build_detector, make_detector
from logn_research.training.recipes import DetectorTrainingConfig
from logn_research.training.settings import LIGHT_BACKBONES, DetectorSettings
from logn_research.training.small import RegionSampler
from logn_research.training.train import load_detector, train_detector
from safetensors.torch import save_file
from torch import nn
from torchvision.models import mobilenet_v2, resnet18
from torchvision.ops import roi_align

import logn
from logn.cli.main import execute
from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.predictions.store import PredictionStore

NETWORKS = {"mobilenet-v2": mobilenet_v2, "resnet18": resnet18}
pytestmark = pytest.mark.usefixtures("one_thread")


def with_lived_in_norms(network):
    """Move the statistics and weights of each normalisation from where they begin, so that leaving one out shows."""
    generator = torch.Generator().manual_seed(0)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor, middle in (
                (layer.weight, 1.0),
                (layer.running_var, 1.0),
                (layer.bias, 0),
                (layer.running_mean, 0),
            ):
                tensor.data = middle + 0.2 * torch.rand(tensor.shape, generator=generator)
    return network.eval()


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return with_lived_in_norms(mobilenet_v2())


@pytest.fixture(scope="module")
def weights_file(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "mobilenet_v2.safetensors"
    save_file(network.state_dict(), path)
    return path


def config_for(folder, output, weights, **options):
    values = {"model": "light", "iterations": 4, "batch": 2, "image_size": 64, "checkpoint_every": 2, **options}
    return DetectorTrainingConfig(folder, output, weights=weights, **values)


@pytest.fixture(scope="module")
def finished(lvis_folder, weights_file, tmp_path_factory):
    """An uninterrupted run."""
    output = tmp_path_factory.mktemp("run")
    train_detector(config_for(lvis_folder, output, weights_file), device="cpu", progress=False)
    return output


def scene():
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    return image, {"boxes": torch.tensor([[4.0, 4.0, 28.0, 30.0]]), "labels": torch.tensor([2])}


def bottom_up(backbone, images):
    """What goes into the pyramid."""
    levels, x = [], backbone.frozen(images)
    for stage in backbone.stages:
        x = stage(x)
        levels.append(x)
    return levels


@torch.no_grad()
def torchvisions(name, network, images):
    kind = BACKBONES[name]
    levels, x = [], images
    if name.startswith("resnet"):
        x = network.maxpool(network.relu(network.bn1(network.conv1(x))))
        for stage in (network.layer1, network.layer2, network.layer3, network.layer4):
            x = stage(x)
            levels.append(x)
        return levels[1:]
    for number, block in enumerate(network.features, start=1):
        x = block(x)
        if number in kind.levels:
            levels.append(x)
    return levels


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folded_backbone_gives_the_features_of_torchvisions_network(name):
    torch.manual_seed(0)
    original = with_lived_in_norms(NETWORKS[name]())
    images = torch.rand(2, 3, 64, 96)
    wanted = torchvisions(name, original, images)
    ours = bottom_up(LightBackbone(name, pretrained=True, weights=original.state_dict()), images)
    assert [tuple(level.shape[1:]) for level in ours] == [
        (channels, 64 // stride, 96 // stride)
        for channels, stride in zip(BACKBONES[name].channels, (8, 16, 32), strict=True)
    ]
    for level, expected in zip(ours, wanted, strict=True):
        torch.testing.assert_close(level, expected, atol=1e-4 * expected.abs().max().item(), rtol=1e-4)


def test_a_folded_convolution_has_the_gradients_of_the_two_layers():
    torch.manual_seed(0)
    layer, norm = nn.Conv2d(4, 6, 3, 2, 1, groups=2, bias=False), nn.BatchNorm2d(6)
    with_lived_in_norms(norm)
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    two = norm(layer(x))
    upstream = torch.randn_like(two)
    wanted = torch.autograd.grad(two, (x, layer.weight), upstream)
    folded = FoldedConv2d(layer, norm)
    ours = torch.autograd.grad(folded(x), (x, folded.weight), upstream)
    for gradient, expected in zip(ours, wanted, strict=True):
        torch.testing.assert_close(gradient, expected)


def test_regions_come_from_the_level_of_their_size_as_torchvisions_roi_align_has_them():
    torch.manual_seed(0)
    strides = {"0": 8, "1": 16, "2": 32}
    maps = {name: torch.randn(2, 5, 320 // stride, 320 // stride) for name, stride in strides.items()}
    sides = torch.tensor([40.0, 111.0, 113.0, 223.0, 226.0, 300.0])
    boxes = torch.stack((torch.ones(6), torch.ones(6), 1 + sides, 1 + sides), 1)
    ours = RegionSampler(7, strides=strides)(maps, [boxes[::2], boxes[1::2]], None)
    rows = torch.cat((boxes[::2], boxes[1::2]))
    levels = ["0", "1", "2", "0", "1", "2"]
    for place, (name, box) in enumerate(zip(levels, rows, strict=True)):
        image = torch.tensor([0.0 if place < 3 else 1.0])
        theirs = roi_align(maps[name], torch.cat((image, box))[None], 7, 1 / strides[name], 1, aligned=True)
        torch.testing.assert_close(ours[place], theirs[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", LIGHT_BACKBONES)
def test_every_backbone_trains_from_scratch_and_proposes(name):
    detector = make_detector("light", 4, backbone=name, image_size=64).train()
    losses = detector(*zip(scene(), scene(), strict=True))
    assert set(losses) == {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    sum(losses.values()).backward()
    assert all(weight.grad is not None for weight in detector.parameters())
    proposals = detector.propose([torch.rand(3, 50, 70)])[0]
    assert proposals.logits.shape == (len(proposals.boxes), 5)


def test_given_weights_freeze_the_first_blocks_and_the_rest_is_trained(network):
    detector = make_detector("light", 4, weights=network.state_dict(), image_size=64).train()
    sum(detector(*zip(scene(), scene(), strict=True)).values()).backward()
    frozen = {name for name, weight in detector.named_parameters() if weight.grad is None}
    assert frozen == {name for name, _ in detector.named_parameters() if name.startswith("backbone.frozen.")} != set()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in detector.modules())


def test_the_class_layer_is_found_and_masks_are_refused():
    detector = make_detector("light", 4, classifier="cosine", image_size=64).eval()
    layer = logn.locate_logits(detector)
    assert (layer.path, layer.background) == ("roi_heads.box_predictor.cls_score", 0)
    image = scene()[0]
    assert set(detector([image])[0]) == {"boxes", "scores", "labels"}
    with pytest.raises(InputError, match="The detector 'light' has no mask head: it gives boxes only"):
        detector.predict_masks([image], [[[0, 0, 9, 9]]], [[0]])


@pytest.mark.parametrize("name", ["bags", "seesaw", "eql"])
def test_other_losses_train_it(name):
    loss = make_loss(name, ClassCounts([90, 30, 4, 1], instance_counts=[200, 50, 4, 1], num_images=100))
    detector = build_detector(DetectorSettings("light", 4, image_size=64, loss=name)).train()
    detector.use_loss(loss)
    losses = detector(*zip(scene(), scene(), strict=True))
    sum(losses.values()).backward()
    assert torch.isfinite(losses["loss_classifier"])


def test_an_interrupted_run_ends_as_the_uninterrupted_one(
    lvis_folder, finished, weights_file, tmp_path, stop_at_call, assert_same_run
):
    config = config_for(lvis_folder, tmp_path, weights_file)
    with pytest.raises(KeyboardInterrupt):
        train_detector(config, device="cpu", classification_loss=stop_at_call(3), progress=False)
    assert read_checkpoint(tmp_path, DetectorSettings).iteration == 2
    assert train_detector(config, device="cpu", progress=False).resumed_from == 2
    assert_same_run(tmp_path, finished)


def test_a_run_keeps_its_frozen_weights_and_moves_the_others(finished, network):
    before = make_detector("light", 4, weights=network.state_dict(), image_size=64).state_dict()
    after = load_detector(finished, num_classes=4).state_dict()
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    fixed = {name for name in after if ".frozen." in name or name.endswith((".scale", ".shift"))}
    assert moved.isdisjoint(fixed)
    assert {name for name in after if "stages" in name} - fixed <= moved


def test_the_command_trains_collects_and_predicts(lvis_folder, weights_file, tmp_path, capsys):
    run, statistics = tmp_path / "run", tmp_path / "statistics.safetensors"
    tiny = ["--iterations", "1", "--batch", "2", "--image-size", "64", "--device", "cpu", "--json"]
    options = ["-m", "light", "--classifier", "cosine", "--sampler", "repeat-factor-ceil"]
    weights = ["--weights", str(weights_file)]
    assert execute(["train", str(lvis_folder), "-o", str(run), *options, *weights, *tiny]) == 0
    assert json.loads(capsys.readouterr().out)["losses"].keys() >= {"loss_classifier", "loss_box_reg"}
    annotations = str(lvis_folder / "train.json")
    assert execute(["collect", f"{run}/model.py:load", "--data", annotations, "-o", str(statistics)]) == 0
    assert execute(["predict", f"{run}/model.py:load", "--data", annotations, "-o", str(tmp_path / "found")]) == 0
    assert logn.ClassMoments.load(statistics).count.shape == (5,)
    assert len(PredictionStore(tmp_path / "found")) == 10


def test_weights_of_another_network_get_one_sentence_and_leave_nothing(lvis_folder, tmp_path, capsys):
    torch.save(resnet18().state_dict(), tmp_path / "resnet18.pth")
    arguments = ["train", str(lvis_folder), "-o", str(tmp_path / "run"), "-m", "light"]
    assert execute([*arguments, "--weights", str(tmp_path / "resnet18.pth"), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "do not fit mobilenet-v2: 255 of 255 tensors are missing, features.0.0.weight first" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_layer_of_another_shape_is_named(network):
    weights = {**network.state_dict(), "features.0.0.weight": torch.zeros(16, 3, 3, 3)}
    with pytest.raises(InputError, match=r"features.0.0.weight needs shape \(32, 3, 3, 3\), but has \(16, 3, 3, 3\)\."):
        make_detector("light", 4, weights=weights)


def test_a_start_with_another_backbone_is_refused(lvis_folder, finished, tmp_path):
    config = config_for(lvis_folder, tmp_path, None, start=finished, backbone="resnet18", only="classifier")
    with pytest.raises(InputError, match="has the `backbone` 'mobilenet-v2', but this run has 'resnet18'"):
        train_detector(config, device="cpu", progress=False)
    config = config_for(lvis_folder, tmp_path, None, start=finished, only="classifier", iterations=1)
    train_detector(config, device="cpu", progress=False)
    before, after = (read_checkpoint(folder, DetectorSettings).model for folder in (finished, tmp_path))
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {f"roi_heads.box_predictor.cls_score.{name}" for name in ("weight", "bias")}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"model": "light", "backbone": "vgg"}, "Expected `backbone` to be one of .*, but got 'vgg'"),
        ({"model": "small", "backbone": "resnet18"}, "Expected no `backbone` for 'small' without weights, but got"),
    ],
)
def test_wrong_backbones_get_a_sentence(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        DetectorSettings(num_classes=3, **wrong)


def test_mixed_precision_is_a_choice_that_a_run_keeps(
    lvis_folder, weights_file, finished, tmp_path, stop_at_call, assert_same_run
):
    whole, stopped = (config_for(lvis_folder, tmp_path / name, weights_file, precision="mixed") for name in "ab")
    train_detector(whole, device="cpu", progress=False)
    with pytest.raises(KeyboardInterrupt):
        train_detector(stopped, device="cpu", classification_loss=stop_at_call(3), progress=False)
    train_detector(stopped, device="cpu", progress=False)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    half, full = (load_detector(folder).state_dict() for folder in (tmp_path / "a", finished))
    name = "roi_heads.box_predictor.cls_score.weight"
    assert half[name].dtype == torch.float32
    gap = (half[name] - full[name]).abs().max()
    assert 0 < gap < 0.05 * full[name].abs().max()  # bfloat16 has two to three digits
    with pytest.raises(InputError, match="of a run with `precision` 'mixed'"):
        train_detector(config_for(lvis_folder, tmp_path / "a", weights_file), device="cpu", progress=False)


def test_precision_has_three_names(lvis_folder, weights_file, tmp_path):
    configs = {name: config_for(lvis_folder, tmp_path, weights_file, precision=name) for name in ("auto", "full")}
    assert [configs["auto"].mixed_precision(device) for device in ("cpu", "cuda")] == [False, True]
    assert not configs["full"].mixed_precision("cuda")
    with pytest.raises(InputError, match="Expected `precision` to be one of"):
        config_for(lvis_folder, tmp_path, weights_file, precision="half")


def test_a_folded_layer_with_stride_keeps_float32_within_mixed_precision():
    torch.manual_seed(0)
    layers = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False), nn.BatchNorm2d(8).eval()
    folded, x = FoldedConv2d(*layers), torch.rand(1, 8, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = folded(x)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, folded(x))
