"""PriorEstimate: the class mix of a deployment, how sure it is, and what there is to doubt."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.classes.shares import ClassShares
from logn.errors import InputError
from logn.files import write_text
from logn.logits.arrays import FloatArray, foreground_columns
from logn.strict_json import parse_json

FILE_FORMAT = "logn.prior"
# A deployment like training is called shifted this often.
SIGNIFICANCE = 0.05


def total_variation(first: FloatArray, second: FloatArray) -> float:
    """Half the sum of the differences: how much of one mix has to move to make the other.

    Example:
        >>> total_variation(np.array([0.5, 0.5]), np.array([0.9, 0.1]))
        0.4
    """
    return float(np.abs(np.asarray(first) - second).sum() / 2)


@dataclass(frozen=True, eq=False)
class PriorEstimate:
    """The class mix that was found.

    Attributes:
        shares: `(C,)` share of each column among the rows, the background included; of sigmoids the expected share of
            rows that have the class.
        lower: `(C,)` lower end of the interval of each.
        upper: `(C,)` upper end.
        training: `(C,)` the same in training.
        method: "em" or "bbse".
        background: Place of the background column.
        activation: "softmax" or "sigmoid".
        rows: Rows that it was made from.
        of_rows: Rows of the source; a sample of more than memory should hold serves.
        units: Images, or rows where each stands alone, that were drawn for the intervals.
        confidence: Of the intervals.
        precision: How far the whole mix may be off by chance, in total variation, at that confidence.
        likelihood_ratio: Twice the log-likelihood over that of the training mix; None for "bbse".
        p_value: How often chance alone gives as large a one; None for "bbse".
        temperature: What the logits were divided by, by labelled rows; 1 without any.
        labelled_rows: How many of these there were.
        doubts: What speaks against the estimate, a sentence each.
        names: Names of the columns.
    """

    shares: FloatArray
    lower: FloatArray
    upper: FloatArray
    training: FloatArray
    method: str
    background: int | None
    activation: str
    rows: int
    of_rows: int
    units: int
    confidence: float
    precision: float
    likelihood_ratio: float | None
    p_value: float | None
    temperature: float = 1.0
    labelled_rows: int = 0
    doubts: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None

    @property
    def shifted(self) -> bool | None:
        """Whether the mix is another than that of training, at a significance of 5 %; None where nobody can tell."""
        return None if self.p_value is None else self.p_value < SIGNIFICANCE

    @property
    def foreground_names(self) -> tuple[str, ...] | None:
        """Names of the foreground classes."""
        return None if self.names is None else self.names[foreground_columns(len(self.names), self.background)]

    @property
    def target(self) -> FloatArray:
        """Shares of the foreground classes, which sum to 1, for the `target` of a method.

        A class of which nothing was found has no logarithm: none counts less than half a row.
        """
        shares = np.maximum(self.foreground(self.shares), 0.5 / self.rows)
        return np.asarray(shares / shares.sum())

    def foreground(self, values: FloatArray) -> FloatArray:
        """The entries of the foreground classes."""
        return values[foreground_columns(len(values), self.background)]

    @property
    def conclusion(self) -> str:
        """Whether the mix shifted, in a sentence."""
        if self.p_value is None:
            return f"The class mix is known to ± {self.precision:.1%} (total variation)."
        moved = total_variation(self.shares, self.training)
        if not self.shifted:
            return f"Nothing says that the class mix shifted (p = {self.p_value:.2g})."
        return (
            f"The class mix shifted: {moved:.1%} of it moved (total variation, ± {self.precision:.1%}; p "
            f"{'<' if self.p_value < 0.01 else '='} {max(self.p_value, 0.01):.2g})."
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values; `shares` are those of `target`, so that the file can be one."""
        content = {
            name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(self).items()
        }
        own: dict[str, Any] = {"format": FILE_FORMAT, "names": self.foreground_names, "shares": self.target.tolist()}
        own |= {"column_names": self.names, "column_shares": content.pop("shares"), "shifted": self.shifted}
        del content["names"]
        return own | content

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, or its target as a table (`.csv`); both serve as `target` (`--target`)."""
        path = Path(path)
        if path.suffix == ".csv":
            names = self.foreground_names or tuple(str(place) for place in range(len(self.target)))
            lines = [f"{_quoted(name)},{share!r}" for name, share in zip(names, self.target.tolist(), strict=True)]
            text = "\n".join(["name,share" if self.names else "class,share", *lines, ""])
        elif path.suffix == ".json":
            text = json.dumps(self.to_dict(), indent=1) + "\n"
        else:
            raise InputError(f"Expected `{path}` to end in .json or .csv, but it does not.")
        write_text(path, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PriorEstimate:
        """Read the JSON that `save` wrote."""
        content = parse_json(Path(path).read_bytes())
        if not isinstance(content, dict) or content.get("format") != FILE_FORMAT:
            raise InputError(f"Expected `{path}` to be a class mix that `logn prior` wrote as JSON, but it is not.")
        values = content | {"shares": content["column_shares"], "names": content["column_names"]}
        kept = {item.name: values[item.name] for item in fields(cls)}
        for name in ("shares", "lower", "upper", "training"):
            kept[name] = np.array(kept[name])
        kept["doubts"] = tuple(kept["doubts"])
        kept["names"] = None if kept["names"] is None else tuple(kept["names"])
        return cls(**kept)

    def as_shares(self) -> ClassShares:
        """The target with its names."""
        return ClassShares(self.target, self.foreground_names)

    @property
    def order(self) -> npt.NDArray[np.intp]:
        """The columns, largest change first."""
        return np.argsort(-np.abs(self.shares - self.training), kind="stable")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(sign in name for sign in ',"\n') else name
