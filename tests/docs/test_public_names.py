"""Pages, examples and notebooks use public names of LogN only."""

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("logn", "logn.callbacks", "logn.methods", "logn.ray", "logn.sklearn", "logn.thresholds")
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "research" / "README.md"]
PAGES += (ROOT / "research" / "docs").rglob("*.md")
SOURCES = sorted([*PAGES, *(ROOT / "examples").rglob("*.py"), *(ROOT / "examples").rglob("*.ipynb")])
FILE_FORMATS = tuple(
    f"logn.{name}" for name in ("affine", "classifier", "comparison", "folded", "predictions", "statistics")
)
PATH = re.compile(r"(?<![\w./-])logn(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"^\s*from (logn(?:\.[\w.]+)?) import (\([^)]*\)|.*)", flags=re.M)


def text_of(path):
    """The text of a page or a script, and of all cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def public_names(module):
    """The names that a public module lists or, where it has no list, those that it or its submodules define."""
    value = importlib.import_module(module)
    if hasattr(value, "__all__"):
        return value.__all__
    defined = [name for name, entry in vars(value).items() if getattr(entry, "__module__", module).startswith(module)]
    return [name for name in defined if not name.startswith("_") and not isinstance(vars(value)[name], ModuleType)]


def is_public(path):
    """Whether `logn.x.y` is a public module, a name of one, or what belongs to such a name."""
    parts = path.split(".")
    for depth in (2, 1):
        module = ".".join(parts[:depth])
        if module in MODULES:
            return len(parts) <= depth or parts[depth] in public_names(module)
    return False


def used_paths(text):
    """Every `logn.x.y` of a text, and every name that it imports from LogN as such a path."""
    yield from (path for path in PATH.findall(text) if path not in FILE_FORMATS)
    for module, names in IMPORT.findall(text):
        for name in re.findall(r"(\w+)(?: as \w+)?", re.sub(r"#.*", "", names)):
            yield f"{module}.{name}"


def private_paths(text):
    return sorted({path for path in used_paths(text) if not is_public(path)})


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_and_examples_use_public_names_only(path):
    assert private_paths(text_of(path)) == []


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("import logn\nfrom logn.methods import fit, norcal as n", []),
        ("`logn.ClassMoments.from_bytes(data)`, logn.ray.collect(images) and research/logn_research.x", []),
        ("the format `logn.statistics`, schema 3; the folder src/logn.txt", []),
        ("from logn import (\n    CompareSettings,  # what is measured\n    compare,\n)", []),
        ("from logn.data.images import read_rgb", ["logn.data.images", "logn.data.images.read_rgb"]),
        ("    from logn import statistics", ["logn.statistics"]),
        ("call `logn.measure.compare`", ["logn.measure.compare"]),
        ("import logn.models.open as opening", ["logn.models.open"]),
        ("logn.methods.catalog.fit", ["logn.methods.catalog.fit"]),
        ("from logn.ray import read_rgb", ["logn.ray.read_rgb"]),
        ("logn.callbacks.mmdetection.LogNHook", ["logn.callbacks.mmdetection.LogNHook"]),
    ],
)
def test_private_names_are_noticed(text, private):
    assert private_paths(text) == private
