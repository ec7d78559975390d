"""Methods by name give what their functions give."""

import numpy as np
import pytest

from logn.calibrators.all_methods import METHODS
from logn.calibrators.class_affine import ClassAffine
from logn.calibrators.method_spec import fit_method, parse_method
from logn.calibrators.methods.fracal import fracal
from logn.calibrators.methods.inverse_image_frequency import inverse_image_frequency
from logn.calibrators.methods.logit_adjustment import logit_adjustment
from logn.calibrators.methods.logit_normalization import logit_normalization
from logn.calibrators.methods.norcal import norcal
from logn.calibrators.methods.prior2posterior import prior2posterior
from logn.calibrators.methods.tau_norm import tau_norm
from logn.calibrators.methods.temperature import temperature
from logn.calibrators.recommend import recommend
from logn.classes.counts import ClassCounts
from logn.errors import InputError
from logn.statistics.moments import ClassMoments, StatisticsMetadata

# The shared toy data of the reference: three classes, then the background.
LOGITS = np.array([[2, 0.5, -1, 3], [0, 1.5, -2, 4], [1, -0.5, 0.5, 2], [-1, 0, -3, 5.0]])
IMAGES, INSTANCES = np.array([60.0, 20, 1]), np.array([100.0, 10, 1])
WEIGHT, BIAS = np.array([[3, 4], [0.6, 0.8], [0, 0.5], [1, -1.0]]), np.array([0.1, 0.2, 0.3, 0.4])
DIMENSIONS = [1.8, 1.0, 1.0]


@pytest.fixture
def moments():
    names = ("cup", "spoon", "fork", "background")
    metadata = StatisticsMetadata(background=-1, class_names=names)
    moments = ClassMoments(4, sample_rows=10, mean_probability=True, metadata=metadata)
    moments.update(LOGITS)
    return moments


EXPECTED = {
    "none": lambda m: ClassAffine.identity(4, -1),
    "recommended": lambda m: recommend(m).fit(m),
    "recommended:strength=1": lambda m: recommend(m).fit(m, strength=1.0),
    "logn": lambda m: logit_normalization(m),
    "logn:margin=0": lambda m: logit_normalization(m, margin=0.0),
    "logn:margin=max,use_std=false": lambda m: logit_normalization(m, margin="max", use_std=False),
    "logn:strength=0.5,std_power=2,eps=0.1": lambda m: logit_normalization(m, strength=0.5, std_power=2, eps=0.1),
    "logn:statistic=prior,use_std=no": lambda m: prior2posterior(m),
    "p2p": lambda m: prior2posterior(m),
    "p2p:strength=0.5,margin=0": lambda m: prior2posterior(m, strength=0.5, margin=0.0),
    "loga": lambda m: logit_adjustment(INSTANCES, background=-1),
    "loga:tau=0.5,priors=false": lambda m: logit_adjustment(INSTANCES, 0.5, priors=False, background=-1),
    "loga:counts=images": lambda m: logit_adjustment(IMAGES, background=-1),
    "norcal": lambda m: norcal(IMAGES, 0.6, background=-1),
    "norcal:gamma=0.9,weights=effective-number": lambda m: norcal(
        IMAGES, 0.9, weights="effective-number", background=-1
    ),
    "norcal:counts=instances,on_logits=true": lambda m: norcal(INSTANCES, 0.6, on_logits=True, background=-1),
    "fracal": lambda m: fracal(IMAGES, 100, DIMENSIONS, background=-1),
    "fracal:strength=0,base=2,num_images=200": lambda m: fracal(
        IMAGES, 200, DIMENSIONS, strength=0, base=2, background=-1
    ),
    "iif": lambda m: inverse_image_frequency(IMAGES, background=-1),
    "iif:variant=raw": lambda m: inverse_image_frequency(IMAGES, "raw", background=-1),
    "tau-norm": lambda m: tau_norm(WEIGHT, 1.0, BIAS, background=-1),
    "tau-norm:tau=0.7": lambda m: tau_norm(WEIGHT, 0.7, BIAS, background=-1),
    "temperature:value=2": lambda m: temperature(4, 2.0, background=-1),
}


def _fit(spec, moments):
    counts = ClassCounts(IMAGES, INSTANCES, ("cup", "spoon", "fork"), num_images=100)
    return fit_method(spec, moments=moments, counts=counts, dimensions=DIMENSIONS, weight=WEIGHT, bias=BIAS)


@pytest.mark.parametrize("spec", EXPECTED)
def test_a_specification_gives_what_the_function_gives(moments, spec):
    affine = _fit(spec, moments)
    assert affine == EXPECTED[spec](moments)
    assert affine.background == -1


def test_every_method_has_been_tried():
    assert {spec.partition(":")[0] for spec in EXPECTED} == {method.name for method in METHODS}


def test_the_paper_example_by_name(moments):
    shifted = fit_method("logn", moments=moments)(np.array([1.0, 0.8, 0.2, 1.5]))
    np.testing.assert_allclose(shifted, [-0.677770, -1.112518, 0.133955, 1.5], atol=2e-6)


def test_counts_are_put_in_the_order_of_the_class_names(moments):
    counts = ClassCounts(IMAGES[::-1].copy(), names=("fork", "spoon", "cup"))
    assert fit_method("norcal", moments=moments, counts=counts) == norcal(IMAGES, 0.6, background=-1)


def test_plain_counts_need_no_statistics():
    assert fit_method("norcal", counts=[60, 20, 1], background=0) == norcal(IMAGES, 0.6, background=0)
    assert fit_method("temperature:value=2", counts=[60, 20, 1], background=0).num_classes == 4


def test_a_class_can_be_switched_off(moments):
    affine = fit_method("logn", moments=moments, active=[True, False, True, True])
    assert (affine.scale[1], affine.shift[1]) == (1, 0)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("logm", "one of none, recommended, logn, loga.*'logm'"),
        ("", "one of none"),
        (
            "norcal:tau=1",
            "options of `norcal` to be among gamma, weights, on_logits, counts, strength, target, but got `tau`",
        ),
        ("none:tau=1", "among none, but got `tau`"),
        ("norcal:gamma", "gamma=VALUE"),
        ("norcal:gamma=big", "`gamma` to be a number, but got 'big'"),
        ("norcal:weights=odd", "`weights` to be one of"),
        ("norcal:counts=boxes", "`counts` to be one of images, instances"),
        ("logn:use_std=maybe", "true or false"),
        ("logn:margin=huge", "`margin` to be a number or one of"),
        ("temperature", "temperature:value"),
        ("logn:margin=0,margin=1", "option `margin` of `logn` once, but got it twice"),
    ],
)
def test_mistakes_are_named(moments, spec, sentence):
    with pytest.raises(InputError, match=sentence):
        _fit(spec, moments)


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        ("logn", "moments"),
        ("loga", "counts"),
        ("iif", "counts"),
        ("tau-norm", "weight"),
        ("none", "moments` or `counts"),
    ],
)
def test_what_a_method_lacks_is_named(spec, missing):
    with pytest.raises(InputError, match=f"`{missing}`.*`{spec}`"):
        fit_method(spec)


def test_fracal_for_sigmoids_is_no_affine_map_and_that_is_said():
    recorded = ClassMoments(3, metadata=StatisticsMetadata(activation="sigmoid"))
    for known in ({"activation": "sigmoid"}, {"moments": recorded}):
        with pytest.raises(InputError, match=r"no affine map, but got sigmoid; `logn compare` measures that form"):
            fit_method("fracal:num_images=100", counts=[60, 20, 1], **known)
    fit_method("fracal:num_images=100", counts=[60, 20, 1], moments=recorded, activation="softmax")


def test_fracal_says_that_it_needs_the_number_of_images():
    with pytest.raises(InputError, match="`num_images`"):
        fit_method("fracal", counts=[60, 20, 1])


def test_counts_of_another_length_are_refused(moments):
    with pytest.raises(InputError, match="`counts` to have 3 foreground classes, but got 4"):
        fit_method("norcal", moments=moments, counts=[1, 2, 3, 4])


def test_weights_of_another_length_are_refused(moments):
    with pytest.raises(InputError, match="4 columns, but got 3"):
        fit_method("tau-norm", moments=moments, weight=WEIGHT[:3])


def test_options_are_converted():
    assert parse_method("logn: margin=-2.5 ,use_std=NO") == ("logn", {"margin": -2.5, "use_std": False})
