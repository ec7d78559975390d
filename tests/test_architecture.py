"""The promises about the shape of the package: folder order, light imports, small modules, public names."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import logn

PACKAGE = Path(logn.__file__).parent
FOLDERS = [
    "logits",
    "labels",
    "classes",
    "statistics",
    "calibrators",
    "deploy",
    "evaluate",
    "callbacks",
    "report",
    "demo",
    "cli",
]
NUMPY_ONLY = ["logits", "labels", "classes", "statistics", "calibrators"]
MODULES = sorted(PACKAGE.rglob("*.py"))


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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_later_folders_import_earlier_ones_never_back(path):
    parts = path.relative_to(PACKAGE).parts
    if len(parts) == 1:
        return
    own = FOLDERS.index(parts[0])
    for name in imported_names(ast.parse(path.read_text())):
        pieces = name.split(".")
        if pieces[0] == "logn" and len(pieces) > 1 and pieces[1] in FOLDERS:
            assert FOLDERS.index(pieces[1]) <= own, f"{path.name} imports {name}"


#: Inside `evaluate` the data flows in this order: each folder imports those before it, never back.
EVALUATE = ["models", "store", "decode", "detection", "classification", "thresholds", "comparison"]


@pytest.mark.parametrize("folder", EVALUATE)
def test_the_folders_of_evaluate_import_earlier_ones_never_back(folder):
    """Models and stores know each other: a store is filled by a model, and statistics are read from a store."""
    allowed = EVALUATE[: max(EVALUATE.index(folder), 1) + 1]
    for path in (PACKAGE / "evaluate" / folder).rglob("*.py"):
        for name in imported_names(ast.parse(path.read_text())):
            pieces = name.split(".")
            if pieces[:2] == ["logn", "evaluate"] and len(pieces) > 2 and pieces[2] in EVALUATE:
                assert pieces[2] in allowed, f"{path.name} imports {name}"


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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_below_the_command_line_calls_it(path):
    parts = path.relative_to(PACKAGE).parts
    if parts[0] != "cli" and parts != ("__main__.py",):
        assert not list(uses_of_the_command_line(ast.parse(path.read_text())))


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


@pytest.mark.parametrize("folder", NUMPY_ONLY)
def test_the_first_folders_need_numpy_and_safetensors_only(folder):
    allowed = {*sys.stdlib_module_names, "numpy", "safetensors", "logn"}
    for path in (PACKAGE / folder).rglob("*.py"):
        assert set(top_level_packages(ast.parse(path.read_text()))) <= allowed, path.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_stay_small(path):
    assert len(path.read_text().splitlines()) <= 600


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
        'MissingExtraError: Expected the package `torch` to be installed: run pip install "logn[torch]", '
        'or in a clone of LogN pip install ".[torch]".' in result.stderr
    )


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_warning_is_of_one_class(path):
    """So that one filter, on LogNWarning, reaches them all."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
            given = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "category")]
            assert [ast.unparse(category) for category in given] == ["LogNWarning"], f"line {node.lineno}"


def test_the_product_never_imports_research():
    for path in MODULES:
        assert "logn_research" not in path.read_text(encoding="utf-8"), path
