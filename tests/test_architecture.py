"""The promises about the shape of the package: folder order, light imports, small modules, public names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import logn

PACKAGE = Path(logn.__file__).parent
FOLDERS = ["logits", "statistics", "calibrators", "deploy", "datasets", "training", "evaluate", "report"]
FOLDERS += ["experiments", "cli"]
NUMPY_ONLY = ["logits", "statistics", "calibrators"]
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


@pytest.mark.parametrize("folder", NUMPY_ONLY)
def test_the_first_folders_need_numpy_and_safetensors_only(folder):
    allowed = {*sys.stdlib_module_names, "numpy", "safetensors", "logn"}
    for path in (PACKAGE / folder).rglob("*.py"):
        assert set(top_level_packages(ast.parse(path.read_text()))) <= allowed, path.name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_stay_small(path):
    assert len(path.read_text().splitlines()) <= 330


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
        'MissingExtraError: Expected the package `torch` to be installed: run pip install "logn[torch]".'
        in result.stderr
    )
