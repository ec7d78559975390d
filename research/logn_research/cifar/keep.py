"""From pictures to one file for training, and from a finished run to the few files that the table needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import logn
from logn.errors import InputError
from logn.statistics.head import Head

SPLITS = ("train", "test")
SAMPLE_ROWS = 1024


def pack(folder: Path, output: Path) -> None:
    """Write the pictures of `folder/train/CLASS/*.png` and `folder/test/CLASS/*.png` into one `.npz` file.

    Args:
        folder: A clone of a repository that holds CIFAR as pictures, such as cyizhuo/CIFAR-100-dataset.
        output: The file that `train` reads; classes are numbered by name, as in CIFAR itself.
    """
    from PIL import Image

    names = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    arrays: dict[str, npt.NDArray[Any]] = {"classes": np.array(names)}
    for split in SPLITS:
        files = [
            (file, number) for number, name in enumerate(names) for file in sorted((folder / split / name).iterdir())
        ]
        if not files:
            raise InputError(f"`{folder / split}` holds no pictures.")
        arrays[f"{split}_images"] = np.stack([np.asarray(Image.open(file).convert("RGB")) for file, _ in files])
        arrays[f"{split}_labels"] = np.array([number for _, number in files])
    np.savez(output, **arrays)  # type: ignore[arg-type]


def keep(run: Path, output: Path) -> None:
    """Keep what the table needs of a finished run: logits in half precision, statistics of the training images.

    Args:
        run: Folder that `train` wrote.
        output: Folder to write, 2 MB for CIFAR-100.
    """
    if not (run / "test_logits.npy").is_file():
        raise InputError(f"`{run}` is not finished: it has no `test_logits.npy`. Start its training again; it goes on.")
    output.mkdir(parents=True, exist_ok=True)
    logits = np.load(run / "train_logits.npy")
    head = Head(logits.shape[1], activation="softmax", population="images")
    moments = logn.ClassMoments(head, sample_rows=SAMPLE_ROWS, mean_probability=True)
    moments.update(logits)
    moments.save(output / "statistics.safetensors")
    np.save(output / "test_logits.npy", np.load(run / "test_logits.npy").astype(np.float16))
    np.save(output / "test_labels.npy", np.load(run / "test_labels.npy").astype(np.uint8))
    (output / "counts.json").write_text(
        json.dumps(np.load(run / "counts.npy").tolist()), encoding="utf-8", newline="\n"
    )
    layer = np.load(run / "class_layer.npz")
    np.savez_compressed(output / "class_layer.npz", weight=layer["weight"], bias=layer["bias"])
    settings = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (output / "run.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
