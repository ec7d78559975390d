"""Two real processes with gloo: each ends with the exact statistics of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from logn.methods.affine import ClassAffine
from logn.statistics.moments import ClassMoments

COLUMNS = 5
PROCESSES = 2
# Rows of each batch of each process.
CASES = {
    "uneven": [[7, 3, 11], [2]],
    "first with nothing": [[], [4, 6]],
    "last with nothing": [[5, 8], []],
}

WORKER = """
import json, os, sys

import torch
from torch import distributed, nn

import logn

folder, cases = sys.argv[1], json.loads(sys.argv[2])
rank = int(os.environ["RANK"])
distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
model, layer = nn.Sequential(nn.Identity()).eval(), logn.LogitLayer("0", num_columns=5)
torch.manual_seed(rank)

for name, sizes in cases.items():
    with logn.record(model, layer, nonfinite="skip", sample_rows=6) as moments, torch.inference_mode():
        for batch, size in enumerate(sizes[rank]):
            rows = torch.randn(size, 5) * 3 + rank
            rows[0, batch % 5] = torch.nan
            torch.save(rows, f"{folder}/{name}-{rank}-{batch}.pt")
            model(rows)
    moments.save(f"{folder}/{name}-{rank}.safetensors")

with logn.record(model, layer, across_processes=False) as alone:
    model(torch.zeros(rank + 1, 5))
assert alone.count.tolist() == [rank + 1.0] * 5

with logn.record(model, logn.LogitLayer(("0",), num_columns=5, stages=True)) as (stage,):
    model(torch.zeros(rank + 1, 5))
assert stage.count.tolist() == [3.0] * 5

scored = nn.Sequential(nn.Identity(), nn.Sigmoid()).eval()
with logn.record(scored, layer) as moments:
    if rank == 0:
        scored(torch.randn(4, 5))
assert (moments.count[0], moments.head.activation) == (4.0, "sigmoid")
assert 0.0 < moments.mean_probability.min() < moments.mean_probability.max() < 1.0

refused = ""
try:
    with logn.record(model, layer, class_names=[f"{rank}-{column}" for column in range(5)]):
        model(torch.zeros(1, 5))
except logn.InputError as error:
    refused = str(error)
assert "`names`" in refused, refused

# Each process brings one image of its own, and both find the same map.
linear = nn.Sequential(nn.Linear(4, 5))
linear.load_state_dict({"0.weight": torch.arange(20.0).reshape(5, 4) / 20, "0.bias": torch.zeros(5)})
affine = logn.calibrate(linear, [torch.rand(6, 4)]).affine
affine.save(f"{folder}/affine-{rank}.safetensors")
distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What both processes wrote; they start once, since importing torch twice takes the time."""
    path = tmp_path_factory.mktemp("processes")
    script = path / "worker.py"
    script.write_text(WORKER)
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(path), json.dumps(CASES)],
            env=os.environ | {"RANK": str(rank), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, errors
    return path


@pytest.mark.parametrize("name", CASES)
def test_every_process_has_the_statistics_of_all(name, folder):
    one_pass = ClassMoments(COLUMNS, nonfinite="skip", sample_rows=6, mean_probability=True)
    for rank, sizes in enumerate(CASES[name]):
        for batch in range(len(sizes)):
            one_pass.update(torch.load(folder / f"{name}-{rank}-{batch}.pt", weights_only=True))
    loaded = [ClassMoments.load(folder / f"{name}-{rank}.safetensors") for rank in range(PROCESSES)]
    for moments in loaded:
        np.testing.assert_array_equal(moments.count, one_pass.count)
        np.testing.assert_array_equal(moments.skipped, one_pass.skipped)
        np.testing.assert_allclose(moments.mean, one_pass.mean, rtol=1e-13)
        np.testing.assert_allclose(moments.variance, one_pass.variance, rtol=1e-13)
        np.testing.assert_array_equal(moments.sample, one_pass.sample)
        for kind in ("softmax", "sigmoid"):
            np.testing.assert_allclose(
                moments.mean_probability_of(kind), one_pass.mean_probability_of(kind), rtol=1e-13
            )
    # The same to the last bit on every process.
    np.testing.assert_array_equal(loaded[0].mean, loaded[1].mean)
    np.testing.assert_array_equal(loaded[0].m2, loaded[1].m2)


def test_every_process_calibrates_alike(folder):
    first, second = (ClassAffine.load(folder / f"affine-{rank}.safetensors") for rank in range(PROCESSES))
    assert first == second
    assert first.settings == second.settings
