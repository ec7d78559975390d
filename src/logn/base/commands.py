"""The commands that are printed to be typed next: built from what the user typed, and quoted for a shell."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar

# The words of the command that runs, for what it writes to say how it was made.
COMMAND_LINE: ContextVar[tuple[str, ...]] = ContextVar("command_line", default=())

# Options that have a short form, and those without a value.
_SPELLINGS = {
    "--data": ("--data", "-d", "-a"),
    "--output": ("--output", "-o"),
    "--statistics": ("--statistics", "-s"),
    "--method": ("--method", "-m"),
}
_FLAGS = ("--trust",)
# How a model is opened and run, which every verb that runs it must be told.
HOW_IT_RUNS = (
    *("--like", "--size", "--background", "--activation", "--tensor", "--class-names", "--device", "--trust"),
)


def command(*words: str | os.PathLike[str], keep: Iterable[str] = (), typed: Sequence[str] | None = None) -> str:
    """A command that can be pasted into a shell, with options that the user gave to the command before it.

    Args:
        words: The command, such as "logn", "inspect" and a path.
        keep: Options of the command before that this one has too; those that were typed come at the end.
        typed: The words of the command before; by default those of the command that runs.

    Example:
        >>> command("logn", "inspect", "my run/stats.safetensors")
        "logn inspect 'my run/stats.safetensors'"
        >>> typed = ["logn", "correct", "a.onnx", "--like=yolox", "--images", "train", "--size", "416x416"]
        >>> command("logn", "predict", "a.onnx", keep=HOW_IT_RUNS, typed=typed)
        'logn predict a.onnx --like yolox --size 416x416'
    """
    return shlex.join([*map(str, words), *kept_words(keep, typed)])


def kept_words(keep: Iterable[str], typed: Sequence[str] | None = None) -> list[str]:
    """Options with their values, as far as they were typed; the arguments are those of `command`."""
    typed = COMMAND_LINE.get() if typed is None else typed
    return [
        word
        for option in keep
        for value in values_of(typed, option)
        for word in ((option,) if option in _FLAGS else (option, value))
    ]


def corrected_name(model: str | os.PathLike[str]) -> str:
    """What to call the corrected model, so that `logn correct` takes it.

    Example:
        >>> [corrected_name(model) for model in ("best.pt", "yolox.onnx", "my_models:build", "runs/first")]
        ['corrected.pt', 'corrected.onnx', 'corrected.safetensors', 'corrected']
    """
    name = os.fspath(model)
    suffix = os.path.splitext(name)[1].lower()
    if suffix in (".onnx", ".pt", ".pth"):
        return f"corrected{suffix}"
    return "corrected.safetensors" if ":" in name and not os.path.exists(name) else "corrected"


def free_name(name: str) -> str:
    """`name`, or with a number where a file has it, so that a printed command writes a new file.

    Example:
        >>> free_name("no-such-file.json")
        'no-such-file.json'
    """
    stem, suffix = os.path.splitext(name)
    names = (f"{stem}-{number}{suffix}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], names) if not os.path.exists(free))


def values_of(typed: Sequence[str], option: str) -> Iterator[str]:
    """What stands behind an option in the words of a command, in any spelling; an empty text behind a flag.

    Example:
        >>> [*values_of(["logn", "compare", "store", "-s", "a b.safetensors"], "--statistics")]
        ['a b.safetensors']
        >>> [*values_of(["logn", "predict", "best.pt", "--trust"], "--trust")]
        ['']
    """
    spellings = _SPELLINGS.get(option, (option,))
    for index, word in enumerate(typed):
        name, equals, value = word.partition("=")
        if name not in spellings:
            continue
        if option in _FLAGS:
            yield ""
        elif equals or index + 1 < len(typed):
            yield value if equals else typed[index + 1]
