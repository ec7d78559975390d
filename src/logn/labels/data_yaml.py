"""The part of YAML in which data sets of YOLO are described, read strictly.

These files are a few keys with a text, a list or a table of names. To read just that takes no package for YAML, and
what is written in another way is refused by file and line, never guessed at. Keys that nobody asks for (`download`,
`roboflow`) may hold anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logn.errors import InputError
from logn.files import require_file

_KEY = re.compile(r"""(?:"([^"]*)"|'([^']*)'|([^\s'"\[\]{},#&*!|>%@`-][^'"\[\]{},#:]*?))\s*:(?=\s|$)\s*""")
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""")
_PLAIN_IN_FLOW = re.compile(r"[^\s,\[\]{}#:'\"](?:[^,\[\]{}#:]|:(?=\S)|(?<=\S)#)*")
_NOT_PLAIN = tuple("&*!|>%@`?{}[],")
_NOTHING = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class _Line:
    number: int
    text: str  # without the comment and spaces at the end

    @property
    def indent(self) -> int:
        return len(self.text) - len(self.text.lstrip(" "))


def read_data_yaml(path: Path, keys: Collection[str]) -> dict[str, Any]:
    r"""What a `data.yaml` says of some keys: each a text, a list or a mapping of texts, or None.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "data.yaml"
        >>> _ = file.write_text("train: ../train/images  # 128\nnames:\n  0: cup\n  1: 'tea pot'\n")
        >>> read_data_yaml(file, ["train", "val", "names"])
        {'train': '../train/images', 'names': {'0': 'cup', '1': 'tea pot'}}
    """
    require_file(path, "a `data.yaml`")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"Expected `{path}` to be UTF-8 text, but it is not ({error}).") from None
    found: dict[str, Any] = {}
    reader = _Reader(path)
    for key, inline, block in reader.entries(text):
        if key not in keys:
            continue
        if key in found:
            reader.refuse(inline, f"`{key}` once")
        found[key] = reader.value(inline, block)
    return found


class _Reader:
    """Reads one file; keeps its name for messages."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refuse(self, line: _Line, expected: str) -> Any:
        raise InputError(
            f"Expected {expected} in line {line.number} of `{self.path}`, but got {line.text.strip()!r:.60}."
        )

    def entries(self, text: str) -> Iterator[tuple[str, _Line, list[_Line]]]:
        """Each key of the top level with the rest of its line and the lines that belong to it."""
        current: tuple[str, _Line, list[_Line]] | None = None
        for number, raw in enumerate(text.splitlines(), start=1):
            line = _Line(number, _without_comment(raw).rstrip())
            if not line.text.strip() or line.text in ("---", "..."):
                continue
            belongs = line.text.startswith((" ", "\t", "-", "]", "}"))
            if belongs and current is not None:
                current[2].append(line)
                continue
            if current is not None:
                yield current
            match = _KEY.match(line.text)
            if match is None:
                self.refuse(line, "`key: value`")
            else:
                current = (_key(match), _Line(number, line.text[match.end() :]), [])
        if current is not None:
            yield current

    def value(self, inline: _Line, block: list[_Line]) -> Any:
        """What a key holds."""
        if tabbed := next((line for line in block if line.text.startswith("\t")), None):
            self.refuse(tabbed, "spaces, not a tab,")
        if inline.text.startswith(("[", "{")):
            return self._flow(inline, block)
        if inline.text:
            if block:
                self.refuse(block[0], "the next key")
            return self.scalar(inline, inline.text)
        if not block:
            return None
        if block[0].text.lstrip().startswith(("[", "{")):
            return self._flow(block[0], block[1:])
        return self._list(block) if block[0].text.lstrip().startswith("-") else self._mapping(block)

    def _list(self, block: list[_Line]) -> list[str | None]:
        items = []
        for line in block:
            text = line.text.strip()
            if line.indent != block[0].indent or not (text == "-" or text.startswith("- ")):
                self.refuse(line, "`- entry` of a list")
            items.append(self.scalar(line, text[1:].strip()))
        return items

    def _mapping(self, block: list[_Line]) -> dict[str, str | None]:
        entries: dict[str, str | None] = {}
        for line in block:
            text = line.text.strip()
            match = _KEY.match(text)
            if match is None or line.indent != block[0].indent or _key(match) in entries:
                self.refuse(line, "`number: name`, each number once,")
            else:
                entries[_key(match)] = self.scalar(line, text[match.end() :])
        return entries

    def scalar(self, line: _Line, text: str) -> str | None:
        """A text in quotes or without; nothing where there is none."""
        if text in _NOTHING:
            return None
        if text[0] in "\"'":
            return self._unquoted(line, text) if _QUOTED.fullmatch(text) else self.refuse(line, "one text in quotes")
        if text.startswith(_NOT_PLAIN) or re.search(r":(\s|$)", text):
            self.refuse(line, "a plain or quoted text")
        return text

    def _unquoted(self, line: _Line, text: str) -> str:
        if text[0] == "'":
            return text[1:-1].replace("''", "'")
        try:
            return str(json.loads(text))
        except ValueError:
            self.refuse(line, "a text whose escapes are those of JSON")
            raise

    def _flow(self, first: _Line, more: list[_Line]) -> Any:
        """A list in brackets or a mapping in braces, over one line or several."""
        words = [(line, word) for line in (first, *more) for word in self._words(line)]
        closing = "]" if words[0][1] == "[" else "}"
        if words[-1][1] != closing or any(word in tuple("[]{}") for _, word in words[1:-1]):
            self.refuse(words[-1][0], f"one list up to `{closing}`, with none inside,")
        parts: list[list[tuple[_Line, str]]] = [[]]
        for line, word in words[1:-1]:
            if word == ",":
                parts.append([])
            else:
                parts[-1].append((line, word))
        if not parts[-1]:
            parts.pop()  # a comma may stand at the end
        last = words[-1][0]
        if closing == "]":
            return [self._one(part, last) for part in parts]
        return dict(self._pair(part, last) for part in parts)

    def _one(self, part: list[tuple[_Line, str]], last: _Line) -> str | None:
        if len(part) != 1:
            self.refuse(part[0][0] if part else last, "one text between commas")
        return self.scalar(*part[0])

    def _pair(self, part: list[tuple[_Line, str]], last: _Line) -> tuple[str, str | None]:
        if len(part) != 3 or part[1][1] != ":":
            self.refuse(part[0][0] if part else last, "`number: name` between commas")
        return str(self.scalar(*part[0])), self.scalar(*part[2])

    def _words(self, line: _Line) -> Iterator[str]:
        place, text = line.indent, line.text
        while place < len(text):
            match = _QUOTED.match(text, place) or _PLAIN_IN_FLOW.match(text, place)
            word = match.group() if match else text[place]
            if match is None and word not in tuple("[]{},: "):
                self.refuse(line, "a list of texts")
            place += len(word)
            if word.strip():
                yield word.strip()


def _key(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)


def _without_comment(line: str) -> str:
    """The line up to a `#` at its start or behind a space, unless that stands in quotes."""
    place = 0
    while place < len(line):
        # A quote opens a text only where one can begin; elsewhere it is an apostrophe.
        opens = line[place] in "\"'" and (not line[:place].strip() or line[:place].rstrip()[-1] in ":,[{-")
        quoted = _QUOTED.match(line, place) if opens else None
        if quoted:
            place = quoted.end()
        elif line[place] == "#" and (place == 0 or line[place - 1] in " \t"):
            return line[:place]
        else:
            place += 1
    return line
