"""The files of a table of the bench: a Markdown page for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from logn.files import write_text


def write_page(folder: Path, name: str, markdown: str, result: Mapping[str, Any]) -> dict[str, Path]:
    """Write `NAME.md` and `NAME.json` into a folder, which is made if it is not there; gives their paths by form."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"markdown": folder / f"{name}.md", "json": folder / f"{name}.json"}
    content = {"markdown": markdown, "json": json.dumps(result, indent=1, ensure_ascii=False) + "\n"}
    for form, path in paths.items():
        write_text(path, content[form])
    return paths


def listed(title: str, sentences: Sequence[str]) -> list[str]:
    r"""A part of the page with a line for each sentence; none where there is nothing to say.

    Example:
        >>> listed("What it says", ["It works."]), listed("Rows without numbers", [])
        (['## What it says\n\n- It works.'], [])
    """
    return [f"## {title}\n\n" + "\n".join(f"- {sentence}" for sentence in sentences)] if sentences else []
