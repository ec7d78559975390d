"""Callbacks of frameworks that are not there: one sentence, which says what to install."""

from __future__ import annotations

import sys

import pytest

from logn.callbacks import lightning, transformers
from logn.errors import InputError


@pytest.fixture(autouse=True)
def _made_anew(monkeypatch):
    for module in (lightning, transformers):
        monkeypatch.delitem(vars(module), "LogNCallback", raising=False)


def test_without_lightning(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"^Expected the package `lightning` to be installed: run pip install lightn"):
        _ = lightning.LogNCallback


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"^Expected the package `transformers` to be installed"):
        _ = transformers.LogNCallback


def test_another_name_is_an_attribute_error():
    for module in (lightning, transformers):
        with pytest.raises(AttributeError, match="has no attribute 'Callback'"):
            _ = module.Callback


def test_what_is_no_trainer_is_refused():
    with pytest.raises(InputError, match="Expected `trainer` to be a Trainer of transformers, but got str"):
        transformers.CorrectBestModel("trainer")
