"""The batches of a run: a function of the seed and the number of the iteration, never of a worker's state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from logn.data.images import ImageArray, import_pillow
from logn.errors import InputError
from logn_research.datasets.labelled_images import LabelledImages
from logn_research.datasets.sample import Sample
from logn_research.datasets.sample_dataset import SampleDataset
from logn_research.datasets.samplers import ImageSampler
from logn_research.training.augmentation import Augmentation, fitted_size, to_tensors

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


class TrainingBatches(Dataset[Any]):
    """The batch of each iteration, or this process's share of it, as a dataset over iterations."""

    def iterate(self, start: int, stop: int, *, workers: int = 0) -> Iterator[Any]:
        """The batches of iterations `start` to `stop - 1`, made ahead by `workers` processes if there are any."""
        loader: DataLoader[Any] = DataLoader(
            self,
            batch_size=None,
            sampler=range(start, stop),
            num_workers=workers,
            generator=torch.Generator(),  # its own, so that making the loader leaves torch's random state alone
        )
        return iter(loader)


class DetectorBatches(TrainingBatches):
    """The batches of a detector.

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


FloatArray = npt.NDArray[np.float64]
CROP_TRIES = 10
# Random numbers of an image: two for each try of a crop, two for its place, one for the flip, three for the colours.
DRAWS = 2 * CROP_TRIES + 2 + 1 + 3
LEAST_ASPECT = 3 / 4
# How the eye weighs red, green and blue.
GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class ImageAugmentation:
    """What is done to training images, in this order: crop, shift, flip, change of colours.

    Args:
        least_area: Cut out a part of at least this share of the image, of an aspect from 3/4 to 4/3, and stretch it;
            None takes the middle, as at test time.
        shift: Most pixels to move the image, in each direction; its edge is repeated.
        flip: Chance of a horizontal flip.
        colour: Largest relative change of brightness, contrast and saturation.
    """

    least_area: float | None = None
    shift: int = 0
    flip: float = 0.0
    colour: float = 0.0

    def __post_init__(self) -> None:
        if self.least_area is not None and not 0 < self.least_area <= 1:
            raise InputError(f"Expected `least_area` to be a share above 0, up to 1, but got {self.least_area}.")
        if not 0 <= self.flip <= 1:
            raise InputError(f"Expected `flip` to be a chance from 0 to 1, but got {self.flip}.")
        if not 0 <= self.colour < 1:
            raise InputError(f"Expected `colour` to be from 0 to below 1, but got {self.colour}.")


def middle(image: ImageArray, size: int, resize: int) -> ImageArray:
    """The square in the middle of an image whose shorter side was brought to `resize`.

    Example:
        >>> middle(np.zeros((40, 80, 3), np.uint8), size=28, resize=32).shape
        (28, 28, 3)
    """
    height, width = image.shape[:2]
    if min(height, width) != resize:
        height, width = fitted_size((height, width), resize, 10**9)
        image = _stretched(image, (0, 0, image.shape[1], image.shape[0]), width, height)
    top, left = (height - size) // 2, (width - size) // 2
    return image[top : top + size, left : left + size]


def random_crop(image: ImageArray, size: int, least_area: float, draws: FloatArray) -> ImageArray:
    """Cut a random part out of an image and stretch it to a square; the middle where none of ten parts fits.

    Args:
        image: `(H, W, 3)`.
        size: Side of the square.
        least_area: Smallest share of the image.
        draws: Random numbers in 0..1: two for each try, then two for the place.
    """
    height, width = image.shape[:2]
    for area_draw, aspect_draw in draws[: 2 * CROP_TRIES].reshape(-1, 2):
        area = height * width * (least_area + (1 - least_area) * area_draw)
        aspect = math.exp(math.log(LEAST_ASPECT) * (1 - 2 * aspect_draw))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            top = int(draws[-2] * (height - high + 1))
            left = int(draws[-1] * (width - wide + 1))
            return _stretched(image, (left, top, left + wide, top + high), size, size)
    return middle(image, size, size)


def _stretched(image: ImageArray, box: tuple[int, int, int, int], width: int, height: int) -> ImageArray:
    pillow = import_pillow()
    picture = pillow.fromarray(image).resize((width, height), pillow.Resampling.BILINEAR, box=box)
    return np.asarray(picture, np.uint8)


def shift_and_flip(images: ImageArray, shifts: npt.NDArray[np.int64], flipped: npt.NDArray[np.bool_]) -> ImageArray:
    """Move each of `(B, H, W, 3)` images down and right by its `(B, 2)` shifts, edges repeated, and mirror some.

    Example:
        >>> image = np.arange(3, dtype=np.uint8).reshape(1, 1, 3, 1).repeat(3, axis=3)
        >>> shift_and_flip(image, np.array([[0, 1]]), np.array([False]))[0, 0, :, 0].tolist()
        [0, 0, 1]
    """
    count, height, width = images.shape[:3]
    rows = np.clip(np.arange(height) - shifts[:, :1], 0, height - 1)
    columns = np.clip(np.arange(width) - shifts[:, 1:], 0, width - 1)
    columns[flipped] = columns[flipped, ::-1]
    moved: ImageArray = images[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return moved


def as_batch(images: ImageArray) -> Tensor:
    """Images `(B, H, W, 3)` of 0..255 as a tensor `(B, 3, H, W)` of 0..1, channels last in memory.

    Example:
        >>> as_batch(np.full((2, 4, 4, 3), 255, np.uint8)).max()
        tensor(1.)
    """
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float().div_(255)


def change_colours(images: Tensor, amount: float, draws: FloatArray) -> Tensor:
    """Change brightness, contrast and saturation of each of `(B, 3, H, W)` images by the `(B, 3)` random numbers.

    Example:
        >>> grey = torch.full((1, 3, 2, 2), 0.5)
        >>> change_colours(grey, 0.4, np.array([[1.0, 0.5, 0.5]])).unique()  # brightness times 1.4
        tensor([0.7000])
    """
    factors = torch.from_numpy(1 + amount * (2 * draws - 1)).to(images)[:, :, None, None, None]
    weights = torch.tensor(GREY).to(images)[:, None, None]
    images = (images * factors[:, 0]).clamp_(0, 1)
    grey = (images * weights).sum(1, keepdim=True).mean((2, 3), keepdim=True)
    images = ((images - grey) * factors[:, 1] + grey).clamp_(0, 1)
    grey = (images * weights).sum(1, keepdim=True)
    return ((images - grey) * factors[:, 2] + grey).clamp_(0, 1)


def prepared_batch(images: LabelledImages, indices: Sequence[int], *, size: int, resize: int) -> Tensor:
    """Images as a classifier sees them at test time, `(B, 3, size, size)` in 0..1."""
    return as_batch(_middles(images, indices, size, resize))


def _middles(images: LabelledImages, indices: Sequence[int], size: int, resize: int) -> ImageArray:
    if isinstance(images.pixels, np.ndarray) and images.pixels.shape[1:3] == (size, size) == (resize, resize):
        return images.stack(indices)  # nothing to cut, so no image needs to be handled by itself
    return np.stack([middle(images.image(index), size, resize) for index in indices])


@dataclass(frozen=True)
class ClassifierBatch:
    """Images `(B, 3, S, S)` in 0..1, their labels, and their places in the data set."""

    images: Tensor
    targets: Tensor
    image_ids: list[int]

    def to(self, device: torch.device) -> ClassifierBatch:
        """The same batch on a device."""
        return ClassifierBatch(self.images.to(device), self.targets.to(device), self.image_ids)


class ClassifierBatches(TrainingBatches):
    """The training batches of a classifier.

    Args:
        stream: Which images.
        images: Where they are.
        augmentation: What is done to them.
        size: Side of the square that the network sees.
        resize: Shorter side of an image before the middle is cut out of it.
        rank: Number of this process.
        world_size: How many processes share a batch.
    """

    def __init__(
        self,
        stream: ImageStream,
        images: LabelledImages,
        augmentation: ImageAugmentation,
        *,
        size: int,
        resize: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.stream, self.images, self.augmentation = stream, images, augmentation
        self.size, self.resize, self.rank, self.world_size = size, resize, rank, world_size

    def __getitem__(self, iteration: int) -> ClassifierBatch:
        everyone = self.stream.indices(iteration)
        # Drawn for the whole batch, so that an image's numbers do not depend on the process that shows it.
        draws = np.random.default_rng((self.stream.seed, iteration, len(everyone))).random((len(everyone), DRAWS))
        mine = slice(self.rank, None, self.world_size)
        indices = everyone[mine].tolist()
        return ClassifierBatch(
            self._pictures(indices, draws[mine]), torch.from_numpy(self.images.labels[indices]), indices
        )

    def _pictures(self, indices: list[int], draws: FloatArray) -> Tensor:
        how = self.augmentation
        place, flip, colour = draws[:, -6:-4], draws[:, -4], draws[:, -3:]
        if how.least_area is None:
            pictures = _middles(self.images, indices, self.size, self.resize)
        else:
            pictures = np.stack(
                [
                    random_crop(self.images.image(index), self.size, how.least_area, row[: 2 * CROP_TRIES + 2])
                    for index, row in zip(indices, draws, strict=True)
                ]
            )
        if how.shift or how.flip:
            shifts = np.floor(place * (2 * how.shift + 1)).astype(np.int64) - how.shift
            pictures = shift_and_flip(pictures, shifts, flip < how.flip)
        batch = as_batch(pictures)
        return change_colours(batch, how.colour, colour) if how.colour else batch
