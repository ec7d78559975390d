"""Every loss trains a classifier, second stages train their part, and a killed run ends as it would have."""

import json

import pytest
import torch
from logn_research.losses import SeesawLoss
from logn_research.losses.loss_factory import LOSS_NAMES
from logn_research.training.checkpoint import read_checkpoint
from logn_research.training.recipes import ClassifierTrainingConfig
from logn_research.training.settings import ClassifierSettings, DetectorSettings
from logn_research.training.train import load_classifier, train_classifier
from logn_research.training.trainer import read_log
from torch import nn

from logn.base.files import read_safetensors, write_safetensors
from logn.errors import InputError

pytestmark = pytest.mark.usefixtures("one_thread")


def config_for(output, **options):
    values = {"iterations": 6, "batch": 8, "checkpoint_every": 2, **options}
    return ClassifierTrainingConfig("stripes", output, **values)


def run(config, images, **options):
    return train_classifier(config, images=images, device="cpu", progress=False, **options)


@pytest.fixture(scope="module")
def finished(striped, tmp_path_factory):
    """An uninterrupted run."""
    output = tmp_path_factory.mktemp("classifier")
    run(config_for(output), striped)
    return output


def weights(folder):
    return read_checkpoint(folder, ClassifierSettings).model


@pytest.mark.parametrize("loss", [name for name in LOSS_NAMES if name != "bags"])
def test_every_loss_decreases(loss, striped, tmp_path):
    spec = "eql-softmax:threshold=0.2" if loss == "eql-softmax" else loss
    run(config_for(tmp_path, loss=spec, iterations=24, batch=16, checkpoint_every=8, learning_rate=0.02), striped)
    losses = [line["loss"] for line in read_log(tmp_path)]
    assert losses[-1] < losses[0]
    model = load_classifier(tmp_path)
    assert (model.logit_layer.activation == "sigmoid") == (loss in ("focal", "eql", "eql-v2"))


def test_bags_is_refused_since_it_needs_a_background(tmp_path):
    with pytest.raises(InputError, match="Expected `background` to be 0 or -1"):
        config_for(tmp_path, loss="bags")


@pytest.mark.parametrize("classifier", ["linear", "cosine"])
def test_a_few_dozen_iterations_learn_the_images(classifier, striped, tmp_path):
    run(config_for(tmp_path, classifier=classifier, iterations=60, batch=16, learning_rate=0.05), striped)
    model = load_classifier(tmp_path, num_classes=4)
    pictures = torch.from_numpy(striped.pixels).permute(0, 3, 1, 2) / 255
    with torch.inference_mode():
        right = (model(pictures).argmax(1).numpy() == striped.labels).mean()
    assert right > 0.6  # chance with the most frequent class: 0.53
    assert model.class_names == striped.class_names
    assert model.image_counts == (24, 12, 6, 3)


def test_an_interrupted_run_ends_as_the_uninterrupted_one(striped, finished, tmp_path, stop_at_call, assert_same_run):
    config = config_for(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(config, striped, classification_loss=stop_at_call(5))
    assert read_checkpoint(tmp_path, ClassifierSettings).iteration == 4
    result = run(config, striped)
    assert (result.resumed_from, result.iterations, result.num_images) == (4, 6, 45)
    assert_same_run(tmp_path, finished, ClassifierSettings)
    assert run(config, striped).losses == {}  # nothing left to do


def test_the_state_of_a_loss_is_resumed(striped, tmp_path, stop_at_call, assert_same_run):
    run(config_for(tmp_path / "whole", loss="seesaw"), striped)
    config = config_for(tmp_path / "parts", loss="seesaw")
    with pytest.raises(KeyboardInterrupt):
        run(config, striped, classification_loss=stop_at_call(4, SeesawLoss(4, background=None)))
    run(config, striped)
    assert_same_run(tmp_path / "whole", tmp_path / "parts", ClassifierSettings)
    assert weights(tmp_path / "parts")["classification_loss.counts"].sum() == 6 * 8


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seed": 1}, "is of a run with `seed` 0, but now it is 1"),
        ({"loss": "focal-softmax"}, "of a run with `loss` 'cross-entropy'"),
        ({"classifier": "cosine"}, "of a run with `classifier` 'linear'"),
        ({"sampler": "class-balanced"}, "of a run with `sampler` 'random'"),
    ],
)
def test_another_run_in_the_folder_is_not_resumed(striped, finished, change, sentence):
    with pytest.raises(InputError, match=sentence):
        run(config_for(finished, **change), striped)


def test_other_images_are_not_resumed(make_striped_images, finished):
    other = make_striped_images((24, 11, 6, 3))
    with pytest.raises(InputError, match=r"`images` is not .*: it has 11 images of class 1 \(`class 1`\), not 12"):
        run(config_for(finished), other)


def test_two_processes_train_one_classifier(striped, tmp_path):
    result = run(config_for(tmp_path, loss="seesaw"), striped, processes=2)
    assert (result.iterations, result.processes) == (6, 2)
    assert weights(tmp_path)["classification_loss.counts"].sum() == 6 * 8
    with pytest.raises(InputError, match="of a run with `processes` 2"):
        run(config_for(tmp_path, loss="seesaw"), striped)


def test_crt_trains_a_new_class_layer_and_nothing_else(striped, finished, tmp_path):
    config = config_for(tmp_path, start=finished, only="new-classifier", sampler="class-balanced", seed=3)
    run(config, striped)
    before, after = weights(finished), weights(tmp_path)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"cls_score.weight", "cls_score.bias"}  # normalisation keeps its running statistics too
    # The new layer began with random weights of this run's seed, not with the trained ones.
    assert (after["cls_score.weight"] - before["cls_score.weight"]).norm() > 0.5 * before["cls_score.weight"].norm()


def test_lws_trains_scales_that_end_up_in_an_ordinary_layer(striped, finished, tmp_path):
    run(config_for(tmp_path, start=finished, only="scales", sampler="class-balanced"), striped)
    before, after = weights(finished), weights(tmp_path)
    assert {name for name in after if name not in before or not torch.equal(before[name], after[name])} == {
        "cls_score.scale"
    }
    model = load_classifier(tmp_path)
    assert type(model.cls_score) is nn.Linear
    scale = after["cls_score.scale"]
    assert not torch.equal(scale, torch.ones(4))
    torch.testing.assert_close(model.cls_score.weight.detach(), before["cls_score.weight"] * scale[:, None])
    torch.testing.assert_close(model.cls_score.bias.detach(), before["cls_score.bias"] * scale)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"only": "scales"}, "To train only the scales, pass the trained run"),
        ({"only": "heads", "start": "x"}, "Expected `only` to be classifier, new-classifier or scales"),
        ({"only": "scales", "start": "x", "classifier": "cosine"}, "Expected `classifier` to be one of"),
        ({"sampler": "repeat-factor-ceil"}, "Expected `sampler` to be one of"),
        ({"epochs": 2, "iterations": 2}, "Expected one of `iterations` and `epochs`"),
        ({"batch": 0}, "Expected `batch` to be above 0"),
        ({"preset": "large"}, "Expected `preset` to be one of"),
        ({"seed": -1}, "Expected `seed` to be 0 or more"),
        ({"weights": "a", "start": "b"}, "Expected one of `weights` and `start`"),
    ],
)
def test_impossible_configs_are_refused_at_once(options, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        config_for(tmp_path, **{"iterations": None, **options})


def test_another_classifier_is_no_start(striped, finished, lvis_folder, tmp_path):
    with pytest.raises(InputError, match="has the `classifier` 'linear', but this run has 'cosine'"):
        run(config_for(tmp_path / "a", start=finished, classifier="cosine"), striped)
    with pytest.raises(InputError, match="does not hold a detector"):
        read_checkpoint(finished, DetectorSettings)
    assert not (tmp_path / "a").exists()


def test_a_class_without_an_image_is_named(make_striped_images, tmp_path):
    lacking = make_striped_images((4, 0, 3, 2))
    with pytest.raises(InputError, match=r"has no image of class 1 \(`class 1`\)"):
        run(config_for(tmp_path / "run"), lacking)
    assert not (tmp_path / "run").exists()


def test_one_class_is_nothing_to_learn(make_striped_images, tmp_path):
    with pytest.raises(InputError, match="has one class only, `class 0`"):
        run(config_for(tmp_path / "run"), make_striped_images((4,)))
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_stops_with_the_images_named(striped, tmp_path):
    with pytest.raises(InputError, match="loss_classifier was nan at iteration 0, on images"):
        run(config_for(tmp_path), striped, classification_loss=lambda logits, labels: logits.sum() * float("nan"))


def test_the_papers_recipe_trains_a_residual_network(striped, tmp_path):
    """ResNet-10 with crops, flips and colours, from a local file of weights."""
    from logn_research.training.classifiers import make_classifier

    source = make_classifier("resnet10", 4, seed=5)
    state = {name.removeprefix("body."): value for name, value in source.state_dict().items() if "body." in name}
    torch.save(state, tmp_path / "weights.pth")
    config = config_for(
        tmp_path / "run",
        model="resnet10",
        image_size=32,
        iterations=1,
        learning_rate=1e-6,
        weights=tmp_path / "weights.pth",
    )
    assert (config.preset_name, config.recipe.epochs, config.settings(4).resize) == ("paper", 90, 37)
    run(config, striped)
    trained = load_classifier(tmp_path / "run").body.get_parameter("layer1.0.conv1.weight")
    torch.testing.assert_close(trained.detach(), state["layer1.0.conv1.weight"], rtol=0, atol=1e-3)


def test_the_checkpoint_says_what_it_holds(finished):
    from safetensors import safe_open

    with safe_open(str(finished / "checkpoint.safetensors"), framework="np") as file:
        metadata = file.metadata()
    assert json.loads(metadata["classifier"])["model"] == "small"
    assert json.loads(metadata["extra"])["image_counts"] == [24, 12, 6, 3]
    assert json.loads(metadata["class_names"]) == [f"class {number}" for number in range(4)]


def test_training_leaves_the_random_state_alone(striped, tmp_path):
    before = torch.random.get_rng_state()
    run(config_for(tmp_path, iterations=1), striped)
    assert torch.equal(before, torch.random.get_rng_state())


def test_another_class_count_gets_a_sentence(finished):
    with pytest.raises(InputError, match="holds a classifier for 4 classes, but the data has 9"):
        load_classifier(finished, num_classes=9)


@pytest.mark.parametrize(
    ("entry", "text"),
    [(entry, text) for entry in ("classifier", "class_names", "iteration", "run", "extra") for text in ("{", None)]
    + [(entry, "5.5") for entry in ("classifier", "class_names", "iteration", "run", "extra")],
)
def test_a_checkpoint_that_is_not_whole_is_named(finished, tmp_path, entry, text):
    arrays, metadata = read_safetensors(
        finished / "checkpoint.safetensors", expected_format="logn-checkpoint", schema=2
    )
    changed = {name: value for name, value in (metadata | {entry: text}).items() if value is not None}
    write_safetensors(tmp_path / "checkpoint.safetensors", arrays, changed)
    with pytest.raises(InputError, match=r"` does not hold a (whole )?classifier"):
        read_checkpoint(tmp_path, ClassifierSettings)
