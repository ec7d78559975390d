"""What a model returns, held against the logits of a layer: what agrees, what differs, what cannot be told."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from logn.models.output_check import Agreement, compare, named_scores, returned_parts

ENDINGS = {
    None: lambda logits: logits,
    "sigmoid": torch.sigmoid,
    "softmax": lambda logits: logits.softmax(dim=-1),
}


def drawn(*shape, seed=0, spread=3.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    rows=st.integers(2, 30),
    columns=st.integers(2, 9),
    spread=st.floats(0.05, 4.0),
    activation=st.sampled_from(list(ENDINGS)),
)
def test_logits_and_their_activations_agree_and_others_differ(seed, rows, columns, spread, activation):
    logits, other = drawn(rows, columns, seed=seed, spread=spread), drawn(rows, columns, seed=seed + 1)
    ending = ENDINGS[activation]
    assert compare([logits], [ending(logits)]) == Agreement(True, activation)
    assert compare([logits], [ending(logits + 0.1 * other)]).agrees is False


@pytest.mark.parametrize("activation", ENDINGS)
@pytest.mark.parametrize(("scale", "shift"), [(0.5, 0.0), (3.0, -1.0)])
def test_a_temperature_before_the_activation_differs(activation, scale, shift):
    logits = drawn(40, 5, spread=1.0)
    assert compare([logits], [ENDINGS[activation](logits * scale + shift)]).agrees is False


@pytest.mark.parametrize(
    "returned",
    [
        lambda maps: maps.mean(dim=(2, 3)),
        lambda maps: functional.interpolate(maps, size=(12, 20), mode="bilinear", align_corners=False),
        lambda maps: maps.permute(0, 2, 3, 1),
        lambda maps: maps,
    ],
    ids=["mean", "bilinear", "classes last", "as it is"],
)
def test_feature_maps_may_be_averaged_and_resized(returned):
    maps = drawn(3, 5, 4, 6)
    rows = maps.permute(0, 2, 3, 1)
    assert compare([rows], [returned(maps)]).agrees
    assert compare([rows], [returned(maps + drawn(3, 5, 4, 6, seed=1))]).agrees is False


@pytest.mark.parametrize("pool", [lambda maps: maps.amax(dim=(2, 3)), lambda maps: maps.relu().mean(dim=(2, 3))])
def test_what_no_map_of_the_logits_passes_through_differs(pool):
    maps = drawn(3, 5, 4, 6)
    assert compare([maps.permute(0, 2, 3, 1)], [pool(maps)]).agrees is False


def test_what_cannot_be_told_is_left_open():
    logits = drawn(6, 5)
    assert compare([logits], []).agrees is None
    assert compare([logits], [drawn(11, 4)]).agrees is None
    assert compare([torch.zeros(6, 5)], [torch.zeros(6, 5)]).agrees is None
    assert compare([torch.full((6, 5), torch.nan)], [logits]).agrees is None
    assert compare([logits], [drawn(6, 9)]).agrees is False
    assert compare([logits], [drawn(6, 4)], may_drop_columns=True).agrees is None


def test_any_tensor_that_holds_the_logits_decides():
    logits, other = drawn(6, 5), drawn(6, 5, seed=1)
    assert compare([logits], [drawn(6, 8), logits]).agrees
    assert compare([logits], [other, logits]).agrees
    assert compare([logits], [logits + other, torch.zeros(6, 5)]).agrees is False


def test_tensors_of_what_models_return():
    def widths(returned):
        return [part.shape[1] for _, part in named_scores(returned_parts(returned))]

    logits, boxes = drawn(2, 3), drawn(2, 4)
    assert widths({"boxes": boxes, "out": logits}) == widths({"boxes": boxes, "cls_logits": logits}) == [3]
    assert widths({"a": boxes, "b": (logits, torch.tensor([1]))}) == [4, 3]
    assert widths([{"boxes": boxes}]) == widths(None) == widths("text") == []
