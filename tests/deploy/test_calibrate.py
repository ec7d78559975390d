"""calibrate: any loader, one call, and the model otherwise as it was."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import logn
from logn.calibrators.advice import recommended_for
from logn.deploy.calibrate import calibrate, run_on_batch
from logn.errors import InputError
from logn.logits.layer import LogitLayer


def classifier():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 4))
    with torch.no_grad():
        model[4].weight.mul_(torch.tensor([[4.0], [2.0], [1.0], [0.5]]))
        model[4].bias.copy_(torch.tensor([3.0, 1.0, -1.0, -3.0]))
    return model


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(32, 6, generator=generator) for _ in range(4)]


def logits(model):
    with torch.inference_mode():
        return torch.cat([model(batch) for batch in batches()]).double().numpy()


def test_the_paper_for_a_classifier_makes_every_class_standard():
    model = classifier()
    calibrate(model, batches(), margin=None, activation="softmax")
    mapped = logits(model.eval())
    np.testing.assert_allclose(mapped.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(mapped.std(axis=0, ddof=1), 1.0, atol=2e-3)


def test_the_default_is_balanced_and_keeps_the_common_scale():
    model = classifier().eval()
    before = logits(model)
    affine, _ = calibrate(model, batches())
    spread = logits(model).std(axis=0, ddof=1)
    np.testing.assert_allclose(spread, before.std(axis=0, ddof=1).mean(), rtol=1e-3)
    assert affine.settings["margin"] == "balance"
    assert affine.settings["relative_std"]


def test_held_out_images_keep_the_mean_confidence():
    model = classifier().eval()
    unseen = [2.0 * torch.randn(32, 6, generator=torch.Generator().manual_seed(7)) for _ in range(3)]

    def confidence():
        with torch.inference_mode():
            return float(torch.cat([model(batch) for batch in unseen]).softmax(dim=1).amax(dim=1).mean())

    before, plain = confidence(), calibrate(model, batches())
    without = logits(model).argmax(axis=1)
    plain[1].remove()
    affine, _ = calibrate(model, batches(), held_out=unseen)
    assert confidence() == pytest.approx(before, abs=1e-3)
    assert affine.settings["confidence"] == pytest.approx(before, abs=1e-3)
    assert (logits(model).argmax(axis=1) == without).all()
    with (
        pytest.raises(InputError, match="at least one row of logits"),
        pytest.warns(logn.LogNWarning, match="No logits"),
    ):
        calibrate(classifier(), batches(), held_out=[])


def test_folding_gives_the_same_model():
    attached, folded = classifier().eval(), classifier().eval()
    affine, handle = calibrate(attached, batches())
    same, nothing = calibrate(folded, batches(), fold=True)
    assert nothing is None
    assert same == affine
    np.testing.assert_allclose(logits(folded), logits(attached), atol=1e-4)
    handle.remove()
    np.testing.assert_allclose(affine(logits(attached)), logits(folded), atol=1e-4)


def test_modes_weights_and_buffers_stay():
    model = classifier().train()
    model[1].eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    _, handle = calibrate(model, batches())
    handle.remove()
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_modes_and_hooks_are_restored_after_an_error():
    model = classifier().train()

    def failing():
        yield torch.rand(2, 6)
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        calibrate(model, failing())
    assert model.training
    assert all(not module._forward_hooks for module in model.modules())


class Seen(nn.Module):
    """Notes what it is called with."""

    def forward(self, *arguments, **named):
        return arguments, named


IMAGES = torch.rand(2, 3, 4, 5)
RAGGED = [torch.rand(3, 4, 5), torch.rand(3, 6, 7)]
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (IMAGES, IMAGES),
        ([IMAGES, LABELS], IMAGES),
        ((IMAGES, LABELS, ["a", "b"]), IMAGES),
        (RAGGED, RAGGED),
        ((tuple(RAGGED), ({"boxes": LABELS}, {"boxes": LABELS})), RAGGED),
        ([RAGGED, [{}, {}]], RAGGED),
        ({"image": IMAGES, "label": LABELS}, IMAGES),
        ({"images": RAGGED, "targets": []}, RAGGED),
    ],
)
def test_batches_are_unpacked(batch, expected):
    (argument,), named = run_on_batch(Seen(), batch)
    assert named == {}
    if isinstance(expected, list):
        assert all(one is other for one, other in zip(argument, expected, strict=True))
    else:
        assert argument is expected


def test_hugging_face_batches_go_by_name_without_their_labels():
    arguments, named = run_on_batch(Seen(), {"pixel_values": IMAGES, "pixel_mask": LABELS, "labels": LABELS})
    assert arguments == ()
    assert set(named) == {"pixel_values", "pixel_mask"}


@pytest.mark.parametrize("batch", ["text", ["text"], [], 3, {"audio": IMAGES}, {}, ({"a": 1}, 2)])
def test_other_batches_are_refused(batch):
    with pytest.raises(InputError, match="`loader` to give images"):
        run_on_batch(Seen(), batch)


def test_a_forward_function_takes_any_batch():
    affine, _ = calibrate(
        classifier(), [{"a": batch} for batch in batches()], forward=lambda model, batch: model(batch["a"])
    )
    assert affine == calibrate(classifier(), batches())[0]


def test_batches_go_to_the_device_with_their_containers():
    seen = []
    calibrate(
        classifier(),
        [(batch, {"more": [LABELS, "text"]}) for batch in batches()],
        device="cpu",
        forward=lambda model, batch: (seen.append(batch), model(batch[0])),
    )
    assert isinstance(seen[0], tuple)
    assert seen[0][1]["more"][1] == "text"


def test_nothing_to_record_is_refused():
    with pytest.warns(logn.LogNWarning, match="No logits"), pytest.raises(InputError, match="`loader` to bring logits"):
        calibrate(classifier(), [])


def test_not_a_number_is_refused_or_skipped():
    broken = [*batches(), torch.full((1, 6), torch.nan)]
    with pytest.raises(InputError, match=r"to be finite, but got nan for class 0"):
        calibrate(classifier(), broken)
    affine, _ = calibrate(classifier(), broken, nonfinite="skip")
    expected, _ = calibrate(classifier(), batches())
    np.testing.assert_allclose(affine.scale, expected.scale)


def test_unused_columns_are_left_alone():
    affine, _ = calibrate(classifier(), batches(), layer=LogitLayer("4", activation="sigmoid", unused=(1,)), margin=0.0)
    assert (affine.scale[1], affine.shift[1]) == (1.0, 0.0)
    assert (affine.scale[[0, 2, 3]] != 1.0).all()


def test_a_model_that_has_a_map_is_refused_before_the_pass():
    model = classifier()
    calibrate(model, batches())
    with pytest.raises(InputError, match="no map attached"):
        calibrate(model, iter(()))


class TwoStages(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(6, 4), nn.Linear(6, 4)])

    def forward(self, features):
        return torch.stack([stage(features) for stage in self.stages])


def test_stages_get_a_map_each():
    torch.manual_seed(0)
    model = TwoStages()
    layer = LogitLayer(("stages.0", "stages.1"), activation="softmax", stages=True)
    maps, handle = calibrate(model, batches(), layer=layer, margin=None)
    assert len(maps) == 2
    assert maps[0] != maps[1]
    with torch.inference_mode():
        mapped = torch.cat([model(batch) for batch in batches()], dim=1)
    np.testing.assert_allclose(mapped.mean(dim=1), 0.0, atol=1e-5)
    handle.remove()


def test_the_result_has_names_and_is_still_a_pair():
    result = calibrate(classifier(), batches())
    affine, handle = result
    assert (result.affine, result.handle) == (affine, handle)
    assert isinstance(result, logn.Calibration)
    assert (len(result), result[0] is affine) == (2, True)
    assert result.layer.name == "4"
    assert result.moments.count.tolist() == [128] * 4
    assert result.affine == logn.fit_method(recommended_for(result.moments), moments=result.moments)
    assert "moments=ClassMoments(" in repr(result)
    stages = LogitLayer(("stages.0", "stages.1"), activation="softmax", stages=True)
    staged = calibrate(TwoStages(), batches(), layer=stages, fold=True)
    assert staged.handle is None
    assert [logn.fit_method("p2p:strength=0.5", moments=moments) for moments in staged.moments] == list(staged.affine)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"form": "balanced"}, ("balance", True)),
        ({"eps": 1e-3}, ("balance", True)),
        ({"margin": "balance"}, ("balance", True)),
        ({"form": "paper"}, ("min", False)),
        ({"margin": None}, ("min", False)),
        ({"margin": "min"}, ("min", False)),
        ({"form": "balanced", "margin": "max"}, ("max", True)),
        ({"relative_std": False}, ("balance", False)),
    ],
)
@pytest.mark.filterwarnings("ignore::logn.LogNWarning")
def test_the_form_and_what_changes_it(options, settings):
    model, layer = detector()
    affine, _ = calibrate(model, batches(), layer=layer, **options)
    assert (affine.settings["margin"], affine.settings["relative_std"]) == settings


@pytest.mark.parametrize("labels", [None, "federated", "exhaustive"])
def test_without_a_form_it_is_what_is_recommended_for_the_labels(labels):
    model, layer = detector()
    result = calibrate(model, batches(), layer=layer, labels=labels)
    spec = recommended_for(result.moments, labels=labels)
    assert spec.startswith("p2p")
    assert result.affine == logn.fit_method(spec, moments=result.moments)


@pytest.mark.parametrize("more", [{"form": "paper"}, {"margin": 0.0}, {"eps": 1e-3}])
def test_labels_choose_nothing_where_the_user_has_chosen(more):
    model, layer = detector()
    with pytest.raises(InputError, match="Expected `labels` only without"):
        calibrate(model, batches(), layer=layer, labels="federated", **more)


def test_a_wrong_form_is_refused_before_the_pass():
    with pytest.raises(InputError, match="`form` to be one of balanced, paper, but got 'balance'"):
        calibrate(classifier(), iter(()), form="balance")


def test_it_is_a_public_name():
    assert logn.calibrate is calibrate


def test_progress_goes_to_stderr(capsys):
    calibrate(classifier(), batches(), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Recording logits" in captured.err


def detector():
    """A head with a background column first, whose classes start far below it."""
    model = classifier().eval()
    with torch.no_grad():
        model[4].bias.copy_(torch.tensor([4.0, 1.0, -1.0, -3.0]))
    return model, LogitLayer("4", background=0, activation="softmax")


def test_a_chosen_margin_that_moves_the_mass_far_warns_and_works():
    model, layer = detector()
    with pytest.warns(logn.LogNWarning, match="lowers the foreground mass") as caught:
        affine, _ = calibrate(model, batches(), layer=layer, margin=-20.0)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert affine.settings["margin"] == -20.0


def test_the_default_and_classifiers_never_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error", logn.LogNWarning)
        model, layer = detector()
        calibrate(model, batches(), layer=layer)
        calibrate(classifier(), batches(), margin=None)
