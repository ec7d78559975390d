"""Statistics of a model's logits over images of Ray Data: the logits stay where they arise."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from logn.errors import InputError
from logn.evaluate.ray_data.engine import BlockWorker, check_shippable, run_blocks, unreadable_of
from logn.evaluate.ray_data.images import BlockImages
from logn.evaluate.store.detector_statistics import start_statistics
from logn.evaluate.store.predict import as_tensor
from logn.logits.layer import LogitLayer
from logn.logits.locate import find_layer
from logn.statistics.estimators import Estimator, finished
from logn.statistics.moments import ClassMoments, Nonfinite
from logn.statistics.record import record


def collect(
    dataset: Any,
    make_model: Callable[[], Any],
    layer: LogitLayer | None = None,
    *,
    preprocess: Callable[[Any], Any] | None = None,
    image_column: str | None = None,
    class_names: Sequence[str] | None = None,
    batch: int = 8,
    workers: int | None = None,
    gpus_per_worker: float = 0,
    sample_rows: int | None = None,
    nonfinite: Nonfinite = "error",
    skip_unreadable: bool = False,
    progress: Callable[[int], object] = lambda count: None,
    skipped: Callable[[dict[str, str]], object] = lambda unreadable: None,
) -> ClassMoments:
    """Run a model over a `ray.data.Dataset` of images and sum up its class logits, per class.

    Each worker makes the model once and answers each block of the data with its statistics, some kilobytes a block;
    logits never travel. A worker that dies is started again and its block repeated; no block counts twice.

    Args:
        dataset: Rows with an image each: its path (`path`), its bytes (`bytes`, WebDataset's `jpg` and `png`, Hugging
            Face's `image`), or its pixels (`image`).
        make_model: A function that gives the model, called on each worker: a torch module in which `layer` is looked
            for, or a source of proposals (`logn.detector(…)`).
        layer: Where a module has its logits; found as by `logn.locate_logits` by default.
        preprocess: What a module wants of an RGB image `(height, width, 3)` of bytes: a tensor, of one shape for all
            images. By default the image in 0 to 1, channels first. Sources of proposals prepare images themselves.
        image_column: Where the images are, if under none of those names.
        class_names: Name of each class: of each column of a module, of each foreground class of a source of proposals
            that does not name them itself.
        batch: Images per forward pass.
        workers: How many; by default one per GPU, or one per core but one.
        gpus_per_worker: GPUs that each of them has; 0 runs on the processor.
        sample_rows: Rows to keep for the balanced margin; by default 4096, or what fits into 4 MiB.
        nonfinite: As in `logn.record`.
        skip_unreadable: Leave out images that cannot be read, instead of stopping at the first.
        progress: Called with the number of images whenever some are done.
        skipped: Called with the images that were left out, each with the reason.
    """
    check_shippable(make_model, "make_model")
    if preprocess is not None:
        check_shippable(preprocess, "preprocess")
    if batch < 1:
        raise InputError(f"Expected `batch` to be at least 1, but got {batch}.")
    settings = {
        "make_model": make_model,
        "layer": layer,
        "preprocess": preprocess,
        "image_column": image_column,
        "class_names": None if class_names is None else tuple(class_names),
        "batch": batch,
        "gpus": gpus_per_worker,
        "sample_rows": sample_rows,
        "nonfinite": nonfinite,
        "skip_unreadable": skip_unreadable,
    }
    left_out: dict[str, str] = {}

    def parts() -> Iterator[ClassMoments]:
        for row in run_blocks(dataset, CollectWorker, settings, workers=workers, gpus=gpus_per_worker):
            left_out.update(unreadable_of(row))
            progress(int(row["images"]))
            if row["payload"]:
                yield ClassMoments.from_bytes(row["payload"])

    # Taken by hand, so that a data set of nothing is told apart from partial statistics that do not merge.
    found = parts()
    first = next(found, None)
    if first is None:
        reason = f"none of its {len(left_out)} images can be read" if left_out else "it holds none"
        raise InputError(f"Expected `dataset` to hold images, but {reason}.")
    total = ClassMoments.merge_all(itertools.chain([first], found))
    if left_out:
        skipped(left_out)
    return total


class CollectWorker(BlockWorker):
    """Holds a model and the statistics of all its blocks so far."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._so_far: ClassMoments | None = None
        self._empty: ClassMoments | None = None
        self._layer: LogitLayer | None = settings["layer"]
        self._digest: str | None = None

    def answer(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """The statistics of the images of a block, as bytes."""
        unreadable: dict[str, str] = {}
        images = BlockImages(block, self.settings["image_column"])
        moments = self._statistics(self._batches(images, unreadable))
        payload = b""
        if moments is not None:
            sent = moments
            if self._so_far is None:
                self._so_far = ClassMoments.from_bytes(moments.to_bytes())
            else:
                sent = self._so_far.take_new_rows_of(moments)
            payload = sent.to_bytes()
        return {"images": len(images), "payload": payload, "unreadable": json.dumps(list(unreadable.items()))}

    def _batches(self, images: BlockImages, unreadable: dict[str, str]) -> Iterator[list[Any]]:
        batch: list[Any] = []
        for index in range(len(images)):
            try:
                batch.append(images.read(index))
            except InputError as error:
                if not self.settings["skip_unreadable"]:
                    raise InputError(
                        f"{str(error).rstrip('.')}; skip_unreadable=True leaves such images out."
                    ) from error
                unreadable[images.name(index)] = str(error)
            if len(batch) == self.settings["batch"]:
                yield batch
                batch = []
        if batch:
            yield batch

    def _statistics(self, batches: Iterator[list[Any]]) -> ClassMoments | None:
        first = next(batches, None)
        if first is None:
            return None
        model = self.model("make_model")
        if callable(getattr(model, "propose", None)):
            return self._of_proposals(model, first, batches)
        if not hasattr(model, "state_dict"):
            raise InputError(
                "Expected `make_model` to give a torch module or a source of proposals (`logn.detector`), but got "
                f"{type(model).__name__}."
            )
        return self._of_module(model, first, batches)

    def _of_proposals(self, detector: Any, first: list[Any], rest: Iterator[list[Any]]) -> ClassMoments | None:
        prepare = getattr(detector, "prepare", as_tensor)
        moments: ClassMoments | None = None
        for batch in itertools.chain([first], rest):
            for proposals in detector.propose([prepare(image) for image in batch]):
                # Every image is a batch, as in one process.
                moments = moments or self._start(detector, proposals.num_columns)
                moments.update(proposals.logits)
        return moments

    def _start(self, detector: Any, columns: int) -> ClassMoments:
        """Statistics of nothing; made once, since they hold a digest of the weights."""
        if self._empty is None:
            names = self.settings["class_names"] or getattr(detector, "class_names", None)
            if names is None:
                raise InputError("Expected `class_names`, since the detector does not name its classes, but got None.")
            rows, nonfinite = self.settings["sample_rows"], self.settings["nonfinite"]
            begun = start_statistics(Estimator(), detector, names, columns, rows, detector.population, nonfinite)
            self._empty = finished(begun)
        return copy.copy(self._empty)

    def _of_module(self, model: Any, first: list[Any], rest: Iterator[list[Any]]) -> ClassMoments:
        import torch

        from logn.logits.fingerprint import fingerprint

        model.eval()
        self._digest = self._digest or fingerprint(model)
        device = next((weights.device for weights in model.parameters()), torch.device("cpu"))
        with torch.inference_mode():
            if self._layer is None:
                ready = self._prepared(first).to(device)
                self._layer = find_layer(model, run=lambda: model(ready))
            if self._layer.stages:
                raise InputError("Expected `layer` to have one stage, but got several; collect each by itself.")
            kept = {name: self.settings[name] for name in ("sample_rows", "nonfinite", "class_names")}
            with record(model, self._layer, **kept, fingerprint=False, across_processes=False) as recorded:
                for batch in itertools.chain([first], rest):
                    model(self._prepared(batch).to(device))
        moments: ClassMoments = recorded
        moments.metadata = moments.metadata.with_changes(fingerprint=self._digest)
        return moments

    def _prepared(self, batch: list[Any]) -> Any:
        import torch

        prepare = self.settings["preprocess"] or as_tensor
        ready = [torch.as_tensor(prepare(image)) for image in batch]
        shapes = sorted({tuple(image.shape) for image in ready})
        if len(shapes) > 1:
            raise InputError(
                f"Expected `preprocess` to bring all images to one shape, but got {shapes[0]} and {shapes[1]}."
            )
        return torch.stack(ready)
