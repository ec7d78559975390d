"""Messages of the library in the words of the command line: options in the place of Python arguments.

The library writes for both: an argument stands in backticks or as `name=value`, and what only Python can do stands in
parentheses that begin with "in Python". Here, and only here, an argument becomes the option that the verb has for it,
and the parentheses are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from logn.base.commands import COMMAND_LINE, values_of

# What the verb that runs calls its parameters: an option, or the word of its help for an argument.
PARAMETERS: ContextVar[Mapping[str, str] | None] = ContextVar("parameters", default=None)

# Parameters of verbs that hold what the library calls otherwise; of several, the one that was typed.
_OTHER_NAMES = {
    "affine": ("correction", "method"),
    "batch_size": ("batch",),
    "goal": ("thresholds",),
    "image_root": ("images",),
    "labels": ("labels", "data"),
    "moments": ("statistics", "train_logits"),
    "num_bootstrap": ("bootstrap",),
    "output_path": ("output",),
}
# What to call an argument where the verb has no option for it.
_IN_WORDS = {
    "affine": "the correction",
    "class_names": "class names",
    "counts": "training counts",
    "labels": "the labels",
    "logits": "the logits",
    "moments": "the statistics",
    "num_columns": "the number of columns",
    "num_images": "the number of images",
    "report_images": "example images",
}
# Names that tensors, arrays and folders of users often have: arguments only behind these words.
_COMMON = ("activation", "background", "batch", "data", "images", "key", "labels", "logits", "method", "output", "size")
_BEFORE = re.compile(
    r"(?:\b(?:expected|pass|leave|leave out|another|as|by|same|and|or|needs|threshold) |\()$", re.IGNORECASE
)
_FIRST = re.compile(r"(?=`output` is (?:the model|`)|`(?:activation|device)` is |`images` holds no )")
_PYTHON_ONLY = re.compile(r",? \(in Python[^()]*(?:\([^()]*\)[^()]*)*\)")
_BOTH = re.compile(r"(?:`\w+`|\b\w+=[\w\"']+) \((`--[^`]+`)\)")
_SETTING = re.compile(r"""(?<![\w`(:,])([a-z]\w*)=(True|"(\w+)"|'(\w+)')(?!\w)""")
_ARGUMENT = re.compile(r"`([a-z]\w*)`(?! of `)")


def parameters_of(command: Any) -> dict[str, str]:
    """How the parameters of a command are typed.

    Args:
        command: Of Typer.
    """
    names: dict[str, str] = {}
    for item in getattr(command, "params", ()):
        long = next((word for word in item.opts if word.startswith("--")), None)
        typed = long or (item.metavar or item.name).upper()
        names |= {item.name: typed, typed.strip("-").replace("-", "_"): typed}
    return names


def as_typed(message: str) -> str:
    """A message of the library for somebody at the command line.

    Example:
        >>> token = PARAMETERS.set({"class_names": "--class-names", "overwrite": "--overwrite"})
        >>> as_typed("Expected `class_names` to be a list; pass overwrite=True (in Python only: force=True).")
        'Expected `--class-names` to be a list; pass `--overwrite`.'
        >>> as_typed("The method `norcal` needs `counts`.")
        'The method `norcal` needs training counts.'
        >>> PARAMETERS.reset(token)
    """
    if not (parameters := PARAMETERS.get()):
        return message
    text = _BOTH.sub(r"\1", _PYTHON_ONLY.sub("", message))
    typed = COMMAND_LINE.get()

    def option(name: str) -> str | None:
        others = [other for other in (name, *_OTHER_NAMES.get(name, ())) if other in parameters]
        given = [other for other in others if any(values_of(typed, parameters[other]))]
        return parameters[(given or others)[0]] if others else None

    def setting(match: re.Match[str]) -> str:
        words = option(match[1])
        return match[0] if words is None else f"`{' '.join(filter(None, (words, match[3] or match[4])))}`"

    def argument(match: re.Match[str]) -> str:
        name, start = match[1], match.start()
        is_first = start == 0 and _FIRST.match(text) is not None
        is_user_s = name in typed or (name in _COMMON and not is_first and not _BEFORE.search(text[:start]))
        words = None if is_user_s else option(name)
        if words is not None:
            return f"`{words}`"
        plain = match[0] if is_user_s else _IN_WORDS.get(name, match[0])
        return plain if start else plain[:1].upper() + plain[1:]

    text = _SETTING.sub(setting, text)
    return _ARGUMENT.sub(argument, text)
