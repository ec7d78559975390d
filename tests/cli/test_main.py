"""The command itself: help, version, and how errors reach the user."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from logn.cli import main
from logn.errors import InputError, MissingExtraError


def _verb(monkeypatch, function):
    """Put one verb, `boom`, into the table."""
    monkeypatch.setattr(main, "VERBS", {"Tests": (function,)})


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InputError("Expected `x` to be 1, but got 2."), "Expected `x` to be 1, but got 2."),
        (MissingExtraError("torch", extra="torch"), 'run pip install "logn[torch]"'),
        (ModuleNotFoundError("No module named 'onnx'", name="onnx"), 'run pip install "logn[onnx]"'),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 'run pip install "logn[torchvision]"'),
        (FileNotFoundError(2, "No such file or directory", "gone.npy"), "`gone.npy`"),
        (PermissionError(13, "Permission denied", "locked"), "`locked`"),
        (MemoryError(), "Out of memory"),
        (MemoryError("Unable to allocate 3 TiB"), "Out of memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "Out of memory"),
    ],
)
def test_errors_of_the_input_become_one_sentence_and_code_2(monkeypatch, capsys, error, sentence):
    def boom(json: bool = False) -> None:
        raise error

    _verb(monkeypatch, boom)
    assert main.execute(["boom"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert sentence in streams.err
    assert streams.err.count("\n") == 1
    assert main.execute(["boom", "--json"]) == 2
    streams = capsys.readouterr()
    assert sentence in json.loads(streams.out)["error"]
    assert streams.err == ""


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    def boom() -> None:
        raise ZeroDivisionError

    _verb(monkeypatch, boom)
    with pytest.raises(ZeroDivisionError):
        main.execute(["boom"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["corect"], "Did you mean 'correct'"),
        (["merge"], "Missing argument"),
        (["merge", "--nonsense"], "No such option: --nonsense"),
        (["correct", "m.onnx", "--imgs", "train"], "--images"),
        (
            ["correct", "m.onnx", "--max-images", "0"],
            "'--max-images': expected at least 1, but got 0. Try `logn correct",
        ),
        (["inspect", "s.safetensors", "--at", "5"], "'--at': expected at least 0 and at most 1, but got 5"),
        (["fit", "--strength", "many", "-o", "x.safetensors"], "Try `logn fit --help`."),
        (["compare", "store", "--bootstrap", "-1"], "'--bootstrap'"),
        (["collect", "a.npy", "--background", "middle", "-o", "s"], "middle"),
        (["apply", "a", "b", "c", "-o", "d"], "Try `logn apply --help`."),
    ],
)
def test_wrong_usage_is_one_sentence_and_code_2(refused, arguments, sentence):
    assert sentence in refused(*arguments)


@pytest.mark.parametrize("verb", [verb.__name__ for verbs in main.VERBS.values() for verb in verbs])
def test_every_verb_loads_and_has_help(capsys, verb):
    assert main.execute([verb, "--help"]) == 0
    assert "Usage: logn" in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    code = "from logn.cli.main import execute; execute(['--help']); import sys; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.rsplit("[", 1)[1]
    assert not any(f"'{name}'" in modules for name in ("torch", "onnx", "onnxruntime", "hotcoco", "PIL"))


def test_a_verb_of_the_research_package_says_how_to_install_it(monkeypatch, refused):
    monkeypatch.setattr(main, "entry_points", lambda **_: ())
    assert "belongs to LogN's research package: run pip install" in refused("train", "x")


@pytest.mark.parametrize("installed", [[], ["data", "train", "bench", "figure"]])
def test_help_has_a_line_for_each_verb_of_the_research_package_where_it_is_installed(monkeypatch, run, installed):
    monkeypatch.setenv("COLUMNS", "80")
    entries = [EntryPoint(name, f"logn_research.cli.{name}:{name}", "logn.verbs") for name in installed]
    monkeypatch.setattr(main, "entry_points", lambda **_: entries)
    lines = run("--help").out.splitlines()
    assert [name for name in main.RESEARCH if any(f"│ {name} " in line for line in lines)] == installed
