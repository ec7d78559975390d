"""`logn merge`: statistics of several machines, ranks or runs become one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logn.base.files import file_identity
from logn.cli import options
from logn.cli.console import count_of, print_json
from logn.cli.verbs.collect import print_next, print_statistics
from logn.errors import InputError


def merge(
    statistics: Annotated[list[Path], typer.Argument(metavar="FILES", help="Files from logn collect.")],
    output: options.Output,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Merge statistics as if all their logits had been read in one run.

    The order does not matter. Files that differ in what they describe (classes,
    background, activation, layer, model) are refused.

    Examples:
      logn merge node1.safetensors node2.safetensors -o all.safetensors
      logn merge ranks/*.safetensors -o all.safetensors --json
    """
    from logn.statistics.moments import ClassMoments

    options.check_output(output, *statistics, overwrite=overwrite)
    _check_distinct(statistics)
    total = ClassMoments.load(statistics[0])
    for path in statistics[1:]:
        part = ClassMoments.load(path)
        try:
            total.merge(part)
        except InputError as error:
            raise InputError(f"`{path}` does not merge with `{statistics[0]}`: {error}") from error
    options.save(output, total.save, overwrite)
    rows = int(total.count.max())
    if json:
        print_json({"output": output, "files": len(statistics), "rows": rows, "num_columns": total.num_columns})
        return
    print_statistics(output, total, count_of(len(statistics), "file"))
    print_next(output)


def _check_distinct(paths: list[Path]) -> None:
    seen = set()
    for path in paths:
        identity = file_identity(path)
        if identity in seen:
            raise InputError(f"`{path}` is listed twice, so its logits would count twice: list each file once.")
        seen.add(identity)
