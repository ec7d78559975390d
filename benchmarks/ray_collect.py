"""Collecting over Ray on local workers against one process, for a load that is the model's.

    .venv-ray/bin/python benchmarks/ray_collect.py --images 512 --workers 2

A ResNet-18 of torchvision on random pictures of 224 x 224, one thread per process, so that two workers have two cores.
Starting Ray and making the models is not counted: a first pass over a few images comes before. Prints both times, their
ratio, and how far the two means are from each other.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from PIL import Image
from torchvision.models import resnet18

import logn
import ray
from logn.evaluate.store.predict import as_tensor
from logn.logits.image_folder import read_rgb


def make_model() -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return resnet18(weights=None, num_classes=1203).eval()


def one_process(paths: list[Path], batch: int) -> logn.ClassMoments:
    model = make_model()
    with logn.record(model, logn.locate_logits(model)) as moments, torch.inference_mode():
        for start in range(0, len(paths), batch):
            model(torch.stack([as_tensor(read_rgb(path)) for path in paths[start : start + batch]]))
    return moments


def over_ray(paths: list[Path], batch: int, workers: int) -> logn.ClassMoments:
    rows = ray.data.from_items(
        [{"path": str(path)} for path in paths], override_num_blocks=max(workers, len(paths) // 64)
    )
    return logn.ray.collect(rows, make_model, batch=batch, workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    ray.cloudpickle.register_pickle_by_value(__import__("sys").modules[__name__])
    ray.init(num_cpus=arguments.workers + 1, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number:06d}.jpg" for number in range(arguments.images)]
        generator = np.random.default_rng(0)
        for path in paths:
            Image.fromarray(generator.integers(0, 256, (224, 224, 3), np.uint8)).save(path)
        times, means = {}, {}
        ways = {"one process": one_process, "over Ray": partial(over_ray, workers=arguments.workers)}
        for name, run in ways.items():
            run(paths[: 2 * arguments.workers], arguments.batch)
            start = time.perf_counter()
            means[name] = run(paths, arguments.batch).mean
            times[name] = time.perf_counter() - start
            print(f"{name:12} {times[name]:7.2f} s  {arguments.images / times[name]:7.1f} images a second")
    apart = np.abs(means["one process"] - means["over Ray"]).max()
    ratio = times["one process"] / times["over Ray"]
    print(f"{ratio:.2f} times as fast on {arguments.workers} workers; means {apart:.1g} apart")


if __name__ == "__main__":
    main()
