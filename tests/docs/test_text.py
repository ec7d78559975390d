"""What pages, help texts and messages say is so: names, options, links and quotes exist, and odd phrases do not."""

import ast
import contextlib
import importlib
import inspect
import re
import shlex
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from tests.docs.test_public_names import public_names

import logn
from logn.cli.main import RESEARCH, VERBS, command_line, load_verb

ROOT = Path(__file__).parents[2]
DOCS, SOURCE = ROOT / "docs", ROOT / "src" / "logn"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
# The frameworks of these are not installed here, so what they call is looked up instead.
SCRIPTS = [ROOT / "examples" / name for name in ("engines.py", "mmdetection/test.py")]
KEYS_IN_FILES = {
    "logn.affine",
    "logn.classifier",
    "logn.comparison",
    "logn.folded",
    "logn.predictions",
    "logn.statistics",
}
# At the start of a line of a block, or between backticks.
NAMES = "|".join([*(verb.__name__ for verbs in VERBS.values() for verb in verbs), *RESEARCH])
COMMAND = re.compile(rf"(?:^\s*(?:\$ )?|`)(logn (?:{NAMES})(?![\w-])[^`\n]*(?:\\\n[^`\n]*)*)", flags=re.M)
BANNED = (
    r"reckoned|mend(?:s|ed|ing)?|its kin|that there is not|that there is none of|nothing to speak of|is said in|"
    "nobody knows|of equal ones|a word for|with a word"
)
PHRASES = re.compile(rf"\b(?:{BANNED})\b".replace(" ", r"\s+"), flags=re.I)


def text_of(path):
    return path.read_text(encoding="utf-8")


def name_of(path):
    return str(path.relative_to(ROOT))


def code_of(text):
    """The fenced blocks of Python, and the calls and names of LogN between backticks, as text that parses."""
    yield from (textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", text, flags=re.M | re.S))
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    for span in re.findall(r"`([^`]+)`", prose):
        code = " ".join(span.replace("…", "...").split())
        if re.search(r"\blogn\.\w|^\w+\(.*\)$", code) and code not in KEYS_IN_FILES:
            with contextlib.suppress(SyntaxError):
                ast.parse(code)
                yield code


def look_up(path):
    """What `logn.x.y` is; a module is imported where need be."""
    value, so_far = logn, "logn"
    for name in path.split(".")[1:]:
        so_far += f".{name}"
        try:
            value = getattr(value, name)
        except AttributeError:
            value = importlib.import_module(so_far)
    return value


def dotted(node):
    """`a.b.c` as text where a node is that, else None."""
    if isinstance(node, ast.Name):
        return node.id
    base = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return f"{base}.{node.attr}" if base else None


def check(code, imported):
    """Look up every name of LogN in the code, and bind the arguments of every call of one."""
    nodes = [*ast.walk(ast.parse(code))]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "logn":
            for alias in node.names:
                imported[alias.asname or alias.name] = look_up(f"{node.module}.{alias.name}")
    for node in nodes:
        path = dotted(node)
        if path and path.startswith("logn."):
            look_up(path)
        if isinstance(node, ast.Call):
            called = dotted(node.func) or ""
            target = look_up(called) if called.startswith("logn.") else imported.get(called)
            if callable(target) and not any(isinstance(argument, ast.Starred) for argument in node.args):
                check_call(target, node.args, {keyword.arg: None for keyword in node.keywords if keyword.arg})


def check_call(target, arguments, keywords):
    bound = inspect.signature(target).bind_partial(*arguments, **keywords)
    if "Further arguments of `logn.logit_normalization`" in (target.__doc__ or ""):
        check_call(logn.logit_normalization, (), bound.arguments.get("options", {}))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_names_arguments_commands_scripts_and_targets_on_a_page_exist(page):
    imported, text = {name: getattr(logn, name) for name in logn.__all__}, text_of(page).replace("\\\n", " ")
    for code in code_of(text_of(page)):
        check(code, imported)
    check_commands(text_of(page))
    for path, words in re.findall(r"(?<![\w/])((?:benchmarks|docs|examples)/\w+\.py)((?: +[^`\s#]+)*)", text):
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", words):
            assert f'"{option}"' in text_of(ROOT / path), f"{path} has no {option}"
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), flags=re.M))
    sessions = re.findall(r"^def (\w+)\(session", text_of(ROOT / "noxfile.py"), flags=re.M)
    for named in re.findall(r"(?:^\$ |`)make ([a-z-]+(?: [a-z-]+)*)", text, flags=re.M):
        assert set(named.split()) <= targets | {f"test-{session}" for session in sessions}, named


def test_names_and_options_in_scripts_and_help_texts_exist():
    for script in SCRIPTS:
        check(text_of(script), {})
    for module in (SOURCE / "cli").rglob("*.py"):
        check_commands(text_of(module))


@pytest.mark.parametrize(
    "code",
    [
        "logn.callibrate(model)",
        "logn.methods.norcal([3, 2], gama=0.5)",
        "from logn.predictions.predict import foresee",
        "logn.LogitLayer('a', wrong=1)",
        "record(1, 2, wrong=3)",
    ],
)
def test_what_does_not_exist_is_noticed(code):
    with pytest.raises((AttributeError, ImportError, TypeError)):
        check(code, {"record": logn.record})


def commands(text):
    joined = re.sub(r"(`logn [^`]*?)\n\s+([^`]*`)", r"\1 \2", text)  # a docstring breaks long ones
    joined = re.sub(r"torchrun [^`\n]*-m logn ", "logn ", joined)
    return [line.replace("\\\n", " ").strip() for line in COMMAND.findall(joined) if "{" not in line]  # no templates


def options_of(words):
    """All spellings of the options of the verb that `words` call, and the words behind the verb."""
    command, tail = command_line(), words
    context = command.make_context("logn", ["x"], resilient_parsing=True)
    while hasattr(command, "resolve_command") and tail:
        name, command, tail = command.resolve_command(context, tail)
        if name in RESEARCH:  # reads its words itself
            (entry,) = entry_points(group="logn.verbs", name=name)
            command = load_verb(entry)
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return options | {"-h", "--help"}, tail


def words_of(line):
    try:
        words = shlex.split(line.replace("…", "x"), comments=True)
    except ValueError:  # half a sentence, not a command
        return []
    for stop in ("|", ">", ";", "&&"):
        words = words[: words.index(stop)] if stop in words else words
    return words[1:]


def check_commands(text):
    for line in commands(text):
        options, tail = options_of(words_of(line))
        given = [word.partition("=")[0] for word in tail if re.match(r"--?[a-z]", word)]
        assert [option for option in given if option not in options] == [], line


def test_code_and_commands_are_found():
    assert len([code for page in PAGES for code in code_of(text_of(page))]) > 70
    assert list(code_of("say `logn.fold(\n  model, …)`, not `logn.affine`")) == ["logn.fold( model, ...)"]
    sources = [*PAGES, *(SOURCE / "cli").rglob("*.py")]
    assert len([line for source in sources for line in commands(text_of(source))]) > 150
    assert commands("torchrun --nproc-per-node 8 -m logn train -d x\n") == ["logn train -d x"]
    with pytest.raises(AssertionError, match="--journal"):
        check_commands("`logn collect model.onnx --images train --journal x`")


def headings(page):
    titles = re.findall(r"^#+ (.+)$", text_of(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text_of(page)):
        if target.startswith("../../actions/"):
            continue  # a page of the site that hosts the repository, whatever its address is
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not heading or heading in headings(file), f"{target}#{heading}"
    for path in re.findall(r"`(?:python )?((?:docs|examples|benchmarks|src|tests)/[\w/.-]+)[` ]", text_of(page)):
        assert (ROOT / path).exists(), path


def test_no_odd_phrases():
    odd = [
        f"{name_of(path)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}"
        for path in [*PAGES, *sorted((ROOT / "src").rglob("*.py"))]
        for text in [text_of(path)]
        for match in PHRASES.finditer(text)
    ]
    assert odd == []
    assert [bool(PHRASES.search(text)) for text in ("It is  said\nin x", "amend, recommend", "mended")] == [1, 0, 1]


def template(node):
    """A text with `…` in the place of everything that is not a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return "…"


def messages():
    """The text of each error that the source raises; `MissingExtraError` makes its own in `__init__`."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.Call) and node.args:
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in ("InputError", "__init__") and template(node.args[0]).strip("… ."):
                    yield squashed(template(node.args[0]))


def squashed(text):
    """One space between words, and one `…` for what is filled in one after the other."""
    return " ".join(re.sub(r"…[… ]*…", "…", text).split())


def test_every_message_that_the_faq_quotes_is_in_the_source():
    raised = set(messages())
    quotes = re.findall(r"^> (.+)$", text_of(DOCS / "faq.md"), flags=re.M)
    assert len(quotes) > 30
    for quote in map(squashed, quotes):  # a quote that ends in `…` is a beginning
        beginning = quote.rstrip("… ") if quote.endswith("…") else None
        assert quote in raised or any(beginning and text.startswith(beginning) for text in raised), quote


def test_the_tree_of_contributing_is_the_real_one():
    above, drawn, text = [], [], text_of(ROOT / "CONTRIBUTING.md")
    for line in re.findall(r"^ {4}( *[\w/]+/ +\S.*)$", text, flags=re.M):
        depth = (len(line) - len(line.lstrip())) // 2  # two spaces more are one folder deeper
        above[depth:] = [line.split()[0].rstrip("/")]
        drawn += ["/".join(above[1:])] if depth else []
    real = (path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*") if path.is_dir())
    assert sorted(drawn) == sorted(path for path in real if "__pycache__" not in path)
    paths = re.findall(r"`((?:src|tests|docs|research)/[\w/.-]*)`", text)
    assert len(paths) > 8
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_page_has_one_place_on_the_site_and_nothing_is_fetched_from_elsewhere():
    settings = text_of(ROOT / "mkdocs.yml")
    placed = re.findall(r"([\w/.-]+\.md)$", settings.partition("\nnav:\n")[2], flags=re.M)
    inside = sorted(page for page in placed if not page.startswith("repository/"))
    assert inside == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert all((ROOT / page.removeprefix("repository/")).exists() for page in placed if page.startswith("repository/"))
    assert "font: false" in settings
    assert "http" not in settings


def test_every_public_name_is_in_the_reference_with_an_example():
    names = sorted(set(logn.__all__) - {"__version__"})
    page = text_of(DOCS / "reference" / "api.md")
    assert sorted(re.findall(r"^::: logn\.(\w+)$", page, flags=re.M)) == names
    for module in ("callbacks", "methods", "thresholds"):  # the page has all of `logn.ray`, a single file
        listed = set(re.findall(rf"^::: logn\.{module}\.(\w+)$", page, flags=re.M))
        # The page names the hook in the docstring of its module, which needs no framework.
        assert listed | {*names, "LogNHook"} >= set(public_names(f"logn.{module}")) >= listed
    for name in names:
        thing = getattr(logn, name)
        members = vars(thing).values() if isinstance(thing, type) else ()
        texts = [thing.__doc__ or "", *(getattr(member, "__doc__", None) or "" for member in members)]
        assert any(">>>" in text or "Example" in text for text in texts), name
