"""Statistics of images that are more than one machine holds: over Ray Data, and over Spark.

    python examples/many_machines.py train/ statistics.safetensors

runs the Ray part on the cores of this machine; it needs `pip install "logn[ray]" torchvision`. The functions for Spark
need pyspark only where they are given a DataFrame.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import logn


def make_model() -> Any:
    """The model; called on each worker, and the same on all. Yours loads its weights here."""
    import torch
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(weights=None, num_classes=10).eval()


def preprocess(image: Any) -> Any:
    """An RGB image of bytes, (height, width, 3), as the model wants it."""
    import torch

    pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 255
    return torch.nn.functional.interpolate(pixels, (224, 224), mode="bilinear", antialias=True)[0]


def over_ray(folder: str, path: str) -> None:
    """Collect the statistics of a folder of images."""
    import ray

    images = ray.data.read_binary_files(folder, include_paths=True)
    moments = logn.ray.collect(images, make_model, like=preprocess, batch=32)
    moments.save(path)


def statistics_of(images: Iterable[bytes]) -> bytes:
    """The statistics of the images of one partition, bytes of files each, as bytes."""
    import io

    import numpy as np
    import torch
    from PIL import Image

    model = make_model()
    with logn.record(model, logn.locate_logits(model)) as moments, torch.inference_mode():
        for image in images:
            pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))
            model(preprocess(pixels)[None])
    return moments.to_bytes()


def merged(left: bytes, right: bytes) -> bytes:
    """Two of them as one."""
    return logn.ClassMoments.merge_all(map(logn.ClassMoments.from_bytes, (left, right))).to_bytes()


def one_row(batches: Iterable[Any]) -> Iterator[Any]:
    """One binary row for a partition of batches of Arrow; none for a partition without images."""
    import itertools

    import pyarrow

    images = (value.as_py() for batch in batches for value in batch.column("content"))
    for first in images:  # and all behind it
        yield pyarrow.RecordBatch.from_pydict({"moments": [statistics_of(itertools.chain([first], images))]})


def over_spark(images: Any) -> logn.ClassMoments:
    """Collect the statistics of a DataFrame with the bytes of image files in `content`."""
    rows = images.select("content").mapInArrow(one_row, "moments binary").rdd.map(lambda row: bytes(row.moments))
    return logn.ClassMoments.from_bytes(rows.treeReduce(merged))


if __name__ == "__main__":
    over_ray(*sys.argv[1:])
