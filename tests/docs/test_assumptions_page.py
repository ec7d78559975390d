"""The page on what is assumed, kept and refused: what each row says happens."""

import contextlib
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import logn
from logn.cli.main import execute
from logn.logits.arrays import softmax
from logn.statistics.moments import StatisticsMetadata

torch = pytest.importorskip("torch")
nn = torch.nn

PAGE = Path(__file__).parents[2] / "docs" / "assumptions.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")

# A frequent class first; the last column lies above all others.
LOGITS = np.random.default_rng(0).standard_normal((400, 6)) * [1.5, 1.2, 1.0, 0.8, 0.7, 1.0] - [2, 3, 4, 5, 6, -9]
CLASSES = LOGITS[:, :5]
# The first cannot be tried, as the page says; the others are by tests/deploy/test_onnx_fold.py, by
# tests/frameworks/ray, and by the test of the page on the report.
NOT_TRIED_HERE = {
    "A class has too few objects to choose its threshold by",  # tests/evaluate/test_operating_points.py
    "The statistics are of some images",
    "An ONNX file is corrected",
    "Workers of Ray die again and again over a block, make different models, or cannot get the function that makes it",
    "A comparison is saved",
}
CHECKS = {}


def row(situation):
    """Name the row of the page that a function tries."""

    def keep(function):
        CHECKS[situation] = function
        return function

    return keep


@row("Counts have class names and the model has none")
def named_counts(tmp_path, capsys):
    moments = moments_of(np.random.default_rng(0).normal(size=(50, 2)))
    counts = logn.ClassCounts([90, 10], names=("cat", "dog"))
    with warned("taken in their order, from 'cat' for the first class of the model to 'dog' for the last"):
        affine = logn.methods.fit("loga", moments=moments, counts=counts)
    plain = logn.methods.fit("loga", moments=moments, counts=[90, 10])
    np.testing.assert_array_equal(affine.shift, plain.shift)


def moments_of(logits, **metadata):
    moments = logn.ClassMoments(logits.shape[1], sample_rows=400, metadata=StatisticsMetadata(**metadata))
    moments.update(logits)
    return moments


def expected_detections(logits):
    return (1 / (1 + np.exp(-logits))).sum(axis=1).mean()


def classifier(columns=5):
    return nn.Sequential(nn.Linear(4, columns)).eval()


def recorded(model, layer, **options):
    with logn.record(model, layer, **options) as moments, torch.inference_mode():
        model(torch.rand(50, 4))
    return moments


def refused(words):
    return pytest.raises(logn.InputError, match=words)


def warned(words):
    return pytest.warns(logn.LogNWarning, match=words)


class Sum(nn.Module):
    """Returns a sum of two layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(4, 5)

    def forward(self, features):
        return self.a(features) + self.b(features)


class Returns(Sum):
    """Returns what `ending` makes of two layers."""

    def __init__(self, ending):
        super().__init__()
        self.ending = ending

    def forward(self, features):
        return self.ending(self, features)


class TakesPairs(nn.Module):
    """The difference of two inputs is classified."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 5)

    def forward(self, pair):
        left, right = pair
        return self.head(left - right)


class Cosine(nn.Linear):
    """Normalises its weight in every pass."""

    def forward(self, features):
        return nn.functional.linear(features, nn.functional.normalize(self.weight))


@row("The activation is not known, and there is no background")
def unknown_activation(tmp_path, capsys):
    with warned("Assumed sigmoid"):
        assert logn.recommend(moments_of(CLASSES)).activation == "sigmoid"
    assert logn.recommend(moments_of(CLASSES), activation="softmax").activation == "softmax"
    moments_of(CLASSES).save(tmp_path / "stats.safetensors")
    assert execute(["fit", str(tmp_path / "stats.safetensors"), "-o", str(tmp_path / "affine.safetensors")]) == 0
    assert "Softmax or sigmoid?" in capsys.readouterr().err


@row("There is a background")
def background(tmp_path, capsys):
    affine = logn.logit_normalization(moments_of(LOGITS), background=-1)
    assert (affine.scale[-1], affine.shift[-1], affine.source.activation) == (1, 0, "softmax")


@row("No background is named")
def no_background(tmp_path, capsys):
    np.save(tmp_path / "logits.npy", LOGITS)
    target = tmp_path / "stats.safetensors"
    assert execute(["collect", str(tmp_path / "logits.npy"), "-o", str(target)]) == 0
    assert "as a background does" in capsys.readouterr().err
    assert logn.ClassMoments.load(target).metadata.background is None


@row("A column was never seen, or does not vary")
def dead_column(tmp_path, capsys):
    logits = np.hstack([CLASSES, np.full((400, 1), -50.0), LOGITS[:, 5:]])
    affine = logn.logit_normalization(moments_of(logits), background=-1, margin="min")
    without = logn.logit_normalization(moments_of(LOGITS), background=-1, margin="min")
    assert (affine.scale[5], affine.shift[5]) == (1, 0)
    np.testing.assert_allclose(affine.shift[:5], without.shift[:5], rtol=1e-9)


@row("No method is named")
def no_method(tmp_path, capsys):
    moments = moments_of(LOGITS, background=-1)
    moments.save(tmp_path / "stats.safetensors")
    assert execute(["fit", str(tmp_path / "stats.safetensors"), "-o", str(tmp_path / "affine.safetensors")]) == 0
    assert logn.ClassAffine.load(tmp_path / "affine.safetensors") == logn.recommend(moments).fit(moments)
    found = logn.calibrate(classifier(), [torch.rand(50, 4)])
    assert found.affine == logn.recommend(found.moments).fit(found.moments)


@row("A sigmoid head is corrected as recommended")
def kept_detections(tmp_path, capsys):
    moments = moments_of(CLASSES, activation="sigmoid")
    affine = logn.recommend(moments, threshold=0.3).fit(moments)
    before, after = (1 / (1 + np.exp(-logits)) > 0.3 for logits in (CLASSES, affine(CLASSES)))
    assert abs(int(after.sum()) - int(before.sum())) <= 3  # the sample is of half precision


@row("A map is attached")
def attached(tmp_path, capsys):
    model, images = classifier(), torch.rand(3, 4)
    before, plain = model[0].weight.clone(), model(images)
    handle = logn.attach(model, logn.LogitLayer("0"), logn.ClassAffine(np.full(5, 2.0), np.ones(5)))
    with warned("not in the state dict"):
        state = model.state_dict()
    assert torch.equal(state["0.weight"], before)
    assert not torch.equal(model(images), plain)
    handle.remove()
    assert torch.equal(model(images), plain)
    assert sorted(model.state_dict()) == sorted(state)


@row("A map is folded")
def folded(tmp_path, capsys):
    model, layer, affine = classifier(), logn.LogitLayer("0"), logn.ClassAffine(np.full(5, 2.0), np.ones(5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logn.fold(model, layer, affine)
    after = model.state_dict()
    assert [(name, value.shape, value.dtype) for name, value in after.items()] == [
        (name, value.shape, value.dtype) for name, value in before.items()
    ]
    torch.testing.assert_close(after["0.weight"], 2 * before["0.weight"])
    logn.fold(model, layer, affine.inverse(), allow_refold=True)
    torch.testing.assert_close(model.state_dict()["0.weight"], before["0.weight"])


@row("A map meets a sigmoid head")
def order_of_sigmoids(tmp_path, capsys):
    mapped = logn.logit_normalization(moments_of(CLASSES, activation="sigmoid"))(CLASSES)
    np.testing.assert_array_equal(mapped.argsort(axis=0), CLASSES.argsort(axis=0))


@row("Logits are mapped")
def mapped_kinds(tmp_path, capsys):
    affine = logn.ClassAffine(np.full(5, 2.0), np.ones(5))
    for logits in (CLASSES.astype(np.float16), CLASSES.astype(np.float32), torch.from_numpy(CLASSES).half()):
        kept = torch.as_tensor(logits).clone()
        assert type(affine(logits)) is type(logits)
        assert affine(logits).dtype == logits.dtype
        assert torch.equal(torch.as_tensor(logits), kept)


@row("Statistics are merged")
def merged(tmp_path, capsys):
    whole, parts = moments_of(CLASSES), [moments_of(CLASSES[100:]), moments_of(CLASSES[:100])]
    parts[0].merge(parts[1])
    assert parts[0].count.tolist() == whole.count.tolist()
    np.testing.assert_allclose(parts[0].mean, whole.mean, rtol=1e-13)
    np.testing.assert_allclose(parts[0].variance, whole.variance, rtol=1e-13)


@row("A map or statistics of another layer, other weights, classes or another activation")
def other_model(tmp_path, capsys):
    model, other, layer = classifier(), classifier(), logn.LogitLayer("0")
    affine = logn.logit_normalization(recorded(model, layer))
    for use in (logn.attach, logn.fold):
        with refused("of the weights of"):
            use(other, layer, affine)
    with warned("of the weights of"):
        logn.attach(other, layer, affine, allow_mismatch=True)
    sigmoids = logn.ClassAffine(np.ones(5), np.zeros(5), source=StatisticsMetadata(activation="sigmoid"))
    with refused("to be of a softmax"):
        logn.attach(model, logn.LogitLayer("0", activation="softmax"), sigmoids)
    elsewhere = logn.ClassAffine(np.ones(5), np.zeros(5), source=StatisticsMetadata(layer="1"))
    with refused("of `0`, but it was recorded at `1`"):
        logn.attach(model, layer, elsewhere)


@row("A map of another number of columns, or with the background elsewhere")
def other_columns(tmp_path, capsys):
    with refused("to have 5 columns"):
        logn.attach(classifier(), logn.LogitLayer("0"), logn.ClassAffine(np.ones(4), np.zeros(4)), allow_mismatch=True)
    last = logn.logit_normalization(moments_of(CLASSES), background=-1)
    with refused("background at 0"):
        logn.attach(classifier(), logn.LogitLayer("0", background=0), last, allow_mismatch=True)


@row("The class layer is not what the model returns, or a temperature or a forward hook lies between")
def other_layer(tmp_path, capsys):
    with refused("is not made of them alone"):
        recorded(Sum().eval(), logn.LogitLayer("a"))
    assert recorded(Sum().eval(), logn.LogitLayer("a"), check_output=False).count.max() == 50
    with refused("a temperature"):
        recorded(Returns(lambda model, features: model.a(features) / 2).eval(), logn.LogitLayer("a"))
    hooked = classifier()
    hooked[0].register_forward_hook(lambda module, inputs, output: output + 1)
    with refused("a forward hook on it changes that"):
        recorded(hooked, logn.LogitLayer("0"))


@row(
    "The model returns several tensors, and their names do not tell the class scores (`logits`, `pred_logits`, `out`, "
    "`cls…`, `scores`)"
)
def several_tensors(tmp_path, capsys):
    with refused("returns several tensors that fit, of the layers b .*, a "):
        logn.locate_logits(Returns(lambda model, features: (model.b(features), model.a(features))).eval())
    named = Returns(lambda model, features: {"b": model.b(features), "logits": model.a(features)})
    assert logn.locate_logits(named.eval()).path == "a"


@row("Something else in the model reads the class layer or its logits")
def read_elsewhere(tmp_path, capsys):
    model = Returns(lambda model, features: {"logits": model.a(features), "other": model.a(features).cumsum(1)}).eval()
    with refused("but the output `other` changes too"):
        logn.calibrate(model, [torch.rand(50, 4)], layer=logn.LogitLayer("a"), method="logn")


@row("The class layer has no bias")
def no_bias(tmp_path, capsys):
    model, affine = nn.Sequential(nn.Linear(4, 5, bias=False)).eval(), logn.ClassAffine(np.full(5, 2.0), np.ones(5))
    with refused("to have a bias, where the correction goes"):
        logn.fold(model, logn.LogitLayer("0"), affine)
    logn.attach(model, logn.LogitLayer("0"), affine)


@row("The model returns a sum or a product of several layers")
def mixed_layers(tmp_path, capsys):
    with refused("returns something else .a sum of several"):
        logn.locate_logits(Sum().eval())


@row("A classifier takes no random images")
def untold_layer(tmp_path, capsys):
    model, images = TakesPairs().eval(), {"x": torch.rand(2, 8, 4)}
    with refused("Expected `inputs`"):
        logn.locate_logits(model)
    assert logn.locate_logits(model, inputs=images).path == "head"
    affine = logn.calibrate(model, [images]).affine
    assert affine.source.layer == "head"


@row("The model has a single logit")
def single_logit(tmp_path, capsys):
    with refused("a single logit"):
        logn.locate_logits(classifier(1))
    with refused("a single logit"):
        recorded(classifier(1), logn.LogitLayer("0"))
    with warned("There is one logit"):
        logn.logit_normalization(moments_of(CLASSES[:, :1]))


@row("The model is in training mode")
def training_mode(tmp_path, capsys):
    model = classifier().train()
    with warned("in training mode"):
        recorded(model, logn.LogitLayer("0"))
    modes = []
    model.register_forward_hook(lambda module, images, logits: modes.append(module.training))
    logn.calibrate(model, [torch.rand(50, 4)])
    assert modes
    assert not any(modes)
    assert model.training


@row("Rows that sum to 1 are given as logits")
def probabilities(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", softmax(CLASSES))
    statistics = tmp_path / "stats.safetensors"
    assert execute(["collect", str(tmp_path / "rows.npy"), "-o", str(statistics)]) == 0
    assert "as probabilities do" in capsys.readouterr().err
    assert execute(["fit", str(statistics), "-o", str(tmp_path / "affine.safetensors")]) == 2
    assert not (tmp_path / "affine.safetensors").exists()
    with refused("of probabilities"):
        logn.logit_normalization(moments_of(softmax(CLASSES)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logn.logit_normalization(moments_of(np.log(softmax(CLASSES).clip(1e-12))))


@row("All values lie between 0 and 1, and rows do not sum to 1")
def scores_of_sigmoids(tmp_path, capsys):
    with warned("between 0 and 1"):
        logn.logit_normalization(moments_of(1 / (1 + np.exp(-CLASSES))))


@row("There are fewer than 100 rows, or more columns than rows")
def few_rows(tmp_path, capsys):
    for rows, words in ((CLASSES[:99], "only 99 rows"), (CLASSES[:100], ""), (CLASSES.T, "more columns")):
        np.save(tmp_path / "rows.npy", rows)
        assert execute(["collect", str(tmp_path / "rows.npy"), "-o", str(tmp_path / "stats.safetensors")]) == 0
        shown = capsys.readouterr().err
        assert words in shown if words else "Warning" not in shown


@row("A logit is not finite")
def not_finite(tmp_path, capsys):
    with refused("for class 2"):
        moments_of(np.where(np.arange(5) == 2, np.nan, CLASSES))
    lenient = logn.ClassMoments(5, nonfinite="skip")
    lenient.update(np.where(np.arange(5) == 2, np.inf, CLASSES))
    assert lenient.skipped.tolist() == [0, 0, 400, 0, 0]


@row("The layer has a map folded into it already")
def folded_twice(tmp_path, capsys):
    model, layer, affine = classifier(), logn.LogitLayer("0"), logn.ClassAffine(np.full(5, 2.0), np.ones(5))
    logn.fold(model, layer, affine)
    for use in (logn.attach, logn.fold):
        with refused("no map folded into it"):
            use(model, layer, affine)


@row("The weights cannot take the map (a cosine head, quantised weights)")
def cosine_head(tmp_path, capsys):
    model, layer = nn.Sequential(Cosine(4, 5)).eval(), logn.LogitLayer("0")
    affine, images = logn.ClassAffine(np.full(5, 2.0), np.ones(5)), torch.rand(3, 4)
    plain = model(images)
    with refused("a cosine head"):
        logn.fold(model, layer, affine)
    logn.attach(model, layer, affine)
    torch.testing.assert_close(model(images), 2 * plain + 1)


@row("The model is a file of an engine (OpenVINO, LiteRT, TensorRT, Core ML)")
def engine_files(tmp_path, capsys):
    (tmp_path / "model.tflite").write_bytes(b"")
    logn.ClassAffine(np.ones(5), np.zeros(5)).save(tmp_path / "map.safetensors")
    assert execute(["fold", "model.tflite", "map.safetensors", "-o", "out.onnx"]) == 2
    assert "fold the model before it is converted" in " ".join(capsys.readouterr().err.split())


@row("A callback cannot correct the best checkpoint where a training ends")
def callback_without_a_checkpoint(tmp_path, capsys):
    from types import SimpleNamespace

    from logn.callbacks.ultralytics import LogNCallback

    with pytest.warns(logn.errors.LogNWarning, match="No corrected checkpoint was written: Expected"):
        LogNCallback()(SimpleNamespace(metrics={}, best=tmp_path / "best.pt"))


@row("Statistics that describe different things are merged")
def different_statistics(tmp_path, capsys):
    with refused("one `population`"):
        moments_of(CLASSES, population="images").merge(moments_of(CLASSES, population="queries"))


@row("An image cannot be read, or has numbers of 32 bits")
def unreadable_images(tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    from logn.logits.images import read_rgb

    (tmp_path / "cut.png").write_bytes(b"\x89PNG")
    image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "wide.tiff")
    for name in ("cut.png", "wide.tiff"):
        with refused(name):
            read_rgb(tmp_path / name)
    image.fromarray(np.full((4, 4), 65535 // 2, np.uint16)).save(tmp_path / "grey.png")
    assert read_rgb(tmp_path / "grey.png").max() in (127, 128)


@row("An output would replace an input, or a file of another kind")
def outputs(tmp_path, capsys):
    source, taken = tmp_path / "rows.npy", tmp_path / "taken.safetensors"
    np.save(source, CLASSES)
    logn.ClassAffine(np.ones(5), np.zeros(5)).save(taken)
    for output in (source, taken):
        content = output.read_bytes()
        assert execute(["collect", str(source), "-o", str(output)]) == 2
        assert output.read_bytes() == content


@row("Thresholds per class are folded into sigmoids")
def folded_sigmoids(tmp_path, capsys):
    thresholds = [0.5, 0.4, 0.3, 0.2, 0.1]
    points = logn.OperatingPoints.from_thresholds(dict(zip("abcde", thresholds, strict=True)))
    folded = points.affine(at=0.5)(CLASSES)
    np.testing.assert_array_equal(folded >= 0, 1 / (1 + np.exp(-CLASSES)) >= thresholds)


@row("Thresholds per class are folded into a softmax")
def folded_softmax(tmp_path, capsys):
    points = replace(logn.OperatingPoints.from_thresholds({"a": 0.5}), source=StatisticsMetadata(activation="softmax"))
    with refused("`predictions`"):
        points.affine(0.05)


def rows_of_page():
    lines = re.findall(r"^\| (.+?) \|", PAGE.read_text(encoding="utf-8"), flags=re.M)
    return [line for line in lines if line != "situation"]


def test_every_row_is_tried():
    assert set(CHECKS) | NOT_TRIED_HERE == set(rows_of_page())
    assert not set(CHECKS) & NOT_TRIED_HERE


@pytest.mark.parametrize("situation", CHECKS)
def test_what_a_row_says_happens(situation, tmp_path, capsys):
    with contextlib.chdir(tmp_path):
        CHECKS[situation](tmp_path, capsys)
