"""The numbers of the paper's tables, on LVIS v1 (Zhao, Teng, Wang; IJCV 2024), to print next to ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

DATA = "LVIS v1"
#: The paper's detector that each of ours stands for; the small ones stand for its main one.
FRAMEWORKS = {"mask-rcnn-r50": "Mask-R50", "mask-rcnn-r101": "Mask-R101", "cascade-r101": "Cascade-R101"}
#: The detector of the paper's ablations, with RFS.
MAIN_FRAMEWORK = "Mask-R101"


@dataclass(frozen=True)
class PaperRow:
    """A row of a table, in points.

    Args:
        method: As our tables name it.
        box_ap: AP of boxes.
        ap: AP of masks, as all that follow; None where the paper does not say.
        rare: Of rare classes.
        common: Of common classes.
        frequent: Of frequent classes.
        framework: Detector and backbone.
        sampler: `random`, `rfs`, or `mfs` for LOCE's memory of features.
        epochs: Of training; `-` for a correction of the trained model above it.
    """

    method: str
    box_ap: float | None
    ap: float | None
    rare: float | None
    common: float | None
    frequent: float | None
    framework: str = MAIN_FRAMEWORK
    sampler: str = "rfs"
    epochs: str = "24"

    def to_dict(self) -> dict[str, Any]:
        """The row as plain values, with the data it was measured on."""
        return {**asdict(self), "data": DATA}


#: Table 1: method, epochs, AP of boxes, then of masks AP, APr, APc and APf; by detector and sampler.
_TABLE1 = """
Mask-R50 random
  CE | 24 | 19.9, 19.0, 1.3, 16.7, 29.3
  EQL | 24 | 22.5, 21.6, 3.8, 21.7, 29.2
  EQL v2 | 24 | 26.1, 25.5, 17.7, 24.3, 30.2
  Seesaw | 24 | 25.6, 25.4, 15.9, 24.7, 30.4
  LOCE | 24+6 | 24.0, 23.8, 8.3, 23.7, 30.7
  LogA | - | 26.5, 26.2, 20.6, 25.9, 29.1
  LogN | - | 26.8, 26.5, 19.2, 25.7, 30.4
Mask-R50 rfs
  CE | 24 | 24.7, 23.7, 13.5, 22.8, 29.3
  Seesaw | 24 | 27.6, 26.8, 19.8, 26.3, 30.5
  LOCE + MFS | 24+6 | 27.4, 26.6, 18.5, 26.2, 30.7
  LogA | - | 27.4, 26.8, 22.0, 27.0, 28.7
  LogN | - | 28.1, 27.5, 21.8, 27.1, 30.4
Mask-R101 random
  CE | 24 | 21.7, 20.6, 0.8, 19.3, 30.7
  EQL | 24 | 24.2, 22.9, 3.7, 23.6, 30.7
  BAGS | 24 | 26.4, 25.6, 17.3, 25.0, 30.1
  EQL v2 | 24 | 27.9, 27.2, 20.6, 25.9, 31.4
  Seesaw | 24 | 27.4, 27.1, 18.7, 26.3, 31.7
  LogA | - | 27.9, 27.5, 21.3, 27.3, 30.4
  LogN | - | 28.4, 28.0, 21.0, 27.2, 31.9
Mask-R101 rfs
  CE | 24 | 26.6, 25.5, 16.6, 24.5, 30.6
  EQL | 24 | 27.6, 26.2, 17.0, 26.2, 30.2
  BAGS | 24 | 26.5, 25.8, 16.5, 25.7, 30.1
  Seesaw | 24 | 28.9, 28.1, 20.0, 28.0, 31.8
  LOCE + MFS | 24+6 | 29.0, 28.0, 19.5, 27.8, 32.0
  LogA | - | 29.0, 28.2, 23.2, 28.6, 30.0
  LogN | - | 29.8, 29.0, 22.9, 28.8, 31.8
Cascade-R101 random
  CE | 24 | 25.5, 22.6, 2.4, 22.0, 32.2
  EQL | 24 | 27.2, 24.5, 4.1, 25.8, 32.0
  BAGS | 24 | 31.5, 27.9, 19.6, 27.7, 31.6
  EQL v2 | 24 | 32.3, 28.8, 22.3, 27.8, 32.8
  Seesaw | 24 | 32.7, 29.6, 20.3, 29.3, 34.0
  LogA | - | 32.7, 29.9, 22.8, 30.5, 32.3
  LogN | - | 33.5, 30.6, 22.7, 30.7, 34.0
Cascade-R101 rfs
  CE | 24 | 30.3, 27.0, 16.6, 26.7, 32.0
  EQL | 24 | 30.4, 27.1, 17.0, 27.2, 31.4
  BAGS | 24 | 30.2, 27.0, 16.9, 26.9, 31.7
  Seesaw | 24 | 32.8, 30.1, 21.4, 30.0, 33.9
  LogA | - | 32.7, 30.0, 23.9, 30.8, 31.7
  LogN | - | 33.8, 30.9, 23.9, 31.1, 33.8
"""


def _table1() -> Iterator[PaperRow]:
    framework = sampler = ""
    for line in filter(None, _TABLE1.splitlines()):
        if not line.startswith(" "):
            framework, sampler = line.split()
            continue
        method, epochs, numbers = (part.strip() for part in line.split("|"))
        box, mask, rare, common, frequent = map(float, numbers.split(","))
        # LOCE's memory of features is a sampler of its own.
        memory = "mfs" if method == "LOCE + MFS" else sampler
        yield PaperRow(method, box, mask, rare, common, frequent, framework, memory, epochs)


TABLE1 = tuple(_table1())

#: Table 2: components. Its baseline (27.5 and 26.8) is not the CE row of table 1 (26.6 and 25.5): the normalised heads.
COMPONENTS = (
    PaperRow("none", 27.5, 26.8, 17.4, 26.2, 31.7, epochs="-"),
    PaperRow("mean", 28.7, 28.2, 21.5, 27.9, 31.5, epochs="-"),
    PaperRow("std", 29.1, 28.5, 21.4, 28.3, 31.9, epochs="-"),
    PaperRow("margin", 29.0, 28.0, 19.3, 27.4, 32.4, epochs="-"),
    PaperRow("mean, std and margin: LogN", 29.8, 29.0, 22.9, 28.8, 31.8, epochs="-"),
    # In words only: 23.1 on rare classes, and AP 0.5 below LogN's 29.0.
    PaperRow("LogN, squared std", None, 28.5, 23.1, None, None, epochs="-"),
)

#: Table 3: the margin, with the values that the paper gives for the named ones.
MARGINS = (
    PaperRow("-4", 29.6, 28.8, 22.9, 28.8, 31.3, epochs="-"),
    PaperRow("-12", 29.3, 28.3, 20.8, 28.0, 31.9, epochs="-"),
    PaperRow("background", 12.1, 12.5, 14.1, 14.5, 9.6, epochs="-"),
    PaperRow("max", 25.5, 25.4, 20.9, 25.7, 27.0, epochs="-"),
    PaperRow("mean", 29.4, 28.7, 23.5, 29.0, 30.7, epochs="-"),
    PaperRow("min", 29.8, 29.0, 22.9, 28.8, 31.8, epochs="-"),
)


def paper_row(
    rows: Sequence[PaperRow], method: str, sampler: str = "rfs", framework: str = MAIN_FRAMEWORK
) -> PaperRow | None:
    """The row of one of the paper's detectors for a method; None where there is none.

    Example:
        >>> paper_row(TABLE1, "LogN", "random").rare, paper_row(TABLE1, "LogN", framework="Cascade-R101").rare
        (21.0, 23.9)
        >>> paper_row(TABLE1, "cRT", "random") is None
        True
    """
    found = (row for row in rows if (row.framework, row.method, row.sampler) == (framework, method, sampler))
    return next(found, None)
