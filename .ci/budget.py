"""Count code lines, and fail above the budget of `pyproject.toml`: what grows without bound, nobody takes over.

A code line is neither blank, nor a comment, nor part of a docstring; ruff's formatter keeps them honest.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """How many lines of a module hold code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = ((number, line.strip()) for number, line in enumerate(source.splitlines(), 1))
    return sum(bool(line) and not line.startswith("#") and number not in docstrings for number, line in lines)


def main() -> None:
    """Print the lines of each folder beside its budget; exit with 1 if one is exceeded."""
    budget: dict[str, int] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["budget"]
    exceeded = False
    for folder, most in budget.items():
        lines = sum(code_lines(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py"))
        print(f"{folder}: {lines:,} code lines of at most {most:,}")
        exceeded |= lines > most
    if exceeded:
        sys.exit("Over budget: cut before you add, or raise the number in `pyproject.toml`, with a reason.")


if __name__ == "__main__":
    main()
