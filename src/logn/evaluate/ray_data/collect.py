"""Statistics of a model's logits over images of Ray Data: the logits stay where they arise."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from logn.errors import InputError, LogNWarning
from logn.evaluate.models.collect import as_tensor
from logn.evaluate.models.open import network_of
from logn.evaluate.models.proposal_statistics import column_names, counted_objectness, start_statistics
from logn.evaluate.ray_data.engine import BlockWorker, run_blocks, shipped
from logn.evaluate.ray_data.images import BlockImages
from logn.logits.layer import LogitLayer, count_columns, fingerprint
from logn.logits.locate import find_layer
from logn.statistics.moments import ClassMoments, Nonfinite, StatisticsMetadata
from logn.statistics.record import collect_moments


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
    skipped: Callable[[Sequence[str]], object] | None = None,
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
        class_names: Name of each class, for the record: of each column of a module, of each foreground class of a
            source of proposals, by default what that calls them.
        batch: Images per forward pass.
        workers: How many; by default one per GPU, or one per core but one.
        gpus_per_worker: GPUs that each of them has; 0 runs on the processor.
        sample_rows: Rows to keep for matching thresholds; by default 4096, or what fits into 4 MiB.
        nonfinite: As in `logn.record`.
        skip_unreadable: Leave out images that cannot be read, instead of stopping at the first.
        progress: Called with the number of images whenever some are done.
        skipped: Called with a sentence for each image that was left out, whenever there are some; by default one
            warning says how many there were.
    """
    if batch < 1:
        raise InputError(f"Expected `batch` to be at least 1, but got {batch}.")
    settings = {
        "make_model": shipped(make_model, "make_model"),
        "layer": layer,
        "preprocess": None if preprocess is None else shipped(preprocess, "preprocess"),
        "image_column": image_column,
        "class_names": None if class_names is None else tuple(class_names),
        "batch": batch,
        "gpus": gpus_per_worker,
        "sample_rows": sample_rows,
        "nonfinite": nonfinite,
        "skip_unreadable": skip_unreadable,
    }
    left_out = LeftOut(skipped)

    def parts() -> Iterator[ClassMoments]:
        expected: StatisticsMetadata | None = None
        for row in run_blocks(dataset, CollectWorker, settings, workers=workers, gpus=gpus_per_worker):
            left_out.add(json.loads(row["unreadable"]))
            progress(int(row["images"]))
            if row["payload"]:
                part = _part(row["payload"], expected)
                expected = part.metadata
                yield part

    # Taken by hand, so that a data set of nothing is told apart from partial statistics that do not merge.
    found = parts()
    first = next(found, None)
    if first is None:
        reason = f"none of its {left_out.count} images can be read" if left_out.count else "it holds none"
        raise InputError(f"Expected `dataset` to hold images, but {reason}.")
    total = ClassMoments.merge_all(itertools.chain([first], found))
    left_out.warn()
    return total


class LeftOut:
    """Counts the images that were left out, and says so."""

    def __init__(self, skipped: Callable[[Sequence[str]], object] | None) -> None:
        self._skipped = skipped
        self.count, self._first = 0, ""

    def add(self, sentences: Sequence[str]) -> None:
        """Take the sentences of a block."""
        if sentences:
            self._first = self._first or sentences[0]
            self.count += len(sentences)
            if self._skipped is not None:
                self._skipped(sentences)

    def warn(self) -> None:
        """Say how many there were, where nobody was told of each."""
        if self.count and self._skipped is None:
            warnings.warn(f"Left out {self.count:,} unreadable images; the first: {self._first}", LogNWarning, 3)


def _part(payload: bytes, expected: StatisticsMetadata | None) -> ClassMoments:
    """The statistics of a block, which fit to those of the one before."""
    try:
        part = ClassMoments.from_bytes(payload)
        if expected is not None:
            expected.check_mergeable(part.metadata)
    except InputError as error:
        sentence = str(error).rstrip(".")
        raise InputError(f"{sentence}; every worker has to make the same model, with one version of logn.") from error
    return part


class CollectWorker(BlockWorker):
    """Holds a model and the statistics of all its blocks so far."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._so_far: ClassMoments | None = None
        self._sent = set[bytes]()
        self._empty: ClassMoments | None = None
        self._layer: LogitLayer | None = settings["layer"]
        self._digest: str | None = None
        self._prepare: Callable[[Any], Any] | None = None

    def answer(self, block: Mapping[str, Any]) -> dict[str, Any]:
        """The statistics of the images of a block, as bytes."""
        unreadable: list[str] = []
        images = BlockImages(block, self.settings["image_column"])
        moments = self._statistics(self._batches(images, unreadable))
        payload = b"" if moments is None else self._without_old_rows(moments)
        return {"images": len(images), "payload": payload, "unreadable": json.dumps(unreadable)}

    def _without_old_rows(self, moments: ClassMoments) -> bytes:
        """Statistics as bytes, without the sampled rows that earlier blocks of this worker displace anyway."""
        whole = moments.to_bytes()
        digest = hashlib.blake2b(whole, digest_size=16).digest()
        if digest in self._sent:
            return whole  # tried again, since its first answer was lost: it must not displace its own rows
        self._sent.add(digest)
        if self._so_far is None:
            self._so_far = moments
            return whole
        return self._so_far.take_new_rows_of(moments).to_bytes()

    def _batches(self, images: BlockImages, unreadable: list[str]) -> Iterator[list[Any]]:
        batch: list[Any] = []
        for index in range(len(images)):
            try:
                batch.append(images.read(index))
            except InputError as error:
                if not self.settings["skip_unreadable"]:
                    raise InputError(
                        f"{str(error).rstrip('.')}; skip_unreadable=True leaves such images out."
                    ) from error
                unreadable.append(str(error))
            if len(batch) == self.settings["batch"]:
                yield batch
                batch = []
        if batch:
            yield batch

    def _statistics(self, batches: Iterator[list[Any]]) -> ClassMoments | None:
        first = next(batches, None)
        if first is None:
            return None
        model, every = self.model("make_model"), itertools.chain([first], batches)
        if callable(getattr(model, "propose", None)):
            network = network_of(model)
            return self._of_proposals(model, every) if network is None else self._of_detector(model, network, every)
        if not hasattr(model, "state_dict"):
            raise InputError(
                "Expected `make_model` to give a torch module or a source of proposals (`logn.detector`), but got "
                f"{type(model).__name__}."
            )
        return self._of_module(model, first, every)

    def _of_detector(self, detector: Any, network: Any, batches: Iterable[list[Any]]) -> ClassMoments:
        """What the class layer of a detector gives while it proposes, as in one process."""
        prepare, layer = getattr(detector, "prepare", as_tensor), detector.logit_layer
        names = self.settings["class_names"] or getattr(detector, "class_names", None)
        columns = column_names(detector, names, count_columns(network, layer))

        def run(batch: list[Any]) -> None:
            detector.propose([prepare(image) for image in batch])

        return self._recorded(network, layer, batches, run, columns)

    def _of_proposals(self, detector: Any, batches: Iterable[list[Any]]) -> ClassMoments | None:
        """What a source without a torch module proposes."""
        prepare = getattr(detector, "prepare", as_tensor)
        moments: ClassMoments | None = None
        for batch in batches:
            for proposals in detector.propose([prepare(image) for image in batch]):
                # Every image is a batch, as in one process.
                moments = moments or self._start(detector, proposals.num_columns)
                moments.update(proposals.logits, counted_objectness(detector, proposals))
        return moments

    def _start(self, detector: Any, columns: int) -> ClassMoments:
        """Statistics of nothing; made once, since they hold a digest of the weights."""
        if self._empty is None:
            rows, nonfinite = self.settings["sample_rows"], self.settings["nonfinite"]
            self._empty = start_statistics(detector, self.settings["class_names"], columns, rows, nonfinite)
        return copy.copy(self._empty)

    def _of_module(self, model: Any, first: list[Any], batches: Iterable[list[Any]]) -> ClassMoments:
        import torch

        device = next((weights.device for weights in model.parameters()), torch.device("cpu"))
        if self._layer is None:
            ready = self._prepared(first).to(device)
            self._layer = find_layer(model, run=lambda: model(ready))

        def run(batch: list[Any]) -> None:
            model(self._prepared(batch).to(device))

        return self._recorded(model, self._layer, batches, run, self.settings["class_names"])

    def _recorded(
        self,
        network: Any,
        layer: LogitLayer,
        batches: Iterable[list[Any]],
        run: Callable[[list[Any]], None],
        class_names: Sequence[str] | None,
    ) -> ClassMoments:
        if layer.stages:
            raise InputError(
                f"Expected a model with one class layer, but `{layer.name}` has {layer.num_stages} stages; collect "
                "their statistics without Ray."
            )
        self._digest = self._digest or fingerprint(network)
        options = {name: self.settings[name] for name in ("sample_rows", "nonfinite")}
        options |= {"class_names": class_names, "fingerprint": False, "across_processes": False}
        (moments,) = collect_moments(network, layer, batches, run, **options)
        moments.metadata = moments.metadata.with_changes(fingerprint=self._digest)
        return moments

    def _prepared(self, batch: list[Any]) -> Any:
        import torch

        if self._prepare is None:
            self._prepare = as_tensor if self.settings["preprocess"] is None else self.unpacked("preprocess")
        ready = [torch.as_tensor(self._prepare(image)) for image in batch]
        shapes = sorted({tuple(image.shape) for image in ready})
        if len(shapes) > 1:
            raise InputError(
                f"Expected `preprocess` to bring all images to one shape, but got {shapes[0]} and {shapes[1]}."
            )
        return torch.stack(ready)
