"""Two real processes with gloo: each ends with the state that one process with all rows would have."""

import os
import subprocess
import sys

import pytest
import torch
from logn_research.losses import make_loss

from logn.data.class_counts import ClassCounts

NAMES = ["seesaw", "eql-v2", "loce", "online-logn:momentum=0.5"]
WORKER = """
import os, sys
import torch
from torch import distributed
from logn_research.losses import make_loss
from logn.data.class_counts import ClassCounts

folder, names = sys.argv[1], sys.argv[2:]
rank = int(os.environ["RANK"])
distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
torch.set_num_threads(1)
for name in names:
    loss = make_loss(name, ClassCounts([9, 3, 1]))
    batches = torch.load(f"{folder}/batches.pt", weights_only=True)
    for logits, labels in batches:
        mine = slice(0, 3) if rank == 0 else slice(3, None)
        value = loss(logits[mine, : loss.layout.columns], labels[mine])
        assert torch.isfinite(value)
    torch.save(loss.state_dict(), f"{folder}/{name.split(':')[0]}-{rank}.pt")
distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def batches():
    torch.manual_seed(0)
    labels = [[1, 1, 2, 3, 1, 0, 0, 2], [0, 0, 0, 2, 1, 1, 3, 0], [1, 2, 3], [0, 0, 0, 0]]
    # One process without foreground, one without a row at all, both without foreground.
    return [(torch.randn(len(rows), 5), torch.tensor(rows)) for rows in labels]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, batches):
    path = tmp_path_factory.mktemp("processes")
    torch.save(batches, path / "batches.pt")
    (path / "worker.py").write_text(WORKER)
    workers = [
        subprocess.Popen(
            [sys.executable, str(path / "worker.py"), str(path), *NAMES],
            env={**os.environ, "RANK": str(rank), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for worker in workers:
        error = worker.communicate()[1]
        assert worker.returncode == 0, error.decode()
    return path


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_that_of_one_process_with_all_rows(folder, batches, name):
    states = [torch.load(folder / f"{name.split(':')[0]}-{rank}.pt", weights_only=True) for rank in range(2)]
    alone = make_loss(name, ClassCounts([9, 3, 1]))
    for logits, labels in batches:
        # Each row is an object of its own to both, but the rows of a class count as one to each process.
        extra = {"instances": (torch.arange(len(labels)) >= 3).long()} if name == "loce" else {}
        alone(logits[:, : alone.layout.columns], labels, **extra)
    assert states[0].keys() == states[1].keys() == alone.state_dict().keys() != set()
    for key, value in alone.state_dict().items():
        assert torch.equal(states[0][key], states[1][key])
        torch.testing.assert_close(states[0][key], value)
        assert (value != make_loss(name, ClassCounts([9, 3, 1])).state_dict()[key]).any()
