"""How much of its time `logn predict model.onnx` spends outside the model, where it is not another thread that works.

`python benchmarks/onnx_predict.py yolox_nano.onnx DATA --like yolox`, where DATA is an annotation file with its images.
Images are read and prepared, and proposals written, by threads beside the one that runs the model. Of that one the
processor time is taken, which a busy machine does not change, and the time on the clock, which counts only on a quiet
one: the other threads need a core of their own.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from logn.datasets.detection_dataset import DetectionDataset
from logn.evaluate.detectors.onnx import OnnxDetector
from logn.evaluate.store.predict import predict


def main() -> None:
    """Predict once, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--like")
    parser.add_argument("--class-names", type=Path)
    arguments = parser.parse_args()
    dataset = DetectionDataset(arguments.data, arguments.images)
    detector = OnnxDetector(arguments.model, like=arguments.like, class_names=arguments.class_names)
    inside, waited, run = 0.0, 0.0, detector.run

    def timed(pixels: Any) -> Any:
        nonlocal inside, waited
        began, clock = time.thread_time(), time.perf_counter()
        found = run(pixels)
        inside += time.thread_time() - began
        waited += time.perf_counter() - clock
        return found

    detector.run = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        began, clock = time.thread_time(), time.perf_counter()
        count = predict(detector, dataset, Path(folder) / "store", batch=1)
        total, passed = time.thread_time() - began, time.perf_counter() - clock
    print(
        f"{count} images: {1e3 * total / count:.1f} ms of processor time each, {1e3 * inside / count:.1f} ms of it in "
        f"the model: {100 * (1 - inside / total):.1f} % outside; on the clock {1e3 * passed / count:.1f} ms, "
        f"{100 * (1 - waited / passed):.1f} % outside"
    )


if __name__ == "__main__":
    main()
