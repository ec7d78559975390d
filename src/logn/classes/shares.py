"""Reading a class mix: what share each foreground class has where a model is used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from logn.classes.counts import ClassCounts
from logn.classes.matching import warn_of_position
from logn.classes.tables import column_of, names_of, naming, numbers, place_of, read_json, read_table
from logn.errors import InputError
from logn.logits.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class ClassShares:
    """The share of each foreground class, of any sum, and where they are known the names of the classes.

    Example:
        >>> ClassShares([0.9, 0.1], ("car", "unicycle")).aligned_to(["unicycle", "car"]).tolist()
        [0.1, 0.9]
    """

    shares: FloatArray
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shares", numbers("shares", self.shares))
        if self.names is not None and len(self.names) != len(self.shares):
            raise InputError(
                f"Expected `names` to be one for each of the {len(self.shares)} shares, but got {len(self.names)}."
            )

    def aligned_to(self, names: Sequence[str] | None) -> FloatArray:
        """The shares in the order of `names`; as they are where either side has no names, named ones with a warning."""
        if names is None and self.names is not None:
            warn_of_position("shares", self.names)
        if names is None or self.names is None or self.names == tuple(names):
            return self.shares
        missing = next((name for name in names if name not in self.names), None)
        if missing is not None:
            raise InputError(f"Expected `target` to have a share for the class {missing!r}, but it has none.")
        return self.shares[place_of(names, self.names)]


def read_shares(path: str | os.PathLike[str]) -> ClassShares:
    r"""Read a class mix: what `logn prior` wrote, a table with a column `share`, or anything that holds class counts.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "mix.csv"
        >>> _ = path.write_text("name,share\ncar,0.9\nunicycle,0.1\n")
        >>> read_shares(path).shares.tolist()
        [0.9, 0.1]
    """
    path = Path(path)
    with naming(path):
        if path.suffix in (".csv", ".tsv") and "share" in (rows := read_table(path))[0]:
            return ClassShares(column_of(rows, ("share",)), names_of(rows))
        content = read_json(path) if path.suffix == ".json" else None
        if isinstance(content, dict) and "shares" in content:
            names = content.get("names")
            return ClassShares(numbers("shares", content["shares"]), None if names is None else tuple(names))
    counts = ClassCounts.load(path)
    return ClassShares(counts.instance_counts, counts.names)
