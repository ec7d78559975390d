"""Without Ray: one sentence that says what to install, and the parts that need none of it; with it, `make test-ray`."""

import json
import sys

import numpy as np
import pytest

import logn
from logn.cli.main import execute
from logn.evaluate.ray_data import collect as collecting
from logn.evaluate.ray_data.collect import CollectWorker
from logn.evaluate.ray_data.engine import each_once
from logn.evaluate.ray_data.images import BlockImages

pytest.importorskip("torch")


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(logn.MissingExtraError, match=r'`ray` to be installed: run pip install "logn\[ray\]"'):
        logn.ray.collect([], lambda: None)
    with pytest.raises(logn.MissingExtraError, match="`ray` to be installed"):
        logn.ray.predict([], lambda: None, "store")


def test_a_model_in_the_place_of_a_function():
    import torch

    with pytest.raises(logn.InputError, match="function that makes the model on each worker, but got Linear"):
        logn.ray.collect([], torch.nn.Linear(2, 2))


@pytest.mark.parametrize("value", [np.zeros((4, 5), np.uint8), np.zeros((4, 5, 4), np.uint8)], ids=["grey", "alpha"])
def test_pixels_become_rgb(value):
    assert BlockImages({"image": [value]}).read(0).shape == (4, 5, 3)


def test_hugging_faces_images_and_other_values():
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.fromarray(np.full((4, 5, 3), 7, np.uint8)).save(file, "PNG")
    block = {"image": [{"bytes": file.getvalue(), "path": None}, np.zeros(3)], "image_id": [1, 2]}
    assert (BlockImages(block).read(0) == 7).all()
    with pytest.raises(logn.InputError, match=r"Expected `2` to be bytes of an image, its path, or .* float64 \(3,\)"):
        BlockImages(block).read(1)
    with pytest.raises(logn.InputError, match=r"to have height and width \(9, 5\) as its row says"):
        BlockImages({**block, "height": [9, 9], "width": [5, 5]}).read(0)


class Detector:
    """Says of an image what its pixels say."""

    background, activation, class_names, population = None, "softmax", ("ant", "bee", "cow"), "test proposals"
    logit_layer = logn.LogitLayer("head")

    def __init__(self, weights):
        self.fingerprint = weights

    def propose(self, images):
        rows = [np.asarray(image)[:, 0, :4].T for image in images]
        return [logn.Proposals(np.zeros((4, 4)), logits, height=4, width=5) for logits in rows]


def make_worker(weights="made", **settings):
    """A worker that has its model."""
    usual = {"layer": None, "image_column": None, "class_names": None, "batch": 2, "nonfinite": "error"}
    worker = CollectWorker({**usual, "sample_rows": 6, "skip_unreadable": False, **settings})
    worker._model = Detector(weights)
    return worker


def blocks_of_images(count, images=5):
    pixels = np.random.default_rng(0).integers(0, 256, (count, images, 4, 5, 3), np.uint8)
    return [{"image": block} for block in pixels]


def row_of(payload, number=0, unreadable=()):
    return {"images": 5, "payload": payload, "unreadable": json.dumps(unreadable), "key": str(number)}


@pytest.fixture
def answers(monkeypatch):
    """Answers of workers that are given to `collect` in the place of Ray's."""
    rows = []
    monkeypatch.setattr(collecting, "run_blocks", lambda *arguments, **options: iter(rows))
    monkeypatch.setattr(collecting, "shipped", lambda make, name: b"")
    return rows


def test_a_block_that_its_worker_does_again_counts_once_and_displaces_no_rows(answers):
    blocks = blocks_of_images(4)
    expected = logn.ClassMoments.merge_all(
        logn.ClassMoments.from_bytes(make_worker().answer(block)["payload"]) for block in blocks
    )
    worker = make_worker()
    for block in blocks:
        worker.answer(block)  # is lost, but the worker is not
        answers.append(row_of(worker.answer(block)["payload"]))
    found = logn.ray.collect([], lambda: None)
    np.testing.assert_array_equal(found.sample, expected.sample)
    np.testing.assert_array_equal(found.count, expected.count)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)


def test_rows_that_earlier_blocks_displace_are_not_sent():
    worker, other = make_worker(), make_worker()
    blocks = blocks_of_images(30)
    sizes = [len(worker.answer(block)["payload"]) for block in blocks]
    assert sizes[-1] < len(other.answer(blocks[-1])["payload"])


def test_statistics_that_do_not_fit_are_refused_in_one_sentence(answers):
    (block,) = blocks_of_images(1)
    payload = make_worker().answer(block)["payload"]
    for other, said in (
        (make_worker("others").answer(block)["payload"], "Expected statistics of one `fingerprint` to merge"),
        (make_worker(class_names="abc").answer(block)["payload"], "Expected statistics of one `class_names` to merge"),
        (payload.replace(b'"schema":"2"', b'"schema":"9"'), "schema"),
        (payload[:100], "Expected `data` to"),
    ):
        answers[:] = [row_of(payload), row_of(other)]
        with pytest.raises(logn.InputError) as error:
            logn.ray.collect([], lambda: None)
        assert said in str(error.value)
        assert str(error.value).endswith("; every worker has to make the same model, with one version of logn.")


def test_images_that_were_left_out_are_counted(answers):
    payload = make_worker().answer(blocks_of_images(1)[0])["payload"]
    answers += [row_of(payload, unreadable=["Expected a.", "Expected b."]), row_of(payload, unreadable=["Expected c."])]
    with pytest.warns(logn.LogNWarning, match=r"^Left out 3 unreadable images; the first: Expected a\.$"):
        logn.ray.collect([], lambda: None, skip_unreadable=True)
    sentences = []
    logn.ray.collect([], lambda: None, skip_unreadable=True, skipped=sentences.extend)
    assert sentences == ["Expected a.", "Expected b.", "Expected c."]


def test_a_block_that_comes_twice_counts_once_and_two_with_one_key_are_not_lost():
    row = {"error": "", "key": "a/0", "digest": "1f"}
    others = [row | {"digest": "2e"}, row | {"key": "a/1"}]
    assert list(each_once([row, others[0], row, others[1]])) == [row, *others]
    with pytest.raises(RuntimeError, match="two blocks the key a/0, and no names tell whether they are one"):
        list(each_once([row | {"digest": ""}] * 2))
    with pytest.raises(logn.InputError, match="Expected this"):
        list(each_once([row | {"error": "Expected this."}]))


def run(capsys, *words):
    code = execute([str(word) for word in words])
    return code, " ".join(capsys.readouterr().err.split())


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"images": [], "categories": [], "annotations": []}')
    return path


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--workers", 2), "Expected `--workers` with `--ray` only, but there is no `--ray`."),
        (("--ray",), 'Expected the package `ray` to be installed: run pip install "logn[ray]"'),
    ],
)
def test_what_does_not_go_with_ray_is_refused(tmp_path, labels, capsys, monkeypatch, options, sentence):
    monkeypatch.setitem(sys.modules, "ray", None)
    output = tmp_path / "x.safetensors"
    code, said = run(capsys, "collect", "nothing:build", "--data", labels, "-o", output, *options)
    assert (code, sentence in said, output.exists()) == (2, True, False), said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--workers", 2), "Expected `--workers` with `--ray` only, but there is no `--ray`."),
        (("--ray", "--stage-correction", "a"), "Expected `--stage-correction` in one process or under torchrun"),
        (("--ray",), "Expected the package `ray` to be installed"),
    ],
)
def test_nor_does_predict_take_it(tmp_path, labels, capsys, monkeypatch, options, sentence):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, said = run(capsys, "predict", "nothing:build", "--data", labels, "-o", tmp_path / "x", *options)
    assert (code, sentence in said, (tmp_path / "x").exists()) == (2, True, False), said
