"""The feature memories of a run in files beside its checkpoint: one per process and checkpoint.

A file names the iteration that it belongs to, and is there before the checkpoint of that iteration. So a run that is
killed between the two still finds the memory of the checkpoint that it goes on from.
"""

from __future__ import annotations

from pathlib import Path

import torch

from logn.errors import InputError
from logn.files import read_safetensors, write_safetensors
from logn.training.detectors.feature_memory import FeatureMemory

FORMAT, SCHEMA = "logn-feature-memory", 1


def memory_file(folder: Path, iteration: int, rank: int) -> Path:
    """Where the memory of a process after an iteration lies.

    Example:
        >>> memory_file(Path("run"), 200, 1).name
        'feature_memory_1_at_200.safetensors'
    """
    return folder / f"feature_memory_{rank}_at_{iteration}.safetensors"


def save_memory(memory: FeatureMemory, folder: Path, iteration: int, rank: int) -> None:
    """Write all that is kept."""
    arrays = {name: tensor.numpy() for name, tensor in memory.content().items()}
    metadata = {"format": FORMAT, "schema": str(SCHEMA), "num_classes": str(memory.num_classes)}
    write_safetensors(memory_file(folder, iteration, rank), arrays, metadata)


def load_memory(memory: FeatureMemory, folder: Path, iteration: int, rank: int) -> None:
    """Fill an empty memory with what was kept after an iteration."""
    path = memory_file(folder, iteration, rank)
    if not path.is_file():
        raise InputError(
            f"Expected the feature memory of the run to be in `{path}`, but there is no such file; start anew"
            " (`--fresh`)."
        )
    arrays, _ = read_safetensors(path, expected_format=FORMAT, schema=SCHEMA)
    if arrays:
        memory.add(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def remove_memories(folder: Path, *, but: int | None = None) -> None:
    """Delete the memories of all processes at other iterations than `but`."""
    for path in folder.glob("feature_memory_*_at_*.safetensors"):
        if path.stem.rpartition("_")[2] != str(but):
            path.unlink(missing_ok=True)
