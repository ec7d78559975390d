"""What the verbs that write statistics print about them: what is there, what looks wrong, what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from logn.cli.console import command, count_of, echo, print_note
from logn.cli.option_words import in_options

if TYPE_CHECKING:
    from logn.calibrators.affine import ClassAffine
    from logn.statistics.moments import ClassMoments


def warn_of_doubts(moments: ClassMoments) -> list[str]:
    """Print on stderr what looks wrong with the statistics, and return it for the JSON."""
    from logn.statistics.diagnosis import row_checks, sanity_checks

    found = [in_options(sentence) for sentence in (*sanity_checks(moments), *row_checks(moments))]
    for sentence in found:
        print_note(f"Warning: {sentence}")
    return found


def print_statistics(output: Path, moments: ClassMoments, rows: int, source: str) -> None:
    """Print what the file holds; `source` says what it was read from, such as "3 files"."""
    columns = count_of(moments.num_classes, "class")
    if (place := moments.metadata.background) is not None:
        columns += f" and a background ({'first' if place == 0 else 'last'})"
    echo(f"{output}: {count_of(rows, 'row')} of {columns} from {source}.")


def print_next(statistics: Path) -> None:
    """Tell on stderr what statistics are good for."""
    print_note(f"Is there a bias to correct? {command('logn', 'inspect', statistics)}")
    print_note(f"To make the correction: {command('logn', 'fit', statistics, '-o', 'affine.safetensors')}")


def print_fold(affine: ClassAffine, path: Path) -> None:
    """Tell on stderr how the map in `path` gets into an ONNX file, unless it was made for a model of torch."""
    made_for = None if affine.source is None else affine.source.fingerprint
    if made_for is None or made_for.startswith("onnx:"):
        fold = command("logn", "fold", "model.onnx", path, "-o", "folded.onnx")
        print_note(f"To correct an ONNX file: {fold}")
