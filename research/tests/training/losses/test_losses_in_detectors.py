"""Every loss trains the small detector, whose proposals then give that loss's own scores by the ordinary activation."""

import numpy as np
import pytest
import torch
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.experiments.detector_statistics import collect_detector_statistics
from logn_research.losses import LOSS_NAMES, CrossEntropyLoss, SeesawLoss, make_loss
from logn_research.training.checkpoint import read_checkpoint
from logn_research.training.detectors import DetectorSettings, build_detector
from logn_research.training.feature_memory import FeatureMemory
from logn_research.training.recipes import DetectorTrainingConfig
from logn_research.training.train import load_detector, train_detector
from torch import nn

from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.methods.logit_normalization import logit_normalization
from logn.models.images import as_tensor
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.models.torch.record import record
from logn.predictions.decoder import decode_many
from logn.predictions.predict import predict
from logn.predictions.store import Predictions
from logn.statistics.head import Head

CLASSES = 4
COUNTS = ClassCounts([90, 30, 4, 1], instance_counts=[2000, 150, 40, 1], num_images=100)
SPECS = {"eql": "eql:threshold=0.05", "eql-softmax": "eql-softmax:threshold=0.05"}
pytestmark = pytest.mark.usefixtures("one_thread")


def detector_with(name, model="small"):
    loss = make_loss(SPECS.get(name, name), COUNTS)
    detector = build_detector(DetectorSettings(model, CLASSES, image_size=64, loss=name))
    detector.roi_heads.use_loss(loss)
    return detector, loss


def scene(seed):
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(3, 64, 64, generator=generator) * 0.3
    boxes = torch.tensor([[4.0, 4.0, 28.0, 30.0], [34.0, 30.0, 60.0, 58.0]])
    masks = torch.zeros(2, 64, 64, dtype=torch.uint8)
    labels = torch.tensor([1 + seed % CLASSES, 1 + (seed + 1) % CLASSES])
    for mask, box, label in zip(masks, boxes.long(), labels.tolist(), strict=True):
        mask[box[1] : box[3], box[0] : box[2]] = 1
        image[label % 3, box[1] : box[3], box[0] : box[2]] += 0.2 * label
    return image, {"boxes": boxes, "labels": labels, "masks": masks}


def raw_and_proposed(detector, image):
    """The class layer's own output, and the logits that are proposed."""
    seen = []
    layer = detector.roi_heads.box_predictor.cls_score
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
    proposals = detector.propose([image])[0]
    handle.remove()
    return seen[0], torch.from_numpy(proposals.logits)


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_each_loss_trains_the_small_detector_and_its_scores_come_out(name, learn_by_heart):
    torch.manual_seed(0)
    detector, loss = detector_with(name)
    detector.train()
    scenes = [scene(seed) for seed in range(2)]
    history = learn_by_heart(detector, scenes, steps=12, rate=0.01, longest_gradient=10.0)
    values = [losses["loss_classifier"] for losses in history]
    assert np.isfinite(values).all()
    assert np.mean(values[-3:]) < 0.9 * np.mean(values[:2]), values

    raw, proposed = raw_and_proposed(detector, scenes[0][0])
    activated = proposed.softmax(-1) if detector.activation == "softmax" else proposed.sigmoid()
    expected = loss.activate(raw)
    if detector.background is None:
        assert (expected[:, 0] == 0).all()
        expected = expected[:, 1:]
    torch.testing.assert_close(activated, expected, atol=1e-6, rtol=1e-5)
    assert proposed.shape[1] == detector.logit_layer.num_columns
    with record(detector.eval(), detector.logit_layer) as moments:
        detector.propose([scenes[0][0]])
    np.testing.assert_allclose(moments.mean, proposed.double().mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["eql", "eql-v2", "bags", "seesaw"])
def test_detections_in_torchvisions_form_have_the_same_scores_as_the_proposals(name):
    detector, _ = detector_with(name)
    nn.init.normal_(detector.roi_heads.box_predictor.cls_score.weight, std=0.5)
    nn.init.zeros_(detector.roi_heads.box_predictor.cls_score.bias)
    detector.roi_heads.detections_per_img = 10**6
    detector.roi_heads.nms_thresh = 1.0  # only copies of a box are suppressed
    image = scene(0)[0]
    found = detector.eval()([image])[0]
    logits = torch.from_numpy(detector.propose([image])[0].logits)
    scores = logits.softmax(-1) if detector.activation == "softmax" else logits.sigmoid()
    scores = scores if detector.background is None else scores[:, 1:]
    assert found["labels"].min() >= 1
    for label in range(1, CLASSES + 1):
        best = found["scores"][found["labels"] == label].max()
        torch.testing.assert_close(best, scores[:, label - 1].max())


def test_a_detector_refuses_a_loss_that_wants_other_logits_and_to_train_without_its_own():
    detector = build_detector(DetectorSettings("small", CLASSES, image_size=64, loss="seesaw"))
    with pytest.raises(InputError, match="The `loss` does not fit the detector"):
        detector.roi_heads.use_loss(CrossEntropyLoss(CLASSES, background=0))
    image, target = scene(0)
    with pytest.raises(InputError, match="The detector's head has no loss"):
        detector.train()([image], [target])
    detector.roi_heads.use_loss(SeesawLoss(CLASSES, background=0))
    assert torch.isfinite(detector([image], [target])["loss_classifier"])


@pytest.mark.usefixtures("few_weights")
def test_the_stages_of_a_cascade_have_a_state_each_and_one_set_of_scores():
    detector, loss = detector_with("seesaw", "cascade-r101")
    heads = detector.roi_heads
    image, target = scene(0)
    detector.train()([image, image], [target, target])
    states = [heads.classification_loss.counts, *(later.counts for later in heads.later_losses)]
    assert len(states) == 3
    assert all(counts.sum() > 0 for counts in states)
    assert len({counts.data_ptr() for counts in states}) == 3
    seen = []
    for predictor in heads.box_predictor:
        predictor.cls_score.register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
    proposed = torch.from_numpy(detector.propose([image])[0].logits)
    torch.testing.assert_close(proposed.softmax(-1), loss.activate(sum(seen) / 3), atol=1e-6, rtol=1e-5)
    assert detector.logit_layer.paths == ("roi_heads.test_logits",)


def config_for(folder, output, **options):
    values = {"iterations": 3, "batch": 4, "image_size": 64, "checkpoint_every": 1, **options}
    return DetectorTrainingConfig(folder, output, **values)


@pytest.mark.parametrize(("loss", "key"), [("seesaw", "counts"), ("loce", "mean_score")])
def test_a_run_keeps_the_state_of_its_loss_and_resumes_to_the_bit(lvis_folder, tmp_path, loss, key, stop_at_call):
    config = config_for(lvis_folder, tmp_path / "whole", loss=loss)
    train_detector(config, device="cpu", progress=False)
    whole = read_checkpoint(tmp_path / "whole")
    state = whole.model[f"roi_heads.classification_loss.{key}"]
    assert (state != make_loss(loss, COUNTS).state_dict()[key]).any()

    stopped = config_for(lvis_folder, tmp_path / "stopped", loss=loss)
    with pytest.raises(KeyboardInterrupt):
        train_detector(
            stopped, device="cpu", progress=False, classification_loss=stop_at_call(2, make_loss(loss, COUNTS))
        )
    assert train_detector(stopped, device="cpu", progress=False).resumed_from == 2
    resumed = read_checkpoint(tmp_path / "stopped")
    assert all(torch.equal(tensor, whole.model[name]) for name, tensor in resumed.model.items() if "_loss" not in name)
    assert torch.equal(resumed.model[f"roi_heads.classification_loss.{key}"], state)
    assert load_detector(tmp_path / "whole").settings.loss == loss
    with pytest.raises(InputError, match="loss"):
        train_detector(
            config_for(lvis_folder, tmp_path / "whole", loss=f"{loss}:eps=1" if loss == "seesaw" else "loce:decay=0.5")
        )


def test_regions_of_earlier_batches_join_each_batch():
    detector, loss = detector_with("loce")
    heads = detector.train().roi_heads
    memory = heads.feature_memory = FeatureMemory(CLASSES, capacity=20)
    seen = []
    heads.box_predictor.register_forward_hook(lambda module, inputs, output: seen.append(len(output[0])))
    image, target = scene(0)
    losses = detector([image, image], [target, target])
    sum(losses.values()).backward()
    assert all(torch.isfinite(value) for value in losses.values())
    assert len(memory) == 2 * 20  # of two objects with sixteen boxes each, twice, the last twenty of each class
    assert seen[0] > 2 * 16 + 8 * 4
    drawn = [found for _ in range(50) if (found := memory.draw(loss.mean_score)) is not None]
    assert drawn  # now and then only classes without a region are drawn
    assert all(found.offsets.abs().max() < 10 for found in drawn)
    detector([image], [{name: values[:0] for name, values in target.items()}])
    assert len(memory) == 2 * 20
    assert seen[1] > 8 * 4


@pytest.mark.parametrize("loss", ["eql", "seesaw", "bags"])
def test_a_trained_detector_is_recorded_corrected_and_evaluated_as_any_other(lvis_folder, tmp_path, loss):
    train_detector(config_for(lvis_folder, tmp_path / "run", loss=loss, iterations=1), device="cpu", progress=False)
    detector = load_detector(tmp_path / "run")
    # As after a long training: clearly different logits.
    nn.init.normal_(detector.roi_heads.box_predictor.cls_score.weight, std=0.5)
    dataset = SampleDataset(lvis_folder / "train.json")
    moments = collect_detector_statistics(detector, dataset, max_images=4)
    assert moments.head.names[-CLASSES:] == dataset.class_names
    assert (moments.head.background, moments.head.activation) == (detector.background, detector.activation)
    affine = logit_normalization(moments)
    predict(detector, dataset, tmp_path / "store", dtype="float32", batch=1)
    store = Predictions(tmp_path / "store")
    before, after = decode_many(store, [None, affine])
    assert len(before.scores)
    assert len(after.scores)
    image = as_tensor(dataset.read_image(0))
    plain = detector.propose([image])[0].logits
    np.testing.assert_array_equal(plain, store[0].logits)
    attach(detector, detector.logit_layer, affine)
    np.testing.assert_allclose(detector.propose([image])[0].logits, affine(plain), rtol=1e-4, atol=1e-4)


def test_a_run_with_a_feature_memory(lvis_folder, tmp_path):
    config = config_for(lvis_folder, tmp_path, loss="loce", feature_memory=True)
    assert np.isfinite(list(train_detector(config, device="cpu", progress=False).losses.values())).all()
    with pytest.raises(InputError, match="Expected `feature_memory` to be used with the loss `loce`"):
        config_for(lvis_folder, tmp_path, loss="seesaw", feature_memory=True)


def test_two_processes_share_the_state(lvis_folder, tmp_path):
    result = train_detector(
        config_for(lvis_folder, tmp_path, loss="seesaw", iterations=2), processes=2, device="cpu", progress=False
    )
    assert result.processes == 2
    counts = read_checkpoint(tmp_path).model["roi_heads.classification_loss.counts"]
    assert counts.sum() > 2 * 2 * 48  # more than one process with half of the images could have seen


def test_bags_trains_the_classifier_only_on_another_run(make_lvis_folder, tmp_path):
    make_lvis_folder(tmp_path / "data", objects=5)  # more than ten objects of some classes, fewer of others
    lvis_folder = tmp_path / "data"
    base = config_for(lvis_folder, tmp_path / "base", iterations=2)
    train_detector(base, device="cpu", progress=False)
    train_detector(
        config_for(lvis_folder, tmp_path / "bags", loss="bags", start=tmp_path / "base", only="classifier"),
        device="cpu",
        progress=False,
    )
    before, after = (read_checkpoint(tmp_path / name).model for name in ("base", "bags"))
    changed = {
        name for name in before if before[name].shape != after[name].shape or (before[name] != after[name]).any()
    }
    assert changed == {f"roi_heads.box_predictor.cls_score.{part}" for part in ("weight", "bias")}
    groups = after["roi_heads.test_logits.group_of_class"]
    assert groups.unique().tolist() == [0, 1]
    detector = load_detector(tmp_path / "bags")
    assert torch.equal(detector.roi_heads.test_logits.group_of_class, groups)
    assert detector.propose([torch.rand(3, 64, 64)])[0].logits.shape[1] == CLASSES + 1


def fold_the_scaled_classifier(run):
    detector, image = load_detector(run), torch.rand(3, 64, 64)
    before = detector.propose([image])[0].logits
    affine = ClassAffine(np.linspace(0.5, 2, CLASSES + 1), np.arange(CLASSES + 1.0), head=Head(background=0))
    fold(detector, detector.logit_layer, affine)
    np.testing.assert_allclose(detector.propose([image])[0].logits, affine(before), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("only", ["classifier", "new-classifier", "scales", "heads"])
def test_which_weights_each_part_trains(lvis_folder, tmp_path, only):
    train_detector(config_for(lvis_folder, tmp_path / "base", iterations=1), device="cpu", progress=False)
    config = config_for(lvis_folder, tmp_path / only, start=tmp_path / "base", only=only, iterations=1, seed=1)
    train_detector(config, device="cpu", progress=False)
    before, after = (read_checkpoint(tmp_path / name).model for name in ("base", only))
    changed = {name for name in before if (before[name] != after[name]).any()}
    if only == "scales":
        assert not changed
        assert (after["roi_heads.box_predictor.cls_score.scale"] != 1).any()
        fold_the_scaled_classifier(tmp_path / only)
        return
    assert any("cls_score" in name for name in changed)
    for part in ("rpn.", "bbox_pred.", "mask_head.", "mask_predictor."):
        assert any(part in name for name in changed) == (only == "heads"), part
    assert not any("backbone" in name or "box_head" in name for name in changed)
    moved = before["roi_heads.box_predictor.cls_score.weight"] - after["roi_heads.box_predictor.cls_score.weight"]
    # Random weights differ by about 0.01; one warm-up step moves them far less.
    assert (moved.abs().mean() > 0.005) == (only == "new-classifier")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"loss": "hinge"}, "Expected `loss` to be one of"),
        ({"only": "classifier"}, "To train only the classifier, pass the trained run"),
        ({"only": "neck", "start": "x"}, "Expected `only` to be one of classifier, new-classifier, scales, heads"),
        (
            {"only": "scales", "start": "x", "classifier": "cosine"},
            "Expected `classifier` to be one of",
        ),
        ({"classifier": "scaled"}, "Expected `classifier` to be one of"),
    ],
)
def test_wrong_configs_get_a_sentence(options, sentence):
    with pytest.raises(InputError, match=sentence):
        DetectorTrainingConfig("data", "runs/a", **options)


def test_a_start_of_another_kind_gets_a_sentence(lvis_folder, tmp_path):
    train_detector(config_for(lvis_folder, tmp_path / "base", iterations=1), device="cpu", progress=False)
    with pytest.raises(InputError, match="has the `classifier` 'linear', but this run has 'cosine'"):
        train_detector(
            config_for(lvis_folder, tmp_path / "other", classifier="cosine", start=tmp_path / "base"), device="cpu"
        )
