"""Class heads on cached features, trained with long-tailed labels: minutes on one core."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

import logn
from logn.predictions.store import PredictionWriter, StoreHeader
from logn.statistics.head import Head
from logn_research.datasets.samplers import RepeatFactorSampler
from logn_research.estimators import MovingAverage
from logn_research.strong.features import PROPOSALS, SPLITS, FeatureCache, read_split
from logn_research.training.layers import class_layer

HIDDEN = 512
IMAGES, REGIONS, FOREGROUND = 16, 64, 16  # of a batch; regions of an image; of these at most so many objects
ITERATIONS, RATE = 2000, 0.1
# Where the processor multiplies bfloat16, the hidden layers are twice as fast in it; elsewhere much slower.
PRECISION = torch.bfloat16 if torch.cpu.get_capabilities().get("avx512_bf16") else torch.float32
# What the official moving average keeps of its start on LVIS: 100,170 images on four processes.
KEPT_OF_START = (1 - 5e-5) ** (100_170 / 4)
RFS_THRESHOLD = 0.01  # share of the images below which a class is repeated: 4,736 images, not LVIS's 100,000


@dataclass(frozen=True)
class HeadSpec:
    """One head: its class layer, activation, sampler and seed.

    Example:
        >>> HeadSpec("cosine", "softmax", "rfs", 1).name
        'softmax-cosine-rfs-1'
    """

    layer: str = "linear"
    activation: str = "softmax"
    sampler: str = "random"
    seed: int = 0

    @property
    def name(self) -> str:
        """How its folder is called."""
        return f"{self.activation}-{self.layer}-{self.sampler}-{self.seed}"


SOFTMAX_HEADS = tuple(
    HeadSpec(layer, "softmax", sampler, seed)
    for seed, layer, sampler in product((0, 1), ("linear", "cosine"), ("random", "rfs"))
)
SIGMOID_HEADS = tuple(HeadSpec("linear", "sigmoid", sampler) for sampler in ("random", "rfs"))


class LabelledProposals:
    """The proposals of the training images with the class of the object that each overlaps by half, 0 for none."""

    def __init__(self, data: Path, folder: Path) -> None:
        content = read_split(data, "train")
        self.images = content["images"]
        self.names = tuple(category["name"] for category in sorted(content["categories"], key=lambda c: c["id"]))
        self.category_ids = tuple(sorted(category["id"] for category in content["categories"]))
        self.cache = FeatureCache(folder, "train", len(self.images))
        if self.cache.done < len(self.images):
            raise FileNotFoundError(f"The features in {folder} are not complete: run the step `features` again.")
        column = {category: index + 1 for index, category in enumerate(self.category_ids)}
        objects: dict[int, list[tuple[list[float], int]]] = {}
        for item in content["annotations"]:
            objects.setdefault(item["image_id"], []).append((item["bbox"], column[item["category_id"]]))
        self.objects = [objects.get(image["id"], []) for image in self.images]
        self.labels = np.stack([self._assign(index) for index in range(len(self.images))])
        self.used = self.cache.objectness[:] > 0

    def _assign(self, index: int) -> npt.NDArray[np.int64]:
        found = np.zeros(PROPOSALS, np.int64)
        if not self.objects[index]:
            return found
        boxes = np.array([box for box, _ in self.objects[index]], np.float64)
        classes = np.array([label for _, label in self.objects[index]])
        overlap = _iou(self.cache.boxes[index], np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1))
        best = overlap.argmax(axis=1)
        return np.where(overlap.max(axis=1) >= 0.5, classes[best], found)

    def image_order(self, sampler: str, seed: int) -> Iterator[int]:
        """Images without end, each epoch in a new order."""
        labels = [np.array([label - 1 for _, label in items], np.int64) for items in self.objects]
        rfs = RepeatFactorSampler(labels, len(self.names), threshold=RFS_THRESHOLD) if sampler == "rfs" else None
        for epoch in range(10**6):
            generator = np.random.default_rng((seed, epoch))
            yield from generator.permutation(len(self.images)) if rfs is None else rfs.indices(epoch, seed=seed)


def _iou(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (high - low).clip(0).prod(-1)
    area = [(boxes[:, 2:] - boxes[:, :2]).clip(0).prod(-1) for boxes in (first, second)]
    result: npt.NDArray[np.float64] = shared / np.maximum(area[0][:, None] + area[1] - shared, 1e-9)
    return result


class Standardize(nn.Module):
    """Features with a mean of 0 and a standard deviation of 1: a public detector's maps differ in scale."""

    mean: Tensor
    factor: Tensor

    def __init__(self, features: npt.NDArray[Any]) -> None:
        super().__init__()
        values = torch.from_numpy(np.asarray(features, np.float32))
        self.register_buffer("mean", values.mean(0))
        self.register_buffer("factor", 1.0 / values.std(0).clamp_min(1e-3))

    def forward(self, features: Tensor) -> Tensor:
        """Standardise `(rows, numbers)`."""
        return (features - self.mean) * self.factor


def make_head(spec: HeadSpec, sample: npt.NDArray[Any], num_classes: int) -> nn.Module:
    """Two hidden layers and the class layer; a softmax has the background in column 0.

    Args:
        spec: What kind of head.
        sample: Features `(rows, numbers)` by which the input is standardised.
        num_classes: Foreground classes.
    """
    torch.manual_seed(spec.seed)
    width = sample.shape[1]
    layers: list[nn.Module] = [nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    columns = num_classes + (spec.activation == "softmax")
    last = class_layer(spec.layer, HIDDEN, columns, temperature=20.0)
    if spec.activation == "sigmoid":
        nn.init.constant_(last.bias, -4.6)  # type: ignore[arg-type]  # a score of 0.01, as dense detectors start
    return nn.Sequential(Standardize(sample), *layers, last)


def train_head(spec: HeadSpec, data: LabelledProposals, iterations: int | None = None) -> nn.Module:
    """Train one head, by default for `ITERATIONS`; the same on every run."""
    iterations = ITERATIONS if iterations is None else iterations
    sample = data.cache.features[:: max(1, len(data.images) // 200)].reshape(-1, data.cache.width)
    head = make_head(spec, sample, len(data.names))
    optimizer = torch.optim.SGD(head.parameters(), RATE, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    order, generator = data.image_order(spec.sampler, spec.seed), np.random.default_rng(spec.seed)
    for _ in range(iterations):
        features, labels = _batch(data, order, generator)
        optimizer.zero_grad()
        loss = _loss(_forward(head, features), labels, spec.activation)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(head.parameters(), 10.0)
        optimizer.step()
        schedule.step()
    return head.eval()


def _forward(head: nn.Module, features: Tensor) -> Tensor:
    """The logits; the class layer is always computed in full precision."""
    with torch.autocast("cpu", PRECISION, enabled=PRECISION is not torch.float32):
        hidden = head[:-1](features)  # type: ignore[index]
    logits: Tensor = head[-1](hidden.float())  # type: ignore[index]
    return logits


def sampled_regions(data: LabelledProposals, image: int, generator: np.random.Generator) -> npt.NDArray[np.intp]:
    """The regions of an image that a step of training sees: at most a quarter of them objects."""
    objects = generator.permutation(np.flatnonzero(data.labels[image] > 0))[:FOREGROUND]
    others = np.flatnonzero((data.labels[image] == 0) & data.used[image])
    return np.sort(np.concatenate([objects, generator.permutation(others)[: REGIONS - len(objects)]]))


def _batch(data: LabelledProposals, order: Iterator[int], generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    features, labels = [], []
    for _ in range(IMAGES):
        image = int(next(order))
        rows = sampled_regions(data, image, generator)
        features.append(data.cache.features[image, rows])
        labels.append(data.labels[image, rows])
    return torch.from_numpy(np.concatenate(features)).to(PRECISION), torch.from_numpy(np.concatenate(labels))


def _loss(logits: Tensor, labels: Tensor, activation: str) -> Tensor:
    if activation == "softmax":
        return functional.cross_entropy(logits, labels)
    wanted = functional.one_hot(labels, logits.shape[1] + 1)[:, 1:].float()
    return functional.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / len(labels)


def write_head(
    spec: HeadSpec,
    head: nn.Module,
    data: LabelledProposals,
    root: Path,
    folder: Path,
    splits: Sequence[str] = SPLITS[1:],
) -> None:
    """Write statistics over all training proposals, those of the paper, and dev and test as prediction stores."""
    background = 0 if spec.activation == "softmax" else None
    names = ("background", *data.names) if background == 0 else data.names
    columns = Head(names=names, background=background, activation=spec.activation, population="proposals")
    moments = logn.ClassMoments(columns, sample_rows=20_000, mean_probability=True)
    momentum = 1 - KEPT_OF_START ** (1 / len(data.images))
    sampled, moving, official = (
        logn.ClassMoments(columns),
        MovingAverage(columns, momentum=momentum),
        MovingAverage(columns, momentum=momentum),
    )
    generator = np.random.default_rng(spec.seed)
    for index in range(len(data.images)):
        logits = _logits(head, data.cache.features[index])
        regions, used = logits[sampled_regions(data, index, generator)], logits[data.used[index]]
        moments.update(used)
        moving.update(used)
        sampled.update(regions)
        official.update(regions)
    folder.mkdir(parents=True, exist_ok=True)
    others = {"sampled regions": sampled, "moving average": moving.moments(), "official": official.moments()}
    for name, statistics in others.items():
        statistics.save(folder / f"statistics, {name}.safetensors")
    header = StoreHeader(columns, dtype="float32", category_ids=data.category_ids)
    for split in splits:
        images = read_split(root, split)["images"]
        cache = FeatureCache(data_folder(folder), split, len(images))
        with PredictionWriter(folder / split, header) as writer:
            for index, image in enumerate(images):
                if image["id"] not in writer.image_ids:
                    used = cache.objectness[index] > 0
                    boxes, logits = cache.boxes[index, used], _logits(head, cache.features[index, used])
                    writer.append(image["id"], logn.Proposals(boxes, logits, image["height"], image["width"]))
    moments.save(folder / "statistics.safetensors")  # last: it says that the head is complete


def data_folder(head: Path) -> Path:
    """Where the features of a head's detector are: `runs/DETECTOR/heads/NAME` -> `runs/DETECTOR`."""
    return head.parent.parent


@torch.inference_mode()
def _logits(head: nn.Module, features: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    result: npt.NDArray[np.float32] = _forward(head, torch.from_numpy(np.asarray(features)).to(PRECISION)).numpy()
    return result


def train_heads(
    specs: tuple[HeadSpec, ...],
    data: Path,
    folder: Path,
    *,
    iterations: int | None = None,
    splits: Sequence[str] = SPLITS[1:],
) -> None:
    """Train and write the heads that are not there yet."""
    labelled: LabelledProposals | None = None
    for spec in specs:
        place = folder / "heads" / spec.name
        if (place / "statistics.safetensors").exists():
            continue
        labelled = labelled or LabelledProposals(data, folder)
        head = train_head(spec, labelled, iterations)
        write_head(spec, head, labelled, data, place, splits)
        (place / "head.json").write_text(json.dumps({"iterations": iterations or ITERATIONS, **vars(spec)}))
        print(f"{folder.name}: {spec.name}", flush=True)
