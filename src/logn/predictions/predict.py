"""predict: run a model once over a data set and keep all its logits, of a detector with its boxes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.data.class_names import ClassMatch, match_classes, warn_of_position
from logn.data.dataset import ClassificationDataset, DetectionDataset, open_dataset
from logn.errors import InputError, warn
from logn.models.detector import Detector
from logn.models.hints import Hints
from logn.models.open import detector, open_model
from logn.models.opened import BATCH
from logn.models.proposals import Proposals
from logn.predictions.classifier import predict_classifier
from logn.predictions.store import HEADER_NAME, Predictions, PredictionWriter, StoreHeader


def predict(
    model: Any,
    data: str | os.PathLike[str] | DetectionDataset | ClassificationDataset,
    path: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    batch: int | None = None,
    dtype: str = "float16",
    boxes_per_proposal: int | None = 100,
    trust: bool = False,
    overwrite: bool = False,
    metadata: Mapping[str, Any] | None = None,
    progress: Callable[[int], object] | None = None,
    **hints: Any,
) -> int:
    """Run a detector or a classifier over labelled images and keep its logits, for `logn.compare`.

    Of a detector all proposals are written to a folder; images that it holds already are not run again. Of a
    classifier, if `data` is a folder per class or a list, logits, labels, class names and paths are written to one
    `.safetensors` file. Its classes are matched by name; images of other classes, and files that cannot be read, are
    left out with a warning.

    Under torchrun process `r` of `w` takes every `w`-th image from `r`, so no image is run twice, and a later run may
    have another number of processes. A classifier takes one process.

    Args:
        model: Of a detector anything that `logn.detector` takes, of a classifier anything that `logn.correct` takes.
        data: Of a detector annotations in any form, or a data set. They name images and classes; the boxes are not
            used. Of a classifier a folder with a folder of images per class (`imagenet/val`, or `imagenet:val`), a
            `.txt` list with a path and a class per line, or a `.csv` table with columns `path` and `label`.
        path: The folder; of a classifier the file.
        images: Folder that the image paths in `data` start from; by default that of the annotations.
        batch: Images per forward pass; by default 8, of ONNX classifiers 1.
        dtype: Of the logits: "float16", or "float32" for twice the size.
        boxes_per_proposal: For models with a box per class: keep the boxes of this many top-scoring classes of each
            proposal. Other classes use the box of the top class. None keeps all: 21 MB per image for LVIS.
        trust: Open a `.pt` file, which is a pickle and runs its author's code.
        overwrite: Of a classifier: replace the file.
        metadata: Kept in the header. Its `images` (of the data set) must be the same when a folder is continued, as the
            weights must be; it is filled in if missing.
        progress: Called with the number of images whenever some are done, including those of an earlier run.
        hints: Fields of `logn.Hints`, such as `like` and `class_names`.

    Returns:
        Number of images that this call has run.

    Example:
        >>> import logn
        >>> logn.predict("yolox_nano.onnx", "val.json", "predictions", images="val2017")  # doctest: +SKIP
        5000
        >>> logn.predict("vit", "imagenet:val", "test.safetensors")  # doctest: +SKIP
        50000
    """
    if batch is not None and batch < 1:
        raise InputError(f"Expected `batch` to be at least 1, but got {batch}.")
    report = progress or (lambda count: None)
    dataset = open_dataset(data, images) if isinstance(data, str | os.PathLike) else data
    if isinstance(dataset, ClassificationDataset):
        opened = open_model(model, Hints(trust=trust, **hints))
        return predict_classifier(
            opened, dataset, path, batch=batch, overwrite=overwrite, metadata=metadata, progress=report
        )
    if overwrite:
        raise InputError("`overwrite` is for classifiers; of a detector a folder is continued, or use a new one.")
    source = detector(model, trust=trust, **hints)
    match = match_detector(source, dataset.class_names)
    about = {"images": dataset.images_fingerprint, **(metadata or {})}
    done = _images_done(path, source, dataset, about, dtype, boxes_per_proposal)
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    mine = range(rank, len(dataset.image_ids), world_size)
    missing = [index for index in mine if int(dataset.image_ids[index]) not in done]
    report(len(mine) - len(missing))

    def start(example: Proposals) -> PredictionWriter:
        """What a detector gives per proposal is known from the first image."""
        has_class_boxes = example.boxes.ndim == 3
        header = StoreHeader(
            source.head_of(example, match.model_names),
            class_boxes=has_class_boxes,
            dtype=dtype,
            category_ids=tuple(dataset.category_ids.tolist()) or None if match.identical else None,
            num_images=len(dataset.image_ids),
            metadata=about,
            postprocessing=source.postprocessing,
            boxes_per_proposal=boxes_per_proposal if has_class_boxes else None,
        )
        if header.boxes_per_proposal is not None and rank == 0 and not done:
            warn(
                f"Each proposal keeps the boxes of its {header.boxes_per_proposal} top-scoring classes of "
                f"{header.head.num_classes:,} (in Python boxes_per_proposal=None keeps all)."
            )
        return PredictionWriter(path, header)

    batches = prepared_batches(source, dataset, missing, batch or BATCH)
    _write(((indices, source.propose(images)) for indices, images in batches), dataset.image_ids, start, report)
    return len(missing)


def _write(
    results: Iterator[tuple[Sequence[int], Sequence[Proposals]]],
    image_ids: npt.NDArray[np.int64],
    start: Callable[[Proposals], PredictionWriter],
    report: Callable[[int], object],
) -> None:
    """Write the proposals of images while the model works on the next."""
    writer: PredictionWriter | None = None

    def write(writer: PredictionWriter, indices: Sequence[int], proposals: Sequence[Proposals]) -> int:
        for index, of_image in zip(indices, proposals, strict=True):
            writer.append(int(image_ids[index]), of_image)
        return len(indices)

    try:
        with ThreadPoolExecutor(1) as writing:
            waiting: Future[int] | None = None
            for indices, proposals in results:
                writer = writer or start(proposals[0])
                report(waiting.result() if waiting else 0)
                waiting = writing.submit(write, writer, indices, proposals)
            report(waiting.result() if waiting else 0)
    finally:
        if writer:
            writer.close()


def match_detector(source: Detector, label_names: Sequence[str]) -> ClassMatch:
    """Match the classes of a data set with those of a detector: by name, or by position if the detector has no names.

    The data set may have other classes too. One without any class of the detector is refused, and so is one with
    another number of classes than a detector without names.
    """
    if source.class_names is not None:
        return match_classes(source.class_names, label_names)
    if source.num_classes != len(label_names):
        number = "an unknown number of" if source.num_classes is None else source.num_classes
        raise InputError(
            f"The detector has {number} classes without names, but the data set has {len(label_names)}. "
            "Pass `class_names` to match classes by name."
        )
    warn_of_position("labels", label_names)
    return match_classes(label_names, label_names)


def _images_done(
    path: str | os.PathLike[str],
    source: Detector,
    dataset: DetectionDataset,
    metadata: Mapping[str, Any],
    dtype: str,
    boxes_per_proposal: int | None,
) -> frozenset[int]:
    """The images that are predicted already; predictions of another model, other images or settings are refused."""
    if not (Path(path) / HEADER_NAME).is_file():
        return frozenset()
    store = Predictions(path)
    wanted = replace(
        store.header,
        head=replace(store.head, source=source.source),
        dtype=dtype,
        boxes_per_proposal=boxes_per_proposal if store.header.class_boxes else None,
        metadata=dict(metadata),
    )
    # Checked here, since complete predictions get no writer that would notice.
    store.header.check_same(wanted, Path(path))
    done = frozenset(store.image_ids.tolist())
    strays = done - set(dataset.image_ids.tolist())
    if strays:
        raise InputError(f"`{path}` holds image {min(strays)}, which the data set does not have; use a new folder.")
    return done


def prepared_batches(
    source: Detector, dataset: DetectionDataset, images: Sequence[int], batch: int
) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Images as a detector takes them, batch by batch; the next are read and prepared while it works."""

    def read(indices: Sequence[int]) -> list[Any]:
        return [source.prepare(dataset.read_image(index)) for index in indices]

    batches = [images[start : start + batch] for start in range(0, len(images), batch)]
    with ThreadPoolExecutor(1) as reader:
        reading = [reader.submit(read, indices) for indices in batches[:1]]
        for number, indices in enumerate(batches):
            ready = reading.pop().result()
            reading = [reader.submit(read, following) for following in batches[number + 1 : number + 2]]
            yield indices, ready
