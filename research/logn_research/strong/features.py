"""Proposals and RoI features of a public ONNX detector, cached on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.base.boxes import corners_of

SPLITS = ("train", "dev", "test")
PROPOSALS = 100  # of each image
POOLED = 2  # RoIAlign gives POOLED x POOLED numbers of each channel
CANDIDATES = 1000  # boxes that enter the suppression


@dataclass(frozen=True)
class PublicDetector:
    """A public detector file: how images go in, how boxes come out, and which feature maps to pool.

    Args:
        size: Side of the square input, in pixels.
        maps: Names of the tensors to pool, with their strides.
        layout: "yolov8" (boxes and class scores, no objectness) or "yolox" (offsets, objectness, class scores).
            A YOLOv8 file of another input size is changed to `size` as it is read.
        bgr: Whether the input is BGR from 0 to 255 (else RGB from 0 to 1).
    """

    size: int
    maps: dict[str, int]
    layout: str
    bgr: bool = False


# The last maps of YOLOv8's class branch: fewer numbers than its neck, and nearer to the classes.
CLASS_BRANCH = {f"/model.22/cv3.{i}/cv3.{i}.1/act/Mul_output_0": stride for i, stride in enumerate((8, 16, 32))}

DETECTORS = {
    # Fewer maps and a smaller input, for mosaics of small pictures.
    "yolov8n-384": PublicDetector(
        384,
        {
            "/model.6/cv2/act/Mul_output_0": 16,
            "/model.9/cv2/act/Mul_output_0": 32,
            "/model.18/cv2/act/Mul_output_0": 16,
        },
        "yolov8",
    ),
    "yolov8s": PublicDetector(416, CLASS_BRANCH, "yolov8"),
    "yolov8m": PublicDetector(416, CLASS_BRANCH, "yolov8"),
    "yolov8n": PublicDetector(
        640,
        {
            "/model.4/cv2/act/Mul_output_0": 8,
            "/model.6/cv2/act/Mul_output_0": 16,
            "/model.9/cv2/act/Mul_output_0": 32,
            "/model.15/cv2/act/Mul_output_0": 8,
            "/model.18/cv2/act/Mul_output_0": 16,
            "/model.21/cv2/act/Mul_output_0": 32,
        },
        "yolov8",
    ),
    "yolox-nano": PublicDetector(
        416,
        {"input.175": 8, "input.283": 16, "input.315": 32, "input.471": 8, "input.531": 16, "input.547": 32},
        "yolox",
        bgr=True,
    ),
}


class FeatureCache:
    """Boxes and features of the images of one split, as memory-mapped arrays.

    Attributes:
        image_ids: Of the annotation file, in its order.
        boxes: `(images, PROPOSALS, 4)` corners in pixels of the original images; unused ones are empty.
        objectness: `(images, PROPOSALS)`, by which proposals were chosen; 0 where there is none.
        features: `(images, PROPOSALS, numbers)`, float16.
    """

    def __init__(self, folder: Path, split: str, images: int, width: int | None = None) -> None:
        self._progress = folder / f"{split}.progress.json"
        folder.mkdir(parents=True, exist_ok=True)
        mode = "r+" if self._progress.exists() else "w+"
        if mode == "w+" and width is None:
            raise FileNotFoundError(f"There are no features in {folder}: run the step `features` first.")
        state: dict[str, Any] = json.loads(self._progress.read_text()) if mode == "r+" else {"done": 0, "width": width}
        self.done: int = state["done"]
        self.width: int = state["width"]

        def array(name: str, shape: tuple[int, ...], dtype: str) -> np.memmap[Any, Any]:
            return np.lib.format.open_memmap(folder / f"{split}.{name}.npy", mode=mode, shape=shape, dtype=dtype)

        self.boxes = array("boxes", (images, PROPOSALS, 4), "<f4")
        self.objectness = array("objectness", (images, PROPOSALS), "<f4")
        self.features = array("features", (images, PROPOSALS, self.width), "<f2")

    def advance(self, done: int) -> None:
        """Note that the first `done` images are complete."""
        for values in (self.boxes, self.objectness, self.features):
            values.flush()
        self.done = done
        self._progress.write_text(json.dumps({"done": done, "width": self.width}))


def read_split(data: Path, split: str) -> dict[str, Any]:
    """The annotation file of a split, with its images in a fixed order."""
    content: dict[str, Any] = json.loads((data / f"{split}.json").read_text())
    return content


def cache_features(
    model: Path, detector: PublicDetector, data: Path, folder: Path, splits: Sequence[str] = SPLITS
) -> None:
    """Run the detector over all splits and keep proposals and features; images that are there already are skipped."""
    run = _runner(model, detector)
    for split in splits:
        images = read_split(data, split)["images"]
        cache: FeatureCache | None = None
        if (folder / f"{split}.progress.json").exists():
            cache = FeatureCache(folder, split, len(images))
        start = cache.done if cache else 0
        for index in range(start, len(images)):
            boxes, objectness, features = run(data / "images" / _file_name(images[index]), images[index])
            if cache is None:
                cache = FeatureCache(folder, split, len(images), features.shape[1])
            kept = len(boxes)
            cache.boxes[index, :kept], cache.objectness[index, :kept] = boxes, objectness
            cache.features[index, :kept] = features
            if (index + 1) % 200 == 0 or index + 1 == len(images):
                cache.advance(index + 1)
                print(f"{split}: {index + 1} of {len(images)} images", flush=True)


def _file_name(image: dict[str, Any]) -> str:
    name = image.get("file_name") or image["coco_url"].rsplit("/", 1)[-1]
    return Path(name).name


def _runner(model: Path, detector: PublicDetector) -> Any:
    """A function from an image to its proposals, their objectness and their features."""
    import onnx
    import onnxruntime
    import torch
    from PIL import Image
    from torchvision.ops import nms, roi_align

    graph = onnx.load(model)
    if detector.layout == "yolov8":
        _resize_yolov8(graph.graph, detector.size)
    output = graph.graph.output[0].name
    graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in detector.maps)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1  # detectors run side by side
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0].name

    def run(path: Path, image: dict[str, Any]) -> tuple[Any, Any, Any]:
        with Image.open(path) as opened:
            width, height = opened.size
            side = detector.size
            pixels = np.asarray(opened.convert("RGB").resize((side, side), Image.Resampling.BILINEAR), np.float32)
        pixels = pixels[..., ::-1] if detector.bgr else pixels / 255.0
        found = session.run([output, *detector.maps], {source: np.ascontiguousarray(pixels.transpose(2, 0, 1))[None]})
        boxes, objectness = (_yolov8 if detector.layout == "yolov8" else _yolox)(found[0][0], side)
        best = np.argsort(-objectness, kind="stable")[:CANDIDATES]
        boxes, objectness = boxes[best].clip(0, side), objectness[best]
        kept = nms(torch.from_numpy(boxes), torch.from_numpy(objectness), 0.7)[:PROPOSALS].numpy()
        boxes, objectness = boxes[kept], objectness[kept]
        regions = torch.from_numpy(np.column_stack([np.zeros(len(boxes), np.float32), boxes]))
        pooled = [
            roi_align(torch.from_numpy(values), regions, POOLED, 1.0 / stride, sampling_ratio=2, aligned=True)
            for values, stride in zip(found[1:], detector.maps.values(), strict=True)
        ]
        features = torch.cat([values.flatten(1) for values in pooled], 1).numpy()
        scale = np.array([width / side, height / side] * 2, np.float32)
        return boxes * scale, objectness, features.astype(np.float16)

    return run


def _resize_yolov8(graph: Any, side: int) -> None:
    """Change the input of an exported YOLOv8 to `side` pixels: only its grid of cells knows the size."""
    from onnx import numpy_helper

    grids, strides = zip(*_cells(side), strict=True)
    centres, stride = np.concatenate(grids).T[None] + 0.5, np.concatenate(strides)[None]
    before = graph.output[0].type.tensor_type.shape.dim[2].dim_value
    for node in graph.node:
        if node.op_type != "Constant":
            continue
        held = node.attribute[0].t
        values = numpy_helper.to_array(held)
        if values.shape[-1:] == (before,):
            values = (centres if values.ndim == 3 else stride).astype(values.dtype)
        elif values.ndim == 1 and len(values) and values[-1] == before:
            values = np.append(values[:-1], stride.size).astype(values.dtype)
        held.CopyFrom(numpy_helper.from_array(values))
    for dimension in graph.input[0].type.tensor_type.shape.dim[2:]:
        dimension.dim_value = side
    graph.output[0].type.tensor_type.shape.dim[2].dim_value = stride.size
    del graph.value_info[:]


def _yolov8(found: npt.NDArray[Any], side: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return corners_of(found[:4].T).astype(np.float32), found[4:].max(axis=0)


def _yolox(found: npt.NDArray[Any], side: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    grids, strides = zip(*_cells(side), strict=True)
    grid, stride = np.concatenate(grids), np.concatenate(strides)[:, None]
    centre, size = (found[:, :2] + grid) * stride, np.exp(found[:, 2:4]) * stride
    return corners_of(np.column_stack([centre, size])).astype(np.float32), found[:, 4]


def _cells(side: int) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    for stride in (8, 16, 32):
        cells = side // stride
        y, x = np.mgrid[:cells, :cells]
        yield np.stack([x, y], -1).reshape(-1, 2), np.full(cells * cells, stride)
