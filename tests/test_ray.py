"""Collecting over a real local Ray of two workers gives what one process gives, whatever happens to the workers.

`examples/many_machines.py` too: as a script on a Ray of its own; its recipe for Spark on a stand-in for a DataFrame.
`make test-ray` runs these tests; without the package they are skipped.
"""

import functools
import importlib.util
import io
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import logn
from logn.data.images import read_rgb

ray = pytest.importorskip("ray", reason="needs Ray: make test-ray")

BLOCKS = 6
SCRIPT = Path(__file__).parents[1] / "examples" / "many_machines.py"


@pytest.fixture(scope="session")
def cluster():
    """A local Ray that gives out four cores, whatever the machine has: two workers, and readers beside them."""
    # A busy machine is no error, and workers are not to wait behind everything else that runs on it.
    patience = ("gcs_rpc_server_connect_timeout_s", "gcs_server_request_timeout_seconds", "raylet_start_wait_time_s")
    for name, value in {**dict.fromkeys(patience, 600), "worker_niceness": 0}.items():
        os.environ[f"RAY_{name}"] = str(value)
    local = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ray.init(num_cpus=4, configure_logging=False, log_to_driver=False, **local)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Thirty little pictures in a folder, of one size."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for number in range(30):
        pixels = generator.integers(0, 256, (6, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return folder


def make_model():
    """A linear layer on the pixels, in float64: what it gives for an image does not depend on the rest of a batch."""
    import torch

    torch.manual_seed(0)
    linear = torch.nn.Linear(6 * 8 * 3, 5)
    return torch.nn.Sequential(torch.nn.Flatten(), linear).double()


def to_double(image):
    import torch

    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).double() / 255


# Workers cannot import this file: what is defined here travels by value.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
LAYER = logn.LogitLayer("1", activation="softmax")
OPTIONS = {"layer": LAYER, "like": to_double, "batch": 2, "workers": 2}


@pytest.fixture(scope="module")
def one_process(pictures):
    model = make_model().eval()
    with logn.record(model, LAYER) as moments, torch.inference_mode():
        for path in sorted(pictures.iterdir()):
            model(to_double(read_rgb(path))[None])
    return moments


def assert_equal(found, expected):
    np.testing.assert_array_equal(found.count, expected.count)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-12)
    np.testing.assert_allclose(found.mean_probability, expected.mean_probability, rtol=1e-12)
    np.testing.assert_array_equal(*(moments.sample[np.lexsort(moments.sample.T)] for moments in (found, expected)))
    assert found.head == expected.head


def rows_of(pictures, form, folder):
    paths = [str(path) for path in sorted(pictures.iterdir())]
    if form == "paths":
        return ray.data.from_items([{"path": path} for path in paths], override_num_blocks=BLOCKS)
    contents = [Path(path).read_bytes() for path in paths]
    if form == "pixels":
        items = [{"image": read_rgb(path), "path": path} for path in paths]
        return ray.data.from_items(items, override_num_blocks=BLOCKS)
    if form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        for part in range(3):
            pq.write_table(pa.table({"bytes": contents[part::3], "path": paths[part::3]}), folder / f"{part}.parquet")
        return ray.data.read_parquet(str(folder))
    with tarfile.open(folder / "shard-0.tar", "w") as tar:
        for path, content in zip(paths, contents, strict=True):
            entry = tarfile.TarInfo(os.path.basename(path))
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return ray.data.read_webdataset(str(folder / "shard-0.tar"), decoder=False)


@pytest.mark.parametrize("form", ["paths", "pixels", "parquet", "webdataset"])
def test_equal_to_one_process(cluster, pictures, one_process, tmp_path, form):
    steps = []
    found = logn.ray.collect(rows_of(pictures, form, tmp_path), make_model, **OPTIONS, progress=steps.append)
    assert_equal(found, one_process)
    assert sum(steps) == 30


def test_a_killed_worker_changes_nothing(cluster, pictures, one_process, tmp_path):
    """The first worker that has answered a block is killed in the middle of its next, after logits were recorded."""
    mark = tmp_path / "killed"

    def make_deadly():
        model = make_model()
        seen = []

        def die_once(module, inputs, output):
            seen.append(len(output))
            if sum(seen) >= 7 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        model.register_forward_hook(die_once)
        return model

    found = logn.ray.collect(rows_of(pictures, "paths", tmp_path), make_deadly, **OPTIONS)
    assert mark.exists()
    assert_equal(found, one_process)


def test_a_worker_that_always_dies_is_given_up_in_one_sentence(cluster, pictures, monkeypatch):
    monkeypatch.setattr(logn.ray, "RETRIES", 1)

    def make_deadly():
        os.kill(os.getpid(), signal.SIGKILL)

    rows = ray.data.from_items([{"path": str(next(pictures.iterdir()))}])
    with pytest.raises(logn.InputError, match=r"^The worker of a block died 2 times: [^\n]*\.$"):
        logn.ray.collect(rows, make_deadly, **OPTIONS | {"workers": 1})


def test_corrupt_images_are_left_out_and_counted(cluster, pictures, one_process, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(next(pictures.iterdir()).read_bytes()[:40])
    contents = [{"bytes": path.read_bytes()} for path in [broken, *sorted(pictures.iterdir()), broken]]
    rows = ray.data.from_items(contents, override_num_blocks=len(contents))  # blocks without any good image
    with pytest.warns(logn.LogNWarning, match=r"^2 images could not be read and were left out: The image `an image of"):
        found = logn.ray.collect(rows, make_model, **OPTIONS)
    assert_equal(found, one_process)


def test_a_detector(cluster, pictures, tmp_path):
    """One that prepares its images itself gives what `logn.correct` sees in one process."""

    def make_detector():
        from torchvision.models.detection import ssdlite320_mobilenet_v3_large

        torch.manual_seed(0)
        return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)

    paths = sorted(pictures.iterdir())[:4]
    rows = ray.data.from_items([{"path": str(path)} for path in paths], override_num_blocks=2)
    found = logn.ray.collect(rows, make_detector, workers=2, batch=2)
    alone = logn.correct(make_detector(), paths).moments[0]
    np.testing.assert_array_equal(found.count, alone.count)
    np.testing.assert_allclose(found.mean, alone.mean, rtol=1e-5)
    assert found.head == alone.head


@pytest.mark.parametrize(
    ("rows", "make", "options", "message"),
    [
        (["a.png"], make_model, {}, r"to be a ray.data.Dataset, but got list"),
        ([], make_model, {}, r"`dataset` holds no image that can be read\.$"),
        ([{"path": "gone.png"}], make_model, {}, r"holds no image that can be read\. .*`gone\.png`"),
        ([{"photo": b""}], make_model, {}, r"has the columns photo, none of which is image, .*: name the column of"),
        ([{"photo": b""}], make_model, {"image_column": "photo"}, r"no image that can be read\. .*`an image of"),
        ([{"path": "a.png"}], 3, {}, "`make_model` to be a function that makes the model on each worker, but got int"),
        ([{"path": "a.png"}], lambda: 3, {}, "`int` gives int where a torch module is needed"),
    ],
)
def test_what_does_not_fit_is_one_sentence(cluster, rows, make, options, message):
    dataset = rows if rows == ["a.png"] else ray.data.from_items(rows)
    with pytest.raises(logn.InputError, match=message):
        logn.ray.collect(dataset, make, **OPTIONS | {"workers": 1} | options)


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("many_machines", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def contents(pictures):
    return [path.read_bytes() for path in sorted(pictures.iterdir())]


@pytest.fixture(scope="module")
def expected(recipe, contents):
    return logn.ClassMoments.from_bytes(recipe.statistics_of(contents))


def assert_same(found, expected):
    np.testing.assert_array_equal(found.count, expected.count)
    assert found.head == expected.head
    # float32 of a network, whose last digits depend on the batch.
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-3)


def test_the_script(pictures, expected, tmp_path):
    output = tmp_path / "statistics.safetensors"
    source = str(Path(logn.__file__).parents[1])  # also where it is not installed
    done = subprocess.run(
        [sys.executable, SCRIPT, pictures, output],
        env=os.environ | {"PYTHONPATH": source, "RAY_worker_niceness": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert_same(logn.ClassMoments.load(output), expected)


class DataFrame:
    """What the recipe uses of Spark's, in one process: partitions of batches of Arrow."""

    def __init__(self, partitions):
        self.partitions = partitions

    def select(self, column):
        return DataFrame([[batch.select([column]) for batch in part] for part in self.partitions])

    def mapInArrow(self, function, schema):  # noqa: N802 - as Spark calls it
        assert schema == "moments binary"
        rows = [row for part in self.partitions for batch in function(iter(part)) for row in batch.to_pylist()]
        return SimpleNamespace(rdd=Rows(SimpleNamespace(**row) for row in rows))


class Rows(list):
    def map(self, function):
        return Rows(map(function, self))

    def treeReduce(self, function):  # noqa: N802 - as Spark calls it
        return functools.reduce(function, self)


def test_the_recipe_for_spark(recipe, contents, expected):
    import pyarrow

    def batch(images):
        return pyarrow.RecordBatch.from_pydict({"path": [""] * len(images), "content": images})

    partitions = [[batch(contents[:4]), batch(contents[4:9])], [], [batch(contents[9:])]]
    partitions.append([partitions[2][0].slice(0, 0)])  # an empty batch
    assert_same(recipe.over_spark(DataFrame(partitions)), expected)
