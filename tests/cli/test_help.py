"""The pages of help: one screen each, the same option the same everywhere, examples that parse."""

import inspect
import shlex
from typing import get_args

import pytest
from typer.models import ArgumentInfo, OptionInfo

from logn.cli import main, options
from logn.errors import InputError

OURS = [verb.name for verb in main.VERBS if verb.target is not None]


def page_of(run, monkeypatch, verb, columns=100):
    monkeypatch.setenv("COLUMNS", str(columns))
    printed = run(verb, "--help")
    assert (printed.code, printed.err) == (0, "")
    return [line.rstrip() for line in printed.out.splitlines()]


def parameters(verb):
    """The name, type and declaration of each parameter of a verb."""
    function = main._attribute(next(known.target for known in main.VERBS if known.name == verb))
    for item in inspect.signature(function, eval_str=True).parameters.values():
        kind, declared = get_args(item.annotation)
        yield item.name, kind, declared


@pytest.mark.parametrize("verb", OURS)
def test_a_page_of_help_fits_one_screen(run, monkeypatch, verb):
    lines = page_of(run, monkeypatch, verb)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert lines[1].startswith(f" Usage: logn {verb} ")


@pytest.mark.parametrize("verb", OURS)
def test_no_option_takes_two_lines_at_100_columns(run, monkeypatch, verb):
    rows = [line for line in page_of(run, monkeypatch, verb) if line.startswith("│")]
    assert [line for line in rows if not line.startswith(("│ -", "│ *", "│   "))] == []
    assert [line for line in rows if line.startswith("│     ") and not line[6:].strip(" │").startswith("[")] == []


@pytest.mark.parametrize("verb", OURS)
def test_there_are_two_to_four_examples_and_they_parse(run, monkeypatch, verb):
    lines = page_of(run, monkeypatch, verb)
    start = lines.index(" Examples:") + 1
    examples = lines[start : lines.index("", start)]
    assert 2 <= len(examples) <= 4
    command = main.load_verb(next(known for known in main.VERBS if known.name == verb))
    for line in examples:
        first, name, *words = shlex.split(line)
        assert (first, name) == ("logn", verb)
        command.make_context(name, words)


def test_no_flag_has_two_meanings():
    """Options of one name are one object, so they have one help; they differ in whether they are required at most."""
    seen = {}
    for verb in OURS:
        for _, kind, declared in parameters(verb):
            if isinstance(declared, ArgumentInfo):
                continue
            assert isinstance(declared, OptionInfo)
            plain = tuple(part for part in (get_args(kind) or (kind,)) if part is not type(None))
            for name in (declared.default, *declared.param_decls):  # Typer takes the first name for a default
                first, known = seen.setdefault(name, (declared, plain))
                assert first is declared, f"{name} of {verb}"
                assert known == plain, f"{name} of {verb}"


def test_defaults_are_the_same_everywhere():
    seen = {}
    for verb in OURS:
        function = main._attribute(next(known.target for known in main.VERBS if known.name == verb))
        for item in inspect.signature(function).parameters.values():
            if item.name not in ("output", "data", "bootstrap") and item.default is not item.empty:
                assert seen.setdefault(item.name, item.default) == item.default, f"{item.name} of {verb}"


def test_the_verbs_stand_in_the_order_of_a_day(run):
    page = run("--help").out
    places = [page.index(f"│ {verb.name} ") for verb in main.VERBS]
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
    ("text", "sentence"), [("k=1,logn", "to begin with a method"), ("logn,,p2p", "between commas")]
)
def test_lists_of_methods_that_are_none(text, sentence):
    with pytest.raises(InputError, match=sentence):
        options.split_methods(text)


@pytest.mark.parametrize("text", ["large", "0", "1x2x3", "-4"])
def test_sizes_that_are_none(text):
    with pytest.raises(InputError, match="to be like 480x640 or 640"):
        options.parse_size(text)
