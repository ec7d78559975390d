"""Where the marks of the page's charts stand: axes, ticks, paths. The templates draw them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Narrow enough that the text stays readable when a phone shows one chart per row.
WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 12, 38


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale from values to places along a line, with ticks at `marked` or round values."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False
    marked: tuple[float, ...] = ()

    def __call__(self, value: float) -> float:
        """Place of a value.

        Example:
            >>> Axis(1, 100, 0, 10, logarithmic=True)(10), Axis(0, 4, 100, 0)(1)
            (5.0, 75.0)
        """
        low, high, here = (math.log10(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (here - low) / ((high - low) or 1.0)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places and texts of the values next to the line.

        Example:
            >>> Axis(0, 1, 0, 10).ticks[1:3]
            [(2.0, '0.2'), (4.0, '0.4')]
        """
        round_values = log_ticks if self.logarithmic else round_ticks
        return [(self(value), compact(value)) for value in self.marked or round_values(self.low, self.high)]


def round_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values between two ends.

    Example:
        >>> round_ticks(-0.3, 2.2)
        [0.0, 0.5, 1.0, 1.5, 2.0]
    """
    span = (high - low) or 1.0
    magnitude = 10 ** math.floor(math.log10(span / about))
    step = next(size * magnitude for size in (1, 2, 5, 10) if span / (size * magnitude) <= about)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two ends; also their doubles and fives where there are few.

    Example:
        >>> log_ticks(1, 600), log_ticks(2, 40)
        ([1.0, 10.0, 100.0], [2.0, 5.0, 10.0, 20.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for sizes in ((1,), (1, 2, 5)):
        ticks = [float(size * 10.0**power) for power in powers for size in sizes]
        ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) >= 3:
            break
    return ticks


def padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """Ends of an axis with some room beyond the values.

    Example:
        >>> padded([0.0, 10.0], 0.1)
        (-1.0, 11.0)
    """
    low, high = min(values), max(values)
    room = share * (high - low) or 1.0
    return low - room, high + room


def compact(value: float) -> str:
    """A number as short as a tick can say it.

    Example:
        >>> [compact(value) for value in (0.0001, 0.5, 20.0, 1500.0)]
        ['0.0001', '0.5', '20', '1,500']
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def number(value: float) -> str:
    """Write a coordinate with two decimals at most: more cannot be seen.

    Example:
        >>> number(3.14159), number(2.0), number(-0.001)
        ('3.14', '2', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def symbol_path(shape: str, points: Sequence[tuple[float, float]], size: float) -> str:
    """One path that draws the same symbol at many points: a thousand elements would make the page slow.

    Example:
        >>> symbol_path("square", [(10, 20)], 2)
        'M8,18h4v4h-4z'
    """
    r, d = number(size), number(2 * size)
    if shape == "circle":
        return "".join(f"M{number(x - size)},{number(y)}a{r},{r} 0 1 0 {d},0a{r},{r} 0 1 0 -{d},0z" for x, y in points)
    if shape == "square":
        return "".join(f"M{number(x - size)},{number(y - size)}h{d}v{d}h-{d}z" for x, y in points)
    return "".join(f"M{number(x)},{number(y - 1.2 * size)}l{r},{d}h-{d}z" for x, y in points)


def line_path(points: Sequence[tuple[float, float]]) -> str:
    """A line from point to point.

    Example:
        >>> line_path([(0, 1.234), (2, 3)]), line_path([])
        ('M0,1.23L2,3', '')
    """
    return "M" + "L".join(f"{number(x)},{number(y)}" for x, y in points) if points else ""
