"""One verb for several kinds of input: one help, whose groups of options say what each of them goes with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args

import typer
from typer.models import OptionInfo, ParameterInfo

from logn.cli.help_page import REQUIRED
from logn.cli.option_words import speak_only, spelling
from logn.errors import InputError

NOTHING = inspect.Parameter.empty
Command = Callable[..., None]
Values = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of input that a verb takes.

    Args:
        title: Heading of its options in the help, such as "ONNX model".
        words: The same in a sentence, such as "an ONNX model".
        run: What the verb does with it; the parameters are its options.
    """

    title: str
    words: str
    run: Command


@dataclass(frozen=True)
class OldSpelling:
    """Other names of an option or an argument, which still work but are not shown."""

    names: tuple[str, ...]


def formerly(*names: str) -> OldSpelling:
    """Other names of a parameter, to stand in its annotation behind its `typer.Option` or `typer.Argument`.

    Example:
        >>> MaxImages = Annotated[int | None, typer.Option(help="How many."), formerly("--most")]
    """
    return OldSpelling(names)


def verb_of(*kinds: Kind, common: str) -> Callable[[Callable[..., Kind]], Command]:
    """Make a verb of the function that sees from its arguments which of the `kinds` they are.

    The verb has the parameters of that function and of all kinds, each once: kinds that share one declare it by the
    same `typer.Option`. What goes with some kinds only stands in a group of its own in the help, and is refused with
    the others; what a kind has no default for must be given with it.

    Args:
        kinds: What the function may return.
        common: Heading of the options that go with all kinds.

    Example:
        >>> Word, Letter = Annotated[str, typer.Argument()], Annotated[str, typer.Option()]
        >>> def count(word: Word, letter: Letter) -> None:
        ...     print(word.count(letter))
        >>> def square(word: Word) -> None:
        ...     print(int(word) ** 2)
        >>> kinds = Kind("Word", "a word", count), Kind("Number", "a number", square)
        >>> @verb_of(*kinds, common="Any text")
        ... def look(word: Word) -> Kind:
        ...     return kinds[word.isdecimal()]
        >>> list(inspect.signature(look).parameters)
        ['context', 'word', 'letter']
    """

    def make(see: Callable[..., Kind]) -> Command:
        parameters = _merged([see, *(kind.run for kind in kinds)])
        for parameter in parameters:
            parameter.sort_into(see, kinds, common)
        parameters.sort(key=lambda parameter: not parameter.in_all)  # what goes with all kinds comes first in the help

        def call(context: typer.Context, **values: Any) -> None:
            given = _newly_spelled(context, parameters, values)
            kind = see(**_part_of(parameters, see, values))
            _check_fit(kind, kinds, parameters, given, values)
            speak_only({item.name for item in parameters if {see, kind.run} & {*item.takers}})
            kind.run(**_part_of(parameters, kind.run, values))

        return _shown(call, parameters, see)

    return make


def with_old_spellings(function: Command) -> Command:
    """A verb some of whose parameters have old spellings (`formerly`)."""
    parameters = _merged([function])

    def call(context: typer.Context, **values: Any) -> None:
        _newly_spelled(context, parameters, values)
        function(**_part_of(parameters, function, values))

    return _shown(call, parameters, function)


@dataclass
class _Parameter:
    """A parameter of a verb, and the functions that take it."""

    name: str
    type: Any
    info: ParameterInfo
    old: tuple[OldSpelling, ...]
    default: Any = NOTHING
    takers: list[Callable[..., Any]] = field(default_factory=list)
    needed_by: list[Callable[..., Any]] = field(default_factory=list)
    in_all: bool = True

    def add(self, function: Callable[..., Any], other: _Parameter) -> None:
        if other.info is not self.info or (
            NOTHING not in (self.default, other.default) and self.default != other.default
        ):
            raise TypeError(f"Expected one declaration of `{self.name}` for all kinds, but got several.")
        self.takers.append(function)
        if other.default is NOTHING:
            self.needed_by.append(function)
        else:
            self.type, self.default = other.type, other.default

    def sort_into(self, see: Callable[..., Any], kinds: Sequence[Kind], common: str) -> None:
        """Put an option into its group of the help; only what all kinds need can be asked for before one is seen."""
        titles = [kind.title for kind in kinds if kind.run in self.takers]
        self.in_all = see in self.takers or len(titles) == len(kinds)
        info, own = copy(self.info), self.info.rich_help_panel
        if self.needed_by == self.takers and not self.required:
            info.help = f"{info.help} {REQUIRED}"
        if isinstance(info, OptionInfo):
            title = common if self.in_all else " or ".join(titles)
            info.rich_help_panel = f"{title}: {own[:1].lower()}{own[1:]}" if own and not self.in_all else own or title
        self.info = info

    @property
    def required(self) -> bool:
        """Whether the option parser can ask for it: all need it, and there is only one way to say it."""
        return self.in_all and self.needed_by == self.takers and not self.old

    def old_names(self) -> dict[str, tuple[str, ...]]:
        """The names of the hidden parameters for the old spellings."""
        return {f"{self.name}__{place}": old.names for place, old in enumerate(self.old)}

    def shown(self) -> list[inspect.Parameter]:
        """The parameters of the verb: itself, and hidden ones for the old spellings."""
        optional = self.type if self.default is not NOTHING else self.type | None
        default = None if self.default is NOTHING else self.default
        mine = (self.type, NOTHING) if self.required else (optional, default)
        hidden = {
            name: Annotated[self.type | None, typer.Option(*spelled, hidden=True)]
            for name, spelled in self.old_names().items()
        }
        return [
            _keyword(self.name, Annotated[mine[0], self.info], mine[1]),
            *(_keyword(name, annotation, None) for name, annotation in hidden.items()),
        ]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _merged(functions: Sequence[Callable[..., Any]]) -> list[_Parameter]:
    found: dict[str, _Parameter] = {}
    for function in functions:
        for item in inspect.signature(function, eval_str=True).parameters.values():
            declared = _declared(item)
            known = found.setdefault(item.name, _Parameter(item.name, declared.type, declared.info, declared.old))
            known.add(function, declared)
    return list(found.values())


def _declared(item: inspect.Parameter) -> _Parameter:
    plain, *more = get_args(item.annotation)
    (info,) = (part for part in more if isinstance(part, ParameterInfo))
    old = tuple(part for part in more if isinstance(part, OldSpelling))
    return _Parameter(item.name, plain, info, old, item.default)


def _shown(call: Command, parameters: Sequence[_Parameter], described: Callable[..., Any]) -> Command:
    """`call` with the signature and the help from which typer makes the command."""
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    shown = [context, *(item for parameter in parameters for item in parameter.shown())]
    call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    call.__annotations__ = {item.name: item.annotation for item in shown}
    call.__name__, call.__doc__ = described.__name__, described.__doc__
    return call


def _part_of(parameters: Sequence[_Parameter], function: Callable[..., Any], values: Values) -> Values:
    return {parameter.name: values[parameter.name] for parameter in parameters if function in parameter.takers}


def _newly_spelled(context: typer.Context, parameters: Sequence[_Parameter], values: Values) -> dict[str, str]:
    """Put what was given by old names under the new ones; returns how each parameter that was given is spelled."""
    spelled = {
        item.name: spelling(item)
        for item in context.command.params
        if item.name and getattr(context.get_parameter_source(item.name), "name", "") == "COMMANDLINE"
    }
    given = {}
    for parameter in parameters:
        names = [name for name in (parameter.name, *parameter.old_names()) if name in spelled]
        if len(names) > 1:
            ways = " and ".join(f"`{spelled[name]}`" for name in names)
            raise InputError(
                f"Expected one of {ways}, which are the same, but got {'both' if len(names) == 2 else 'all'}."
            )
        if names:
            values[parameter.name], given[parameter.name] = values[names[0]], spelled[names[0]]
        elif parameter.old and parameter.default is NOTHING:
            words = {item.name: spelling(item) for item in context.command.params}
            raise InputError(f"Expected `{words[parameter.name]}`, but got none; see `{context.command_path} --help`.")
    return given


def _check_fit(
    kind: Kind, kinds: Sequence[Kind], parameters: Sequence[_Parameter], given: dict[str, str], values: Values
) -> None:
    """Refuse options of other kinds, and ask for those that this one needs."""
    first, *more = source if isinstance(source := values[parameters[0].name], list) else [source]
    seen = f"{kind.words} (`{first}`{f' and {len(more)} more' if more else ''})"
    for parameter in parameters:
        fitting = [other.words for other in kinds if other.run in parameter.takers]
        if parameter.name in given and fitting and kind.words not in fitting:
            raise InputError(f"Expected `{given[parameter.name]}` only with {' or '.join(fitting)}, but got {seen}.")
    for parameter in parameters:
        if kind.run in parameter.needed_by and values[parameter.name] is None:
            word = f"--{parameter.name.replace('_', '-')}"
            raise InputError(f"Expected `{word}` with {seen}, but got none.")
