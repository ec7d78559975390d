"""The methods of correction, in the order in which they are listed: a new one is a file of its own and a line here."""

from __future__ import annotations

from logn.calibrators import recommend
from logn.calibrators.method import Method
from logn.calibrators.methods import (
    fracal,
    inverse_image_frequency,
    logit_adjustment,
    logit_normalization,
    no_correction,
    norcal,
    prior2posterior,
    tau_norm,
    temperature,
)
from logn.errors import InputError

METHODS: tuple[Method, ...] = (
    no_correction.METHOD,
    recommend.METHOD,
    logit_normalization.METHOD,
    logit_adjustment.METHOD,
    norcal.METHOD,
    fracal.METHOD,
    inverse_image_frequency.METHOD,
    tau_norm.METHOD,
    temperature.METHOD,
    prior2posterior.METHOD,
)


def method_named(name: str) -> Method:
    """The method that is called so.

    Example:
        >>> method_named("norcal").needs
        ('counts',)
    """
    for method in METHODS:
        if method.name == name:
            return method
    listed = ", ".join(method.name for method in METHODS)
    raise InputError(f"Expected `method` to be one of {listed}, but got {name!r}.")


def swept_parameters() -> dict[str, tuple[str, str]]:
    """What a sweep can go over without naming its method: each parameter with the first method that has it.

    A parameter is called as `logn fit` spells it (`temperature`); beside it stands the option (`value`).

    Example:
        >>> swept_parameters()["tau"], swept_parameters()["temperature"]
        (('loga', 'tau'), ('temperature', 'value'))
    """
    found: dict[str, tuple[str, str]] = {}
    for method in METHODS:
        for name, option in method.options.items():
            if option.is_number:
                found.setdefault(option.flag_name or name, (method.name, name))
    return found
