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
from logn.models.frameworks.shared import Loaded
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
    from logn.models.write import Proof

# Frameworks with files of their own.
READERS: dict[str, Callable[[Path, Hints], Loaded]] = {
    "ultralytics": ultralytics.open_file,
    "transformers": transformers.open_file,
}


@dataclass
class TorchModel:
    """A torch model with its class layer.

    Args:
        name: What the user calls it.
        loaded: The network, on its device, and how it is run and saved.
        layer: Where its logits are.
        reopen: Reads what was saved, as a model of its own; None after weights were put into this one.
        file: The file or folder that it was read from; None if a function made it.
    """

    name: str
    loaded: Loaded
    layer: LogitLayer
    reopen: Callable[[Path], TorchModel | None]
    file: Path | None = None
    marks_itself = False
    scales_scores = False
    data_files = ()

    @property
    def traits(self) -> Traits:
        """Framework, preprocessing and kind of file."""
        return self.loaded.traits

    @property
    def suffix(self) -> str:
        """Suffix of the corrected file; empty for a folder."""
        return self.loaded.traits.suffix

    @property
    def network(self) -> nn.Module:
        """The network."""
        return self.loaded.network

    @property
    def detector(self) -> Detector:
        """The model as a source of proposals."""
        if self.loaded.detector is None:
            kind = type(self.network).__name__
            raise InputError(f"`{self.name}` ({kind}) gives no boxes. For a classifier, {NEEDS_CLASSES}.")
        return self.loaded.detector

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """The name of each column, as far as its detector, or the names of its classes, tell."""
        columns = count_columns(self.network, self.layer)
        if self.loaded.detector is not None:
            return self.loaded.detector.head_at(columns).names
        names, background = self.loaded.class_names, self.layer.background
        fits = names is not None and len(names) in (columns, columns - (background is not None))
        return Head.of_classes(names if fits else None, columns, background).names

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
        detector = self.loaded.detector
        if detector is None:
            return False
        kind = detector.postprocessing or Postprocessing()
        (example,) = detector.propose([detector.prepare(np.zeros((64, 64, 3), np.uint8))])
        return example.objectness is not None and kind.objectness != "added"

    def check(self) -> None:
        """Refuse a layer that cannot be folded, and weights that hold a correction."""
        from logn.models.torch.attach import refuse_folded
        from logn.models.torch.fold import check_foldable

        for path, module in zip(self.layer.paths, find_modules(self.network, self.layer), strict=True):
            refuse_folded(path, module)
            check_foldable(path, module)
        if self.loaded.is_folded:
            raise InputError(
                f"`{self.name}` holds a correction already; use the model as it is, or correct the one before it."
            )

    def classify(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Logits:
        """Take the logits at the class layer, of which the model must return one row per image."""
        if self.loaded.detector is not None:
            raise InputError(f"`{self.name}` is a detector: {NEEDS_BOXES}.")
        parts = []
        for part in images.batches(batch or BATCH):
            parts.append(image_logits(self.network, self.layer, partial(self.loaded.run, part), len(part), self.name))
            progress(len(part))
        images.finish()
        return np.concatenate(parts)

    def collect(self, images: ImageFiles, batch: int | None = None, progress: Advance = ignore) -> Stages:
        """Record the logits at the class layer."""

        def run(part: Images) -> None:
            self.loaded.run(part)
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
            self.loaded.save(self.network, output)
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
            def run() -> None:
                for part in shown.batches(BATCH):
                    model.loaded.run(part)

            return watch_logits(model.network, self.layer, run)

        before = passes_of(self)
        # The file is read back below, which shows whether a tied weight stays untied.
        fold_checked(self.network, self.layer, maps, warns_of_ties=False)
        self.loaded.save(self.network, output)
        written = self.reopen(output) or self
        if fingerprint(written.network) != fingerprint(self.network):
            raise InputError(f"The file of `{self.name}` does not read back with the weights that were written.")
        return prove(self.layer, maps, before, passes_of(written)).checked(self.name)


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
    loaded = READERS[kind](path, hints)
    if loaded.detector is not None:
        hints.refuse(f"`{path}`, a detector whose class layer is known", "layer")
    return _opened(str(path), loaded, hints, lambda written: open_file(written, kind, hints), file=path)


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


def open_object(made: Any, name: str, hints: Hints) -> TorchModel | ProposalModel:
    """A detector of a known framework, or any other torch model whose preprocessing the user gives."""
    framework = framework_of(made)
    own = own_detector(made)
    if own is None and (framework is None or framework.name == "transformers"):
        return _open_module(made, name, hints)  # a detector of transformers would need its processor
    hints.refuse(f"`{name}`, a detector that prepares its images itself", "size", "like", "layer")
    detector = own or framework_detector(made, "another model", **hints.detector_options)
    if detector.network is None:
        _name_classes(name, detector, hints)
        return ProposalModel(name, detector)
    network = detector.network.to(choose_device(hints.device))
    traits = Traits(_framework_name(network), "its own", ".safetensors")
    loaded = Loaded(network, traits, None, save_state, detector.run, detector)
    return _opened(name, loaded, hints, partial(load_state, network))


def _open_module(made: Any, name: str, hints: Hints) -> TorchModel:
    """A torch model without boxes, or of no known framework."""
    if not isinstance(made, nn.Module):
        raise InputError(f"`{name}` gives {type(made).__name__} where a torch module is needed.")
    prepare, words = _preparation(made, name, hints)
    device = choose_device(hints.device)
    network = made.to(device).eval()

    def batch(images: Images) -> torch.Tensor:
        return torch.stack([torch.as_tensor(prepare(image)) for image in images]).to(device)

    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    traits = Traits(_framework_name(network), words, ".safetensors")
    loaded = Loaded(network, traits, None, save_state, lambda images: network(batch(images)))
    return _opened(name, loaded, hints, partial(load_state, network), inputs=lambda: batch([noise]))


def _opened(
    name: str,
    loaded: Loaded,
    hints: Hints,
    reopen: Callable[[Path], TorchModel | None],
    *,
    file: Path | None = None,
    inputs: Callable[[], Any] = lambda: None,
) -> TorchModel:
    """The model with its class layer, as the user says, as the detector has it, or as it is found on `inputs`."""
    network, detector = loaded.network, loaded.detector
    if isinstance(hints.layer, str):
        layer = _named_layer(network, hints.layer, hints, inputs)
    else:
        known = hints.layer or (None if detector is None else detector.logit_layer)
        layer = hints.on_layer(known or locate_logits(network, inputs=inputs()))
    if detector is not None:
        _name_classes(name, detector, hints)
    elif hints.class_names is not None:
        if loaded.class_names is not None:
            raise InputError(f"`{name}` has class names of its own: leave out `class_names`.")
        loaded = replace(loaded, class_names=hints.names(count_columns(network, layer)))
    return TorchModel(name, loaded, layer_of(network, layer), reopen, file)


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
