"""A new method is one file and one line: specifications, the command line, comparisons and sweeps then know it."""

import importlib.util
import json
import sys

import numpy as np
import pytest

import logn
from logn.calibrators import all_methods
from logn.calibrators.method_spec import parse_method
from logn.cli.main import execute
from logn.cli.options.methods import INPUT_FILES, with_method_options
from logn.cli.verbs import fit as fit_verb
from logn.evaluate.classification.compare import compare_classification
from logn.evaluate.comparison.method_fitting import fit_for_store, split_methods
from logn.evaluate.comparison.sweep import Sweep
from logn.evaluate.store.store import StoreHeader

MODULE = '''
import numpy as np
from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.method import Method, Option


def fit(inputs, options):
    """Raise rare classes by a root of their counts."""
    counts = inputs.needed_counts("images")
    raised = np.log1p(counts.max() / counts) ** options.get("power", 1.0)
    sign = -1.0 if options.get("direction") == "down" else 1.0
    return ClassAffine.over_foreground(np.ones(len(counts)), sign * raised, inputs.background, method="raise")


METHOD = Method(
    "raise",
    "what rare classes lack",
    fit,
    {
        "power": Option("number", "power of the lack; default 1.", flag="--lack-power"),
        "direction": Option("name", "up (default) or down.", ("up", "down"), flag="--direction"),
    },
    needs=("counts",),
    notes=lambda inputs, options, affine: ["Rare classes were raised."],
)
'''
COUNTS = [100, 10, 1]


@pytest.fixture
def raising(tmp_path, monkeypatch):
    """The method of a module that was written just now, at the end of the list."""
    path = tmp_path / "raise_rare.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("raise_rare", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "raise_rare", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(all_methods, "METHODS", (*all_methods.METHODS, module.METHOD))
    monkeypatch.setattr(fit_verb, "fit", with_method_options(fit_verb.fit.__wrapped__))
    return module.METHOD


def shifts(power=1.0):
    return np.log1p(max(COUNTS) / np.array(COUNTS)) ** power


def test_specifications_know_it(raising):
    np.testing.assert_allclose(logn.fit_method("raise:power=2", counts=COUNTS).shift, shifts(2))
    np.testing.assert_allclose(logn.fit_method("raise:direction=down", counts=COUNTS).shift, -shifts())
    assert parse_method("raise:direction=down,power=2") == ("raise", {"direction": "down", "power": 2.0})
    assert split_methods("logn,raise:direction=down,power=2,loga") == ["logn", "raise:direction=down,power=2", "loga"]
    for spec, sentence in [
        ("rise", r"one of none, recommended, logn, .*, raise, but got 'rise'"),
        ("raise:tau=1", "options of `raise` to be among power, direction, but got `tau`"),
        ("raise:direction=left", "`direction` to be one of up, down, but got 'left'"),
    ]:
        with pytest.raises(logn.InputError, match=sentence):
            logn.fit_method(spec, counts=COUNTS)
    with pytest.raises(logn.InputError, match="`counts` for the method `raise`"):
        logn.fit_method("raise")


def test_fit_has_its_options_and_its_help(raising, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    output = tmp_path / "affine.safetensors"
    (tmp_path / "counts.json").write_text(json.dumps(COUNTS))
    counts = ["--counts", str(tmp_path / "counts.json"), "-o", str(output)]
    assert execute(["fit", "--method", "raise", "--lack-power", "2", "--direction", "down", *counts]) == 0
    assert "Rare classes were raised." in capsys.readouterr().err
    np.testing.assert_allclose(logn.ClassAffine.load(output).shift, -shifts(2))
    assert execute(["fit", "--method", "norcal", "--lack-power", "2", *counts]) == 2
    assert "`--lack-power` only with the methods raise, but got `norcal`" in capsys.readouterr().err
    assert execute(["fit", "--method", "raise", "--gamma", "2", *counts]) == 2
    assert "`--gamma` only with the methods norcal, but got `raise`" in capsys.readouterr().err
    assert execute(["fit", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "raise (what rare classes lack)" in told
    assert "Options of loga, norcal, fracal, iif, raise" in told
    assert "raise: power of the lack; default 1." in told


def test_comparisons_and_sweeps_know_it(raising):
    assert Sweep.parse("lack_power=1:2:1").specs == ("raise:power=1", "raise:power=2")
    assert Sweep.parse("raise:power=1:2:1").specs == ("raise:power=1", "raise:power=2")
    header = StoreHeader(num_columns=4, background=0, activation="softmax")
    np.testing.assert_allclose(fit_for_store("raise", header, counts=COUNTS).shift, [0, *shifts()])
    logits = np.random.default_rng(0).normal(size=(60, 3))
    labels = np.arange(60) % 3
    found = compare_classification(logits, labels, ["raise"], counts=COUNTS, sweeps=["lack_power=1:2:1"], draws=0)
    assert [row.name for row in found.rows] == ["none", "raise", "raise:power=1", "raise:power=2"]
    np.testing.assert_allclose(found["raise:power=2"].transform.shift, shifts(2))


EVERYTHING = {
    "moments": "statistics",
    "counts": COUNTS,
    "weight": np.eye(3),
    "bias": np.zeros(3),
    "dimensions": [1.0, 1.0, 1.0],
    "active": [True] * 3,
}


@pytest.mark.parametrize("method", all_methods.METHODS, ids=lambda method: method.name)
def test_descriptions_say_what_methods_need(method):
    rows = np.random.default_rng(0).normal(size=(20, 3))
    moments = logn.ClassMoments(3, sample_rows=20)
    moments.update(rows)
    everything = EVERYTHING | {"moments": moments}
    needed = {"temperature": {"value": 2.0}, "fracal": {"num_images": 200}, "recommended": {"activation": "softmax"}}
    options = needed.get(method.name, {})
    enough = {name: everything[name] for name in method.needs}
    assert logn.FitInputs(**enough, num_columns=3).fit(method.name, options).num_classes == 3
    for name in method.needs:
        rest = {other: value for other, value in everything.items() if other != name}
        with pytest.raises(logn.InputError, match=f"`{name}`.*`{method.name}`"):
            logn.FitInputs(**rest).fit(method.name, options)
    assert set(method.needs) | set(method.takes) <= {*INPUT_FILES, "moments"}


def test_a_flag_is_of_one_kind_for_all_methods():
    described = [option for method in all_methods.METHODS for option in method.options.values() if option.flag]
    for flag in {option.flag for option in described}:
        assert len({(option.kind, option.choices) for option in described if option.flag == flag}) == 1
