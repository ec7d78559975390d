"""Where the models of Hugging Face's transformers have their class logits.

The layers that pick the encoder's proposals (`enc_score_head`, `enc_out_class_embed`, the last slot of a two-stage
Deformable-DETR) are left alone: another choice of queries is another detector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from logn.base.arrays import NO_CLASS
from logn.models.frameworks import modules_from
from logn.models.frameworks.classifiers import declared_by_timm, last_layers
from logn.models.layer import LogitLayer, output_width

if TYPE_CHECKING:
    from torch import nn

PACKAGE = "transformers"


def locate_in_transformers(model: nn.Module) -> LogitLayer | None:
    """The class logits of a detector, segmenter or image classifier of transformers; None when there is none."""
    for prefix, module, names in modules_from(model, PACKAGE):
        for name in names & _LOCATORS.keys():
            layer = _LOCATORS[name](module, prefix)
            if layer is not None:
                return layer
        if any("ForImageClassification" in name for name in names):
            return _image_classifier(module, prefix)
    return None


def _queries(model: Any, path: str, background: int | None, prefix: str, **options: Any) -> LogitLayer:
    return LogitLayer(
        f"{prefix}{path}",
        background=background,
        activation="sigmoid" if background is None else "softmax",
        population="queries",
        unused=_without_class(model.config),
        **options,
    )


def _without_class(config: Any) -> tuple[int, ...]:
    """Columns for numbers that COCO gives to no class: DETR, for one, has 91 columns for 80 classes, and says so."""
    names = getattr(config, "id2label", None) or {}
    return tuple(sorted(int(column) for column, name in names.items() if name == NO_CLASS))


def _at(path: str, background: int | None, final_only: str | None = None) -> Callable[[Any, str], LogitLayer | None]:
    """A locator for models with one class layer at a fixed path."""

    def locate(model: Any, prefix: str) -> LogitLayer | None:
        module = dict(model.named_modules()).get(path)
        if output_width(module) is None:
            return None
        return _queries(model, path, background, prefix, final_only=final_only)

    return locate


def _last_of_mlp(model: Any, prefix: str) -> LogitLayer | None:
    """YOLOS: a perceptron of three layers."""
    layers = getattr(getattr(model, "class_labels_classifier", None), "layers", None)
    if layers is None:
        return None
    return _queries(model, f"class_labels_classifier.layers.{len(layers) - 1}", -1, prefix)


def _deformable(model: Any, prefix: str) -> LogitLayer | None:
    """Deformable-DETR: one layer per decoder layer, mostly tied; a two-stage one has another for the proposals."""
    if not hasattr(model, "class_embed"):
        return None
    return _queries(model, f"class_embed.{model.config.decoder_layers - 1}", None, prefix)


def _last_decoder_layer(model: Any, prefix: str) -> LogitLayer | None:
    """RT-DETR and similar: the decoder runs its own list of layers; `class_embed` of the outer model is a tied copy.

    D-FINE and DEIMv2 add the quality of a query to its logits after this layer.
    """
    layers = getattr(getattr(getattr(model, "model", None), "decoder", None), "class_embed", None)
    if layers is None:
        return None
    # Some can be told to stop at an earlier decoder layer.
    chosen = int(getattr(model.model.decoder, "eval_idx", -1)) % len(layers)
    background = None if getattr(model.config, "use_focal_loss", True) else -1
    return _queries(model, f"model.decoder.class_embed.{chosen}", background, prefix)


def _mask_former(model: Any, prefix: str) -> LogitLayer | None:
    """MaskFormer: all decoder layers stacked, but only where it computes a loss for each."""
    stacked = getattr(model.config, "use_auxiliary_loss", False)
    return _at("class_predictor", -1, final_only="slice" if stacked else None)(model, prefix)


def _image_classifier(model: Any, prefix: str) -> LogitLayer | None:
    """Image classifiers: the last layer, or two whose logits are averaged (DeiT, LeViT, SwiftFormer)."""
    if hasattr(model, "timm_model"):
        # A model of timm, which names its classifier itself.
        heads = last_layers(model.timm_model, declared_by_timm(model.timm_model))
        paths = [f"{prefix}timm_model.{path}" for path in heads or ()]
    else:
        paths = [f"{prefix}{path}" for path in _heads(model)]
    if not paths:
        return None
    return LogitLayer(paths[0] if len(paths) == 1 else tuple(paths), activation=_activation(model), population="images")


def _heads(model: Any) -> Iterator[str]:
    """The last layer as wide as there are labels in each head; the backbone may have one of that width by chance."""
    labels = getattr(getattr(model, "config", None), "num_labels", None)
    for name, child in model.named_children():
        endings = [path for path, module in child.named_modules() if output_width(module) == labels]
        if endings and (name in ("fc", "score") or any(word in name for word in ("classifier", "head"))):
            yield name + (f".{endings[-1]}" if endings[-1] else "")


def _activation(model: Any) -> str | None:
    """What the configuration says that the logits are trained for; transformers itself applies nothing to them."""
    return _PROBLEMS.get(getattr(model.config, "problem_type", None) or "")


_PROBLEMS = {"multi_label_classification": "sigmoid", "single_label_classification": "softmax"}

_LOCATORS: dict[str, Callable[[Any, str], LogitLayer | None]] = {
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
    "PPDocLayoutV2ForObjectDetection": _last_decoder_layer,
    "PPDocLayoutV3ForObjectDetection": _at("model.decoder.class_embed", None, final_only="call"),
    "PPDocLayoutV4ForObjectDetection": _last_decoder_layer,
    # One layer makes the predictions after every decoder layer; the last one counts.
    "Mask2FormerForUniversalSegmentation": _at("class_predictor", -1, final_only="call"),
    "MaskFormerForInstanceSegmentation": _mask_former,
    "EomtForUniversalSegmentation": _at("class_predictor", -1, final_only="call"),
    "EomtDinov3ForUniversalSegmentation": _at("class_predictor", -1, final_only="call"),
    "OneFormerForUniversalSegmentation": _at("model.transformer_module.decoder.class_embed", -1, final_only="call"),
    # Called once for every frame of a video, and all frames count.
    "VideomtForUniversalSegmentation": _at("class_predictor", -1),
}
