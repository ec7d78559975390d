"""The fingerprint of a model."""

from __future__ import annotations

import copy

import torch
from torch import nn

from logn.logits.layer import fingerprint


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
