"""MMDetection 3.x (`mmdet` and its fork `onedl-mmdetection`): its class logits, and its proposals with all logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from logn.base.boxes import corners_of
from logn.errors import InputError, warn
from logn.models.detector import Detector
from logn.models.frameworks.shared import calls_of, kinds_of, locate_inside
from logn.models.images import as_rgb
from logn.models.layer import LogitLayer, output_width
from logn.models.proposals import Postprocessing, Proposals

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


_HEADS = ("roi_head", "bbox_head", "panoptic_head")


def locate(module: Any, kinds: set[str]) -> LogitLayer | None:
    """The class logits of an MMDetection detector; None when there is none."""
    if any(kind.endswith("RoIHead") for kind in kinds):  # it has a head of its own, which is that of its detector
        return None
    roi_head = getattr(module, "roi_head", None)
    if getattr(roi_head, "bbox_head", None) is not None:
        return _region_based(roi_head)
    for name in ("bbox_head", "panoptic_head"):
        head = getattr(module, name, None)
        if head is not None:
            return _query_based(head, name) or _dense(head, name)
    return None


def _region_based(roi_head: Any) -> LogitLayer | None:
    """Faster, Mask and Cascade R-CNN: `fc_cls`, Linear or NormedLinear, background last.

    Seesaw's loss adds a pair of objectness columns behind the classes and has no background among them.
    """
    cascade = type(roi_head.bbox_head).__name__ == "ModuleList"
    heads = _stages(roi_head)
    layers = [getattr(head, "fc_cls", None) for head in heads]
    if any(output_width(layer) is None for layer in layers):
        return None
    root = "roi_head.bbox_head"
    paths = [f"{root}.{stage}.fc_cls" for stage in range(len(heads))] if cascade else [f"{root}.fc_cls"]
    if "SparseRoIHead" in kinds_of(roi_head, PACKAGE):
        # Sparse R-CNN refines its queries stage by stage; only the last stage's classes are predicted.
        paths, cascade = paths[-1:], False
    extra = (output_width(layers[-1]) or 0) - int(heads[-1].num_classes)
    sigmoid = bool(getattr(getattr(heads[-1], "loss_cls", None), "use_sigmoid", False)) and extra != 2
    return LogitLayer(
        tuple(paths) if cascade else paths[0],
        background=-1 if extra == 1 else None,
        activation="sigmoid" if sigmoid else "softmax",
        population="test proposals",
        stages=cascade,
        extra_columns=extra if extra > 1 else 0,
    )


def _stages(roi_head: Any) -> list[Any]:
    """The heads of the stages of a cascade; else the only one."""
    heads = roi_head.bbox_head
    return list(heads) if type(heads).__name__ == "ModuleList" else [heads]


def _query_based(head: Any, root: str) -> LogitLayer | None:
    """DETRs and mask transformers."""
    sigmoid = bool(getattr(getattr(head, "loss_cls", None), "use_sigmoid", False))
    reading: dict[str, Any] = {
        "background": None if sigmoid else -1,
        "activation": "sigmoid" if sigmoid else "softmax",
        "population": "queries",
    }
    branches = getattr(head, "cls_branches", None)
    if branches is not None:
        # A two-stage model has one branch more, which picks the encoder's proposals.
        last = len(branches) - (2 if getattr(head, "as_two_stage", False) else 1)
        return None if output_width(branches[last]) is None else LogitLayer(f"{root}.cls_branches.{last}", **reading)
    for name in ("fc_cls", "cls_embed"):
        if output_width(getattr(head, name, None)) is not None:
            # Mask2Former calls it after every decoder layer, the others once on all layers stacked.
            part = "call" if "Mask2FormerHead" in kinds_of(head, PACKAGE) else "slice"
            return LogitLayer(f"{root}.{name}", final_only=part, **reading)
    return None


def _dense(head: Any, root: str) -> LogitLayer | None:
    """RetinaNet, ATSS, FCOS, RTMDet, YOLOX, SSD: convolutions, `channel = anchor * columns + class`."""
    if kinds_of(head, PACKAGE) & NOT_KNOWN or not hasattr(head, "cls_out_channels"):
        return None
    columns = int(head.cls_out_channels)
    sigmoid = bool(getattr(head, "use_sigmoid_cls", True))
    for name in DENSE_LAYERS:
        widths = _convolutions(getattr(head, name, None), f"{root}.{name}", columns)
        if widths:
            paths, anchors = tuple(widths), tuple(width // columns for width in widths.values())
            return LogitLayer(
                paths if len(paths) > 1 else paths[0],
                background=None if sigmoid else -1,
                activation="sigmoid" if sigmoid else "softmax",
                class_axis=1,
                anchors=anchors if len(anchors) > 1 else anchors[0],
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
    widths: dict[str, int] = {}
    for level, block in module.named_children():
        inside = [(name, output_width(part)) for name, part in block.named_modules() if output_width(part) is not None]
        if not inside or inside[-1][1] is None or inside[-1][1] % columns:
            return {}
        widths[f"{path}.{level}" + (f".{inside[-1][0]}" if inside[-1][0] else "")] = inside[-1][1]
    return widths


# Masks of an image that are in memory as pixels at the same time.
_MASKS_AT_ONCE = 64
# Boxes, class logits and objectness, the last or None.
Rows = tuple[Any, Any, Any]


class _Piped(NamedTuple):
    """An image as the test pipeline leaves it, and its own size."""

    inputs: Mapping[str, Any]
    height: int
    width: int


class MMDetectionDetector(Detector):
    """A detector of MMDetection: R-CNNs, cascades, RetinaNet and similar, RTMDet, YOLOX, DETRs.

    Each image goes alone through the framework's own test pipeline and its own network: what the head is about to
    decode are the proposals. A cascade gives the mean of its stages' logits, as the framework takes it. The model stays
    in evaluation mode.

    Args:
        model: The model, as `mmdet.apis.init_detector` makes it.
        pipeline: The steps of the test pipeline; by default those of `model.cfg`.
        anchors_per_level: How many anchors of each level of a one-stage detector are kept, those whose best class
            scores highest; by default `nms_pre` of its test configuration, as many as the framework looks at.
    """

    def __init__(
        self, model: Any, pipeline: Sequence[Any] | None = None, *, anchors_per_level: int | None = None
    ) -> None:
        layer = locate_inside(model, PACKAGE, locate)
        reader = _reader(model) if layer is not None else None
        if layer is None or reader is None:
            heads = [type(getattr(model, name)).__name__ for name in _HEADS if hasattr(model, name)]
            raise InputError(
                "Expected `model` to be a detector of MMDetection whose head is known, but got "
                f"{type(model).__name__} with {' and '.join(heads) or 'no head'}."
            )
        if isinstance(reader, _DenseReader) and anchors_per_level is not None:
            reader.kept = anchors_per_level
        names = tuple((getattr(model, "dataset_meta", None) or {}).get("classes") or ())
        names_fit = len(names) == reader.head.num_classes
        super().__init__(model, layer, names if names_fit else None, population="kept anchors" if reader.kept else None)
        self.postprocessing = reader.postprocessing()
        self.masks = self._masks if getattr(getattr(model, "roi_head", None), "with_mask", False) else None
        self._reader, self._pipeline = reader, _composed(model, pipeline)

    def prepare(self, image: Any) -> _Piped:
        """An image as the test pipeline leaves it."""
        if isinstance(image, _Piped):
            return image
        pixels = as_rgb(image)
        # The framework reads files as BGR.
        piped = self._pipeline({"img": np.ascontiguousarray(pixels[..., ::-1]), "img_id": 0})
        return _Piped(piped, *pixels.shape[:2])

    @torch.inference_mode()
    def run(self, images: Sequence[Any]) -> list[tuple[Any, Mapping[str, Any]]]:
        """For each image what its head is about to decode, and what the pipeline did to it."""
        return [self._run(**self._batch(self.prepare(image))) for image in images]

    def _run(self, inputs: Any, data_samples: Any) -> tuple[Any, Mapping[str, Any]]:
        return self._reader.run(self.network, inputs, data_samples), data_samples[0].metainfo

    @torch.inference_mode()
    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image."""
        proposals = []
        for image in map(self.prepare, images):
            ((output, meta),) = self.run([image])
            boxes, logits, objectness = self._reader.rows(output, meta)
            pixels = (boxes / boxes.new_tensor(meta["scale_factor"]).repeat(2)).float()
            objectness = None if objectness is None else objectness.float()
            proposals.append(Proposals(pixels, logits.float(), image.height, image.width, objectness=objectness))
        return proposals

    def _masks(self, image: Any, boxes: Any, classes: Any, rows: Any) -> Iterator[npt.NDArray[np.bool_]]:
        instances = import_module("mmengine.structures").InstanceData
        with torch.inference_mode():
            data = self._batch(self.prepare(image))
            features, meta = self.network.extract_feat(data["inputs"]), data["data_samples"][0].metainfo
            scale = features[0].new_tensor(meta["scale_factor"]).repeat(2)
            for start in range(0, len(boxes), _MASKS_AT_ONCE):
                part = slice(start, start + _MASKS_AT_ONCE)
                detections = instances(
                    # As the network sees them: they are brought back with the masks.
                    bboxes=torch.as_tensor(boxes[part], device=scale.device) * scale,
                    labels=torch.as_tensor(classes[part], device=scale.device).long(),
                    scores=scale.new_ones(len(boxes[part])),
                )
                (masked,) = self.network.roi_head.predict_mask(features, [meta], [detections], rescale=True)
                yield from masked.masks.cpu().numpy()

    def _batch(self, image: _Piped) -> dict[str, Any]:
        data = {"inputs": [image.inputs["inputs"]], "data_samples": [image.inputs["data_samples"]]}
        return dict(self.network.data_preprocessor(data, False))


class _Reader:
    """How far a model runs on one image, and how boxes and logits are read from what it gives there.

    The framework's own `predict` runs on plainly where that costs next to nothing.
    """

    kept: int | None = None

    def __init__(self, head: Any, config: Any) -> None:
        self.head, self.config = head, config or {}

    def run(self, model: Any, inputs: Any, samples: Any) -> Any:
        """What the head gives."""
        with calls_of(self.head) as calls:
            model.predict(inputs, samples)
        return calls[-1][1]

    def rows(self, output: Any, meta: Mapping[str, Any]) -> Rows:
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

    def run(self, model: Any, inputs: Any, samples: Any) -> Any:
        """The logits of the regions, of a cascade the mean of its stages, and what the last head decodes."""
        features = model.extract_feat(inputs)
        regions = model.rpn_head.predict(features, samples, rescale=False)
        metas = [sample.metainfo for sample in samples]
        with calls_of(*_stages(model.roi_head)) as calls:
            # Without a configuration it gives all boxes, as it does for augmented tests.
            (decoded,) = model.roi_head.predict_bbox(features, metas, regions, None, rescale=False)
        if not calls:
            raise InputError(f"{type(model).__name__} proposes no regions on an image: no logits to read.")
        return decoded.bboxes, sum(output[0] for _, output in calls) / len(calls)

    def rows(self, output: Any, meta: Mapping[str, Any]) -> Rows:
        boxes, logits = output
        classes = int(self.head.num_classes)
        boxes = boxes.reshape(len(logits), -1, 4) if boxes.shape[-1] == 4 * classes != 4 else boxes.reshape(-1, 4)
        if logits.shape[1] == classes + 2:
            # Seesaw loss: a pair of columns says whether there is an object, and a softmax of two is a sigmoid.
            return boxes, logits[:, :classes], logits[:, classes] - logits[:, classes + 1]
        return boxes, logits, None

    def postprocessing(self) -> Postprocessing:
        return Postprocessing(**self.suppression(), min_box_size=0.0)


class _SparseReader(_Reader):
    """Sparse R-CNN: its last stage decides, on boxes that all stages have moved."""

    def run(self, model: Any, inputs: Any, samples: Any) -> Any:
        """What the last stage gives."""
        features = model.extract_feat(inputs)
        (regions,) = model.rpn_head.predict(features, samples, rescale=False)
        boxes, queries, metas = [regions.bboxes], regions.features[None], [sample.metainfo for sample in samples]
        to_regions, stage = import_module("mmdet.structures.bbox").bbox2roi, {}
        for number in range(model.roi_head.num_stages):
            stage = model.roi_head._bbox_forward(number, features, to_regions(boxes), queries, metas)
            boxes, queries = stage["detached_proposals"], stage["object_feats"]
        return stage

    def rows(self, output: Any, meta: Mapping[str, Any]) -> Rows:
        return output["detached_proposals"][0], output["cls_score"][0], None

    def postprocessing(self) -> Postprocessing:
        return _best_pairs(self.config)


class _QueryReader(_Reader):
    """DETRs."""

    def rows(self, output: Any, meta: Mapping[str, Any]) -> Rows:
        logits, boxes = (layers[-1][0] for layers in output[:2])
        height, width = meta["img_shape"][:2]
        size = boxes.new_tensor([width, height, width, height])
        return (corners_of(boxes) * size).clamp(min=0).minimum(size), logits, None

    def postprocessing(self) -> Postprocessing:
        return _best_pairs(self.config, multi_label=bool(self.head.loss_cls.use_sigmoid))


class _DenseReader(_Reader):
    """RetinaNet, SSD, ATSS, FCOS, VFNet, RTMDet, GFL and YOLOX: anchors or points are proposals."""

    def __init__(self, head: Any, config: Any) -> None:
        super().__init__(head, config)
        limit = 0 if _is_yolox(head) else int(self.config.get("nms_pre", 0))
        self.kept = limit if limit > 0 else None

    def rows(self, output: Any, meta: Mapping[str, Any]) -> Rows:
        scores, offsets, *factors = output  # centerness or objectness: its sigmoid multiplies the scores
        levels = [_flat(level, self.head.cls_out_channels) for level in scores]
        best = torch.cat([self._best(level) for level in levels])
        factor = torch.cat([_flat(level, 1) for level in factors[0]])[best, 0] if factors else None
        return self._boxes(offsets, meta["img_shape"])[best], torch.cat(levels)[best], factor

    def _best(self, logits: Any) -> Any:
        """Which anchors of a level are kept: by their best class, as the framework picks its candidates."""
        scores = logits.sigmoid() if self.head.use_sigmoid_cls else logits.softmax(dim=-1)[:, :-1]
        best = scores.amax(dim=1)
        return best >= best.topk(min(self.kept or len(best), len(best))).values[-1]

    def _boxes(self, levels: Sequence[Any], shape: tuple[int, int]) -> Any:
        """Boxes as the head decodes them, clipped where it does that before suppression."""
        head = self.head
        options = {"dtype": levels[0].dtype, "device": levels[0].device}
        if _is_yolox(head):
            options["with_stride"] = True
        priors = torch.cat(head.prior_generator.grid_priors([level.shape[-2:] for level in levels], **options))
        if _is_yolox(head):
            return head._bbox_decode(priors, torch.cat([_flat(level, 4) for level in levels])[None])[0]
        if "GFLHead" in kinds_of(head, PACKAGE):
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
        # The framework keeps sides that are greater: those from the next float32 on.
        above = float(np.nextafter(np.float32(smallest), np.float32(np.inf))) if smallest >= 0 else 0.0
        # It holds its threshold against the class scores, before it multiplies them.
        return Postprocessing(**self.suppression(), min_box_size=above, objectness="late factor")


def _is_yolox(head: Any) -> bool:
    return "YOLOXHead" in kinds_of(head, PACKAGE)


def _flat(level: Any, columns: int) -> Any:
    """The rows of one image at one level: `(anchors * columns, H, W)` becomes `(H * W * anchors, columns)`."""
    return level[0].permute(1, 2, 0).reshape(-1, columns)


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
        last = _stages(roi_head)[-1]
        if "SparseRoIHead" in kinds_of(roi_head, PACKAGE):
            return _SparseReader(last, roi_head.test_cfg)
        is_plain = _defined_by(roi_head, "predict_bbox") in ("StandardRoIHead", "CascadeRoIHead")
        decodes_boxes = _defined_by(last, "_predict_by_feat_single") == "BBoxHead"
        return _RegionReader(last, roi_head.test_cfg) if is_plain and decodes_boxes else None
    head: Any = getattr(model, "bbox_head", None)
    if _defined_by(head, "predict_by_feat") in ("DETRHead", "DeformableDETRHead"):
        is_detr = _defined_by(head, "_predict_by_feat_single") == "DETRHead"
        return _QueryReader(head, head.test_cfg) if is_detr else None
    is_dense = _defined_by(head, "_predict_by_feat_single") in ("BaseDenseHead", "GFLHead")
    return _DenseReader(head, head.test_cfg) if is_dense or _is_yolox(head) else None


def _defined_by(head: Any, method: str) -> str:
    """The class that a method is defined in."""
    return str(getattr(getattr(type(head), method, None), "__qualname__", "")).partition(".")[0]


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
