"""Hugging Face's transformers: where the class logits are, proposals with all logits, and `save_pretrained` folders.

The layers that pick the encoder's proposals (`enc_score_head`, `enc_out_class_embed`, the last slot of a two-stage
Deformable-DETR) are left alone: another choice of queries is another detector. Of folders only safetensors are read,
and nothing is looked for on a network.
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn

from logn.base.boxes import corners_of
from logn.errors import InputError, MissingExtraError
from logn.models.detector import Detector
from logn.models.frameworks.classifiers import declared_by_timm, last_layers
from logn.models.frameworks.shared import Loaded, calls_of, in_groups, locate_inside
from logn.models.hints import Hints, choose_device
from logn.models.images import Images, as_rgb
from logn.models.layer import LogitLayer, output_width, unwrap
from logn.models.opened import Traits
from logn.models.proposals import Postprocessing, Proposals
from logn.statistics.head import NO_CLASS

PACKAGE = "transformers"
TEXT_CLASSIFIER = "ForSequenceClassification"


def locate(module: Any, kinds: set[str]) -> LogitLayer | None:
    """The class logits of a detector, segmenter, image or text classifier of transformers; None when there are none."""
    for kind in kinds & _LOCATORS.keys():
        layer = _LOCATORS[kind](module)
        if layer is not None:
            return layer
    # Language models score each token, and take the last one's.
    scores_images = any("ForImageClassification" in kind for kind in kinds)
    scores_texts = any(TEXT_CLASSIFIER in kind for kind in kinds) and not hasattr(module, "score")
    return _classifier(module) if scores_images or scores_texts else None


def _queries(model: Any, path: str, background: int | None = None, final_only: str | None = None) -> LogitLayer:
    names = getattr(model.config, "id2label", None) or {}
    return LogitLayer(
        path,
        background=background,
        activation="sigmoid" if background is None else "softmax",
        population="queries",
        # Numbers that COCO gives to no class: DETR, for one, has 91 columns for 80 classes, and says so.
        unused=tuple(sorted(int(column) for column, name in names.items() if name == NO_CLASS)),
        final_only=final_only,
    )


def _at(path: str, background: int | None, final_only: str | None = None) -> Callable[[Any], LogitLayer | None]:
    """A locator for models with one class layer at a fixed path."""

    def locate_at(model: Any) -> LogitLayer | None:
        module = dict(model.named_modules()).get(path)
        return None if output_width(module) is None else _queries(model, path, background, final_only)

    return locate_at


def _last_of_mlp(model: Any) -> LogitLayer | None:
    """YOLOS: a perceptron of three layers."""
    layers = getattr(getattr(model, "class_labels_classifier", None), "layers", None)
    return None if layers is None else _queries(model, f"class_labels_classifier.layers.{len(layers) - 1}", -1)


def _deformable(model: Any) -> LogitLayer | None:
    """Deformable-DETR: one layer per decoder layer, mostly tied; a two-stage one has another for the proposals."""
    if not hasattr(model, "class_embed"):
        return None
    return _queries(model, f"class_embed.{model.config.decoder_layers - 1}")


def _last_decoder_layer(model: Any) -> LogitLayer | None:
    """RT-DETR and similar: the decoder runs its own list of layers; `class_embed` of the outer model is a tied copy.

    D-FINE and DEIMv2 add the quality of a query to its logits after this layer.
    """
    layers = getattr(getattr(getattr(model, "model", None), "decoder", None), "class_embed", None)
    if layers is None:
        return None
    # Some can be told to stop at an earlier decoder layer.
    last = int(getattr(model.model.decoder, "eval_idx", -1)) % len(layers)
    background = None if getattr(model.config, "use_focal_loss", True) else -1
    return _queries(model, f"model.decoder.class_embed.{last}", background)


def _mask_former(model: Any) -> LogitLayer | None:
    """MaskFormer: all decoder layers stacked, but only where it computes a loss for each."""
    stacked = getattr(model.config, "use_auxiliary_loss", False)
    return _at("class_predictor", -1, final_only="slice" if stacked else None)(model)


def _classifier(model: Any) -> LogitLayer | None:
    """Classifiers of images and texts: the last layer, or two whose logits are averaged (DeiT, LeViT, SwiftFormer)."""
    if hasattr(model, "timm_model"):
        # A model of timm, which names its classifier itself.
        heads = last_layers(model.timm_model, declared_by_timm(model.timm_model))
        paths = [f"timm_model.{path}" for path in heads or ()]
    else:
        paths = list(_heads(model))
    # transformers itself applies nothing to the logits; the configuration may say what they are trained for.
    activation = _PROBLEMS.get(getattr(model.config, "problem_type", None) or "")
    layer = tuple(paths) if len(paths) > 1 else "".join(paths)
    return LogitLayer(layer, activation=activation, population="images") if paths else None


def _heads(model: Any) -> Iterator[str]:
    """The last layer as wide as there are labels in each head; the backbone may have one of that width by chance."""
    labels = getattr(getattr(model, "config", None), "num_labels", None)
    for name, child in model.named_children():
        endings = [path for path, module in child.named_modules() if output_width(module) == labels]
        if endings and (name in ("fc", "score") or any(word in name for word in ("classifier", "head"))):
            yield name + (f".{endings[-1]}" if endings[-1] else "")


_PROBLEMS = {"multi_label_classification": "sigmoid", "single_label_classification": "softmax"}

_LOCATORS: dict[str, Callable[[Any], LogitLayer | None]] = {
    "DetrForObjectDetection": _at("class_labels_classifier", -1),
    "TableTransformerForObjectDetection": _at("class_labels_classifier", -1),
    "YolosForObjectDetection": _last_of_mlp,
    "ConditionalDetrForObjectDetection": _at("class_labels_classifier", None),
    "DabDetrForObjectDetection": _at("class_embed", None),
    "LwDetrForObjectDetection": _at("class_embed", None),
    "RfDetrForObjectDetection": _at("class_embed", None),
    "DeformableDetrForObjectDetection": _deformable,
    "RTDetrForObjectDetection": _last_decoder_layer,
    "RTDetrV2ForObjectDetection": _last_decoder_layer,
    "DFineForObjectDetection": _last_decoder_layer,
    "Deimv2ForObjectDetection": _last_decoder_layer,
    # One layer makes the predictions after every decoder layer; the last one counts.
    "Mask2FormerForUniversalSegmentation": _at("class_predictor", -1, final_only="call"),
    "MaskFormerForInstanceSegmentation": _mask_former,
}


class _Processed(NamedTuple):
    """An image as its image processor leaves it, and its own size."""

    inputs: dict[str, Any]
    height: int
    width: int


class TransformersDetector(Detector):
    """A DETR, RT-DETR, D-FINE, YOLOS or another detector of transformers, with its own image processor.

    Every query is a proposal. The image processor prepares each image alone and images that come out in one size run
    together, so that no image is padded for the sake of another: what it gives does not depend on the batch. It gets
    8-bit images, as it does elsewhere. The model stays in evaluation mode.

    Args:
        model: A model that `logn.locate_logits` knows and that returns boxes.
        processor: Its image processor.
    """

    def __init__(self, model: Any, processor: Any) -> None:
        layer = locate_inside(model, PACKAGE, locate) if isinstance(model, torch.nn.Module) else None
        if layer is None or layer.population != "queries":
            raise InputError(
                "Expected `model` to be a detector of transformers whose class layer is known, but got "
                f"{type(model).__name__}."
            )
        if not hasattr(processor, "post_process_object_detection"):
            raise InputError(
                "Expected `processor` to be the image processor of a detector, with post_process_object_detection, "
                f"but got {type(processor).__name__}."
            )
        names = class_names_of(model.config)
        super().__init__(model, layer, names and [name for name in names if name != NO_CLASS])
        self.processor = processor
        decoder = getattr(getattr(model, "model", None), "decoder", None)
        # D-FINE and DEIMv2 add the quality of a query to its logits. Only that of the last layer runs after training.
        self._quality_layers = list(getattr(decoder, "lqe_layers", None) or ())
        self.postprocessing = _postprocessing(
            model.config, processor, layer.background, "added" if self._quality_layers else "factor"
        )

    def prepare(self, image: Any) -> _Processed:
        """An image as its image processor leaves it."""
        if isinstance(image, _Processed):
            return image
        rgb = as_rgb(image)
        pixels = torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1)))
        inputs = self.processor(images=pixels, return_tensors="pt", input_data_format="channels_first")
        kept = {key: value for key, value in inputs.items() if key in ("pixel_values", "pixel_mask")}
        return _Processed(kept, *rgb.shape[:2])

    @torch.inference_mode()
    def run(self, images: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
        """Boxes, class logits and, where the model has it, the quality of the queries of each image."""
        prepared = [self.prepare(image) for image in images]
        return in_groups(prepared, lambda image: image.inputs["pixel_values"].shape, self._rows)

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of every query of each image."""
        prepared = [self.prepare(image) for image in images]
        proposals = []
        for (boxes, logits, quality), (_, height, width) in zip(self.run(prepared), prepared, strict=True):
            corners = corners_of(boxes) * boxes.new_tensor([width, height, width, height])
            proposals.append(Proposals(corners, logits, height=height, width=width, objectness=quality))
        return proposals

    def _rows(self, images: Sequence[_Processed]) -> list[tuple[Any, Any, Any]]:
        """What `run` gives, of images of one size."""
        like = next(self.network.parameters())
        joined = {key: torch.cat([image.inputs[key] for image in images]) for key in images[0].inputs}
        batch = {
            key: value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)
            for key, value in joined.items()
        }
        with calls_of(*self._quality_layers) as calls:
            output = self.network(**batch)
        if "pred_boxes" not in output:
            raise InputError(f"{type(self.network).__name__} gives no boxes; use an object detector.")
        logits, quality = output["logits"], [None] * len(images)
        if calls:
            (logits, *_), with_quality = calls[-1]
            quality = (with_quality - logits).float().mean(dim=-1)
        return list(zip(output["pred_boxes"].float(), logits.float(), quality, strict=True))


def open_file(folder: Path, hints: Hints) -> Loaded:
    """Open a folder in the form of `save_pretrained`: a detector, or another model whose class layer is known."""
    hints.refuse(f"the Hugging Face folder `{folder}`, whose processor prepares the images", "size", "like")
    network, processor = read_transformers(folder)
    network.to(choose_device(hints.device))
    is_detector = "ObjectDetection" in type(network).__name__
    detector = TransformersDetector(network, processor) if is_detector else None

    def run(images: Images) -> None:
        for image in images:
            inputs = processor(images=image, return_tensors="pt", input_data_format="channels_last")
            like = next(network.parameters())
            network(pixel_values=inputs["pixel_values"].to(like.device, like.dtype))

    return Loaded(
        network=network,
        traits=Traits(f"transformers, {type(network).__name__}", type(processor).__name__, ""),
        class_names=class_names_of(network.config),
        save=lambda network, path: _save(network, processor, folder, path),
        run=run if detector is None else detector.run,
        detector=detector,
        is_folded=any(folder.glob("logn-affine*.safetensors")),  # a correction leaves its map there
    )


def _postprocessing(config: Any, processor: Any, background: int | None, objectness: str) -> Postprocessing:
    """What `post_process_object_detection` of the processor does by its defaults."""
    options = inspect.signature(processor.post_process_object_detection).parameters
    limit = None
    if background is None:
        # The best pairs of query and class: as many as there are queries, unless the processor has a number of its own.
        queries = config.two_stage_num_proposals if getattr(config, "two_stage", False) else config.num_queries
        limit = int((options["top_k"].default if "top_k" in options else None) or queries)
    return Postprocessing(
        nms="none",
        multi_label=background is None,
        score_threshold=float(options["threshold"].default),
        max_detections=limit,
        min_box_size=0.0,
        objectness=objectness,
    )


# What transformers raises over the files of a folder.
_UNREADABLE = (OSError, ValueError, RuntimeError, TypeError, LookupError, AttributeError, ImportError, SafetensorError)


def read_transformers(folder: Path) -> tuple[nn.Module, Any]:
    """The model of a folder, of the class that its configuration names, in evaluation mode, and its image processor.

    Every weight must be in the folder: one that is missing would be drawn at random.
    """
    _check_files(folder)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when the package is imported
    try:
        transformers: Any = import_module(PACKAGE)
    except ImportError as error:
        raise MissingExtraError(PACKAGE, extra="frameworks") from error
    with _reading(folder):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        processor = transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # The class that was saved: the one that an Auto class would take may have other layers, drawn at random.
    name = str((getattr(config, "architectures", None) or [None])[0])
    kind: Any = getattr(transformers, name, None)
    if kind is None:
        raise InputError(f"`architectures` in the config.json of `{folder}` is {name}, no model of transformers.")
    if getattr(config, "use_pretrained_backbone", None):
        config.use_pretrained_backbone = False  # its weights are in the folder too
    with _reading(folder):
        model, loading = kind.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    lacking = sorted(str(name) for kind in ("missing_keys", "mismatched_keys") for name in loading.get(kind) or ())
    if lacking:
        raise InputError(
            f"`{folder}` does not hold {len(lacking)} weights of {type(model).__name__}, such as `{lacking[0]}`, in "
            "their shapes; save the model again."
        )
    return model.eval(), processor


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Name the folder where transformers cannot read it, with the first sentence of what it says."""
    try:
        yield
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise InputError(f"`{folder}` cannot be read by transformers: {reason}.") from error


def _check_files(folder: Path) -> None:
    """Refuse text classifiers, which have no images to run on, and folders without a processor."""
    if TEXT_CLASSIFIER in (folder / "config.json").read_text(encoding="utf-8", errors="replace"):
        raise InputError(
            f"`{folder}` is a text classifier, and this reads images. Correct it in Python, "
            "logn.calibrate(model, batches, fold=True) with batches of its tokenizer, or as arrays: "
            "`logn collect logits.npy --activation softmax -o stats.safetensors`."
        )
    if not any((folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
        raise InputError(
            f"`{folder}` has no `preprocessor_config.json`, so it does not say how images are prepared; save it there: "
            "processor.save_pretrained(folder)."
        )


def _save(network: Any, processor: Any, source: Path, target: Path) -> None:
    """Write a network and its processor to a new folder, with the licence and notices of the folder it came from."""
    network.save_pretrained(target)
    processor.save_pretrained(target)
    for file in source.iterdir():
        if file.name.upper().startswith(("LICENSE", "NOTICE")):
            shutil.copy(file, target / file.name)


def class_names_of(config: Any) -> tuple[str, ...] | None:
    """The names of the classes in the order of their columns; None where the configuration only numbers them.

    Example:
        >>> from types import SimpleNamespace
        >>> class_names_of(SimpleNamespace(id2label={1: "dog", 0: "cat"}))
        ('cat', 'dog')
        >>> class_names_of(SimpleNamespace(id2label={0: "LABEL_0", 1: "LABEL_1"})) is None
        True
    """
    labels = {int(column): str(name) for column, name in (getattr(config, "id2label", None) or {}).items()}
    if sorted(labels) != list(range(len(labels))) or all(name == f"LABEL_{i}" for i, name in labels.items()):
        return None
    return tuple(labels[column] for column in sorted(labels))


def keep_untied(model: nn.Module) -> None:
    """Undo the weight tying that Hugging Face's models declare, for good; other models are left alone.

    Their class and box layers are tied by a switch of the configuration, `tie_word_embeddings`. Saving leaves tied
    tensors out and loading ties them again, so after a fold into one of them each gets a copy of its own.

    Example:
        >>> from types import SimpleNamespace
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> model[1].weight = model[0].weight
        >>> model.config = SimpleNamespace(tie_word_embeddings=True)
        >>> model.all_tied_weights_keys = {"1.weight": "0.weight"}
        >>> keep_untied(model)
        >>> model[1].weight is model[0].weight, model.config.tie_word_embeddings
        (False, False)
    """
    for module in unwrap(model).modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "tie_word_embeddings", False) is not True:
            continue
        config.tie_word_embeddings = False
        for name in getattr(module, "all_tied_weights_keys", None) or {}:
            _give_own_parameter(module, name)
    # Of outer and inner models alike; they share one configuration.
    tying: Any
    for tying in unwrap(model).modules():
        if getattr(tying, "all_tied_weights_keys", None):
            tying.all_tied_weights_keys = {}


def _give_own_parameter(model: nn.Module, path: str) -> None:
    owner_path, _, name = path.rpartition(".")
    owner: Any = model.get_submodule(owner_path)
    parameter = owner._parameters.get(name)
    if parameter is not None:
        setattr(owner, name, nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad))
