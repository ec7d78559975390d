"""Comparing methods: the same numbers as each alone, honest choices, and what is said about them."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import logn
from logn.errors import InputError, LogNWarning
from logn.matching.ground_truth import load_ground_truth
from logn.measure.compare import compare
from logn.measure.comparison import CompareSettings, EvaluatedClass, with_training
from logn.measure.detection.metrics import evaluate_detections
from logn.measure.fitted_methods import fit_for_store
from logn.measure.tables import FORMATS, write_comparison
from logn.methods.affine import ClassAffine
from logn.predictions.decoder import DecodeSettings, decode
from logn.predictions.store import PredictionWriter, StoreHeader
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments

METHODS = ["logn", "logn:margin=0,use_std=false", "loga", "norcal", "fracal", "iif", "temperature:value=2"]
QUICK = CompareSettings(num_bootstrap=0)
NAMES = tuple(f"thing {number}" for number in range(10))


def run(split, methods, settings=QUICK, **options):
    options = {"moments": split.moments, "counts": split.counts, **options}
    return compare(split.store, split.annotations, methods, settings=settings, **options)


@pytest.fixture(scope="module")
def comparison(softmax_split):
    return run(softmax_split, METHODS, CompareSettings(num_bootstrap=50, errors=True))


def test_strengths_of_the_recommendation_equal_the_methods_of_that_name(softmax_split):
    split, settings = softmax_split, CompareSettings(num_bootstrap=0, at=0.3, report_images=0)
    inputs = {"moments": split.moments, "counts": split.counts}
    found = compare(split.store, split.annotations, ["recommended"], settings=settings, **inputs)
    assert [point.strength for point in found.strengths] == [0.0, 0.25, 0.5, 0.75, 1.0]
    methods = [point.method for point in found.strengths]
    named = compare(split.store, split.annotations, methods, settings=settings, **inputs)
    for point in found.strengths:
        row = named[point.method]
        assert point.values == row.recall[0.3].values
        assert point.threshold == row.recall[0.3].threshold
    assert found.strengths[2].values == found["recommended"].recall[0.3].values
    assert compare(split.store, split.annotations, ["logn"], settings=settings, **inputs).strengths == ()


def test_every_row_equals_evaluating_that_method_alone(softmax_split, comparison):
    split = softmax_split
    truth = load_ground_truth(split.annotations, image_ids=split.store.image_ids.tolist())
    assert [row.name for row in comparison.rows] == ["none", *METHODS]
    for row in comparison.rows:
        transform = fit_for_store(row.name, split.store.head, moments=split.moments, counts=split.counts)
        alone = evaluate_detections(decode(split.store, transform), truth, groups=truth.frequency)
        assert {name: row[name] for name in alone.values} == pytest.approx(dict(alone.values), abs=1e-12, nan_ok=True)
        np.testing.assert_allclose(row.per_class, alone.per_class, atol=1e-12)
        assert row.transform == (transform if row.name != "none" else None)


def test_differences_are_to_the_uncorrected_model_and_lie_in_their_intervals(comparison):
    first = comparison.rows[0]
    assert all(change.difference == 0 for change in first.differences.values() if not np.isnan(change.difference))
    changed = comparison["logn"]
    for name in ("AP", "APr", "APc", "APf", "AP50"):
        change = changed.differences[name]
        assert change.difference == pytest.approx(changed[name] - first[name])
        assert change.low <= change.high
    assert np.isnan(changed.differences["ECE"].low)


def test_the_metrics_and_their_protocols_are_all_there(comparison):
    names = {"AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf", "AP-Pool", "ECE"}
    assert names <= set(comparison.metric_names)
    assert comparison.rows[0].errors.per_group.keys() == {"r", "c", "f"}
    assert comparison.protocol.max_detections == 300
    assert comparison.to_dict()["protocols"]["AP"]["evaluator"] == f"logn {logn.__version__}"
    assert all(row.seconds > 0 for row in comparison.rows)


def without_boxes(split):
    return {**json.loads(split.annotations.read_text()), "annotations": []}


def empty_store(folder):
    with PredictionWriter(folder / "none", StoreHeader(Head(11, background=-1, activation="softmax"))):
        return folder / "none"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda split, folder: compare(split.store, without_boxes(split), []), "has no objects in the evaluated"),
        (lambda split, folder: compare(empty_store(folder), split.annotations, []), "holds no predictions yet"),
        (lambda split, folder: run(split, "logn"), "a list of specifications, but got the text 'logn'"),
        (lambda split, folder: run(split, [])["yours"], "one of none, but got 'yours'"),
        (lambda split, folder: run(split, []).focus(), "no method other than `none`"),
        (lambda split, folder: run(split, ["logn"], moments=ClassMoments(9)), "9 in the statistics, 11 in the pred"),
        (lambda split, folder: run(split, ["loga"], counts=[1, 2, 3]), "the 10 foreground classes .*, but got 3"),
        (lambda split, folder: run(split, ["logn"], moment=split.moments), "among moments, .* but got `moment`"),
        (lambda split, folder: run(split, [], class_names=["a"]), "`class_names` is only for the logits of a class"),
        (lambda split, folder: compare(np.eye(3), [0, 1, 2], [], masks=object()), "`masks` is only for the pred"),
        (lambda split, folder: compare(np.eye(3), [0, 1, 2], []).protocol, "This comparison is of a classifier"),
        (lambda split, folder: write_comparison(run(split, []), "html"), "one of table, markdown, but got 'html'"),
        (lambda split, folder: CompareSettings(num_bootstrap=-1), "`num_bootstrap`"),
        (lambda split, folder: CompareSettings(report_images=-1), "`report_images`"),
        (lambda split, folder: CompareSettings(confidence=95), "`confidence`"),
        (lambda split, folder: CompareSettings(at=25), "`at`"),
    ],
)
def test_bad_arguments_are_refused(softmax_split, tmp_path, call, message):
    with pytest.raises(InputError, match=message):
        call(softmax_split, tmp_path)


def test_own_maps_and_the_baseline(softmax_split):
    shift = ClassAffine.over_foreground(np.ones(10), np.arange(10.0), Head(background=-1), method="mine")
    found = run(softmax_split, {"mine": shift, "none": None}, moments=None, counts=None)
    assert [row.name for row in found.rows] == ["none", "mine"]


def test_a_target_reaches_all_methods_that_can_aim(softmax_split):
    mix = logn.ClassCounts(np.arange(1.0, 11.0), names=NAMES[::-1])
    found = run(softmax_split, ["loga", "norcal:target=uniform"], target=mix)
    counts = softmax_split.counts.instance_counts
    wanted = logn.methods.logit_adjustment(counts, background=-1, target=np.arange(10.0, 0.0, -1.0))
    assert found["loga"].transform == wanted
    assert found["norcal:target=uniform"].transform == logn.methods.norcal(counts, background=-1)


def test_groups_from_counts_with_own_bounds(softmax_split):
    settings = CompareSettings(num_bootstrap=0, bounds=(60, 400))
    found = run(softmax_split, [], settings)
    per_class = found.rows[0].per_class
    assert found.rows[0]["APr"] == pytest.approx(np.nanmean(per_class[4:]))
    assert found.rows[0]["APf"] == pytest.approx(per_class[0])
    assert "training counts up to 60, up to 400, above" in found.protocol.describe()


class BoxesAsMasks:
    """A detector whose masks fill their boxes."""

    background, activation, fingerprint = 0, "softmax", None

    def propose(self, images):
        raise AssertionError("the proposals are in the store")

    def prepare(self, image):
        return image

    def masks(self, image, boxes, classes, rows):
        for left, top, right, bottom in boxes.round().astype(int).clip(0, 200).tolist():
            mask = np.zeros((200, 200), bool)
            mask[top:bottom, left:right] = True
            yield mask


def test_masks_of_any_detector_give_mask_metrics(softmax_split):
    images = SimpleNamespace(image_ids=softmax_split.store.image_ids, read_image=lambda place: place)
    given = {"masks": BoxesAsMasks(), "images": images}
    found = run(softmax_split, ["logn"], CompareSettings(num_bootstrap=20), **given)
    for row in found.rows:
        assert row["AP-mask"] == pytest.approx(row["AP"], abs=0.1)
        assert row["AP-mask"] != row["AP"]
    change = found["logn"].differences["AP-mask"]
    assert change.low <= change.high
    assert found.protocols["mask"].iou_type == "segm"


def test_with_sigmoids_only_the_limit_moves_ap(sigmoid_split):
    limited, unlimited = (
        run(sigmoid_split, ["logn", "loga"], CompareSettings(num_bootstrap=0, decode=DecodeSettings(max_detections=n)))
        for n in (12, -1)
    )
    for name in ("logn", "loga"):
        assert unlimited[name]["AP"] == pytest.approx(unlimited["none"]["AP"], abs=1e-9)
    for metric in ("AP", "AP-Pool"):
        assert limited["logn"][metric] != pytest.approx(limited["none"][metric], abs=1e-3)


@pytest.mark.parametrize("threshold", [None, 1e-4])
def test_a_map_that_lowers_all_scores_keeps_ap_unless_a_threshold_cuts_them(sigmoid_split, threshold):
    """At a threshold most of the lowered scores are gone, which is no matter of ranking; by default there is none."""
    lowered = ClassAffine(np.ones(10), np.full(10, -6.0))
    decode = DecodeSettings() if threshold is None else DecodeSettings(score_threshold=threshold)
    found = run(sigmoid_split, {"lowered": lowered}, CompareSettings(num_bootstrap=0, decode=decode))
    if threshold is None:
        assert found["lowered"]["AP"] == pytest.approx(found["none"]["AP"], abs=1e-9)
    else:
        assert found["lowered"]["AP"] < found["none"]["AP"]
    assert found.protocol.score_threshold == (threshold or 0.0)


def test_a_map_of_another_model_is_refused(softmax_split):
    affine = fit_for_store("logn", softmax_split.store.head, moments=softmax_split.moments)
    other = affine.with_head(replace(affine.head, names=(*NAMES[::-1], "background")))
    with pytest.raises(InputError, match="class 0 is 'thing 9' in `other`, 'thing 0' in the predictions"):
        run(softmax_split, {"other": other})
    with pytest.warns(LogNWarning, match="The classes differ"):
        allowed = run(softmax_split, {"other": other}, CompareSettings(num_bootstrap=0, allow_mismatch=True))
    assert allowed["other"]["AP"] == run(softmax_split, ["logn"])["logn"]["AP"]


def of_the_store(moments, **changes):
    """The same statistics with another record of what they are of."""
    return ClassMoments.from_arrays(moments.to_arrays(), replace(moments.head, **changes))


OTHERS = {
    "background": (0, "The background differs: first in the statistics, last"),
    "names": ((*NAMES[::-1], "background"), "class 0 is 'thing 9' in the statistics, 'thing 0' in"),
    "activation": ("sigmoid", "activation differs: sigmoid in the statistics, softmax in the predictions"),
    "source": (
        "torch:" + "2d" * 32,
        r"weights differ \(torch:2d2d.* in the statistics, torch:1c1c",
    ),
}


@pytest.mark.parametrize("field", OTHERS)
def test_statistics_of_another_model_are_refused(softmax_split, field):
    value, words = OTHERS[field]
    head = replace(softmax_split.store.head, source="torch:" + "1c" * 32)
    other = of_the_store(softmax_split.moments, **{field: value})
    with pytest.raises(InputError, match=words):
        fit_for_store("logn", head, moments=other)
    if field == "background":  # a map to another column is never right
        with pytest.raises(InputError, match=words):
            fit_for_store("norcal", head, moments=other, counts=softmax_split.counts, allow_mismatch=True)
        return
    with pytest.warns(LogNWarning, match=words):
        allowed = fit_for_store("logn", head, moments=other, allow_mismatch=True)
    plain = fit_for_store("logn", head, moments=softmax_split.moments)
    np.testing.assert_array_equal((allowed.scale, allowed.shift), (plain.scale, plain.shift))


@pytest.mark.parametrize("changes", [{"background": None, "activation": None}, {"source": "torch:" + "2d" * 32}])
def test_what_one_side_does_not_know_is_no_difference(softmax_split, changes, recwarn):
    sides = of_the_store(softmax_split.moments, **changes), softmax_split.moments
    fitted, plain = (fit_for_store("logn", softmax_split.store.head, moments=moments) for moments in sides)
    np.testing.assert_array_equal((fitted.scale, fitted.shift), (plain.scale, plain.shift))
    assert not recwarn.list


def test_the_store_knows_the_activation_that_the_statistics_lack(sigmoid_split):
    moments = of_the_store(sigmoid_split.moments, activation=None)
    fitted = fit_for_store("logn", sigmoid_split.store.head, moments=moments)
    assert fitted.head.activation == "sigmoid"
    assert fitted == fit_for_store("logn", sigmoid_split.store.head, moments=sigmoid_split.moments)


def test_the_verdict_names_what_is_clear_and_what_is_not(comparison):
    for row in comparison.rows[1:]:
        sentence = comparison.verdict(row.name)
        for name, change in row.differences.items():
            if name in ("AP", "APr", "APc", "APf"):
                unclear = sentence.partition("no clear ")[2]
                assert (f"{name} (" in unclear) == (not change.is_clear)
    assert comparison.verdict() == comparison.verdict("logn")


def test_what_methods_are_fitted_from_is_kept(softmax_split):
    found = run(softmax_split, ["logn", "fracal"], dimensions=np.linspace(0.5, 1.5, 10))
    assert found.provenance.inputs["fitted_from"] == ["moments", "counts", "dimensions"]


def test_all_forms_show_every_method(comparison):
    for form in FORMATS:
        assert all(row.name in write_comparison(comparison, form) for row in comparison.rows)
    assert str(comparison) == write_comparison(comparison)
    table = write_comparison(comparison, "markdown").split("\n\n")[0].splitlines()
    assert len({line.count("|") for line in table}) == 1


def test_one_function_compares_detectors_and_classifiers(softmax_split, tmp_path):
    logits, store = np.random.default_rng(0).normal(size=(40, 3)), softmax_split.folder / "store"
    np.save(tmp_path / "logits.npy", logits)
    counts = {"detection": softmax_split.counts, "classification": [9, 5, 2]}
    for task, labels, sources in (
        ("detection", softmax_split.annotations, (store, str(store), softmax_split.store)),
        ("classification", np.arange(40) % 3, (logits, logits.tolist(), str(tmp_path / "logits.npy"))),
    ):
        found = [logn.compare(source, labels, ["loga"], settings=QUICK, counts=counts[task]) for source in sources]
        assert {comparison.task for comparison in found} == {task}
        for comparison in found[1:]:
            np.testing.assert_equal(comparison["loga"].values, found[0]["loga"].values)


def test_details_are_of_evenly_spaced_images(softmax_split):
    found = run(softmax_split, ["loga"], CompareSettings(num_bootstrap=0, report_images=7))
    details = found["loga"].details
    assert (details.images, details.of_images) == (7, 40)
    ids = softmax_split.store.image_ids[np.linspace(0, 39, 7).round().astype(int)].tolist()
    assert {image.image_id for image in details.gallery} <= set(ids)
    everything = run(softmax_split, ["loga"], CompareSettings(num_bootstrap=0, errors=True))
    some = run(softmax_split, ["loga"])  # all forty images are looked at
    assert everything["loga"].tide == pytest.approx(some["loga"].tide)
    assert run(softmax_split, ["loga"], CompareSettings(num_bootstrap=0, report_images=0))["loga"].details is None


def test_the_statistics_of_a_head_with_an_unused_column_are_those_of_its_classes():
    """They were left out, and the page said that there were none."""
    moments = ClassMoments(Head(4, background=0, unused=(2,)))
    moments.update(np.array([[0.0, 1.0, 9.0, 3.0], [0.0, 2.0, 9.0, 5.0]]))
    classes = [EvaluatedClass(0, "cat", None, 1), EvaluatedClass(1, "dog", None, 1)]
    assert [entry.mean for entry in with_training(classes, None, moments)] == [1.5, 4.0]
