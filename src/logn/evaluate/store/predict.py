"""Run a detector once over a data set and keep its proposals with all logits; a stopped run resumes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from logn.classes.matching import ClassMatch, match_classes, warn_of_position
from logn.errors import InputError, MissingExtraError, renamed_argument
from logn.evaluate.store.format import StoreHeader, read_pictures
from logn.evaluate.store.size import say_size
from logn.evaluate.store.store import PredictionStore
from logn.evaluate.store.writer import PredictionWriter
from logn.logits.proposals import Proposals, ProposingDetector

# Bytes at the end of a picture's file that tell it from another one, together with its size.
_PICTURE_END = 4096


class ImageSource(Protocol):
    """What `predict` needs of a data set; `logn.labels.dataset.DetectionDataset` has it all.

    Where it has `image_path(index)` too, a run that goes on notices pictures that were replaced under their names.
    """

    @property
    def image_ids(self) -> npt.NDArray[np.int64]:
        """The id of each image."""
        ...

    @property
    def class_names(self) -> Sequence[str]:
        """The name of each foreground class."""
        ...

    @property
    def category_ids(self) -> npt.NDArray[np.int64]:
        """The id of each foreground class."""
        ...

    def read_image(self, index: int) -> npt.NDArray[np.uint8]:
        """Image `index` as RGB of shape `(height, width, 3)`."""
        ...


def predict(
    detector: ProposingDetector,
    dataset: ImageSource,
    path: str | os.PathLike[str],
    *,
    dtype: str = "float16",
    class_boxes: int | None = None,
    batch: int = 8,
    rank: int | None = None,
    world_size: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    progress: Callable[[int], object] | None = None,
    advance: Callable[[int], object] | None = None,
    announce: Callable[[str], object] | None = None,
) -> int:
    """Write the proposals of all images to a store; images that it holds already are not run again.

    Under torchrun each process writes a part of its own: process `r` of `w` takes every `w`-th image from `r`, so no
    image is done twice, and a later run may have another number of processes.

    Args:
        detector: Gives proposals; `docs/predictions-store.md` says how any model can.
        dataset: The images.
        path: Folder of the store.
        dtype: Of the logits: "float16", or "float32" for twice the size.
        class_boxes: Of a detector that has a box for each class: how many boxes to keep of each proposal, of each class
            and so on (`docs/predictions-store.md` has sizes and effects); by default all.
        batch: Images per forward pass.
        rank: Number of this process; by default what torchrun says, else 0.
        world_size: Number of processes; by default what torchrun says, else 1.
        metadata: Kept in the header; its `fingerprint` (of the weights) and `images` (of the data set) must be the
            same when a store is continued.
        progress: Called with the number of images whenever some are done, those of an earlier run included.
        advance: An older name of `progress`.
        announce: Called with a sentence on the size that the store will have, before it is written; by default a
            warning says it where boxes of each class make it very large.

    Returns:
        How many images this call has run.

    Example:
        >>> import logn
        >>> detector = logn.detector("runs/glyphs")  # doctest: +SKIP
        >>> logn.predict(detector, DetectionDataset("glyphs/test.json"), "predictions")  # doctest: +SKIP
        480
    """
    report = renamed_argument("progress", progress, "advance", advance) or (lambda count: None)
    match = match_detector(detector, dataset.class_names)
    for name, number in (("batch", batch), ("class_boxes", class_boxes)):
        if number is not None and number < 1:
            raise InputError(f"Expected `{name}` to be at least 1, but got {number}.")
    rank = int(os.environ.get("RANK", 0)) if rank is None else rank
    world_size = int(os.environ.get("WORLD_SIZE", 1)) if world_size is None else world_size
    known = images_there(path, metadata or {}, dataset.image_ids.tolist(), dtype, class_boxes)
    mine = range(rank, len(dataset.image_ids), world_size)
    todo = [index for index in mine if int(dataset.image_ids[index]) not in known]
    _refuse_other_pictures(path, dataset, mine)
    report(len(mine) - len(todo))
    header = partial(
        header_of,
        detector,
        dataset,
        match,
        dtype=dtype,
        class_boxes=class_boxes,
        num_images=len(dataset.image_ids),
        metadata=metadata or {},
    )
    say = None if rank or known else partial(say_size, path=path, announce=announce)
    write_images(detector, dataset, todo, path, header, part=rank, batch=batch, report=report, before=say)
    return len(todo)


def write_images(
    detector: ProposingDetector,
    dataset: ImageSource,
    todo: Sequence[int],
    path: str | os.PathLike[str],
    header: Callable[[Proposals], StoreHeader],
    *,
    part: int,
    batch: int,
    report: Callable[[int], object],
    before: Callable[[StoreHeader, Sequence[Proposals]], object] | None = None,
) -> None:
    """Run some images of a data set and write them to one part of a store.

    Args:
        detector: Gives proposals.
        dataset: The images.
        todo: Which of them.
        path: Folder of the store.
        header: Makes the header of the store from the proposals of an image.
        part: Number of the part.
        batch: Images per forward pass.
        report: Called with the number of images whenever some are done.
        before: Called with the header and the first images before anything is written.
    """
    writer: PredictionWriter | None = None

    def write(indices: Sequence[int], found: Sequence[Proposals]) -> int:
        for index, proposals in zip(indices, found, strict=True):
            assert writer is not None  # noqa: S101 - it is made before the first call
            writer.append(int(dataset.image_ids[index]), proposals, _picture_digest(dataset, index))
        return len(indices)

    pen = ThreadPoolExecutor(1)
    waiting: Future[int] | None = None
    try:
        for indices, found in _proposals(detector, dataset, todo, batch):
            if writer is None:
                first = header(found[0])
                if before is not None:
                    before(first, found)
                writer = PredictionWriter(path, first, part=part)
            report(waiting.result() if waiting else 0)
            waiting = pen.submit(write, indices, found)  # while the detector works on the next
        report(waiting.result() if waiting else 0)
    finally:
        pen.shutdown()
        if writer:
            writer.close()


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


def match_detector(detector: ProposingDetector, label_names: Sequence[str]) -> ClassMatch:
    """Which class of a data set is which class of a detector: by name, or by place where the detector has no names.

    The images are what is needed of the data set, so it may have other classes too; but one without any class of the
    detector, or with another number of classes than a detector without names, is refused.
    """
    lacking = [name for name in ("propose", "num_classes", "background", "activation") if not hasattr(detector, name)]
    if lacking:
        raise InputError(
            f"Expected `detector` to have `{lacking[0]}`, but {type(detector).__name__} has none; "
            "`logn.detector(model)` wraps models of known frameworks, and docs/predictions-store.md shows how to wrap "
            "any other."
        )
    names = getattr(detector, "class_names", None)
    if names is not None:
        return match_classes(names, label_names)
    if detector.num_classes != len(label_names):
        raise InputError(
            f"Expected `dataset` to have the {detector.num_classes} classes of the detector, "
            f"but it has {len(label_names)}; give its `class_names`, and classes are matched by name."
        )
    warn_of_position("labels", label_names)
    return match_classes(label_names, label_names)


def images_there(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    image_ids: Iterable[int] | None,
    dtype: str,
    class_boxes: int | None = None,
) -> frozenset[int]:
    """The images that the store holds; one of other weights or images is refused, since ids alone would mix them.

    Args:
        path: Folder of the store, which may not be there yet.
        metadata: What its header should say.
        image_ids: All images that it may hold; None where they are not known.
        dtype: Of its logits.
        class_boxes: How many boxes of each class it keeps; None for all.
    """
    if not any(Path(path).glob("part-*/header.json")):
        return frozenset()
    store = PredictionStore(path)
    there = frozenset(store.image_ids.tolist())
    if store.header.dtype != dtype:  # checked here, since a complete store gets no writer that would notice
        raise InputError(
            f"Expected `{path}` to be continued with dtype {store.header.dtype!r}, but got {dtype!r}; use a new folder."
        )
    kept, wanted = store.header.kept_class_boxes, _fewer(class_boxes, store.num_classes)
    if kept != wanted:
        raise InputError(
            f"Expected `class_boxes` to be {kept or 'all'}, as in `{path}`, which is continued, but got "
            f"{wanted or 'all'}; use a new folder."
        )
    for entry, what in (("fingerprint", "weights"), ("images", "images")):
        ours, theirs = metadata.get(entry), store.header.metadata.get(entry)
        if ours and theirs and ours != theirs:
            raise InputError(
                f"Expected `{path}` to be continued with the same {what}, but they differ; use a new folder."
            )
    strays = frozenset[int]() if image_ids is None else there - set(image_ids)
    if strays:
        raise InputError(
            f"Expected `{path}` to hold images of `dataset` only, but it holds image {min(strays)} of another one; "
            "use a new folder."
        )
    return there


def _refuse_other_pictures(path: str | os.PathLike[str], dataset: ImageSource, indices: Iterable[int]) -> None:
    """Refuse to go on with a store where a picture is not the one that it was predicted from."""
    digests: dict[int, int] = {}
    for header in Path(path).glob("part-*/header.json"):
        digests |= read_pictures(header.parent, StoreHeader.read(header.parent))
    for index in indices if digests else ():
        image_id = int(dataset.image_ids[index])
        if image_id in digests and _picture_digest(dataset, index) not in (0, digests[image_id]):
            raise InputError(
                f"Expected the pictures of `{path}` to be those that it was predicted from, but that of image "
                f"{image_id} has changed; use a new folder."
            )


def _picture_digest(dataset: ImageSource, index: int) -> int:
    """A digest of the size and the end of the file of an image; 0 where the data set does not say where it lies."""
    image_path = getattr(dataset, "image_path", None)
    if image_path is None:
        return 0
    with open(image_path(index), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _PICTURE_END))
        return zlib.crc32(file.read(), size & 0xFFFFFFFF) or 1


def _proposals(
    detector: ProposingDetector, dataset: ImageSource, todo: Sequence[int], batch: int
) -> Iterator[tuple[Sequence[int], list[Proposals]]]:
    """Proposals batch by batch; the next images are read while the detector works."""
    # What a detector does to an image by itself is done here too, while it works on others.
    prepare: Callable[[npt.NDArray[np.uint8]], Any] = getattr(detector, "prepare", as_tensor)

    def read(indices: Sequence[int]) -> list[Any]:
        return [prepare(dataset.read_image(index)) for index in indices]

    batches = [todo[start : start + batch] for start in range(0, len(todo), batch)]
    with ThreadPoolExecutor(1) as reader:
        following = reader.submit(read, batches[0]) if batches else None
        for number, indices in enumerate(batches):
            images = following.result() if following else []
            following = reader.submit(read, batches[number + 1]) if number + 1 < len(batches) else None
            yield indices, detector.propose(images)


def header_of(
    detector: ProposingDetector,
    dataset: ImageSource,
    match: ClassMatch,
    example: Proposals,
    *,
    dtype: str,
    num_images: int,
    metadata: Mapping[str, Any],
    class_boxes: int | None = None,
) -> StoreHeader:
    """The header of a store of this detector's proposals, of which `example` is one image's."""
    if class_boxes is not None and example.boxes.ndim != 3:
        raise InputError(
            f"Expected `class_boxes` only for a detector with a box for each class, but got {class_boxes} for one "
            "whose classes share the box of a proposal; leave it out."
        )
    return StoreHeader(
        num_columns=example.num_columns,
        background=detector.background,
        activation=detector.activation,
        class_boxes=example.boxes.ndim == 3,
        dtype=dtype,
        class_names=match.model_names,
        category_ids=tuple(int(number) for number in dataset.category_ids) or None if match.identical else None,
        num_images=num_images,
        metadata=dict(metadata),
        objectness=example.objectness is not None,
        class_columns=getattr(detector, "class_columns", None),
        postprocessing=getattr(detector, "postprocessing", None),
        kept_class_boxes=_fewer(class_boxes, example.boxes.shape[1]),
    )


def _fewer(class_boxes: int | None, num_classes: int) -> int | None:
    """How many boxes to keep; None for all, which so many of each proposal are."""
    return None if class_boxes is None or class_boxes >= num_classes else class_boxes
