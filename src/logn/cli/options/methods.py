"""The options of `logn fit` that the methods bring with them, as their own descriptions say."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.calibrators import all_methods
from logn.calibrators.all_methods import method_named
from logn.calibrators.method import Method, Options
from logn.calibrators.method_spec import parse_method
from logn.calibrators.recommend import RECOMMENDED
from logn.cli.options.choices import complete_methods
from logn.errors import InputError

# The file that each field of `FitInputs` is read from: its flag and its help.
INPUT_FILES = {
    "active": ("--active", ".npy or JSON list: true for each live column."),
    "counts": ("--counts", "LVIS/COCO .json, .csv, .tsv, .npy or JSON list."),
    "dimensions": ("--dimensions", "annotations, .csv column, .npy or list."),
    "weight": ("--weights", "The weight, .npy or .safetensors."),
    "bias": ("--bias", "The bias, when it is not beside the weight."),
}
_TYPES: Mapping[str, type] = {"number": float, "flag": bool, "name": str, "number or name": str}


@dataclass(frozen=True)
class _Flag:
    """A flag of the command line.

    Args:
        flag: How it is spelled.
        parameter: What it fills.
        type: Of its value.
        options: For each method that takes it, the option that it sets; None for a file.
        helps: What it is to each method that the help speaks of.
    """

    flag: str
    parameter: str
    type: type
    options: dict[str, str | None]
    helps: dict[str, str]


def with_method_options(verb: Callable[..., None]) -> Callable[..., None]:
    """`verb` with the flags and files of all methods in the place of its `**chosen`; its help lists the methods."""

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        verb(**given)

    listed = ", ".join(f"{method.name} ({method.summary})" for method in all_methods.METHODS)
    spelled = typer.Option(
        "--method",
        "-m",
        help=f"{listed}. Options may follow a colon: norcal:gamma=0.6.",
        autocompletion=complete_methods,
    )
    own = [
        item.replace(annotation=Annotated[str | None, spelled]) if item.name == "method" else item
        for item in inspect.signature(verb, eval_str=True).parameters.values()
        if item.kind is not item.VAR_KEYWORD
    ]
    run.__signature__ = inspect.Signature([*own, *map(_parameter, _flags())])  # type: ignore[attr-defined]
    return run


def read_method(spec: str | None, chosen: Mapping[str, Any]) -> tuple[str, Options, dict[str, Path]]:
    """The method, its options as values, and the files that it is given.

    Args:
        spec: What --method says; without it what LogN recommends.
        chosen: What came for the flags and files of methods, None where nothing did.

    Example:
        >>> read_method("norcal:counts=images", {"gamma": 0.5, "tau": None})
        ('norcal', {'counts': 'images', 'gamma': 0.5}, {})
    """
    name, options = parse_method(RECOMMENDED if spec is None else spec)
    method, files = method_named(name), {}
    for flag in _flags():
        value = chosen.get(flag.parameter)
        if value is None:
            continue
        if name not in flag.options:
            spelled, users = flag.flag.partition("/")[0], ", ".join(flag.options)
            raise InputError(f"Expected `{spelled}` only with the methods {users}, but got `{name}`.")
        option = flag.options[name]
        if option is None:
            files[flag.parameter] = value
        else:
            read = method.options[option].read
            method.add(options, option, read(flag.parameter, value) if isinstance(value, str) else value)
    return name, options, files


def _flags() -> list[_Flag]:
    """All flags, each once."""
    found: dict[str, _Flag] = {}
    for method in all_methods.METHODS:
        for name, option in method.options.items():
            if option.flag is not None:
                # `counts` is an option and a file; the file keeps the name.
                parameter = str(option.flag_name) if name in INPUT_FILES else name
                flag = found.setdefault(option.flag, _Flag(option.flag, parameter, _TYPES[option.kind], {}, {}))
                flag.options[method.name] = name
                flag.helps[method.name] = option.help
    return [*found.values(), *(_file_flag(name) for name in INPUT_FILES)]


def _file_flag(name: str) -> _Flag:
    flag, text = INPUT_FILES[name]
    needing = [method.name for method in all_methods.METHODS if name in method.needs]
    taking = [method.name for method in all_methods.METHODS if name in method.takes]
    return _Flag(flag, name, Path, dict.fromkeys([*needing, *taking]), dict.fromkeys(needing or taking, text))


def _parameter(flag: _Flag) -> inspect.Parameter:
    """The flag as Typer reads it: of its type, or None where it is not given."""
    panel = _panel(method_named(next(iter(flag.helps))))
    option = typer.Option(flag.flag, help=_help(flag.helps, panel), rich_help_panel=f"Options of {', '.join(panel)}")
    value_type: Any = flag.type | None
    return inspect.Parameter(
        flag.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[value_type, option]
    )


def _panel(method: Method) -> list[str]:
    """The methods whose options stand in one panel: those that are fitted from the same."""
    return [
        other.name for other in all_methods.METHODS if other.needs == method.needs and (other.options or other.needs)
    ]


def _help(helps: Mapping[str, str], panel: list[str]) -> str:
    """What the flag does; where not all methods of its panel have it, which ones do."""
    texts = list(dict.fromkeys(helps.values()))
    if len(texts) == 1 and set(panel) <= set(helps):
        return texts[0]
    users = {text: ", ".join(name for name, said in helps.items() if said == text) for text in texts}
    return " ".join(f"{names}: {text}" for text, names in users.items())
