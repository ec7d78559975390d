"""The page of `--help`: options with their values on the left, what they do on the right, in groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# The group of what every verb can print; it stands last.
PRINTING = "Printing"
# How the help of what must be given ends.
REQUIRED = "Required."
WIDEST_PAGE = 110
# A longer option stands on a line of its own, its help below it.
WIDEST_OPTION = 26
_VALUES = {
    **dict.fromkeys(("str", "text", "list[str]"), "TEXT"),
    **dict.fromkeys(("path", "list[path]"), "PATH"),
    **dict.fromkeys(("int", "integer", "int range", "integer range", "float", "float range"), "NUMBER"),
}
_MARKED = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_EXAMPLE = re.compile(r"`?((?:logn|torchrun) [^`]*)`?(?: \((.*)\))?$", re.DOTALL)


class VerbCommand(TyperCommand):
    """A verb with our page of help; its `--help` stands in the group of `--json`."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option `--help`, in its group."""
        option = super().get_help_option(ctx)
        panels = [getattr(item, "rich_help_panel", None) for item in self.params if "--json" in item.opts]
        if option is not None and panels:
            option.rich_help_panel = panels[0]
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the page."""
        print_help(self, ctx)


class VerbGroup(TyperGroup):
    """A group of verbs with our page of help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the page."""
        print_help(self, ctx)


def print_help(command: Any, context: Any) -> None:
    """Print the usage, what the command does, examples, and its options or its verbs in groups."""
    from rich.console import Console

    console = Console(highlight=False)
    console.width = min(console.width, WIDEST_PAGE)
    console.print(f"\n Usage: [bold]{context.command_path}[/] {_usage(command)}\n", soft_wrap=True)
    paragraphs = (command.help or "").split("\n\n")
    for paragraph in paragraphs:
        _print_paragraph(console, paragraph)
    if _is_example(paragraphs[-1]):
        console.print()
    parameters = [item for item in command.get_params(context) if not getattr(item, "hidden", False)]
    verbs = _verbs(command, context) if isinstance(command, TyperGroup) else {}
    for groups in (verbs, _grouped(parameters, context)):
        heads = [head for rows in groups.values() for head, _ in rows]
        widest = max((len(head) for head in heads if len(head) <= WIDEST_OPTION), default=0)
        for title, rows in groups.items():
            _print_group(console, title, rows, widest)


def _usage(command: Any) -> str:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    shown = [_argument(item) if _is_needed(item) else f"\\[{_argument(item)}]" for item in arguments]
    return " ".join(["\\[OPTIONS]", *shown, *(["COMMAND …"] if isinstance(command, TyperGroup) else [])])


def _is_needed(item: Any) -> bool:
    """Whether it must be given; what has an old spelling is asked for by us, not by the parser."""
    return bool(item.required) or str(item.help).endswith(REQUIRED)


def _argument(item: Any) -> str:
    return str(item.name).upper() + ("..." if item.nargs != 1 else "")


def _print_paragraph(console: Console, paragraph: str) -> None:
    example = _EXAMPLE.match(paragraph.strip())
    if example is not None:
        lines = _command_lines(example[1], example[2], console.width)
        console.print("\n".join(lines), style="cyan", markup=False, soft_wrap=True)
        return
    for line in marked(paragraph).wrap(console, console.width - 2):
        line.rstrip()
        console.print(" ", line, sep="")
    if paragraph.strip() != "**Examples**":
        console.print()


def _is_example(paragraph: str) -> bool:
    return _EXAMPLE.match(paragraph.strip()) is not None


def _command_lines(command: str, remark: str | None, width: int) -> list[str]:
    """An example that can be pasted: a long one goes on behind a backslash."""
    lines, indent = ["  "], " " * 6
    for word in _words(" ".join(command.split())):
        if len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append(indent)
        lines[-1] += (" " if lines[-1].strip() else "") + word
    if remark:
        lines.insert(0, f"  # {' '.join(remark.replace('`', '').split())}")
    return lines


def _words(command: str) -> list[str]:
    """An option stays with its value."""
    words: list[str] = []
    for word in command.split(" "):
        if words and re.fullmatch(r"--?[\w-]+", words[-1]) and not word.startswith("-"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def marked(text: str) -> Text:
    """A text whose code and strong words stand out.

    Example:
        >>> print(marked("As `logn fit` wrote it; **not** more."))
        As logn fit wrote it; not more.
    """
    from rich.text import Text

    found, start, joined = Text(), 0, " ".join(text.split())
    for part in _MARKED.finditer(joined):
        found.append(joined[start : part.start()])
        found.append(part[1] or part[2], style="cyan" if part[1] else "bold")
        start = part.end()
    return found.append(joined[start:])


def _grouped(parameters: list[Any], context: Any) -> dict[str, list[tuple[str, Text]]]:
    """Rows by group, in the order of the options; those on printing come last."""
    groups: dict[str, list[tuple[str, Text]]] = {}
    for item in parameters:
        is_argument = item.param_type_name == "argument"
        title = getattr(item, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
        groups.setdefault(title, []).append((_head(item, context), _help(item)))
    last = {PRINTING: groups.pop(PRINTING)} if PRINTING in groups else {}
    return {**groups, **last}


def _head(item: Any, context: Any) -> str:
    if item.param_type_name == "argument":
        return _argument(item)
    names = ", ".join(sorted(item.opts, key=len))
    names += "".join(f"/{name}" for name in item.secondary_opts)
    return names if item.is_flag else f"{names} {_value(item, context)}"


def _value(item: Any, context: Any) -> str:
    """What to type behind an option."""
    if item.metavar:
        return str(item.metavar)
    known = getattr(item, "type", None)
    if known is not None:  # versions of Typer that stand on Click
        choices = getattr(known, "choices", None)
        word = "|".join(getattr(choice, "value", choice) for choice in choices) if choices else str(known.name)
    else:
        word = str(item.display_type_rich(ctx=context)).strip("<>")
    return _VALUES.get(word.lower(), word)


def _help(item: Any) -> Text:
    """What the option does, its default, and whether it must be given."""
    found = marked(item.help or "")
    default = item.default.value if isinstance(item.default, Enum) else item.default
    if item.required:
        found.append(f" {REQUIRED}")
    elif getattr(item, "show_default", True) and _is_told(default):
        found.append(f" [default: {_flag_word(item, default)}]", style="dim")
    return found


def _is_told(default: Any) -> bool:
    """Whether a default says something: nothing, or a switch that is off, goes without saying."""
    return default is not None and default is not False and default not in ((), []) and not callable(default)


def _flag_word(item: Any, default: Any) -> str:
    return str(item.opts[0]).lstrip("-") if default is True else str(default)


def _verbs(group: Any, context: Any) -> dict[str, list[tuple[str, Text]]]:
    groups: dict[str, list[tuple[str, Text]]] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            title = getattr(command, "rich_help_panel", None) or "Commands"
            line = command.short_help or (command.help or "").split("\n\n")[0]
            groups.setdefault(title, []).append((name, marked(line)))
    return groups


def _print_group(console: Console, title: str, rows: list[tuple[str, Text]], widest: int) -> None:
    from rich.panel import Panel
    from rich.text import Text

    content = Text("\n").join(line for head, text in rows for line in _row(console, head, text, widest))
    console.print(Panel(content, title=title, title_align="left", border_style="dim"))


def _row(console: Console, head: str, text: Text, widest: int) -> Iterator[Text]:
    from rich.text import Text

    room = console.width - widest - 6
    lines = list(text.wrap(console, room)) or [Text()]
    first = Text(head, style="bold cyan")
    if len(head) > widest:
        yield first
        first = Text()
    for line in lines:
        first.append(" " * (widest + 2 - len(first)))
        yield Text.assemble(first, line)
        first = Text()
