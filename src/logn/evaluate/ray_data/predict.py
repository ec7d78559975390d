"""Proposals of a detector over images of Ray Data: each worker writes its blocks to the store by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.errors import InputError
from logn.evaluate.models.open import fingerprint_of
from logn.evaluate.ray_data.engine import BlockWorker, import_ray, run_blocks, shipped
from logn.evaluate.ray_data.images import BlockImages
from logn.evaluate.store.predict import header_of, images_there, match_detector, write_images
from logn.labels.dataset import DetectionDataset

# Images of a block of a data set of ours: many batches of a detector, and few enough for a lost worker to cost little.
BLOCK_IMAGES = 64


def predict(
    dataset: Any,
    make_detector: Callable[[], Any],
    path: str | os.PathLike[str],
    *,
    class_names: Sequence[str] | None = None,
    image_column: str | None = None,
    dtype: str = "float16",
    class_boxes: int | None = None,
    batch: int = 8,
    workers: int | None = None,
    gpus_per_worker: float = 0,
    metadata: Mapping[str, Any] | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> int:
    """Write the proposals of all images to a store; images that it holds already are not run again.

    Each block of the data is a part of the store, written by the worker that has the block: proposals never travel.
    What a worker that died has written is kept, and the rest of its block done by the next one. An image that cannot
    be read is refused, since AP without it would be that of another data set.

    Args:
        dataset: A `DetectionDataset`, or a `ray.data.Dataset` whose rows have an image as `logn.ray.collect` takes it
            and its number in the annotations, `image_id`.
        make_detector: A function that gives a source of proposals (`logn.detector(…)`), called on each worker.
        path: Folder of the store, which all workers reach under this name.
        class_names: Foreground classes of the labels; by default those of the data set, or else of the detector.
        image_column: Where the images are, if not under a usual name.
        dtype: Of the logits: "float16", or "float32" for twice the size.
        class_boxes: As in `logn.predict`.
        batch: Images per forward pass.
        workers: How many; by default one per GPU, or one per core but one.
        gpus_per_worker: GPUs that each of them has; 0 runs on the processor.
        metadata: Kept in the header.
        progress: Called with the number of images whenever some are done, those of an earlier run included.

    Returns:
        How many images this call has run.
    """
    make = shipped(make_detector, "make_detector")
    for name, number in (("batch", batch), ("class_boxes", class_boxes)):
        if number is not None and number < 1:
            raise InputError(f"Expected `{name}` to be at least 1, but got {number}.")
    ids, rows = None, dataset
    category_ids: tuple[int, ...] | None = None
    if isinstance(dataset, DetectionDataset):
        ids, rows = dataset.image_ids.tolist(), image_rows(dataset)
        category_ids = tuple(dataset.category_ids.tolist())
        class_names = dataset.class_names if class_names is None else class_names
    images_there(path, metadata or {}, ids, dtype, class_boxes)  # refused here, before any worker starts
    settings = {
        "make_detector": make,
        "path": os.path.abspath(path),
        "class_names": None if class_names is None else tuple(class_names),
        "category_ids": category_ids,
        "image_column": image_column,
        "num_images": rows.count() if ids is None else len(ids),
        "dtype": dtype,
        "class_boxes": class_boxes,
        "batch": batch,
        "gpus": gpus_per_worker,
        "metadata": dict(metadata or {}),
    }
    run = 0
    for row in run_blocks(rows, PredictWorker, settings, workers=workers, gpus=gpus_per_worker):
        run += int(row["run"])
        progress(int(row["images"]))
    return run


def image_rows(dataset: DetectionDataset, order: npt.ArrayLike | None = None) -> Any:
    """Some images of a data set (all for None) as rows of Ray Data, in blocks of `BLOCK_IMAGES`."""
    import_ray()
    import pyarrow
    import ray

    chosen = np.arange(len(dataset)) if order is None else np.asarray(order)
    sizes = dataset.image_sizes[chosen] if len(chosen) else np.empty((0, 2), np.int64)
    columns = {
        "image_id": dataset.image_ids[chosen],
        "path": [str(Path(dataset.image_path(int(index))).absolute()) for index in chosen],
        "height": sizes[:, 0],
        "width": sizes[:, 1],
    }
    table = pyarrow.table(columns)
    blocks = [table.slice(start, BLOCK_IMAGES) for start in range(0, len(chosen), BLOCK_IMAGES)]
    return ray.data.from_arrow(blocks or [table])


class PredictWorker(BlockWorker):
    """Holds a detector and writes the proposals of its blocks."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._known: frozenset[int] | None = None

    def answer(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """Write those images of a block that the store does not hold."""
        images = _BlockSource(block, self.settings)
        detector, settings = self.model("make_detector"), self.settings
        match = match_detector(detector, images.names_or(detector))
        metadata = {**settings["metadata"], "fingerprint": fingerprint_of(detector)}
        if self._known is None:
            kinds = settings["dtype"], settings["class_boxes"]
            self._known = images_there(settings["path"], metadata, None, *kinds)
        todo = [index for index, number in enumerate(images.image_ids.tolist()) if number not in self._known]
        if todo:
            header = partial(
                header_of,
                detector,
                images,
                match,
                dtype=settings["dtype"],
                class_boxes=settings["class_boxes"],
                num_images=settings["num_images"],
                metadata=metadata,
            )
            write_images(
                detector,
                images,
                todo,
                settings["path"],
                header,
                part=int(images.image_ids.min()),  # which no other block has, and every attempt at this one
                batch=settings["batch"],
                report=lambda count: None,
            )
        return {"images": len(images.image_ids), "run": len(todo)}


class _BlockSource:
    """A block as the source of images that `write_images` takes."""

    def __init__(self, block: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        if "image_id" not in block:
            raise InputError(
                f"Expected `dataset` to have the column `image_id`, the number of each image in the annotations, but "
                f"it has {', '.join(block)}."
            )
        self._images = BlockImages(block, settings["image_column"])
        self.image_ids: npt.NDArray[np.int64] = np.asarray(block["image_id"], np.int64)
        self.class_names: Sequence[str] = settings["class_names"] or ()
        self.category_ids = np.array(settings["category_ids"] or (), np.int64)

    def names_or(self, detector: Any) -> Sequence[str]:
        """The classes of the labels; those of the detector where nobody said."""
        self.class_names = self.class_names or getattr(detector, "class_names", None) or ()
        if not self.class_names:
            raise InputError("Expected `class_names`, since the detector does not name its classes, but got None.")
        return self.class_names

    def read_image(self, index: int) -> npt.NDArray[np.uint8]:
        """Image `index` of the block."""
        return self._images.read(index)
