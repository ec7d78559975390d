"""An opened ONNX file: its logits recorded over images, its boxes proposed, a correction written into it."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.data.masks import combine_prototypes
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.detector import Detector
from logn.models.hints import Hints
from logn.models.images import ImageFiles, as_rgb, choose_images
from logn.models.onnx.boxes import BoxLayout, chosen_inside, class_rows, decode_boxes, find_boxes, find_objectness
from logn.models.onnx.description import Description, column_names, describe
from logn.models.onnx.file import CPU, Arrays, ImageInput, OnnxFile, read_onnx
from logn.models.onnx.fold import check_place, fold_located, refuse_folded_file
from logn.models.onnx.locate import BOX_AND_OBJECTNESS, Located, Wanted, locate
from logn.models.opened import NEEDS_BOXES, NEEDS_CLASSES, Advance, Logits, Stages, Traits, ignore
from logn.models.preprocessing import PRESETS, Placement, Preprocessing
from logn.models.proposals import Postprocessing, Proposals, check_rows
from logn.models.write import Proof
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments
from logn.statistics.row_sample import SAMPLE_ROWS


def record_onnx(
    model_path: str | os.PathLike[str],
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
        model_path: The ONNX file.
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
    def images(self) -> ImageInput:
        """The input that takes images; raises if neither the file nor the user says how they are prepared."""
        preset, given = self.description.preset, self.hints.preparation
        if preset is None and not given and self.hints.like is None:
            raise InputError(
                f"`{self.name}` does not say how its images are prepared. Pass `like`: one of "
                f"{', '.join(PRESETS)}, or a .json file."
            )
        base = Preprocessing() if preset is None else preset.preprocessing
        given = {name: value for name, value in given.items() if value is not None}
        base = replace(base, layout=given.get("layout", base.layout))
        if ImageInput(self.file.inputs, replace(base, size=None)).preprocessing.size is not None:
            base = replace(base, size=None)  # the preset's is for models that leave it open
        images = ImageInput(self.file.inputs, replace(base, **given))
        if images.preprocessing.size is None and images.has_batches:  # without batches, the model scales them itself
            raise InputError(
                f"`{self.name}` leaves its input size open. Pass the height and width that it was trained at as "
                "`size`, or write them as `imgsz` into its metadata."
            )
        return images

    @property
    def traits(self) -> Traits:
        """Producer and preprocessing."""
        source = f" ({self.description.source})" if self.description.source else ""
        producer = f", {self.file.model.producer_name}" if self.file.model.producer_name else ""
        return Traits(f"ONNX{producer}", self.images.preprocessing.in_words() + source, self.suffix)

    @property
    def data_files(self) -> list[Path]:
        """Files that hold weights beside it."""
        return self.file.data_files

    def locate(self, inputs: Arrays | None = None, num_columns: int | None = None) -> Located:
        """The class logits, searched once.

        Args:
            inputs: What to run the model on to find them; by default random values.
            num_columns: How many columns they have; by default as many as the file names classes.
        """
        if self._located is None:
            preset, names = self.description.preset, self.description.class_names
            with_background = preset is not None and preset.background is not None
            if num_columns is None and names is not None and not self.hints.tensors and not with_background:
                num_columns = len(names)
            wanted = Wanted(
                num_columns,
                self.hints.tensors,
                self.hints.activation,
                has_background=self.hints.background is not None,
                start=None if preset is None else preset.start,
            )
            self._located = locate(self.file, wanted, inputs)
        return self._located

    @cached_property
    def _reading(self) -> tuple[str | None, int | None]:
        """What follows the logits, and where the background is: as the graph or the user says, else as the preset."""
        activation, background = self.locate().logits.activation or self.hints.activation, self.hints.background
        preset = self.description.preset
        if preset is not None:
            activation = activation or preset.activation
            if background is None and activation != "sigmoid":  # sigmoids have none
                background = preset.background
        return activation, background

    @cached_property
    def _objectness(self) -> BoxLayout | None:
        """The output that holds an objectness before the scores, unless it stands before the logits already."""
        located = self.locate()
        if located.logits.start == BOX_AND_OBJECTNESS or self._reading[0] == "softmax":
            return None
        return find_objectness(self.file.graph, located.logits, located.values)

    @cached_property
    def head(self) -> Head:
        """What its class logits are."""
        listed = self.hints.class_names
        number = None if listed is None or isinstance(listed, str | os.PathLike) else len(listed)
        logits, (activation, background) = self.locate(num_columns=number).logits, self._reading
        columns, own = logits.num_columns, self.description.class_names
        return Head.of_classes(
            column_names(own, self.hints.names(columns, background), columns, background, f"`{self.name}`"),
            columns,
            background,
            activation=activation,
            objectness=logits.start == BOX_AND_OBJECTNESS or self._objectness is not None,
            layer=", ".join(logits.tensors),
            source=self.file.digest,
        )

    @cached_property
    def detector(self) -> OnnxDetector:
        """The file as a source of proposals."""
        return OnnxDetector(self)

    def classify(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Logits:
        """Take the logits where `fold_onnx` changes them."""
        parts = list[Logits]()
        for rows, real in self._rows(images, batch or 1):
            if len(rows) != real:
                raise InputError(
                    f"`{self.name}` gives {len(rows) // real:,} rows of logits per image, as detectors and segmenters "
                    f"do. For a detector, {NEEDS_BOXES}."
                )
            parts.append(rows[:, -self.head.width :].astype(np.float32))
            progress(real)
        return np.concatenate(parts)

    def collect(
        self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore, **options: Any
    ) -> Stages:
        """Record the logits where `fold_onnx` changes them."""
        moments: ClassMoments | None = None
        for rows, real in self._rows(images, batch or 1):
            if moments is None:
                moments = ClassMoments(self.head, **{"sample_rows": SAMPLE_ROWS, **options})
            columns = self.head.width
            moments.update(rows[:, -columns:], rows[:, -columns - 1] if self.head.objectness else None)
            progress(real)
        if moments is None:
            raise InputError("`images` holds no images; pass some.")
        return (moments,)

    def _rows(self, images: ImageFiles, batch: int) -> Iterator[tuple[npt.NDArray[Any], int]]:
        """The class logits of each run, behind their objectness if they have one, and of how many images they are."""
        if batch > 1 and not self.images.has_batches:
            name = self.images.spec.name
            raise InputError(f"Expected `batch_size` to be 1, since `{name}` takes one image, but got {batch}.")
        session, prepare = None, self.images.preprocessing.apply
        for inputs, real in self.images.runs(map(prepare, images.read()), batch):
            logits, boxes = self.locate(inputs).logits, self._objectness
            tensors = [*dict.fromkeys((*logits.tensors, *(boxes.outputs if boxes else ())))]
            session = session or self.file.session(tensors, only=True, provider=self.provider)
            values = session.run(inputs, tensors)
            if boxes is not None:
                objectness: Any = boxes.objectness_logits(boxes.rows(values))
                classes = class_rows(logits, values, boxes.order)
                levels = [np.concatenate([objectness[..., None], classes], axis=-1)]
            else:
                first = logits.start - 1 if self.head.objectness else logits.start
                levels = [np.moveaxis(values[tensor], logits.axis, -1)[..., first:] for tensor in logits.tensors]
            size = next(iter(inputs.values())).shape[0]
            if real < size and self.images.has_batches:
                if any(array.ndim < 2 or len(array) != size for array in levels):
                    raise InputError(
                        f"The model takes {size} images at a time, and `{logits.tensors[0]}` does not tell them apart: "
                        f"pass a multiple of {size} images."
                    )
                levels = [array[:real] for array in levels]
            yield np.concatenate([array.reshape(-1, array.shape[-1]) for array in levels]), real
        images.finish()

    def check(self) -> None:
        """Refuse a file that holds a correction already."""
        refuse_folded_file(self.file)

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
        """Put the map behind the logits, and run both files on the images."""
        (affine,) = maps
        affine.check_fits(self.head, f"`{self.name}`")
        check_place(affine, self.locate().logits, f"`{self.name}`")
        runs: list[Arrays] = []
        if images is not None:
            prepared = map(self.images.preprocessing.apply, images.read())
            runs = [run for run, _ in itertools.islice(self.images.runs(prepared), len(images.items))]
        return fold_located(self.file, self.locate(), affine, output, runs, class_factors)


class Prepared(NamedTuple):
    """An image as the model takes it, and where it came from."""

    pixels: npt.NDArray[Any]
    placement: Placement
    height: int
    width: int


class OnnxDetector(Detector):
    """A detector in an ONNX file that gives its proposals before any activation.

    The class logits are read inside the graph, where `logn.fold_onnx` corrects them, and the boxes from the outputs.
    Which layout these have is found out by a run: boxes, objectness and scores in one output (YOLOv5, YOLOX, YOLOv8),
    or in outputs of their own (NanoDet, DETR, SSD). A model that chooses among its boxes inside is refused.

    Args:
        model: The opened file.
    """

    def __init__(self, model: OnnxModel) -> None:
        file, self._input = model.file, model.images
        self.preprocessing = self._input.preprocessing
        if self.preprocessing.size is None:
            raise InputError(
                f"The boxes of `{model.name}` are in pixels of its input, whose size is open. Pass `size`."
            )
        self.name, self._size = file.path.name, self.preprocessing.size
        trial = self._input.random()
        try:
            located = model.locate(trial)
        except InputError as error:
            if "NonMaxSuppression" in file.graph.operators():  # which logits would not help
                raise chosen_inside(file.graph, self.name) from error
            raise
        self._logits = located.logits
        self._session = file.session(self._logits.tensors, provider=model.provider)
        values = located.values if located.inputs is trial else {}
        values = values or self._session.run(trial)
        try:
            self._boxes = find_boxes(file.graph, self._logits, values, name=self.name)
        except InputError as error:
            images = len(trial[self._input.spec.name]) if self._input.has_batches else 1
            if sum(values[tensor].size for tensor in self._logits.tensors) != images * self._logits.num_columns:
                raise
            raise InputError(
                f"`{model.name}` gives no boxes, but one row of logits per image. For a classifier, {NEEDS_CLASSES}."
            ) from error
        decode_boxes(self._boxes, self._boxes.rows(values), self._size, name=self.name)
        prototypes = [self._boxes.prototypes] if self._boxes.prototypes else []
        self.masks = self._masks if prototypes else None
        self._wanted = list(dict.fromkeys((*self._boxes.outputs, *self._logits.tensors, *prototypes)))
        self.head = replace(model.head, population="every box of the model")
        if self.head.activation is None:
            raise InputError(
                f"The graph of `{model.name}` ends with the logits. Pass `activation`: softmax or sigmoid."
            )
        preset = model.description.preset
        self.postprocessing = Postprocessing() if preset is None else preset.postprocessing

    @property
    def source(self) -> str | None:
        """Digest of the file."""
        return self.head.source

    def prepare(self, image: Any) -> Prepared:
        """An image as the model takes it."""
        if isinstance(image, Prepared):
            return image
        pixels = as_rgb(image)
        height, width = pixels.shape[:2]
        return Prepared(self.preprocessing.apply(pixels), self.preprocessing.placement(height, width), height, width)

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image."""
        return [proposals for _, part in self._propose(images) for proposals in part]

    def _propose(self, images: Sequence[Any]) -> Iterator[tuple[Arrays, list[Proposals]]]:
        """What each run gives, and the proposals of its images."""
        prepared, start = [self.prepare(image) for image in images], 0
        pixels = [item.pixels for item in prepared]
        for feed, real in self._input.runs(pixels, 1 if self._boxes.one_image else len(images)):
            values = self._session.run(feed, self._wanted)
            count = len(feed[self._input.spec.name]) if self._input.has_batches else 1
            yield values, list(self._proposals(prepared[start : start + real], values, count))
            start += real

    def _proposals(self, images: Sequence[Prepared], values: Arrays, count: int) -> Iterator[Proposals]:
        """The proposals of images, which are the first of `count` in a run."""
        logits, rows = class_rows(self._logits, values, self._boxes.order), self._boxes.rows(values)
        if len(logits) != count or rows.shape[:2] != logits.shape[:2]:
            raise InputError(
                f"`{self.name}` gives {rows.shape[:2]} boxes but {logits.shape[:2]} rows of logits for {count} images; "
                "name the tensor of the class logits by `tensor`."
            )
        boxes = decode_boxes(self._boxes, rows, self._size, name=self.name)
        objectness = self._boxes.objectness_logits(rows)
        for number, item in enumerate(images):
            yield Proposals(
                item.placement.boxes_in_image(boxes[number]).astype(np.float32),
                logits[number],
                item.height,
                item.width,
                objectness=None if objectness is None else objectness[number],
            )

    def _masks(self, image: Any, boxes: Any, classes: Any, rows: Any) -> Iterator[npt.NDArray[np.bool_]]:
        item = self.prepare(image)
        ((values, (proposals,)),) = self._propose([item])
        check_rows(proposals, boxes, rows)
        prototypes = values[str(self._boxes.prototypes)][0].astype(np.float32)
        coefficients = self._boxes.rows(values)[0, rows, -len(prototypes) :].astype(np.float32)
        place = item.placement
        columns = ((np.arange(item.width) + 0.5) * place.scale_x + place.left) * prototypes.shape[2] / self._size[1]
        lines = ((np.arange(item.height) + 0.5) * place.scale_y + place.top) * prototypes.shape[1] / self._size[0]
        return combine_prototypes(prototypes, coefficients, boxes, columns, lines)
