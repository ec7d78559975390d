"""The one-stage detector trains, keeps its best points, has no background, and takes a correction in every way."""

import json

import numpy as np
import pytest
import torch
from logn_research.experiments.detector_statistics import collect_detector_statistics
from logn_research.losses.focal import SigmoidFocalLoss
from logn_research.training.detectors import one_stage
from logn_research.training.detectors.config import DetectorTrainingConfig
from logn_research.training.detectors.models import DetectorSettings, small_one_stage
from logn_research.training.detectors.one_stage import KEPT_POINTS, boxes_at, boxes_of_points, grid_points, match_points
from logn_research.training.detectors.train_detector import train_detector
from logn_research.training.engine.checkpoint import Checkpoint, load_detector

import logn
from logn.calibrators.affine import ClassAffine
from logn.cli.main import execute
from logn.errors import InputError
from logn.labels.dataset import DetectionDataset
from logn.logits.locate import locate_logits
from logn.statistics.record import record

pytestmark = pytest.mark.usefixtures("one_thread")


def scene(size=64, objects=3, classes=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(3, size, size, generator=generator)
    corner = torch.rand(objects, 2, generator=generator) * (size - 24)
    boxes = torch.cat((corner, corner + 16 + 8 * torch.rand(objects, 2, generator=generator)), dim=1)
    labels = torch.randint(1, classes + 1, (objects,), generator=generator)
    return image, {"boxes": boxes, "labels": labels}


def config_for(folder, output, **options):
    values = {"model": "small-one-stage", "iterations": 6, "batch": 4, "image_size": 64, "checkpoint_every": 2}
    return DetectorTrainingConfig(folder, output, **{**values, **options})


@pytest.fixture(scope="module")
def finished(lvis_folder, tmp_path_factory):
    output = tmp_path_factory.mktemp("one-stage")
    train_detector(config_for(lvis_folder, output), device="cpu", progress=False)
    return output


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_it_learns_a_batch_by_heart(classifier, learn_by_heart):
    model = small_one_stage(5, classifier=classifier, image_size=64).train()
    scenes = [scene(seed=seed) for seed in range(2)]
    history = learn_by_heart(model, scenes, steps=25, rate=0.005, longest_gradient=10.0)  # as the recipe does
    totals = [sum(losses.values()) for losses in history]
    assert set(history[0]) == {"loss_classifier", "loss_box_reg", "loss_point_box"}
    assert np.mean(totals[-3:]) < 0.8 * np.mean(totals[:2])


def test_the_loss_of_the_boxes_is_a_mean_over_the_coordinates_of_positive_points(monkeypatch):
    numbers = {}

    def given(logits, offsets, samples, *others, **options):
        labels = torch.cat(samples.labels)
        numbers.update(rows=len(labels), positives=int((labels > 0).sum()))
        return logits.sum() * 0, offsets.sum() * 0 + 3.0

    monkeypatch.setattr(one_stage, "box_losses", given)
    image, target = scene()
    losses = small_one_stage(5, image_size=64).train()([image], [target])
    # `box_losses` divides the sum over positives by all rows.
    expected = 3.0 * numbers["rows"] / (4 * numbers["positives"])
    assert losses["loss_box_reg"].item() == pytest.approx(expected, rel=1e-5)
    assert 0 < numbers["positives"] < numbers["rows"]


def test_all_classes_are_improbable_at_first():
    logits = small_one_stage(5, image_size=64).propose([scene()[0]])[0].logits
    assert 1 / (1 + np.exp(-logits.mean())) == pytest.approx(0.01, abs=0.005)


def test_an_object_is_given_to_the_points_near_its_centre_and_the_smaller_of_two_wins():
    points = grid_points(8, 8)
    boxes = torch.tensor([[0.0, 0.0, 64.0, 64.0], [24.0, 24.0, 40.0, 40.0], [1.0, 1.0, 3.0, 3.0]])
    chosen = match_points(points, boxes).reshape(8, 8)
    assert chosen[3:5, 3:5].unique().tolist() == [1]
    assert chosen[0, 0] == 2  # holds no point at all, so the nearest one stands for it
    assert (chosen == 0).sum() == 0 or (chosen == 0).sum() < 16
    assert chosen[7, 7] == -1
    assert match_points(points, boxes[:0]).unique().tolist() == [-1]


def test_points_that_stand_for_an_object_have_its_box():
    target = scene()[1]
    empty = {name: values[:0] for name, values in target.items()}
    stands, boxes = boxes_of_points(grid_points(8, 8), [empty, target])
    assert not stands[0].any()
    assert len(boxes) == stands.sum() > len(target["boxes"])
    points = grid_points(8, 8)[stands[1]]
    assert all((target["boxes"] == box).all(1).any() for box in boxes)
    assert ((points > boxes[:, :2]) & (points < boxes[:, 2:])).all()


def test_boxes_come_back_from_their_distances():
    point, box = torch.tensor([[20.0, 30.0]]), torch.tensor([[4.0, 8.0, 50.0, 60.0]])
    distances = torch.cat((point - box[:, :2], box[:, 2:] - point), dim=1)
    assert torch.equal(boxes_at(point, distances), box)


def test_images_without_objects_give_finite_losses_and_gradients():
    image, target = scene()
    empty = {name: values[:0] for name, values in target.items()}
    model = small_one_stage(5, image_size=64).train()
    losses = model([image, image], [empty, empty])
    sum(losses.values()).backward()
    assert losses["loss_box_reg"].item() == losses["loss_point_box"].item() == 0
    assert all(torch.isfinite(loss) for loss in losses.values())
    assert all(parameter.grad is not None for parameter in model.parameters())  # what DDP asks for


def test_boxes_that_are_no_numbers_end_in_a_loss_that_is_none():
    image, target = scene()
    model = small_one_stage(5, image_size=64).train()
    torch.nn.init.constant_(model.point_boxes.bbox_pred.bias, torch.nan)
    assert not all(torch.isfinite(loss) for loss in model([image], [target]).values())


def test_the_points_with_the_highest_logit_are_kept_inside_the_given_image():
    model = small_one_stage(5, image_size=96)
    seen = []
    layer = model.box_predictor.cls_score
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
    large, small = model.propose([torch.rand(3, 192, 384), torch.rand(3, 96, 100)])
    handle.remove()
    assert (len(large.logits), len(small.logits)) == (12 * 24, 12 * 12)
    assert (large.height, large.width) == (192, 384)
    assert large.boxes.max() > 300  # scaled back from the 96 rows that the network saw
    assert small.boxes.min() >= 0
    assert (small.boxes <= np.array([100, 96, 100, 96]) + 1e-3).all()
    assert small.boxes.ndim == 2
    best = large.logits.max(1)
    assert (best[:-1] >= best[1:]).all()
    assert best.max() == seen[0][: 12 * 24].amax().item()


def test_no_more_points_are_kept_than_the_limit():
    model = small_one_stage(5, image_size=160)
    found = model.propose([torch.rand(3, 160, 160)])[0]
    assert len(found.logits) == KEPT_POINTS < 20 * 20


def test_an_image_has_the_same_proposals_alone_and_beside_a_larger_one():
    model = small_one_stage(5, image_size=64)
    small, large = torch.rand(3, 64, 64), torch.rand(3, 64, 100)
    alone, beside = model.propose([small])[0], model.propose([small, large])[0]
    assert len(alone.logits) == len(beside.logits) == 64


def test_masks_are_refused_in_a_sentence():
    with pytest.raises(InputError, match="Expected a detector with a mask head, but got 'small-one-stage'"):
        small_one_stage(5).predict_masks([scene()[0]], [np.zeros((1, 4))], [np.zeros(1, int)])


def test_detections_in_torchvisions_form():
    found = small_one_stage(5, image_size=64).eval()([scene()[0]])[0]
    assert len(found["boxes"]) == len(found["scores"]) == len(found["labels"]) <= 300
    assert 1 <= found["labels"].min() <= found["labels"].max() <= 5


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_a_correction_attached_or_folded_is_the_map_of_the_proposed_logits(classifier):
    model = small_one_stage(5, classifier=classifier, image_size=64)
    layer = locate_logits(model)
    assert (layer.path, layer.background, layer.activation) == ("box_predictor.cls_score", None, "sigmoid")
    # All points are kept at this size, and one scale and shift for all classes leaves their order.
    affine = ClassAffine(np.full(5, 1.5), np.full(5, 0.25))
    image = scene()[0]
    expected = affine(model.propose([image])[0].logits)
    with logn.attach(model, layer, affine):
        np.testing.assert_allclose(model.propose([image])[0].logits, expected, atol=1e-4)
    logn.fold(model, layer, affine)
    np.testing.assert_allclose(model.propose([image])[0].logits, expected, atol=1e-4)


def test_statistics_are_those_of_the_kept_points(finished, lvis_folder):
    model = load_detector(finished)
    dataset = DetectionDataset(lvis_folder / "train.json")
    moments = collect_detector_statistics(model, dataset, max_images=3)
    assert moments.metadata.population == "kept points"
    assert (moments.metadata.background, moments.metadata.activation) == (None, "sigmoid")
    assert moments.count.tolist() == [3 * 64] * 4
    with record(model, model.logit_layer) as recorded, torch.inference_mode():
        model.propose([torch.rand(3, 64, 64)])
    assert recorded.metadata.population == "all points"


def test_a_run_resumes_to_the_same_bits(lvis_folder, finished, tmp_path):
    calls, loss = [], SigmoidFocalLoss(4, background=0)

    def stop_at_the_fifth(logits, labels):
        calls.append(1)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return loss(logits, labels)

    config = config_for(lvis_folder, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train_detector(config, device="cpu", classification_loss=stop_at_the_fifth, progress=False)
    assert train_detector(config, device="cpu", progress=False).resumed_from == 4
    ours, theirs = Checkpoint.load(tmp_path), Checkpoint.load(finished)
    assert all(torch.equal(ours.model[name], theirs.model[name]) for name in theirs.model)
    assert all(torch.equal(ours.momentum[name], theirs.momentum[name]) for name in theirs.momentum)


def test_two_processes_train_it(lvis_folder, tmp_path):
    result = train_detector(config_for(lvis_folder, tmp_path, iterations=2), processes=2, device="cpu", progress=False)
    assert (result.iterations, result.processes) == (2, 2)


def test_its_classifier_is_trained_anew_on_the_frozen_rest(lvis_folder, finished, tmp_path):
    options = {"start": finished, "only": "new-classifier", "sampler": "class-balanced", "iterations": 2}
    train_detector(config_for(lvis_folder, tmp_path, **options), device="cpu", progress=False)
    ours, theirs = Checkpoint.load(tmp_path).model, Checkpoint.load(finished).model
    changed = {name for name in theirs if not torch.equal(ours[name], theirs[name])}
    assert changed == {"box_predictor.cls_score.weight", "box_predictor.cls_score.bias"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"loss": "cross-entropy"}, "Expected `loss` to be focal for 'small-one-stage', but got 'cross-entropy'."),
        ({"loss": "seesaw"}, "Expected `loss` to be focal"),
    ],
)
def test_what_it_cannot_be_gets_a_sentence(options, sentence):
    with pytest.raises(InputError, match=sentence):
        DetectorSettings("small-one-stage", 3, **options)


def test_scales_of_its_classes_are_trained_on_another_run(lvis_folder, finished, tmp_path):
    train_detector(
        config_for(lvis_folder, tmp_path, start=finished, only="scales", iterations=1), device="cpu", progress=False
    )
    scale = Checkpoint.load(tmp_path).model["box_predictor.cls_score.scale"]
    assert scale.shape == (4,)
    assert (scale != 1).any()


def test_the_focal_loss_takes_its_options(lvis_folder, tmp_path):
    config = config_for(lvis_folder, tmp_path, loss="focal:gamma=1.5,weight=2", iterations=1)
    train_detector(config, device="cpu", progress=False)
    checkpoint = Checkpoint.load(tmp_path)
    assert (checkpoint.settings.loss, checkpoint.run["loss"]) == ("focal", "focal:gamma=1.5,weight=2")


def test_the_whole_way_on_the_command_line(lvis_folder, tmp_path, capsys):
    data, run = str(lvis_folder / "train.json"), str(tmp_path / "run")
    store, statistics = str(tmp_path / "store"), str(tmp_path / "stats.safetensors")
    tiny = ["--iterations", "2", "--batch", "4", "--image-size", "64", "--device", "cpu"]
    assert execute(["train", "-m", "small-one-stage", "--data", data, "-o", run, *tiny]) == 0
    assert execute(["collect", run, "--data", data, "-o", statistics]) == 0
    assert execute(["predict", "-m", run, "-d", data, "-o", store]) == 0
    capsys.readouterr()
    compare = ["compare", "-p", store, "-s", statistics, "-a", data, "--counts", data, "--coco", "--bootstrap", "0"]
    assert execute([*compare, "--methods", "none,logn,recommended,norcal,loga", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert execute([*compare, "--methods", "none,logn", "--detector", run]) == 2
    assert "Expected a detector with a mask head" in capsys.readouterr().err
