"""What is printed fits the terminal: tables at 80, 100 and 140 columns, colours, progress, completion."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from logn.base.text_table import TextStyle, cell_width, write_table
from logn.cli import main
from logn.cli.console import progress
from logn.measure.tables import Table

NAMES = ("aeroplane", "a class with quite a long name of its own", "猫")
METHODS = "logn,recommended,p2p,logn:margin=0,use_std=false,loga:tau=1"
ANSI = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture(scope="module")
def files(make_files, tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("terminal"), NAMES)


DETECTOR = "compare {f}/store -d {f}/gt.json -s {f}/stats.safetensors --counts {f}/counts.json --bootstrap 20"
ROWS_OF = "compare {f}/test.npy --labels {f}/labels.npy --train-logits {f}/test.npy --counts {f}/counts.json"
COMMANDS = {
    "compare": f"{DETECTOR} --methods {{m}}",
    "compare, verbose": f"{DETECTOR} --methods {{m}} --verbose",
    "compare, alone": "compare {f}/store -d {f}/gt.json",
    "compare, a classifier": f"{ROWS_OF} --methods logn,logn:margin=0,use_std=false,loga:tau=1 --bootstrap 20",
    "compare, a classifier, verbose": f"{ROWS_OF} --methods logn,loga:tau=1 --bootstrap 20 --verbose",
    "thresholds": "thresholds {f}/store -d {f}/gt.json --bootstrap 20",
    "inspect": "inspect {f}/stats.safetensors --counts {f}/counts.json",
}
# A command to paste is not broken: the terminal wraps it, and the shell gets it whole.
TO_PASTE = "To correct it: logn "


def printed(run, files, name, methods=METHODS):
    result = run(*(word.format(f=files, m=methods) for word in COMMANDS[name].split()))
    assert result.code == 0, result.err
    return result


@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")
@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_the_terminal(run, files, monkeypatch, name, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [line for line in printed(run, files, name).out.splitlines() if not line.startswith(TO_PASTE)]
    assert [line for line in lines if cell_width(line) > columns] == []


@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")
@pytest.mark.parametrize("name", ["compare, verbose", "compare, a classifier, verbose", "thresholds", "inspect"])
def test_a_narrow_table_has_every_number_of_a_wide_one(run, files, monkeypatch, name):
    numbers = re.compile(r"(?<![\w.])[+-]?\d+\.\d+")
    monkeypatch.setenv("COLUMNS", "50" if name == "inspect" else "80")
    narrow = printed(run, files, name).out
    monkeypatch.setenv("COLUMNS", "400")
    wide = printed(run, files, name).out
    assert sorted(numbers.findall(narrow)) == sorted(numbers.findall(wide))


@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")
def test_tables_are_whole_and_commands_on_one_line_at_80_columns(run, files, make_files, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    summary = printed(run, files, "thresholds").out.partition("all classes ->")[2]
    assert sum(line.startswith("─") for line in summary.splitlines()) == 2  # the classes, and the metrics
    inspected = printed(run, files, "inspect").out
    assert NAMES[1] in inspected
    folder = tmp_path / "a folder with a name that is longer than many lines"
    folder.mkdir()
    statistics = make_files(folder, NAMES) / "stats.safetensors"
    (line,) = re.findall(r"^To correct it: logn (.*)$", run("inspect", statistics).out, flags=re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    assert run(*shlex.split(line)).code == 0


ROWS = (("none", "3.9"), ("better", "4.9\n+1.0 [0.5, 1.5]"), ("worse", "2.9\n-1.0 [-1.5, -0.5]"), ("same", "3.9\n0.0"))
TONES = (("", ""), ("", "up"), ("", "down"), ("", "flat"))


def test_gains_are_green_losses_orange_and_what_is_unclear_is_neither():
    text = Table("", ("method", "AP"), ROWS, tones=TONES).to_text(TextStyle(colours=True))
    assert "\x1b[32m+1.0 [0.5, 1.5]\x1b[0m" in text
    assert "\x1b[33m-1.0 [-1.5, -0.5]\x1b[0m" in text
    assert text.count("\x1b[32m") == text.count("\x1b[33m") == 1
    plain = Table("", ("method", "AP"), ROWS, tones=TONES).to_text(TextStyle(colours=False))
    assert ANSI.sub("", text) == plain


@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")
@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_colours_are_for_terminals_and_not_where_nobody_wants_them(run, files, monkeypatch, environment, coloured):
    from logn.cli.console import text_style

    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert text_style().colours is coloured
    assert bool(ANSI.search(printed(run, files, "compare, a classifier, verbose").out)) is coloured


def test_names_and_titles_are_folded_not_cut():
    name = "logn:margin=0,use_std=false,relative_std=true"
    text = write_table(("method", "a title of several words"), [(name, "1.0")], TextStyle(width=40))
    assert max(map(len, text.splitlines())) <= 40
    below = text.split("─\n")[1].splitlines()
    assert "".join(line.replace("1.0", "").strip() for line in below) == name
    assert [word for word in ["a", "title", "of", "several", "words"] if word not in text] == []


@pytest.mark.parametrize(("total", "amount"), [(10, 3), (None, 3), (10, 25)])
def test_a_bar_ends_at_100_percent(capsys, total, amount):
    with progress("Reading", total, shown=True) as advance:
        advance(amount)
    assert re.sub(r"\s+", " ", ANSI.sub("", capsys.readouterr().err)).rstrip().count("100%") >= 1


def test_a_bar_that_was_stopped_does_not_say_that_it_is_done(capsys):
    def stop():
        with progress("Reading", 10, shown=True) as advance:
            advance(3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stop()
    assert "100%" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("logn f", ["fit", "fold", "figure"]),
        ("logn fit --method no", ["none", "norcal"]),
        ("logn compare store --methods loga,nor", ["loga,norcal"]),
        ("logn correct model.onnx --like yolo", ["yolov5", "yolox"]),
        ("logn correct --im", ["--images"]),
    ],
)
def test_the_shell_completes_verbs_options_and_methods(monkeypatch, capsys, typed, offered):
    monkeypatch.setenv("_LOGN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    with pytest.raises(SystemExit) as left:
        main.command_line()(args=[], prog_name="logn", standalone_mode=False)
    assert left.value.code == 0
    assert capsys.readouterr().out.split() == offered


CORRECT = (
    "correct {f}/yolox.onnx --like yolox --images {f}/images --class-names {f}/names.txt --thresholds {f}/wanted.json"
)


@pytest.fixture(scope="module")
def detector(files, save_yolox, draw_images):
    pytest.importorskip("onnxruntime")
    save_yolox(files / "yolox.onnx")
    draw_images(files / "images", 3, (32, 32))
    (files / "names.txt").write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    (files / "wanted.json").write_text('{"aeroplane": 0.5}')


@pytest.mark.parametrize("name", [*COMMANDS, "correct"])
def test_in_a_terminal_headers_are_bold_and_no_code_is_shown(files, name, request):
    """In a pseudo-terminal, as a user runs it: our own codes reach the terminal, and none is made visible.

    Every verb that prints a table is here; the table of `logn demo` is plain text of at most 62 columns.
    """
    pty = pytest.importorskip("pty", reason="there are pseudo-terminals on POSIX only")
    if name == "correct":
        request.getfixturevalue("detector")
    ours, theirs = pty.openpty()
    unset = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS")
    kept = {key: value for key, value in os.environ.items() if key not in unset}
    words = [word.format(f=files, m=METHODS) for word in COMMANDS.get(name, CORRECT).split()]
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "logn", *words],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**kept, "TERM": "xterm-256color", "COLUMNS": "80"},
    ) as process:
        os.close(theirs)
        written = b""
        # At the end Linux raises OSError, and other systems give nothing.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 4096):
                written += part
        errors = process.stderr.read().decode()
    os.close(ours)
    assert process.returncode == 0, errors
    shown = written.decode()
    assert "\x1b[1m" in shown
    assert "␛" not in shown
    lines = ANSI.sub("", shown).replace("\r", "").splitlines()
    assert [line for line in lines if cell_width(line) > 80 and not line.startswith(TO_PASTE)] == []


# Clears the screen, sets the title of the window (in both ways to write it), colours, and turns the text around.
HOSTILE = ("cup\x1b[2J\x1b]0;title\x07", "\x9b2Jplate\x7f\r", "\x1b[32m\u202efork")
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(scope="module")
def hostile(make_files, tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("hostile"), HOSTILE)


@pytest.mark.filterwarnings("ignore::logn.errors.LogNWarning")
@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_names_from_files_do_not_steer_the_terminal(run, hostile, monkeypatch, name, colours):
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
    result = printed(run, hostile, name, "logn")
    shown = ANSI.sub("", result.out + result.err)
    assert STEERING.findall(shown) == []
    if name in ("thresholds", "inspect"):  # these name classes
        assert "\x1b[32m" not in result.out
        assert "cup␛[2J␛]0;title" in shown


def test_names_from_files_do_not_steer_the_terminal_in_json_and_errors(run, hostile):
    printed = run("inspect", hostile / "stats.safetensors", "--json")
    assert STEERING.findall(printed.out) == []
    assert [*printed.json["classes"]][:3] == [*HOSTILE]
    wrong = run("inspect", "no\x1b[2Jfile\x9b")
    assert wrong.code == 2
    assert STEERING.findall(wrong.err) == []


def test_only_one_function_prints():
    folder = Path(main.__file__).parent
    printing = re.compile(r"\btyper\.(echo|secho)\(|(?<![\w.])print\(|\.write\(")
    files = [path for path in folder.rglob("*.py") if path.name not in ("console.py",)]
    assert [path.name for path in files if printing.search(re.sub(r">>>.*|\.\.\. .*", "", path.read_text()))] == []
