"""Write a corrected model, proven, with its statistics and maps beside it: all files, or none."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from logn.base.arrays import FloatArray
from logn.base.files import check_new, put_files, refuse_inputs, staging_folder
from logn.errors import InputError
from logn.methods.affine import ClassAffine
from logn.models.images import ImageFiles
from logn.models.opened import CorrectableModel, beside
from logn.statistics.moments import ClassMoments

# How far a logit may be off, relative to the largest one (or to 1).
TOLERANCE = 1e-4
HALF_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Proof:
    """What the comparison of two models gave.

    Attributes:
        largest_difference: Largest distance between the new logits and scale * old logits + shift.
        largest_logit: Largest magnitude of the latter.
        tolerance: What the difference may be at most.
        rows: How many rows of logits were compared; rows with NaN before the fold are not.
    """

    largest_difference: float
    largest_logit: float
    tolerance: float
    rows: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[FloatArray, FloatArray]], *, half: bool = False) -> Proof:
        """Compare rows of logits (..., C), pair by pair: what they should be, and what they are.

        Example:
            >>> Proof.of([(np.array([[1.0, 2.0]]), np.array([[1.0, 2.5]]))]).largest_difference
            0.5
        """
        difference, largest, rows = 0.0, 0.0, 0
        for expected, actual in pairs:
            known = ~np.isnan(expected)  # where the model itself gives no number, there is nothing to compare
            difference = max(difference, largest_difference(actual[known], expected[known]))
            largest = max(largest, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
            rows += int(known.all(axis=-1).sum())
        return cls(difference, largest, (HALF_TOLERANCE if half else TOLERANCE) * max(1.0, largest), rows)

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.largest_difference <= self.tolerance

    def checked(self, name: str) -> Proof:
        """This proof; one that does not hold is refused.

        Example:
            >>> Proof(0.5, 3.0, 3e-4, 10).checked("best.pt")
            Traceback (most recent call last):
            ...
            logn.errors.InputError: The corrected `best.pt` does not give scale * logit + shift: it is off by 0.5 at
            logits of up to 3.
        """
        if self.rows == 0:
            raise InputError(f"`{name}` gave no logits on the trial images; pass others.")
        if not self.holds:
            raise InputError(
                f"The corrected `{name}` does not give scale * logit + shift: it is off by "
                f"{self.largest_difference:.3g} at logits of up to {self.largest_logit:.3g}."
            )
        return self


def largest_difference(found: FloatArray, expected: FloatArray) -> float:
    """Equal infinities differ by nothing; NaN for a number differs by infinity, though `max` would pass it over."""
    with np.errstate(invalid="ignore"):
        difference = np.where(found == expected, 0.0, np.abs(found - expected))
    return float(np.nan_to_num(difference, nan=np.inf, posinf=np.inf).max(initial=0.0))


def check_target(model: object, target: Path, *inputs: str | os.PathLike[str] | None, overwrite: bool) -> None:
    """Refuse an output that is the model or another input, that exists, or whose folder cannot be written to."""
    source = Path(model) if isinstance(model, str | os.PathLike) else None
    if source is not None and source.exists() and target.exists() and target.samefile(source):
        raise InputError(f"`output` is the model itself, `{target}`; choose another name.")
    more = [beside(target, what, in_folder=False) for what in ("statistics", "affine")]
    if target.suffix.lower() == ".onnx":
        more.append(target.with_name(f"{target.name}.data"))  # weights in external data
    refuse_inputs([target, *more], itertools.chain(inputs, files_of(model)))
    check_new(target, *more, overwrite=overwrite)
    parent = target.absolute().parent
    if not parent.is_dir():
        raise InputError(f"The folder of the output, `{target.parent}`, does not exist; make it first.")
    if not os.access(parent, os.W_OK):
        raise InputError(f"The folder of the output, `{parent}`, is not writable; choose another.")


def files_of(model: object) -> Iterator[Path]:
    """The files of a model: itself, the weights beside an ONNX file, the Python file of a function.

    Example:
        >>> [path.name for path in files_of("models.py:build")]
        ['models.py']
    """
    if not isinstance(model, str | os.PathLike):
        return
    path, (file, colon, _) = Path(model), os.fspath(model).rpartition(":")
    yield Path(file) if colon and file.endswith(".py") else path
    if path.suffix.lower() == ".onnx" and path.is_file():
        from logn.models.onnx.file import files_beside

        yield from files_beside(path)


def check_suffix(source: CorrectableModel, target: Path) -> None:
    """Refuse an output that is not of the model's kind of file."""
    if source.suffix and target.suffix.lower() != source.suffix:
        raise InputError(
            f"`output` is `{target}`, but what is made of `{source.name}` ends in {source.suffix}; rename it."
        )
    if not source.suffix and target.suffix.lower() in (".onnx", ".pt", ".pth", ".safetensors"):
        raise InputError(
            f"`output` is `{target}`, but what is made of the folder `{source.name}` is a folder; rename it."
        )


def write_model(
    source: CorrectableModel,
    maps: Sequence[ClassAffine],
    target: Path | None,
    images: ImageFiles | None = None,
    *,
    sides: Mapping[str, Sequence[ClassMoments | ClassAffine]],
    overwrite: bool = False,
    class_factors: npt.NDArray[np.float64] | None = None,
) -> tuple[Proof, tuple[Path, ...]]:
    """Write a corrected model and what belongs to it; the files get their names once it is proven.

    Args:
        source: The model.
        maps: Its maps, one per stage.
        target: Where to write; None proves it only.
        images: What to prove it on; by default noise.
        sides: What to write beside it (into it, if it is a folder): "statistics" and "affine", one per stage.
        overwrite: Replace files that are there; a folder is never replaced.
        class_factors: Factors of the class scores at the output, for thresholds beside an objectness.
    """
    name, in_folder = (target or Path(f"corrected{source.suffix}")).name, not source.suffix
    with _temporary_folder(target) as folder:
        proof = source.write(maps, folder / name, images, class_factors)
        for what, parts in sides.items():
            for stage, part in enumerate(parts):
                part.save(beside(folder / name, what, stage if len(parts) > 1 else None, in_folder=in_folder))
        return proof, () if target is None else _move(folder, target, overwrite=overwrite)


def copy_model(source: CorrectableModel, target: Path, *, overwrite: bool = False) -> tuple[Path, ...]:
    """Write a model that needs no correction as it is; a map or statistics of an earlier correction there are removed.

    Args:
        source: The model.
        target: Where to write.
        overwrite: Replace files that are there; a folder is never replaced.
    """
    path = Path(source.name)
    with staging_folder(target) as folder:
        source.copy(folder / target.name)
        for data in source.data_files:  # an ONNX file knows its weights by their names
            if not target.parent.samefile(path.parent):
                place = folder / data.relative_to(path.parent)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(data, place)
        written = _move(folder, target, overwrite=overwrite)
    for what in ("statistics", "affine") if overwrite else ():
        beside(target, what, in_folder=False).unlink(missing_ok=True)
    return written


@contextmanager
def _temporary_folder(target: Path | None) -> Iterator[Path]:
    """A temporary folder: beside the target, so that its files can be renamed."""
    if target is None:
        with tempfile.TemporaryDirectory(prefix="logn-correct-") as folder:
            yield Path(folder)
        return
    with staging_folder(target) as beside_target:
        yield beside_target


def _move(folder: Path, target: Path, *, overwrite: bool) -> tuple[Path, ...]:
    """Give every file its name, the model last: what bears its name is whole."""
    parts = sorted(folder.iterdir(), key=lambda part: (part.name == target.name, part.name))
    targets = {part: target.with_name(part.name) for part in parts}
    put_files(targets, overwrite=overwrite and not (folder / target.name).is_dir())
    return tuple(targets.values())
