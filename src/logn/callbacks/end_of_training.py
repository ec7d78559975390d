"""What the callbacks share: correct a copy of the model over the trainer's own batches, and never lose a training."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logn.calibrators.affine import ClassAffine
from logn.calibrators.methods import fit
from logn.calibrators.recommend import NONE, RECOMMENDED, Recommendation, recommend
from logn.errors import InputError, LogNWarning, MissingExtraError

if TYPE_CHECKING:
    from torch import nn

    from logn.deploy.calibrate import Forward
    from logn.logits.layer import LogitLayer

SUFFIX = "-corrected"


@dataclass(frozen=True)
class FoldedCopy:
    """What `correct_in_place` did.

    Attributes:
        method: The method of the correction; None where there was nothing to correct.
        maps: The maps, one per stage.
        recommendation: What `logn.recommend` says of the statistics.
    """

    method: str | None
    maps: tuple[ClassAffine, ...]
    recommendation: Recommendation


class FoldingCallback:
    """What callbacks that fold into a copy of the model share: their options, and what a training leaves in them.

    Args:
        dataloader: Batches of training images; by default those of the training loader, augmented as they are there.
        method: As for `logn.methods.fit`; by default what `logn.recommend` says.
        layer: Where the logits are; found by `logn.locate_logits` by default.
        forward: Runs the model on a batch, `forward(model, batch)`.
    """

    def __init__(
        self,
        dataloader: Iterable[Any] | None = None,
        *,
        method: str | None = None,
        layer: LogitLayer | None = None,
        forward: Forward | None = None,
    ) -> None:
        super().__init__()
        self.dataloader = dataloader
        self.options: dict[str, Any] = {"method": method, "layer": layer, "forward": forward}
        self._forget()

    def _forget(self) -> None:
        """Be as before a training."""
        self.output: Path | None = None
        self.folded: FoldedCopy | None = None
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}


def correct_in_place(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    method: str | None = None,
    layer: LogitLayer | None = None,
    forward: Forward | None = None,
    device: Any = None,
) -> FoldedCopy:
    """Run `model` once over the batches, ask `logn.recommend`, and fold the correction into its weights.

    Args:
        model: A copy that is the caller's own.
        loader: Batches, as for `logn.calibrate`.
        method: As for `logn.methods.fit`; what `logn.recommend` says by default.
        layer: Where the logits are; found by default.
        forward: Runs the model on a batch; as in `logn.calibrate` by default.
        device: Where the batches go.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 5))
        >>> batches = [torch.rand(16, 8) for _ in range(4)]
        >>> done = correct_in_place(model, batches, method="logn")
        >>> done.method, done.maps[0].num_columns
        ('logn', 5)
    """
    from logn.deploy.calibrate import calibrate
    from logn.deploy.fold import fold

    found = calibrate(model, loader, layer=layer, forward=forward, device=device)
    assert found.handle is not None  # noqa: S101 - not folded
    found.handle.remove()
    stages = found.moments if isinstance(found.moments, tuple) else (found.moments,)
    judged = [recommend(moments) for moments in stages]
    recommendation = next((part for part in judged if part.method != NONE), judged[0])
    if method is None and recommendation.method == NONE:
        return FoldedCopy(None, (), recommendation)
    chosen = method or RECOMMENDED
    maps = tuple(fit(chosen, moments) for moments in stages)
    fold(model, found.layer, list(maps) if found.layer.stages else maps[0])
    return FoldedCopy(chosen, maps, recommendation)


@contextmanager
def told_not_raised() -> Iterator[None]:
    """Warn where a correction is refused: an error would take the results of the training with it.

    Example:
        >>> with warnings.catch_warnings(record=True) as told:
        ...     warnings.simplefilter("always")
        ...     with told_not_raised():
        ...         raise InputError("Expected a class layer, but found none.")
        >>> print(told[0].message)
        No corrected checkpoint was written: Expected a class layer, but found none.
    """
    try:
        yield
    except (InputError, MissingExtraError) as error:
        warnings.warn(f"No corrected checkpoint was written: {error}", LogNWarning, stacklevel=3)


def before_and_after(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """The numbers that both have, in one line.

    Example:
        >>> before_and_after({"loss": 0.5, "AP": 0.25}, {"loss": 0.75, "AP": 0.3, "speed": 3.0})
        'loss 0.5 -> 0.75, AP 0.25 -> 0.3'
    """
    return ", ".join(f"{name} {before[name]:.4g} -> {after[name]:.4g}" for name in before if name in after)
