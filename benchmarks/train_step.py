"""Time and memory of one training iteration of each detector on an LVIS-format folder with 1,203 classes.

    python benchmarks/train_step.py                    # the paper's detectors at full size
    python benchmarks/train_step.py --models small     # seconds per iteration of the small one

Each detector runs in a process of its own, so that the peak of its memory is its own. The images are noise with
rectangles; nothing here says anything about accuracy. It also checks that the located logits are those in use.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def write_folder(folder: Path, *, images: int, width: int, height: int, classes: int) -> None:
    from PIL import Image

    generator = np.random.default_rng(0)
    (folder / "images").mkdir()
    entries: dict[str, list[dict[str, object]]] = {"images": [], "annotations": [], "categories": []}
    for image in range(1, images + 1):
        pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
        name = f"images/{image}.png"
        entries["images"].append({"id": image, "file_name": name, "height": height, "width": width})
        for _ in range(8):
            w, h = (int(side) for side in generator.uniform(0.15, 0.4, 2) * (width, height))
            x, y = int(generator.integers(width - w)), int(generator.integers(height - h))
            pixels[y : y + h, x : x + w] = generator.integers(0, 256, 3)
            entries["annotations"].append(
                {
                    "id": len(entries["annotations"]) + 1,
                    "image_id": image,
                    "category_id": int(generator.integers(classes)) + 1,
                    "bbox": [x, y, w, h],
                    "area": w * h,
                    "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
                }
            )
        Image.fromarray(pixels).save(folder / name)
    entries["categories"] = [{"id": i + 1, "name": f"class {i}"} for i in range(classes)]
    (folder / "train.json").write_text(json.dumps(entries))


def measure(folder: Path, model: str, *, iterations: int, batch: int, processes: int) -> dict[str, object]:
    """Train a few iterations in this process, then compare the hooked logits with the proposals."""
    import torch

    from logn.training.detectors.config import DetectorTrainingConfig
    from logn.training.detectors.train_detector import train_detector
    from logn.training.engine.checkpoint import load_detector

    output = folder / f"run-{model}"
    config = DetectorTrainingConfig(
        folder, output, model=model, classifier="cosine", iterations=iterations, batch=batch
    )
    result = train_detector(config, processes=processes, resume=False)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    detector = load_detector(output)
    seen: list[torch.Tensor] = []
    for path in detector.logit_layer_paths:
        detector.get_submodule(path).register_forward_hook(lambda _module, _inputs, out: seen.append(out.clone()))
    proposals = detector.propose([torch.rand(3, 128, 128)])[0]
    average = sum(seen[1:], seen[0]) / len(seen)
    return {
        "model": model,
        "seconds per iteration": round(result.seconds_per_iteration, 3),
        "batch": batch,
        "processes": processes,
        "threads": torch.get_num_threads(),
        "peak memory GB": round(memory, 2),
        "loss": round(sum(result.losses.values()), 3),
        "parameters": sum(weight.numel() for weight in detector.parameters()),
        "located logits are those used": bool(np.array_equal(average.numpy(), proposals.logits)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["mask-rcnn-r50", "mask-rcnn-r101", "cascade-r101"])
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--classes", type=int, default=1203)
    parser.add_argument("--in-process", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        model = options.models[0]
        sizes = {"iterations": options.iterations, "batch": options.batch, "processes": options.processes}
        print(json.dumps(measure(options.in_process, model, **sizes)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(folder, images=16, width=options.width, height=options.height, classes=options.classes)
        for model in options.models:
            values = ("iterations", "batch", "processes")
            sizes = [text for name in values for text in (f"--{name}", str(getattr(options, name)))]
            command = [sys.executable, __file__, "--in-process", str(folder), "--models", model, *sizes]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
