"""What a map costs a torchvision Mask R-CNN at inference: attached, folded, against plain, as ratios.

    OMP_NUM_THREADS=1 python benchmarks/attached_inference.py

Random weights, one image, one thread. No box scores above the default threshold, so no time goes into masks and the
share of the map is at its largest. The map is the identity, so that all three do the same work apart from it. The
repeats are interleaved and each is compared with the plain pass next to it; the median of the ratios counts. The time
is that of the process, not of the clock, so that a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time

import torch
from torchvision.models.detection import maskrcnn_resnet50_fpn

import logn
from logn.statistics.head import Head

NAMES = ("plain", "attached", "folded")


def seconds(model: torch.nn.Module, image: torch.Tensor) -> float:
    start = time.process_time()
    with torch.inference_mode():
        model([image])
    return time.process_time() - start


def measure(classes: int, size: int, repeats: int) -> dict[str, float]:
    """Median seconds of the plain model, and median ratios to it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models = {"plain": maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=classes).eval()}
    layer = logn.locate_logits(models["plain"])
    identity = logn.ClassAffine.identity(classes, Head(background=0))
    models["attached"], models["folded"] = copy.deepcopy(models["plain"]), copy.deepcopy(models["plain"])
    logn.attach(models["attached"], layer, identity)
    logn.fold(models["folded"], layer, identity)
    image = torch.rand(3, size, size * 4 // 3)
    for name in NAMES:
        seconds(models[name], image)
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for repeat in range(repeats):
        # Each goes first, second and last in turn.
        for place in range(len(NAMES)):
            name = NAMES[(repeat + place) % len(NAMES)]
            times[name].append(seconds(models[name], image))
    result = {"plain_seconds": statistics.median(times["plain"])}
    for name in NAMES[1:]:
        result[name] = statistics.median(mine / plain for mine, plain in zip(times[name], times["plain"], strict=True))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=1204, help="columns of the class layer (default: LVIS's 1204)")
    parser.add_argument("--size", type=int, default=480, help="height of the image; the model resizes it to 800")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.classes, arguments.size, arguments.repeats)
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"plain     {result['plain_seconds']:.3f} s of one core per image")
    print(f"attached  {result['attached']:.4f} of plain (goal: under 1.02)")
    print(f"folded    {result['folded']:.4f} of plain (the same operations)")


if __name__ == "__main__":
    main()
