"""Which regions a detection head is trained on, what it should answer for them, and LOCE's memory of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection._utils import BalancedPositiveNegativeSampler, BoxCoder, Matcher
from torchvision.ops import batched_nms, box_iou, roi_align

from logn.errors import InputError
from logn.files import read_safetensors, write_safetensors
from logn_research.losses.equilibrium import EquilibriumLoss

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
        raise InputError(
            f"Expected the feature memory of the run to be in `{path}`, but there is no such file; start over"
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


Sizes = Sequence[tuple[int, int]]


def size_of(image: Tensor) -> tuple[int, int]:
    """Height and width of an image `(..., H, W)`.

    Example:
        >>> size_of(torch.zeros(3, 4, 5))
        (4, 5)
    """
    return int(image.shape[-2]), int(image.shape[-1])


def clip(boxes: Sequence[Tensor], image_shapes: Sizes) -> list[Tensor]:
    """Keep boxes `(..., 4)` of each image inside it."""
    clipped = []
    for regions, (height, width) in zip(boxes, image_shapes, strict=True):
        limit = torch.tensor([width, height, width, height], dtype=regions.dtype, device=regions.device)
        clipped.append(torch.minimum(regions.clamp(min=0), limit))
    return clipped


def best_boxes(
    boxes: Tensor, scores: Tensor, *, score: float, iou: float, max_boxes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Threshold, suppression class by class, and a limit, for scores of any kind.

    Args:
        boxes: `(N, F, 4)`.
        scores: `(N, F)`.
        score: Scores above this are kept.
        iou: Boxes of a class that overlap a better one by more are dropped.
        max_boxes: How many boxes an image may have.

    Returns:
        Boxes, scores and classes 0..F-1, best first.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 8.0]])[:, None].repeat(1, 2, 1)
        >>> best_boxes(boxes, torch.tensor([[0.9, 0.0], [0.8, 0.3]]), score=0.1, iou=0.5, max_boxes=10)[1]
        tensor([0.9000, 0.3000])
    """
    rows, classes = torch.where(scores > score)
    found, values = boxes[rows, classes], scores[rows, classes]
    wide = ((found[:, 2:] - found[:, :2]) >= 1e-2).all(1)
    found, values, classes = found[wide], values[wide], classes[wide]
    keep = batched_nms(found, values, classes, iou)[:max_boxes]
    return found[keep], values[keep], classes[keep]


Target = dict[str, Any]
# Takes the logits (N, C) and the column of the true class (N,), background 0, and gives one number.
# One whose `uses_instances` is true is also given the object that each region belongs to.
ClassificationLoss = Callable[..., Tensor]


@dataclass(frozen=True)
class RegionSamples:
    """The sampled regions of a batch: one tensor per image in each list."""

    boxes: list[Tensor]
    labels: list[Tensor]  # column of the class, 0 = background
    truth_index: list[Tensor]  # which true box of the image it is matched with (0 where there is none)
    is_truth: list[Tensor]  # True where the region is itself a true box that was added to the proposals
    true_boxes: list[Tensor]  # the matched true boxes

    def instances(self) -> Tensor:
        """A number for each region of the batch, the same for those matched with the same true box."""
        return torch.cat([rows + (image << 32) for image, rows in enumerate(self.truth_index)])

    def positives(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Boxes, labels and true-box indices of the regions that hold an object."""
        keep = [labels > 0 for labels in self.labels]
        chosen = [
            [values[rows] for values, rows in zip(column, keep, strict=True)]
            for column in (self.boxes, self.labels, self.truth_index)
        ]
        return chosen[0], chosen[1], chosen[2]


def sample_regions(
    proposals: Sequence[Tensor],
    targets: Sequence[Target],
    matcher: Matcher,
    sampler: BalancedPositiveNegativeSampler,
) -> RegionSamples:
    """Add the true boxes to the proposals, match all with the truth, and draw a fixed number per image."""
    columns: list[list[Tensor]] = [[], [], [], [], []]
    for boxes, target in zip(proposals, targets, strict=True):
        truth = target["boxes"].to(boxes.dtype)
        candidates = torch.cat((boxes, truth))
        matched, labels = _match(candidates, truth, target["labels"], matcher)
        positive, negative = sampler([labels])
        rows = torch.where(positive[0] | negative[0])[0]
        chosen = matched[rows]
        true_boxes = truth[chosen] if len(truth) else torch.zeros_like(candidates[rows])
        for column, values in zip(
            columns, (candidates[rows], labels[rows], chosen, rows >= len(boxes), true_boxes), strict=True
        ):
            column.append(values)
    return RegionSamples(*columns)


def _match(boxes: Tensor, truth: Tensor, classes: Tensor, matcher: Matcher) -> tuple[Tensor, Tensor]:
    if len(truth) == 0:
        nothing = torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device)
        return nothing, nothing
    matched = matcher(box_iou(truth, boxes))
    labels = classes[matched.clamp(min=0)]
    labels = torch.where(matched == matcher.BELOW_LOW_THRESHOLD, 0, labels)
    labels = torch.where(matched == matcher.BETWEEN_THRESHOLDS, -1, labels)  # -1: the sampler leaves it out
    return matched.clamp(min=0), labels


def box_losses(
    logits: Tensor,
    offsets: Tensor,
    samples: RegionSamples,
    coder: BoxCoder,
    classification_loss: ClassificationLoss,
    *,
    beta: float,
    recalled: Recalled | None = None,
) -> tuple[Tensor, Tensor]:
    """Classification loss of all regions and smooth L1 loss (corner at `beta`) of those that hold an object.

    The last rows of `logits` and `offsets` are those of `recalled` regions, where there are any.
    """
    labels, instances = torch.cat(samples.labels), samples.instances()
    wanted = coder.encode_single(torch.cat(samples.true_boxes)[labels > 0], torch.cat(samples.boxes)[labels > 0])
    if recalled is not None and recalled.offsets is not None:
        labels = torch.cat((labels, recalled.classes + 1))
        instances = torch.cat((instances, recalled.instances))
        wanted = torch.cat((wanted, recalled.offsets))
    # The classifier's loss runs in float32 whatever the precision of the layers was.
    known = {"instances": instances} if getattr(classification_loss, "uses_instances", False) else {}
    class_loss = classification_loss(logits.float(), labels, **known)
    positive = torch.where(labels > 0)[0]
    predicted = offsets.float().reshape(len(labels), -1, 4)[positive]
    column = labels[positive] if predicted.shape[1] > 1 else torch.zeros_like(labels[positive])
    predicted = predicted[torch.arange(len(positive), device=labels.device), column]
    box_loss = functional.smooth_l1_loss(predicted, wanted, beta=beta, reduction="sum") / max(len(labels), 1)
    return class_loss, box_loss


def mask_targets(
    boxes: Sequence[Tensor], truth_index: Sequence[Tensor], targets: Sequence[Target], size: int
) -> Tensor:
    """Crop the true mask of each region to its box, at `size` x `size`."""
    crops = []
    for regions, rows, target in zip(boxes, truth_index, targets, strict=True):
        used, position = torch.unique(rows, return_inverse=True)
        masks = target["masks"][used][:, None].to(regions.dtype)
        rois = torch.cat((position[:, None].to(regions.dtype), regions), dim=1)
        crops.append(roi_align(masks, rois, (size, size), 1.0, -1, True)[:, 0])
    return torch.cat(crops)


def mask_loss(
    logits: Tensor, boxes: Sequence[Tensor], truth_index: Sequence[Tensor], targets: Sequence[Target]
) -> Tensor:
    """Binary cross entropy between the true masks and the mask logits `(N, R, R)` of the true classes.

    It is 0 where there are no masks to learn from: no region, or labels that are boxes only.
    """
    if len(logits) == 0 or not all("masks" in target for target in targets):
        return logits.sum() * 0.0
    wanted = mask_targets(boxes, truth_index, targets, logits.shape[-1])
    return functional.binary_cross_entropy_with_logits(logits.float(), wanted)


# Offsets are kept without weights, since each stage of a cascade has its own.
PLAIN = BoxCoder((1.0, 1.0, 1.0, 1.0))


@torch.no_grad()
def keep_true_regions(
    memory: FeatureMemory,
    pool: nn.Module,
    features: dict[str, Tensor],
    image_shapes: Sizes,
    targets: Sequence[dict[str, Any]],
) -> None:
    """Keep the pooled features of sixteen boxes around each true one."""
    truth = [target["boxes"] for target in targets]
    jittered = [jittered_boxes(b, size).reshape(-1, 4) for b, size in zip(truth, image_shapes, strict=True)]
    around = torch.cat([b.repeat_interleave(len(SIGNS), 0) for b in truth])
    classes = torch.cat([target["labels"] for target in targets]).repeat_interleave(len(SIGNS)) - 1
    memory.add(pool(features, jittered, image_shapes), classes, PLAIN.encode_single(around, torch.cat(jittered)))


def draw_regions(
    memory: FeatureMemory, loss: EquilibriumLoss, coder: BoxCoder, device: torch.device
) -> Recalled | None:
    """Draw features by the mean scores of `loss`, with offsets as `coder` has them; None from an empty memory."""
    drawn = memory.draw(loss.mean_score)
    if drawn is None or drawn.offsets is None:
        return None
    return replace(drawn, offsets=drawn.offsets * drawn.offsets.new_tensor(coder.weights)).to(device)


@torch.no_grad()
def learn_scores(loss: EquilibriumLoss, logits: Tensor, labels: Tensor, instances: Tensor) -> None:
    """Let the objects of a batch join the mean scores, without training on them."""
    loss.remember(*loss.object_scores(loss.checked(logits), labels, instances))
