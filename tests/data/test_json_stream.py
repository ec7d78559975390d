"""The streaming reader must see exactly what `json.loads` sees, wherever the window ends."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logn.data import json_stream
from logn.data.json_stream import stream_elements
from logn.errors import InputError

scalars = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | st.text(max_size=6)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
polygons = st.lists(st.lists(st.floats(0, 999, width=32), max_size=8), max_size=3)
annotations = st.fixed_dictionaries(
    {"id": st.integers(0, 99)}, optional={"segmentation": polygons | values, "x": values}
)
documents = st.dictionaries(st.text(max_size=6), st.lists(values | annotations, max_size=5) | values, max_size=4)


def elements_by_json(document):
    return [(key, element) for key, part in document.items() if isinstance(part, list) for element in part]


@pytest.mark.parametrize("ascii_only", [True, False])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(document=documents, chunk=st.integers(1, 40), indent=st.sampled_from([None, 1]))
def test_equals_json_for_any_window(tmp_path, monkeypatch, ascii_only, document, chunk, indent):
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", chunk)
    file = tmp_path / "any.json"
    file.write_text(json.dumps(document, ensure_ascii=ascii_only, indent=indent), encoding="utf-8")
    found = list(stream_elements(file))
    assert [(element.section, element.value) for element in found] == elements_by_json(document)
    content = file.read_bytes()
    assert [json.loads(content[element.start : element.stop]) for element in found] == [
        element.value for element in found
    ]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(entries=st.lists(annotations, max_size=6), chunk=st.integers(1, 60))
def test_a_skipped_field_changes_nothing_else(tmp_path, monkeypatch, entries, chunk):
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", chunk)
    file = tmp_path / "skip.json"
    file.write_text(json.dumps({"annotations": entries}))
    found = [dict(element.value) for element in stream_elements(file, skip="segmentation")]
    for entry, wanted in zip(found, entries, strict=True):
        skipped = entry.pop("segmentation", None)
        assert skipped is None or skipped == wanted["segmentation"]
        assert entry == {key: value for key, value in wanted.items() if key != "segmentation"}


def test_numeric_lists_are_left_unparsed_and_found_again(tmp_path):
    file = tmp_path / "polygons.json"
    entry = {"id": 1, "segmentation": [[1.5, 2, 3, 4, 5, 6], [7, 8]], "bbox": [1, 2, 3, 4]}
    file.write_text(json.dumps({"annotations": [entry, {"id": 2}]}))
    first, second = stream_elements(file, skip="segmentation")
    assert first.value == {"id": 1, "segmentation": None, "bbox": [1, 2, 3, 4]}
    assert second.value == {"id": 2}
    assert json.loads(file.read_bytes()[first.start : first.stop]) == entry


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7])
def test_numbers_on_the_edge_of_the_window(tmp_path, monkeypatch, mark, chunk):
    file = tmp_path / "numbers.json"
    file.write_bytes(mark + b'{"a": [0.5, -1e-5, 12, 1E+2], "b": 0.5}')
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", max(chunk, len(mark)))
    assert [element.value for element in stream_elements(file)] == [0.5, -1e-5, 12, 100.0]


INVALID = r"is not valid JSON: expected .* at byte \d+"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", INVALID),
        ("[1, 2]", INVALID),
        ('{"a": [1, 2', INVALID),
        ('{"a": [1 2]}', INVALID),
        ('{"a" [1]}', INVALID),
        ('{"a": [{"b": }]}', INVALID),
        ("{1: [2]}", INVALID),
        ('{"a": [1]', INVALID),
        ('{"a": [1-]}', INVALID),
        ('{"a": 1', INVALID),
        ('{"a": [1]} {"a": [2]}', INVALID),
        ("{}]", INVALID),
        ('{"a": ["\u00e9"]}', "UTF-8"),
        ('{"images": [{"id": 1}], "annotations": [], "images": [{"id": 2}]}', "has the section `images` twice"),
        (None, "does not exist"),
    ],
)
def test_broken_files_are_named(tmp_path, content, words):
    file = tmp_path / "broken.json"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=rf"`.*broken\.json` {words}" if words != "UTF-8" else words):
        list(stream_elements(file))
