"""FRACAL (CVPR 2025): class frequency and the fractal dimension of where a class's boxes lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from logn.calibrators.class_affine import ArrayT, ClassAffine
from logn.calibrators.class_frequencies import checked_counts, checked_number
from logn.calibrators.known_activation import known_activation
from logn.calibrators.method import COUNT_KIND_OPTION, Method, MethodInputs, Option, Options
from logn.errors import InputError
from logn.logits.arrays import FloatArray, as_rows, is_torch_tensor, sigmoid
from logn.statistics.moments import StatisticsMetadata


def fracal(
    image_counts: npt.ArrayLike,
    num_images: float,
    dimensions: npt.ArrayLike | None,
    *,
    background: int | None = None,
    strength: float = 2.0,
    base: float = 10.0,
) -> ClassAffine:
    """The form for softmax heads: `x_c - log_B(p_c) - log_B(F) - strength * ln(D_c)`, F the number of classes.

    Dividing the probability of class c by `D_c^strength` and renormalising is the shift by its natural logarithm.

    Args:
        image_counts: Training images of each foreground class (the released configuration). Instance counts, with
            their sum as `num_images`, give the paper's text.
        num_images: What the counts are divided by to make `p_c`; it matters, since the background is kept.
        dimensions: Fractal dimension of each class (`logn.fractal_dimension`); None leaves the spatial part out.
        background: Place of the background column, which is left alone: None, 0 or -1.
        strength: Power of the dimension (lambda); 0 leaves the spatial part out.
        base: Base of the logarithm of the frequencies: 10 in the released configuration; 2 and e are the others.

    Example:
        >>> fracal([60, 20, 1], 100, None, background=-1).shift.round(6)
        array([-0.255273,  0.221849,  1.522879,  0.      ])
    """
    shift = _frequency_shift(image_counts, num_images, base)
    lengths = _checked_dimensions(dimensions, len(shift))
    power = checked_number("strength", strength)
    settings = {"num_images": float(num_images), "strength": power, "base": float(base)}
    settings["spatial"] = float(dimensions is not None)
    return ClassAffine.over_foreground(
        np.ones_like(shift), shift - power * np.log(lengths), background, method="fracal", settings=settings
    )


@dataclass(frozen=True)
class FracalSigmoid:
    """The form for sigmoid heads: the product of two sigmoids, hence no affine map of the logits.

    It returns scores, not logits, and cannot be folded into a layer.

    Args:
        shift: Summand of each class inside the second sigmoid.

    Example:
        >>> scores = FracalSigmoid.fit([60, 20, 1], 100, [1.795877, 1.0, 1.0])
        >>> scores(np.array([1.0, 0.8, 0.2])).round(6)
        array([0.451118, 0.537844, 0.482177])
    """

    shift: FloatArray

    @classmethod
    def fit(
        cls,
        image_counts: npt.ArrayLike,
        num_images: float,
        dimensions: npt.ArrayLike | None,
        *,
        strength: float = 2.0,
        base: float = 10.0,
    ) -> FracalSigmoid:
        """Compute the shift; the arguments are those of `fracal`."""
        shift = _frequency_shift(image_counts, num_images, base)
        powers = _checked_dimensions(dimensions, len(shift)) ** checked_number("strength", strength)
        logarithm = np.log(checked_number("base", base, above=1.0))
        return cls(shift - np.log(powers / powers.sum()) / logarithm - np.log(len(shift)) / logarithm)

    @property
    def num_classes(self) -> int:
        """How many columns the logits have."""
        return len(self.shift)

    def __call__(self, logits: ArrayT) -> ArrayT:
        """Scores of `logits` (…, C), in the kind and dtype they came in."""
        if is_torch_tensor(logits):
            tensor: Any = logits
            return cast(ArrayT, tensor.sigmoid() * (tensor + tensor.new_tensor(self.shift.tolist())).sigmoid())
        rows = as_rows(logits, self.num_classes)
        scores = sigmoid(rows) * sigmoid(rows + self.shift)
        return cast(ArrayT, scores.reshape(np.shape(cast(Any, logits))).astype(rows.dtype))


def _frequency_shift(image_counts: npt.ArrayLike, num_images: float, base: float) -> FloatArray:
    counts = checked_counts("image_counts", image_counts)
    total = checked_number("num_images", num_images, above=0.0)
    if counts.max() > total:
        column = int(counts.argmax())
        raise InputError(
            f"Expected `image_counts` to be at most `num_images` ({total:g}), but got {counts[column]:g} for class "
            f"{column}."
        )
    logarithm = np.log(checked_number("base", base, above=1.0))
    shift: FloatArray = -(np.log(counts / total) + np.log(len(counts))) / logarithm
    return shift


def _checked_dimensions(dimensions: npt.ArrayLike | None, num_classes: int) -> FloatArray:
    if dimensions is None:
        return np.ones(num_classes)
    array = checked_counts("dimensions", dimensions)
    if len(array) != num_classes:
        raise InputError(f"Expected `dimensions` to have {num_classes} numbers, but got {len(array)}.")
    return array


def _frequencies(inputs: MethodInputs, options: Options) -> tuple[FloatArray, float]:
    """The counts and what they are divided by; both leave `options`."""
    counts = inputs.needed_counts(options.pop("counts", "images"))
    num_images = options.pop("num_images", inputs.counts.num_images if inputs.counts else None)
    if num_images is None:
        raise InputError("Expected `num_images` for the method `fracal`, since the counts do not say it, but got none.")
    return counts, num_images


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    recorded = StatisticsMetadata() if inputs.moments is None else inputs.moments.metadata
    if known_activation(recorded, inputs.background, inputs.activation) == "sigmoid":
        raise InputError(
            "Expected `activation` to be softmax for the method `fracal`, as its form for sigmoids is no affine map, "
            "but got sigmoid; `logn compare` measures that form, and logn.FracalSigmoid with logn.attach applies it."
        )
    return fracal(*_frequencies(inputs, options), inputs.dimensions, background=inputs.background, **options)


def _sigmoid_scores(inputs: MethodInputs, options: Options) -> FracalSigmoid:
    return FracalSigmoid.fit(*_frequencies(inputs, options), inputs.dimensions, **options)


def _notes(inputs: MethodInputs, options: Options, affine: ClassAffine) -> list[str]:
    if inputs.dimensions is not None or options.get("strength") == 0:
        return []
    return ["Without --dimensions only the frequency part of FRACAL is used."]


METHOD = Method(
    "fracal",
    "fractal calibration",
    _fit,
    {
        "strength": Option("number", "power of the dimension; default 2.", flag="--strength"),
        "base": Option("number", "base of the logarithm; default 10.", flag="--base"),
        "num_images": Option("number", "images of the training set.", flag="--num-images"),
        "counts": COUNT_KIND_OPTION,
    },
    needs=("counts",),
    takes=("dimensions",),
    sigmoid_scores=_sigmoid_scores,
    notes=_notes,
)
