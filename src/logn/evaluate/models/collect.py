"""A torch model as `correct` wants it: run over images, folded, written, read back and compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.affine import ClassAffine
from logn.deploy.onnx_fold import Proof
from logn.errors import InputError, LogNWarning, MissingExtraError
from logn.evaluate.models.model_kinds import Advance, ImageFiles, Traits, beside
from logn.evaluate.models.open import network_of
from logn.evaluate.models.proposal_statistics import column_names, counted_objectness, start_statistics
from logn.logits.hooks import evaluation_mode
from logn.logits.layer import LogitLayer, count_columns, find_modules, fingerprint
from logn.statistics.moments import ClassMoments
from logn.statistics.record import collect_moments

if TYPE_CHECKING:
    from torch import nn

Images = Sequence[npt.NDArray[np.uint8]]
BATCH = 8


@dataclass
class TorchModel:
    """A network with its class layer.

    Args:
        name: What the user calls it.
        network: The network, on its device.
        layer: Where its logits are.
        run: Runs it on RGB images, prepared as it needs them.
        traits: What is known of it.
        class_names: Of all columns, the background included, where they are known.
        save: Writes it to a path.
        reopen: Reads what `save` wrote.
    """

    name: str
    network: nn.Module
    layer: LogitLayer
    run: Callable[[Images], object]
    traits: Traits
    class_names: tuple[str, ...] | None
    save: Callable[[TorchModel, Path], object]
    reopen: Callable[[TorchModel, Path], TorchModel]

    def check(self) -> None:
        """Refuse what could not be corrected before the pass over the images, which may take an hour."""
        from logn.deploy.fold import check_foldable

        for path, module in zip(self.layer.paths, find_modules(self.network, self.layer), strict=True):
            check_foldable(path, module)
        # Weights do not say that a map is in them. What `correct` wrote beside them does: it is of the weights before.
        model = Path(self.name)
        for stage in (None, 0):
            file = beside(model, "statistics", stage, in_folder=model.is_dir())
            if file.is_file() and _fingerprint_in(file) not in (None, fingerprint(self.network)):
                raise InputError(
                    f"Expected a model that is not corrected yet, but `{self.name}` holds a correction already; use "
                    f"the model as it is, or correct the one that it was made from (`{file}` is of other weights: "
                    "delete it if the model was trained anew)."
                )

    def collect(
        self,
        images: ImageFiles,
        *,
        batch: int | None = None,
        sample_rows: int | None = None,
        progress: Advance = lambda count: None,
    ) -> tuple[ClassMoments, ...]:
        """Run it over the images once."""

        def run(part: Images) -> None:
            self.run(part)
            progress(len(part))

        stages = collect_moments(
            self.network,
            self.layer,
            images.batches(batch or BATCH),
            run,
            class_names=self.class_names,
            sample_rows=sample_rows,
        )
        images.require_some()
        for moments in stages:
            if not moments.count.any():
                raise InputError(f"Expected logits to come through `{moments.metadata.layer}`, but none came.")
        return stages

    def write(self, maps: Sequence[ClassAffine], output: Path, images: ImageFiles) -> Proof:
        """Fold, write, read back: every weight must be there, and the class layer must give the map of the logits."""
        from logn.deploy.fold import (
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
            # The file is read back below: what a tied weight needs to stay untied is seen there.
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


@dataclass
class ProposalModel:
    """A source of proposals of the user's own, without a torch module: its logits can be read, but not corrected.

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
            f"Expected `{self.name}` to return a torch model to correct, but got {type(self.source).__name__}, which "
            "has none as `model`; `logn collect` and `logn fit` give the correction of its logits."
        )

    def collect(
        self,
        images: ImageFiles,
        *,
        batch: int | None = None,
        sample_rows: int | None = None,
        progress: Advance = lambda count: None,
    ) -> tuple[ClassMoments, ...]:
        """Collect the statistics of what it proposes."""
        moments: ClassMoments | None = None
        for part in images.batches(batch or BATCH):
            for proposals in self.source.propose([as_tensor(image) for image in part]):
                moments = moments or start_statistics(self.source, None, proposals.num_columns, sample_rows)
                moments.update(proposals.logits, counted_objectness(self.source, proposals))
            progress(len(part))
        images.require_some()
        if moments is None:
            raise InputError(f"Expected `{self.name}` to propose boxes, but it gave none.")
        return (moments,)

    def write(self, maps: Sequence[ClassAffine], output: Path, images: ImageFiles) -> Proof:
        """Never reached: `check` comes first."""
        raise NotImplementedError


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


def _fingerprint_in(statistics: Path) -> str | None:
    try:
        return ClassMoments.load(statistics).metadata.fingerprint
    except InputError:
        return None  # a file of that name, but none of ours


def from_adapter(adapter: Any, **rest: Any) -> TorchModel:
    """The model behind a detector adapter, which prepares the images; `rest` are the other arguments.

    Args:
        adapter: With `propose`, and `model` and `logit_layer`, or a network itself.
        rest: Further arguments of `TorchModel`.
    """
    network: nn.Module = network_of(adapter)
    layer: LogitLayer = adapter.logit_layer
    names = column_names(adapter, getattr(adapter, "class_names", None), count_columns(network, layer))
    return TorchModel(
        network=network,
        layer=layer,
        run=lambda images: adapter.propose([as_tensor(image) for image in images]),
        class_names=names,
        **rest,
    )


def with_activation(layer: LogitLayer, activation: str | None) -> LogitLayer:
    """The layer with the activation that the user says, where the model does not say it; another one is refused."""
    if activation is None or layer.activation == activation:
        return layer
    if layer.activation is not None:
        raise InputError(
            f"Expected `activation` to be {layer.activation}, which the model applies to `{layer.name}`, but got "
            f"{activation}."
        )
    return replace(layer, activation=activation)
