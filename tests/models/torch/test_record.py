"""record: the statistics of what passes through the layer, and nothing else changes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from logn.errors import InputError
from logn.methods.logit_normalization import logit_normalization
from logn.models.layer import LogitLayer, fingerprint
from logn.models.torch.record import record
from logn.statistics.moments import ClassMoments
from logn.statistics.row_sample import default_sample_rows


def model_of(*modules):
    torch.manual_seed(0)
    return nn.ModuleList(modules).eval()


def no_hooks(model):
    return all(not module._forward_hooks for module in model.modules())


def assert_moments(moments, *logits):
    rows = np.concatenate([np.asarray(part.detach().double()).reshape(-1, moments.num_columns) for part in logits])
    np.testing.assert_allclose(moments.count, len(rows))
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(moments.variance, rows.var(axis=0, ddof=1), atol=1e-5)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_batches_add_up_in_any_mode_and_precision(mode, dtype):
    model = model_of(nn.Linear(4, 3).to(dtype))
    batches = [torch.rand(5, 4), torch.rand(2, 7, 4), torch.rand(0, 4)]
    with record(model, LogitLayer("0")) as moments, mode():
        outputs = [model[0](batch.to(dtype)) for batch in batches]
    assert isinstance(moments, ClassMoments)
    assert_moments(moments, *outputs)
    assert no_hooks(model)


def test_what_is_known_about_the_layer_goes_with_the_statistics():
    model = model_of(nn.Linear(4, 3), nn.Linear(4, 3))
    layer = LogitLayer(("0", "1"), background=-1, activation="sigmoid", population="queries")
    with record(model, layer, class_names=["a", "b", "none"], sample_rows=7) as moments:
        model[0](torch.rand(20, 4))
    metadata = moments.head
    assert (metadata.layer, metadata.background, metadata.activation) == ("0, 1", -1, "sigmoid")
    assert (metadata.population, metadata.names) == ("queries", ("a", "b", "none"))
    assert metadata.source == fingerprint(model)
    assert moments.sample.shape == (7, 3)
    with record(model, layer, fingerprint=False) as moments:
        model[0](torch.rand(2, 4))
    assert moments.head.source is None
    assert moments.sample_rows == default_sample_rows(3) == 4096


def test_levels_of_a_pyramid_share_their_statistics():
    model = model_of(nn.Conv2d(2, 2 * 3, 1), nn.Conv2d(2, 4 * 3, 1))
    layer = LogitLayer(("0", "1"), class_axis=1, anchors=(2, 4))
    with record(model, layer) as moments, torch.inference_mode():
        first, second = model[0](torch.rand(2, 2, 5, 5)), model[1](torch.rand(2, 2, 3, 3))
    # By hand: channel = anchor * 3 + class.
    by_hand = [output.reshape(2, anchors, 3, -1).permute(0, 1, 3, 2) for output, anchors in ((first, 2), (second, 4))]
    assert_moments(moments, *by_hand)


def test_stages_keep_their_own_statistics():
    model = model_of(nn.Linear(4, 3), nn.Linear(4, 3))
    with record(model, LogitLayer(("0", "1"), stages=True)) as stages:
        outputs = model[0](torch.rand(6, 4)), model[1](torch.rand(9, 4))
    assert [moments.head.layer for moments in stages] == ["0", "1"]
    for moments, output in zip(stages, outputs, strict=True):
        assert_moments(moments, output)


def test_one_module_under_two_names_is_counted_once():
    linear = nn.Linear(4, 3)
    model = model_of(linear, linear)
    with record(model, LogitLayer(("0", "1"))) as moments:
        output = model[1](torch.rand(6, 4))
    assert_moments(moments, output)


def test_outputs_and_gradients_are_as_without_it():
    model = model_of(nn.Linear(4, 3))
    features = torch.rand(5, 4)
    plain = model[0](features)
    with record(model, LogitLayer("0")):
        recorded = model[0](features)
    assert torch.equal(recorded, plain)
    recorded.sum().backward()
    assert model[0].weight.grad is not None


def test_hooks_are_removed_after_an_error():
    model = model_of(nn.Linear(4, 3), nn.Linear(4, 3))
    with pytest.raises(RuntimeError, match="stop"), record(model, LogitLayer(("0", "1"))):
        raise RuntimeError("stop")
    assert no_hooks(model)


def test_not_a_number_names_the_class_or_is_skipped():
    model = model_of(nn.Identity())
    batch = torch.tensor([[0.0, 1.0], [1.0, torch.nan], [2.0, 3.0]])
    layer = LogitLayer("0", num_columns=2)
    with pytest.raises(InputError, match=r"nan.* 1"), record(model, layer):
        model[0](batch)
    assert no_hooks(model)
    with record(model, layer, nonfinite="skip") as moments:
        model[0](batch)
    assert moments.count.tolist() == [3.0, 2.0]
    assert moments.skipped.tolist() == [0.0, 1.0]


def test_training_mode_and_nothing_recorded_give_a_warning():
    model = model_of(nn.Linear(4, 3))
    with pytest.warns(UserWarning, match="in training mode"), record(model.train(), LogitLayer("0")):
        model[0](torch.rand(2, 4))
    with pytest.warns(UserWarning, match="No logits passed through `0`"), record(model.eval(), LogitLayer("0")):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with record(model, LogitLayer("0")):
            model[0](torch.rand(2, 4))


@pytest.mark.parametrize(
    ("layer", "options", "words"),
    [
        (LogitLayer("0", num_columns=5), {}, "`0`"),
        (LogitLayer("7"), {}, "`7`"),
        (LogitLayer("0"), {"class_names": ["a"]}, "`class_names`"),
        (LogitLayer("0", unused=(3,)), {}, "`unused`"),
        (LogitLayer(("0", "1"), stages=True), {}, "`0, 1`"),
    ],
)
def test_what_does_not_fit_is_refused(layer, options, words):
    linear = nn.Linear(4, 3)
    model = model_of(linear, linear)
    with pytest.raises(InputError, match=words), record(model, layer, **options):
        pass
    assert no_hooks(model)


def test_unused_columns_are_recorded_and_never_corrected(tmp_path):
    model = model_of(nn.Linear(4, 3))
    with record(model, LogitLayer("0", activation="sigmoid", unused=(0,))) as moments:
        model[0](torch.rand(30, 4))
    moments.save(tmp_path / "statistics.safetensors")
    loaded = ClassMoments.load(tmp_path / "statistics.safetensors")
    assert loaded.head == moments.head
    assert loaded.head.unused == (0,)
    affine = logit_normalization(loaded)
    assert (affine.scale[0], affine.shift[0]) == (1.0, 0.0)
    assert (affine.scale[1:] != 1.0).all()
