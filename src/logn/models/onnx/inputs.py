"""The inputs of an ONNX model: what it says about them, random values, and images for the one that takes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.models.preprocessing import Preprocessing

Arrays = dict[str, npt.NDArray[Any]]

# Image sizes to try, one after the other, where a model leaves its own open.
OPEN_SIZES = (64, 224, 640, 320, 416, 512, 300)


@dataclass(frozen=True)
class InputSpec:
    """What a model says about one of its inputs.

    Attributes:
        name: Its name.
        dtype: Its type as NumPy has it.
        shape: Its lengths; a text or None for one that is open.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]

    @property
    def is_open(self) -> bool:
        """Whether the model leaves a length open."""
        return any(not isinstance(length, int) for length in self.shape)

    @property
    def takes_images(self) -> bool:
        """Whether images fit: three or four axes, and three channels first or last."""
        channels = [self.shape[axis] for axis in (-1, -3)] if len(self.shape) in (3, 4) else []
        fits = any(length == 3 or not isinstance(length, int) for length in channels)
        return fits and (np.issubdtype(self.dtype, np.floating) or self.dtype == np.uint8)


def model_inputs(model: Any) -> list[InputSpec]:
    """The inputs of an `onnx.ModelProto`."""
    from onnx import helper

    stored, specs = {tensor.name for tensor in model.graph.initializer}, []
    for value in (value for value in model.graph.input if value.name not in stored):
        if not value.type.HasField("tensor_type"):
            raise InputError(f"The input `{value.name}` of the model is not a tensor.")
        kind = value.type.tensor_type
        shape = tuple(axis.dim_value if axis.dim_value > 0 else axis.dim_param or None for axis in kind.shape.dim)
        specs.append(InputSpec(value.name, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)), shape))
    return specs


def random_inputs(specs: Sequence[InputSpec], *, size: int = OPEN_SIZES[0], seed: int = 0) -> Arrays:
    """Random values for the inputs of a model: 0 to 1 for floats, ones for whole numbers (masks, ids).

    Args:
        specs: The inputs.
        size: Height and width, where the model leaves them open.
        seed: Of the random numbers.

    Example:
        >>> image = InputSpec("images", np.dtype("float32"), ("batch", 3, None, None))
        >>> random_inputs([image], size=32)["images"].shape
        (1, 3, 32, 32)
    """
    generator = np.random.default_rng(seed)
    values: Arrays = {}
    for spec in specs:
        guess = {3: (3, size, size), 4: (1, 3, size, size)}.get(len(spec.shape), (1, *[size] * (len(spec.shape) - 1)))
        if len(spec.shape) == 4 and spec.shape[3] in (1, 3):
            guess = (1, size, size, 3)
        shape = [length if isinstance(length, int) else guess[axis] for axis, length in enumerate(spec.shape)]
        if np.issubdtype(spec.dtype, np.floating):
            values[spec.name] = generator.random(shape).astype(spec.dtype)
        elif spec.dtype == np.uint8:  # a picture
            values[spec.name] = generator.integers(0, 256, shape, dtype=np.uint8)
        else:
            values[spec.name] = np.ones(shape, spec.dtype)
    return values


class ImageInput:
    """The input of a model that takes images, and how they are prepared for it.

    Args:
        specs: All inputs of the model.
        preprocessing: What is known of the images; size, layout and type are taken from the model where it states them,
            and what contradicts it is refused.
    """

    def __init__(self, specs: Sequence[InputSpec], preprocessing: Preprocessing) -> None:
        fitting = [spec for spec in specs if spec.takes_images]
        if not fitting:
            listed = ", ".join(f"{spec.name} {spec.shape}" for spec in specs)
            raise InputError(f"The model has no input for images; its inputs are {listed}.")
        self.spec = spec = fitting[0]
        self.others = [other for other in specs if other is not spec]
        channels_last = spec.shape[-1] == 3 and spec.shape[-3] != 3
        order = (preprocessing.layout or ("HWC" if channels_last else "CHW")).removeprefix("N")
        # Height and width, as axes and as the model has them.
        self._axes = (-2, -1) if order == "CHW" else (-3, -2)
        declared = tuple(spec.shape[axis] for axis in self._axes)
        if preprocessing.dtype not in (None, str(spec.dtype)):
            raise InputError(
                f"Expected `dtype` to be {spec.dtype}, which `{spec.name}` takes, but got {preprocessing.dtype}."
            )
        size = preprocessing.size or declared
        if any(isinstance(length, int) and length != side for length, side in zip(declared, size, strict=True)):
            raise InputError(f"Expected `size` to be {declared}, which `{spec.name}` takes, but got {size}.")
        height, width = size
        whole = (height, width) if isinstance(height, int) and isinstance(width, int) else None
        layout = f"N{order}" if self.has_batches else order
        self.preprocessing = replace(preprocessing, size=whole, layout=layout, dtype=str(spec.dtype))

    @property
    def has_batches(self) -> bool:
        """Whether the model takes several images at once, on an axis of their own."""
        return len(self.spec.shape) == 4

    @property
    def fixed_batch(self) -> int | None:
        """How many images the model takes, no more and no fewer; None where that is open."""
        length = self.spec.shape[0] if self.has_batches else 1
        return length if isinstance(length, int) else None

    def random(self) -> Arrays:
        """Random values of the size that images are prepared to."""
        shape = [length if isinstance(length, int) else 1 for length in self.spec.shape]
        for axis, length in zip(self._axes, self.preprocessing.size or (), strict=False):
            shape[axis] = length
        shape[-3 if self._axes == (-2, -1) else -1] = 3
        return random_inputs([replace(self.spec, shape=tuple(shape))]) | self._beside(shape)

    def runs(self, images: Iterable[npt.NDArray[Any]], batch: int = 1) -> Iterator[tuple[Arrays, int]]:
        """The inputs of each run, and how many of its images are real: a last batch may be filled up by repeating one.

        Args:
            images: Prepared images.
            batch: Images per run, where the model leaves it open.
        """
        step, waiting = self.fixed_batch or batch, iter(images)
        while part := list(itertools.islice(waiting, step)):
            real = len(part)
            if self.fixed_batch is not None:
                part += [part[-1]] * (step - real)
            pixels = np.stack(part) if self.has_batches else part[0]
            yield {self.spec.name: pixels, **self._beside(pixels.shape)}, real

    def _beside(self, shape: Sequence[int]) -> Arrays:
        """Ones for the inputs beside the images (masks, scales), with the lengths that they share with these."""
        lengths = {name: length for name, length in zip(self.spec.shape, shape, strict=True) if isinstance(name, str)}
        return {
            spec.name: np.ones(
                [length if isinstance(length, int) else lengths.get(str(length), 1) for length in spec.shape],
                spec.dtype,
            )
            for spec in self.others
        }
