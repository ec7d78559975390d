"""Detector: a source of proposals, boxes with every class logit, before any activation, threshold or suppression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from logn.errors import InputError
from logn.models.images import as_tensor
from logn.models.layer import LogitLayer, count_columns, fingerprint
from logn.models.proposals import MaskFunction, Postprocessing, Proposals
from logn.statistics.head import Head, foreground_columns


class Detector:
    """A source of proposals: boxes with every class logit, before any activation, threshold or suppression.

    A framework's file implements it: only `propose` has no default. Foreground classes are numbered 0..F-1 in the order
    of their columns.

    An object of yours needs no base class: `logn.detector` wraps it, and so does whatever takes a detector. It has
    `propose(images)`, `background` and `activation`. What else it may have: `class_names` and `num_classes` (of the
    foreground), `class_columns` (the column of each class, where these are not all but the background), `population`
    (what has a row), `logit_layer`, `postprocessing`, `prepare`, `masks`, and `fingerprint` (a digest of its weights).
    It may be a torch module, or have one as `model`. `propose` gets what `prepare` makes of an RGB array: by default a
    float tensor `(3, H, W)` in 0..1.

    Args:
        network: The torch module that gives the logits, which is put into evaluation mode.
        layer: Where in `network` they come out.
        class_names: Of the foreground, or of all columns; None if unknown.
        class_columns: The column of each class; by default all but the background and unused ones.
        population: What has a row; by default as `layer` says.

    Attributes:
        head: What the columns of its logits are.
        network: The torch module; None without one.
        logit_layer: Where in `network` the logits come out.
        name: What messages call the model.
        postprocessing: How its framework makes detections of proposals; None where that is not known.
        masks: `masks(image, boxes, classes, rows)` gives the masks of detections of one image one by one, boolean
            `(H, W)` in its pixels: of boxes `(D, 4)`, foreground classes `(D,)` and the proposals that they came from
            `(D,)`. None without a mask head.

    Example:
        >>> import logn, numpy as np
        >>> class OneBox:
        ...     background, activation, class_names = None, "sigmoid", ("cat", "dog")
        ...
        ...     def propose(self, images):
        ...         sizes = [image.shape[1:] for image in images]
        ...         return [Proposals([[0, 0, 10, 10]], [[1.5, -2.0]], height, width) for height, width in sizes]
        >>> detector = logn.detector(OneBox())
        >>> (proposals,) = detector.propose([np.zeros((3, 20, 30))])
        >>> proposals.num_columns, detector.class_names
        (2, ('cat', 'dog'))
    """

    head: Head
    network: Any = None
    logit_layer: LogitLayer | None = None
    name: str
    postprocessing: Postprocessing | None = None
    masks: MaskFunction | None = None

    def __init__(
        self,
        network: Any,
        layer: LogitLayer,
        class_names: Sequence[str] | None = None,
        *,
        class_columns: Sequence[int] | None = None,
        population: str | None = None,
    ) -> None:
        self.network, self.logit_layer, self.name = network.eval(), layer, type(network).__name__
        columns = count_columns(network, layer)
        named = range(columns)[foreground_columns(columns, layer.background)]
        self.head = Head.of_classes(
            class_names,
            columns,
            layer.background,
            [column for column in named if column not in layer.unused] if class_columns is None else class_columns,
            activation=layer.activation,
            population=population or layer.population,
            layer=layer.name,
        )

    def prepare(self, image: Any) -> Any:
        """An RGB array, or a float tensor `(3, H, W)` in 0..1, as the model takes it; a prepared image as it is.

        It may run in another thread than `propose`.
        """
        return as_tensor(image)

    def run(self, images: Sequence[Any]) -> Any:
        """Run the network on images, in whatever form `prepare` takes; what it returns is for `propose` alone."""
        return self.propose([self.prepare(image) for image in images])

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes, in pixels of the image as given, and logits of each image, in whatever form `prepare` takes."""
        raise NotImplementedError

    @property
    def source(self) -> str | None:
        """Digest of the weights as they are now, by which statistics and predictions recognise each other."""
        return None if self.network is None else fingerprint(self.network)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The name of each foreground class."""
        return self.head.class_names

    @property
    def num_classes(self) -> int | None:
        """How many foreground classes there are."""
        return self.head.num_classes

    def name_classes(self, class_names: Sequence[str]) -> None:
        """Take the names of the classes, of which the model has none."""
        self.head = self.head_at(self.head.width, class_names)

    def head_at(self, num_columns: int, class_names: Sequence[str] | None = None) -> Head:
        """The head of so many columns; `class_names` count where the model names none."""
        head = self.head
        if class_names is None or head.names is not None:
            return head
        named = Head.of_classes(class_names, num_columns, head.background, head.foreground.tolist())
        return replace(head, names=named.names)

    def head_of(self, example: Proposals, class_names: Sequence[str] | None = None) -> Head:
        """The head with what only a run tells: the columns and the objectness of proposals, the weights as they are."""
        head = self.head_at(example.num_columns, class_names)
        return replace(head, objectness=example.objectness is not None, source=self.source)

    def factor_of(self, proposals: Proposals) -> npt.NDArray[Any] | None:
        """The objectness of proposals if its sigmoid is a plain factor of their scores, as statistics take it."""
        kind = self.postprocessing or Postprocessing()
        return proposals.objectness if (kind.objectness, kind.score_power) == ("factor", 1.0) else None


class OwnDetector(Detector):
    """An object of the user's as a detector; what it may have is described there."""

    def __init__(self, made: Any) -> None:
        lacking = [name for name in ("propose", "background", "activation") if not hasattr(made, name)]
        if lacking:
            raise InputError(
                f"{type(made).__name__} has no `{lacking[0]}`. `logn.detector(model)` takes models of known frameworks;"
                " docs/how-to/measure.md shows what any other needs."
            )
        self._made = made
        modules = (module for module in (made, getattr(made, "model", None)) if hasattr(module, "state_dict"))
        self.network = next(modules, None)
        self.name = type(made if self.network is None else self.network).__name__
        self.masks = getattr(made, "masks", None)
        self.logit_layer = getattr(made, "logit_layer", None)
        self.postprocessing = getattr(made, "postprocessing", None)
        self._class_columns = getattr(made, "class_columns", None)
        self._class_names = getattr(made, "class_names", None)
        self.head = Head(
            background=made.background,
            activation=made.activation,
            population=getattr(made, "population", None),
            layer=None if self.logit_layer is None else self.logit_layer.name,
        )

    def prepare(self, image: Any) -> Any:
        """What its own `prepare` makes of an RGB array; by default a float tensor."""
        prepare = getattr(self._made, "prepare", None)
        return super().prepare(image) if prepare is None else prepare(image)

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """What it proposes for prepared images."""
        proposals: list[Proposals] = self._made.propose(images)
        return proposals

    @property
    def source(self) -> str | None:
        """Its own `fingerprint`, by default that of its module."""
        own = getattr(self._made, "fingerprint", None)
        return super().source if own is None else str(own)

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The name of each foreground class."""
        return None if self._class_names is None else tuple(self._class_names)

    @property
    def num_classes(self) -> int | None:
        """How many foreground classes there are; None where neither it nor its names tell."""
        named = self._class_columns if self._class_names is None else self._class_names
        number: int | None = getattr(self._made, "num_classes", None if named is None else len(named))
        return number

    def name_classes(self, class_names: Sequence[str]) -> None:
        """Take the names of the classes, of which it has none."""
        self._class_names = class_names

    def head_at(self, num_columns: int, class_names: Sequence[str] | None = None) -> Head:
        """The head of so many columns, which only a run tells; `class_names` count where it names none."""
        names, head = self.class_names or class_names, self.head
        named = Head.of_classes(names, num_columns, head.background, self._class_columns)
        return replace(named, activation=head.activation, population=head.population, layer=head.layer)


def own_detector(made: Any) -> Detector | None:
    """A detector as it is, an object with `propose` as one; None for anything else.

    Example:
        >>> own_detector(object()) is None
        True
    """
    if isinstance(made, Detector):
        return made
    return OwnDetector(made) if callable(getattr(made, "propose", None)) else None
