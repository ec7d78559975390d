"""`logn apply`: logits in, corrected logits out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logn.cli import options
from logn.cli.console import echo, print_json, print_note, progress
from logn.errors import InputError

if TYPE_CHECKING:
    from logn.data.logit_files import StoredArray
    from logn.methods.affine import ClassAffine


def apply(
    affine: Annotated[Path, typer.Argument(metavar="CORRECTION", help="File from logn fit.")],
    logits: Annotated[Path, typer.Argument(metavar="LOGITS", help="A .npy, .npz or .safetensors; classes last.")],
    output: options.Output,
    key: options.Key = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Correct a file of logits: each class times its scale plus its shift.

    The output, .npy or .safetensors, has the shape and precision of the input.
    Files of any size are read in bounded memory and written in one atomic step.

    Examples:
      logn apply affine.safetensors logits.npy -o corrected.npy
      logn apply affine.safetensors dump.npz --key cls_score -o corrected.safetensors
    """
    from logn.data.logit_files import check_writable, open_shards, write_logits
    from logn.methods.affine import ClassAffine
    from logn.statistics.head import Head

    options.check_output(output, affine, logits, overwrite=overwrite)  # in place, a second call would correct twice
    correction = ClassAffine.load(affine)
    (array,) = open_shards([logits], key)
    check_writable(output, array.dtype)
    # A file of logits tells its width and nothing else about the model that it is of.
    head = Head(array.num_columns, background=correction.background)
    correction.check_fits(head, f"`{logits}`", what=f"`{affine}`")
    with progress("Applying", array.rows) as advance:
        options.save(
            output,
            lambda path: write_logits(path, array.shape, array.dtype, _corrected(array, correction, advance)),
            overwrite,
        )
    if json:
        print_json({"output": output, "shape": array.shape, "dtype": array.dtype, "method": correction.method})
    else:
        echo(f"{output}: logits of shape {array.shape} in {array.dtype}, corrected by {correction.method or 'a map'}.")
        print_note("These are logits: apply softmax or sigmoid, NMS and thresholds to them.")


def _corrected(array: StoredArray, affine: ClassAffine, advance: Callable[[float], None]) -> Iterator[Any]:
    import numpy as np

    from logn.data.logit_files import read_blocks

    for block in read_blocks(array):
        row = block.start
        for batch in block.read_batches():
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found and named below
                result = affine(batch)
                total = result.sum(dtype=np.float64)
            if not np.isfinite(total):
                _check(array, batch, result, row)
            yield result
            row += len(batch)
        advance(block.stop - block.start)


def _check(array: StoredArray, batch: Any, result: Any, first_row: int) -> None:
    """Refuse NaN, and what does not fit the precision of the file; infinity that was in the file may stay."""
    import numpy as np

    missing, overflow = np.isnan(batch), np.isinf(result) & np.isfinite(batch)
    too_large = f"does not fit {array.dtype} once it is corrected: save the logits in a wider type"
    for mask, problem in ((missing, "is NaN: logits must be numbers"), (overflow, too_large)):
        if mask.any():
            row, column = np.argwhere(mask)[0]
            raise InputError(f"Row {first_row + row}, class {column} of `{array.path}` {problem}.")
