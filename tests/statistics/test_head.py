"""A head: what it knows, and what keeps a map or statistics from the logits of another model."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.conftest import moments_of

import logn
from logn.data.class_counts import ClassCounts
from logn.errors import InputError, LogNWarning
from logn.methods.catalog import fit
from logn.statistics.head import Head, foreground_columns

RECORDED = Head(
    names=("cat", "dog", "background"),
    background=-1,
    activation="softmax",
    layer="head",
    population="test proposals",
    source="torch:" + "1c" * 32,
)


def recorded_moments(head=RECORDED):
    return moments_of(np.random.default_rng(0).normal(size=(50, 3)), sample_rows=50, head=head)


def map_of(**changes):
    return logn.ClassAffine([1.0, 2.0, 1.0], [0.5, 0.0, 0.0], replace(RECORDED, **changes))


@pytest.mark.parametrize("background", [None, 0, -1])
@pytest.mark.parametrize("class_columns", [None, (1, 3)])
def test_the_classes_are_all_columns_but_the_background_and_the_unused_ones(background, class_columns):
    columns = [*range(5)[foreground_columns(5, background)]] if class_columns is None else list(class_columns)
    names = [f"class {column}" for column in columns]
    head = Head.of_classes(names, 5, background, class_columns)
    assert (head.foreground.tolist(), list(head.class_names), head.num_classes) == (columns, names, len(columns))
    assert head.names[0] == {0: "background"}.get(background, "class 0" if 0 in columns else "N/A")
    assert Head.of_values(json.loads(head.to_json())) == head
    assert Head.of_classes(head.names, 5, background, class_columns) == head


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Head(0), "num_columns"),
        (lambda: Head(3, names=("a",)), "class_names"),
        (lambda: Head(background=1), "background"),
        (lambda: Head.of_classes(["a", "b"], 4, background=0), "class_names"),
        (lambda: Head(activation="relu"), "activation"),
        (lambda: Head(2, unused=(2,)), "unused"),
        (lambda: Head().width, "num_columns"),
        (lambda: Head.of_classes(["cat"], 3), "class_names"),
        (lambda: Head.of_classes(None, 3, class_columns=(2, 1)), "class_columns"),
        (lambda: Head.of_classes(None, 3, 0, class_columns=(0, 1)), "class_columns"),
        (lambda: Head.of_values({"unused": 1}), "head"),
        (lambda: Head.of_values({"nammes": []}), "head"),
        (lambda: Head.of_values([1]), "head"),
    ],
)
def test_what_no_model_has_is_refused(make, named):
    with pytest.raises(InputError, match=f"`{named}`"):
        make()


def test_logn_takes_all_that_the_statistics_know():
    moments = recorded_moments()
    assert logn.logit_normalization(moments).head == moments.head
    assert fit("recommended", moments=moments).head == moments.head
    elsewhere = logn.logit_normalization(moments, background=0).head
    assert elsewhere == replace(moments.head, background=0)


@pytest.mark.parametrize("spec", ["norcal", "loga", "iif", "none", "temperature:value=2"])
def test_other_methods_know_the_classes_but_do_not_hang_on_the_weights(spec):
    counts = ClassCounts([5, 2], names=["cat", "dog"])
    classes = Head(names=("cat", "dog", "background"), background=-1, activation="softmax")
    assert fit(spec, counts=counts, background=-1).head == classes
    assert fit(spec, counts=counts, moments=recorded_moments()).head == classes
    assert fit(spec, counts=[5, 2]).head == Head(2)


def test_it_goes_with_the_file_and_does_not_count_for_equality(tmp_path):
    affine = map_of()
    affine.save(tmp_path / "a.safetensors")
    loaded = logn.ClassAffine.load(tmp_path / "a.safetensors")
    assert loaded.head == RECORDED
    assert loaded == affine == map_of(layer="another", source=None)
    affine.with_head(None).save(tmp_path / "b.safetensors")
    assert logn.ClassAffine.load(tmp_path / "b.safetensors").head is None


def test_a_map_that_knows_its_background_alone_contradicts_nothing_else():
    bare = logn.ClassAffine([1.0, 1.0], [-0.5, 0.0], Head(background=-1))
    bare.check_fits(Head(names=("cat", "bg"), background=-1, activation="sigmoid", source="torch:2d"))
    logn.ClassAffine([1.0, 1.0], [-0.5, 0.0]).check_fits(Head(2, background=0))
    with pytest.raises(InputError, match="The background differs: last in `affine`, first in it"):
        bare.check_fits(Head(2, background=0), "it")


@pytest.mark.parametrize("head", ['"x"', "[1]", '{"num_columns": 3}', '{"names": ["a"]}', '{"unused": 1}', "{"])
def test_a_head_that_contradicts_the_file_is_refused(tmp_path, head):
    path = tmp_path / "a.safetensors"
    metadata = {"format": "logn.affine", "schema": "3", "method": "", "settings": "{}", "head": head}
    save_file({"scale": np.ones(2), "shift": np.zeros(2)}, path, metadata=metadata)
    with pytest.raises(InputError, match="is not a valid map"):
        logn.ClassAffine.load(path)


def test_a_head_of_another_width_is_no_head_of_the_map():
    with pytest.raises(InputError, match="`head`"):
        logn.ClassAffine([1.0] * 2, [0.0] * 2, RECORDED)


OTHERS = [
    ({"names": ("cat", "cow", "background")}, "The classes differ: class 1 is 'cow' in {}, 'dog' in {}"),
    ({"activation": "sigmoid"}, "The activation differs: sigmoid in {}, softmax in {}"),
    ({"source": "torch:" + "2d" * 32}, r"The weights differ \(torch:2d2d2d2d2d2d… in {}, torch:1c1c1c1c1c1c… in {}\)"),
]


@pytest.mark.parametrize(("changes", "words"), OTHERS)
def test_another_model_is_refused_or_warned_of_and_its_map_does_not_compose(changes, words, recwarn):
    map_of().check_fits(RECORDED, "`model`")
    words = words.format("`affine`", "`model`")
    with pytest.raises(InputError, match=f"{words}.*allow_mismatch=True"):
        map_of(**changes).check_fits(RECORDED, "`model`")
    assert not recwarn.list
    with pytest.warns(LogNWarning, match=words):
        map_of(**changes).check_fits(RECORDED, "`model`", allow_mismatch=True)
    words = words.replace("`affine`", "`other`").replace("`model`", "this one")
    with pytest.raises(InputError, match=rf"{words}.*other\.with_head\(None\)"):
        map_of().then(map_of(**changes))
    unknown = map_of(**dict.fromkeys(changes))
    assert map_of().then(unknown).head == unknown.then(map_of()).head == RECORDED


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (Head(4, background=-1), "number of columns differs: 3 in `affine`, 4 in `model`"),
        (Head(background=0), "background differs: last in `affine`, first in `model`"),
        (Head(), "background differs: last in `affine`, none in `model`"),
    ],
)
def test_other_columns_are_always_refused(head, words):
    for allow_mismatch in (False, True):
        with pytest.raises(InputError, match=words):
            map_of().check_fits(head, "`model`", allow_mismatch=allow_mismatch)


@pytest.mark.parametrize("field", ["names", "activation", "source"])
def test_what_either_side_does_not_know_is_not_compared(field, recwarn):
    map_of(**{field: None}).check_fits(RECORDED)
    map_of().check_fits(Head(background=-1))
    logn.ClassAffine.identity(3).check_fits(RECORDED)
    map_of(names=("cat", "dog", "nothing")).check_fits(RECORDED)  # what the background is called does not matter
    map_of(names=("cat", "N/A", "bg"), unused=(1,)).check_fits(RECORDED)  # nor what unused columns are
    assert not recwarn.list


def test_digests_of_two_kinds_are_not_compared(recwarn):
    other = Head(background=-1, source="onnx:" + "2d" * 32)
    map_of(source=other.source).check_fits(RECORDED)
    map_of().check_fits(other)
    assert not recwarn.list
    with pytest.raises(InputError, match=r"\(onnx:1c… in `affine`, onnx:2d2d2d2d2d2d… in .*exported anew"):
        map_of(source="onnx:1c").check_fits(other)


def test_maps_of_one_model_compose_and_keep_what_they_know():
    first, bare = map_of(source=None), logn.ClassAffine.identity(3, Head(background=-1))
    assert first.then(map_of()).head == RECORDED
    assert first.then(bare).head == first.head
    assert bare.then(first).head == replace(first.head, layer=None, population=None)
    assert first.inverse().head == first.head
