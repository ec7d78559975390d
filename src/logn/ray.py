"""Ray Data under one public name: `logn.ray.collect`.

Example::

    images = ray.data.read_parquet("s3://lake/train")
    moments = logn.ray.collect(images, make_model)

`docs/how-to/many-machines.md` shows it, and when torchrun or files that merge do as well.
"""

from logn.evaluate.ray_data.collect import collect

__all__ = ["collect"]
