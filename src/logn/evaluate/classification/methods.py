"""From the methods that a user names to maps of a classifier's logits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from logn.calibrators.affine import ClassAffine, LogitFacts
from logn.calibrators.methods import fit, needs, parse
from logn.classes.counts import ClassCounts
from logn.errors import InputError
from logn.evaluate.classification.logits import moments_of_logits
from logn.evaluate.classification.truth import ClassificationTruth
from logn.evaluate.comparison.method_fitting import LogitMap
from logn.statistics.moments import ClassMoments


def training_moments(moments: Any, train_logits: Any, num_classes: int) -> ClassMoments | None:
    """Moments from an object, from a file or from the training logits themselves; None when nothing is given."""
    if moments is not None and train_logits is not None:
        raise InputError(
            "Expected one of `moments` (`--statistics`) and `train_logits` (`--train-logits`), but got both."
        )
    if train_logits is not None:
        moments = moments_of_logits(train_logits)
    elif isinstance(moments, str | os.PathLike):
        moments = ClassMoments.load(moments)
    if moments is None:
        return None
    if moments.metadata.background is not None:
        raise InputError(
            "Expected statistics of a classifier, which has no background, but got some with a background."
        )
    if moments.num_columns != num_classes:
        raise InputError(
            f"Expected the training statistics to be of the {num_classes} classes of the test logits, "
            f"but got {moments.num_columns}."
        )
    statistics: ClassMoments = moments
    return statistics


@dataclass(frozen=True, eq=False)
class ClassifierFit:
    """What methods are fitted to.

    Args:
        truth: Its training counts are those of count-based methods.
        given: Everything else that methods are fitted from: the statistics of the logits of training images, the
            weight and bias of the last layer and so on.
        allow_mismatch: Only warn where a map that was made elsewhere is of other classes.
    """

    truth: ClassificationTruth
    given: Mapping[str, Any]
    allow_mismatch: bool = False

    def map_of(self, name: str, method: str | LogitMap) -> LogitMap:
        """The map of a method: fitted where it is a specification, checked where it was made elsewhere."""
        if isinstance(method, str):
            return self.map(method)
        if isinstance(method, ClassAffine):
            facts = LogitFacts("the logits", self.truth.num_classes, None, self.truth.class_names)
            method.check_fits(facts, what=f"`{name}`", allow_mismatch=self.allow_mismatch)
        return method

    @property
    def moments(self) -> ClassMoments | None:
        """Statistics of the logits of training images."""
        return self.given.get("moments")

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """What methods are fitted from: counts in the order of the columns, of which none is a background."""
        # What is measured here is a softmax, but a classifier that was trained with sigmoids may say so.
        recorded = None if self.moments is None else self.moments.metadata.activation
        known = {"background": None, "activation": recorded or "softmax", "num_columns": self.truth.num_classes}
        return known | dict(self.given) | {"counts": self._counts()}

    def map(self, spec: str) -> LogitMap:
        """Fit one method."""
        name, _ = parse(spec)
        if "moments" in needs(name) and self.moments is None:
            raise InputError(
                f"Expected statistics (`moments`, `--statistics`) or `train_logits` (`--train-logits`) for the method "
                f"`{name}`, but got neither."
            )
        affine = fit(spec, **self.inputs)
        if affine.num_columns != self.truth.num_classes:
            raise InputError(
                f"Expected the input of `{name}` to be of the {self.truth.num_classes} classes of the logits, "
                f"but got {affine.num_columns}."
            )
        return affine

    def _counts(self) -> ClassCounts | None:
        """Counts in the order of the columns; every image has one class, so their sum is the number of images."""
        counts = self.truth.train_counts
        return None if counts is None else ClassCounts(counts, num_images=int(counts.sum()))
