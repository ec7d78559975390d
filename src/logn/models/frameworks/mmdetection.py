"""MMDetection 3.x (`mmdet` and its fork `onedl-mmdetection`): its class logits, and its proposals with all logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from logn.base.boxes import corners_of
from logn.errors import InputError, warn
from logn.models.frameworks.shared import class_names, modules_from, run_until
from logn.models.images import Rgb, as_rgb
from logn.models.layer import LogitLayer, output_width
from logn.models.proposals import MaskFunction, Postprocessing, Proposals

if TYPE_CHECKING:
    from torch import nn


PACKAGE = "mmdet"
# The class convolution of dense heads, by the name that each gives it.
DENSE_LAYERS = (
    "retina_cls",
    "atss_cls",
    "gfl_cls",
    "vfnet_cls",
    "rtm_cls",
    "multi_level_conv_cls",
    "conv_cls",
    "cls_convs",
)
# These multiply or mix their class logits with another branch before the sigmoid, or pick classes elsewhere.
NOT_KNOWN = {"TOODHead", "YOLOFHead", "RepPointsHead", "YOLOV3Head", "CenterNetHead", "RPNHead"}


def locate_in_mmdetection(model: nn.Module) -> LogitLayer | None:
    """The class logits of an MMDetection detector, also of one inside another module; None when there is none."""
    for prefix, module, _ in modules_from(model, PACKAGE):
        region = getattr(getattr(module, "roi_head", None), "bbox_head", None)
        if region is not None:
            return _region_based(module.roi_head, region, f"{prefix}roi_head.bbox_head")
        for name in ("bbox_head", "panoptic_head"):
            head = getattr(module, name, None)
            if head is not None:
                return _query_based(head, f"{prefix}{name}") or _dense(head, f"{prefix}{name}")
    return None


def _region_based(roi_head: Any, bbox_head: Any, root: str) -> LogitLayer | None:
    """Faster, Mask and Cascade R-CNN: `fc_cls`, Linear or NormedLinear, background last.

    Seesaw's loss adds a pair of objectness columns behind the classes and has no background among them.
    """
    cascade = type(bbox_head).__name__ == "ModuleList"
    heads = list(bbox_head) if cascade else [bbox_head]
    layers = [getattr(head, "fc_cls", None) for head in heads]
    if any(output_width(layer) is None for layer in layers):
        return None
    paths = [f"{root}.{stage}.fc_cls" for stage in range(len(heads))] if cascade else [f"{root}.fc_cls"]
    if "SparseRoIHead" in class_names(roi_head, PACKAGE):
        # Sparse R-CNN refines its queries stage by stage; only the last stage's classes are predicted.
        paths, cascade = paths[-1:], False
    classes = int(heads[-1].num_classes)
    extra = (output_width(layers[-1]) or 0) - classes
    sigmoid = bool(getattr(getattr(heads[-1], "loss_cls", None), "use_sigmoid", False)) and extra != 2
    return LogitLayer(
        tuple(paths) if cascade else paths[0],
        background=-1 if extra == 1 else None,
        activation="sigmoid" if sigmoid else "softmax",
        population="test proposals",
        stages=cascade,
        extra_columns=extra if extra > 1 else 0,
    )


def _query_based(head: Any, root: str) -> LogitLayer | None:
    """DETRs and mask transformers."""
    sigmoid = bool(getattr(getattr(head, "loss_cls", None), "use_sigmoid", False))
    background = None if sigmoid else -1
    activation = "sigmoid" if sigmoid else "softmax"
    branches = getattr(head, "cls_branches", None)
    if branches is not None:
        # A two-stage model has one branch more, which picks the encoder's proposals.
        last = len(branches) - (2 if getattr(head, "as_two_stage", False) else 1)
        if output_width(branches[last]) is None:
            return None
        return LogitLayer(
            f"{root}.cls_branches.{last}", background=background, activation=activation, population="queries"
        )
    for name in ("fc_cls", "cls_embed"):
        if output_width(getattr(head, name, None)) is not None:
            # Mask2Former calls it after every decoder layer, the others once on all layers stacked.
            part = "call" if "Mask2FormerHead" in class_names(head, PACKAGE) else "slice"
            return LogitLayer(
                f"{root}.{name}", background=background, activation=activation, population="queries", final_only=part
            )
    return None


def _dense(head: Any, root: str) -> LogitLayer | None:
    """RetinaNet, ATSS, FCOS, RTMDet, YOLOX, SSD: convolutions, `channel = anchor * columns + class`."""
    if class_names(head, PACKAGE) & NOT_KNOWN or not hasattr(head, "cls_out_channels"):
        return None
    columns = int(head.cls_out_channels)
    sigmoid = bool(getattr(head, "use_sigmoid_cls", True))
    for name in DENSE_LAYERS:
        found = _convolutions(getattr(head, name, None), f"{root}.{name}", columns)
        if found:
            anchors = tuple(width // columns for width in found.values())
            return LogitLayer(
                tuple(found) if len(found) > 1 else next(iter(found)),
                background=None if sigmoid else -1,
                activation="sigmoid" if sigmoid else "softmax",
                class_axis=1,
                anchors=anchors if len(found) > 1 else anchors[0],
                num_columns=columns,
                population="all anchors",
            )
    return None


def _convolutions(module: Any, path: str, columns: int) -> dict[str, int]:
    """Path and width of the class convolutions: the one itself, or the last of each level."""
    width = output_width(module)
    if width is not None:
        return {path: width} if width % columns == 0 else {}
    if type(module).__name__ != "ModuleList":
        return {}
    found: dict[str, int] = {}
    for level, block in module.named_children():
        inside = [(name, output_width(part)) for name, part in block.named_modules() if output_width(part) is not None]
        if not inside or inside[-1][1] is None or inside[-1][1] % columns:
            return {}
        found[f"{path}.{level}" + (f".{inside[-1][0]}" if inside[-1][0] else "")] = inside[-1][1]
    return found


# Masks of an image that are in memory as pixels at the same time.
_MASKS_AT_ONCE = 64
# Boxes, class logits and objectness, the last or None.
Rows = tuple[Any, Any, Any]


class _Piped(NamedTuple):
    """An image as the test pipeline leaves it, and its own size."""

    inputs: Mapping[str, Any]
    height: int
    width: int


class MMDetectionDetector:
    """A detector of MMDetection: R-CNNs, cascades, RetinaNet and similar, RTMDet, YOLOX, DETRs.

    Each image goes alone through the framework's own test pipeline and its own `predict`, up to where its head would
    turn logits into scores: what the head was about to decode are the proposals. A cascade gives the mean of its
    stages' logits, as the framework takes it. The model stays in evaluation mode.

    Args:
        model: The model, as `mmdet.apis.init_detector` makes it.
        pipeline: The steps of the test pipeline; by default those of `model.cfg`.
        anchors_per_level: How many anchors of each level of a one-stage detector are kept, those whose best class
            scores highest; by default `nms_pre` of its test configuration, as many as the framework looks at.
    """

    def __init__(
        self, model: Any, pipeline: Sequence[Any] | None = None, *, anchors_per_level: int | None = None
    ) -> None:
        import torch

        layer = locate_in_mmdetection(model)
        reader = _reader(model) if layer is not None else None
        if layer is None or reader is None:
            raise InputError(
                "Expected `model` to be a detector of MMDetection whose head is known, but got "
                f"{type(model).__name__} with {_head_names(model)}."
            )
        self._torch, self.model, self._reader = torch, model.eval(), reader
        if isinstance(reader, _DenseReader) and anchors_per_level is not None:
            reader.kept = anchors_per_level
        self.logit_layer = layer
        self.population = "kept anchors" if getattr(reader, "kept", None) else layer.population
        self.background, self.activation = layer.background, layer.activation or "sigmoid"
        self.num_classes = int(reader.head.num_classes)
        named = (getattr(model, "dataset_meta", None) or {}).get("classes") or ()
        self.class_names = tuple(named) if len(named) == self.num_classes else None
        self.postprocessing = reader.postprocessing()
        self._pipeline = _composed(model, pipeline)

    def prepare(self, image: Rgb) -> _Piped:
        """An RGB image as the test pipeline leaves it."""
        height, width = image.shape[:2]
        # The framework reads files as BGR.
        return _Piped(self._pipeline({"img": np.ascontiguousarray(image[..., ::-1]), "img_id": 0}), height, width)

    def run(self, images: Sequence[Any]) -> None:
        """Run the model up to where its head would turn logits into scores."""
        with self._torch.inference_mode():
            for image in images:
                self._reader.reach(self._predictor(self._piped(image))[0])

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image: prepared ones, RGB arrays, or float tensors `(3, H, W)` in 0..1."""
        with self._torch.inference_mode():
            return [self._propose(self._piped(image)) for image in images]

    @property
    def masks(self) -> MaskFunction | None:
        """Masks of detections, from the framework's own `predict_mask`; None for a model without a mask head."""
        roi_head = getattr(self.model, "roi_head", None)
        return self._masks if getattr(roi_head, "with_mask", False) else None

    def _masks(self, image: Any, boxes: Any, classes: Any, rows: Any) -> Iterator[npt.NDArray[np.bool_]]:
        torch, kind = self._torch, import_module("mmengine.structures").InstanceData
        with torch.inference_mode():
            data = self._batch(self._piped(image))
            features, meta = self.model.extract_feat(data["inputs"]), data["data_samples"][0].metainfo
            scale = features[0].new_tensor(meta["scale_factor"]).repeat(2)
            for start in range(0, len(boxes), _MASKS_AT_ONCE):
                part = slice(start, start + _MASKS_AT_ONCE)
                given = kind(
                    # As the network sees them: they are brought back with the masks.
                    bboxes=torch.as_tensor(boxes[part], device=scale.device) * scale,
                    labels=torch.as_tensor(classes[part], device=scale.device).long(),
                    scores=scale.new_ones(len(boxes[part])),
                )
                (made,) = self.model.roi_head.predict_mask(features, [meta], [given], rescale=True)
                yield from made.masks.cpu().numpy()

    def _piped(self, image: Any) -> _Piped:
        return image if isinstance(image, _Piped) else self.prepare(as_rgb(image))

    def _predictor(self, image: _Piped) -> tuple[Callable[[], object], Mapping[str, Any]]:
        """What runs the framework's `predict` on an image, and what the pipeline did to it."""
        data = self._batch(image)
        return lambda: self.model.predict(**_as_predicted(data)), data["data_samples"][0].metainfo

    def _batch(self, image: _Piped) -> dict[str, Any]:
        data = {"inputs": [image.inputs["inputs"]], "data_samples": [image.inputs["data_samples"]]}
        return dict(self.model.data_preprocessor(data, False))

    def _propose(self, image: _Piped) -> Proposals:
        run, meta = self._predictor(image)
        boxes, logits, objectness = self._reader.rows(self._reader.reach(run), meta)
        scale = boxes.new_tensor(meta["scale_factor"]).repeat(2)
        boxes = (boxes / scale).float()
        return Proposals(boxes, logits.float(), image.height, image.width, objectness=_float(objectness))


class _Reader:
    """Which method of a head gets the logits, and how they and the boxes are read there."""

    method = "predict_by_feat"

    def __init__(self, owner: Any, head: Any, config: Any) -> None:
        self.owner, self.head, self.config = owner, head, config or {}

    def reach(self, run: Callable[[], object]) -> dict[str, Any]:
        """What the method is given when `run` reaches it."""
        given = run_until(self.owner, self.method, run, self.wanted)
        if given is None:
            name = type(self.head).__name__
            raise InputError(f"The model never calls `{self.method}` of its {name}: no logits to read.")
        return given

    def wanted(self, given: dict[str, Any]) -> bool:
        return True

    def rows(self, given: dict[str, Any], meta: Mapping[str, Any]) -> Rows:
        raise NotImplementedError

    def postprocessing(self) -> Postprocessing:
        raise NotImplementedError

    def suppression(self) -> dict[str, Any]:
        nms: dict[str, Any] = dict(self.config.get("nms") or {})
        if nms.get("type", "nms") != "nms":
            warn(
                f"MMDetection's `{nms['type']}` is not decoded here: boxes suppress each other by plain NMS instead, "
                "so results differ from the framework's."
            )
        limit = int(self.config.get("max_per_img", -1))
        return {
            "nms": "class-agnostic" if nms.get("class_agnostic") else "class-wise",
            "nms_iou": float(nms.get("iou_threshold", nms.get("iou_thr", 0.5))),
            "score_threshold": float(self.config.get("score_thr", 0.0)),
            "max_detections": limit if limit > 0 else None,
        }


class _RegionReader(_Reader):
    """Faster, Mask and Cascade R-CNN."""

    def rows(self, given: dict[str, Any], meta: Mapping[str, Any]) -> Rows:
        (logits,) = given["cls_scores"]
        # Without a configuration it gives all boxes, as it does for augmented tests.
        (decoded,) = self.head.predict_by_feat(**{**given, "rcnn_test_cfg": None, "rescale": False})
        boxes = decoded.bboxes
        classes = int(self.head.num_classes)
        boxes = boxes.reshape(len(logits), -1, 4) if boxes.shape[-1] == 4 * classes != 4 else boxes.reshape(-1, 4)
        if logits.shape[1] == classes + 2:
            # Seesaw loss: a pair of columns says whether there is an object, and a softmax of two is a sigmoid.
            return boxes, logits[:, :classes], logits[:, classes] - logits[:, classes + 1]
        return boxes, logits, None

    def postprocessing(self) -> Postprocessing:
        return Postprocessing(**self.suppression(), min_box_size=0.0)


class _SparseReader(_Reader):
    """Sparse R-CNN: the last stage says all."""

    method = "_bbox_forward"

    def wanted(self, given: dict[str, Any]) -> bool:
        return bool(given["stage"] == self.owner.num_stages - 1)

    def rows(self, given: dict[str, Any], meta: Mapping[str, Any]) -> Rows:
        last = self.owner._bbox_forward(**given)
        return last["detached_proposals"][0], last["cls_score"][0], None

    def postprocessing(self) -> Postprocessing:
        return _best_pairs(self.config)


class _QueryReader(_Reader):
    """DETRs."""

    def rows(self, given: dict[str, Any], meta: Mapping[str, Any]) -> Rows:
        logits, boxes = (values[-1][0] for values in list(given.values())[:2])
        height, width = meta["img_shape"][:2]
        size = boxes.new_tensor([width, height, width, height])
        return (corners_of(boxes) * size).clamp(min=0).minimum(size), logits, None

    def postprocessing(self) -> Postprocessing:
        return _best_pairs(self.config, multi_label=bool(self.head.loss_cls.use_sigmoid))


class _DenseReader(_Reader):
    """RetinaNet, SSD, ATSS, FCOS, VFNet, RTMDet, GFL and YOLOX: anchors or points are proposals."""

    def __init__(self, owner: Any, head: Any, config: Any) -> None:
        super().__init__(owner, head, config)
        limit = 0 if _is_yolox(head) else int(self.config.get("nms_pre", 0))
        self.kept = limit if limit > 0 else None

    def rows(self, given: dict[str, Any], meta: Mapping[str, Any]) -> Rows:
        import torch

        levels = [_flat(level, self.head.cls_out_channels) for level in given["cls_scores"]]
        best = torch.cat([self._best(level) for level in levels])
        boxes = self._boxes(given["bbox_preds"], meta["img_shape"])
        # Centerness or objectness: its sigmoid multiplies the scores.
        factors = given.get("score_factors", given.get("objectnesses"))
        factor = None if factors is None else torch.cat([_flat(level, 1) for level in factors])[best, 0]
        return boxes[best], torch.cat(levels)[best], factor

    def _best(self, logits: Any) -> Any:
        """Which anchors of a level are kept: by their best class, as the framework picks its candidates."""
        scores = logits.sigmoid() if self.head.use_sigmoid_cls else logits.softmax(dim=-1)[:, :-1]
        best = scores.amax(dim=1)
        kept = best >= best.topk(min(self.kept or len(best), len(best))).values[-1]
        return kept

    def _boxes(self, levels: Sequence[Any], shape: tuple[int, int]) -> Any:
        """Boxes as the head decodes them, clipped where it does that before suppression."""
        import torch

        head = self.head
        options = {"dtype": levels[0].dtype, "device": levels[0].device}
        if _is_yolox(head):
            options["with_stride"] = True
        priors = torch.cat(head.prior_generator.grid_priors([level.shape[-2:] for level in levels], **options))
        if _is_yolox(head):
            return head._bbox_decode(priors, torch.cat([_flat(level, 4) for level in levels])[None])[0]
        if "GFLHead" in class_names(head, PACKAGE):
            strides = head.prior_generator.strides
            pairs = zip(levels, strides, strict=True)
            sides = [head.integral(level[0].permute(1, 2, 0)) * stride[0] for level, stride in pairs]
            return head.bbox_coder.decode(head.anchor_center(priors), torch.cat(sides), max_shape=shape)
        deltas = torch.cat([_flat(level, head.bbox_coder.encode_size) for level in levels])
        return head.bbox_coder.decode(priors, deltas, max_shape=shape)

    def postprocessing(self) -> Postprocessing:
        if _is_yolox(self.head):
            return Postprocessing(**{**self.suppression(), "max_detections": None}, multi_label=False, min_box_size=0.0)
        smallest = float(self.config.get("min_bbox_size", -1))
        smallest = _above(smallest) if smallest >= 0 else 0.0
        # It holds its threshold against the class scores, before it multiplies them.
        return Postprocessing(**self.suppression(), min_box_size=smallest, objectness="late factor")


def _is_yolox(head: Any) -> bool:
    return "YOLOXHead" in class_names(head, PACKAGE)


def _flat(level: Any, columns: int) -> Any:
    """The rows of one image at one level: `(anchors * columns, H, W)` becomes `(H * W * anchors, columns)`."""
    return level[0].permute(1, 2, 0).reshape(-1, columns)


def _above(size: float) -> float:
    """The least float32 above `size`: the framework keeps sides that are greater."""
    return float(np.nextafter(np.float32(size), np.float32(np.inf)))


def _best_pairs(config: Any, *, multi_label: bool = True) -> Postprocessing:
    """Without suppression: the best pairs of query and class, whatever their scores."""
    limit = int(config.get("max_per_img", 100))
    return Postprocessing(
        nms="none", multi_label=multi_label, score_threshold=0.0, max_detections=limit, min_box_size=0.0
    )


def _reader(model: Any) -> _Reader | None:
    """How the proposals of a model are read; None for heads that decode boxes in a way of their own."""
    roi_head = getattr(model, "roi_head", None)
    if roi_head is not None:
        heads = roi_head.bbox_head
        last = heads[-1] if type(heads).__name__ == "ModuleList" else heads
        if "SparseRoIHead" in class_names(roi_head, PACKAGE):
            return _SparseReader(roi_head, last, roi_head.test_cfg)
        return _RegionReader(last, last, roi_head.test_cfg) if _is_from(last, "BBoxHead") else None
    head: Any = getattr(model, "bbox_head", None)
    if _is_from(head, "DETRHead") and _defined_by(head, "predict_by_feat") in ("DETRHead", "DeformableDETRHead"):
        return _QueryReader(head, head, head.test_cfg)
    if _is_from(head, "BaseDenseHead", "GFLHead") or _is_yolox(head):
        return _DenseReader(head, head, head.test_cfg)
    return None


def _is_from(head: Any, *names: str) -> bool:
    """Whether a head decodes one image as one of these classes does, not in a way of its own."""
    return _defined_by(head, "_predict_by_feat_single") in names


def _defined_by(head: Any, method: str) -> str:
    return str(getattr(getattr(type(head), method, None), "__qualname__", "")).partition(".")[0]


def _head_names(model: Any) -> str:
    heads = [getattr(model, name, None) for name in ("roi_head", "bbox_head", "panoptic_head")]
    return " and ".join(type(head).__name__ for head in heads if head is not None) or "no head"


def _composed(model: Any, pipeline: Sequence[Any] | None) -> Any:
    if pipeline is None:
        if getattr(model, "cfg", None) is None:
            raise InputError(
                "The model does not say how its images are prepared: it has no `cfg`. Open it with "
                "`mmdet.apis.init_detector`, or pass `pipeline`, the steps of the test pipeline."
            )
        pipeline = import_module("mmdet.utils").get_test_pipeline_cfg(model.cfg)
    steps = [dict(step) for step in pipeline]
    # The first step reads a file; here the image is there already.
    steps[0] = {"type": "mmdet.LoadImageFromNDArray"}
    return import_module("mmcv.transforms").Compose(steps)


def _as_predicted(data: dict[str, Any]) -> dict[str, Any]:
    return {"batch_inputs": data["inputs"], "batch_data_samples": data["data_samples"]}


def _float(values: Any) -> Any:
    return None if values is None else values.float()
