"""What a LogitLayer says of decoders, cascades and columns that are no classes, and how it is checked."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from logn.calibrators.affine import ClassAffine
from logn.deploy.attach import attach
from logn.deploy.fold import fold
from logn.errors import InputError
from logn.logits.layer import LogitLayer, count_columns
from logn.statistics.record import record


def test_stages_may_come_in_any_order():
    assert LogitLayer(("a", "b", "c"), stages=(0, 2, 1)).num_stages == 3


def test_extra_columns_are_cut_off_each_anchor():
    layer = LogitLayer("head", class_axis=1, anchors=2, extra_columns=1)
    output = np.arange(2 * 8 * 3).reshape(2, 8, 3)
    rows = layer.rows(output)
    assert rows.shape == (2, 2, 3, 3)
    np.testing.assert_array_equal(rows[0, 1, 0], output[0, 4:7, 0])
    assert layer.channels([1.0, 2.0, 3.0], elsewhere=9.0).tolist() == [1, 2, 3, 9, 1, 2, 3, 9]
    with pytest.raises(InputError, match=r"9 output channels, not 2 x \(num_columns \+ 1\)"):
        layer.columns_in(9)
    with pytest.raises(InputError, match=r"2 output channels, not 1 x \(num_columns \+ 2\)"):
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
    assert [each.metadata.layer for each in moments] == ["many.0, many.1", "one.0, one.1"]
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
    with pytest.raises(InputError, match=r"one map per stage \(2\), but got 4"):
        attach(model, layer, [*maps, *maps])


def test_a_module_in_two_stages_is_refused():
    model = TwoHeads()
    model.one = model.many
    layer = LogitLayer(("many.0", "many.1", "one.0", "one.1"), class_axis=1, stages=(0, 0, 1, 1))
    with pytest.raises(InputError, match=r"Some stages of .* are the same module"), record(model, layer):
        pass
