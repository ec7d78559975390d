"""The pages: links lead somewhere, commands have the options that they name, blocks of Python and commands run."""

import inspect
import json
import re
import shlex
from importlib.metadata import entry_points
from pathlib import Path

import logn_research.losses
import numpy as np
import pytest
from logn_research.losses.loss_factory import LOSS_NAMES, parse_loss
from logn_research.pages import ROOT
from logn_research.training.settings import DETECTORS

from logn.cli.main import RESEARCH, command_line, load_verb
from logn.data.class_counts import ClassCounts

REPOSITORY = ROOT.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"(?:^\s*(?:\$ )?|`)(logn (?:data|train|bench|figure|predict|collect|fit) [^`\n]+)", flags=re.M)
pytestmark = pytest.mark.usefixtures("one_thread")


def text_of(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def blocks_of(name, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(name), flags=re.M | re.S)


def headings(page):
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target, place in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not place or place in headings(file), f"{target}#{place}"
    for path in re.findall(r"`((?:research|docs|examples|benchmarks|src|tests)/[\w/.-]+\.\w+)`", text):
        assert (REPOSITORY / path).exists(), path


def known_options(words):
    command, rest = command_line(), words
    context = command.make_context("logn", ["x"], resilient_parsing=True)
    while hasattr(command, "resolve_command") and rest:
        name, command, rest = command.resolve_command(context, rest)
        if name in RESEARCH:  # reads its words itself
            (entry,) = entry_points(group="logn.verbs", name=name)
            command = load_verb(entry)
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_commands_have_the_options_that_they_name(page):
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in COMMAND.findall(text):
        words = shlex.split(line.replace("…", "x"), comments=True)[1:]
        options = known_options(words)
        given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        assert [option for option in given if option not in options] == [], line


def run_python(code, **replaced):
    for long, short in replaced.items():
        assert long in code
        code = code.replace(long, short)
    names = {}
    exec(compile(code, "page", "exec"), names)  # noqa: S102 - our own page
    return names


def test_the_page_on_scenes_draws_and_reads(tmp_path, monkeypatch, run_logn):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks_of("glyph-scenes", "python")
    names = run_python(code.replace("train=300", "train=40, dev=2, test=2, size=64"))
    assert names["sampler"].label_distribution().shape == (30,)
    first, *_ = re.findall(r"(?:^    logn .+\n)+", text_of("glyph-scenes"), flags=re.M)
    few = "-o drawn --classes 6 --train 8 --dev 1 --test 1 --size 64 --workers 1"
    run_logn(first.replace("    ", ""), shorter={"-o glyphs": few})
    assert (tmp_path / "drawn").is_dir()


def test_the_page_on_training_detectors_runs(workplace, run_logn, monkeypatch):

    script, own_loss = blocks_of("training", "python")
    (workplace / "runs" / "glyphs").rename(workplace / "runs" / "before")
    run_python(script.replace("iterations=1000", "iterations=1").replace("processes=2", "processes=1"))
    run_python(
        script.partition("if __name__")[0] + own_loss.replace('"runs/smoothed"', '"runs/smoothed", iterations=1')
    )
    assert (workplace / "runs" / "smoothed" / "model.py").exists()
    commands, _ = blocks_of("training", "sh")
    first, second, _ = commands.splitlines()[:3]
    few = "logn data glyphs --classes 6 --train 16 --dev 1 --test 1 --size 64 --workers 1"
    run_logn(first, shorter={"logn data glyphs": few, "-o glyphs": "-o drawn"})
    short = {"train glyphs": "train drawn", "--processes 2": "--iterations 1", "runs/glyphs": "runs/drawn"}
    run_logn(second, shorter=short)
    (shown,) = blocks_of("training", "json")
    written = (workplace / "runs" / "before" / "log.jsonl").read_text().splitlines()[-1]
    assert json.loads(shown).keys() <= json.loads(written).keys()
    text = text_of("training")
    assert all(f"`{name}`" in text for name in DETECTORS)


def test_the_page_on_losses_runs_and_knows_every_loss(workplace, run_logn):
    (code,) = blocks_of("losses", "python")
    assert run_python(code)["scores"].shape == (8, 4)
    commands, _ = blocks_of("losses", "sh")  # the other is for LVIS
    run_logn("\n".join(f"{line} --iterations 1" for line in commands.replace(" --epochs 6", "").splitlines()))
    rows = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| F( \+ \d)? ", text_of("losses"), flags=re.M)
    assert tuple(name for name, _, _ in rows) == LOSS_NAMES
    counts = ClassCounts([50, 5, 1], num_images=60)
    for name, kind, more in rows:
        loss = logn_research.losses.make_loss(name, counts)
        assert (type(loss).__name__, loss.layout.columns) == (kind, 3 + int(more.removeprefix(" + ") or 0))
    section = text_of("losses").split("Options follow a colon")[1].split("##")[0]
    for spec in (spec for spec in re.findall(r"`([^`]+)`", section) if ":" in spec):
        parameters = inspect.signature(type(logn_research.losses.make_loss(spec, counts))).parameters
        for option, value in parse_loss(spec)[1].items():
            assert option == "background_count" or parameters[option].default == value, spec


def test_the_page_on_figures_runs(workplace, run_logn):
    (commands,) = blocks_of("figures", "sh")
    run_logn(commands.replace(" -o ", " --max-images 4 -o "))
    (code,) = blocks_of("figures", "python")
    assert np.isfinite(run_python(code)["statistics"].mean).all()
    assert Path("shift.svg").exists()
