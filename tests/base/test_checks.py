"""Ranges and choices that annotations declare are checked where a value is made, and errors name the argument."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest

from logn.base.checks import Between, OneOf, Whole, checked
from logn.errors import InputError

Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True)
@checked
class Options:
    share: Share = 0.5
    power: Annotated[float, Between(0, above=True)] = 1.0
    most: Annotated[int, Whole(1)] | None = None
    kind: Annotated[str, OneOf("hard", "soft")] = "hard"
    text: str = ""

    def __post_init__(self):
        object.__setattr__(self, "text", self.text.upper())


@checked
def blend(rows, share: Share = 1.0, *, threads: Annotated[int, Whole(1)] | None = None):
    return [share * row for row in rows], threads


def test_what_is_within_is_taken_and_what_stood_there_before_is_done():
    made = Options(share=np.float32(1), most=np.int64(3), kind="soft", text="a")
    assert (made.share, made.most, made.text) == (1, 3, "A")
    assert blend([1, 2], 0.5, threads=2) == ([0.5, 1.0], 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("share", value) for value in (-0.1, 1.1, float("nan"), True, "0.5", None, [0.5])),
        *(("power", value) for value in (0, -1)),
        *(("most", value) for value in (0, 1.5, True)),
        *(("kind", value) for value in ("HARD", None, 0)),
    ],
)
def test_what_is_not_is_refused_by_its_name(name, value):
    with pytest.raises(InputError, match=f"`{name}`"):
        Options(**{name: value})
    if name == "share":
        with pytest.raises(InputError, match="`share`"):
            blend([1], value)
