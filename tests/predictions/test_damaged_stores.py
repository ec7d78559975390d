"""Stores that are not what was written, or not of one model, are refused; so are labels of images of other sizes."""

import json

import numpy as np
import pytest
from PIL import Image
from tests.made.split import make_split, store_header

from logn.base.strict_json import with_checksum
from logn.errors import InputError
from logn.matching.labels import truth_of_predictions
from logn.models.proposals import Postprocessing, Proposals
from logn.predictions.predict import _picture_digest
from logn.predictions.store import PredictionStore, PredictionWriter

FACTS = {
    "num_columns": 3,
    "background": -1,
    "class_names": ("cup", "spoon"),
    "category_ids": (1, 5),
    "num_images": 2,
    "metadata": {"note": 0.1},
    "source": "torch:abc",
    "postprocessing": Postprocessing(nms_iou=0.6),
}


def write(folder, part=0, **changes):
    with PredictionWriter(folder, store_header(**{**FACTS, **changes}), part=part) as writer:
        writer.append(17 + part, Proposals(np.zeros((2, 4)), np.ones((2, 3)), height=10, width=20))
    return folder / f"part-{part:05d}" / "header.json"


CHANGED = {
    "an overlap": ("postprocessing", {"nms_iou": 0.61}),
    "a class name": ("head", {"names": ["cup", "fork", "background"]}),
    "an activation": ("head", {"activation": "sigmoid"}),
    "an id": ("category_ids", [1, 6]),
    "a digest": ("head", {"source": "torch:abd"}),
    "a checksum": ("checksum", "crc32:00000000"),
    "no checksum": ("checksum", None),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_changed_header_is_refused(tmp_path, case):
    header = write(tmp_path)
    assert PredictionStore(tmp_path).header == store_header(**FACTS)
    field, value = CHANGED[case]
    content = json.loads(header.read_text())
    value = content[field] | value if isinstance(content[field], dict) else value
    header.write_text(json.dumps({**content, field: value}))
    with pytest.raises(InputError, match=r"header.json` is damaged; remove the folder .*part-00000` and predict"):
        PredictionStore(tmp_path)


def test_the_order_and_spaces_of_a_header_mean_nothing(tmp_path):
    header = write(tmp_path, metadata={1: "a key that is no text", "猫": [1e-300, 10**20]})
    content = json.loads(header.read_text())
    header.write_text(json.dumps(dict(reversed(content.items())), indent=4, ensure_ascii=False), encoding="utf-8")
    assert len(PredictionStore(tmp_path)) == 1
    header.write_text(json.dumps(with_checksum({k: v for k, v in content.items() if k != "checksum"})))
    assert len(PredictionStore(tmp_path)) == 1


def test_parts_of_two_models_are_refused(tmp_path):
    write(tmp_path)
    write(tmp_path, part=1, source="torch:abc")
    write(tmp_path, part=2, source=None)  # unknown, as of a model that tells none
    assert len(PredictionStore(tmp_path)) == 3
    write(tmp_path, part=3, source="torch:other")
    with pytest.raises(InputError, match=r"part-00003` was predicted with other weights"):
        PredictionStore(tmp_path)
    with pytest.raises(InputError, match=r"part-00000` was predicted with other weights"):
        write(tmp_path, source="torch:other")


def test_labels_of_images_of_another_size_are_refused(tmp_path):
    split = make_split(tmp_path, images=4)
    content = json.loads(split.annotations.read_text())
    truth_of_predictions(content, split.store)
    for image in content["images"][:2]:
        image |= {"height": 2000, "width": 2000}
    with pytest.raises(InputError, match=r"image 1 has .* \[2000, 2000\] in .*, .* \[200, 200\] \(2 such images"):
        truth_of_predictions(content, split.store)
    for image in content["images"]:
        del image["height"], image["width"]  # labels need not tell
    truth_of_predictions(content, split.store)


def test_any_byte_of_an_image_file_counts(tmp_path):
    class Source:
        def image_path(self, index):
            return tmp_path / "a.bmp"

    digests = set()
    for shade in (0, 1):
        pixels = np.zeros((80, 80, 3), np.uint8)
        pixels[-1] = shade  # BMP starts with the last row: size and end stay the same
        Image.fromarray(pixels).save(tmp_path / "a.bmp")
        digests.add(_picture_digest(Source(), 0))
    assert len(digests) == 2
