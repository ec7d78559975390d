"""Detectors of MMDetection 3.x (`mmdet` and its fork `onedl-mmdetection`) as a source of proposals with all logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from logn.errors import InputError, warn
from logn.models.frameworks import class_names
from logn.models.frameworks.mmdetection import PACKAGE, locate_in_mmdetection
from logn.models.frameworks.run_until import run_until
from logn.models.proposals import Postprocessing, Proposals

# Boxes, class logits and objectness, the last or None.
Rows = tuple[Any, Any, Any]


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

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image; images are float tensors `(3, H, W)` in 0..1."""
        with self._torch.inference_mode():
            return [self._propose(image) for image in images]

    def _propose(self, image: Any) -> Proposals:
        height, width = (int(side) for side in image.shape[-2:])
        octets = (image * 255).round().clamp(0, 255).to(self._torch.uint8).permute(1, 2, 0).cpu().numpy()
        # The framework reads files as BGR.
        prepared = self._pipeline({"img": np.ascontiguousarray(octets[..., ::-1]), "img_id": 0})
        data = {"inputs": [prepared["inputs"]], "data_samples": [prepared["data_samples"]]}
        data = self.model.data_preprocessor(data, False)
        meta = data["data_samples"][0].metainfo
        boxes, logits, objectness = self._reader.read(lambda: self.model.predict(**_as_predicted(data)), meta)
        scale = boxes.new_tensor(meta["scale_factor"]).repeat(2)
        return Proposals(
            (boxes / scale).float(), logits.float(), height=height, width=width, objectness=_float(objectness)
        )


class _Reader:
    """Which method of a head gets the logits, and how they and the boxes are read there."""

    method = "predict_by_feat"

    def __init__(self, owner: Any, head: Any, config: Any) -> None:
        self.owner, self.head, self.config = owner, head, config or {}

    def read(self, run: Callable[[], object], meta: Mapping[str, Any]) -> Rows:
        given = run_until(self.owner, self.method, run, self.wanted)
        if given is None:
            name = type(self.head).__name__
            raise InputError(f"The model never calls `{self.method}` of its {name}: no logits to read.")
        return self.rows(given, meta)

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
        center, sides = boxes.split(2, dim=-1)
        corners = boxes.new_empty(boxes.shape)
        corners[:, :2], corners[:, 2:] = center - 0.5 * sides, center + 0.5 * sides
        return (corners * size).clamp(min=0).minimum(size), logits, None

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
