"""What tests of a page do with it: read its blocks, and paste its commands into a shell and its lines into Python."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def blocks(request):
    """The blocks of a language on the page of the module, which its PAGE names."""

    def of(language):
        text = request.module.PAGE.read_text(encoding="utf-8")
        return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)

    return of


@pytest.fixture
def shell():
    """Run commands in a folder up to the first that fails, with the `logn` of these tests; gives what they print."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(commands, folder):
        done = subprocess.run(
            ["bash", "-ec", commands],
            cwd=folder,
            env={**os.environ, "PATH": path},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    return run


def shortened(text, shorter):
    """The text with less of what would take long here, all of which it must say; nothing else is changed."""
    for long, short in (shorter or {}).items():
        assert long in text, f"`{long}` is not in\n{text}"
        text = text.replace(long, short)
    return text


@pytest.fixture
def run_python(request):
    """Run a block of Python with the names that it presumes; gives the names that there are then."""

    def run(code, names=None, *, shorter=None):
        names = {} if names is None else names
        exec(compile(shortened(code, shorter), request.module.PAGE.name, "exec"), names)  # noqa: S102 - our own page
        return names

    return run


@pytest.fixture
def run_logn(capsys):
    """Run a block of `logn …` in this process, which imports torch once for all of them; gives what they print."""
    from logn.cli.main import execute

    def run(block, *, shorter=None):
        lines = shortened(block, shorter).replace("\\\n", " ").splitlines()
        calls = [words for words in (shlex.split(line.removeprefix("$ "), comments=True) for line in lines) if words]
        assert calls
        for program, *words in calls:
            assert program == "logn"
            assert execute(words) == 0, (words, capsys.readouterr().err)
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Read only: a few glyph scenes in `glyphs`, and in `runs/glyphs` a detector that saw them once or twice."""
    for package in ("torchvision", "PIL", "matplotlib"):
        pytest.importorskip(package)
    from logn_research.datasets.glyphs.scenes import GlyphSettings, generate_glyph_scenes
    from logn_research.training.recipes import DetectorTrainingConfig
    from logn_research.training.train import train_detector

    folder = tmp_path_factory.mktemp("trained")
    settings = GlyphSettings(classes=6, train=24, dev=1, test=8, size=64)
    glyphs = generate_glyph_scenes(folder / "glyphs", settings)
    train_detector(DetectorTrainingConfig(glyphs, folder / "runs" / "glyphs", iterations=2), progress=False)
    return folder


@pytest.fixture
def workplace(trained, tmp_path, monkeypatch):
    """A folder with a copy of what `trained` holds, in which the test is run."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def assert_options_exist(capsys):
    """Check that the help of each command knows its options; the commands themselves may need a trained run."""
    from logn.cli.main import execute

    def check(lines):
        for line in lines:
            words = shlex.split(line, comments=True)
            assert execute([*words, "--help"]) == 0
            shown = capsys.readouterr().out
            assert all(re.search(rf"(?<![\w-]){word}(?![\w-])", shown) for word in words if word.startswith("-")), line

    return check
