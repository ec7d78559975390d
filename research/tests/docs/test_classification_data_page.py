"""The page on the data of classifiers: every source that it names opens as it says, and its commands count them."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "classification-data.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


def write_cifar(folder, images_per_class):
    """CIFAR-100's binary version: a coarse label, a fine one, and 3,072 values for each image."""
    folder.mkdir()
    (folder / "fine_label_names.txt").write_text("".join(f"class {number}\n" for number in range(100)))
    for split, each in (("train", images_per_class), ("test", 1)):
        records = np.zeros((100 * each, 2 + 3 * 32 * 32), np.uint8)
        records[:, 1] = np.tile(np.arange(100), each)
        (folder / f"{split}.bin").write_bytes(records.tobytes())


def write_lists(folder):
    """Lists like those of ImageNet-LT in the folder, and the images in `imagenet`."""
    from PIL import Image

    for split, per_class in (("train", (3, 1)), ("test", (1, 1))):
        lines = []
        for label, count in enumerate(per_class):
            (folder / "imagenet" / split / f"n{label}").mkdir(parents=True)
            for number in range(count):
                name = f"{split}/n{label}/{number}.JPEG"
                Image.new("RGB", (6, 4)).save(folder / "imagenet" / name)
                lines.append(f"{name} {label}\n")
        (folder / f"ImageNet_LT_{split}.txt").write_text("".join(lines))


@pytest.fixture
def sources(tmp_path, monkeypatch, run_logn):
    for package in ("PIL", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path / "cifar-100-binary", images_per_class=20)
    write_lists(tmp_path)
    # What the section on glyph classes says, with fewer images.
    (command,) = re.findall(r"^ +(logn data glyph-classes .+)$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    run_logn(command + " --classes 4 --most 12 --fewest 3 --dev 1 --test 1 --workers 1")
    return tmp_path


def test_every_block_of_python_opens_its_source(sources, blocks, run_python):
    glyphs, lists, cifar, arrays = blocks("python")
    names = run_python(glyphs)
    train = names["train"]
    assert sorted(train.image_counts) == [3, 5, 8, 12]
    assert train.image(0).shape == (32, 32, 3)
    assert len(names["open_images"]("classes", "dev")) == len(names["open_images"]("classes", "test")) == 4

    run_python(lists, names)
    assert (names["train"].image_counts.tolist(), len(names["test"])) == ([3, 1], 2)
    assert names["train"].image(0).shape == (4, 6, 3)

    run_python(cifar, names)
    counts = names["train"].image_counts
    assert (counts[0], len(names["test"])) == (20, 100)
    assert (np.diff(counts) <= 0).all()
    assert counts[-1] < counts[0] / 10

    names |= {"pixels": np.zeros((3, 8, 8, 3), np.uint8), "labels": [0, 1, 1]}
    assert run_python(arrays, names)["images"].image_counts.tolist() == [1, 2]


def test_the_commands_count_them(sources, run_logn):
    lines = re.findall(r"^ +(logn data inspect .+)$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    assert len(lines) == 3
    assert "images: 28\n" in run_logn(lines[0])
    run_logn("\n".join(lines[1:]))


def test_what_the_text_names_takes_these_images(sources):
    from logn_research.datasets.labelled_images import open_images, require_every_class
    from logn_research.datasets.samplers import make_sampler

    train = open_images("classes", "train")
    require_every_class(train)
    for name in ("class-balanced", "random"):
        assert len(make_sampler(name, train).indices(epoch=0, seed=0)) == len(train)
