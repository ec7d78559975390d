"""Train ResNet-32 on CIFAR-LT by the recipe of LDAM (Cao et al., NeurIPS 2019), resumable.

Imports torch and NumPy only, so that a run can go on whatever becomes of the rest. A run is a folder: `state.pt` while
it trains, then `test_logits.npy`, `train_logits.npy`, the labels, the class counts and the class layer. The images come
from one `.npz` file with `train_images` (N, 32, 32, 3) in uint8, `train_labels`, `test_images` and `test_labels`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
EPOCHS, BATCH, RATE, MOMENTUM, WEIGHT_DECAY = 200, 128, 0.1, 0.9, 2e-4
WARM_UP, MILESTONES = 5, (0.8, 0.9)
# Deferred: cross-entropy until the rate first falls, balanced softmax from then on.
LOSSES = ("cross_entropy", "balanced_softmax", "deferred_balanced_softmax")


def long_tailed_counts(num_classes: int, most: int, imbalance: float) -> list[int]:
    """The exponential profile: `most` images of the first class down to `most / imbalance` of the last.

    >>> long_tailed_counts(10, 5000, 100)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    return [int(most * (1 / imbalance) ** (index / (num_classes - 1))) for index in range(num_classes)]


def long_tailed_subset(labels: np.ndarray, counts: list[int], seed: int) -> np.ndarray:
    """The images of each class that a seed draws, as sorted indices."""
    generator = np.random.default_rng(seed)
    chosen = [
        generator.choice(np.flatnonzero(labels == index), count, replace=False) for index, count in enumerate(counts)
    ]
    return np.sort(np.concatenate(chosen))


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters (option A of ResNet): subsample, pad the channels with 0."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.extra = stride, channels - channels_in

    def forward(self, images: Tensor) -> Tensor:
        """The block's features."""
        shortcut = images[:, :, :: self.stride, :: self.stride]
        if self.extra:
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        hidden = functional.relu(self.bn1(self.conv1(images)))
        return functional.relu(self.bn2(self.conv2(hidden)) + shortcut)


class ResNet32(nn.Module):
    """ResNet-32 for images of 32 x 32: three stages of five blocks with 16, 32 and 64 channels."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        blocks, channels_in = [], 16
        for channels, stride in ((16, 1), (32, 2), (64, 2)):
            for number in range(5):
                blocks.append(Block(channels_in, channels, stride if number == 0 else 1))
                channels_in = channels
        self.blocks, self.linear = nn.Sequential(*blocks), nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        features = self.blocks(functional.relu(self.bn1(self.conv1(images))))
        logits: Tensor = self.linear(features.mean((2, 3)))
        return logits


def learning_rate(epoch: int, epochs: int = EPOCHS) -> float:
    """The rate of an epoch, counted from 0: five of warm-up, then 0.1, x 0.01 after 160 of 200 and again after 180."""
    if epoch < WARM_UP:
        return RATE * (epoch + 1) / WARM_UP
    return RATE * 0.01 ** sum(epoch >= milestone * epochs for milestone in MILESTONES)


def first_balanced_epoch(loss: str, epochs: int = EPOCHS) -> float:
    """The first epoch that a loss trains by balanced softmax; infinite for none.

    >>> [first_balanced_epoch(loss) for loss in LOSSES]
    [inf, 0, 160.0]
    """
    if loss == "cross_entropy":
        return math.inf
    return MILESTONES[0] * epochs if loss == "deferred_balanced_softmax" else 0


def prepared(images: Tensor) -> Tensor:
    """Pictures (N, 32, 32, 3) in uint8 as normalised input (N, 3, 32, 32), channels last in memory."""
    scaled = (images.float() / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    return scaled.permute(0, 3, 1, 2)


def augmented(padded: Tensor, generator: torch.Generator) -> Tensor:
    """A random crop of 32 x 32 from pictures padded by 4, half of them mirrored."""
    count = len(padded)
    top, left = (torch.randint(0, 9, (count, 1), generator=generator) for _ in range(2))
    rows, columns = top + torch.arange(32), left + torch.arange(32)
    mirrored = torch.rand((count, 1), generator=generator) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def logits_of(model: nn.Module, images: Tensor) -> np.ndarray:
    """The logits of pictures in float32, without augmentation."""
    model.eval()
    with torch.inference_mode():
        return torch.cat([model(prepared(batch)) for batch in torch.split(images, 500)]).numpy()


def save(path: Path, state: object) -> None:
    """Write the state in one step, so that an interruption leaves the earlier one."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def train(data: Path, run: Path, imbalance: float, loss: str, seed: int, precision: str, epochs: int = EPOCHS) -> None:
    """Train one run to its end, from its last epoch where there is one, and write its logits."""
    if loss not in LOSSES:
        raise SystemExit(f"Error: Expected `loss` to be one of {LOSSES}, but got {loss!r}.")
    run.mkdir(parents=True, exist_ok=True)
    if (run / "test_logits.npy").exists():
        return
    arrays = np.load(data)
    all_labels, num_classes = arrays["train_labels"], int(arrays["train_labels"].max()) + 1
    counts = long_tailed_counts(num_classes, int(np.bincount(all_labels).max()), imbalance)
    subset = long_tailed_subset(all_labels, counts, seed)
    images, labels = torch.from_numpy(arrays["train_images"][subset]), torch.from_numpy(all_labels[subset]).long()
    padded = functional.pad(images, (0, 0, 4, 4, 4, 4))
    # Padding is by black pixels, as torchvision's RandomCrop does before the normalisation.
    prior, balanced_from = torch.log(torch.tensor(counts, dtype=torch.float32)), first_balanced_epoch(loss, epochs)
    torch.manual_seed(seed)
    model = ResNet32(num_classes).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), RATE, MOMENTUM, weight_decay=WEIGHT_DECAY)
    first, state = 0, run / "state.pt"
    if state.exists():
        saved = torch.load(state, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
    for epoch in range(first, epochs):
        began, total = time.perf_counter(), 0.0
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(epoch, epochs)
        shift = prior if epoch >= balanced_from else torch.zeros(())
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        model.train()
        for batch in torch.split(torch.randperm(len(labels), generator=generator), BATCH):
            inputs = prepared(augmented(padded[batch], generator))
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                logits = model(inputs)
            value = functional.cross_entropy(logits.float() + shift, labels[batch])
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(value.detach()) * len(batch)
        save(state, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch})
        seconds = time.perf_counter() - began
        print(
            json.dumps({"epoch": epoch, "loss": round(total / len(labels), 4), "seconds": round(seconds, 1)}),
            flush=True,
        )
    finish(run, model, arrays, images, labels, counts)
    settings = {"imbalance": imbalance, "loss": loss, "seed": seed, "precision": precision, "epochs": epochs}
    (run / "run.json").write_text(json.dumps({"data": data.stem, **settings}) + "\n")


def finish(
    run: Path, model: ResNet32, arrays: Mapping[str, np.ndarray], images: Tensor, labels: Tensor, counts: list[int]
) -> None:
    """Write what the tables need; the test logits last, since they mark a finished run."""
    np.save(run / "train_logits.npy", logits_of(model, images))
    np.save(run / "train_labels.npy", labels.numpy().astype(np.int16))
    np.save(run / "test_labels.npy", arrays["test_labels"].astype(np.int16))
    np.save(run / "counts.npy", np.array(counts))
    weight, bias = model.linear.weight.detach().numpy(), model.linear.bias.detach().numpy()
    np.savez(run / "class_layer.npz", weight=weight, bias=bias)
    test_logits = logits_of(model, torch.from_numpy(arrays["test_images"]))
    print(f"accuracy {100 * np.mean(test_logits.argmax(1) == arrays['test_labels']):.2f}", flush=True)
    np.save(run / "test_logits.npy", test_logits)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the images as one .npz file")
    parser.add_argument("run", type=Path, help="folder of the run; an unfinished one goes on")
    parser.add_argument("--imbalance", type=float, default=100)
    parser.add_argument("--loss", choices=LOSSES, default=LOSSES[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="fewer for a trial")
    options = parser.parse_args()
    train(**vars(options))


if __name__ == "__main__":
    main()
