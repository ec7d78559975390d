"""What must not depend on the system: encodings, ends of lines, separators, names of files."""

import ast
from pathlib import Path

import logn

SOURCE = Path(logn.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
# These exist on some systems only.
POSIX_ONLY = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty"}
# Pictures, archives, file descriptors, data sets; and our own `write_text`, which says both.
NOT_TEXT = {"os.open", "pillow.open", "Image.open", "archive.open", "image.open", "self.data.open", "write_text"}


def texts_left_to_the_system(tree):
    """The lines on which text is read or written in the encoding, or with the ends of lines, of whatever system."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called not in ("open", "read_text", "write_text") or ast.unparse(node.func) in NOT_TEXT:
            continue
        words = {word.arg for word in node.keywords}
        mode = "".join(str(word.value) for word in node.args[-1:] if isinstance(word, ast.Constant))
        writes = called == "write_text" or (called == "open" and mode in ("w", "a", "x"))
        if "b" not in mode and not words >= ({"encoding", "newline"} if writes else {"encoding"}):
            yield node.lineno


def test_text_has_an_encoding_and_ends_of_lines():
    found = {
        f"{path.relative_to(SOURCE).as_posix()}:{line}"
        for path in MODULES
        for line in texts_left_to_the_system(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()


def test_what_is_left_to_the_system_is_noticed():
    code = "open('a')\npath.read_text()\npath.open('rb')\npath.write_text(t, encoding='utf-8')\nwrite_text(p, t)\n"
    assert list(texts_left_to_the_system(ast.parse(code))) == [1, 2, 4]


def test_modules_of_one_system_are_not_imported_at_the_top():
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not POSIX_ONLY & {*names, getattr(node, "module", None)}, path


def test_no_file_of_the_repository_has_a_name_that_a_system_forbids():
    root = SOURCE.parents[1]
    names = [path.name for folder in ("src", "tests", "docs", "examples") for path in (root / folder).rglob("*")]
    assert [name for name in names if set(name) & set('<>:"|?*\\')] == []
