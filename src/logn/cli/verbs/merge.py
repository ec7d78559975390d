"""`logn merge`: statistics of several machines, ranks or runs become one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logn.cli.console import JsonOption, count_of, print_json
from logn.cli.options.choices import StatisticsFileOption
from logn.cli.paths import check_output
from logn.cli.statistics_summary import print_next, print_statistics
from logn.errors import InputError
from logn.files import file_identity


def merge(
    statistics: Annotated[list[Path], typer.Argument(help="Statistics files that `logn collect` wrote.")],
    output: StatisticsFileOption,
    json: JsonOption = False,
) -> None:
    """Merge statistics as if all their logits had been read in one run.

    Exact: the order does not matter beyond the last digit. Files that differ in what they describe (classes,
    background, activation, layer, population, model) are refused.

    **Examples**

    `logn merge node1.safetensors node2.safetensors -o all.safetensors`
    """
    from logn.statistics.moments import ClassMoments

    check_output(output, *statistics, holds="logn.statistics")
    _check_distinct(statistics)
    total = ClassMoments.load(statistics[0])
    for path in statistics[1:]:
        try:
            total.merge(ClassMoments.load(path))
        except InputError as error:
            raise _naming(error, path, statistics[0]) from error
    total.save(output)
    rows = int(total.count.max())
    if json:
        print_json({"output": output, "files": len(statistics), "rows": rows, "num_classes": total.num_classes})
    else:
        print_statistics(output, total, rows, count_of(len(statistics), "file"))
        print_next(output)


def _check_distinct(paths: list[Path]) -> None:
    seen = set()
    for path in paths:
        identity = file_identity(path)
        if identity in seen:
            raise InputError(f"Expected each file once, but `{path}` is listed twice: its logits would count twice.")
        seen.add(identity)


def _naming(error: InputError, path: Path, first: Path) -> InputError:
    message = str(error)
    return error if str(path) in message else InputError(f"`{path}` does not merge with `{first}`: {message}")
