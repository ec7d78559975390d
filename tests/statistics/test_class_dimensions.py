"""Fractal dimensions from files and from annotations."""

import json

import numpy as np
import pytest

from logn.classes.counts import read_dimensions
from logn.errors import InputError

# The worked example of the method's reference: nine spread centres, four in a corner, two alone.
CENTRES = {
    1: [(0.1, 0.1), (0.9, 0.1), (0.1, 0.9), (0.9, 0.9), (0.5, 0.5), (0.3, 0.7), (0.7, 0.3), (0.5, 0.1), (0.1, 0.5)],
    2: [(0.10, 0.10), (0.12, 0.12), (0.14, 0.10), (0.60, 0.12)],
    3: [(0.2, 0.2), (0.4, 0.4)],
}


def _annotations():
    width, height = 200, 100
    boxes = [
        {"category_id": label, "image_id": 5, "bbox": [x * width - 2, y * height - 3, 4, 6]}
        for label, centres in CENTRES.items()
        for x, y in centres
    ]
    # Spread out, so that they would show in the dimension of their class.
    crowds = [
        {"category_id": 3, "image_id": 5, "bbox": [x * width, y * height, 1, 1], "iscrowd": 1} for x, y in CENTRES[1]
    ]
    return {
        "images": [{"id": 5, "width": width, "height": height}],
        "categories": [{"id": 3, "name": "c"}, {"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
        "annotations": [*boxes, *crowds],
    }


def test_annotations_give_the_worked_dimensions(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(_annotations()))
    np.testing.assert_allclose(read_dimensions(path), [1.795877, 1.0, 1.0], atol=2e-6)
    np.testing.assert_allclose(read_dimensions(path, ["b", "a"]), [1.0, 1.795877], atol=2e-6)


def test_tables(tmp_path):
    (tmp_path / "a.csv").write_text("name,fractal_dimension\ncup,1.5\nspoon,1.2\n")
    assert read_dimensions(tmp_path / "a.csv").tolist() == [1.5, 1.2]
    assert read_dimensions(tmp_path / "a.csv", ["spoon"]).tolist() == [1.2]
    # Nothing to match by: the order of the file stays.
    (tmp_path / "b.csv").write_text("fractal_dimension\n1.5\n1.2\n")
    assert read_dimensions(tmp_path / "b.csv", ["spoon", "cup"]).tolist() == [1.5, 1.2]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("x.csv", "name,count\ncup,1\n", "`fractal_dimension`"),
        ("x.json", '{"categories": []}', "to list `categories`"),
        ("x.json", "[[1]]", "to be valid JSON with `{`"),
        ("x.csv", None, "there is none"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=sentence) as caught:
        read_dimensions(tmp_path / name)
    assert name in str(caught.value)
