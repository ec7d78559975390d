"""Every `logn …` that a page or a help text shows names a verb and options that exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from logn.cli.main import VERBS, app

ROOT = Path(__file__).parents[2]
SOURCES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "src" / "logn" / "cli").rglob("*.py")),
]
pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the documentation is not beside the tests")

NAMES = "|".join(verb.name for verb in VERBS)
# At the start of a line of a block, or between backticks.
COMMAND = re.compile(rf"(?:^\s*(?:\$ )?|`)(logn (?:{NAMES})(?![\w-])[^`\n]*(?:\\\n[^`\n]*)*)", flags=re.M)


def commands(text):
    joined = re.sub(r"(`logn [^`]*?)\n\s+([^`]*`)", r"\1 \2", text)  # a docstring breaks long ones
    joined = re.sub(r"torchrun [^`\n]*-m logn ", "logn ", joined)
    for found in COMMAND.findall(joined):
        if "{" not in found:  # a template of the code
            yield found.replace("\\\n", " ").strip()


def known_options(words):
    """All spellings of the options of the verb that `words` call, and the words behind the verb."""
    command, rest = typer.main.get_command(app), words
    context = command.make_context("logn", ["x"], resilient_parsing=True)
    while hasattr(command, "resolve_command") and rest:
        _, command, rest = command.resolve_command(context, rest)
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return options | {"-h", "--help"}, rest


def words_of(line):
    try:
        words = shlex.split(line.replace("…", "x"), comments=True)
    except ValueError:  # half a sentence, not a command
        return []
    for stop in ("|", ">", ";", "&&"):
        words = words[: words.index(stop)] if stop in words else words
    return words[1:]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_verbs_and_options_exist(source):
    for line in commands(source.read_text(encoding="utf-8")):
        words = words_of(line)
        options, rest = known_options(words)
        given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
        assert [option for option in given if option not in options] == [], line


def test_commands_are_found():
    found = [line for source in SOURCES for line in commands(source.read_text(encoding="utf-8"))]
    assert len(found) > 150
    assert list(commands("torchrun --nproc-per-node 8 -m logn train -d x\n")) == ["logn train -d x"]
    options, rest = known_options(["collect", "model.onnx", "--images", "train"])
    assert rest == ["model.onnx", "--images", "train"]
    assert {"--images", "-o", "--json"} < options
    assert "--journal" not in options
