"""Collecting over Ray on local workers against one process, for a load that is the model's.

    .venv-ray/bin/python benchmarks/ray_collect.py --images 2048 --workers 2
    .venv-ray/bin/python benchmarks/ray_collect.py --driver-memory 2000 16000

A ResNet-18 of torchvision with 1,203 classes on random pictures of 224 x 224, one thread per process, so that two
workers have two cores. Times on the clock need a machine that does nothing else; "first" is when the first block was
done: by then the workers have started and made their models. Processor time an image is that of the processes that run
the model: what it grows by over Ray is what two workers cannot gain.

`--driver-memory` runs a small model over so many small pictures, each in a new process, and prints how much memory the
driver had at its peak.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # as one process

import numpy as np
import ray
import torch
from PIL import Image
from torchvision.models import resnet18

import logn
from logn.evaluate.models.collect import as_tensor
from logn.logits.images import read_rgb

BLOCK = 64


def make_model(clocks: str) -> Any:
    """The model, which notes in a file of its process how much processor time it has had since."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = resnet18(weights=None, num_classes=1203).eval()
    start = time.process_time()
    clock = Path(clocks) / str(os.getpid())

    def note(module: Any, inputs: Any, output: Any) -> None:
        clock.write_text(str(time.process_time() - start))

    model.register_forward_hook(note)
    return model


def one_process(paths: list[Path], batch: int, clocks: str, done: Callable[[int], object]) -> logn.ClassMoments:
    model = make_model(clocks)
    with logn.record(model, logn.locate_logits(model)) as moments, torch.inference_mode():
        for start in range(0, len(paths), batch):
            model(torch.stack([as_tensor(read_rgb(path)) for path in paths[start : start + batch]]))
            done(batch)
    return moments


def over_ray(
    paths: list[Path], batch: int, clocks: str, done: Callable[[int], object], *, workers: int
) -> logn.ClassMoments:
    blocks = max(workers, len(paths) // BLOCK)
    rows = ray.data.from_items([{"path": str(path)} for path in paths], override_num_blocks=blocks)
    return logn.ray.collect(
        rows, partial(make_model, clocks), like=as_tensor, batch=batch, workers=workers, progress=done
    )


def compare(images: int, workers: int, batch: int) -> None:
    """Both ways over the same pictures."""
    means, times = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number:06d}.jpg" for number in range(images)]
        generator = np.random.default_rng(0)
        for path in paths:
            Image.fromarray(generator.integers(0, 256, (224, 224, 3), np.uint8)).save(path)
        for name, run in {"one process": one_process, "over Ray": partial(over_ray, workers=workers)}.items():
            clocks = tempfile.mkdtemp(dir=folder)
            steps: list[float] = []
            start = time.perf_counter()
            means[name] = run(paths, batch, clocks, lambda count, at=steps: at.append(time.perf_counter())).mean
            times[name] = time.perf_counter() - start
            busy = sum(float(clock.read_text()) for clock in Path(clocks).iterdir()) / images
            print(
                f"{name:12} {times[name]:7.2f} s (first {steps[0] - start:.2f} s), "
                f"{images / times[name]:6.1f} images a second, {1e3 * busy:6.1f} ms of the processor an image"
            )
    apart = np.abs(means["one process"] - means["over Ray"]).max()
    ratio = times["one process"] / times["over Ray"]
    print(f"{ratio:.2f} times as fast on {workers} workers; means {apart:.1g} apart; load {os.getloadavg()[0]:.1f}")


def make_small() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 8 * 3, 1204))


def pictures(batch: dict[str, Any]) -> dict[str, Any]:
    numbers = batch["id"]
    return {"image": np.stack([np.random.default_rng(n).integers(0, 256, (8, 8, 3), np.uint8) for n in numbers])}


def drive(images: int) -> None:
    """Collect from so many small pictures and print the peak of this process."""
    rows = ray.data.range(images, override_num_blocks=images // BLOCK).map_batches(pictures)
    moments = logn.ray.collect(rows, make_small, like=as_tensor, layer=logn.LogitLayer("1"), workers=1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{int(moments.count[0]):,} images in {images // BLOCK:,} blocks: the driver has {peak:,.0f} MB at its peak")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--driver-memory", type=int, nargs="+")
    arguments = parser.parse_args()
    if arguments.driver_memory and len(arguments.driver_memory) > 1:
        for images in arguments.driver_memory:
            subprocess.run([sys.executable, __file__, "--driver-memory", str(images)], check=True)
        return
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=arguments.workers + 1, include_dashboard=False, configure_logging=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    if arguments.driver_memory:
        drive(arguments.driver_memory[0])
    else:
        compare(arguments.images, arguments.workers, arguments.batch)


if __name__ == "__main__":
    main()
