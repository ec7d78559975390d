"""Whatever Python a page shows, in a block or in a sentence, names what LogN has; scripts and targets exist too."""

import ast
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import logn

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The frameworks of these are not installed here, so what they call is looked up instead.
SCRIPTS = [ROOT / "examples" / name for name in ("detectron2_test.py", "engines.py", "mmdetection/test.py")]
# Made of these classes where their frameworks are.
STAND_INS = {
    "logn.deploy.mmdetection.LogNHook": "logn.deploy.mmdetection.CalibrateBeforeTest",
}
KEYS_IN_FILES = {"logn.affine", "logn.comparison", "logn.folded", "logn.predictions", "logn.statistics"}

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="the documentation is not beside the tests")


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks_of(text):
    """The fenced blocks of Python, and the calls and names of LogN between backticks, as text that parses."""
    yield from (textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", text, flags=re.M | re.S))
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    for span in re.findall(r"`([^`]+)`", prose):
        code = " ".join(span.replace("…", "...").split())
        if re.search(r"\blogn\.\w|^\w+\(.*\)$", code) and code not in KEYS_IN_FILES and parses(code):
            yield code


def parses(code):
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def look_up(path):
    """What `logn.x.y` is; a module is imported where need be."""
    found, so_far = logn, "logn"
    for name in STAND_INS.get(path, path).split(".")[1:]:
        so_far += f".{name}"
        try:
            found = getattr(found, name)
        except AttributeError:
            found = importlib.import_module(so_far)
    return found


def dotted(node):
    """`a.b.c` as text where a node is that, else None."""
    if isinstance(node, ast.Name):
        return node.id
    base = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return f"{base}.{node.attr}" if base else None


def check(code, known):
    """Look up every name of LogN in the code, and bind the arguments of every call of one."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "logn":
            for alias in node.names:
                known[alias.asname or alias.name] = look_up(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        path = dotted(node)
        if path and path.startswith("logn."):
            look_up(path)
        if isinstance(node, ast.Call):
            called = dotted(node.func) or ""
            target = look_up(called) if called.startswith("logn.") else known.get(called)
            if callable(target) and not any(isinstance(argument, ast.Starred) for argument in node.args):
                check_call(target, node.args, {keyword.arg: None for keyword in node.keywords if keyword.arg})


def check_call(target, arguments, keywords):
    bound = inspect.signature(target).bind_partial(*arguments, **keywords)
    if "Further arguments of `logn.logit_normalization`" in (target.__doc__ or ""):
        check_call(logn.logit_normalization, (), bound.arguments.get("options", {}))


def public_names():
    return {name: getattr(logn, name) for name in logn.__all__}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_names_and_arguments_on_a_page_exist(page):
    known = public_names()
    for code in blocks_of(page.read_text(encoding="utf-8")):
        check(code, known)


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_the_names_and_arguments_of_the_scripts_that_cannot_run_here_exist(script):
    check(script.read_text(encoding="utf-8"), {})


@pytest.mark.parametrize(
    "code",
    [
        "logn.callibrate(model)",
        "logn.methods.norcal([3, 2], gama=0.5)",
        "from logn.evaluate.store.predict import foresee",
        "logn.LogitLayer('a', wrong=1)",
        "record(1, 2, wrong=3)",
    ],
)
def test_what_does_not_exist_is_noticed(code):
    with pytest.raises((AttributeError, ImportError, TypeError)):
        check(code, public_names())


def test_code_is_found():
    found = [code for page in PAGES for code in blocks_of(page.read_text(encoding="utf-8"))]
    assert len(found) > 70
    assert list(blocks_of("say `logn.fold(\n  model, …)`, not `logn.affine`")) == ["logn.fold( model, ...)"]


def test_every_page_with_python_has_a_test_that_runs_it():
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    for page in PAGES:
        if "```python" in page.read_text(encoding="utf-8"):
            assert f'"{page.name}"' in tests, f"no test names {page.name}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_scripts_and_targets_on_a_page_exist(page):
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for path, given in re.findall(r"(?<![\w/])((?:benchmarks|docs|examples)/\w+\.py)((?: +[^`\s#]+)*)", text):
        source = (ROOT / path).read_text(encoding="utf-8")
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", given):
            assert f'"{option}"' in source, f"{path} has no {option}"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(encoding="utf-8"), flags=re.M)
    targets |= {f"test-{session}" for session in sessions}
    for named in re.findall(r"(?:^\$ |`)make ([a-z-]+(?: [a-z-]+)*)", text, flags=re.M):
        assert set(named.split()) <= targets, named
