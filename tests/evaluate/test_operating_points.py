"""Operating points: chosen for a target, shrunk, measured elsewhere, saved, and folded into one threshold."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logn
from logn.calibrators.class_affine import ClassAffine
from logn.evaluate.decode.decoder import DecodeSettings, decode
from logn.evaluate.operating.choice import Draws, choose
from logn.evaluate.operating.choose_points import Bootstrap, choose_points
from logn.evaluate.operating.class_levels import ClassScores, logit
from logn.evaluate.operating.measured import measure
from logn.evaluate.operating.notes import notes_on
from logn.evaluate.operating.scored_outcomes import ScoredOutcomes
from logn.evaluate.operating.shift_solver import FoldRows, agreement, solve_shifts
from logn.evaluate.operating.shrinkage import shrinkage_weights
from logn.evaluate.operating.target import Target
from logn.evaluate.store.store import PredictionStore, PredictionWriter, StoreHeader
from logn.logits.arrays import sigmoid
from logn.logits.proposals import Postprocessing, Proposals


def outcomes(classes, *, units=None, num_units=None, objects=None):
    """Outcomes of classes that are lists of (score, right); each decision in an image of its own unless said."""
    rows = [(label, score, right) for label, one in enumerate(classes) for score, right in one]
    labels, scores, right = (np.array(column) for column in zip(*rows, strict=True))
    units = np.arange(len(rows)) if units is None else np.asarray(units)
    objects = [(label, unit) for label, unit, hit in zip(labels, units, right, strict=True) if hit] + list(
        objects or []
    )
    object_labels, object_units = np.array(objects, np.int64).reshape(-1, 2).T
    return ScoredOutcomes(
        labels.astype(np.int64),
        units.astype(np.int64),
        scores.astype(np.float64),
        right.astype(bool),
        np.ones(len(rows), bool),
        object_labels,
        object_units,
        num_units or int(units.max()) + 1,
        tuple(f"class {label}" for label in range(len(classes))),
    )


def simulated(rng, images, *, centres=(-1.0, 0.0, 1.0, 2.0), rates=(2.0, 1.0, 0.6, 0.4)):
    """Scores of a detector whose classes have scales of their own, as a long tail leaves them."""
    parts = []
    for label, (centre, rate) in enumerate(zip(centres, rates, strict=True)):
        unit = np.repeat(np.arange(images), rng.poisson(rate, images))
        hit = rng.random(len(unit)) < 0.85
        alarm = np.repeat(np.arange(images), rng.poisson(1.5 * rate, images))
        scores = np.concatenate([rng.normal(centre + 1.5, 1.2, hit.sum()), rng.normal(centre - 1.5, 1.2, len(alarm))])
        right = np.arange(len(scores)) < hit.sum()
        parts.append((label, np.concatenate([unit[hit], alarm]), scores, right, unit))
    return ScoredOutcomes(
        np.concatenate([np.full(len(part[1]), part[0]) for part in parts]),
        np.concatenate([part[1] for part in parts]),
        sigmoid(np.concatenate([part[2] for part in parts])).astype(np.float32).astype(np.float64),
        np.concatenate([part[3] for part in parts]),
        np.ones(sum(len(part[1]) for part in parts), bool),
        np.concatenate([np.full(len(part[4]), part[0]) for part in parts]),
        np.concatenate([part[4] for part in parts]),
        images,
        tuple(map(str, range(len(centres)))),
    )


def once(found, target):
    return choose(Draws.once(found), Target.parse(target))


CLASS = [(0.9, True), (0.8, False), (0.7, True), (0.6, False), (0.5, False), (0.4, True), (0.1, False)]


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("f1", 6),  # 2 x 3 / (6 kept + 4 objects) = 0.6; with 3 kept 2 x 2 / (3 + 4), with one 2 / 5
        ("precision=1", 1),
        ("precision=0.6", 3),
        ("recall=0.5", 3),
        ("recall=0.75", 6),
        ("f-beta=0.1", 1),
    ],
)
def test_worked_numbers(target, kept):
    found = outcomes([CLASS], objects=[(0, 0)])  # a fourth object, never found
    threshold = once(found, target).own[0, 0]
    scores = np.array([score for score, _ in CLASS])
    assert (scores >= threshold).sum() == kept


@pytest.mark.parametrize("target", ["f1", "f-beta=2", "precision=0.6", "recall=0.6"])
def test_a_class_gets_what_trying_every_threshold_gives(target):
    rng = np.random.default_rng(3)
    for _ in range(30):
        scores = rng.random(40).round(2)  # with ties
        right = rng.random(40) < scores
        found = outcomes([list(zip(scores, right, strict=True))], objects=[(0, 0), (0, 1)])
        chosen = once(found, target).own[0, 0]
        best = by_trying(scores, right, int(right.sum()) + 2, Target.parse(target))
        assert (np.isnan(chosen) and best is None) or (scores >= chosen).sum() == (scores >= best).sum()


def by_trying(scores, right, objects, target):
    values = []
    for level in np.unique(scores)[::-1]:
        kept = scores >= level
        hits = int(right[kept].sum())
        precision, recall = hits / kept.sum(), hits / objects
        square = target.value**2
        f = (1 + square) * hits / (square * objects + kept.sum())
        values.append((level, hits, precision, recall, f))
    if target.kind == "f-beta":
        best = max(value[4] for value in values)
        return next(value[0] for value in values if value[4] >= best - 1e-12) if best > 0 else None
    if target.kind == "precision":
        fine = [value for value in values if value[1] and value[2] >= target.value - 1e-12]
        most = max((value[1] for value in fine), default=None)
        return next((value[0] for value in fine if value[1] == most), None)
    return next((value[0] for value in values if value[3] >= target.value - 1e-12), None)


@pytest.mark.parametrize("target", ["fppi=0.1", "fppi=0.2", "total-precision=0.8"])
def test_what_is_allotted_finds_as_much_as_any_thresholds_with_as_few_false_alarms(target):
    rng = np.random.default_rng(4)
    wanted = Target.parse(target)
    for _ in range(10):
        classes = []
        for _ in range(3):
            scores = rng.permutation(12) / 13 + 0.04
            classes.append(list(zip(scores, rng.random(12) < scores, strict=True)))
        found = outcomes(classes)
        own = once(found, target).own[:, 0]
        counts = [counts_at(one, own[label]) for label, one in enumerate(classes)]
        hits, alarms = sum(hit for hit, _ in counts), sum(alarm for _, alarm in counts)
        if wanted.kind == "fppi":
            assert alarms <= wanted.value * found.num_units
        else:
            assert hits >= wanted.value * (hits + alarms) - 1e-9
        options = [[counts_at(one, level) for level in [2.0, *(score for score, _ in one)]] for one in classes]
        best = max(
            sum(hit for hit, _ in pick)
            for pick in itertools.product(*options)
            if sum(alarm for _, alarm in pick) <= alarms
        )
        assert hits == best


def counts_at(one, threshold):
    kept = [right for score, right in one if score >= threshold]
    return sum(kept), len(kept) - sum(kept)


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=30), st.floats(0.001, 0.999))
@settings(deadline=None)
def test_a_settled_threshold_stands_clear_of_every_score(values, threshold):
    scores = sigmoid(np.array([value for value, _ in values]) / 100 - 5).astype(np.float32).astype(np.float64)
    one = ClassScores.of(
        scores, np.arange(len(scores)), right=[hit for _, hit in values], judged=[True] * len(scores), objects=[0]
    )
    settled = one.settled(threshold)
    assert np.abs(logit(scores) - logit(settled)).min() > 4e-5
    runs = np.diff(np.sort(logit(scores)))
    if (runs[runs > 0] > 1e-3).all():  # nothing is too near: the same decisions
        assert ((scores >= settled) == (scores >= threshold)).all()


@pytest.mark.parametrize(
    ("target", "metric"), [("precision=0.85", "precision"), ("recall=0.6", "recall"), ("fppi=1", "false alarms")]
)
def test_targets_hold_on_held_out_images_within_their_intervals(target, metric):
    """250 times: choose on 60 images, look at 60 others; the stated interval is of 95 %."""
    rng, wanted = np.random.default_rng(11), Target.parse(target)
    inside, values = 0, []
    for draw in range(250):
        dev, test = simulated(rng, 60), simulated(rng, 60)
        chosen = choose_points(dev, wanted, Bootstrap(40, 0.95, draw))
        value = measure(Draws.once(test), chosen.thresholds[:, None])[metric][0]
        inside += chosen.expected[metric].low <= value <= chosen.expected[metric].high
        values.append(value)
    # 40 draws make the ends of an interval unsure themselves, so a little less than 95 % of 250 will do.
    assert inside >= 0.92 * 250
    assert np.mean(values) == pytest.approx(wanted.value, rel=0.12)


def test_thresholds_per_class_beat_one_threshold_where_classes_have_scales_of_their_own():
    rng = np.random.default_rng(5)
    dev, test = simulated(rng, 300), simulated(rng, 2000)
    chosen = choose_points(dev, Target.parse("f1"), Bootstrap(50))
    once_on = Draws.once(test)
    per_class = measure(once_on, chosen.thresholds[:, None])["class F1"][0]
    assert per_class > measure(once_on, np.full((4, 1), chosen.common))["class F1"][0] + 0.05


def test_shrinking_helps_classes_with_few_objects():
    rng = np.random.default_rng(6)
    gains = []
    for _ in range(20):
        rates = (2.0, 1.5, 1.0, 0.02, 0.02, 0.02, 0.02, 0.02)
        centres = tuple(rng.normal(0, 0.3, 8))
        dev = simulated(rng, 150, centres=centres, rates=rates)
        test = Draws.once(simulated(rng, 2000, centres=centres, rates=rates))
        shrunk = choose_points(dev, Target.parse("f1"), Bootstrap(50))
        plain = np.where(np.isnan(shrunk.own), shrunk.common, shrunk.own)
        gains.append(
            measure(test, shrunk.thresholds[:, None])["class F1"][0] - measure(test, plain[:, None])["class F1"][0]
        )
        used = shrunk.weights[:3][shrunk.weights[:3] > 0]
        assert (shrunk.weights[3:, None] <= used).all()
    assert np.mean(gains) > 0.01


@given(st.lists(st.floats(-4, 4), min_size=2, max_size=8), st.floats(0.01, 2.0), st.integers(0, 5))
@settings(deadline=None)
def test_weights_lie_between_none_and_all_and_grow_with_the_decisions(own, spread, few):
    count = np.full(len(own), 50)
    count[0] = few
    weights, between = shrinkage_weights(np.array(own), 0.0, np.full(len(own), spread), count)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert between >= 0
    assert weights[0] <= weights[1:].min() + 1e-12


def few_objects(rare=3):
    """24 images: two frequent classes that score high, and one with `rare` objects among a hundred low false alarms."""
    rng = np.random.default_rng(2)
    rows, objects = [], []
    for label, each in ((0, 4), (1, 2)):
        for image in range(24):
            for _ in range(each):
                objects.append((label, image))
                if rng.random() < 0.7:
                    rows.append((label, image, rng.uniform(0.3, 0.95), True))
            rows += [(label, image, rng.uniform(0.05, 0.6), False) for _ in range(2)]
    for image in range(rare):
        objects.append((2, image))
        rows.append((2, image, 0.0012 + 1e-4 * image, True))
    rows += [(2, int(rng.integers(24)), rng.uniform(0.0005, 0.02), False) for _ in range(120)]
    labels, units, scores, right = (np.array(column) for column in zip(*rows, strict=True))
    object_labels, object_units = np.array(objects).T
    judged = np.ones(len(rows), bool)
    return ScoredOutcomes(labels, units, scores, right, judged, object_labels, object_units, 24, ("a", "b", "rare"))


@pytest.mark.parametrize(("rare", "draws"), [(3, 0), (3, 50), (6, 50)])
def test_a_class_with_few_objects_keeps_the_common_threshold(rare, draws):
    """Its own would find them among a hundred false alarms."""
    found = few_objects(rare)
    chosen = choose_points(found, Target.parse("f1"), Bootstrap(draws))
    assert chosen.own[2] < 0.002
    assert chosen.weights[2] == 0
    assert chosen.thresholds[2] == pytest.approx(chosen.common, abs=0.01)
    per_class = measure(Draws.once(found), chosen.thresholds[:, None])
    one = measure(Draws.once(found), np.full((3, 1), chosen.common))
    assert per_class["F1"][0] >= one["F1"][0] - 0.01
    assert not chosen.held_out.is_lower


def test_few_objects_are_listed_and_both_scores_are_told():
    rng = np.random.default_rng(0)
    labels = (rng.random((200, 3)) < [0.5, 0.3, 0.01]).astype(int)
    logits = 3 * labels + rng.normal([-2.0, -4.0, -6.0], 1, (200, 3))
    assert 0 < labels[:, 2].sum() < 5
    points = logn.operating_points(logits, labels, "f1", num_bootstrap=20, class_names=("a", "b", "rare"))
    assert (
        "1 class (rare) has fewer than 5 right detections in the rows to choose by, so it has the common threshold, "
        f"{points.common:.3f}." in points.notes
    )
    (before, after), (mean_before, mean_after) = points.settings["held_out"].values()
    line = (
        f"F1 on held-out folds, with one threshold -> with these: overall {before:.3f} -> {after:.3f}, class mean "
        f"{mean_before:.3f} -> {mean_after:.3f}"
    )
    assert line in " ".join(str(points).split())
    again = logn.OperatingPoints.from_dict(json.loads(json.dumps(points.to_dict())))
    assert str(again) == str(points)


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(2, 40), st.sampled_from([0, 10]))
@settings(deadline=None, max_examples=60)
def test_chosen_thresholds_never_lower_the_class_mean_on_held_out_folds(seed, classes, images, draws):
    rng = np.random.default_rng(seed)
    rates, centres = tuple(rng.uniform(0.05, 2.0, classes)), tuple(rng.normal(0, 2, classes))
    found = simulated(rng, images, centres=centres, rates=rates)
    if not len(found.object_labels):
        return
    chosen = choose_points(found, Target.parse("f1"), Bootstrap(draws, seed=seed))
    before, after = chosen.held_out.class_mean
    assert after >= before
    hits = np.array([len(one.hits) for one in found.by_class])
    assert (chosen.weights[hits < 5] == 0).all()
    if not (chosen.weights > 0).any():
        assert after == before


def test_held_out_scores_are_those_of_choosing_without_each_fold():
    """Against a plain loop: choose on the other folds, count on this one."""
    from logn.evaluate.operating.cross_fit import cross_fit
    from logn.evaluate.operating.shrinkage import Trust

    found = simulated(np.random.default_rng(1), 30)
    folds = cross_fit(found, Target.parse("f1"), Trust(None, np.full(4, 99)), seed=7)
    counts = np.zeros((2, 3, 4))  # common and own; hits, false alarms, objects
    for partition in folds.folds:
        for fold in range(5):
            choice = choose(Draws.once(found.part(partition != fold)), Target.parse("f1"))
            held_out = found.part(partition == fold)
            for label in range(4):
                for side, threshold in enumerate((choice.common[0], choice.own[label, 0])):
                    kept = (held_out.labels == label) & (held_out.scores >= threshold)
                    right = held_out.right[kept].sum()
                    counts[side, :, label] += right, kept.sum() - right, held_out.objects_per_class[label]
    hits, alarms, objects = counts.transpose(1, 0, 2)
    scores = 2 * hits / (hits + alarms + objects)
    np.testing.assert_array_equal(folds.better(), scores[1] > scores[0])
    told = folds.held_out(np.array([True] * 4))
    assert told.class_mean == pytest.approx(tuple(scores.mean(axis=1)))
    totals = 2 * hits.sum(axis=1) / (hits + alarms + objects).sum(axis=1)
    assert told.overall == pytest.approx(tuple(totals))


def test_a_lower_overall_score_is_said():
    """Six objects among a hundred false alarms: unshrunk, a gain of the class and of the mean, and a loss of all."""
    found, target = few_objects(6), Target.parse("f1")
    chosen = choose_points(found, target, Bootstrap(0))
    (before, after), (mean_before, mean_after) = chosen.held_out.overall, chosen.held_out.class_mean
    assert after < before - 0.1
    assert mean_after > mean_before
    (note,) = [note for note in notes_on(found, target, (), chosen, False, 20) if "Overall" in note]
    assert note == (
        f"Overall F1 on held-out images is lower with these thresholds ({after:.3f}) than with the common one "
        f"({before:.3f}): classes with many objects pay for the class mean."
    )


class TestOfADetector:
    def test_points_are_reported_on_the_other_half(self, sigmoid_split):
        points = logn.operating_points(
            sigmoid_split.store, sigmoid_split.annotations, "f1", split=True, num_bootstrap=30
        )
        assert points.measured.on == "the other half of the images"
        assert points.measured.values["F1"].low < points.measured.values["F1"].value < points.measured.values["F1"].high
        assert sum(point.objects for point in points.points) < 40 * 5
        assert "weight" in str(points)

    def test_another_file_is_reported_on(self, sigmoid_split):
        test = (sigmoid_split.store, sigmoid_split.annotations)
        points = logn.operating_points(*test, "f1", test=test, num_bootstrap=0)
        found = sum(point.found for point in points.points)
        kept = found + sum(point.false_alarms for point in points.points)
        assert points.measured.values["precision"].value == pytest.approx(found / kept)
        assert points.measured.on == "the 40 images of the test set"

    def test_the_overlap_is_the_users(self, sigmoid_split):
        loose, strict = (
            logn.operating_points(sigmoid_split.store, sigmoid_split.annotations, iou=iou, num_bootstrap=0)
            for iou in (0.5, 0.9)
        )
        assert sum(point.found for point in strict.points) < sum(point.found for point in loose.points)

    def test_federated_labels_count_false_alarms_only_where_a_class_was_looked_for(self, sigmoid_split):
        lvis, coco = (
            logn.operating_points(
                sigmoid_split.store, sigmoid_split.annotations, "recall=0.5", style=style, num_bootstrap=0
            )
            for style in ("lvis", "coco")
        )
        assert sum(point.false_alarms for point in lvis.points) < sum(point.false_alarms for point in coco.points)
        assert any("looked for" in note for note in lvis.notes)
        assert not any("looked for" in note for note in coco.notes)

    def test_saved_points_are_the_same(self, softmax_split, tmp_path):
        points = logn.operating_points(
            softmax_split.store,
            softmax_split.annotations,
            "fppi=1",
            "loga",
            counts=softmax_split.counts,
            num_bootstrap=20,
        )
        points.save(tmp_path / "points.json")
        content = json.loads((tmp_path / "points.json").read_text(), parse_constant=pytest.fail)
        assert content["format"] == "logn.operating_points"
        again = logn.OperatingPoints.load(tmp_path / "points.json")
        assert again.to_dict() == points.to_dict()
        assert again.correction == points.correction
        assert [path.name for path in tmp_path.iterdir()] == ["points.json"]

    @pytest.mark.parametrize("content", ["no json", "[]", '{"format": "logn.operating_points", "schema": 9}'])
    def test_another_file_is_refused(self, content, tmp_path):
        (tmp_path / "points.json").write_text(content)
        with pytest.raises(logn.InputError, match=r"^Expected `.*points.json` to .*but it (is|has) .*\.$"):
            logn.OperatingPoints.load(tmp_path / "points.json")

    def test_counts_are_kept(self, sigmoid_split):
        before = decode(sigmoid_split.store)
        points = logn.operating_points(
            sigmoid_split.store,
            sigmoid_split.annotations,
            "keep-counts=0.5",
            "recommended",
            moments=sigmoid_split.moments,
            num_bootstrap=0,
        )
        after = decode(sigmoid_split.store, points.correction)
        kept = after.scores.astype(np.float64) >= points.thresholds[after.labels]
        old = np.bincount(before.labels[before.scores >= 0.5], minlength=10)
        np.testing.assert_array_equal(np.bincount(after.labels[kept], minlength=10), old)


class TestFolded:
    @pytest.mark.parametrize("correction", [None, "recommended", "norcal"])
    @pytest.mark.parametrize("at", [0.05, 0.25, 0.7])
    def test_a_sigmoid_model_decides_as_before(self, sigmoid_split, correction, at):
        points = logn.operating_points(
            sigmoid_split.store,
            sigmoid_split.annotations,
            "f1",
            correction,
            moments=sigmoid_split.moments,
            counts=sigmoid_split.counts,
            num_bootstrap=20,
        )
        folded = points.fold(at, sigmoid_split.store)
        assert folded.is_exact
        assert folded.kept == 1.0
        assert 0 < folded.agnostic <= 1
        assert "exactly" in folded.describe()
        assert points.affine(at) == folded.affine

    def test_a_softmax_keeps_the_share_that_is_said(self, softmax_split):
        points = logn.operating_points(softmax_split.store, softmax_split.annotations, "f1", num_bootstrap=20)
        folded = points.fold(0.4, softmax_split.store, at_least=0.5)
        everything = DecodeSettings(max_detections=None)
        plain = decode(softmax_split.store, None, everything)
        one = decode(softmax_split.store, folded.affine, DecodeSettings(max_detections=None, score_threshold=0.4))
        sides = [
            {(int(image), int(label), int(row)) for image, label, row in zip(*columns, strict=True)}
            for columns in (
                [column[plain.scores.astype(float) >= points.thresholds[plain.labels]] for column in named(plain)],
                named(one),
            )
        ]
        assert folded.kept == pytest.approx(len(sides[0] & sides[1]) / len(sides[0] | sides[1]))
        assert not folded.is_exact

    def test_too_small_a_share_is_refused(self, softmax_split):
        points = logn.operating_points(softmax_split.store, softmax_split.annotations, "f1", num_bootstrap=20)
        with pytest.raises(
            logn.InputError, match=r"keep at least .* but with a softmax it keeps .* nearer to the common"
        ):
            points.affine(0.05, softmax_split.store)

    def test_a_softmax_needs_its_predictions(self, softmax_split):
        points = logn.operating_points(softmax_split.store, softmax_split.annotations, "f1", num_bootstrap=0)
        with pytest.raises(logn.InputError, match="Expected `predictions`"):
            points.affine(0.25)

    def test_a_correction_that_is_no_map_is_refused(self, sigmoid_split):
        points = logn.operating_points(
            sigmoid_split.store, sigmoid_split.annotations, "f1", lambda logits: 2 * logits, num_bootstrap=0
        )
        with pytest.raises(logn.InputError, match="affine correction"):
            points.affine(0.25)

    @given(st.integers(0, 10_000), st.lists(st.floats(-3, 3), min_size=3, max_size=3))
    @settings(deadline=None, max_examples=40)
    def test_suppression_within_classes_does_not_see_shifts(self, seed, shifts):
        """The order inside a class stays, so what survives stays: whatever the shifts."""
        from logn.evaluate.decode.nms import AgnosticSuppression

        rng = np.random.default_rng(seed)
        corner = rng.uniform(0, 20, (12, 2))
        boxes = np.hstack([corner, corner + rng.uniform(5, 20, (12, 2))]).astype(np.float32)
        logits = rng.permutation(36).reshape(12, 3) / 4.0
        kept = []
        for moved in (logits, logits + np.array(shifts)):
            scores = sigmoid(moved).astype(np.float32).ravel()
            flat = np.argsort(-scores, kind="stable")
            survivors = AgnosticSuppression(boxes, 0.5).keep(flat // 3, flat % 3, None)
            kept.append(sorted(flat[survivors].tolist()))
        assert kept[0] == kept[1]


class TestFoldedAsTheFrameworkDecodes:
    """Where a shift is not exact, it is solved on the predictions, and the share that stays is said."""

    def made(self, folder, **header):
        rng = np.random.default_rng(8)
        options = {"num_columns": 4, "activation": "sigmoid", "dtype": "float32", **header}
        annotations, images = [], []
        with PredictionWriter(folder, StoreHeader(**options)) as writer:
            for image in range(1, 61):
                corner = rng.uniform(0, 60, (8, 2))
                boxes = np.hstack([corner, corner + 30]).astype(np.float32)
                labels = rng.integers(0, 3, 8)
                there = rng.random(8) < 0.6
                logits = rng.normal([-2, -3, -4, -3], 1, (8, 4))
                logits[np.arange(8), labels] += 3 * there
                objectness = rng.normal(1.5 * there, 1) if header.get("objectness") else None
                writer.append(image, Proposals(boxes, logits.astype(np.float32), 100, 100, objectness))
                images.append({"id": image, "width": 100, "height": 100})
                for box, label in zip(boxes[there].tolist(), labels[there].tolist(), strict=True):
                    size = [box[0], box[1], 30, 30]
                    entry = {"id": len(annotations) + 1, "image_id": image, "category_id": label + 1, "bbox": size}
                    annotations.append({**entry, "area": 900, "iscrowd": 0})
        names = 3 if "class_columns" in header else 4
        categories = [{"id": label + 1, "name": f"thing {label}"} for label in range(names)]
        return PredictionStore(folder), {"images": images, "annotations": annotations, "categories": categories}

    def points(self, folder, **header):
        store, truth = self.made(folder, **header)
        return store, logn.operating_points(store, truth, "f1", style="coco", num_bootstrap=20)

    def test_with_an_objectness_the_share_is_measured(self, tmp_path):
        store, points = self.points(tmp_path, objectness=True)
        folded = points.fold(points.common, store)
        assert not folded.is_exact
        assert points.stability <= folded.kept < 1
        with pytest.raises(logn.InputError, match="sigmoids with an objectness have to be solved"):
            points.affine(0.25)

    def test_where_a_box_is_of_one_class_the_share_is_measured(self, tmp_path):
        store, points = self.points(tmp_path, postprocessing=Postprocessing(multi_label=False))
        folded = points.fold(points.common, store, at_least=0.8)
        assert not folded.is_exact
        assert 0.8 < folded.kept <= 1

    def test_a_power_of_the_score_is_exact(self, tmp_path):
        store, points = self.points(tmp_path, postprocessing=Postprocessing(score_power=0.5))
        assert points.fold(0.25, store).is_exact

    def test_columns_without_a_class_are_left_alone(self, tmp_path):
        store, points = self.points(tmp_path, class_columns=(2, 0, 1))
        folded = points.fold(0.25, store)
        assert folded.is_exact
        assert folded.affine.shift[3] == 0
        np.testing.assert_allclose(folded.affine.shift[[2, 0, 1]], logit(0.25) - logit(points.thresholds))


def named(detections):
    return detections.image_index, detections.labels, detections.proposal


class TestTheSolver:
    def test_with_a_background_alone_the_formula_is_exact(self):
        """One class beside a background is a sigmoid."""
        rng = np.random.default_rng(0)
        rows = FoldRows(rng.normal(0, 3, (200, 2)), "softmax", (0,))
        wanted = rows.scores() >= 0.7
        start = np.array([float(logit(0.25) - logit(0.7))])
        assert agreement(wanted, rows.scores(start) >= 0.25) == 1.0
        np.testing.assert_array_equal(solve_shifts(rows, wanted, 0.25, start), start)

    def test_it_is_never_worse_than_its_start(self):
        rng = np.random.default_rng(1)
        rows = FoldRows(rng.normal(0, 2, (300, 5)), "softmax", (1, 2, 3, 4))
        thresholds = np.array([0.2, 0.3, 0.5, 0.6])
        wanted = rows.scores() >= thresholds
        start = logit(0.4) - logit(thresholds)
        solved = solve_shifts(rows, wanted, 0.4, start)
        shares = [agreement(wanted, rows.scores(shifts) >= 0.4) for shifts in (start, solved)]
        assert shares[1] > shares[0]

    def test_with_an_objectness_it_is_solved(self):
        """score = objectness x sigmoid: no shift is exact, the best one is found by sorting."""
        rng = np.random.default_rng(2)
        presence = rng.uniform(0.2, 1.0, 400)
        rows = FoldRows(rng.normal(0, 2, (400, 1)), "sigmoid", (0,), presence)
        wanted = rows.scores() >= 0.6
        start = np.array([float(logit(0.3) - logit(0.6))])
        solved = solve_shifts(rows, wanted, 0.3, start)
        shares = {shift: agreement(wanted, rows.scores(np.array([shift])) >= 0.3) for shift in np.linspace(-4, 2, 601)}
        mistakes = ((rows.scores(solved) >= 0.3) != wanted).sum()
        least = min(((rows.scores(np.array([shift])) >= 0.3) != wanted).sum() for shift in shares)
        assert mistakes <= least


class TestClassifiers:
    def made(self, seed=0, rows=600):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 3, rows)
        return 2 * np.eye(3)[labels] + rng.normal(size=(rows, 3)) + [2.0, 0.5, 0.0], labels

    def test_top_1_rejects_what_is_unsure(self):
        logits, labels = self.made()
        points = logn.operating_points(logits, labels, "precision=0.9", num_bootstrap=0, test=self.made(1))
        probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        best = probability.argmax(axis=1)
        accepted = probability.max(axis=1) >= points.thresholds[best]
        for label in range(3):
            chosen = accepted & (best == label)
            assert (labels[chosen] == label).mean() >= 0.9
        assert points.task == "top-1"
        assert points.measured.values["precision"].value == pytest.approx(0.9, abs=0.04)

    def test_top_1_folds_with_the_share_that_is_said(self):
        logits, labels = self.made()
        points = logn.operating_points(logits, labels, "precision=0.9", num_bootstrap=30)
        folded = points.fold(round(points.common, 2), logits, at_least=0.0)
        assert 0.5 < folded.kept <= 1

    def test_a_correction_comes_first(self):
        logits, labels = self.made()
        points = logn.operating_points(logits, labels, "f1", "loga", counts=[900, 90, 9], num_bootstrap=0)
        assert points.method == "loga"
        assert points.correction.num_classes == 3

    def test_several_labels_fold_exactly(self):
        rng = np.random.default_rng(0)
        labels = (rng.random((400, 3)) < [0.5, 0.2, 0.05]).astype(int)
        labels[0, 2] = -1
        logits = (3 * labels + rng.normal([-2, -3, -4], 1, (400, 3))).astype(np.float32)
        points = logn.operating_points(logits, labels, "f1", num_bootstrap=20)
        folded = points.affine(at=0.25)(logits)
        decisions = [sigmoid(logits) >= points.thresholds, sigmoid(folded) >= 0.25]
        np.testing.assert_array_equal(*decisions)
        assert points.task == "multi-label"


class TestWhatIsWrong:
    def test_classes_without_an_object_or_a_hit_get_the_common_threshold_and_a_sentence(self):
        common = [(0.9 - 0.01 * place, place % 3 > 0) for place in range(60)]
        found = outcomes([common, [(0.8, False), (0.5, False)], [(0.7, False)]], objects=[(2, 0)])
        chosen = choose_points(found, Target.parse("f1"), Bootstrap(20))
        assert np.isnan(chosen.own[1:]).all()
        np.testing.assert_allclose(logit(chosen.thresholds[1:]), float(logit(chosen.common)), atol=2e-3)
        assert (chosen.weights[1:] == 0).all()

    def test_the_sentences(self, sigmoid_split, tmp_path):
        content = json.loads(sigmoid_split.annotations.read_text())
        content["annotations"] = [item for item in content["annotations"] if item["category_id"] != 3]
        for item in content["annotations"]:
            if item["category_id"] == 5:
                item["bbox"] = [0, 0, 1, 1]  # where nothing was proposed
        points = logn.operating_points(sigmoid_split.store, content, "f1", style="coco", num_bootstrap=20)
        assert points.notes == (
            f"1 class (thing 2) has no object in the images to choose by, so it has the common threshold, "
            f"{points.common:.3f}.",
            f"1 class (thing 4) has objects but no right detection in the images to choose by, so it has the common "
            f"threshold, {points.common:.3f}.",
            f"3 classes (thing 3, thing 5, thing 6) have no threshold that is better on held-out images than the "
            f"common one, so they have the common threshold, {points.common:.3f}.",
        )

    def test_a_target_out_of_reach_is_said(self, sigmoid_split):
        content = json.loads(sigmoid_split.annotations.read_text())
        for item in content["annotations"][::2]:
            item["bbox"] = [0, 0, 1, 1]  # where nothing was proposed
        points = logn.operating_points(sigmoid_split.store, content, "recall=0.9", num_bootstrap=0)
        assert any("no threshold that reaches the target" in note for note in points.notes)

    def test_labels_of_other_classes_are_refused(self, sigmoid_split):
        content = json.loads(sigmoid_split.annotations.read_text())
        for category in content["categories"]:
            category["name"] = f"another {category['name']}"
        with pytest.raises(logn.InputError, match="to have classes of the model, but they share no name: the model"):
            logn.operating_points(sigmoid_split.store, content)

    def test_nan_is_refused(self):
        logits = np.zeros((30, 2))
        logits[3, 1] = np.nan
        with pytest.raises(logn.InputError, match="to be finite, but row 3, class 1 is nan"):
            logn.operating_points(logits, np.zeros(30, int))
        with pytest.raises(logn.InputError, match="a score of class `class 0` is NaN"):
            outcomes([[(np.nan, True)]])

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"target": "precision"}, "Expected `target` to be f1, "),
            ({"target": "fppi=0"}, "a number above 0"),
            ({"target": "recall=2"}, "a share above 0 and at most 1"),
            ({"iou": 0}, "Expected `iou` to be above 0"),
            ({"num_bootstrap": -1}, "Expected `num_bootstrap` to be at least 0"),
            ({"confidence": 1}, "Expected `confidence` to lie between 0 and 1"),
            ({"split": True, "test": (1, 2)}, "Expected one of `split` and `test`"),
            ({"affine": ClassAffine.identity(3)}, "Expected `affine` to have 10 classes"),
        ],
    )
    def test_wrong_arguments(self, sigmoid_split, options, sentence):
        with pytest.raises(logn.InputError, match=sentence):
            logn.operating_points(sigmoid_split.store, sigmoid_split.annotations, **options)

    def test_no_object_at_all_is_refused(self):
        found = outcomes([[(0.9, False)]])
        with pytest.raises(logn.InputError, match="Expected objects in the images"):
            choose_points(found, Target.parse("f1"))
