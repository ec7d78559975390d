"""The batches of a run: a function of the seed and the number of the iteration, never of a worker's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from logn_research.datasets.sample import Sample
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.datasets.samplers import ImageSampler
from logn_research.training.augmentation import Augmentation, to_tensors

IntArray = npt.NDArray[np.int64]
# Decoded images of this many bytes are kept in memory; more are read again each time.
CACHE_BYTES = 2**31


@dataclass(frozen=True)
class Batch:
    """Images as float tensors `(3, H, W)` in 0..1, and targets as torchvision's detectors take them."""

    images: list[Tensor]
    targets: list[dict[str, Any]]

    @property
    def image_ids(self) -> list[int]:
        """The ids of the images in the annotation file."""
        return [int(target["image_id"]) for target in self.targets]

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        targets = [
            {name: value.to(device) if isinstance(value, Tensor) else value for name, value in target.items()}
            for target in self.targets
        ]
        return Batch([image.to(device) for image in self.images], targets)


class ImageStream:
    """The endless row of images that a sampler gives, epoch after epoch, cut into batches.

    A batch may hold the end of one epoch and the start of the next, so every iteration has as many images.

    Args:
        sampler: Gives the images of each epoch.
        batch: Images per iteration.
        seed: Of the order.
    """

    def __init__(self, sampler: ImageSampler, batch: int, seed: int) -> None:
        self.sampler, self.batch, self.seed = sampler, batch, seed
        self._starts = [0]  # where each epoch that was drawn so far begins
        self._epoch: tuple[int, IntArray] = (-1, np.empty(0, np.int64))

    def indices(self, iteration: int) -> IntArray:
        """The dataset positions of one iteration, all processes together."""
        place, chosen = iteration * self.batch, []
        epoch = self._epoch_at(place)
        missing = self.batch
        while missing:
            order = self._order(epoch)
            part = order[place - self._starts[epoch] :][:missing]
            chosen.append(part)
            missing -= len(part)
            place += len(part)
            epoch += 1
        return np.concatenate(chosen)

    def _epoch_at(self, place: int) -> int:
        while self._starts[-1] <= place:
            self._order(len(self._starts) - 1)
        return int(np.searchsorted(self._starts, place, side="right")) - 1

    def _order(self, epoch: int) -> IntArray:
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self.sampler.indices(epoch, self.seed))
            if len(self._starts) == epoch + 1:
                self._starts.append(self._starts[-1] + len(self._epoch[1]))
        return self._epoch[1]


class SampleCache:
    """Decoded samples in memory, masks as bits, as far as the room reaches.

    Args:
        dataset: Where samples come from.
        room: Bytes to use at most.
        masks: Whether the masks are kept too; without them they are read again whenever they are needed.
    """

    def __init__(self, dataset: SampleDataset, room: int = CACHE_BYTES, *, masks: bool = True) -> None:
        self.dataset, self.room, self.masks = dataset, room, masks
        self._samples: dict[int, Sample] = {}

    def __getitem__(self, index: int) -> Sample:
        if index in self._samples:
            return self._samples[index]
        sample = self.dataset[index]
        if self.room <= 0:
            return sample
        bits = sample.image.nbytes // 24 if self.masks else 0
        sample = _with_packed_masks(sample) if self.masks else sample
        self.room -= sample.image.nbytes + len(sample.boxes) * (bits + 64)
        self._samples[index] = sample
        return sample


def _with_packed_masks(sample: Sample) -> Sample:
    masks = sample.masks()
    bits, shape = np.packbits(masks), masks.shape

    def unpack() -> npt.NDArray[np.bool_]:
        count = int(np.prod(shape))
        return np.unpackbits(bits, count=count).view(np.bool_).reshape(shape)

    return replace(sample, mask_source=unpack)


class DetectorBatches(Dataset[Batch]):
    """The batch of each iteration, or this process's share of it, as a dataset over iterations.

    Args:
        stream: Which images.
        read: Gives the sample at a dataset position.
        augmentation: What is done to it.
        rank: Number of this process.
        world_size: How many processes share a batch.
        masks: Whether the targets have masks, which are expensive and not always used.
    """

    def __init__(
        self,
        stream: ImageStream,
        read: Callable[[int], Sample],
        augmentation: Augmentation,
        *,
        rank: int = 0,
        world_size: int = 1,
        masks: bool = True,
    ) -> None:
        self.stream, self.read, self.augmentation = stream, read, augmentation
        self.rank, self.world_size, self.masks = rank, world_size, masks

    def __getitem__(self, iteration: int) -> Batch:
        indices = self.stream.indices(iteration)
        images, targets = [], []
        for place in range(self.rank, len(indices), self.world_size):
            generator = np.random.default_rng((self.stream.seed, iteration, place))
            sample = self.augmentation(self.read(int(indices[place])), generator)
            image, target = to_tensors(sample, masks=self.masks)
            images.append(image)
            targets.append(target)
        return Batch(images, targets)

    def iterate(self, start: int, stop: int, *, workers: int = 0) -> Iterator[Batch]:
        """The batches of iterations `start` to `stop - 1`, made ahead by `workers` processes if there are any."""
        loader: DataLoader[Batch] = DataLoader(
            self,
            batch_size=None,
            sampler=range(start, stop),
            num_workers=workers,
            generator=torch.Generator(),  # its own, so that making the loader leaves torch's random state alone
        )
        return iter(loader)
