"""The command itself: help, version, and how errors reach the user."""

import json
import subprocess
import sys
import types

import pytest

from logn.cli import main
from logn.errors import InputError, MissingExtraError


def _verb(monkeypatch, function):
    """Put one verb, `boom`, into the table."""
    module = types.ModuleType("logn.cli.verbs.boom")
    module.boom = function
    monkeypatch.setitem(sys.modules, "logn.cli.verbs.boom", module)
    monkeypatch.setattr(main, "VERBS", (main.Verb("boom", "boom:boom", "Fail.", "Tests"),))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InputError("Expected `x` to be 1, but got 2."), "Expected `x` to be 1, but got 2."),
        (MissingExtraError("torch", extra="torch"), 'run pip install "logn[torch]"'),
        (ModuleNotFoundError("No module named 'onnx'", name="onnx"), 'run pip install "logn[onnx]"'),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), 'run pip install "logn[torchvision]"'),
        (FileNotFoundError(2, "No such file or directory", "gone.npy"), "`gone.npy`"),
        (PermissionError(13, "Permission denied", "locked"), "`locked`"),
    ],
)
def test_errors_that_a_user_can_mend_become_one_sentence_and_code_2(monkeypatch, capsys, error, sentence):
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


def test_an_interrupt_gives_code_130(monkeypatch, capsys):
    def boom() -> None:
        raise KeyboardInterrupt

    _verb(monkeypatch, boom)
    assert main.execute(["boom"]) == 130
    assert "Interrupted" in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    def boom() -> None:
        raise ZeroDivisionError

    _verb(monkeypatch, boom)
    with pytest.raises(ZeroDivisionError):
        main.execute(["boom"])


@pytest.mark.parametrize("arguments", [["nonsense"], ["merge"], ["merge", "--nonsense"]])
def test_wrong_usage_is_one_line_and_code_2(capsys, arguments):
    assert main.execute(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_remark_on_usage_ends_as_a_sentence(capsys):
    assert main.execute(["fit", "--strength", "many", "-o", "x.safetensors"]) == 2
    error = capsys.readouterr().err
    assert "--strength" in error
    assert ". Try `logn fit --help`." in error


@pytest.mark.parametrize("verb", [verb.name for verb in main.VERBS])
def test_every_verb_loads_and_has_help(capsys, verb):
    assert main.execute([verb, "--help"]) == 0
    assert "Usage: logn" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["collect", "merge", "inspect", "fit", "apply"])
def test_help_shows_an_example_and_json(capsys, verb):
    assert main.execute([verb, "--help"]) == 0
    page = capsys.readouterr().out
    assert f"logn {verb}" in page.split("Usage:")[1].split("\n", 1)[1]
    assert "--json" in page


def test_help_lists_every_verb(capsys):
    assert main.execute(["--help"]) == 0
    page = capsys.readouterr().out
    assert all((f" {verb.name} " in page) is not verb.hidden for verb in main.VERBS)


def test_help_imports_nothing_heavy():
    code = "from logn.cli.main import execute; execute(['--help']); import sys; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.rsplit("[", 1)[1]
    assert not any(f"'{name}'" in modules for name in ("numpy", "torch", "matplotlib", "hotcoco"))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["collect", "run", "--data", "train.json"], "logn collect --help"),
        (["compare", "--task", "classification", "--nonsense"], "logn compare --help"),
        (["fit"], "logn fit --help"),
    ],
)
def test_the_hint_shows_the_options_of_what_was_called(refused, arguments, hint):
    assert refused(*arguments).endswith(f"Try `{hint}`.")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.npy", "--population", "proposals of model.onnx", "-o", "s"], "`nowhere.npy` to be a file"),
        (["nowhere.npy", "--layer=model.onnx", "-o", "s.onnx"], "`nowhere.npy` to be a file"),
        (["-o", "s", "--json", "model.onnx"], "`--images` with an ONNX model (`model.onnx`), but got none"),
        (["run", "-dtrain.json", "-o", "s"], "an ONNX file or a run of `logn train`, but there is none"),
        (["-o", "s", "--", "-dash.npy"], "`-dash.npy` to be a file"),
    ],
)
def test_only_an_input_says_what_is_collected_from(capsys, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert main.execute(["collect", *arguments]) == 2
    streams = capsys.readouterr()
    assert sentence in streams.out + streams.err


def test_options_of_classifiers_speak_for_themselves(refused):
    sentence = refused("compare", "-l", "nowhere.npy", "--labels", "nowhere.npy")
    assert sentence == "Expected `nowhere.npy` to be a file, but there is none."


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 3 TiB"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_a_lack_of_memory_is_one_sentence(error, monkeypatch, capsys):
    def full(*_, **__):
        raise error

    monkeypatch.setattr("logn.cli.main.app", full)
    assert main.execute(["inspect", "stats.safetensors"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("Error: There is not enough memory (")
    assert told.count("\n") == 1
