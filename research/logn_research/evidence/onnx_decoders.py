"""Decoders of two public ONNX detectors, straight from their authors' description: nothing of LogN is used.

They are what `logn predict` and `logn evaluate` are held to, in `onnx_detectors.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

STRIDES = (8, 16, 32)


def letterbox(image: Any, size: int, pad: int, *, centred: bool) -> tuple[Any, float, float, float]:
    """The image in a square canvas, with its proportions; also the ratio and the offset."""
    from PIL import Image

    height, width = image.shape[:2]
    ratio = min(size / height, size / width)
    new_height, new_width = round(height * ratio), round(width * ratio)
    scaled = np.asarray(Image.fromarray(image).resize((new_width, new_height), Image.Resampling.BILINEAR))
    canvas = np.full((size, size, 3), pad, np.uint8)
    top = (size - new_height) // 2 if centred else 0
    left = (size - new_width) // 2 if centred else 0
    canvas[top : top + new_height, left : left + new_width] = scaled
    return canvas, ratio, top, left


def yolox_input(image: Any, size: int) -> tuple[Any, float, float, float]:
    """YOLOX: BGR of 0 to 255, in the upper left corner of a grey canvas."""
    canvas, ratio, top, left = letterbox(image, size, 114, centred=False)
    return canvas[:, :, ::-1].transpose(2, 0, 1)[None].astype(np.float32), ratio, top, left


def yolox_detections(output: Any, size: int) -> tuple[Any, Any]:
    """Boxes and scores of one image: offsets to the cells of three grids, objectness times class."""
    centres, sizes, start = [], [], 0
    for stride in STRIDES:
        cells = size // stride
        for row in range(cells):
            part = output[start : start + cells]
            centres.append((part[:, :2] + np.stack([np.arange(cells), np.full(cells, row)], axis=1)) * stride)
            sizes.append(np.exp(part[:, 2:4]) * stride)
            start += cells
    middle, half = np.concatenate(centres), np.concatenate(sizes) / 2
    return np.concatenate([middle - half, middle + half], axis=1), output[:, 4:5] * output[:, 5:]


def nanodet_input(image: Any, size: int) -> tuple[Any, float, float, float]:
    """NanoDet: BGR, normalised in units of 0 to 255, in the middle of a black canvas."""
    canvas, ratio, top, left = letterbox(image, size, 0, centred=True)
    mean, std = np.array([103.53, 116.28, 123.675]), np.array([57.375, 57.12, 58.395])
    pixels = (canvas[:, :, ::-1].astype(np.float64) - mean) / std
    return pixels.transpose(2, 0, 1)[None].astype(np.float32), ratio, top, left


def nanodet_detections(scores: list[Any], distributions: list[Any], size: int) -> tuple[Any, Any]:
    """Boxes and scores of one image: each side of a box is the mean of a distribution, from the middle of a cell."""
    boxes = []
    for stride, level in zip(STRIDES, distributions, strict=True):
        cells, places = size // stride, np.arange(len(level))
        centres = (np.stack([places % cells, places // cells], axis=1) + 0.5) * stride
        powers = np.exp(level.reshape(len(level), 4, -1).astype(np.float64))
        sides = (powers * np.arange(powers.shape[2])).sum(axis=2) / powers.sum(axis=2) * stride
        boxes.append(np.concatenate([centres - sides[:, :2], centres + sides[:, 2:]], axis=1))
    return np.concatenate(boxes), np.concatenate(scores)


def detections(
    boxes: Any, scores: Any, *, overlap: float, threshold: float, best_class: bool, limit: int
) -> list[tuple[Any, int, float]]:
    """Box, class and score of what is left after threshold and suppression, class by class: the best `limit`."""
    if best_class:
        winners = scores.argmax(axis=1)
        only = np.zeros_like(scores)
        only[np.arange(len(scores)), winners] = scores.max(axis=1)
        scores = only
    import torch
    from torchvision.ops import batched_nms

    places, labels = np.nonzero(scores > threshold)
    kept = batched_nms(
        *(torch.from_numpy(array) for array in (boxes[places], scores[places, labels].astype(np.float64), labels)),
        overlap,
    ).numpy()
    found = [(boxes[places[at]], int(labels[at]), float(scores[places[at], labels[at]])) for at in kept]
    return sorted(found, key=lambda item: -item[2])[:limit]
