"""The promises about the shape of the package: folder order, light imports, small modules, public names."""

import ast
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import logn
import logn.methods

PACKAGE = Path(logn.__file__).parent
FOLDERS = [
    "base",
    "data",
    "statistics",
    "methods",
    "models",
    "predictions",
    "matching",
    "thresholds",
    "correction",
    "measure",
    "callbacks",
    "report",
    "demo",
    "cli",
]
NUMPY_ONLY = ["base", "data", "statistics", "methods"]
SOURCES = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {path: ast.parse(source) for path, source in SOURCES.items()}


def imported_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top_level_packages(tree):
    """What importing the module imports: statements at its top, not those inside functions or for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def imports_from_later_folders(prefix, allowed_from):
    """Imports of a module in one folder of `prefix` from a folder that its own may not import, one text each."""
    folders = list(allowed_from)
    for path, tree in TREES.items():
        parts = ("logn", *path.parts)
        if parts[: len(prefix)] != prefix or parts[len(prefix)] not in folders:
            continue
        for name in imported_names(tree):
            pieces = tuple(name.split("."))
            folder = pieces[len(prefix)] if len(pieces) > len(prefix) else None
            if pieces[: len(prefix)] == prefix and folder in folders and folder not in allowed_from[parts[len(prefix)]]:
                yield f"{path} imports {name}"


def test_later_folders_import_earlier_ones_never_back():
    assert {path.parts[0] for path in SOURCES if len(path.parts) > 1} == set(FOLDERS)
    allowed_from = {folder: FOLDERS[: number + 1] for number, folder in enumerate(FOLDERS)}
    assert not list(imports_from_later_folders(("logn",), allowed_from))


#: The folders inside `measure`; the modules beside them compare methods, on a detector or on a classifier.
MEASURE = ["detection", "classification"]


def test_detection_and_classification_know_nothing_of_each_other_or_of_comparisons():
    assert {path.parts[1] for path in SOURCES if path.parts[0] == "measure" and len(path.parts) > 2} == set(MEASURE)
    inside = {path: tree for path, tree in TREES.items() if path.parts[0] == "measure" and len(path.parts) > 2}
    names = [(path.parts[1], name) for path, tree in inside.items() for name in imported_names(tree)]
    assert not [name for folder, name in names if f"{name}.".startswith("logn.measure.") and folder not in name]


def test_contributing_draws_the_folders_in_this_order():
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert re.findall(r"^ {6}(\w+)/ ", text, flags=re.M) == FOLDERS
    drawn = text.partition(" measure/ ")[2].partition(" callbacks/ ")[0]
    assert re.findall(r"^ {8}(\w+)/ ", drawn, flags=re.M) == MEASURE


#: What starts other programs, by the names under which it is imported or called.
STARTERS = {"subprocess", "runpy", "pty"}
STARTING_CALLS = re.compile(r"\bos\.(system|popen|exec\w+|spawn\w+|posix_spawn\w*)$|create_subprocess_\w+$")
COMMAND_LINE = re.compile(r"^logn\.(cli|__main__)\b|-m\s+logn\b")


def uses_of_the_command_line(tree):
    """Imports of the command line, and texts that start it as another program; what docstrings tell is no use."""
    names = list(imported_names(tree))
    yield from (name for name in names if name == "typer" or name.startswith(("typer.", "logn.cli", "logn.__main__")))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    texts = [node.value for node in nodes if isinstance(node.value, str)]
    yield from (text for text in texts if COMMAND_LINE.search(text))
    called = (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
    if STARTERS & {name.split(".")[0] for name in names} or any(map(STARTING_CALLS.search, called)):
        yield from (text for text in texts if text.split()[:1] == ["logn"])


def test_nothing_below_the_command_line_calls_it():
    below = {path: tree for path, tree in TREES.items() if path.parts[0] not in ("cli", "__main__.py")}
    assert not [f"{path} uses {use!r}" for path, tree in below.items() for use in uses_of_the_command_line(tree)]


def test_every_option_that_a_message_names_exists():
    cli = " ".join(source for path, source in SOURCES.items() if path.parts[0] == "cli")
    options = set(re.findall(r'"(--[a-z-]+)"', cli))
    named = {(path, option) for path, source in SOURCES.items() for option in re.findall(r"`(--[a-z-]+)", source)}
    assert not [f"{path} names {option}" for path, option in named if option not in options]


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ('command = [sys.executable, "-m", "logn.cli.main", "train", "--json"]', ["logn.cli.main"]),
        ('import subprocess\nsubprocess.run([sys.executable, "-m", "logn", "train"])', ["logn"]),
        ('import subprocess as s\ns.run(["logn", "train"], check=True)', ["logn"]),
        ('import os\nos.system(f"logn train --data {data}")', ["logn train --data "]),
        ('start("python -m logn predict")', ["python -m logn predict"]),
        ("def late():\n    from logn.cli.main import execute", ["logn.cli.main", "logn.cli.main.execute"]),
        ("import typer", ["typer"]),
        ('METHODS = ("logn", "norcal")', []),
        ('import subprocess\nsubprocess.run(["git", "describe"])', []),
        ('"""As `python -m logn train` does."""', []),
    ],
)
def test_uses_of_the_command_line_are_seen(code, used):
    assert list(uses_of_the_command_line(ast.parse(code))) == used


def test_the_first_folders_need_numpy_safetensors_and_msgspec_only():
    allowed = {*sys.stdlib_module_names, "numpy", "safetensors", "msgspec", "logn"}
    core = {path: tree for path, tree in TREES.items() if path.parts[0] in NUMPY_ONLY}
    imports = [(path, package) for path, tree in core.items() for package in top_level_packages(tree)]
    assert not [f"{path} imports {package}" for path, package in imports if package not in allowed]


def test_modules_stay_small():
    lengths = {path: len(source.splitlines()) for path, source in SOURCES.items()}
    assert not [f"{path} has {length} lines, over 600" for path, length in lengths.items() if length > 600]


def test_importing_the_package_is_light():
    code = "import sys, logn; print([name for name in sys.modules if '.' not in name])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("torch", "torchvision", "matplotlib", "typer", "rich", "hotcoco", "onnx", "PIL", "jinja2"):
        assert f"'{heavy}'" not in loaded


def test_every_public_name_can_be_imported():
    for name in logn.__all__:
        assert getattr(logn, name) is not None
    assert set(logn.__all__) <= set(dir(logn))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'logit_normalisation'"):
        _ = logn.logit_normalisation


def test_without_torch_the_error_names_the_extra():
    code = "import sys; sys.modules['torch'] = None; import logn; logn.fold"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        'MissingExtraError: The package `torch` is not installed: run pip install "logn[torch]", or in a clone of LogN '
        'pip install ".[torch]".' in result.stderr
    )


def test_every_warning_is_of_one_class():
    """So that one filter, on LogNWarning, reaches them all, and each names the user's line: by `errors.warn`."""
    calls = {
        (str(path), ast.unparse(node.func))
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and re.fullmatch(r"warnings\.warn\w*", ast.unparse(node.func))
    }
    assert calls == {("errors.py", "warnings.warn")}
    assert not [
        str(path)
        for path, source in SOURCES.items()
        if re.search(r"from warnings import|stacklevel", source)
        if str(path) != "errors.py"
    ]


@pytest.mark.parametrize("function", [logn.recommend, partial(logn.methods.fit, "recommended")])
def test_a_warning_names_the_line_of_the_user(function):
    moments = logn.ClassMoments(2)
    moments.update(np.array([[3.0, -2.0], [4.0, -1.0]]))
    with pytest.warns(logn.LogNWarning, match="Softmax or sigmoid") as caught:
        function(moments)
    assert [warning.filename for warning in caught] == [__file__]


def test_the_product_never_imports_research():
    assert not [str(path) for path, source in SOURCES.items() if "logn_research" in source]
