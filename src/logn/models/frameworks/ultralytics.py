"""Ultralytics' YOLO and RT-DETR: where their class logits are, their proposals with all logits, and their `.pt` files.

Models are recognised by name; the package itself is imported only to open a `.pt` file, which no other can read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from logn.base.boxes import corners_of
from logn.data.masks import combine_prototypes
from logn.errors import InputError, MissingExtraError
from logn.models.detector import Detector
from logn.models.frameworks.shared import Loaded, calls_of, in_groups, kinds_of, locate_inside
from logn.models.hints import Hints, choose_device
from logn.models.images import Images, Rgb, as_rgb
from logn.models.layer import LogitLayer
from logn.models.opened import Traits
from logn.models.proposals import Postprocessing, Proposals, check_rows

PACKAGE = "ultralytics"
# Heads whose classes are texts, compared with the image; they have no class layer before their text is fused in.
OPEN_VOCABULARY = {"WorldDetect", "YOLOEDetect"}


def locate(module: Any, kinds: set[str]) -> LogitLayer | None:
    """The class logits of a YOLO (v5 to 26), RT-DETR or classification model; None when there are none."""
    if "Detect" in kinds and not kinds & OPEN_VOCABULARY:
        return _levels(module)
    if "RTDETRDecoder" in kinds:
        path = f"dec_score_head.{int(getattr(module, 'eval_idx', -1)) % len(module.dec_score_head)}"
        return LogitLayer(path, activation="sigmoid", population="queries")
    return LogitLayer("linear", activation="softmax", population="images") if "Classify" in kinds else None


def _levels(head: Any) -> LogitLayer | None:
    """One 1x1 convolution per level; models that can do without suppression of duplicates have a second set of them.

    Which set predicts is chosen when the model is used, so both are corrected. They are stages: each has statistics
    and a map of its own. `fuse()` drops `cv3` where the second set predicts.
    """
    sets = {name: blocks for name in ("cv3", "one2one_cv3") if (blocks := getattr(head, name, None)) is not None}
    stages = [stage for stage, blocks in enumerate(sets.values()) for _ in blocks]
    paths = [f"{name}.{level}.{len(block) - 1}" for name, blocks in sets.items() for level, block in enumerate(blocks)]
    if not paths:
        return None
    return LogitLayer(
        tuple(paths),
        activation="sigmoid",
        class_axis=1,
        population="all anchors",
        stages=tuple(stages) if len(sets) > 1 else False,
    )


_GREY = 114
# The key of a checkpoint that holds a correction; it survives `YOLO.save`, and training drops it.
FOLDED = "logn_folded"


def read_ultralytics(path: str | os.PathLike[str]) -> Any:
    """What Ultralytics' own reader makes of a `.pt` file, which the user trusts: it is a pickle."""
    if Path(path).suffix != ".pt":
        raise InputError(f"`{path}` cannot be read as a model of Ultralytics, whose files end in .pt: rename it.")
    # Its import looks up hosts to find out whether there is a network, and would then report and update itself.
    os.environ.setdefault("YOLO_OFFLINE", "true")
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    try:
        ultralytics = import_module(PACKAGE)
    except ImportError as error:
        raise MissingExtraError(PACKAGE, extra="frameworks") from error
    try:
        return ultralytics.YOLO(os.fspath(path))
    except Exception as error:  # whatever its reader makes of a file that is none of its own
        raise InputError(f"`{path}` cannot be read as a model of Ultralytics: {error}") from error


def open_file(file: Path, hints: Hints) -> Loaded:
    """Open a `.pt` file of a detector or a classifier."""
    hints.refuse(f"`{file}`, which Ultralytics reads and whose layers are known", "like", "layer")
    front = read_ultralytics(file)
    network = front.model.to(choose_device(hints.device)).eval()
    framework = f"Ultralytics, {Path(getattr(network, 'yaml_file', '')).stem or type(network).__name__}"
    detector: UltralyticsDetector | None = None
    if getattr(network, "task", None) == "classify":
        side = max(hints.size) if hints.size else int(network.args.get("imgsz", 224))
        words, run = f"the middle, {side}x{side}", lambda images: _classify(network, side, images)
    else:
        detector = UltralyticsDetector(front, size=hints.size, **hints.detector_options)
        kind = "stretched" if "RTDETR" in type(network).__name__ else "letterboxed"
        words, run = f"{kind} to {detector.image_size}", detector.run
    return Loaded(
        network=network,
        traits=Traits(framework, words, ".pt"),
        class_names=tuple(map(str, network.names.values())),
        save=partial(_save, file),
        run=run,
        detector=detector,
        is_folded=FOLDED in (getattr(front, "ckpt", None) or {}),
    )


def _classify(network: Any, side: int, images: Images) -> object:
    from PIL import Image

    transform = import_module("ultralytics.data.augment").classify_transforms(side)
    like = next(network.parameters())
    batch = torch.stack([transform(Image.fromarray(image)) for image in images])
    return network(batch.to(like.device, like.dtype))


def _save(source: Path, network: Any, path: Path) -> None:
    """The file as it was, except for the class layer, which is kept in full precision."""
    checkpoint, _ = import_module("ultralytics.nn.tasks").torch_safe_load(str(source))
    stored = checkpoint.get("ema") or checkpoint["model"]
    layer = locate_inside(network, PACKAGE, locate)
    for module_path in layer.paths if layer else ():
        module, folded = stored.get_submodule(module_path), network.get_submodule(module_path)
        for name in ("weight", "bias"):
            tensor = getattr(folded, name).detach().cpu().float()
            setattr(module, name, torch.nn.Parameter(tensor.clone(), requires_grad=False))
    torch.save({**checkpoint, FOLDED: True}, path)


@dataclass(frozen=True)
class _Placed:
    """An image as the network sees it, and where it lies there."""

    pixels: Rgb
    scale: tuple[float, float]
    offset: tuple[int, int]
    height: int
    width: int


class UltralyticsDetector(Detector):
    """A YOLO (v5u to 26; detection, segmentation, pose) or RT-DETR that gives all anchors or queries.

    Images are prepared one by one as by Ultralytics' own `predict`: YOLO's are scaled and padded to a multiple of the
    stride, RT-DETR's stretched to a square. Images that come out in one size run together, so what an image gives does
    not depend on the others. YOLO's boxes reach beyond the image and are clipped after suppression, as there. The model
    stays in evaluation mode.

    The settings of `postprocessing` are those of Ultralytics' `val`, which measures; its `predict` has a threshold of
    0.25 and takes the best class of each box only.

    Args:
        model: What `YOLO(...)` or `RTDETR(...)` gave, or its `model`.
        size: The longer side that images are scaled to, or height and width; by default that of the model's training,
            else 640.
        end2end: Whether the head that needs no suppression predicts (v10, 26); by default the one that is chosen in
            the model.
        max_proposals: How many anchors of an image are kept, those whose best class scores highest; by default all.
    """

    def __init__(
        self,
        model: Any,
        *,
        size: int | tuple[int, int] | None = None,
        end2end: bool | None = None,
        max_proposals: int | None = None,
    ) -> None:
        # The front end is a module too, whose own `model` is the network.
        network: Any = model.model if kinds_of(model, f"{PACKAGE}.engine.model") else model
        head = _head_of(network) if isinstance(network, torch.nn.Module) else None
        layer = None if head is None else locate_inside(network, PACKAGE, locate)
        if head is None or layer is None:
            raise InputError(f"Expected `model` to be a detector of Ultralytics, but got {type(model).__name__}.")
        names = getattr(network, "names", None) or ()
        names = tuple(names.values() if isinstance(names, dict) else names)
        anchors = "kept anchors" if max_proposals else None
        super().__init__(network, layer, names if len(names) == head.nc else None, population=anchors)
        self._class_head = head
        self._is_detr = "RTDETRDecoder" in kinds_of(head, PACKAGE)
        if end2end is not None and not self._is_detr:
            _choose_head(head, end2end)
        self._is_end2end = not self._is_detr and bool(getattr(head, "end2end", False))
        self.image_size = _image_size(network, size)
        self._stride = max(int(network.stride.max()), 32)
        self._kept = max_proposals
        self.masks = self._masks if "Segment" in kinds_of(head, PACKAGE) else None
        self.postprocessing = Postprocessing(
            nms="none" if self._is_detr or self._is_end2end else "class-wise",
            nms_iou=0.7,
            # Earlier versions take the best class of each query, later ones the best pairs of query and class.
            multi_label=not self._is_detr or hasattr(head, "postprocess"),
            score_threshold=1e-3,
            max_detections=300,
            min_box_size=0.0,
            clip_boxes=not self._is_detr,
        )

    def prepare(self, image: Any) -> _Placed:
        """An image as the network sees it."""
        if isinstance(image, _Placed):
            return image
        pixels = as_rgb(image)
        return _stretch(pixels, self.image_size) if self._is_detr else _letterbox(pixels, self.image_size, self._stride)

    @torch.inference_mode()
    def run(self, images: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
        """Of each image: boxes as corners in pixels of what the network sees, logits, and what else there is."""
        return in_groups([self.prepare(image) for image in images], lambda image: image.pixels.shape, self._rows)

    def propose(self, images: Sequence[Any]) -> list[Proposals]:
        """Boxes and logits of each image."""
        prepared = [self.prepare(image) for image in images]
        rows = zip(self.run(prepared), prepared, strict=True)
        return [self._proposals(boxes, logits, image) for (boxes, logits, _), image in rows]

    def _masks(self, image: Any, boxes: Any, classes: Any, rows: Any) -> Iterator[npt.NDArray[np.bool_]]:
        placed = self.prepare(image)
        with calls_of(self._class_head.proto) as calls:
            ((corners, logits, coefficients),) = self.run([placed])
        check_rows(self._proposals(corners, logits, placed), boxes, rows)
        chosen = coefficients[self._best(logits)].numpy(force=True)[rows]
        prototypes = _first_tensor(calls[-1][1])[0].float().numpy(force=True)
        (x, y), (across, down) = placed.scale, placed.offset
        columns, lines = (np.arange(placed.width) + 0.5) * x + across, (np.arange(placed.height) + 0.5) * y + down
        shares = np.array(prototypes.shape[1:]) / placed.pixels.shape[:2]
        return combine_prototypes(prototypes, chosen, boxes, columns * shares[1], lines * shares[0])

    def _rows(self, images: Sequence[_Placed]) -> list[tuple[Any, Any, Any]]:
        """What `run` gives, of images of one size."""
        like, head = next(self.network.parameters()), self._class_head
        pixels = torch.from_numpy(np.stack([image.pixels for image in images]))
        batch = pixels.to(like.device).permute(0, 3, 1, 2).to(like.dtype) / 255
        if self._is_detr:
            _, (boxes, logits, *_) = self.network(batch)
            height, width = batch.shape[2:]
            corners, rows = corners_of(boxes.squeeze(0)) * boxes.new_tensor([width, height] * 2), logits.squeeze(0)
            return list(zip(corners.float(), rows.float(), rows.float(), strict=True))
        # The logits as they come out of the layers that a correction is folded into, each the last of its block.
        blocks = head.one2one_cv3 if self._is_end2end else head.cv3
        # One that needs no suppression would keep the best anchors only.
        head.postprocess = lambda predictions, *settings: predictions
        try:
            with calls_of(head) as outputs, calls_of(*blocks) as levels:
                self.network(batch)
        finally:
            del head.postprocess
        rows = torch.cat([level.flatten(2) for _, level in levels], dim=2).transpose(1, 2)
        output = _first_tensor(outputs[-1][1])
        output = output if self._is_end2end else output.transpose(1, 2)
        is_corners = self._is_end2end or bool(getattr(head, "xyxy", False))
        corners = output[..., :4] if is_corners else corners_of(output[..., :4])
        return list(zip(corners.float(), rows.float(), output[..., 4 + head.nc :].float(), strict=True))

    def _proposals(self, boxes: Any, logits: Any, placed: _Placed) -> Proposals:
        best = self._best(logits)
        boxes = (boxes[best] - boxes.new_tensor(placed.offset * 2)) / boxes.new_tensor(placed.scale * 2)
        return Proposals(boxes, logits[best], height=placed.height, width=placed.width)

    def _best(self, logits: Any) -> Any:
        """The anchors that are kept, ascending: those whose best class scores highest."""
        if self._kept is None or len(logits) <= self._kept:
            return slice(None)
        return logits.amax(dim=1).topk(self._kept).indices.sort().values


def _head_of(network: Any) -> Any:
    """The head with classes of its own; None where there is none, or where its boxes are turned."""
    for module in network.modules():
        kinds = kinds_of(module, PACKAGE)
        if "OBB" in kinds:
            raise InputError("The boxes of an oriented YOLO are turned; only upright boxes can be stored and measured.")
        if kinds & {"Detect", "RTDETRDecoder"} and not kinds & OPEN_VOCABULARY:
            return module
    return None


def _choose_head(head: Any, end2end: bool) -> None:
    if end2end and getattr(head, "one2one_cv2", None) is None:
        raise InputError("Expected `end2end` to be False for a model that has only the head that needs suppression.")
    if not end2end and getattr(head, "cv2", None) is None:
        raise InputError(
            "Expected `end2end` to be True, since fusing the model dropped the head that needs suppression."
        )
    head.end2end = end2end


def _image_size(network: Any, chosen: int | tuple[int, int] | None) -> int:
    trained = getattr(network, "args", None)
    size = chosen if chosen is not None else trained.get("imgsz", 640) if isinstance(trained, dict) else 640
    size = size if isinstance(size, int) else max(size)
    if size < 32:
        raise InputError(f"Expected `size` to be at least 32, but got {size}.")
    return -(-size // 32) * 32


def _letterbox(pixels: Rgb, size: int, stride: int) -> _Placed:
    """Scale an image into a square and pad it with grey, both sides alike, to the next multiple of the stride."""
    height, width = pixels.shape[:2]
    gain = min(size / height, size / width)
    inner = max(round(width * gain), 1), max(round(height * gain), 1)
    scaled = _resized(pixels, inner)
    across, down = ((size - side) % stride / 2 for side in inner)
    left, top = round(across - 0.1), round(down - 0.1)
    padded = np.full((inner[1] + top + round(down + 0.1), inner[0] + left + round(across + 0.1), 3), _GREY, np.uint8)
    padded[top : top + inner[1], left : left + inner[0]] = scaled
    return _Placed(padded, (inner[0] / width, inner[1] / height), (left, top), height, width)


def _stretch(pixels: Rgb, size: int) -> _Placed:
    height, width = pixels.shape[:2]
    return _Placed(_resized(pixels, (size, size)), (size / width, size / height), (0, 0), height, width)


def _resized(pixels: Rgb, size: tuple[int, int]) -> Rgb:
    import cv2  # Ultralytics needs it too; other ways of resizing give other pixels

    if pixels.shape[1::-1] == size:
        return pixels
    resized: Any = cv2.resize(np.ascontiguousarray(pixels), size, interpolation=cv2.INTER_LINEAR)
    return np.asarray(resized, np.uint8)


def _first_tensor(output: Any) -> Any:
    while isinstance(output, tuple | list):
        output = output[0]
    return output
