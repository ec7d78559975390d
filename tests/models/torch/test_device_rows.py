"""Recording from a GPU never waits for a batch; here the processor plays the GPU, and says what it was asked."""

import numpy as np
import pytest
import torch
from torch import nn

from logn.errors import InputError
from logn.models.layer import LogitLayer
from logn.models.torch import record as record_module
from logn.models.torch.record import DeviceRows, record


class FakeGpu:
    """Copies arrive when `arrived` says so; waiting for one is noted."""

    def __init__(self, monkeypatch) -> None:
        self.ordered, self.arrived, self.waits = 0, 0, 0
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        monkeypatch.setattr(record_module, "_ordered_copy", self.order)

    def order(self, rows):
        self.ordered += 1
        return rows.detach().clone(), FakeArrival(self, self.ordered)


class FakeArrival:
    def __init__(self, gpu: FakeGpu, number: int) -> None:
        self.gpu, self.number = gpu, number

    def query(self) -> bool:
        return self.number <= self.gpu.arrived

    def synchronize(self) -> None:
        self.gpu.waits += not self.query()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3)).eval()


def recorded(model, batches, after_each=lambda number: None):
    with record(model, LogitLayer("0"), check_output=False) as moments, torch.inference_mode():
        for number, batch in enumerate(batches, start=1):
            model(batch)
            after_each(number)
    return moments


def made_batches(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(20, 4, generator=generator) for _ in range(count)]


def test_no_batch_is_waited_for_while_the_gpu_keeps_up(model, monkeypatch):
    batches = made_batches(30)
    expected = recorded(model, batches)
    gpu = FakeGpu(monkeypatch)
    waits = []

    def two_behind(number):
        gpu.arrived = number - 2
        waits.append(gpu.waits)

    found = recorded(model, batches, two_behind)
    assert gpu.ordered == 30
    assert set(waits) == {0}  # only the last two, at the end of the block
    assert gpu.waits == 2
    for name in ("count", "mean", "variance", "sample", "mean_probability"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_only_so_many_batches_are_on_the_way(model, monkeypatch):
    gpu = FakeGpu(monkeypatch)
    found = recorded(model, made_batches(20), lambda number: None)
    assert gpu.waits == 20  # none ever arrived by itself
    assert found.count.tolist() == [400.0] * 3


def test_rows_that_are_no_numbers_are_refused_at_the_end_at_the_latest(model, monkeypatch):
    FakeGpu(monkeypatch)
    with pytest.raises(InputError, match="finite"):
        recorded(model, [torch.full((2, 4), float("nan"))])


def test_batches_of_both_kinds_stay_in_order(monkeypatch):
    gpu = FakeGpu(monkeypatch)
    seen: list[float] = []
    rows = DeviceRows(lambda batch: seen.append(float(batch)))
    rows.add(torch.tensor(1.0))
    rows.add(torch.tensor(2.0))
    assert seen == []
    monkeypatch.setattr(torch.Tensor, "is_cuda", False)
    rows.add(torch.tensor(3.0))
    assert seen == [1.0, 2.0, 3.0]
    assert gpu.ordered == 2
