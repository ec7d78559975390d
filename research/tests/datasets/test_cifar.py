"""CIFAR's binary version, from files that the test writes; the python version is refused."""

import numpy as np
import pytest
from logn_research.datasets.cifar import is_cifar, read_cifar
from logn_research.datasets.open_images import open_images

from logn.errors import InputError


def write_binary(path, labels, first_pixel=0, coarse=None):
    """Records of one label byte (CIFAR-10) or of two (CIFAR-100), and 1,024 red, green and blue values each."""
    columns = [labels] if coarse is None else [coarse, labels]
    pixels = np.zeros((len(labels), 3, 32, 32), np.uint8)
    pixels[:, 0, 0, 1] = first_pixel + np.arange(len(labels))  # red, top row, second column
    pixels[:, 2, 31, 0] = 7  # blue, bottom left
    records = np.concatenate([np.array(columns, np.uint8).T, pixels.reshape(len(labels), -1)], axis=1)
    path.write_bytes(records.tobytes())


@pytest.fixture
def cifar_100(tmp_path):
    write_binary(tmp_path / "train.bin", np.arange(300) % 100, coarse=np.full(300, 99))
    write_binary(tmp_path / "test.bin", [99, 0], coarse=[0, 0])
    (tmp_path / "coarse_label_names.txt").write_text("never read\n")
    (tmp_path / "fine_label_names.txt").write_text("".join(f"class {number}\n" for number in range(100)))
    return tmp_path


@pytest.fixture
def cifar_10(tmp_path):
    for batch in range(1, 6):
        write_binary(tmp_path / f"data_batch_{batch}.bin", np.arange(20) % 10, first_pixel=20 * batch)
    write_binary(tmp_path / "test_batch.bin", [3])
    return tmp_path


def test_cifar_100_has_fine_labels_and_names(cifar_100):
    images = read_cifar(cifar_100)
    assert (len(images), images.num_classes, images.class_names[42]) == (300, 100, "class 42")
    assert images.labels.tolist() == (np.arange(300) % 100).tolist()
    picture = images.image(5)
    assert (picture.shape, picture[0, 1].tolist(), picture[31, 0].tolist()) == ((32, 32, 3), [5, 0, 0], [0, 0, 7])
    assert read_cifar(cifar_100, "test").labels.tolist() == [99, 0]


def test_cifar_10_joins_its_batches(cifar_10):
    images = read_cifar(cifar_10)
    assert (len(images), images.num_classes, images.class_names[9]) == (100, 10, "9")
    assert images.image(99)[0, 1, 0] == 119
    assert read_cifar(cifar_10, "test").labels.tolist() == [3]


def test_cifar_is_thinned_by_the_imbalance_but_for_its_test_images(cifar_10):
    thin = open_images(cifar_10, "train", imbalance=10, seed=3)
    assert thin.image_counts.tolist() == [10, 7, 5, 4, 3, 2, 2, 1, 1, 1]
    assert len(open_images(cifar_10, "test", imbalance=10)) == 1


def test_cifar_has_no_dev_images_unless_some_are_held_out(cifar_10):
    with pytest.raises(InputError, match="all that CIFAR has"):
        open_images(cifar_10, "dev")
    dev = open_images(cifar_10, "dev", dev_each=2)
    train = open_images(cifar_10, "train", dev_each=2)
    assert (dev.image_counts == 2).all()
    assert (train.image_counts == 8).all()
    shown = [{int(images.image(place)[0, 1, 0]) for place in range(len(images))} for images in (dev, train)]
    assert not shown[0] & shown[1]


@pytest.mark.parametrize("names", [("meta", "train", "test"), ("data_batch_1", "batches.meta")])
def test_the_python_version_is_refused_because_it_is_pickled(tmp_path, names):
    for name in names:
        (tmp_path / name).write_bytes(b"never read")
    assert is_cifar(tmp_path)
    binary = "cifar-100-binary.tar.gz" if "meta" in names else "cifar-10-binary.tar.gz"
    with pytest.raises(InputError, match=f"{binary}`.*python version.*fetch the binary one"):
        read_cifar(tmp_path)


def test_broken_files_are_named(cifar_100, tmp_path_factory):
    (cifar_100 / "train.bin").write_bytes((cifar_100 / "train.bin").read_bytes()[:-1])
    with pytest.raises(InputError, match=r"train\.bin` to hold records of 3074 bytes, but its 922199 bytes"):
        read_cifar(cifar_100)
    write_binary(cifar_100 / "train.bin", [3, 100], coarse=[0, 0])
    with pytest.raises(InputError, match="below 100, but got 100 in record 1"):
        read_cifar(cifar_100)
    (cifar_100 / "test.bin").unlink()
    with pytest.raises(InputError, match=r"test\.bin` to be a file"):
        read_cifar(cifar_100, "test")
    write_binary(cifar_100 / "train.bin", [3], coarse=[0])
    (cifar_100 / "fine_label_names.txt").write_text("one\n")
    with pytest.raises(InputError, match="to have 100 names, but it has 1"):
        read_cifar(cifar_100)
    empty = tmp_path_factory.mktemp("empty")
    assert not is_cifar(empty)
    with pytest.raises(InputError, match="to hold CIFAR's binary version"):
        read_cifar(empty)
