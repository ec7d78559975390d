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


def test_names_count():
    assert fingerprint(nn.ModuleDict({"a": nn.Linear(1, 1)})) != fingerprint(nn.ModuleDict({"b": nn.Linear(1, 1)}))


def test_a_mapped_or_strided_weight_has_the_same_fingerprint():
    model = nn.Linear(3, 4)
    other = copy.deepcopy(model)
    other.weight.data = model.weight.data.t().contiguous().t()
    assert fingerprint(other) == fingerprint(model)
