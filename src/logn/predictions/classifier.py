"""The predictions of a classifier: logits, labels, class names and paths of labelled images, in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.files import atomic_path, check_new, format_of, read_safetensors, require_place, write_safetensors
from logn.base.strict_json import parse_json
from logn.data.class_names import listed
from logn.data.dataset import ClassificationDataset
from logn.data.logit_files import locate_array
from logn.errors import InputError, warn
from logn.models.images import ImageFiles
from logn.models.opened import Model
from logn.statistics.head import HEAD_KEY, Head

FORMAT, SCHEMA = "logn.classifier", 2


@dataclass(frozen=True, eq=False)
class ClassifierPredictions:
    """What a classifier gives on labelled images.

    Args:
        logits: `(N, C)` float32, before the activation; mapped where they were read from a file.
        labels: `(N,)` column of the true class of each row.
        paths: Image of each row, from the folder of the data set.
        head: What the logits are.
        metadata: What else is known: `model`, `model_words`, `data`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "test.safetensors"
        >>> rows = np.array([[2.0, 1.0], [0.5, 1.5]], np.float32)
        >>> ClassifierPredictions(rows, np.array([0, 1]), ("a.png", "b.png"), Head(names=("cat", "dog"))).save(path)
        >>> ClassifierPredictions.load(path).paths
        ('a.png', 'b.png')
    """

    logits: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    paths: tuple[str, ...]
    head: Head
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one `.safetensors` file in one step."""
        text = json.dumps(list(self.paths), ensure_ascii=True).encode()
        tensors: dict[str, npt.NDArray[Any]] = {
            "logits": self.logits,
            "labels": self.labels,
            "paths": np.frombuffer(text, np.uint8),
        }
        described = {HEAD_KEY: self.head.to_json(), "metadata": json.dumps(dict(self.metadata))}
        write_safetensors(path, tensors, {"format": FORMAT, "schema": str(SCHEMA), **described})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClassifierPredictions:
        """Read what `save` wrote; the logits are mapped, not read."""
        logits = locate_array(path, "logits").mapped()
        tensors, text = read_safetensors(path, expected_format=FORMAT, schema=SCHEMA, leave=("logits",))
        try:
            head, metadata = Head.from_json(text), parse_json(text["metadata"])
            paths, labels = tuple(parse_json(tensors["paths"].tobytes())), tensors["labels"]
            if not len(logits) == len(labels) == len(paths):
                raise ValueError(f"it has {len(logits)} rows, {len(labels)} labels and {len(paths)} paths")
            if head.num_columns != logits.shape[1]:
                raise ValueError(f"its head has {head.num_columns} columns, its logits {logits.shape[1]}")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"`{path}` is not as `logn predict` writes it ({error}): predict again.") from error
        return cls(logits, labels, paths, head, metadata)


def is_classifier_file(source: Any) -> bool:
    """Whether a path is a file of the predictions of a classifier.

    Example:
        >>> is_classifier_file("test.npy"), is_classifier_file([[1.0, 2.0]])
        (False, False)
    """
    return isinstance(source, str | os.PathLike) and Path(source).is_file() and format_of(source) == FORMAT


def predict_classifier(
    model: Model,
    data: ClassificationDataset,
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    overwrite: bool = False,
    metadata: Mapping[str, Any] | None = None,
    progress: Callable[[int], object] = lambda count: None,
) -> int:
    """Run a classifier over labelled images and write its logits with labels, class names and paths.

    Images of classes that the model lacks, and files that cannot be read, are left out with a warning.

    Args:
        model: An opened classifier.
        data: Labelled images. Their classes are matched with those of the model by name.
        path: The `.safetensors` file to write.
        batch: Images per forward pass.
        overwrite: Replace a file.
        metadata: Kept in the file.
        progress: Called with the number of images whenever some are done.

    Returns:
        Number of images that were run.
    """
    if Path(path).suffix != ".safetensors":
        raise InputError(f"The predictions of a classifier are one file: `{path}` must end in .safetensors.")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError("The predictions of a classifier are one file: run one process, without torchrun.")
    require_place(path)
    check_new(path, overwrite=overwrite)
    _ = model.traits  # refuses a model that does not say how its images are prepared
    head = model.head
    if head.num_columns is None or model.num_stages > 1:
        raise InputError(f"`{model.name}` has no one class layer: it is no image classifier.")
    columns = data.columns(head.names, head.num_columns, f"`{model.name}`")[data.labels]
    kept = np.flatnonzero(columns >= 0)
    paths = data.image_paths()
    if len(kept) < len(paths):
        _warn_of_other_classes(data, columns)
    if len({*columns[kept]}) < 2:
        raise InputError(f"`{data.source}` and `{model.name}` share one class only: at least two are measured.")
    files = ImageFiles([paths[index] for index in kept])
    logits = model.classify(files, batch, progress)
    readable = [index for index in kept if paths[index] not in files.unreadable]
    predictions = ClassifierPredictions(
        logits,
        columns[readable],
        tuple(os.path.relpath(paths[index], data.root) for index in readable),
        head,
        {"data": data.source.name, **(metadata or {})},
    )
    with atomic_path(path, overwrite=overwrite) as temporary:
        predictions.save(temporary)
    return len(readable)


def _warn_of_other_classes(data: ClassificationDataset, columns: npt.NDArray[np.int64]) -> None:
    lacking = [data.classes[index] for index in np.unique(data.labels[columns < 0])]
    noun = "class that the model does not have is" if len(lacking) == 1 else "classes that the model does not have are"
    warn(f"{len(lacking)} {noun} left out, with {(columns < 0).sum():,} images: {listed(lacking)}.")
