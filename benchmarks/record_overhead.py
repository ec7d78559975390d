"""What recording costs beside a fast model: YOLOv8-nano at 640 pixels, 8,400 rows of 80 logits an image, on one core.

Run it with `python benchmarks/record_overhead.py`. Blocks of images with and without recording take turns; the results
are the ratio of the least seconds of processor of an image once the row sample is full, as it is for nearly all of a
run, what the first images of a run take more, and the milliseconds of 8,400 x 80 and 300 x 1,204 logits by themselves.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch

import logn
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments
from logn.statistics.record import default_sample_rows


def least(run: Callable[[], object], before: float = float("inf")) -> float:
    """Seconds of processor of a run, or those of before if these were fewer."""
    start = time.process_time()
    run()
    return min(before, time.process_time() - start)


def update_alone(rows: int, columns: int, activation: str, batches: int = 60) -> float:
    """Milliseconds per batch, with the row sample and the mean probability, once the sample is full."""
    rng = np.random.default_rng(0)
    metadata = StatisticsMetadata(activation=activation)
    sample = default_sample_rows(columns)
    moments = ClassMoments(columns, sample_rows=sample, mean_probability=True, metadata=metadata)
    best = float("inf")
    for _ in range(batches):
        logits = rng.standard_normal((rows, columns), np.float32) - 4
        best = least(lambda logits=logits: moments.update(logits), best)
    return 1e3 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4, help="blocks with and without recording")
    parser.add_argument("--images", type=int, default=24, help="of a block; the first half fills the row sample")
    arguments = parser.parse_args()
    from ultralytics import YOLO

    torch.set_num_threads(1)
    model = YOLO("yolov8n.yaml").model.eval()
    layer = logn.locate_logits(model)
    image = torch.rand(1, 3, 640, 640)
    plain = recorded = first = float("inf")
    with torch.inference_mode():
        model(image)
        for _ in range(arguments.repeats):
            for _ in range(arguments.images // 2):
                plain = least(lambda: model(image), plain)
            with logn.record(model, layer, fingerprint=False, check_output=False):
                first = least(lambda: [model(image) for _ in range(arguments.images // 2)], first)
                for _ in range(arguments.images // 2):
                    recorded = least(lambda: model(image), recorded)
    result = {
        "milliseconds of the model": 1e3 * plain,
        "with recording, times as long": recorded / plain,
        "milliseconds that the first images take more, together": 1e3 * (first - arguments.images // 2 * recorded),
        "milliseconds for 8,400 x 80": update_alone(8400, 80, "sigmoid"),
        "milliseconds for 300 x 1,204": update_alone(300, 1204, "softmax"),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
