"""The method `vector`: scale and shift per class by labelled rows, vector scaling with shrinkage."""

from __future__ import annotations

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.method import Method, MethodInputs, Options
from logn.calibrators.methods.offsets import LABELLED_OPTIONS, fit_labelled


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    return fit_labelled(inputs, options, with_scale=True)


METHOD = Method(
    "vector",
    "vector scaling: scale and shift per class by labelled rows",
    _fit,
    LABELLED_OPTIONS,
    needs=("labelled",),
    takes=("moments", "counts"),
)
