"""Classifiers that train in minutes, beside CIFAR-LT: what the strength of the correction for classifiers rests on.

`digits` are scikit-learn's in four rotations, thinned to 40 long-tailed classes. `pictures` are lists of `path label`
in ImageNet-LT's form, such as road signs with their natural tail. A run is a folder as `train` writes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from logn.errors import InputError

HIDDEN, BATCH = 128, 128


@dataclass(frozen=True)
class Problem:
    """Images and labels of training and test, and how many training images each class has."""

    name: str
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    @property
    def counts(self) -> Tensor:
        """Training images per class."""
        return torch.bincount(self.labels)


def digits(imbalance: float, seed: int) -> Problem:
    """40 classes, ten digits in four rotations: 120 training images down to 120 / imbalance, at least 2."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    squares = (images / 16 - 0.3).reshape(-1, 8, 8)
    turned = np.concatenate([np.rot90(squares, turn, (1, 2)).reshape(len(squares), -1) for turn in range(4)])
    labels = np.concatenate([labels + 10 * turn for turn in range(4)])
    random = np.random.default_rng(seed)
    order = random.permutation(len(labels))
    inputs, names = torch.tensor(turned[order], dtype=torch.float32), torch.tensor(labels[order])
    counts = np.maximum(2, np.round(120 * imbalance ** (-random.permutation(40) / 39))).astype(int)
    chosen = torch.cat([torch.nonzero(names == name)[: counts[name], 0] for name in range(40)])
    rest = torch.ones(len(names), dtype=torch.bool)
    rest[chosen] = False
    return Problem(f"digits, imbalance {imbalance:g}", inputs[chosen], names[chosen], inputs[rest], names[rest])


def pictures(folder: Path) -> Problem:
    """The pictures that `train.txt` and `test.txt` of a folder list, 32 x 32."""
    from PIL import Image

    parts: list[Tensor] = []
    for split in ("train", "test"):
        lines = [line.rsplit(" ", 1) for line in (folder / f"{split}.txt").read_text().splitlines()]
        if not lines:
            raise InputError(f"`{folder / split}.txt` lists no pictures.")
        pixels = [np.asarray(Image.open(folder / path).convert("RGB").resize((32, 32))) for path, _ in lines]
        images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255 - 0.5
        parts += [images, torch.tensor([int(label) for _, label in lines])]
    return Problem(folder.name, *parts)


def network(kind: str, problem: Problem) -> nn.Sequential:
    """A network whose last module is the class layer: "linear", "hidden" or "convolutions"."""
    classes = len(problem.counts)
    if kind == "linear":
        return nn.Sequential(nn.Linear(problem.images.shape[1], classes))
    if kind == "hidden":
        return nn.Sequential(nn.Linear(problem.images.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))
    layers: list[nn.Module] = []
    for channels_in, channels in ((3, 32), (32, 64), (64, HIDDEN)):
        convolution = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(HIDDEN, classes))


def train(problem: Problem, kind: str, run: Path, *, seed: int = 0, balanced: bool = False, steps: int = 500) -> None:
    """Train one network by cross-entropy or balanced softmax, and write its run."""
    torch.manual_seed(seed)
    model, counts = network(kind, problem), problem.counts
    prior = torch.log(counts / counts.sum()) if balanced else torch.zeros(len(counts))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        chosen = torch.randint(len(problem.labels), (BATCH,))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(problem.images[chosen]) + prior, problem.labels[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    run.mkdir(parents=True, exist_ok=True)
    model.eval()
    with torch.inference_mode():
        for name, images in (("train", problem.images), ("test", problem.test_images)):
            logits = torch.cat([model(batch) for batch in torch.split(images, 500)]).numpy()
            np.save(run / f"{name}_logits.npy", logits)
    np.save(run / "test_labels.npy", problem.test_labels.numpy())
    np.save(run / "counts.npy", counts.numpy())
    weight, bias = (parameter.detach().numpy() for parameter in [*model.parameters()][-2:])
    np.savez(run / "class_layer.npz", weight=weight, bias=bias)
    imbalance = float(counts.max() / counts.min())
    loss_name = "balanced_softmax" if balanced else "cross_entropy"
    settings = {"data": problem.name, "network": kind, "imbalance": imbalance, "loss": loss_name, "seed": seed}
    epochs = round(steps * BATCH / len(problem.labels))
    (run / "run.json").write_text(json.dumps({**settings, "precision": "float32", "epochs": epochs}) + "\n")
