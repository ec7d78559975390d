"""One small data set in every form that labels have on disk."""

import json
from types import SimpleNamespace

import pytest
from tests.made.labels import SIZES, THINGS, coco_content, write_images, write_yolo


@pytest.fixture
def forms(tmp_path):
    """Where the same data set lies in each form."""
    coco = tmp_path / "coco" / "val.json"
    write_images(coco.parent, SIZES)
    coco.write_text(json.dumps(coco_content(SIZES, THINGS)))
    return SimpleNamespace(coco=coco, yolo=write_yolo(tmp_path / "yolo", SIZES, THINGS))
