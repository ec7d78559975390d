"""The `logn` command: which verbs there are, and how errors reach the user."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from logn.cli.console import COMMAND_LINE, echo, prepare_streams, print_error, print_note
from logn.cli.wording import PARAMETERS, parameters_of
from logn.errors import InputError, MissingExtraError


class Verb(NamedTuple):
    """Where a verb lives: imported only when it is called, so that `logn --help` stays quick."""

    name: str
    target: str | None  # "module:attribute" in logn.cli.verbs; None for a verb of the research package
    help: str
    panel: str


START = "Start here"
BELIEVE = "Does it help? With labels"
STEPS = "Step by step: from logits to a correction"
RESEARCH = "Data, training and the paper's tables"

# In the order of a user's day. A new verb is one line here and a function in a file of its own.
VERBS = (
    Verb("demo", "demo:demo", "Correct a detector that comes with LogN, and see what it gains.", START),
    Verb("correct", "correct:correct", "Correct a model by one pass over unlabelled training images.", START),
    Verb("predict", "predict:predict", "Run a trained model once and keep its boxes and logits.", BELIEVE),
    Verb("compare", "compare:compare", "Score every method on the same predictions, in one table.", BELIEVE),
    Verb("report", "report:report", "Write one page that shows whether, where and why it helped.", BELIEVE),
    Verb("thresholds", "thresholds:thresholds", "Choose a score threshold per class, to fold in.", BELIEVE),
    Verb("collect", "collect:collect", "Read logits, from files or a model, and write statistics per class.", STEPS),
    Verb("merge", "merge:merge", "Merge statistics from several machines or runs, exactly.", STEPS),
    Verb("inspect", "inspect:inspect", "Show the statistics, whether there is a bias, and what to do.", STEPS),
    Verb("fit", "fit:fit", "Turn statistics or class counts into a correction.", STEPS),
    Verb("apply", "apply:apply", "Correct a file of logits.", STEPS),
    Verb("fold", "fold:fold", "Write a correction or thresholds per class into a model file.", STEPS),
    Verb("data", None, "Draw long-tailed scenes to train on.", RESEARCH),
    Verb("train", None, "Train a detector, or resume a run.", RESEARCH),
    Verb("bench", None, "Run the paper's tables on detectors that it trains.", RESEARCH),
    Verb("figure", None, "Draw a figure of the paper from your own run.", RESEARCH),
)

# Which extra brings a package that is not always there.
EXTRAS = {
    "torch": "torchvision",  # every verb that runs a model of torch needs both
    "torchvision": "torchvision",
    "PIL": "torchvision",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "matplotlib": "report",
    "hotcoco": "evaluate",
    "jinja2": "report",
}


# How a verb, and a group of verbs of the research package, is shown.
SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class LazyVerbs(TyperGroup):
    """A group that lists its verbs from the table above and imports only the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Stand-ins that have the help line only; `resolve_command` imports the real verb.
        self.commands = {
            verb.name: TyperCommand(verb.name, help=verb.help, rich_help_panel=verb.panel) for verb in VERBS
        }

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options, `--help` included."""
        return _untyped(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs that help shows: those of the research package only where it is installed."""
        installed = {entry.name for entry in entry_points(group="logn.verbs")}
        return [verb.name for verb in VERBS if verb.target is not None or verb.name in installed]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb that `args` names and import it."""
        name, command, rest = super().resolve_command(ctx, args)
        verb = load_verb(next(verb for verb in VERBS if verb.name == name)) if command else None
        PARAMETERS.set(parameters_of(verb))
        return name, verb, rest


def load_verb(verb: Verb) -> Any:
    """Import the module of `verb` and make its command."""
    target = _of_research(verb.name) if verb.target is None else _attribute(verb.target)
    if not isinstance(target, typer.Typer):
        single = typer.Typer(add_completion=False, **SETTINGS)
        single.command(verb.name)(target)
        target = single
    command: Any = typer.main.get_command(target)
    for part in (command, *getattr(command, "commands", {}).values()):
        _untyped(part.get_params(part.context_class(part, **part.context_settings)))
    return command


def _untyped(parameters: list[Any]) -> list[Any]:
    """The same parameters; the help of a flag, which takes no value, has no `<bool>` behind it."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def _attribute(target: str) -> Any:
    module, attribute = target.split(":")
    return getattr(import_module(f"logn.cli.verbs.{module}"), attribute)


def _of_research(name: str) -> Any:
    """A verb that the research package adds, which names it as an entry point."""
    for entry in entry_points(group="logn.verbs", name=name):
        return entry.load()
    raise InputError(
        f"`logn {name}` belongs to LogN's research package: run pip install -e research in a clone of LogN."
    )


app = typer.Typer(cls=LazyVerbs, no_args_is_help=True, **SETTINGS)


def _print_version(wanted: bool) -> None:
    if wanted:
        from logn import __version__

        echo(f"logn {__version__}")
        raise typer.Exit


@app.callback()
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
        code = app(args=list(arguments), prog_name="logn", standalone_mode=False)
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
