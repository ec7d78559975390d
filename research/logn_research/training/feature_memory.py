"""LOCE's memory-augmented feature sampling: features of past regions, drawn more often for weak classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from logn.base.files import read_safetensors, write_safetensors
from logn.errors import InputError

# One number for all that is drawn, far from any that a true box of a batch has: an object is its class and its number.
ALL_DRAWN = 1 << 62


# All sixteen ways to move the corners x1, y1, x2, y2 to one side or the other.
SIGNS = tuple(product((-1.0, 1.0), repeat=4))


@dataclass(frozen=True)
class Recalled:
    """What a draw from the memory gives.

    Args:
        features: `(M, ...)`.
        classes: `(M,)`, 0..F-1.
        offsets: `(M, 4)` what the box regression should answer, where that was kept.
        instances: `(M,)` the same number for all: all that is drawn of a class counts as one object.
    """

    features: Tensor
    classes: Tensor
    offsets: Tensor | None
    instances: Tensor

    def to(self, device: torch.device) -> Recalled:
        """The same on another device."""
        offsets = None if self.offsets is None else self.offsets.to(device)
        return Recalled(self.features.to(device), self.classes.to(device), offsets, self.instances.to(device))


class FeatureMemory:
    """The last features of each class, and draws from them.

    Each process has a memory of its own. It is kept on the CPU and, at each checkpoint, in a file of its own
    (`logn_research.training.regions`): at LVIS size it is some gigabytes.

    Args:
        num_classes: Foreground classes.
        capacity: How many features of a class are kept; the oldest go first.

    Example:
        >>> memory = FeatureMemory(2, capacity=3)
        >>> memory.add(torch.arange(5.0)[:, None], torch.tensor([0, 0, 0, 0, 1]))
        >>> memory.features_of(0)[:, 0].tolist()
        [1.0, 2.0, 3.0]
    """

    def __init__(self, num_classes: int, *, capacity: int = 80) -> None:
        if num_classes < 1 or capacity < 1:
            raise InputError(
                f"Expected `num_classes` and `capacity` to be at least 1, but got {num_classes} and {capacity}."
            )
        self.num_classes, self.capacity = num_classes, capacity
        self._features: list[list[tuple[Tensor, Tensor | None]]] = [[] for _ in range(num_classes)]

    def __len__(self) -> int:
        return sum(len(features) for features in self._features)

    def add(self, features: Tensor, classes: Tensor, offsets: Tensor | None = None) -> None:
        """Keep features `(N, ...)` of regions of the given classes 0..F-1, without their gradients.

        Args:
            features: What to keep.
            classes: `(N,)`.
            offsets: `(N, 4)` what the box regression should answer for these regions; for all calls or none.
        """
        kept = features.detach().cpu()
        answers = [None] * len(kept) if offsets is None else list(offsets.detach().cpu().clone())
        for row, place, answer in zip(kept, classes.tolist(), answers, strict=True):
            own = self._features[place]
            # A view would keep the whole batch in memory; one layout for all, as they come back from a file.
            own.append((row.clone(memory_format=torch.contiguous_format), answer))
            del own[: -self.capacity]

    def content(self) -> dict[str, Tensor]:
        """All that is kept, class by class and oldest first, as `add` takes it: features, classes and offsets.

        Example:
            >>> memory, other = FeatureMemory(2), FeatureMemory(2)
            >>> memory.add(torch.arange(3.0)[:, None], torch.tensor([1, 0, 1]))
            >>> other.add(**memory.content())
            >>> other.features_of(1)[:, 0].tolist()
            [0.0, 2.0]
        """
        rows = [(place, *row) for place, own in enumerate(self._features) for row in own]
        if not rows:
            return {}
        offsets = [answer for _, _, answer in rows if answer is not None]
        kept = {
            "features": torch.stack([feature for _, feature, _ in rows]),
            "classes": torch.tensor([place for place, _, _ in rows]),
        }
        return {**kept, "offsets": torch.stack(offsets)} if offsets else kept

    def features_of(self, place: int) -> Tensor:
        """What is kept of a class, oldest first."""
        own = self._features[place]
        return torch.stack([feature for feature, _ in own]) if own else torch.empty(0)

    def probabilities(self, mean_score: Tensor) -> Tensor:
        """How probable each class is to be drawn: the weaker the likelier, whether something is kept of it or not."""
        weight = 1 / (mean_score.detach().cpu().double() + 1e-7)
        return weight / weight.sum()

    def draw(self, mean_score: Tensor, *, classes: int = 8, features_each: int = 4) -> Recalled | None:
        """Draw classes with repetition and features of each with repetition, from torch's random state.

        A class of which nothing is kept can be drawn, and brings nothing: as in the reference, the others are not
        drawn more often for it.

        Args:
            mean_score: Of each class, from `EquilibriumLoss`.
            classes: How many classes to draw.
            features_each: How many features of each.

        Returns:
            The features; None where nothing is kept of the classes that were drawn.
        """
        chosen = torch.multinomial(self.probabilities(mean_score), classes, replacement=True).tolist()
        known = [place for place in chosen if self._features[place]]
        if not known:
            return None
        drawn: list[tuple[Tensor, Tensor | None]] = []
        for place in known:
            own = self._features[place]
            drawn += [own[row] for row in torch.randint(len(own), (features_each,)).tolist()]
        offsets = [answer for _, answer in drawn if answer is not None]
        places = torch.tensor(known).repeat_interleave(features_each)
        return Recalled(
            torch.stack([feature for feature, _ in drawn]),
            places,
            torch.stack(offsets) if offsets else None,
            torch.full_like(places, ALL_DRAWN),
        )


def jittered_boxes(boxes: Tensor, image_size: Sequence[int], *, spread: float = 1 / 6) -> Tensor:
    """Sixteen boxes around each given one, inside the image: one for every choice of directions of the four sides.

    Args:
        boxes: `(N, 4)` corners.
        image_size: Height and width of the image.
        spread: Each side moves by a random share up to this of the box's width or height.

    Returns:
        `(N, 16, 4)`, from torch's random state.

    Example:
        >>> jittered_boxes(torch.tensor([[10.0, 10.0, 40.0, 40.0]]), (50, 50)).shape
        torch.Size([1, 16, 4])
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    signs = torch.tensor(SIGNS, dtype=boxes.dtype, device=boxes.device)
    share = torch.rand(len(boxes), len(SIGNS), 4, dtype=boxes.dtype, device=boxes.device) * spread
    moved = boxes[:, None] + signs * share * sides[:, None]
    height, width = image_size
    limit = torch.tensor([width, height, width, height], dtype=boxes.dtype, device=boxes.device)
    return torch.minimum(moved.clamp(min=0), limit)


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
        raise InputError(f"The feature memory of the run, `{path}`, is missing: start over (`--fresh`).")
    arrays, _ = read_safetensors(path, expected_format=FORMAT, schema=SCHEMA)
    if arrays:
        memory.add(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def remove_memories(folder: Path, *, but: int | None = None) -> None:
    """Delete the memories of all processes at other iterations than `but`."""
    for path in folder.glob("feature_memory_*_at_*.safetensors"):
        if path.stem.rpartition("_")[2] != str(but):
            path.unlink(missing_ok=True)
