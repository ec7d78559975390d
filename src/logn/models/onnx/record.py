"""record_onnx: run an ONNX model over images and collect the moments of its class logits."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.data.class_names import listed
from logn.data.class_tables import read_class_names
from logn.data.images import select_images
from logn.errors import InputError, warn
from logn.models.onnx.boxes import BoxLayout, class_rows, find_objectness
from logn.models.onnx.description import completed, image_input, other_inputs, require_size, settle
from logn.models.onnx.file import (
    Arrays,
    InputSpec,
    OnnxFile,
    OnnxSession,
    exposing,
    onnx_digest,
    read_onnx,
)
from logn.models.onnx.locate import BOX_AND_OBJECTNESS, OnnxLogits, locate_onnx_logits, trial_values, wanted_of
from logn.models.preprocessing import Preprocessing, read_prepared
from logn.models.torch.record import SAMPLE_ROWS
from logn.statistics.moments import ClassMoments, StatisticsMetadata


@dataclass(frozen=True)
class ImageBatches:
    """How images become the inputs of one model.

    Attributes:
        image: The input that takes images.
        others: The other inputs, which get ones.
        preprocessing: What is done to each image.
        size: Images per run; 0 for a model without a batch axis.
        fixed: Whether the model takes no other number of images.
    """

    image: InputSpec
    others: tuple[InputSpec, ...]
    preprocessing: Preprocessing
    size: int
    fixed: bool

    def read(self, paths: Sequence[Path], unreadable: dict[Any, str]) -> Iterator[tuple[Arrays, int]]:
        """The inputs of each run, and how many of their images are real: a last batch may be filled up.

        Images that cannot be read are left out and noted in `unreadable`, with the reason.
        """
        readable = self._prepared(paths, unreadable)
        step = self.size or 1
        while images := list(itertools.islice(readable, step)):
            real = len(images)
            if self.fixed:
                images += [images[-1]] * (step - real)
            stacked = np.stack(images) if self.size else images[0]
            yield {self.image.name: stacked, **other_inputs(self.others, self.image, stacked.shape)}, real

    def _prepared(self, paths: Sequence[Path], unreadable: dict[Any, str]) -> Iterator[npt.NDArray[Any]]:
        for path in paths:
            try:
                yield read_prepared(path, self.preprocessing)
            except InputError as error:
                unreadable[path] = str(error)


def record_onnx(
    model_path: str | os.PathLike[str] | OnnxFile,
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    preprocessing: Preprocessing | None = None,
    *,
    like: str | None = None,
    tensor: str | Sequence[str] | None = None,
    num_columns: int | None = None,
    activation: str | None = None,
    axis: int | None = None,
    background: int | None = None,
    class_names: Sequence[str] | str | os.PathLike[str] | None = None,
    population: str | None = None,
    max_images: int | None = None,
    batch_size: int = 1,
    provider: str = "CPUExecutionProvider",
    unreadable: dict[Any, str] | None = None,
    progress: Callable[[int], object] = lambda count: None,
    **options: Any,
) -> ClassMoments:
    '''Collect the moments of the class logits of an ONNX model over a folder of images.

    The logits are recorded where `logn.fold_onnx` will change them: at the input of the class activation. Where an
    objectness multiplies their probabilities (YOLOX, YOLOv5), it is recorded too.

    Args:
        model_path: The ONNX file, or one that was read.
        images: Folder of images, or a list of image files.
        preprocessing: How they become inputs; size, layout and type are taken from the model where it states them. By
            default what `like` says, else what the file says of itself in its metadata, or a
            `preprocessor_config.json` beside it; else RGB from 0 to 1, stretched to the model's size. A size that the
            model leaves open and nothing says is asked for.
        like: The name of a preset of `logn.models.preprocessing`, such as "yolox".
        tensor: Name of the tensor that holds the logits (or of the scores behind them), where the search finds several.
        num_columns: Columns of the logits, the background included, where the search finds several.
        activation: "softmax" or "sigmoid", to search only for that.
        axis: The class axis of the logits, needed only where it cannot be inferred.
        background: Index of the background column: 0 or -1; by default what `like` says, else none.
        class_names: Name of each column, for the record, or a file of them.
        population: What a row of logits stands for, for the record.
        max_images: Take at most this many of the images, spread evenly over the folder or the list.
        batch_size: Images per run, where the model leaves it open.
        provider: Where the model runs, by onnxruntime's name.
        unreadable: Filled with the images that cannot be read, and why. They are left out; without it a warning
            names them.
        progress: Called with the number of images after each run.
        options: Further arguments of `logn.ClassMoments`: `sample_rows` (4096), `nonfinite`, `mean_probability`.

    Example:
        >>> import tempfile, onnx.parser
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 1, 1] x) => (float[N, 3] y)
        ... <float[3, 3] w = {2.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0}> { f = Flatten(x) y = Gemm(f, w) }"""
        >>> onnx.save_model(onnx.parser.parse_model(text), str(folder / "model.onnx"))
        >>> Image.new("RGB", (4, 4), (255, 255, 0)).save(folder / "yellow.png")
        >>> record_onnx(folder / "model.onnx", folder).mean
        array([2., 1., 0.])
    '''
    file, paths = read_onnx(model_path), select_images(images, max_images)
    settled, description = settle(file, like)
    if preprocessing is None:
        require_size(file, settled)
        preprocessing = settled
    batches = plan_batches(file.inputs, preprocessing, batch_size)
    names = (tensor,) if isinstance(tensor, str) else tuple(tensor or ())
    wanted = wanted_of(description, num_columns, names, activation, axis, has_background=background is not None)
    left_out: dict[Any, str] = {} if unreadable is None else unreadable
    first, _ = next(batches.read(paths, left_out), (None, 0))
    if first is None:
        reason = next(iter(left_out.values()))
        raise InputError(f"None of the {len(paths):,} images can be read: {reason}")
    logits, _ = locate_onnx_logits(file, wanted, first)
    followed_by, background = description.reading(logits.activation or activation, background)
    metadata = StatisticsMetadata(
        class_names=_names(
            class_names or description.names_of(logits.num_columns, background), logits.num_columns, background
        ),
        background=background,
        activation=followed_by,
        layer=", ".join(logits.tensors),
        population=population,
        fingerprint=onnx_digest(file),
    )
    moments = ClassMoments(logits.num_columns, metadata=metadata, **{"sample_rows": SAMPLE_ROWS, **options})
    boxes = None if followed_by == "softmax" else _objectness_output(file, logits, first)
    tensors = [*dict.fromkeys((*logits.tensors, *(boxes.outputs if boxes else ())))]
    session = OnnxSession(exposing(file.model, tensors, only=True), str(file.path), provider=provider)
    for inputs, real in batches.read(paths, left_out):
        levels = _levels(session.run(inputs, tensors), logits, boxes)
        rows = _rows(levels, logits.tensors, real, batches)
        objectness = rows[:, -logits.num_columns - 1] if rows.shape[1] > logits.num_columns else None
        moments.update(rows[:, -logits.num_columns :], objectness)
        progress(real)
    if left_out and unreadable is None:
        number = f"{len(left_out):,} of {len(paths):,} images could not be read and were left out"
        warn(f"{number}: {listed([f'`{path}`' for path in left_out])}.")
    return moments


def _names(
    names: Sequence[str] | str | os.PathLike[str] | None, num_columns: int, background: int | None
) -> tuple[str, ...] | None:
    if isinstance(names, str | os.PathLike):
        return read_class_names(names, num_columns, background)
    return None if names is None else tuple(names)


def _objectness_output(file: OnnxFile, logits: OnnxLogits, inputs: Arrays) -> BoxLayout | None:
    """The output that holds an objectness before the scores, unless it stands before the logits already."""
    if logits.start == BOX_AND_OBJECTNESS:
        return None
    values = trial_values(file, logits, inputs)
    return None if values is None else find_objectness(file.graph, logits, values)


def _levels(values: Arrays, logits: OnnxLogits, boxes: BoxLayout | None) -> list[npt.NDArray[Any]]:
    """The class logits of one run, level by level, their class axis last; with an objectness it stands before them."""
    if boxes is not None:
        objectness: Any = boxes.objectness_logits(boxes.rows(values))
        return [np.concatenate([objectness[..., None], class_rows(logits, values, boxes.order)], axis=-1)]
    if logits.start == BOX_AND_OBJECTNESS:
        return [np.moveaxis(values[tensor], logits.axis, -1)[..., logits.start - 1 :] for tensor in logits.tensors]
    return [logits.rows(values[tensor]) for tensor in logits.tensors]


def _rows(
    levels: Sequence[npt.NDArray[Any]], tensors: Sequence[str], real: int, batches: ImageBatches
) -> npt.NDArray[Any]:
    """The levels as rows, without those of images that only filled the batch up."""
    parts = []
    for array, tensor in zip(levels, tensors, strict=False):
        if real < batches.size and batches.fixed:
            if array.ndim < 2 or len(array) != batches.size:
                raise InputError(
                    f"The model takes {batches.size} images at a time, and `{tensor}` does not tell them apart: pass a "
                    f"multiple of {batches.size} images."
                )
            array = array[:real]
        parts.append(array.reshape(-1, array.shape[-1]))
    return np.concatenate(parts)


def plan_batches(specs: Sequence[InputSpec], preprocessing: Preprocessing | None, batch_size: int) -> ImageBatches:
    """Match the images with the inputs of the model."""
    image = image_input(specs)
    settings = completed(preprocessing, image)
    if settings.size is None and batch_size > 1:
        raise InputError("The model leaves the image size open: pass `size` for batches of several images.")
    batched = len(image.shape) == 4
    declared = image.shape[0] if batched else 1
    fixed = batched and isinstance(declared, int)
    if not batched and batch_size > 1:
        raise InputError(f"Expected `batch_size` to be 1, since `{image.name}` takes one image, but got {batch_size}.")
    size = int(declared or 1) if fixed else batch_size if batched else 0
    return ImageBatches(image, tuple(spec for spec in specs if spec is not image), settings, size, fixed)
