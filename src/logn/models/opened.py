"""The one collector: an opened model runs over images once and gives the statistics of its logits.

`correct`, `logn collect` and `logn.ray` all go through `Model.collect`, so they give the same statistics for the same
model. `Model.write` folds a correction, writes the model in its own kind of file, reads it back and proves it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from logn.base.arrays import NO_CLASS, foreground_columns
from logn.data.images import read_rgb, select_images, spread_evenly
from logn.errors import InputError, LogNWarning, MissingExtraError, warn
from logn.methods.affine import ClassAffine
from logn.models.hooks import evaluation_mode
from logn.models.layer import LogitLayer, count_columns, find_modules, fingerprint
from logn.models.preprocessing import Preprocessing
from logn.models.proposals import Postprocessing, Proposals
from logn.models.torch.record import collect_moments, default_sample_rows
from logn.statistics.moments import ClassMoments, StatisticsMetadata

if TYPE_CHECKING:
    from torch import nn

    from logn.models.onnx.file import OnnxFile
    from logn.models.onnx.fold import Proof

Images = Sequence[npt.NDArray[np.uint8]]
# A file, or a function that returns an RGB image.
ImageItem = Path | Callable[[], npt.NDArray[np.uint8]]
ImageSource = str | os.PathLike[str] | Sequence[str | os.PathLike[str] | Callable[[], npt.NDArray[np.uint8]]]
Advance = Callable[[int], object]
# One per stage of a cascade; else one.
Stages = tuple[ClassMoments, ...]
BATCH = 8


def ignore(count: int) -> None:
    """No progress bar."""


def choose_images(source: ImageSource, count: int | None = None) -> list[ImageItem]:
    """The images of a folder or list, at most `count` of them, spread evenly.

    Example:
        >>> [path.name for path in choose_images(["a.png", "b.png", "c.png", "d.png"], 2)]
        ['a.png', 'c.png']
    """
    if isinstance(source, str | os.PathLike):
        return [*select_images(source, count)]
    items: list[ImageItem] = [item if callable(item) else Path(item) for item in source]
    return spread_evenly(items, count)


@dataclass
class ImageFiles:
    """The images that a model runs over.

    Args:
        items: Their files, or functions that return them.
        unreadable: Those that could not be read and were left out, with the reason.
    """

    items: Sequence[ImageItem]
    unreadable: dict[ImageItem, str] = field(default_factory=dict)

    def batches(self, size: int) -> Iterator[list[npt.NDArray[np.uint8]]]:
        """The images as RGB arrays, `size` at a time."""
        batch: list[npt.NDArray[np.uint8]] = []
        for item in self.items:
            try:
                batch.append(read_rgb(item) if isinstance(item, Path) else item())
            except InputError as error:
                self.unreadable[item] = str(error)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    @property
    def paths(self) -> list[Path]:
        """The files; functions are refused."""
        paths = [item for item in self.items if isinstance(item, Path)]
        if len(paths) < len(self.items):
            raise InputError("An ONNX model reads image files, but `images` holds functions. Pass the files.")
        return paths

    def first(self, count: int) -> ImageFiles:
        """The first images that can be read."""
        return ImageFiles([item for item in self.items if item not in self.unreadable][:count])

    def finish(self) -> None:
        """Warn of images that were left out; refuse if all were."""
        left_out = list(self.unreadable)
        if left_out and len(left_out) == len(self.items):
            reason = self.unreadable[left_out[0]]
            raise InputError(f"None of the {len(left_out):,} images can be read: {reason}")
        if left_out:
            named = ", ".join(f"`{path}`" for path in left_out[:3]) + (", …" if len(left_out) > 3 else "")
            warn(f"{len(left_out):,} of {len(self.items):,} images could not be read and were left out: {named}.")


@dataclass(frozen=True)
class Traits:
    """What is known of a model before it runs.

    Args:
        framework: Where it comes from and what it is, such as "transformers, RTDetrForObjectDetection".
        preprocessing: What happens to an image before the model, in words.
        suffix: Suffix of the corrected file; empty for a folder.
    """

    framework: str
    preprocessing: str
    suffix: str


class Model(Protocol):
    """An opened model: it can be run over images, corrected and written."""

    traits: Traits

    @property
    def name(self) -> str:
        """What the user calls it."""

    def check(self) -> None:
        """Refuse what could not be corrected, before the pass over the images, which may take an hour."""

    def collect(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Stages:
        """Run the model over the images once: the statistics of its logits."""

    def write(self, maps: Sequence[ClassAffine], output: Path, images: ImageFiles) -> Proof:
        """Write the corrected model, read it back and prove it on the images; raise if the proof fails."""


@dataclass
class TorchModel:
    """A torch model with its class layer.

    Args:
        name: What the user calls it.
        network: The network, on its device.
        layer: Where its logits are.
        run: Runs it on RGB images, prepared as it needs them.
        traits: What is known of it.
        class_names: Of all columns, including the background, if known.
        save: Writes it to a path.
        reopen: Reads what `save` wrote.
        is_folded: Whether the file itself says that a correction is in it.
    """

    name: str
    network: nn.Module
    layer: LogitLayer
    run: Callable[[Images], object]
    traits: Traits
    class_names: tuple[str, ...] | None
    save: Callable[[TorchModel, Path], object]
    reopen: Callable[[TorchModel, Path], TorchModel]
    is_folded: bool = False

    def check(self) -> None:
        """Refuse a layer that cannot be folded, and weights that hold a correction."""
        from logn.models.torch.fold import check_foldable

        for path, module in zip(self.layer.paths, find_modules(self.network, self.layer), strict=True):
            check_foldable(path, module)
        if self.is_folded:
            raise InputError(
                f"`{self.name}` holds a correction already; use the model as it is, or correct the one before it."
            )
        # Weights do not say that a map is in them. What lies beside them does: it is of the weights before.
        model = Path(self.name)
        for what, stage in itertools.product(("statistics", "affine"), (None, 0)):
            file = beside(model, what, stage, in_folder=model.is_dir())
            if file.is_file() and _fingerprint_in(file) not in (None, fingerprint(self.network)):
                raise InputError(
                    f"`{self.name}` holds a correction already; use it as it is, or correct the model that it was made "
                    f"from. If it was trained anew, delete `{file}`, which belongs to other weights."
                )

    def collect(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Stages:
        """Record the logits at the class layer."""

        def run(part: Images) -> None:
            self.run(part)
            progress(len(part))

        batches = images.batches(batch or BATCH)
        stages = collect_moments(self.network, self.layer, batches, run, class_names=self.class_names)
        images.finish()
        for moments in stages:
            if not moments.count.any():
                raise InputError(f"No image brought logits through `{moments.metadata.layer}`; name another layer.")
        return stages

    def write(self, maps: Sequence[ClassAffine], output: Path, images: ImageFiles) -> Proof:
        """Fold, write, read back: every weight must be there, and the class layer must give the map of the logits."""
        from logn.models.torch.fold import (
            check_kept,
            check_same_weights,
            copied_layer,
            fold,
            prove_fold,
            watch_outputs,
        )

        plain = copied_layer(self.network, self.layer)

        def run(model: TorchModel) -> None:
            for part in images.batches(BATCH):
                model.run(part)

        before = watch_outputs(self.network, self.layer, lambda: run(self))
        with warnings.catch_warnings():
            # The file is read back below, which shows whether a tied weight stays untied.
            warnings.filterwarnings("ignore", message=".* was tied to ", category=LogNWarning)
            fold(self.network, self.layer, list(maps) if self.layer.stages else maps[0])
        self.save(self, output)
        written = self.reopen(self, output)
        check_same_weights(written.network, self.network, self.name)
        if before:
            check_kept(self.layer, maps[0], before, watch_outputs(written.network, self.layer, lambda: run(written)))
        with evaluation_mode(written.network):
            proof = prove_fold(written.network, self.layer, plain, maps, lambda: run(written))
        return proof.checked(self.name)


def _fingerprint_in(file: Path) -> str | None:
    """The fingerprint of the weights that statistics or a map are of; None for another file."""
    for kind in (ClassMoments, ClassAffine):
        with contextlib.suppress(InputError):
            loaded = kind.load(file)
            source = loaded.metadata if isinstance(loaded, ClassMoments) else loaded.source
            return None if source is None else source.fingerprint
    return None


@dataclass
class ProposalModel:
    """A source of proposals without a torch module: its logits can be read, but not corrected.

    Args:
        name: What the user calls it.
        source: With `propose`.
        traits: What is known of it.
    """

    name: str
    source: Any
    traits: Traits

    def check(self) -> None:
        """Refuse: there is no layer to correct."""
        raise InputError(
            f"`{self.name}` gives {type(self.source).__name__}, which has no torch model to correct. `logn collect` "
            "and `logn fit` give the correction of its logits."
        )

    def collect(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Stages:
        """Take the logits of what it proposes."""
        moments: ClassMoments | None = None
        prepare = getattr(self.source, "prepare", as_tensor)
        for part in images.batches(batch or BATCH):
            for proposals in self.source.propose([prepare(image) for image in part]):
                moments = moments or start_moments(self.source, None, proposals.num_columns)
                moments.update(proposals.logits, counted_objectness(self.source, proposals))
            progress(len(part))
        images.finish()
        if moments is None:
            raise InputError(f"`{self.name}` proposed no boxes on these images; use others.")
        return (moments,)

    def write(self, maps: Sequence[ClassAffine], output: Path, images: ImageFiles) -> Proof:
        """Never reached: `check` comes first."""
        raise NotImplementedError


@dataclass
class OnnxModel:
    """An ONNX file, run by onnxruntime.

    Args:
        file: The file, read once.
        traits: What is known of it.
        preprocessing: How images become inputs.
        like: Name of a preset or of a JSON file, if the user gives one.
        hints: `activation`, `background`, `tensor` and `class_names`, where the user gives them.
        tensors: Where its logits were found, once it has run.
        class_factors: Of the class scores at the output, for thresholds beside an objectness.
    """

    file: OnnxFile
    traits: Traits
    preprocessing: Preprocessing
    like: str | None
    hints: dict[str, Any]
    tensors: tuple[str, ...] = ()
    class_factors: npt.NDArray[np.float64] | None = None

    @property
    def name(self) -> str:
        """The path of the file."""
        return str(self.file.path)

    def check(self) -> None:
        """Refuse a file that holds a correction already."""
        from logn.models.onnx.fold import refuse_folded_file

        refuse_folded_file(self.file.model, self.file.path)

    def collect(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Stages:
        """Record the logits where `fold_onnx` changes them."""
        from logn.models.onnx.record import record_onnx

        moments = record_onnx(
            self.file,
            images.paths,
            self.preprocessing,
            like=self.like,
            batch_size=batch or 1,
            unreadable=images.unreadable,
            progress=progress,
            **self.hints,
        )
        images.finish()
        self.tensors = tuple(str(moments.metadata.layer).split(", "))
        return (moments,)

    def write(self, maps: Sequence[ClassAffine], output: Path, images: ImageFiles) -> Proof:
        """Fold the map into the file and run both files on the images."""
        from logn.models.onnx.fold import TOLERANCE, Proof, fold_onnx
        from logn.models.onnx.record import plan_batches

        (affine,) = maps
        batches = plan_batches(self.file.inputs, self.preprocessing, 1)
        runs = [
            inputs for inputs, _ in itertools.islice(batches.read(images.paths, images.unreadable), len(images.paths))
        ]
        report = fold_onnx(
            self.file, affine, output, tensor=self.tensors, inputs=runs, class_factors=self.class_factors
        )
        tolerance = TOLERANCE * max(1.0, report.largest_logit)
        return Proof(report.largest_difference, report.largest_logit, tolerance, report.rows)


def in_words(preprocessing: Preprocessing) -> str:
    """A preprocessing in a few words.

    Example:
        >>> in_words(Preprocessing((416, 416), "letterbox", max_value=255.0, channels="BGR"))
        'letterbox to 416x416, BGR, 0 to 255'
    """
    size = preprocessing.size
    words = ["in its own size" if size is None else f"{preprocessing.resize} to {size[0]}x{size[1]}"]
    words += ["BGR"] if preprocessing.channels == "BGR" else []
    words.append(f"0 to {preprocessing.max_value:g}")
    if any(preprocessing.mean) or set(preprocessing.std) != {1.0}:
        words.append("normalised")
    return ", ".join(words)


def beside(output: Path, what: str, stage: int | None = None, *, in_folder: bool) -> Path:
    """Path of the statistics or the map of a corrected model.

    Example:
        >>> beside(Path("best.pt"), "statistics", in_folder=False).name
        'best.statistics.safetensors'
        >>> beside(Path("model"), "affine", 1, in_folder=True).as_posix()
        'model/logn-affine-2.safetensors'
    """
    part = what if stage is None else f"{what}-{stage + 1}"
    return output / f"logn-{part}.safetensors" if in_folder else output.with_name(f"{output.stem}.{part}.safetensors")


def as_tensor(image: npt.NDArray[np.uint8]) -> Any:
    """An RGB image `(H, W, 3)` as the float tensor `(3, H, W)` in 0..1 that detectors take.

    Example:
        >>> tuple(as_tensor(np.zeros((4, 5, 3), np.uint8)).shape)
        (3, 4, 5)
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", extra="torch") from error
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float().div_(255)


def network_of(adapter: Any) -> Any:
    """The torch module behind a detector, which may be itself; None if there is none."""
    network = adapter if hasattr(adapter, "state_dict") else getattr(adapter, "model", None)
    return network if hasattr(network, "state_dict") else None


def fingerprint_of(adapter: Any) -> str | None:
    """Digest of the weights behind a detector, by which statistics and predictions recognise each other.

    Example:
        >>> fingerprint_of(object()) is None
        True
    """
    if (own := getattr(adapter, "fingerprint", None)) is not None:
        return str(own)
    network = network_of(adapter)
    return None if network is None else fingerprint(network)


def start_moments(source: Any, names: Sequence[str] | None, columns: int) -> ClassMoments:
    """Empty statistics of a detector's proposals.

    Args:
        source: A source of proposals.
        names: Its foreground classes; by default its own `class_names`.
        columns: Columns of its logits.
    """
    layer = getattr(source, "logit_layer", None)
    metadata = StatisticsMetadata(
        class_names=column_names(source, names or getattr(source, "class_names", None), columns),
        background=source.background,
        activation=source.activation,
        layer=None if layer is None else layer.name,
        population=getattr(source, "population", None),
        fingerprint=fingerprint_of(source),
    )
    return ClassMoments(columns, sample_rows=default_sample_rows(columns), mean_probability=True, metadata=metadata)


def counted_objectness(source: Any, proposals: Proposals) -> npt.NDArray[Any] | None:
    """The objectness of proposals if its sigmoid is a plain factor of their scores, as statistics take it."""
    kind = getattr(source, "postprocessing", None) or Postprocessing()
    return proposals.objectness if (kind.objectness, kind.score_power) == ("factor", 1.0) else None


def column_names(source: Any, names: Sequence[str] | None, columns: int) -> tuple[str, ...] | None:
    """The name of each column: a class, the background or no class. None if `names` are not those of its classes."""
    places = class_columns(source, columns)
    if names is None or len(names) != len(places):
        return None
    named = [NO_CLASS] * columns
    if source.background is not None:
        named[source.background] = "background"
    for column, name in zip(places, names, strict=True):
        named[column] = str(name)
    return tuple(named)


def class_columns(source: Any, columns: int) -> npt.NDArray[np.intp]:
    """The column of each foreground class of a model."""
    named = getattr(source, "class_columns", None)
    return np.asarray(
        named if named is not None else np.arange(columns)[foreground_columns(columns, source.background)]
    )


def adapter_model(adapter: Any, **fields: Any) -> TorchModel:
    """The torch model behind a detector adapter, which prepares the images; `fields` are those of `TorchModel`."""
    network: nn.Module = network_of(adapter)
    layer: LogitLayer = adapter.logit_layer
    return TorchModel(
        network=network,
        layer=layer,
        run=lambda images: adapter.propose([as_tensor(image) for image in images]),
        class_names=column_names(adapter, getattr(adapter, "class_names", None), count_columns(network, layer)),
        **fields,
    )
