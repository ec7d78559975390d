"""Terminals that speak no Unicode, streams that are closed or full, and interrupts at odd moments."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logn.cli import main
from logn.cli.console import print_json


@pytest.fixture
def start(tmp_path):
    """Start `logn` as a process of its own; keywords as of Popen."""

    def call(*arguments, environment=(), **streams):
        command = [sys.executable, "-m", "logn", *map(str, arguments)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        return subprocess.Popen(command, cwd=tmp_path, env=os.environ | dict(environment), **streams)

    return call


@pytest.fixture
def named(run, logits, tmp_path):
    """Statistics of classes whose names are not ASCII."""
    (tmp_path / "names.txt").write_text("Löffel\n猫\n🥄\n", encoding="utf-8")
    path, names = tmp_path / "stats.safetensors", tmp_path / "names.txt"
    assert run("collect", tmp_path / "shards", "--background", "last", "--class-names", names, "-o", path).code == 0
    return path


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_every_terminal_gets_a_table_and_json(start, named, encoding):
    environment = {"PYTHONIOENCODING": f"{encoding}:strict"}
    process = start("inspect", named, environment=environment)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert "class " in out.decode(encoding)
    out, _ = start("inspect", named, "--json", environment=environment).communicate()
    assert json.loads(out.decode(encoding))["classes"] == ["Löffel", "猫", "🥄"]


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are any bytes on Linux only")
def test_a_file_name_that_is_no_text_is_printed_all_the_same(start, logits, tmp_path):
    name = os.fsdecode(b"out\xff.safetensors")
    environment = {"PYTHONIOENCODING": "utf-8:strict"}
    process = start("collect", "shards", "-o", name, environment=environment)
    assert process.communicate()[0].startswith(b"out\\udcff.safetensors: 300 rows")
    assert process.returncode == 0
    out, _ = start("collect", "shards", "-o", name, "--json", "--overwrite", environment=environment).communicate()
    assert json.loads(out.decode("utf-8"))["output"] == name


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_closed_streams_change_nothing(start, logits, tmp_path, closed):
    def close():
        for number in closed:
            os.close(number)

    inherited = {name: None for name, number in (("stdout", 1), ("stderr", 2)) if number in closed}
    process = start("collect", "shards", "-o", "stats.safetensors", preexec_fn=close, **inherited)
    process.communicate()
    assert process.returncode == 0
    assert (tmp_path / "stats.safetensors").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_stdout_is_told_on_stderr(start, named):
    with open("/dev/full", "wb") as full:
        process = start("inspect", named, "--json", stdout=full)
        _, err = process.communicate()
    assert process.returncode == 2
    assert err.decode() == "Error: A file cannot be read or written: no space left on device.\n"


def test_an_error_for_a_reader_that_has_gone_is_no_traceback(start):
    reading, writing = os.pipe()
    os.close(reading)
    process = start("inspect", "nowhere.safetensors", "--json", stdout=writing)
    os.close(writing)
    _, err = process.communicate()
    assert process.returncode == 2
    assert err.decode() == "Error: `nowhere.safetensors` does not exist.\n"


def test_json_is_read_again_whatever_the_encoding(capsys):
    print_json({"name": "\udcff猫"})
    assert json.loads(capsys.readouterr().out) == {"name": "\udcff猫"}


def test_an_interrupt_while_the_command_line_is_loaded_is_quiet(start, tmp_path):
    """The command line is replaced by a module that says when it is loaded, and takes its time."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types, importlib.abc, importlib.machinery\n"
        "class Slow(importlib.abc.MetaPathFinder, importlib.abc.Loader):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        return importlib.machinery.ModuleSpec(name, self) if name == 'logn.cli.main' else None\n"
        "    def exec_module(self, module):\n"
        "        print('loading', flush=True); sys.stdin.read()\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    restored = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = start("--help", environment={"PYTHONPATH": path}, stdin=subprocess.PIPE, **restored)
    assert process.stdout.readline() == b"loading\n"
    process.send_signal(signal.SIGINT)
    process.wait()  # before stdin is closed, which would let it go on
    assert process.communicate() == (b"", b"")
    assert process.returncode == -signal.SIGINT


def test_an_interrupt_that_comes_out_as_another_error_is_an_interrupt(monkeypatch, capsys):
    def interrupted(*_arguments, **_options):
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(main, "command_line", lambda: interrupted)
    assert main.execute([]) == 130
    assert capsys.readouterr().err == "Error: Interrupted.\n"


def test_without_arguments_there_is_the_help_and_nothing_behind_it(capsys):
    assert main.execute([]) == 2
    streams = capsys.readouterr()
    assert "Usage: logn" in streams.out + streams.err
    assert streams.err.strip() != "."
    assert not streams.err.endswith("\n.\n")


def test_a_second_interrupt_while_the_process_ends_is_quiet():
    code = (
        "import atexit, os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from logn.cli import main\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.argv[1:] = ['--version']\n"
        "main.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert done.stdout.startswith("logn ")
