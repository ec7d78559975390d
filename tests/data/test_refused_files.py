"""Files that say two things, or one that cannot be, are refused in one sentence that names them, and at once."""

import io
import json
import struct
import warnings
import zipfile

import numpy as np
import pytest
from PIL import Image
from tests.made.labels import SIZES, THINGS, coco_content, write_images

from logn.data.class_counts import ClassCounts
from logn.data.class_names import match_classes, places_of
from logn.data.dataset import DetectionDataset
from logn.data.images import read_rgb
from logn.data.logit_files import find_shards, open_shards, read_array
from logn.errors import InputError, LogNWarning
from logn.matching.labels import load_ground_truth, read_results
from logn.measure.classification.truth import read_labels
from logn.statistics.moments import ClassMoments


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
BYTES = ROWS.tobytes()


def npz(*members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names that come twice
        for name in members:
            archive.writestr(f"{name}.npy", npy(ROWS))
    return file.getvalue()


def with_place_of_first(archive):
    """The same archive, the last entry of whose directory leads to the first array."""
    entry = archive.rindex(b"PK\x01\x02")
    return archive[: entry + 42] + struct.pack("<I", 0) + archive[entry + 46 :]


def safetensors(header, data=BYTES):
    text = header if isinstance(header, str) else json.dumps(header)
    return struct.pack("<Q", len(text)) + text.encode() + data


def entry(start=0, stop=48, shape=(3, 4)):
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, stop]}


def twice_in_header(file):
    """Statistics with a second entry of the same array."""
    length = int.from_bytes(file[:8], "little")
    text = file[8 : 8 + length].decode().rstrip()
    array = json.dumps(json.loads(text)["mean"])
    text = f'{text[:-1]},"mean":{array}}}'
    text += " " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text.encode() + file[8 + length :]


def statistics():
    moments = ClassMoments(4)
    moments.update(ROWS)
    return moments.to_bytes()


RESULT = {"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}


def results(path):
    return read_results(path, load_ground_truth(coco_content(SIZES, THINGS)))


def shards(path):
    return open_shards(find_shards([path]))


CASES = {
    # Logits, counts and labels
    "two arrays of logits": ("x.npy", npy(ROWS) * 2, shards, "has data behind its array"),
    "two arrays of weights": ("x.npy", npy(ROWS) * 2, read_array, "has data behind its array"),
    "two arrays of counts": ("x.npy", npy(ROWS[0]) * 2, ClassCounts.load, "has data behind its array"),
    "two arrays of labels": ("x.npy", npy(np.arange(3)) * 2, read_labels, "has data behind its array"),
    "two members of one name": ("x.npz", npz("logits", "logits"), shards, "the same name or place"),
    "two members at one place": (
        "x.npz",
        with_place_of_first(npz("logits", "boxes")),
        shards,
        "the same name or place",
    ),
    "two archives": ("x.npz", npz("boxes") + npz("logits"), shards, "data before or behind the archive"),
    "an archive and more": ("x.npz", npz("logits") + b"more", shards, "data before or behind the archive"),
    "two entries of one name": (
        "x.safetensors",
        safetensors('{"logits": %s, "logits": %s}' % ((json.dumps(entry()),) * 2)),
        shards,
        "the key 'logits' comes twice",
    ),
    "arrays that overlap": (
        "x.safetensors",
        safetensors({"logits": entry(), "other": entry(16, 64)}, bytes(64)),
        shards,
        "does not start where the one before it ends",
    ),
    "a hole between arrays": (
        "x.safetensors",
        safetensors({"logits": entry(), "other": entry(64, 112)}, bytes(112)),
        shards,
        "does not start where the one before it ends",
    ),
    "bytes behind the arrays": (
        "x.safetensors",
        safetensors({"logits": entry()}, bytes(64)),
        shards,
        "16 bytes behind its arrays belong to none",
    ),
    "statistics with twins": ("x.safetensors", twice_in_header(statistics()), ClassMoments.load, "comes twice"),
    "a column twice": ("x.csv", "name,count,count\na,1,9\nb,2,8\n", ClassCounts.load, "column `count` twice"),
    # Results
    "scores in percent": ("x.json", json.dumps([RESULT | {"score": 97.5}]), results, "from 0 to 1, but is 97.5"),
    "a result of negative height": (
        "x.json",
        json.dumps([RESULT | {"bbox": [5, 5, 2, -2]}]),
        results,
        "the last two at least 0",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_refused_in_one_sentence_that_names_it(tmp_path, case):
    name, content, read, sentence = CASES[case]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=sentence) as caught:
        read(path)
    assert name in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_is_like_them_and_right_is_read(tmp_path):
    write = {"x.npy": npy(ROWS), "x.npz": npz("logits", "boxes"), "x.safetensors": safetensors({"logits": entry()})}
    for name, content in write.items():
        (tmp_path / name).write_bytes(content)
        np.testing.assert_array_equal(read_array(tmp_path / name), ROWS)
    (tmp_path / "x.csv").write_text("name,count,,\na,1,,\nb,2,,\n")
    assert ClassCounts.load(tmp_path / "x.csv").image_counts.tolist() == [1, 2]


def test_hidden_files_of_a_folder_are_no_shards(tmp_path):
    for name in ("a.npy", ".a.4711.partial.npy", "._a.npy"):
        (tmp_path / name).write_bytes(npy(ROWS))
    assert [path.name for path in find_shards([tmp_path])] == ["a.npy"]


def test_a_turn_that_is_ignored_is_warned_of_whatever_the_labels_are(tmp_path):
    write_images(tmp_path, SIZES)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", SIZES["a"]).save(tmp_path / "a.jpg", exif=turned)
    content = coco_content(SIZES, THINGS)
    content["images"][0]["file_name"] = "a.jpg"
    (tmp_path / "x.json").write_text(json.dumps(content))
    data = DetectionDataset(tmp_path / "x.json")
    for read in (lambda: data.read_image(0), lambda: read_rgb(tmp_path / "a.jpg")):
        with pytest.warns(LogNWarning, match="Some images have an EXIF rotation, which LogN ignores"):
            assert read().shape == (40, 60, 3)
    assert data.read_image(1).shape == (64, 32, 3)  # the others without a word


def test_many_classes_are_matched_in_linear_time():
    """They took 18 seconds."""
    names = [f"class {number}" for number in range(20_000)]
    assert match_classes(names, names[::-1]).label_of_model[0] == len(names) - 1
    assert places_of(names[:2], names).tolist() == [0, 1]
    with pytest.raises(InputError, match="2 classes of the labels are called 'class 7'"):
        match_classes(names, [*names, "class 7"])
