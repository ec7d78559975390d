"""The sentences with which LogN refuses something, as the source has them: `…` stands for what is filled in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "logn"
RAISED = ("InputError", "__init__")  # the latter for `MissingExtraError`, which makes its own


def template(node: ast.expr) -> str:
    """A text with `…` in the place of everything that is not written out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return "…"


def texts() -> Iterator[tuple[str, str]]:
    """The folder or module below `logn` and the text of each call, in the order of the source."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                text = template(node.args[0])
                if called in RAISED and text.strip("… ."):
                    yield path.relative_to(SOURCE).parts[0].removesuffix(".py"), text


def page() -> str:
    """Every sentence once, by folder, as Markdown."""
    folders: dict[str, dict[str, None]] = {}
    for folder, text in texts():
        folders.setdefault(folder, {})[text] = None
    return "\n".join(f"## {name}\n\n" + "".join(f"- {text}\n" for text in found) for name, found in folders.items())
