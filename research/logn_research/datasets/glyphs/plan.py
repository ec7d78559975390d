"""Which classes stand on which image of the glyph scenes: a long-tailed training set, level validation sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

FEWEST_OBJECTS, MOST_OBJECTS = 4, 12

# By LVIS's rule a class is rare up to 10 training images and frequent above 100. The curve crosses these bounds so that
# 23 % of the classes are frequent, 38 % common and 39 % rare.
_FEWEST_IMAGES = 2.0
_FREQUENT_SHARE, _FREQUENT_BOUND = 0.23, 100.5
_RARE_START, _RARE_BOUND = 0.61, 10.5
_LARGEST_SHARE = 0.25  # of the images, for the most frequent class: 600 of 2,400
_CLASSES_AN_IMAGE = 7.0  # on average; more would leave no room for a second object of a class


def long_tailed_counts(num_classes: int, num_images: int) -> IntArray:
    """In how many training images each class stands, most frequent first.

    Geometric in three pieces, from a quarter of the images down to 2, so that LVIS's rule gives its usual
    shares. With few images for so many classes the top is lowered, down to just above what LVIS calls
    frequent; where that is not enough, the whole curve is flattened (all logarithms shrink alike) and the
    shares shift.

    Example:
        >>> from logn.data.class_counts import frequency_groups
        >>> counts = long_tailed_counts(100, 2400)
        >>> int(counts.max()), int(counts.min())
        (600, 2)
        >>> [int((frequency_groups(counts) == group).sum()) for group in "rcf"]
        [39, 38, 23]
    """
    room = _CLASSES_AN_IMAGE * num_images
    most = 0.6 * num_images
    lowest_top = min(1.2 * _FREQUENT_BOUND, most)
    wanted_top = max(_LARGEST_SHARE * num_images, lowest_top)
    top = _largest(lambda value: _counts(num_classes, value, 1.0).sum() <= room, lowest_top, wanted_top)
    strength = _largest(lambda value: _counts(num_classes, top, value).sum() <= room, 0.0, 1.0)
    return _counts(num_classes, top, strength)


def _counts(num_classes: int, top: float, strength: float) -> IntArray:
    heights = np.log(np.minimum([top, _FREQUENT_BOUND, _RARE_BOUND, _FEWEST_IMAGES], top))
    places = (np.arange(num_classes) + 0.5) / num_classes
    # The ends of the curve belong to the first and the last class, whatever the number of classes.
    corners = [places[0], _FREQUENT_SHARE, _RARE_START, max(places[-1], _RARE_START + 1e-9)]
    curve = np.interp(places, corners, heights)
    counts = np.rint(np.exp(heights[-1] + strength * (curve - heights[-1])))
    return np.asarray(np.maximum(1, counts), np.int64)


def _largest(fits: Callable[[float], bool | np.bool_], low: float, high: float) -> float:
    """The largest value for which `fits` still holds, by bisection; `low` where it never does."""
    if fits(high):
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def mix_families(families: Sequence[int], generator: np.random.Generator) -> IntArray:
    """Give each class a rank of frequency so that every family has frequent and rare members.

    The ranks are dealt out in rounds: each round gives one rank to every family that still has a class
    without.

    Example:
        >>> ranks = mix_families([0, 0, 1, 1], np.random.default_rng(0))
        >>> sorted((ranks[:2] // 2).tolist()), sorted((ranks[2:] // 2).tolist())
        ([0, 1], [0, 1])
    """
    members = np.asarray(families, np.int64)
    rounds = np.zeros(len(members), np.int64)
    for family in np.unique(members):
        rows = np.flatnonzero(members == family)
        rounds[rows] = generator.permutation(len(rows))
    order = np.lexsort((generator.random(len(members)), rounds))
    ranks = np.empty(len(members), np.int64)
    ranks[order] = np.arange(len(members))
    return ranks


def plan_training(image_counts: npt.ArrayLike, num_images: int, generator: np.random.Generator) -> list[IntArray]:
    """The classes of the objects of every training image, so that class `k` stands on `image_counts[k]` images.

    Images that would be left without a class get one of the frequent classes, on top of its count.
    """
    counts = np.asarray(image_counts, np.int64)
    present: list[list[int]] = [[] for _ in range(num_images)]
    load = np.zeros(num_images)
    for label in np.argsort(-counts, kind="stable").tolist():
        # The images with the fewest classes first, roughly: the noise keeps co-occurrence random.
        order = np.argsort(load + generator.exponential(1.5, num_images) + 1e3 * (load >= MOST_OBJECTS - 2))
        chosen = order[: counts[label]]
        load[chosen] += 1
        for image in chosen.tolist():
            present[image].append(label)
    chance = np.where(counts >= np.quantile(counts, 0.75), counts, 0)
    for classes in present:
        if not classes:
            classes.append(int(generator.choice(len(counts), p=chance / chance.sum())))
    weight = np.sqrt(counts)
    return [_fill(np.array(classes), weight, generator) for classes in present]


def plan_validation(num_classes: int, num_images: int, generator: np.random.Generator) -> list[IntArray]:
    """The classes of the objects of every validation image, each class about equally often.

    Example:
        >>> plan = plan_validation(10, 60, np.random.default_rng(0))
        >>> images = np.bincount(np.concatenate([np.unique(labels) for labels in plan]))
        >>> int(images.max() - images.min()) <= 1
        True
    """
    objects = generator.integers(FEWEST_OBJECTS, MOST_OBJECTS + 1, num_images)
    # About as many different classes on an image as in training.
    different = np.minimum(np.ceil(0.4 * objects).astype(np.int64), num_classes)
    shown = np.zeros(num_classes)
    plan = []
    for hand, total in zip(_deal(num_classes, different, generator), objects.tolist(), strict=True):
        weight = np.exp(shown.min() - shown)  # a second object goes rather to a class that had few so far
        plan.append(_fill(hand, weight, generator, total))
        shown += np.bincount(plan[-1], minlength=num_classes)
    return plan


def _deal(num_classes: int, hands: IntArray, generator: np.random.Generator) -> list[IntArray]:
    """Deal different classes to each image, each class as often as any other."""
    dealt = np.zeros(num_classes)
    result = []
    for size in hands.tolist():
        hand = np.argsort(dealt + generator.random(num_classes))[:size]
        dealt[hand] += 1
        result.append(hand)
    return result


def _fill(
    classes: IntArray, weight: FloatArray, generator: np.random.Generator, objects: int | None = None
) -> IntArray:
    """Repeat some classes of an image up to its number of objects, in random order."""
    wanted = int(generator.integers(FEWEST_OBJECTS, MOST_OBJECTS + 1)) if objects is None else objects
    missing = max(0, wanted - len(classes))
    chance = weight[classes] / weight[classes].sum()
    return generator.permutation(np.concatenate([classes, generator.choice(classes, missing, p=chance)]))
