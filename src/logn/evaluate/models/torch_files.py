"""Models of torch on disk, each kind read and written in its own way: Hugging Face, Ultralytics, functions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from logn.deploy.transformers_folder import class_names_of, read_transformers, write_transformers
from logn.errors import InputError
from logn.evaluate.models.collect import Images, ProposalModel, TorchModel, from_adapter, with_activation
from logn.evaluate.models.model_kinds import Correctable, Traits, preprocessing_in_words
from logn.logits.frameworks import class_names as kinds_in
from logn.logits.images import Preprocessing
from logn.logits.layer import LogitLayer
from logn.logits.locate import locate_logits


@dataclass(frozen=True)
class Opening:
    """What the user says about a model.

    Args:
        device: Where it runs.
        trust: Whether a pickle may be opened.
        size: Height and width of the images that it gets; None for its own.
        activation: What it applies to the logits, where it does not say so itself.
        preprocessing: How images are prepared, for a model that does not say it.
    """

    device: torch.device
    trust: bool = False
    size: tuple[int, int] | None = None
    activation: str | None = None
    preprocessing: Preprocessing | None = None

    def refuse(self, what: str, *names: str) -> None:
        """Refuse what such a model says itself."""
        for name in names:
            if getattr(self, name) is not None:
                word = "like" if name == "preprocessing" else name
                raise InputError(f"Expected no `{word}` for {what}, which says itself how its images are prepared.")


def open_transformers(folder: Path, opening: Opening) -> TorchModel:
    """A folder in the form of `save_pretrained`: a detector, or any other model with a class layer that is known."""
    opening.refuse(f"the Hugging Face folder `{folder}`", "size", "preprocessing")
    network, processor = read_transformers(folder)
    network.to(opening.device)
    rest: dict[str, Any] = {
        "name": str(folder),
        "traits": Traits(f"transformers, {type(network).__name__}", type(processor).__name__, ""),
        "save": lambda model, path: write_transformers(model.network, processor, path, source=folder),
        "reopen": lambda model, path: open_transformers(path, opening),
    }
    layer = with_activation(locate_logits(network), opening.activation)
    if "ObjectDetection" in type(network).__name__:
        from logn.evaluate.models.transformers import TransformersDetector

        return replace(from_adapter(TransformersDetector(network, processor), **rest), layer=layer)

    def run(images: Images) -> None:
        for image in images:
            inputs = processor(images=image, return_tensors="pt", input_data_format="channels_last")
            like = next(network.parameters())
            network(pixel_values=inputs["pixel_values"].to(like.device, like.dtype))

    names = class_names_of(network.config)
    return TorchModel(network=network, layer=layer, run=run, class_names=_fitting(names, network, layer), **rest)


def open_ultralytics_file(file: Path, opening: Opening) -> TorchModel:
    """A `.pt` file of Ultralytics."""
    from logn.evaluate.models.ultralytics import open_ultralytics

    opening.refuse(f"the Ultralytics model `{file}`", "preprocessing")
    front = open_ultralytics(file, trust=opening.trust)
    network = front.model.to(opening.device).eval()
    size = None if opening.size is None else max(opening.size)
    rest: dict[str, Any] = {
        "name": str(file),
        "save": lambda model, path: _save_ultralytics(file, model.network, model.layer, path),
        "reopen": lambda model, path: open_ultralytics_file(path, opening),
    }
    framework = f"Ultralytics, {Path(getattr(network, 'yaml_file', '')).stem or type(network).__name__}"
    if getattr(network, "task", None) == "classify":
        model = _ultralytics_classifier(network, size, framework, rest)
    else:
        from logn.evaluate.models.ultralytics import UltralyticsDetector

        adapter = UltralyticsDetector(front, image_size=size)
        kind = "stretched" if "RTDETR" in type(network).__name__ else "letterboxed"
        model = from_adapter(adapter, traits=Traits(framework, f"{kind} to {adapter.image_size}", ".pt"), **rest)
    return replace(model, layer=with_activation(model.layer, opening.activation))


def _ultralytics_classifier(network: Any, size: int | None, framework: str, rest: dict[str, Any]) -> TorchModel:
    from PIL import Image

    side = size or int(network.args.get("imgsz", 224))
    transform = import_module("ultralytics.data.augment").classify_transforms(side)
    names = tuple(map(str, network.names.values()))

    def run(images: Images) -> None:
        like = next(network.parameters())
        batch = torch.stack([transform(Image.fromarray(image)) for image in images])
        network(batch.to(like.device, like.dtype))

    layer = locate_logits(network)
    traits = Traits(framework, f"the middle, {side}x{side}", ".pt")
    return TorchModel(
        network=network, layer=layer, run=run, class_names=_fitting(names, network, layer), traits=traits, **rest
    )


def _save_ultralytics(source: Path, network: nn.Module, layer: LogitLayer, path: Path) -> None:
    """The file as it was, but for the class layer, which is kept in full precision; its reader wants nothing else."""
    checkpoint, _ = import_module("ultralytics.nn.tasks").torch_safe_load(str(source))
    stored = checkpoint.get("ema") or checkpoint["model"]
    for module_path in layer.paths:
        module, folded = stored.get_submodule(module_path), network.get_submodule(module_path)
        for name in ("weight", "bias"):
            tensor = getattr(folded, name).detach().cpu().float()
            setattr(module, name, nn.Parameter(tensor.clone(), requires_grad=False))
    torch.save(checkpoint, path)


def open_function(name: str, opening: Opening) -> Correctable:
    """What a function of the user's returns: a detector of a known framework, or any model of a known preprocessing."""
    from logn.evaluate.models.open import call_function, detector, network_of

    made = call_function(name)
    rest: dict[str, Any] = {"name": name, "save": _save_state, "reopen": _load_state}
    if _is_detector(made):
        opening.refuse(f"`{name}`, a detector of a known framework", "size", "preprocessing")
        adapter: Any = detector(made)
        network = network_of(adapter)
        if network is None:
            return ProposalModel(name, adapter, Traits(type(adapter).__name__, "its own", ""))
        network.to(opening.device)
        model = from_adapter(adapter, traits=Traits(_framework_of(network), "its own", ".safetensors"), **rest)
    else:
        model = _prepared_model(made, name, opening, rest)
    return replace(model, layer=with_activation(model.layer, opening.activation))


def _is_detector(model: Any) -> bool:
    """Whether there is an adapter that needs no more than the model."""
    packages = ("torchvision.models.detection", "ultralytics", "rfdetr", "mmdet", "detectron2.engine")
    return callable(getattr(model, "propose", None)) or any(kinds_in(model, package) for package in packages)


def _prepared_model(made: Any, name: str, opening: Opening, rest: dict[str, Any]) -> TorchModel:
    if not isinstance(made, nn.Module):
        raise InputError(f"Expected `{name}` to return a torch module, but got {type(made).__name__}.")
    preparing = opening.preprocessing
    if preparing is None:
        raise InputError(
            f"Expected `like` for `{name}`, since a {type(made).__name__} does not say how its images are prepared: "
            "imagenet is for most image classifiers; or the points of it one by one (`--size`, `--mean`, `--std`)."
        )
    network = made.to(opening.device).eval()

    def run(images: Images) -> None:
        network(torch.stack([torch.from_numpy(preparing.apply(image)).float() for image in images]).to(opening.device))

    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    layer = locate_logits(network, inputs=torch.from_numpy(preparing.apply(noise)).float()[None].to(opening.device))
    traits = Traits(_framework_of(network), preprocessing_in_words(preparing), ".safetensors")
    return TorchModel(network=network, layer=layer, run=run, class_names=None, traits=traits, **rest)


def _framework_of(network: nn.Module) -> str:
    return f"{type(network).__module__.partition('.')[0]}, {type(network).__name__}"


def _save_state(model: TorchModel, path: Path) -> None:
    weights = model.network.state_dict()
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}, path)
    path.chmod(path.stat().st_mode | 0o044)  # that writer makes files that only their owner may read


def _load_state(model: TorchModel, path: Path) -> TorchModel:
    """The same model with the weights of the file, as the user will load them."""
    model.network.load_state_dict(load_file(path))
    return model


def _fitting(names: tuple[str, ...] | None, network: nn.Module, layer: LogitLayer) -> tuple[str, ...] | None:
    """Names of all columns, if there are so many."""
    from logn.calibrators.affine import with_background_name
    from logn.logits.layer import count_columns

    columns = count_columns(network, layer)
    full = with_background_name(names, layer.background)
    return full if full is not None and len(full) == columns else names if len(names or ()) == columns else None
