"""Walking through a JSON file of several gigabytes one array element at a time.

`json.load` on an LVIS training file builds about six times the file's size in Python objects. Here one
element lives at a time, and its place in the file is told, so that large parts (the polygons) can stay on
disk until they are needed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from logn.base.files import require_file
from logn.base.strict_json import unique_keys
from logn.errors import InputError

_CHUNK_BYTES = 4 << 20
_WHITESPACE = re.compile(r"[ \t\n\r]*")
_NUMBER_LISTS = re.compile(r"\s*:\s*(\[[-+0-9.eE,\s\[\]]*\])")
_NUMBER_CHARACTERS = frozenset("0123456789+-.eE")
_HEAD_CHARACTERS = 1024  # how far into an element the skipped field is looked for


@dataclass(frozen=True)
class Element:
    """One element of a top-level array, and the bytes of the file that hold it."""

    section: str
    value: Any
    start: int
    stop: int


def stream_elements(path: str | os.PathLike[str], *, skip: str | None = None) -> Iterator[Element]:
    """Yield every element of every top-level array of a JSON object, in file order.

    Top-level values that are no arrays are read and skipped. Memory stays at a few megabytes.

    Args:
        path: The file.
        skip: A field of the elements that need not be parsed where it holds lists of numbers: it comes as None. Most
            of an annotation file is polygons, so leaving them unparsed is several times faster.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "a.json"
        >>> _ = file.write_text('{"info": {}, "images": [{"id": 7}, {"id": 8}]}')
        >>> [(e.section, e.value, e.start) for e in stream_elements(file)]
        [('images', {'id': 7}, 24), ('images', {'id': 8}, 35)]
    """
    require_file(path, "a JSON file")
    with Path(path).open("rb") as file:
        reader = _Reader(file, str(path), skip)
        reader.expect("{")
        closed = reader.take("}")
        sections: set[str] = set()
        while not closed:
            section = reader.value()[0]
            if not isinstance(section, str):
                reader.fail("a key in quotes")
            if section in sections:
                raise InputError(f"`{path}` has the section `{section}` twice.")
            sections.add(section)
            reader.expect(":")
            if reader.take("["):
                yield from _elements(reader, section)
            else:
                reader.value()
            closed = reader.take("}")
            if not closed:
                reader.expect(",")
        reader.expect_end()


def _elements(reader: _Reader, section: str) -> Iterator[Element]:
    if reader.take("]"):
        return
    while True:
        value, start, stop = reader.value()
        yield Element(section, value, start, stop)
        if reader.take("]"):
            return
        reader.expect(",")


class _Reader:
    """A sliding window over the file.

    The bytes are decoded as Latin-1, in which one byte is one character, so positions in the text are
    positions in the file; elements with other characters are decoded again as UTF-8.
    """

    def __init__(self, file: BinaryIO, name: str, skip: str | None) -> None:
        self._file = file
        self._skipped_field = json.dumps(skip) if skip else None
        self._name = name
        self._text = ""
        self._offset = 0  # of the window in the file
        self._position = 0  # in the window
        self._scan = json.JSONDecoder(object_pairs_hook=self._once).raw_decode
        self._more()
        if self._text.startswith("\xef\xbb\xbf"):  # a byte order mark, as some editors write
            self._position = 3

    def _more(self) -> bool:
        self._offset += self._position
        self._text, self._position = self._text[self._position :], 0  # first, so as not to hold two windows
        # Twice as much on each call for an element that is larger than the window: linear time in all.
        piece = self._file.read(max(_CHUNK_BYTES, len(self._text)))
        self._text += piece.decode("latin-1")
        return bool(piece)

    def fail(self, expected: str) -> None:
        place = self._offset + self._position
        raise InputError(f"`{self._name}` is not valid JSON: expected {expected} at byte {place}.")

    def _once(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entry = dict(pairs)
        if len(entry) < len(pairs):
            try:
                unique_keys(pairs)
            except ValueError as error:
                place = self._offset + self._position
                raise InputError(f"In the value at byte {place} of `{self._name}`, {error}.") from None
        return entry

    def _skip_whitespace(self) -> None:
        while True:
            match = _WHITESPACE.match(self._text, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._text) or not self._more():
                return

    def take(self, character: str) -> bool:
        self._skip_whitespace()
        found = self._text.startswith(character, self._position)
        self._position += found
        return found

    def expect(self, character: str) -> None:
        if not self.take(character):
            self.fail(f"`{character}`")

    def expect_end(self) -> None:
        self._skip_whitespace()
        if self._position < len(self._text):
            self.fail("its end")

    def value(self) -> tuple[Any, int, int]:
        self._skip_whitespace()
        while True:
            scanned = self._scan_whole()
            if scanned is not None:
                break
            if not self._more():
                self.fail("a whole value")
        value, stop = scanned
        start, self._position = self._position, stop
        source = self._text[start:stop]
        if not source.isascii():
            value = self._decode_utf8(source)
        return value, self._offset + start, self._offset + stop

    def _scan_whole(self) -> tuple[Any, int] | None:
        """Scan the next value and tell where it ends; None where it may go on behind the window."""
        try:
            value, stop = self._scan_without_field() or self._scan(self._text, self._position)
        except InputError:
            raise
        except (ValueError, RecursionError):  # no JSON yet; or never, as a number of thousands of digits
            return None
        # A cut number still scans: `0` of `0.5`, and `0.` of it too, up to the point.
        following = self._text[stop : stop + 1]
        return None if not following or following in _NUMBER_CHARACTERS else (value, stop)

    def _scan_without_field(self) -> tuple[Any, int] | None:
        """Scan an object with the skipped field cut out; None where it is not as simple as that."""
        if self._skipped_field is None:
            return None
        start, text = self._position, self._text
        field = text.find(self._skipped_field, start, start + _HEAD_CHARACTERS)
        lists = _NUMBER_LISTS.match(text, field + len(self._skipped_field)) if field >= 0 else None
        stop = text.find("}", lists.end(), lists.end() + _HEAD_CHARACTERS) + 1 if lists else 0
        if not lists or not stop:
            return None
        rest = f"{text[start : lists.start(1)]}null{text[lists.end() : stop]}"
        try:
            value, end = self._scan(rest, 0)
        except (ValueError, RecursionError):
            return None
        # Where the field belongs to a later element, the scan has ended with this one.
        return (value, stop) if end == len(rest) else None

    def _decode_utf8(self, source: str) -> Any:
        try:
            return json.loads(source.encode("latin-1"), object_pairs_hook=self._once)
        except UnicodeDecodeError:
            return self.fail("UTF-8 text")
