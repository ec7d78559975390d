"""The method `none`: the model as it is."""

from __future__ import annotations

from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.method import Method, MethodInputs, Options


def _fit(inputs: MethodInputs, options: Options) -> ClassAffine:
    return ClassAffine.identity(inputs.needed_columns(), inputs.background)


METHOD = Method("none", "no correction", _fit, takes=("counts",))
