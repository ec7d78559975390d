"""What tests of a page do with it: read its blocks, and paste its commands into a shell."""

import os
import re
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


@pytest.fixture
def assert_options_exist(capsys):
    """Check that the help of each command knows its options; the commands themselves may need a trained run."""
    import shlex

    from logn.cli.main import execute

    def check(lines):
        for line in lines:
            words = shlex.split(line, comments=True)
            assert execute([*words, "--help"]) == 0
            shown = capsys.readouterr().out
            assert all(re.search(rf"(?<!\S){word}(?!\S)", shown) for word in words if word.startswith("-")), line

    return check
