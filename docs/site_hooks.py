"""What building the site adds to the pages: files of the repository, the help of each command; and a last check."""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# Pages outside docs/ that belong to the site; links to and from them are rewritten.
RESEARCH = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "research" / "docs").rglob("*.md"))]
OUTSIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "research/README.md", *RESEARCH)
SHIM, SHIM_ELSEWHERE = "assets/iframe-worker.js", "https://unpkg.com/iframe-worker/shim"
LIST_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/, and every other file of the repository that a page links to."""
    texts = {f"docs/{file.src_uri}": file.content_string for file in files if file.src_uri.endswith(".md")}
    texts |= {name: (ROOT / name).read_text(encoding="utf-8") for name in OUTSIDE}
    linked = {_in_repository(page, link) for page, text in texts.items() for link in LINK.findall(text)}
    for path in sorted({*OUTSIDE, *linked}):
        if not path.startswith("docs/") and (ROOT / path).is_file():
            files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that leave docs/, and fill in the help of the commands."""
    source = page.file.src_uri
    if source == "reference/commands.md":
        markdown = markdown.replace("<!-- commands -->", _all_help())
    markdown = re.sub(r"^\[!\[.*actions/.*\n", "", markdown, flags=re.M)  # badges are for where the repository is
    return LINK.sub(lambda link: _on_site(source, link[1]), _with_lists_apart(markdown))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Take the script that lets search work from a disk from the site itself, not from the network."""
    up = posixpath.relpath(".", posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace(SHIM_ELSEWHERE, f"{up}/{SHIM}")


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page 404."""
    return output_content.replace(SHIM_ELSEWHERE, SHIM)


def on_post_build(config: Any) -> None:
    """Refuse a site that would fetch anything from elsewhere, or that lacks a heading for a public name."""
    site = Path(config["site_dir"])
    for file in site.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        for tag in re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//[^>]*>", text):
            raise PluginError(f"{file.name} would fetch from the network: {tag}")
        for tag in re.findall(r"<link\b[^>]*>", text):
            if re.search(r'href="(?:https?:)?//', tag) and "canonical" not in tag:
                raise PluginError(f"{file.name} would fetch from the network: {tag}")
    import logn

    written = (site / "reference" / "api.html").read_text(encoding="utf-8")
    missing = [name for name in logn.__all__ if name != "__version__" and f'id="logn.{name}"' not in written]
    if missing:
        raise PluginError(f"docs/reference/api.md has no {', '.join(missing)}")


def _with_lists_apart(text: str) -> str:
    """An empty line before each list: GitHub needs none behind a paragraph, the site does."""
    lines: list[str] = []
    in_block, before = False, ""
    for line in text.splitlines():
        in_block ^= line.lstrip().startswith("```")
        if not in_block and LIST_ITEM.match(line) and before.strip() and not LIST_ITEM.match(before):
            lines += [""] * (before == before.lstrip())  # an indented line goes on with the item above
        lines.append(line)
        before = line
    return "\n".join(lines) + "\n"


def _in_repository(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _on_site(source: str, link: str) -> str:
    """The link on the site, where files outside docs/ are below repository/."""
    outside = source.startswith("repository/")
    target = _in_repository(source.removeprefix("repository/") if outside else f"docs/{source}", link)
    if not outside and target.startswith("docs/"):
        return link
    path = target.removeprefix("docs/") if target.startswith("docs/") else f"repository/{target}"
    return posixpath.relpath(path, posixpath.dirname(source))


def _all_help() -> str:
    """A section for each command with its help, as the program prints it without a terminal."""
    from logn.cli.main import VERBS

    return "\n".join(_help_of(verb.__name__) for verbs in VERBS.values() for verb in verbs)


def _help_of(verb: str) -> str:
    # A process of its own, for the width and for colours that nothing else has touched.
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "logn", verb, "--help"],
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return f"## logn {verb}\n\n```text\n{done.stdout.strip()}\n```\n"
