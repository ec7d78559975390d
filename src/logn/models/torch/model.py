"""A torch model, opened: of a framework's own file, of a function, or as it is."""

from __future__ import annotations

import contextlib
import shutil
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from logn.base.arrays import is_torch_tensor
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.detector import Detector, own_detector
from logn.models.frameworks import transformers, ultralytics
from logn.models.frameworks.known import NAMES, framework_of
from logn.models.frameworks.shared import LoadedFile
from logn.models.hints import Hints, choose_device
from logn.models.images import ImageFiles, Images
from logn.models.layer import LogitLayer, count_columns, find_modules, fingerprint
from logn.models.locate import layer_of, locate_logits
from logn.models.opened import (
    BATCH,
    NEEDS_BOXES,
    NEEDS_CLASSES,
    Advance,
    Logits,
    ProposalModel,
    Stages,
    Traits,
    ignore,
)
from logn.models.output_check import Pass, image_logits
from logn.models.preprocessing import Preprocessing, preset_named
from logn.models.proposals import Postprocessing
from logn.models.torch.record import collect_moments
from logn.statistics.head import Head

if TYPE_CHECKING:
    from logn.models.proof import Proof

# Frameworks with files of their own.
READERS: dict[str, Callable[[Path, Hints], LoadedFile]] = {
    "ultralytics": ultralytics.open_file,
    "transformers": transformers.open_file,
}


@dataclass
class TorchModel:
    """A torch model with its class layer.

    Args:
        name: What the user calls it.
        network: The network, on its device.
        layer: Where its logits are.
        run: Runs it on RGB images, prepared as it needs them.
        traits: What is known of it.
        names: Of all columns, including the background, if known.
        save: Writes its network to a path.
        reopen: Reads what `save` wrote, as a model of its own; None after weights were put into this one.
        adapter: The model as a source of proposals; None if it gives no boxes.
        is_folded: Whether the file itself says that a correction is in it.
        file: The file or folder that it was read from; None if a function made it.
    """

    name: str
    network: nn.Module
    layer: LogitLayer
    run: Callable[[Images], object]
    traits: Traits
    names: tuple[str, ...] | None
    save: Callable[[nn.Module, Path], object]
    reopen: Callable[[Path], TorchModel | None]
    adapter: Detector | None = None
    is_folded: bool = False
    file: Path | None = None
    marks_itself = False
    scales_scores = False
    data_files = ()

    @property
    def suffix(self) -> str:
        """Suffix of the corrected file; empty for a folder."""
        return self.traits.suffix

    @property
    def detector(self) -> Detector:
        """The model as a source of proposals."""
        if self.adapter is None:
            kind = type(self.network).__name__
            raise InputError(f"`{self.name}` ({kind}) gives no boxes. For a classifier, {NEEDS_CLASSES}.")
        return self.adapter

    @cached_property
    def head(self) -> Head:
        """What its class logits are."""
        head = self.layer.head(count_columns(self.network, self.layer), self.names, fingerprint(self.network))
        return replace(head, objectness=self._has_objectness())

    @property
    def num_stages(self) -> int:
        """Sets of class logits, each with a map of its own."""
        return self.layer.num_stages

    def _has_objectness(self) -> bool:
        """Whether something else multiplies the class scores of a detector, as FCOS's centerness does."""
        if self.adapter is None:
            return False
        kind = self.adapter.postprocessing or Postprocessing()
        (example,) = self.adapter.propose([self.adapter.prepare(np.zeros((64, 64, 3), np.uint8))])
        return example.objectness is not None and kind.objectness != "added"

    def check(self) -> None:
        """Refuse a layer that cannot be folded, and weights that hold a correction."""
        from logn.models.torch.attach import refuse_folded
        from logn.models.torch.fold import check_foldable

        for path, module in zip(self.layer.paths, find_modules(self.network, self.layer), strict=True):
            refuse_folded(path, module)
            check_foldable(path, module)
        if self.is_folded:
            raise InputError(
                f"`{self.name}` holds a correction already; use the model as it is, or correct the one before it."
            )

    def classify(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Logits:
        """Take the logits at the class layer, of which the model must return one row per image."""
        if self.adapter is not None:
            raise InputError(f"`{self.name}` is a detector: {NEEDS_BOXES}.")
        parts = []
        for part in images.batches(batch or BATCH):
            parts.append(image_logits(self.network, self.layer, partial(self.run, part), len(part), self.name))
            progress(len(part))
        images.finish()
        return np.concatenate(parts)

    def collect(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Stages:
        """Record the logits at the class layer."""

        def run(part: Images) -> None:
            self.run(part)
            progress(len(part))

        batches = images.batches(batch or BATCH)
        stages = collect_moments(self.network, self.layer, batches, run, class_names=self.names)
        images.finish()
        for moments in stages:
            if not moments.count.any():
                raise InputError(f"No image brought logits through `{moments.head.layer}`; name another layer.")
        return stages

    def copy(self, output: Path) -> None:
        """Copy the file or folder; write what a function made as a state dict."""
        if self.file is None:
            self.save(self.network, output)
        elif self.file.is_dir():
            shutil.copytree(self.file, output)
        else:
            shutil.copyfile(self.file, output)

    def write(
        self,
        maps: Sequence[ClassAffine],
        output: Path,
        images: ImageFiles | None = None,
        class_factors: npt.NDArray[np.float64] | None = None,
    ) -> Proof:
        """Fold, write, read back, and compare with the model before: on `images` and in every weight."""
        from logn.models.torch.fold import fold_checked, prove, watch_logits

        if class_factors is not None:
            raise InputError(f"The scores of `{self.name}` cannot be multiplied at its output; export it as ONNX.")
        shown = images or ImageFiles.noise()

        def passes_of(model: TorchModel) -> list[Pass]:
            return watch_logits(model.network, self.layer, lambda: [model.run(part) for part in shown.batches(BATCH)])

        before = passes_of(self)
        # The file is read back below, which shows whether a tied weight stays untied.
        fold_checked(self.network, self.layer, maps, warns_of_ties=False)
        self.save(self.network, output)
        written = self.reopen(output) or self
        if fingerprint(written.network) != fingerprint(self.network):
            raise InputError(f"The file of `{self.name}` does not read back with the weights that were written.")
        return prove(self.layer, maps, before, passes_of(written)).checked(self.name)


def torch_model(
    network: nn.Module,
    layer: LogitLayer,
    detector: Detector | None = None,
    *,
    class_names: Sequence[str] | None = None,
    **fields: Any,
) -> TorchModel:
    """A torch model whose columns are named as far as they can be.

    Args:
        network: The network.
        layer: Where its logits are.
        detector: The network as a source of proposals, which knows its classes.
        class_names: Of the classes of a network without boxes, with the background or without.
        fields: The other fields of `TorchModel`.
    """
    columns = count_columns(network, layer)
    fits = class_names is not None and len(class_names) in (columns, columns - (layer.background is not None))
    named = Head.of_classes(class_names if fits else None, columns, layer.background)
    names = named.names if detector is None else detector.head_at(columns).names
    return TorchModel(network=network, layer=layer_of(network, layer), names=names, adapter=detector, **fields)


def save_state(network: nn.Module, path: Path) -> None:
    """Write the weights of a network as a state dict in `.safetensors`."""
    from safetensors.torch import save_file

    weights = network.state_dict()
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}, path)
    path.chmod(path.stat().st_mode | 0o044)  # safetensors makes files that only their owner may read


def load_state(network: nn.Module, path: Path) -> None:
    """Put the weights of a file into a network, as the user will load them."""
    from safetensors.torch import load_file

    network.load_state_dict(load_file(path))


def framework_detector(model: Any, known: str, **options: Any) -> Detector:
    """The source of proposals of a model of a known framework; another is refused, `known` says what is taken too."""
    framework = framework_of(model)
    if framework is None:
        raise InputError(f"Expected `model` to be a detector of {NAMES}, or {known}, but got {type(model).__name__}.")
    return framework.detector(model, **options)


def open_file(path: Path, kind: str, hints: Hints) -> TorchModel:
    """Open a file or folder that a framework reads: "ultralytics" or "transformers"."""
    return _open_file(path, READERS[kind], hints)


def open_pickle(path: Path, hints: Hints) -> TorchModel | ProposalModel:
    """Open a `.pt` or `.pth` file that the user trusts: of Ultralytics, or a whole torch model; weights are refused."""
    content = None if _names_ultralytics(path) else _unpickled(path)
    if isinstance(content, nn.Module):
        return open_object(content, str(path), hints)
    if isinstance(content, Mapping) and not any(isinstance(value, nn.Module) for value in content.values()):
        key = next((key for key, value in content.items() if _holds_tensors(value)), None)
        weights = f'torch.load("{path}")' + ("" if key is None or _holds_tensors(content) else f"[{key!r}]")
        raise InputError(
            f"`{path}` is a state dict, weights without a model: write a function that builds the model, calls "
            f"model.load_state_dict({weights}) and returns it, and name it instead of the file, such as "
            "`my_model.py:build`."
        )
    return open_file(path, "ultralytics", hints)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and any(is_torch_tensor(entry) for entry in value.values())


def _names_ultralytics(path: Path) -> bool:
    """Whether a file of torch needs classes of Ultralytics, or of the YOLOv5 before it; nothing of it is run."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        pickles = [archive.read(name) for name in archive.namelist() if name.endswith("/data.pkl")]
    return any(name in content for content in pickles for name in (b"ultralytics", b"models.yolo"))


def _unpickled(path: Path) -> Any:
    """What torch reads, weights without running code. None where it cannot: Ultralytics explains why."""
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=False)
    except (ModuleNotFoundError, AttributeError) as error:
        raise InputError(
            f"`{path}` is a pickled model whose code is not found: {error}. Run this in the folder of that code, or "
            "name a function that returns the model."
        ) from error
    except Exception:
        return None


def _open_file(path: Path, read: Callable[[Path, Hints], LoadedFile], hints: Hints) -> TorchModel:
    """Open a file that a framework reads."""
    loaded = read(path, hints)
    network, detector = loaded.network, loaded.detector
    if detector is not None:
        hints.refuse(f"`{path}`, a detector whose class layer is known", "layer")
        _name_classes(str(path), detector, hints)
    layer = _locate(network, hints, None if detector is None else detector.logit_layer)
    return torch_model(
        network,
        layer,
        detector,
        class_names=None if detector else _class_names(str(path), loaded.class_names, hints, network, layer),
        name=str(path),
        run=loaded.run,
        traits=loaded.traits,
        save=loaded.save,
        reopen=lambda written: _open_file(written, read, hints),
        is_folded=loaded.is_folded,
        file=path,
    )


def open_object(made: Any, name: str, hints: Hints) -> TorchModel | ProposalModel:
    """A detector of a known framework, or any other torch model whose preprocessing the user gives."""
    framework = framework_of(made)
    own = own_detector(made)
    if own is None and (framework is None or framework.name == "transformers"):
        return _open_module(made, name, hints)  # a detector of transformers would need its processor
    hints.refuse(f"`{name}`, a detector that prepares its images itself", "size", "like", "layer")
    detector = own or framework_detector(made, "another model", **hints.detector_options)
    _name_classes(name, detector, hints)
    if detector.network is None:
        return ProposalModel(name, detector)
    network = detector.network.to(choose_device(hints.device))
    return torch_model(
        network,
        _locate(network, hints, detector.logit_layer),
        detector,
        name=name,
        run=detector.run,
        traits=Traits(_framework_name(network), "its own", ".safetensors"),
        save=save_state,
        reopen=lambda path: load_state(network, path),
    )


def _open_module(made: Any, name: str, hints: Hints) -> TorchModel:
    """A torch model without boxes, or of no known framework."""
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"`{name}` gives {type(made).__name__} where a torch module is needed.")
    prepare, words = _preparation(made, name, hints)
    device = choose_device(hints.device)
    network = made.to(device).eval()

    def batch(images: Images) -> torch.Tensor:
        return torch.stack([torch.as_tensor(prepare(image)) for image in images]).to(device)

    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    layer = _locate(network, hints, inputs=lambda: batch([noise]))
    return torch_model(
        network,
        layer,
        class_names=_class_names(name, None, hints, network, layer),
        name=name,
        run=lambda images: network(batch(images)),
        traits=Traits(_framework_name(network), words, ".safetensors"),
        save=save_state,
        reopen=lambda path: load_state(network, path),
    )


def _locate(
    network: nn.Module, hints: Hints, known: LogitLayer | None = None, inputs: Callable[[], Any] = lambda: None
) -> LogitLayer:
    """Where the logits are: as the user says, as the detector has it, or as it is found on `inputs`."""
    if isinstance(hints.layer, str):
        return _named_layer(network, hints.layer, hints, inputs)
    return hints.on_layer(hints.layer or known or locate_logits(network, inputs=inputs()))


def _named_layer(network: nn.Module, path: str, hints: Hints, inputs: Callable[[], Any]) -> LogitLayer:
    """The layer at `path`, with all that is known of it; softmax or sigmoid is asked where nothing tells."""
    layer = layer_of(network, path)
    find_modules(network, layer)
    if hints.background is not None:
        return replace(layer, background=hints.background, activation="softmax")
    with contextlib.suppress(InputError):
        located = locate_logits(network, inputs=inputs())
        layer = located if located.name == path else layer
    layer = hints.on_layer(layer)
    if layer.activation is None and layer.population != "images":
        raise InputError(f"Softmax or sigmoid? `{path}` does not tell: pass `activation`, softmax or sigmoid.")
    return layer


def _class_names(
    name: str, own: tuple[str, ...] | None, hints: Hints, network: nn.Module, layer: LogitLayer
) -> tuple[str, ...] | None:
    """The names of the classes of a model without boxes: those that it has, else the user's."""
    if own is None or hints.class_names is None:
        return own or hints.names(count_columns(network, layer))
    raise InputError(f"`{name}` has class names of its own: leave out `class_names`.")


def _name_classes(name: str, detector: Detector, hints: Hints) -> None:
    """Give a detector the user's class names."""
    if hints.class_names is None:
        return
    if detector.class_names is not None:
        raise InputError(f"`{name}` has class names of its own: leave out `class_names`.")
    if detector.num_classes is None:
        raise InputError(f"`{name}` does not say how many classes it has: give it `class_names` or `num_classes`.")
    detector.name_classes(hints.names(detector.num_classes) or ())


def _preparation(made: Any, name: str, hints: Hints) -> tuple[Callable[[Any], Any], str]:
    """What turns an RGB image into the input of a torch model, and how to call it."""
    if hints.like is None and hints.size is None:
        raise InputError(
            f"`{name}` ({type(made).__name__}) does not say how its images are prepared. Pass `like`: "
            "imagenet for most image classifiers, or a .json file."
        )
    if callable(hints.like):
        return hints.like, "a function of yours"
    base = Preprocessing() if hints.preset is None else preset_named(hints.preset).preprocessing
    preprocessing = replace(base, **hints.preparation)
    return lambda image: preprocessing.apply(image).astype("float32"), preprocessing.in_words()


def _framework_name(network: Any) -> str:
    return f"{type(network).__module__.partition('.')[0]}, {type(network).__name__}"
