"""The pages of help: one screen each, the same option the same everywhere, examples that parse."""

import inspect
import re
import shlex
from typing import get_args

import pytest
from typer.models import ArgumentInfo, OptionInfo

from logn.cli import main, options
from logn.errors import InputError

OURS = [verb.__name__ for verbs in main.VERBS.values() for verb in verbs]


@pytest.mark.parametrize("verb", OURS)
def test_a_page_of_help_fits_one_screen_and_its_examples_parse(run, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "100")
    printed = run(verb, "--help")
    assert (printed.code, printed.err) == (0, "")
    lines = [line.rstrip() for line in printed.out.splitlines()]
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert lines[1].startswith(f" Usage: logn {verb} ")
    rows = [line for line in lines if line.startswith("│")]  # no option takes two lines
    assert [line for line in rows if not line.startswith(("│ -", "│ *", "│   "))] == []
    assert [line for line in rows if line.startswith("│     ") and not re.match(r"[A-Z]+  |\[", line[6:].strip())] == []
    start = lines.index(" Examples:") + 1
    examples = lines[start : lines.index("", start)]
    assert 2 <= len(examples) <= 4
    command = main.command_line().commands[verb]
    for line in examples:
        first, name, *words = shlex.split(line)
        assert (first, name) == ("logn", verb)
        command.make_context(name, words)


def test_no_flag_has_two_meanings_or_two_defaults():
    """Options of one name are one object, so they have one help; they differ in whether they are required at most."""
    declarations, defaults = {}, {}
    for verb in (verb for verbs in main.VERBS.values() for verb in verbs):
        for item in inspect.signature(verb, eval_str=True).parameters.values():
            kind, declared = get_args(item.annotation)
            if item.name not in ("output", "data", "bootstrap") and item.default is not item.empty:
                assert defaults.setdefault(item.name, item.default) == item.default, f"{item.name} of {verb.__name__}"
            if isinstance(declared, ArgumentInfo):
                continue
            assert isinstance(declared, OptionInfo)
            plain = tuple(part for part in (get_args(kind) or (kind,)) if part is not type(None))
            for name in (declared.default, *declared.param_decls):  # Typer takes the first name for a default
                first, first_kind = declarations.setdefault(name, (declared, plain))
                assert first is declared, f"{name} of {verb.__name__}"
                assert first_kind == plain, f"{name} of {verb.__name__}"


def test_the_verbs_stand_in_the_order_of_a_day(run):
    page = run("--help").out
    places = [page.index(f"│ {verb} ") for verb in OURS]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("logn", ["logn"]),
        ("a,b:k=v,k2=v2,c", ["a", "b:k=v,k2=v2", "c"]),
        ("logn,margin=0, norcal", ["logn:margin=0", "norcal"]),
        ("none,my map.safetensors", ["none", "my map.safetensors"]),
    ],
)
def test_methods_are_split_at_their_commas(text, expected):
    assert options.split_methods(text) == expected


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        (options.split_methods, "k=1,logn", "must begin with"),
        (options.split_methods, "logn,,p2p", "empty entry between commas"),
        *((options.parse_size, text, "to be like 480x640 or 640") for text in ("large", "0", "1x2x3", "-4")),
    ],
)
def test_lists_and_sizes_that_are_none(parse, text, sentence):
    with pytest.raises(InputError, match=sentence):
        parse(text)


@pytest.mark.parametrize("verb", ["", *OURS])
def test_a_flag_has_no_type(run, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "100")
    page = run(*filter(None, [verb]), "--help").out
    assert "bool" not in page.lower()
    assert "--help" in page
