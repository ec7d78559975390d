"""How often `logn.recommend` leaves classifiers alone that cross-entropy or a balanced loss trained.

    python benchmarks/balanced_losses.py digits
    python benchmarks/balanced_losses.py made

`digits` are scikit-learn's in four rotations (40 classes, 120 images down to 12 or 2), `made` are Gaussian classes.
Prints a line per training, then how many of those with a ratio of at least 2 count as trained by a balanced loss.
"""

import sys
from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import torch
from logn_research.cifar.small import digits as thinned_digits
from torch import Tensor
from torch.nn import functional

import logn
from logn.base.arrays import FloatArray
from logn.statistics.head import Head
from logn.statistics.verdict import BALANCED_SLOPE, LITTLE_RATIO, losing_slope

Data = tuple[Tensor, Tensor, Tensor]
ADDED = {"cross-entropy": 0.0, "balanced softmax": 1.0, "logit adjustment": 1.5}


def digits(imbalance: float, seed: int) -> Data:
    """Training images and labels, and the counts."""
    problem = thinned_digits(imbalance, seed)
    return problem.images, problem.labels, problem.counts


def made(imbalance: float, seed: int, classes: int = 80, spread: float = 0.9) -> Data:
    """The same of Gaussian classes in 32 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 32, generator=generator) * spread
    counts = (100 * imbalance ** -torch.linspace(0, 1, classes)).round().clamp(min=2).int()
    labels = torch.repeat_interleave(torch.arange(classes), counts)
    return centres[labels] + torch.randn(len(labels), 32, generator=generator), labels, counts


def train(kind: str, added: float, images: Tensor, labels: Tensor, counts: Tensor, seed: int) -> FloatArray:
    """Logits of the training images."""
    torch.manual_seed(seed)
    width = images.shape[1]
    is_linear, is_cosine = kind == "linear", kind == "normalised"
    hidden = torch.nn.Linear(width, 128)
    head = torch.nn.Linear(width if is_linear else 128, len(counts))
    prior = added * torch.log(counts / counts.sum()).float()

    def logits(batch: Tensor) -> Tensor:
        features = batch if is_linear else torch.relu(hidden(batch))
        if is_cosine:
            return 16 * functional.normalize(features) @ functional.normalize(head.weight).T
        return head(features)

    parameters = [*([] if is_linear else hidden.parameters()), *head.parameters()]
    if kind == "network, Adam":
        optimizer = torch.optim.Adam(parameters, lr=0.005, weight_decay=1e-4)
    else:
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(500):
        chosen = torch.randint(len(labels), (128,))
        optimizer.zero_grad()
        functional.cross_entropy(logits(images[chosen]) + prior, labels[chosen].long()).backward()
        optimizer.step()
    with torch.no_grad():
        return logits(images).double().numpy()


def main(source: Callable[[float, int], Data]) -> None:
    """Train all and print."""
    torch.set_num_threads(1)
    flagged, trained = Counter(), Counter()
    kinds = ("linear", "normalised", "network, SGD", "network, Adam")
    for seed, imbalance, kind, loss in product(range(3), (10, 100), kinds, ADDED):
        images, labels, counts = source(imbalance, seed)
        rows = train(kind, ADDED[loss], images, labels, counts, seed)
        moments = logn.ClassMoments(Head(rows.shape[1], population="images"))
        moments.update(rows)
        found = logn.recommend(moments)
        slope = losing_slope(moments, np.ones(rows.shape[1], bool))
        print(
            f"{seed} {imbalance} {kind}, {loss}: {slope:+.2f}, ratio {found.verdict.ratio:.3g}, {found.method}",
            flush=True,
        )
        if found.verdict.ratio >= LITTLE_RATIO:
            trained[kind, loss] += 1
            flagged[kind, loss] += slope < BALANCED_SLOPE
    for (kind, loss), number in trained.items():
        print(f"{kind}, {loss}: {flagged[kind, loss]} of {number}")
    for name, chosen in {"cross-entropy": [*ADDED][:1], "balanced losses": [*ADDED][1:]}.items():
        counted = [sum(part[kind, loss] for kind, loss in trained if loss in chosen) for part in (flagged, trained)]
        print(f"{name}: {counted[0]} of {counted[1]}")


if __name__ == "__main__":
    main({"digits": digits, "made": made}[sys.argv[1]])
