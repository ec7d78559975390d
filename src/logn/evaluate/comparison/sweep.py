"""Parameter sweeps, their curves, and the two halves of the images that keep a choice apart from its report."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from logn.calibrators.methods import METHODS, number_options
from logn.errors import InputError
from logn.strict_json import number_or_nan

MOST_VALUES = 200

_SWEEP = re.compile(r"(?:(?P<method>[\w-]+):)?(?P<parameter>\w+)=(?P<start>[^:]+):(?P<stop>[^:]+):(?P<step>[^:]+)")


@dataclass(frozen=True)
class Sweep:
    """One parameter of one method over evenly spaced values.

    Example:
        >>> Sweep.parse("gamma=0:1.2:0.4").specs
        ('norcal:gamma=0', 'norcal:gamma=0.4', 'norcal:gamma=0.8', 'norcal:gamma=1.2')
        >>> Sweep.parse("tau-norm:tau=1:2:1").specs
        ('tau-norm:tau=1', 'tau-norm:tau=2')
    """

    method: str
    parameter: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Read `parameter=start:stop:step`, with `method:` before it where the parameter does not tell."""
        match = _SWEEP.fullmatch(text.strip())
        if match is None:
            raise InputError(f"Expected `sweep` to be like margin=-12:4:1, but got {text!r}.")
        method, option = _swept(match["method"], match["parameter"], text)
        try:
            start, stop, step = (float(match[name]) for name in ("start", "stop", "step"))
        except ValueError:
            raise InputError(f"Expected `sweep` to have three numbers, but got {text!r}.") from None
        count = (stop - start) / step + 1 if step else 0
        if not 1 <= count <= MOST_VALUES:
            raise InputError(f"Expected `sweep` to have 1 to {MOST_VALUES} values, but {text!r} has {count:.0f}.")
        values = start + step * np.arange(int(count + 1e-9))
        return cls(method, option, tuple(float(f"{value:.10g}") for value in values))

    @property
    def specs(self) -> tuple[str, ...]:
        """The method of each value, as `logn compare` reads it."""
        return tuple(f"{self.method}:{self.parameter}={value:.10g}" for value in self.values)


def _swept(method: str | None, parameter: str, text: str) -> tuple[str, str]:
    """The method and the option that a sweep is over; without a method the first that has the option."""
    if method is None:
        for name in METHODS:
            if parameter in number_options(name):
                return name, parameter
        raise InputError(f"Expected `sweep` to be over a number of a method, as gamma is, but got {text!r}.")
    numbers = number_options(method)
    if parameter not in numbers:
        raise InputError(
            f"Expected `sweep` over a number of `{method}`, of which it has {', '.join(numbers) or 'none'}, but got "
            f"`{parameter}`."
        )
    return method, parameter


def parse_sweeps(sweeps: Sequence[Sweep | str]) -> list[Sweep]:
    """Read those sweeps that are written as text."""
    return [Sweep.parse(sweep) if isinstance(sweep, str) else sweep for sweep in sweeps]


def with_sweeps(methods: Mapping[str, Any], sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """The methods and, behind them, every value of the sweeps that is not among them.

    Example:
        >>> list(with_sweeps({"none": None, "loga:tau=1": "loga:tau=1"}, [Sweep.parse("tau=0:1:1")]))
        ['none', 'loga:tau=1', 'loga:tau=0']
    """
    return {**methods, **{spec: spec for sweep in sweeps for spec in sweep.specs if spec not in methods}}


@dataclass(frozen=True)
class Curve:
    """A metric over the values of a sweep.

    Args:
        sweep: The method, its parameter and the values.
        metrics: Metric by name, one number per value, on the images that are reported on.
        chosen: The specification that was best on the other half; None when no choice was made.
        choosing: The objective per value on that other half; None when no choice was made.
    """

    sweep: Sweep
    metrics: Mapping[str, tuple[float, ...]]
    chosen: str | None = None
    choosing: tuple[float, ...] | None = None

    @classmethod
    def chosen_by(
        cls, sweep: Sweep, objective: str, measured: Iterable[Mapping[str, float]], *, least: bool = False
    ) -> Curve:
        """Choose the value of a sweep that is best on data that is not reported on.

        Args:
            sweep: The values to choose from.
            objective: The metric that decides.
            measured: The metrics of each value on that data.
            least: Whether the least is the best, as of errors.

        Example:
            >>> accuracies = [{"top-1": 0.5}, {"top-1": 0.7}]
            >>> Curve.chosen_by(Sweep.parse("tau=0:1:1"), "top-1", accuracies).chosen
            'loga:tau=1'
        """
        values = []
        for metrics in measured:
            if objective not in metrics:
                raise InputError(f"Expected `objective` to be one of {', '.join(metrics)}, but got {objective!r}.")
            values.append(metrics[objective])
        best = np.nanargmin if least else np.nanargmax
        place = int(best(values)) if not np.isnan(values).all() else 0
        return cls(sweep, {}, sweep.specs[place], tuple(values))

    def with_metrics(self, measured: Mapping[str, Mapping[str, float]]) -> Curve:
        """The curve with the metrics of its values, which `measured` has by the name of the method."""
        values = [measured[spec] for spec in self.sweep.specs]
        return replace(self, metrics={name: tuple(value[name] for value in values) for name in values[0]})

    def to_dict(self) -> dict[str, Any]:
        """Give the curve as plain values, for JSON."""
        return {
            "method": self.sweep.method,
            "parameter": self.sweep.parameter,
            "values": list(self.sweep.values),
            "metrics": {name: list(values) for name, values in self.metrics.items()},
            "chosen": self.chosen,
            "objective_on_the_other_half": None if self.choosing is None else list(self.choosing),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Curve:
        """Read what `to_dict` gave, also after a way through JSON, which has no NaN."""
        choosing = content["objective_on_the_other_half"]
        return cls(
            Sweep(str(content["method"]), str(content["parameter"]), tuple(map(float, content["values"]))),
            {name: tuple(map(number_or_nan, values)) for name, values in content["metrics"].items()},
            content["chosen"],
            None if choosing is None else tuple(map(number_or_nan, choosing)),
        )


def first_half(image_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether each image belongs to the half on which choices are made; the other half is reported on.

    It depends on nothing but the image's id, so it is the same in every run and for every model.

    Example:
        >>> first_half(np.array([1, 2, 3, 4])).tolist()
        [False, True, True, False]
    """
    return np.array([hashlib.sha256(str(image).encode()).digest()[0] % 2 == 0 for image in image_ids.tolist()])


def choosing_half(ids: npt.NDArray[np.int64], what: str) -> npt.NDArray[np.bool_]:
    """The half on which choices are made, as `first_half` says; refuses ids that leave a half empty.

    Args:
        ids: Of the images or rows.
        what: What they are, for the message: "images" or "rows".
    """
    choosing = first_half(ids)
    if choosing.all() or not choosing.any():
        raise InputError(f"Expected enough {what} for `split` to have some in each half, but got {len(ids)}.")
    return choosing
