"""What a map was made for goes with it, and keeps it from other models."""

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.conftest import moments_of

import logn
from logn.data.class_counts import ClassCounts
from logn.errors import InputError, LogNWarning
from logn.methods.catalog import fit
from logn.methods.provenance import LogitFacts
from logn.statistics.metadata import StatisticsMetadata

RECORDED = StatisticsMetadata(
    class_names=("cat", "dog", "background"),
    background=-1,
    activation="softmax",
    layer="head",
    population="test proposals",
    fingerprint="1c" * 32,
    unused=(1,),
)


def recorded_moments(metadata=RECORDED):
    return moments_of(np.random.default_rng(0).normal(size=(50, 3)), sample_rows=50, **vars(metadata))


def map_of(**changes):
    source = RECORDED.with_changes(**changes)
    return logn.ClassAffine([1.0, 2.0, 1.0], [0.5, 0.0, 0.0], source.background, source=source)


def test_logn_takes_all_that_the_statistics_know():
    moments = recorded_moments(RECORDED.with_changes(unused=()))
    assert logn.logit_normalization(moments).source == moments.metadata
    assert fit("recommended", moments=moments).source == moments.metadata
    elsewhere = logn.logit_normalization(moments, background=None).source
    assert elsewhere == moments.metadata.with_changes(background=None)


@pytest.mark.parametrize("spec", ["norcal", "loga", "iif", "none", "temperature:value=2"])
def test_other_methods_know_the_classes_but_do_not_hang_on_the_weights(spec):
    counts = ClassCounts([5, 2], names=["cat", "dog"])
    known = StatisticsMetadata(class_names=("cat", "dog", "background"), background=-1, activation="softmax")
    assert fit(spec, counts=counts, background=-1).source == known
    assert fit(spec, counts=counts, moments=recorded_moments()).source == known
    assert fit(spec, counts=[5, 2]).source == StatisticsMetadata()


def test_it_goes_with_the_file_and_does_not_count_for_equality(tmp_path):
    affine = map_of()
    affine.save(tmp_path / "a.safetensors")
    loaded = logn.ClassAffine.load(tmp_path / "a.safetensors")
    assert loaded.source == RECORDED
    assert loaded == affine == affine.with_source(None)
    affine.with_source(None).save(tmp_path / "b.safetensors")
    assert logn.ClassAffine.load(tmp_path / "b.safetensors").source is None


def test_a_map_without_a_source_contradicts_nothing_but_its_background():
    bare = logn.ClassAffine([1.0, 1.0], [-0.5, 0.0], background=-1)
    bare.check_fits(LogitFacts("it", 2, -1, ("cat",), "sigmoid", "2d"))
    with pytest.raises(InputError, match="The background differs: last in `affine`, first in it"):
        bare.check_fits(LogitFacts("it", 2, 0))


@pytest.mark.parametrize("source", ['"x"', "[1]", '{"background": 0}', '{"class_names": ["a"]}', '{"unused": 1}'])
def test_a_source_that_contradicts_the_file_is_refused(tmp_path, source):
    path = tmp_path / "a.safetensors"
    head = {"format": "logn.affine", "schema": "2", "background": "null", "method": "", "settings": "{}"}
    save_file({"scale": np.ones(2), "shift": np.zeros(2)}, path, metadata={**head, "source": source})
    with pytest.raises(InputError, match="is not a valid map"):
        logn.ClassAffine.load(path)


def test_what_the_map_says_itself_is_not_contradicted():
    with pytest.raises(InputError, match="`source` to have the background of the map, 0, but got -1"):
        logn.ClassAffine([1.0] * 3, [0.0] * 3, 0, source=RECORDED)
    with pytest.raises(InputError, match="one name per column"):
        logn.ClassAffine([1.0] * 2, [0.0] * 2, -1, source=RECORDED)


FACTS = LogitFacts("`model`", 3, -1, ("cat", "dog"), "softmax", "1c" * 32)
OTHERS = [
    ({"class_names": ("cat", "cow", "background")}, "The classes differ: class 1 is 'cow' in {}, 'dog' in {}"),
    ({"activation": "sigmoid"}, "The activation differs: sigmoid in {}, softmax in {}"),
    ({"fingerprint": "2d" * 32}, r"The weights differ \(2d2d2d2d2d2d… in {}, 1c1c1c1c1c1c… in {}\)"),
]


@pytest.mark.parametrize(("changes", "words"), OTHERS)
def test_another_model_is_refused_or_warned_of_and_its_map_does_not_compose(changes, words, recwarn):
    map_of().check_fits(FACTS)
    words = words.format("`affine`", "`model`")
    with pytest.raises(InputError, match=f"{words}.*allow_mismatch=True"):
        map_of(**changes).check_fits(FACTS)
    assert not recwarn.list
    with pytest.warns(LogNWarning, match=words):
        map_of(**changes).check_fits(FACTS, allow_mismatch=True)
    words = words.replace("`affine`", "`other`").replace("`model`", "this one")
    with pytest.raises(InputError, match=rf"{words}.*other\.with_source\(None\)"):
        map_of().then(map_of(**changes))
    assert map_of().then(map_of(**changes).with_source(None)).source == RECORDED


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (LogitFacts("`model`", num_columns=4), "number of columns differs: 3 in `affine`, 4 in `model`"),
        (LogitFacts("`model`", background=0), "background differs: last in `affine`, first in `model`"),
        (LogitFacts("`model`", background=None), "background differs: last in `affine`, none in `model`"),
    ],
)
def test_other_columns_are_always_refused(facts, words):
    for allow_mismatch in (False, True):
        with pytest.raises(InputError, match=words):
            map_of().check_fits(facts, allow_mismatch=allow_mismatch)


@pytest.mark.parametrize("field", ["class_names", "activation", "fingerprint"])
def test_what_either_side_does_not_know_is_not_compared(field, recwarn):
    map_of(**{field: None}).check_fits(FACTS)
    map_of().check_fits(LogitFacts("`model`"))
    logn.ClassAffine.identity(3).check_fits(FACTS)
    map_of(class_names=("cat", "dog", "nothing")).check_fits(FACTS)  # what the background is called does not matter
    assert not recwarn.list


def test_digests_of_two_kinds_are_not_compared(recwarn):
    map_of(fingerprint="onnx:" + "2d" * 32).check_fits(FACTS)
    map_of().check_fits(LogitFacts("`model.onnx`", fingerprint="onnx:" + "2d" * 32))
    assert not recwarn.list
    with pytest.raises(InputError, match=r"\(onnx:1c… in `affine`, onnx:2d2d2d2d2d2d… in .*exported anew"):
        map_of(fingerprint="onnx:1c").check_fits(LogitFacts("`model.onnx`", fingerprint="onnx:" + "2d" * 32))


def test_maps_of_one_model_compose_and_keep_what_they_know():
    first, bare = map_of(fingerprint=None), logn.ClassAffine.identity(3, -1)
    assert first.then(map_of()).source == RECORDED
    assert first.then(bare).source == bare.then(first).source == first.source
    assert first.inverse().source == first.source
