"""How a method of correction describes itself, so that everything that knows methods reads it in one place.

Each method's own module has a constant `METHOD`; `logn.calibrators.all_methods` lists them. The command line takes its
options, their help and the files of each method from there, and so do specifications, sweeps and error messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt

from logn.calibrators.class_affine import ClassAffine
from logn.classes.counts import ClassCounts
from logn.errors import InputError
from logn.logits.arrays import FloatArray
from logn.statistics.moments import ClassMoments

Options = dict[str, Any]
Kind = Literal["number", "flag", "name", "number or name"]

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Option:
    """One option of a method.

    Args:
        kind: What its value is: a number, a flag (true or false), a name, or a number or name.
        help: What it does, in one line, with its default.
        choices: The names it may have; with none given, any.
        flag: How `logn fit` spells it, such as "--gamma" or, for true and false, "--mean/--no-mean"; None where it can
            only stand behind the name of the method.

    Example:
        >>> Option("number", "Power; default 0.6.", flag="--gamma").read("gamma", "0.5")
        0.5
        >>> Option("flag", "Whether to.").read("priors", "no")
        False
    """

    kind: Kind
    help: str
    choices: tuple[str, ...] = ()
    flag: str | None = None

    @property
    def is_number(self) -> bool:
        """Whether it can be swept over numbers."""
        return self.kind in ("number", "number or name")

    @property
    def flag_name(self) -> str | None:
        """Its flag as a name: `count_kind` for "--count-kind"."""
        return None if self.flag is None else self.flag.partition("/")[0].lstrip("-").replace("-", "_")

    def read(self, name: str, text: str) -> Any:
        """The value that `text` stands for; `name` is what to call the option where it stands for none."""
        if self.kind == "flag":
            if text.lower() not in _TRUTH:
                raise InputError(f"Expected `{name}` to be true or false, but got {text!r}.")
            return _TRUTH[text.lower()]
        if self.kind == "number" or (self.kind == "number or name" and text not in self.choices):
            return self._number(name, text)
        if self.choices and text not in self.choices:
            raise InputError(f"Expected `{name}` to be one of {', '.join(self.choices)}, but got {text!r}.")
        return text

    def _number(self, name: str, text: str) -> float:
        try:
            return float(text)
        except ValueError:
            names = f" or one of {', '.join(self.choices)}" if self.choices else ""
            raise InputError(f"Expected `{name}` to be a number{names}, but got {text!r}.") from None


@dataclass(frozen=True, eq=False)
class MethodInputs:
    """What one method is fitted from, checked and put in one order; whatever is lacking is named.

    The fields are those of `FitInputs`, with the place of the background and the number of columns settled.
    """

    method: str
    moments: ClassMoments | None
    counts: ClassCounts | None
    dimensions: npt.ArrayLike | None
    weight: Any
    bias: Any
    active: npt.ArrayLike | None
    background: int | None
    activation: str | None
    num_columns: int | None
    target: Any = None

    def needed_moments(self) -> ClassMoments:
        """The statistics of the logits."""
        if self.moments is None:
            raise InputError(f"Expected statistics (`moments`) for the method `{self.method}`, but got none.")
        return self.moments

    def needed_counts(self, kind: str) -> FloatArray:
        """The class counts of one kind: "images" or "instances"."""
        if self.counts is None:
            raise InputError(f"Expected `counts` for the method `{self.method}`, but got none.")
        return self.counts.image_counts if kind == "images" else self.counts.instance_counts

    def needed_weight(self) -> Any:
        """The weight of the classifier."""
        if self.weight is None:
            raise InputError(f"Expected `weight` of the classifier for the method `{self.method}`, but got none.")
        return self.weight

    def needed_columns(self) -> int:
        """How many columns the logits have."""
        if self.num_columns is None:
            raise InputError(f"Expected `moments` or `counts` for the method `{self.method}`, but got neither.")
        return self.num_columns


@dataclass(frozen=True)
class Method:
    """A method of correction: all that a user, the command line and a comparison need to know of it.

    Args:
        name: What it is called in specifications.
        summary: What it is, in a few words.
        fit: Makes the map; the options are those that were given, by the names below.
        options: What can be set.
        needs: The fields of `FitInputs` that it cannot do without.
        takes: Further ones that it uses where they are given.
        sigmoid_scores: For a method whose form for sigmoid heads is no affine map: makes what turns logits into
            scores. A comparison uses it on such heads; it cannot be folded.
        notes: What `logn fit` should say of a map that was made, one sentence each.

    Example:
        >>> halve = Method("halve", "half of each logit", lambda inputs, options: ClassAffine([0.5], [0.0]))
        >>> halve.parse("tau=1")
        Traceback (most recent call last):
        ...
        logn.errors.InputError: Expected the options of `halve` to be among none, but got `tau`.
    """

    name: str
    summary: str
    fit: Callable[[MethodInputs, Options], ClassAffine]
    options: Mapping[str, Option] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    sigmoid_scores: Callable[[MethodInputs, Options], Any] | None = None
    notes: Callable[[MethodInputs, Options, ClassAffine], list[str]] | None = None

    def parse(self, text: str) -> Options:
        """Read options as they stand behind the colon of a specification: `margin=0,use_std=false`."""
        options: Options = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = part.partition("=")
            option = self.option(name)
            if not equals:
                raise InputError(f"Expected the option `{name}` of `{self.name}` as {name}=VALUE, but got {part!r}.")
            self.add(options, name, option.read(name, value))
        return options

    def option(self, name: str) -> Option:
        """The option of that name."""
        if name not in self.options:
            listed = ", ".join(self.options) or "none"
            raise InputError(f"Expected the options of `{self.name}` to be among {listed}, but got `{name}`.")
        return self.options[name]

    def add(self, options: Options, name: str, value: Any) -> None:
        """Set one more of `options`; one that is there already is refused, since nobody can say which is meant."""
        self.option(name)
        if name in options:
            raise InputError(f"Expected the option `{name}` of `{self.name}` once, but got it twice.")
        options[name] = value


COUNT_KIND_OPTION = Option("name", "Count images or instances.", ("images", "instances"), "--count-kind")
