"""Methods by name give what their functions give."""

from typing import Literal

import numpy as np
import pytest
from tests.conftest import moments_of

from logn.data.class_counts import ClassCounts
from logn.errors import InputError
from logn.measure.fitted_methods import fit_for_store
from logn.methods import (
    inverse_image_frequency,
    logit_adjustment,
    logit_normalization,
    norcal,
    prior2posterior,
    tau_norm,
    temperature,
)
from logn.methods.affine import ClassAffine
from logn.methods.catalog import METHODS, checked_inputs, fit, needs, parse
from logn.methods.fracal import fracal
from logn.methods.recommend import recommend
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

# The shared toy data of the reference: three classes, then the background.
LOGITS = np.array([[2, 0.5, -1, 3], [0, 1.5, -2, 4], [1, -0.5, 0.5, 2], [-1, 0, -3, 5.0]])
IMAGES, INSTANCES = np.array([60.0, 20, 1]), np.array([100.0, 10, 1])
WEIGHT, BIAS = np.array([[3, 4], [0.6, 0.8], [0, 0.5], [1, -1.0]]), np.array([0.1, 0.2, 0.3, 0.4])
DIMENSIONS = [1.8, 1.0, 1.0]


@pytest.fixture
def moments():
    names = ("cup", "spoon", "fork", "background")
    return moments_of(LOGITS, background=-1, names=names)


EXPECTED = {
    "none": lambda m: ClassAffine.identity(4, Head(background=-1)),
    "recommended": lambda m: recommend(m).fit(m),
    "recommended:strength=1": lambda m: recommend(m).fit(m, strength=1.0),
    "logn": lambda m: logit_normalization(m),
    "logn:margin=0": lambda m: logit_normalization(m, margin=0.0),
    "logn:margin=max,use_std=false": lambda m: logit_normalization(m, margin="max", use_std=False),
    "logn:strength=0.5,std_power=2,eps=0.1": lambda m: logit_normalization(m, strength=0.5, std_power=2, eps=0.1),
    "logn:statistic=prior,use_std=no": lambda m: prior2posterior(m),
    "logn:statistic=prior,use_std=0": lambda m: prior2posterior(m),
    "p2p": lambda m: prior2posterior(m),
    "p2p:strength=0.5,margin=0": lambda m: prior2posterior(m, strength=0.5, margin=0.0),
    "loga": lambda m: logit_adjustment(INSTANCES, background=-1),
    "loga:tau=0.5,priors=false": lambda m: logit_adjustment(INSTANCES, 0.5, priors=False, background=-1),
    "loga:count_kind=images": lambda m: logit_adjustment(IMAGES, background=-1),
    "norcal": lambda m: norcal(IMAGES, 0.6, background=-1),
    "norcal:gamma=0.9,weights=effective-number": lambda m: norcal(
        IMAGES, 0.9, weights="effective-number", background=-1
    ),
    "norcal:count_kind=instances,on_logits=true": lambda m: norcal(INSTANCES, 0.6, on_logits=True, background=-1),
    "fracal": lambda m: fracal(IMAGES, 100, DIMENSIONS, background=-1),
    "fracal:power=0,base=2,num_images=200": lambda m: fracal(IMAGES, 200, DIMENSIONS, power=0, base=2, background=-1),
    "iif": lambda m: inverse_image_frequency(IMAGES, background=-1),
    "iif:variant=raw": lambda m: inverse_image_frequency(IMAGES, "raw", background=-1),
    "tau-norm": lambda m: tau_norm(WEIGHT, 1.0, BIAS, background=-1),
    "tau-norm:tau=0.7": lambda m: tau_norm(WEIGHT, 0.7, BIAS, background=-1),
    "temperature:value=2": lambda m: temperature(4, 2.0, background=-1),
}


def _fit(spec, moments, **options):
    counts = ClassCounts(IMAGES, INSTANCES, ("cup", "spoon", "fork"), num_images=100)
    inputs = {"moments": moments, "counts": counts, "dimensions": DIMENSIONS, "weight": WEIGHT, "bias": BIAS}
    return fit(spec, **(inputs | options))


@pytest.mark.parametrize("spec", EXPECTED)
def test_a_specification_gives_what_the_function_gives(moments, spec):
    affine = _fit(spec, moments)
    assert affine == EXPECTED[spec](moments)
    assert affine.background == -1


def test_every_method_has_been_tried():
    assert {spec.partition(":")[0] for spec in EXPECTED} == {*METHODS}


def test_other_inputs_and_options(moments):
    shifted = fit("logn", moments=moments)(np.array([1.0, 0.8, 0.2, 1.5]))  # the paper's example
    np.testing.assert_allclose(shifted, [-0.677770, -1.112518, 0.133955, 1.5], atol=2e-6)
    counts = ClassCounts(IMAGES[::-1].copy(), names=("fork", "spoon", "cup"))
    assert fit("norcal", moments=moments, counts=counts) == norcal(IMAGES, 0.6, background=-1)
    # Plain counts need no statistics.
    assert fit("norcal", counts=[60, 20, 1], background=0) == norcal(IMAGES, 0.6, background=0)
    assert fit("temperature:value=2", counts=[60, 20, 1], background=0).num_columns == 4
    affine = fit("logn", moments=moments, active=[True, False, True, True])
    assert (affine.scale[1], affine.shift[1]) == (1, 0)
    assert parse("logn: margin=-2.5 ,use_std=NO") == ("logn", {"margin": -2.5, "use_std": False})
    assert fit("logn", moments, margin=0.0) == fit("logn:margin=0", moments)
    # What FRACAL refuses for sigmoids, it does for a softmax.
    recorded = ClassMoments(Head(3, activation="sigmoid"))
    fit("fracal:num_images=100", counts=[60, 20, 1], moments=recorded, activation="softmax")


SIGMOID = ClassMoments(Head(3, activation="sigmoid"))
FRACAL = "`fracal`"


@pytest.mark.parametrize(
    ("spec", "options", "sentence"),
    [
        ("logm", {}, "one of none, recommended, logn, p2p.*'logm'"),
        ("", {}, "one of none"),
        (
            "norcal:tau=1",
            {},
            "options of `norcal` to be among gamma, weights, on_logits, count_kind, target, but got `tau`",
        ),
        ("none:tau=1", {}, "among none, but got `tau`"),
        ("norcal:gamma", {}, "gamma=VALUE"),
        ("norcal:gamma=big", {}, "`gamma` to be a number, but got 'big'"),
        ("norcal:weights=odd", {}, "`weights` to be one of"),
        ("norcal:count_kind=boxes", {}, "`count_kind` to be one of images, instances"),
        ("logn:use_std=maybe", {}, "true or false"),
        ("logn:margin=huge", {}, "`margin` to be a number or one of"),
        ("temperature", {}, r"The method `temperature` needs `value` \(temperature:value=…\)"),
        ("logn:moments=1", {}, "options of `logn` to be among statistic"),
        ("logn:margin=0,margin=1", {}, "option `margin` of `logn` once, but got it twice"),
        ("logn:margin=0", {"margin": 0.0}, "option `margin` of `logn` once, but got it twice"),
        ("logn", {"strenght": 0.5}, r"options of `logn` to be among .*, but got `strenght`"),
        ("norcal", {"counts": [1, 2, 3, 4]}, "`counts` to have 3 foreground classes, but got 4"),
        ("tau-norm", {"weight": WEIGHT[:3], "bias": None}, "of 3 columns, but the logits have 4"),
        ("none", {"moments": None, "counts": None, "weight": None}, "needs `moments`, `counts` or `num_columns`: pass"),
        ("fracal", {"moments": None, "counts": [60, 20, 1], "weight": None}, "needs `num_images`"),
        ("fracal:num_images=100", {"moments": None, "activation": "sigmoid"}, FRACAL),
        ("fracal:num_images=100", {"moments": SIGMOID, "counts": [60, 20, 1]}, FRACAL),
        ("loga:target=training", {"moments": None, "counts": None}, "needs the class mix of training: pass"),
    ],
)
def test_mistakes_are_named(moments, spec, options, sentence):
    with pytest.raises(InputError, match=sentence):
        _fit(spec, **({"moments": moments} | options))


def test_unknown_inputs_are_named():
    with pytest.raises(InputError, match=r"inputs of methods to be among moments, counts, .*, but got `count`"):
        checked_inputs({"count": [3, 2]})


@pytest.mark.parametrize("name", METHODS)
def test_signatures_say_what_methods_need(moments, name):
    everything = {"moments": moments, "counts": ClassCounts(IMAGES, num_images=100), "weight": WEIGHT}
    enough = {key: everything[key] for key in needs(name) if key != "num_columns"}
    options = {"temperature": {"value": 2.0}}.get(name, {})
    affine = fit(name, **enough, num_columns=4, background=-1, **options)
    assert affine.num_columns == 4
    for key in enough:
        others = {other: value for other, value in everything.items() if other != key}
        with pytest.raises(InputError, match=f"The method `{name}` needs `{key}`"):
            fit(name, **others, **options)


def raise_rare(counts, power: float = 1.0, *, direction: Literal["up", "down"] = "up", background=None):
    """A new method: a function and a line."""
    raised = np.log1p(counts.image_counts.max() / counts.image_counts) ** power
    sign = -1.0 if direction == "down" else 1.0
    return ClassAffine.over_foreground(np.ones(len(raised)), sign * raised, Head(background=background), method="raise")


def test_a_new_method_is_a_function_and_a_line(monkeypatch):
    monkeypatch.setitem(METHODS, "raise", raise_rare)
    counts, shifts = [100, 10, 1], np.log1p(100 / np.array([100.0, 10, 1]))
    np.testing.assert_allclose(fit("raise:direction=down,power=2", counts=counts).shift, -(shifts**2))
    assert parse("raise:direction=down,power=2") == ("raise", {"direction": "down", "power": 2.0})
    assert needs("raise") == ("counts",)
    head = Head(4, background=0, activation="softmax")
    np.testing.assert_allclose(fit_for_store("raise", head, counts=counts).shift, [0, *shifts])
    for spec, sentence in [
        ("rise", r"one of none, recommended, logn, .*, raise, but got 'rise'"),
        ("raise:tau=1", "options of `raise` to be among power, direction, but got `tau`"),
        ("raise:direction=left", "`direction` to be one of up, down, but got 'left'"),
    ]:
        with pytest.raises(InputError, match=sentence):
            fit(spec, counts=counts)
