"""The page for contributors shows the tree as it is, and the files and names that it sends a reader to exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import logn

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
ROOT, PACKAGE = PAGE.parent, Path(logn.__file__).parent
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
# What a contributor is to write, and words of Python that are no names of ours.
TO_WRITE = re.compile(r"yours|^None$")


def section(title):
    return TEXT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def folders_of_tree(tree):
    """Folders of the drawn tree, `(path, what it holds)`, in its order; two spaces more are one folder deeper."""
    above = []
    for line in re.findall(r"^ {4}( *[\w/]+/.*)$", tree, flags=re.M):
        name, _, holds = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        above[depth:] = [name.rstrip("/")]
        if depth:
            yield "/".join(above[1:]), holds.strip()


def order_of_folders():
    """The order that the test of the architecture holds."""
    tree = ast.parse((ROOT / "tests" / "test_architecture.py").read_text(encoding="utf-8"))
    parts = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AugAssign)]
    lists = [ast.literal_eval(value) for value in parts if isinstance(value, ast.List)]
    return lists[0] + lists[1]


@cache
def names_in(path):
    """What a module defines: functions, classes, constants, and members of classes as `Class.member`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        found |= set(names_of(node))
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for member in node.body for name in names_of(member)}
    return found


def names_of(node):
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    yield from (target.id for target in targets if isinstance(target, ast.Name))


@cache
def all_names():
    """All that the package and its tests define; members of classes with and without the name of the class."""
    paths = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    found = set().union(*map(names_in, paths))
    return found | {name.rpartition(".")[2] for name in found}


def spans(text):
    """What stands between backticks: the paths, and the names."""
    found = re.findall(r"`([^`\n]+)`", text)
    paths = [span for span in found if re.fullmatch(r"[\w./-]+(\.(py|md|jinja)|/)", span)]
    names = [span.partition("(")[0] for span in found if re.fullmatch(r"[A-Za-z_][\w.]*(\(.*\))?", span)]
    return (
        [path for path in paths if not TO_WRITE.search(path)],
        [name for name in names if name not in paths and not TO_WRITE.search(name)],
    )


def exists(path):
    outside = path.startswith(("benchmarks/", "docs/", "examples/", "src/", "tests/"))
    return ((ROOT if outside else PACKAGE) / path).exists()


def rows_of_places():
    return re.findall(r"^\| ([^|]+) \| `([^`]+)` \| (?:`([^`]+)`)? ?\|$", section("Where is …"), flags=re.M)


def test_the_tree_is_the_real_one():
    drawn = list(folders_of_tree(section("The tree")))
    real = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.is_dir()}
    assert sorted(path for path, _ in drawn) == sorted(path for path in real if "__pycache__" not in path)
    assert all(holds for _, holds in drawn)
    assert [path for path, _ in drawn if "/" not in path] == order_of_folders()


def test_the_data_flow_is_the_order_that_is_held():
    (flow,) = re.findall(r"^ {4}(.+→.+)$", section("The tree"), flags=re.M)
    assert flow.split(" → ") == order_of_folders()


def test_the_modules_beside_the_folders_are_all_named():
    (sentence,) = re.findall(r"^What all folders use.*?\n\n", section("The tree"), flags=re.M | re.S)
    named = set(re.findall(r"`(\w+\.py)`", sentence))
    assert named == {path.name for path in PACKAGE.glob("*.py")} - {"__main__.py"}


@pytest.mark.parametrize("walk", ["a method", "a framework", "a metric", "a loss"])
def test_the_files_and_names_of_a_walk_exist(walk):
    paths, names = spans(section(f"Add {walk}"))
    assert len(paths) > 5
    assert len(names) > 3
    assert [path for path in paths if not exists(path)] == []
    assert [name for name in names if name not in all_names()] == []
    for word in ("file", "line", "tests", "page"):
        assert re.search(rf"^\d\. \*The {word}s?\.\*", section(f"Add {walk}"), flags=re.M), word


@pytest.mark.parametrize(("idea", "path", "name"), rows_of_places(), ids=lambda value: value.replace(" ", "_"))
def test_an_idea_is_in_the_file_that_the_table_names(idea, path, name):
    assert (PACKAGE / path).is_file()
    assert not name or name in names_in(PACKAGE / path)


def test_the_table_is_read():
    assert len(rows_of_places()) >= 24
    assert len(rows_of_places()) == section("Where is …").count("\n| ") - 1  # all but the header


def test_what_is_missing_would_be_noticed():
    assert list(folders_of_tree("    src/logn/\n      a/   x\n        b/   y\n      c/  z\n")) == [
        ("a", "x"),
        ("a/b", "y"),
        ("c", "z"),
    ]
    assert not exists("calibrators/utils.py")
    assert "no_such_name" not in all_names()
    assert {"ClassMoments.merge", "merge", "_LOSSES", "VERBS"} <= all_names()
    assert spans("`docs/method.md`, `f(x)`, `A.b`, `logn fit`, `calibrators/yours.py`") == (
        ["docs/method.md"],
        ["f", "A.b"],
    )
