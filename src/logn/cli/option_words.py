"""The library's sentences in the words of the command line: `--tensor` for `tensor`, `--insert` for insert=True."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from typing import Any

# What the library calls otherwise than the command line does.
_OTHER_NAMES = {
    "moments": "statistics",
    "output_path": "output",
    "model_path": "model",
    "draws": "bootstrap",
    "num_bootstrap": "bootstrap",
    "allow_refold": "again",
    "weight": "weights",
    "dev": "dev_logits",
    "root": "images",
    "logits": "source",
    "affine": "correction",
}
# Where a name in backticks is a parameter; elsewhere it may be a tensor, a class or an array of that name.
_PARAMETER = re.compile(
    r"((?:^|; )Expected (?:no |one of |statistics \()?"
    r"|\b(?:its|their|give|other|another) |--[\w-]+` (?:and|or) )`(\w+)`"
)
_SETTING = re.compile(r"(?<=[\s(])(\w+)=(True|\d+)\b(?![:\d])")
# Sentences that tell both ways say only the one that counts here.
_BOTH = re.compile(r"(?:`(\w+)`|`?(\w+)=True`?) \(`(--[\w-]+)`\)|\(`(\w+)`, `(--[\w-]+)`\)")
# An advice behind the sentence that names a setting of Python and its option.
_ADVICE = re.compile(r'; \w+="\w+" \((`(--[\w-]+)[^`]*`)\)([^.;]*)')
_IN_PYTHON = re.compile(r", in Python `[^`]*`")

_words: ContextVar[Mapping[str, str]] = ContextVar("logn_option_words", default={})  # noqa: B039 - it is never changed


def speak_options_of(command: Any) -> None:
    """From now on say the options of `command`, or of all commands of a group, in the place of parameters."""
    commands = [command, *getattr(command, "commands", {}).values()]
    _words.set({item.name: spelling(item) for part in commands for item in part.params})


def speak_only(names: Collection[str]) -> None:
    """From now on say the options of these parameters only, since the input is of a kind that takes no others."""
    _words.set({name: option for name, option in _words.get().items() if name in names})


def spelling(parameter: Any) -> str:
    """How a parameter of a command is told to a user: the long form of an option, an argument in capitals."""
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    return next((str(text) for text in parameter.opts if text.startswith("--")), str(parameter.opts[0]))


def in_options(sentence: str, words: Mapping[str, str] | None = None) -> str:
    """A sentence of the library with the options of the command that runs.

    Args:
        sentence: What the library says.
        words: The option or argument of each parameter; by default those of the command that runs.

    Example:
        >>> words = {"tensor": "--tensor", "insert": "--insert", "sample_rows": "--sample-rows"}
        >>> in_options("Expected one set of class logits, but several fit; name its `tensor`.", words)
        'Expected one set of class logits, but several fit; name its `--tensor`.'
        >>> in_options("Put the map behind the layer with insert=True, or collect with sample_rows=4096.", words)
        'Put the map behind the layer with `--insert`, or collect with `--sample-rows 4096`.'
        >>> in_options("Expected the input `tensor` to be a tensor, but it is of another kind.", words)
        'Expected the input `tensor` to be a tensor, but it is of another kind.'
        >>> in_options("It does: choose another `output`, or delete it.", {"output": "--output"})
        'It does: choose another `--output`, or delete it.'
        >>> in_options("Expected statistics (`moments`) for the method `logn`.", {"statistics": "--statistics"})
        'Expected statistics (`--statistics`) for the method `logn`.'
        >>> advice = 'Expected `rows` to be finite, but got nan; nonfinite="skip" (`--nonfinite skip`) leaves it out.'
        >>> in_options(advice, {"nonfinite": "--nonfinite"})
        'Expected `rows` to be finite, but got nan; `--nonfinite skip` leaves it out.'
        >>> in_options(advice, words)
        'Expected `rows` to be finite, but got nan.'
    """
    known = _words.get() if words is None else words
    if not known:
        return sentence

    def option(name: str) -> str | None:
        return known.get(name) or known.get(_OTHER_NAMES.get(name, ""))

    def parameter(found: re.Match[str]) -> str:
        return f"{found[1]}`{option(found[2]) or found[2]}`"

    def setting(found: re.Match[str]) -> str:
        spelled = option(found[1])
        if spelled is None or not spelled.startswith("--"):
            return found[0]
        return f"`{spelled}`" if found[2] == "True" else f"`{spelled} {found[2]}`"

    def both(found: re.Match[str]) -> str:
        name, spelled = found[1] or found[2] or found[4], found[3] or found[5]
        if option(name) != spelled:
            return found[0]
        return f"(`{spelled}`)" if found[4] else f"`{spelled}`"

    def advice(found: re.Match[str]) -> str:
        return f"; {found[1]}{found[3]}" if found[2] in known.values() else ""

    sentence = _ADVICE.sub(advice, sentence)
    sentence = _BOTH.sub(both, _IN_PYTHON.sub("", sentence))
    return _PARAMETER.sub(parameter, _PARAMETER.sub(parameter, _SETTING.sub(setting, sentence)))
