"""An opened ONNX file: its logits recorded over images, its boxes proposed, a correction written into it."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.hints import Hints
from logn.models.images import ImageFiles, choose_images
from logn.models.onnx.boxes import BoxLayout, class_rows, find_objectness
from logn.models.onnx.description import (
    Description,
    checked_names,
    completed,
    describe,
    image_input,
    other_inputs,
    require_size,
    settle,
)
from logn.models.onnx.file import CPU, Arrays, InputSpec, OnnxFile, onnx_digest, read_onnx
from logn.models.onnx.locate import BOX_AND_OBJECTNESS, Located, OnnxLogits, locate, wanted_of
from logn.models.opened import NEEDS_BOXES, Advance, Logits, Stages, Traits, ignore
from logn.models.preprocessing import PRESETS, Preprocessing
from logn.models.proof import Proof
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments
from logn.statistics.row_sample import SAMPLE_ROWS

if TYPE_CHECKING:
    from logn.models.onnx.detector import OnnxDetector


def record_onnx(
    model_path: str | os.PathLike[str] | OnnxFile,
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    preprocessing: Preprocessing | None = None,
    *,
    max_images: int | None = None,
    batch_size: int = 1,
    provider: str = CPU,
    progress: Advance = ignore,
    **options: Any,
) -> ClassMoments:
    '''Collect the moments of the class logits of an ONNX model over a folder of images.

    The logits are recorded where `logn.fold_onnx` will change them: at the input of the class activation. Where an
    objectness multiplies their probabilities (YOLOX, YOLOv5), it is recorded too.

    Args:
        model_path: The ONNX file, or one that was read.
        images: Folder of images, or a list of image files.
        preprocessing: How they become inputs; size, layout and type are taken from the model where it states them. By
            default what the option `like` says, else what the file says of itself in its metadata, or a
            `preprocessor_config.json` beside it.
        max_images: Take at most this many of the images, spread evenly over the folder or the list.
        batch_size: Images per run, where the model leaves it open.
        provider: Where the model runs, by onnxruntime's name.
        progress: Called with the number of images after each run.
        options: Fields of `logn.Hints` (`like`, `size`, `activation`, `background`, `tensor`, `class_names`), and
            further arguments of `logn.ClassMoments`: `sample_rows` (4096), `nonfinite`, `mean_probability`.

    Example:
        >>> import tempfile, onnx.parser
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, 1, 1] x) => (float[N, 3] y)
        ... <float[3, 3] w = {2.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0}> { f = Flatten(x) y = Gemm(f, w) }"""
        >>> onnx.save_model(onnx.parser.parse_model(text), str(folder / "model.onnx"))
        >>> Image.new("RGB", (4, 4), (255, 255, 0)).save(folder / "yellow.png")
        >>> record_onnx(folder / "model.onnx", folder, Preprocessing()).mean
        array([2., 1., 0.])
    '''
    kept = {name: options.pop(name) for name in ("sample_rows", "nonfinite", "mean_probability") if name in options}
    if preprocessing is not None:
        options["like"] = preprocessing
    model = OnnxModel(read_onnx(model_path), Hints(**options), provider)
    files = ImageFiles(choose_images(images, max_images))
    (moments,) = model.collect(files, batch_size, progress, **kept)
    return moments


class OnnxModel:
    """An ONNX file, run by onnxruntime.

    Args:
        file: The file, read once.
        hints: What the user says about it.
        provider: Where it runs, by onnxruntime's name.
    """

    suffix = ".onnx"
    marks_itself = True
    scales_scores = True
    num_stages = 1

    def __init__(self, file: OnnxFile, hints: Hints, provider: str = CPU) -> None:
        hints.refuse(f"`{file.path}`, an ONNX file", "layer")
        self.file, self.hints, self.provider = file, hints, provider
        self.name = str(file.path)
        self._located: Located | None = None

    @cached_property
    def description(self) -> Description:
        """What the user or the file says of it."""
        return describe(self.file, self.hints.preset)

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """How images become inputs; raises if neither the file nor the user says it."""
        if self.description.preset is None and not self.hints.preparation and self.hints.like is None:
            raise InputError(
                f"`{self.name}` does not say how its images are prepared. Pass `like`: one of "
                f"{', '.join(PRESETS)}, or a .json file."
            )
        settled = settle(self.file, self.description, **self.hints.preparation)
        require_size(self.file, settled)
        return settled

    @property
    def traits(self) -> Traits:
        """Producer and preprocessing."""
        source = f" ({self.description.source})" if self.description.source else ""
        producer = f", {self.file.model.producer_name}" if self.file.model.producer_name else ""
        return Traits(f"ONNX{producer}", self.preprocessing.in_words() + source, self.suffix)

    def locate(self, inputs: Arrays | None = None, num_columns: int | None = None) -> Located:
        """The class logits, searched once: in a run on `inputs`, by default on random values."""
        if self._located is not None and num_columns in (None, self._located.logits.num_columns):
            return self._located
        hints = self.hints
        wanted = wanted_of(
            self.description,
            hints.tensors,
            hints.activation,
            num_columns=num_columns,
            has_background=hints.background is not None,
        )
        self._located = locate(self.file, wanted, inputs)
        return self._located

    def reading(self, logits: OnnxLogits) -> tuple[str | None, int | None]:
        """What follows the logits, and where the background is."""
        return self.description.reading(logits.activation or self.hints.activation, self.hints.background)

    def names_of(self, num_columns: int, background: int | None) -> tuple[str, ...] | None:
        """The names of the columns, or of their classes: as the user says, else as the file does."""
        given = self.hints.names(num_columns, background)
        checked_names(self.file, given, num_columns, background)
        return given if given is not None else self.description.names_of(num_columns, background)

    @cached_property
    def head(self) -> Head:
        """What its class logits are, from a run on noise."""
        named = self.hints.class_names
        number = None if named is None or isinstance(named, str | os.PathLike) else len(named)
        located = self.locate(num_columns=number)
        logits, layout = located.logits, find_objectness(self.file.graph, located.logits, located.values)
        return replace(self.head_at(logits), objectness=layout is not None or logits.start == BOX_AND_OBJECTNESS)

    def head_at(self, logits: OnnxLogits) -> Head:
        """What these logits are."""
        activation, background = self.reading(logits)
        return Head.of_classes(
            self.names_of(logits.num_columns, background),
            logits.num_columns,
            background,
            activation=activation,
            layer=", ".join(logits.tensors),
            source=self.fingerprint,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Digest of its weights."""
        return onnx_digest(self.file)

    @cached_property
    def detector(self) -> OnnxDetector:
        """The file as a source of proposals."""
        from logn.models.onnx.detector import OnnxDetector

        return OnnxDetector(self)

    def classify(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Logits:
        """Take the logits where `fold_onnx` changes them."""
        batches = plan_batches(self.file.inputs, self.preprocessing, batch or 1)
        session, parts = None, list[Logits]()
        for inputs, real in batches.read(images):
            logits = self.locate(inputs).logits
            session = session or self.file.session(logits.tensors, only=True, provider=self.provider)
            rows = _rows(_levels(session.run(inputs, logits.tensors), logits, None), logits.tensors, real, batches)
            if len(rows) != real:
                raise InputError(
                    f"`{self.name}` gives {len(rows) // real:,} rows of logits per image, as detectors and segmenters "
                    f"do. For a detector, {NEEDS_BOXES}."
                )
            parts.append(rows.astype(np.float32))
            progress(real)
        images.finish()
        return np.concatenate(parts)

    def check(self) -> None:
        """Refuse a file that holds a correction already."""
        from logn.models.onnx.fold import refuse_folded_file

        refuse_folded_file(self.file.model, self.file.path)

    def collect(
        self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore, **options: Any
    ) -> Stages:
        """Record the logits where `fold_onnx` changes them."""
        batches = plan_batches(self.file.inputs, self.preprocessing, batch or 1)
        runs = batches.read(images)
        first = next(runs, None)
        if first is None:
            images.finish()
            raise InputError("`images` holds no images; pass some.")
        located = self.locate(first[0])
        logits = located.logits
        head = self.head_at(logits)
        moments = ClassMoments(head, **{"sample_rows": SAMPLE_ROWS, **options})
        boxes = None if head.activation == "softmax" else _objectness_output(self.file, located)
        tensors = [*dict.fromkeys((*logits.tensors, *(boxes.outputs if boxes else ())))]
        session = self.file.session(tensors, only=True, provider=self.provider)
        for inputs, real in itertools.chain([first], runs):
            rows = _rows(_levels(session.run(inputs, tensors), logits, boxes), logits.tensors, real, batches)
            objectness = rows[:, -logits.num_columns - 1] if rows.shape[1] > logits.num_columns else None
            moments.update(rows[:, -logits.num_columns :], objectness)
            progress(real)
        images.finish()
        return (moments,)

    def copy(self, output: Path) -> None:
        """Copy the file; `copy_model` copies the weights beside it."""
        shutil.copyfile(self.file.path, output)

    def write(
        self,
        maps: Sequence[ClassAffine],
        output: Path,
        images: ImageFiles | None = None,
        class_factors: npt.NDArray[np.float64] | None = None,
    ) -> Proof:
        """Fold the map into the file and run both files on the images."""
        from logn.models.onnx.fold import fold_onnx

        (affine,) = maps
        logits = self.locate().logits
        inputs = None
        if images is not None:
            batches = plan_batches(self.file.inputs, self.preprocessing, 1)
            inputs = [run for run, _ in itertools.islice(batches.read(images), len(images.items))]
        report = fold_onnx(self.file, affine, output, tensor=logits.tensors, inputs=inputs, class_factors=class_factors)
        return Proof.of(report.largest_difference, report.largest_logit, report.rows)


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

    def read(self, images: ImageFiles) -> Iterator[tuple[Arrays, int]]:
        """The inputs of each run, and how many of their images are real: a last batch may be filled up."""
        readable = (self.preprocessing.apply(image) for image in images.read())
        step = self.size or 1
        while part := list(itertools.islice(readable, step)):
            real = len(part)
            if self.fixed:
                part += [part[-1]] * (step - real)
            stacked = np.stack(part) if self.size else part[0]
            yield {self.image.name: stacked, **other_inputs(self.others, self.image, stacked.shape)}, real


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


def _objectness_output(file: OnnxFile, located: Located) -> BoxLayout | None:
    """The output that holds an objectness before the scores, unless it stands before the logits already."""
    if located.logits.start == BOX_AND_OBJECTNESS:
        return None
    return find_objectness(file.graph, located.logits, located.values)


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
