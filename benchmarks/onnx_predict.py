"""How much of the time of `logn predict model.onnx` is spent outside the model: reading, preparing, decoding, writing.

`python benchmarks/onnx_predict.py yolox_nano.onnx DATA --like yolox`, where DATA is an annotation file with its images.
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
from logn.logits.onnx.session import OnnxSession


class TimedSession:
    """A session that adds up how long it runs."""

    def __init__(self, session: OnnxSession) -> None:
        self._session, self.seconds = session, 0.0

    def run(self, *arguments: Any) -> Any:
        """Run, and count the time."""
        began = time.perf_counter()
        found = self._session.run(*arguments)
        self.seconds += time.perf_counter() - began
        return found


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
    timed = TimedSession(detector._session)  # noqa: SLF001 - what is measured is inside
    detector._session = timed  # type: ignore[assignment]  # noqa: SLF001
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        count = predict(detector, dataset, Path(folder) / "store", batch=1)
        total = time.perf_counter() - began
    outside = 1 - timed.seconds / total
    print(f"{count} images: {1e3 * total / count:.1f} ms each, {100 * outside:.1f} % of it outside the model")


if __name__ == "__main__":
    main()
