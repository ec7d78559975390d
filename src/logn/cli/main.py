"""The `logn` command: which verbs there are, and how errors reach the user."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from logn.cli.console import COMMAND_LINE, echo, prepare_streams, print_error, print_note
from logn.cli.verbs.apply import apply
from logn.cli.verbs.collect import collect
from logn.cli.verbs.compare import compare
from logn.cli.verbs.correct import correct
from logn.cli.verbs.demo import demo
from logn.cli.verbs.fit import fit
from logn.cli.verbs.fold import fold
from logn.cli.verbs.inspect import inspect
from logn.cli.verbs.merge import merge
from logn.cli.verbs.predict import predict
from logn.cli.verbs.report import report
from logn.cli.verbs.thresholds import thresholds
from logn.errors import InputError, MissingExtraError

# In the order of a user's day. A new verb is one word here and a function in a file of its own.
VERBS = {
    "Start here": (demo, correct),
    "Does it help? With labels": (predict, compare, report, thresholds),
    "Step by step: from logits to a correction": (collect, merge, inspect, fit, apply, fold),
}
# Those of the research package, which names them as entry points.
RESEARCH = {
    "data": "Draw long-tailed scenes to train on.",
    "train": "Train a detector, or resume a run.",
    "bench": "Run the paper's tables on detectors that it trains.",
    "figure": "Draw a figure of the paper from your own run.",
}

# Which extra brings a package that is not always there.
EXTRAS = {
    "torch": "torchvision",  # every verb that runs a model of torch needs both
    "torchvision": "torchvision",
    "PIL": "torchvision",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "hotcoco": "evaluate",
    "jinja2": "report",
}


# How every page of help is shown.
SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
# A verb of the research package reads its words itself, since its options are known only when it is loaded.
PASSED_ON: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def command_line() -> Any:
    """The command with all verbs; those of the research package are shown where it is installed."""
    app = typer.Typer(no_args_is_help=True, **SETTINGS)
    app.callback()(logn)
    for panel, verbs in VERBS.items():
        for verb in verbs:
            app.command(verb.__name__, rich_help_panel=panel)(verb)
    installed = {entry.name: entry for entry in entry_points(group="logn.verbs")}
    for name, help_line in RESEARCH.items():
        app.command(
            name,
            help=help_line,
            rich_help_panel="Data, training and the paper's tables",
            context_settings=PASSED_ON,
            hidden=name not in installed,
        )(_of_research(name, installed.get(name)))
    group: Any = typer.main.get_command(app)
    for part in (group, *group.commands.values()):
        for parameter in part.get_params(part.context_class(part, **part.context_settings)):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""  # else its help has `<bool>`, though it takes no value
    return group


def _of_research(name: str, entry: EntryPoint | None) -> Any:
    """A verb that loads another one when it is called."""

    def run(context: typer.Context) -> Any:
        if entry is None:
            raise InputError(
                f"`logn {name}` belongs to LogN's research package: run pip install -e research in a clone of LogN."
            )
        return load_verb(entry)(args=context.args, prog_name=f"logn {name}", standalone_mode=False)

    return run


def load_verb(entry: EntryPoint) -> Any:
    """The command of a verb of the research package: a function, or a group of commands."""
    verb = entry.load()
    app = verb
    if not isinstance(verb, typer.Typer):
        app = typer.Typer(add_completion=False, **SETTINGS)
        app.command(entry.name)(verb)
    return typer.main.get_command(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from logn import __version__

        echo(f"logn {__version__}")
        raise typer.Exit


def logn(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Correct a model that was trained on long-tailed data: no retraining, no labels, no inference cost.

    Start with: logn correct MODEL --images train/ -o CORRECTED. From files of logits: logn collect.
    """


# What the loader says of a shared library that finds no room.
NO_ROOM = ("failed to map segment", "annot allocate memory")


def execute(arguments: Sequence[str]) -> int:
    """Run the command line in this process and return its exit code: 2 after one sentence for bad input.

    Example:
        >>> execute(["--version"])
        logn ...
        0
    """
    as_json = "--json" in arguments
    COMMAND_LINE.set(("logn", *arguments))
    try:
        code = command_line()(args=list(arguments), prog_name="logn", standalone_mode=False)
    except (InputError, MissingExtraError) as error:
        print_error(str(error), as_json=as_json)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        print_error(str(MissingExtraError(error.name, extra=EXTRAS[error.name])), as_json=as_json)
        return 2
    except OSError as error:
        print_error(_describe(error), as_json=as_json)
        return 2
    except (MemoryError, ImportError) as error:
        return _out_of_memory(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        if not _hides_interrupt(error):
            return _usage_error(error, as_json=as_json)
        code = 130
    if code == 130:
        print_error("Interrupted.", as_json=as_json)
    return code if isinstance(code, int) else 0


def _out_of_memory(error: MemoryError | ImportError, *, as_json: bool) -> int:
    """One sentence; a library that finds no room to be loaded raises an ImportError, and others are raised again."""
    if isinstance(error, ImportError) and not any(words in str(error) for words in NO_ROOM):
        raise error
    reason = f" ({error})" if str(error) else ""
    print_error(f"Out of memory{reason}: free some, or raise the limit (ulimit -v).", as_json=as_json)
    return 2


def _describe(error: OSError) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError) and error.filename is not None:
        return f"`{_first_file(Path(error.filename))}` is a file, but a folder is needed there: choose another path."
    reason = (error.strerror or str(error)).lower()
    if error.filename is None:
        return f"A file cannot be read or written: {reason}."
    return f"`{error.filename}` cannot be read or written: {reason}."


def _first_file(path: Path) -> Path:
    """What stands in the way of a folder: the path, or the one of its parents that is a file."""
    return next((parent for parent in (path, *path.parents) if parent.is_file()), path)


def _hides_interrupt(error: BaseException | None) -> bool:
    """Whether an interrupt is behind the error: one in the middle of an import comes out as something else."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _usage_error(error: Exception, *, as_json: bool) -> int:
    """Print what is wrong with the options; any other error is a fault of ours and keeps its traceback."""
    # New versions of Typer carry their own Click, old ones import it: this method is common to both.
    if not hasattr(error, "format_message"):
        raise error
    message = str(error.format_message()).rstrip()
    if type(error).__name__ == "NoArgsIsHelpError":  # it has printed the help, or carries it as its message
        if message:
            echo(message, err=True)
        return 2
    if message[-1:] not in (".", "?", "!"):
        message += "."
    context = getattr(error, "ctx", None)
    print_error(message + (f" Try `{context.command_path} --help`." if context else ""), as_json=as_json)
    return 2


def _show_warning(message: Warning | str, *_where: Any, **_more: Any) -> None:
    """A warning is for the user: the sentence, without the line of code that raised it."""
    print_note(f"Warning: {message}")


def run() -> None:
    """Run `logn` with the arguments of this process, then leave it."""
    prepare_streams()
    warnings.showwarning = _show_warning
    code = execute(sys.argv[1:])
    # All is written and said; a second interrupt, while threads come to an end, just ends the process.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


if __name__ == "__main__":
    run()
