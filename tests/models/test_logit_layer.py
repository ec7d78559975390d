"""LogitLayer: rows, channels, stages and the modules it names; the fingerprint of a model."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.layer import LogitLayer, count_columns, find_modules, fingerprint, unwrap
from logn.models.torch.attach import attach
from logn.models.torch.fold import fold
from logn.models.torch.record import record

SIDES = st.integers(1, 3)


@given(anchors=st.integers(1, 4), columns=st.integers(1, 5), batch=st.integers(0, 2), height=SIDES, width=SIDES)
def test_rows_read_channels_as_anchor_times_classes_plus_class(anchors, columns, batch, height, width):
    layer = LogitLayer("head", class_axis=1, anchors=anchors, num_columns=columns)
    output = np.arange(batch * anchors * columns * height * width, dtype=np.float32)
    output = output.reshape(batch, anchors * columns, height, width)
    rows = layer.rows(output)
    assert rows.shape == ((batch, anchors) if anchors > 1 else (batch,)) + (height, width, columns)
    assert np.shares_memory(rows, output) or output.size == 0
    np.testing.assert_array_equal(layer.rows(torch.from_numpy(output)).numpy(), rows)
    rows = rows.reshape(batch, anchors, height, width, columns)
    for anchor in range(anchors):
        for column in range(columns):
            np.testing.assert_array_equal(rows[:, anchor, :, :, column], output[:, anchor * columns + column])


def test_rows_of_a_linear_output_are_the_output():
    output = torch.rand(2, 3, 7)
    assert LogitLayer("head").rows(output) is output


def test_rows_are_views_of_channels_last_tensors_too():
    output = torch.rand(2, 6, 4, 4).to(memory_format=torch.channels_last)
    rows = LogitLayer("head", class_axis=1, anchors=2).rows(output)
    assert rows.data_ptr() == output.data_ptr()
    assert torch.equal(rows[1, 1, 2, 3], output[1, 3:, 2, 3])


def test_channels_undo_rows():
    layer = LogitLayer(("a", "b"), class_axis=1, anchors=(2, 3), num_columns=4)
    per_class = np.arange(4.0)
    for index, anchors in enumerate((2, 3)):
        channels = layer.channels(per_class, index)
        assert len(channels) == anchors * 4
        rows = layer.rows(channels.reshape(1, -1, 1, 1), index)
        np.testing.assert_array_equal(rows, np.broadcast_to(per_class, rows.shape))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": ""}, "`path`"),
        ({"path": ()}, "`path`"),
        ({"path": "a", "background": 1}, "`background`"),
        ({"path": "a", "activation": "relu"}, "`activation`"),
        ({"path": ("a", "b"), "anchors": (1, 2, 3)}, "`anchors`"),
        ({"path": "a", "anchors": 0}, "`anchors`"),
        ({"path": "a", "final_only": "last"}, "`final_only`"),
        ({"path": "a", "extra_columns": -1}, "`extra_columns`"),
        ({"path": ("a", "b", "c"), "stages": (0, 1)}, "`stages`"),
        ({"path": ("a", "b", "c"), "stages": (1, 1, 2)}, "`stages`"),
        ({"path": ("a", "b", "c"), "stages": (0, 0, -1)}, "`stages`"),
    ],
)
def test_wrong_layers_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        LogitLayer(**arguments)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (np.zeros((1, 7, 2, 2)), "`head`"),
        (np.zeros(7), "`head`"),
        ((np.zeros(7),), "`head`"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(output, message):
    with pytest.raises(InputError, match=message):
        LogitLayer("head", class_axis=1, anchors=2, num_columns=3).rows(output)


def test_a_path_that_does_not_exist_names_the_closest():
    for model, message in (
        (nn.ModuleDict({"classifier": nn.Linear(2, 3)}), "`clasifier`.* classifier"),
        ({}, "`model`"),
    ):
        with pytest.raises(InputError, match=message):
            find_modules(model, LogitLayer("clasifier"))


def test_columns_are_read_from_the_modules():
    model = nn.ModuleDict({"a": nn.Linear(2, 6), "b": nn.Conv2d(2, 9, 1), "c": nn.Identity(), "d": nn.Linear(2, 4)})
    assert count_columns(model, LogitLayer(("a", "b"), anchors=(2, 3))) == 3
    assert count_columns(model, LogitLayer(("a", "c"), num_columns=6)) == 6
    for paths, message in (("c", "does not say how many columns"), (("a", "d"), "differ in number of columns")):
        with pytest.raises(InputError, match=message):
            count_columns(model, LogitLayer(paths))


def test_wrappers_of_torch_are_looked_through():
    model = nn.Sequential(nn.Linear(2, 3))
    assert unwrap(nn.DataParallel(model)) is model
    assert unwrap(torch.compile(model)) is model
    assert find_modules(torch.compile(model), LogitLayer("0")) == [model[0]]


def test_stages_may_come_in_any_order():
    assert LogitLayer(("a", "b", "c"), stages=(0, 2, 1)).num_stages == 3


def test_extra_columns_are_cut_off_each_anchor():
    layer = LogitLayer("head", class_axis=1, anchors=2, extra_columns=1)
    output = np.arange(2 * 8 * 3).reshape(2, 8, 3)
    rows = layer.rows(output)
    assert rows.shape == (2, 2, 3, 3)
    np.testing.assert_array_equal(rows[0, 1, 0], output[0, 4:7, 0])
    assert layer.channels([1.0, 2.0, 3.0], elsewhere=9.0).tolist() == [1, 2, 3, 9, 1, 2, 3, 9]
    with pytest.raises(InputError, match="`head`"):
        layer.columns_in(9)
    with pytest.raises(InputError, match="`head`"):
        count_columns(nn.ModuleDict({"head": nn.Linear(3, 2)}), LogitLayer("head", extra_columns=2))


class TwoHeads(nn.Module):
    """Two heads of two levels each."""

    def __init__(self):
        super().__init__()
        self.many = nn.ModuleList(nn.Conv2d(3, 4, 1) for _ in range(2))
        self.one = nn.ModuleList(nn.Conv2d(3, 4, 1) for _ in range(2))

    def forward(self, image):
        levels = [image, image[..., ::2, ::2]]
        return [
            torch.cat([head[index](level).flatten(2) for index, level in enumerate(levels)], dim=2)
            for head in (self.many, self.one)
        ]


def test_the_modules_of_a_stage_share_statistics_and_a_map():
    torch.manual_seed(0)
    model, image = TwoHeads().eval(), torch.rand(2, 3, 4, 4)
    layer = LogitLayer(("many.0", "many.1", "one.0", "one.1"), class_axis=1, stages=(0, 0, 1, 1))
    with record(model, layer) as moments, torch.inference_mode():
        plain = model(image)
    assert [each.head.layer for each in moments] == ["many.0, many.1", "one.0, one.1"]
    for recorded, logits in zip(moments, plain, strict=True):
        np.testing.assert_allclose(recorded.mean, logits.double().mean(dim=(0, 2)), atol=1e-6)
        assert recorded.count.tolist() == [2 * 20] * 4
    maps = [ClassAffine(np.full(4, 2.0 + stage), np.arange(4.0)) for stage in range(2)]
    folded = copy.deepcopy(model)
    fold(folded, layer, maps)
    with torch.inference_mode(), attach(model, layer, maps):
        for affine, mapped, in_weights, logits in zip(maps, model(image), folded(image), plain, strict=True):
            np.testing.assert_allclose(mapped, affine(logits, axis=1), atol=1e-5)
            np.testing.assert_allclose(in_weights, affine(logits, axis=1), atol=1e-5)
    with pytest.raises(InputError, match="`affine`"):
        attach(model, layer, [*maps, *maps])


def test_a_module_in_two_stages_is_refused():
    model = TwoHeads()
    model.one = model.many
    layer = LogitLayer(("many.0", "many.1", "one.0", "one.1"), class_axis=1, stages=(0, 0, 1, 1))
    with pytest.raises(InputError, match=r"Some stages of .* are the same module"), record(model, layer):
        pass


def test_every_bit_counts_and_wrappers_do_not():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
    first = fingerprint(model)
    assert fingerprint(copy.deepcopy(model)) == first
    assert fingerprint(nn.DataParallel(model)) == first
    assert fingerprint(copy.deepcopy(model).float()) != first
    with torch.no_grad():
        model[0].weight.view(torch.int16)[0, 0] ^= 1
    assert fingerprint(model) != first


def test_names_count_and_strides_do_not():
    model = nn.Linear(3, 4)
    assert fingerprint(nn.ModuleDict({"a": model})) != fingerprint(nn.ModuleDict({"b": model}))
    other = copy.deepcopy(model)
    other.weight.data = model.weight.data.t().contiguous().t()
    assert fingerprint(other) == fingerprint(model)
