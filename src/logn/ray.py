"""Statistics over a `ray.data.Dataset`: each block of images becomes a few kilobytes on its worker, and these merge.

Example::

    images = ray.data.read_binary_files("s3://lake/train", include_paths=True)
    moments = logn.ray.collect(images, make_model, like="imagenet")

`docs/how-to/many-machines.md` shows more, and when torchrun or files that merge do as well.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.data.images import read_rgb
from logn.errors import InputError, MissingExtraError, warn
from logn.models.hints import Hints
from logn.models.images import ImageFiles
from logn.models.open import open_model
from logn.models.opened import Model
from logn.statistics.moments import ClassMoments

# Where Ray's readers and Hugging Face keep images: pixels and bytes before paths.
COLUMNS = ("image", "bytes", "jpg", "jpeg", "png", "webp", "path")
RETRIES = 5


def collect(
    dataset: Any,
    make_model: Callable[[], Any],
    *,
    like: Any = None,
    image_column: str | None = None,
    batch: int = 8,
    workers: int | None = None,
    gpus_per_worker: float = 0,
    progress: Callable[[int], object] = lambda count: None,
    **hints: Any,
) -> ClassMoments:
    """Run a model over a `ray.data.Dataset` of images and collect the statistics of its logits.

    Each worker makes the model once and answers each block with its statistics; logits never travel. Ray repeats the
    block of a worker that died, and no block counts twice. Images that cannot be read are left out, with a warning.

    Args:
        dataset: Rows with an image each: its path (`path`), its bytes (`bytes`, WebDataset's `jpg` and `png`, Hugging
            Face's `image`), or its pixels (`image`).
        make_model: Returns the model; called on each worker. A torch model, or a detector as for `logn.detector`.
        like: How images are prepared for a torch model that is not a detector of a known framework: a preset, a
            `Preprocessing`, or a function that turns an RGB image into a tensor.
        image_column: Column of the images, if it has another name.
        batch: Images per forward pass.
        workers: Number of workers; by default one per GPU, or one per core but one.
        gpus_per_worker: GPUs of each worker; 0 runs on the CPU.
        progress: Called with the number of images whenever a block is done.
        hints: `activation` and `layer`, as for `logn.correct`.
    """
    ray = _ray()
    if not isinstance(dataset, ray.data.Dataset):
        raise InputError(f"Expected `dataset` to be a ray.data.Dataset, but got {type(dataset).__name__}.")
    if hasattr(make_model, "state_dict") or hasattr(make_model, "propose") or not callable(make_model):
        kind = type(make_model).__name__
        raise InputError(f"Expected `make_model` to be a function that makes the model on each worker, but got {kind}.")
    resources = ray.cluster_resources()
    cores, gpus = resources.get("CPU", 1.0), resources.get("GPU", 0)
    size = workers or max(1, int(gpus / gpus_per_worker) if gpus_per_worker else int(cores) - 1)
    device = "cuda" if gpus_per_worker else "cpu"
    rows = dataset.map_batches(
        _Worker,
        fn_constructor_args=(make_model, Hints(like=like, device=device, **hints), image_column, batch),
        batch_size=None,  # a whole block at a time
        batch_format="numpy",
        zero_copy_batch=True,
        compute=ray.data.ActorPoolStrategy(size=size),
        # Part of a core is left to read the data.
        num_cpus=min(1.0, int(1000 * max(cores - 1, cores / 2) / size) / 1000),
        num_gpus=gpus_per_worker or None,
        ray_remote_args_fn=lambda: {"max_task_retries": RETRIES},
    )
    unreadable: list[tuple[int, str]] = []
    parts = _block_moments(rows.iter_rows(), unreadable, progress)
    try:
        first = next(parts, None)
        if first is None:
            reason = unreadable[-1][1] if unreadable else ""
            raise InputError(f"`dataset` holds no image that can be read. {reason}".strip())
        merged = ClassMoments.merge_all(itertools.chain([first], parts))
    except ray.exceptions.RayActorError as error:
        raise InputError(
            f"The worker of a block died {RETRIES + 1} times: it ran out of memory, or the model's own code failed. "
            "Try a smaller `batch` or fewer `workers`."
        ) from error
    if unreadable:
        count = sum(count for count, _ in unreadable)
        warn(f"{count:,} images could not be read and were left out: {unreadable[-1][1]}")
    return merged


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingExtraError("ray", extra="ray") from error
    return ray


def _block_moments(
    rows: Iterable[Mapping[str, Any]], unreadable: list[tuple[int, str]], progress: Callable[[int], object]
) -> Iterator[ClassMoments]:
    """The statistics that workers answer, each block once; `unreadable` takes the images left out of each, and why."""
    seen: set[str] = set()
    for row in rows:
        if row["error"]:
            raise InputError(row["error"])
        if row["images"] == 0 or row["key"] in seen:
            continue
        seen.add(row["key"])
        if row["unreadable"]:
            unreadable.append((row["unreadable"], row["reason"]))
        progress(int(row["images"]))
        if row["moments"]:
            yield ClassMoments.from_bytes(row["moments"])


class _BlockImages(ImageFiles):
    """The images of a block; the driver warns of those that cannot be read, once for the whole data set."""

    def finish(self) -> None:
        """Neither warn nor refuse."""


class _Worker:
    """Holds a model and answers each block with one row: its statistics as bytes."""

    def __init__(self, make_model: Callable[[], Any], hints: Hints, image_column: str | None, batch: int) -> None:
        self._make, self._hints, self._column, self._batch = make_model, hints, image_column, batch
        self._model: Model | None = None
        self._task, self._blocks = "", 0

    def __call__(self, block: Mapping[str, Any]) -> Any:
        import pyarrow

        row = {"key": self._key(), "images": 0, "moments": b"", "unreadable": 0, "reason": "", "error": ""}
        try:
            row |= self._answer(block)
        except (InputError, MissingExtraError) as error:  # Ray would wrap it into pages of traces
            row["error"] = str(error)
        return pyarrow.table({name: [value] for name, value in row.items()})  # NumPy bytes lose zeros at their end

    def _answer(self, block: Mapping[str, Any]) -> dict[str, Any]:
        column = self._column or next((name for name in COLUMNS if name in block), "")
        if column not in block:
            raise InputError(
                f"`dataset` has the columns {', '.join(block)}, none of which is {column or ', '.join(COLUMNS)}: name "
                "the column of the images by `image_column`."
            )
        values = block[column]
        if not len(values):
            return {}
        self._model = self._model or open_model(self._make(), self._hints)
        images = _BlockImages([partial(_read, value) for value in values])
        try:
            stages = self._model.collect(images, batch=self._batch)
        except InputError:
            if len(images.unreadable) < len(values):
                raise
            stages = ()
        if len(stages) > 1:
            raise InputError(f"The model has {len(stages)} class layers, and Ray collects one: collect without Ray.")
        reason = next(iter(images.unreadable.values()), "")
        moments = stages[0].to_bytes() if stages else b""
        return {"images": len(values), "moments": moments, "unreadable": len(images.unreadable), "reason": reason}

    def _key(self) -> str:
        """The task and which of its blocks this is: the same when a task is repeated after a loss."""
        import ray

        task = str(ray.get_runtime_context().get_task_id())
        self._blocks = self._blocks + 1 if task == self._task else 0
        self._task = task
        return f"{task}/{self._blocks}"


def _read(value: Any) -> npt.NDArray[np.uint8]:
    """An image as RGB, from a path, the bytes of a file, pixels, or Hugging Face's `{"bytes", "path"}`."""
    if isinstance(value, Mapping):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if isinstance(value, bytes):
        return read_rgb(io.BytesIO(value), "an image of a block")
    if isinstance(value, str):
        return read_rgb(value)
    pixels = np.asarray(value)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (3, 4):
        raise InputError(
            f"An image is {pixels.dtype} {pixels.shape}: pass bytes, paths, or pixels of uint8 (height, width, 3)."
        )
    return np.array(pixels[..., :3])  # blocks of Ray are read-only
