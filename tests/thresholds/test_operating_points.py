"""Thresholds per class: chosen for a goal, shrunk, held out, given, saved, and folded into one threshold."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.made.split import store_header

import logn
from logn.base.arrays import sigmoid
from logn.methods.affine import ClassAffine
from logn.models.proposals import Postprocessing, Proposals
from logn.predictions.decoder import DecodeSettings, decode
from logn.predictions.store import Predictions, PredictionWriter
from logn.statistics.head import Head
from logn.thresholds.choose import Goal, choose, choose_thresholds, shrinkage_weights
from logn.thresholds.scored_detections import DrawnDetections, ScoredDetections, clipped_logit, measure
from logn.thresholds.solve import agreement, shifted_scores, solve_shifts


def detections(classes, *, num_images=None, objects=None):
    """Detections of classes that are lists of (score, right), each in an image of its own; `objects` are unfound."""
    rows = [(label, score, right) for label, one in enumerate(classes) for score, right in one]
    labels, scores, right = (np.array(column) for column in zip(*rows, strict=True))
    images = np.arange(len(rows))
    objects = [(label, image) for label, image, hit in zip(labels, images, right, strict=True) if hit] + (objects or [])
    object_labels, object_images = np.array(objects, np.int64).reshape(-1, 2).T
    right = right.astype(bool)
    names = tuple(f"class {label}" for label in range(len(classes)))
    number = num_images or len(rows)
    return ScoredDetections(
        labels, images, scores.astype(np.float64), right, ~right, object_labels, object_images, number, names
    )


def simulated(rng, images, *, centres=(-1.0, 0.0, 1.0, 2.0), rates=(2.0, 1.0, 0.6, 0.4)):
    """Scores of a detector whose classes have scales of their own, as a long tail leaves them."""
    parts = []
    for label, (centre, rate) in enumerate(zip(centres, rates, strict=True)):
        image = np.repeat(np.arange(images), rng.poisson(rate, images))
        hit = rng.random(len(image)) < 0.85
        alarm = np.repeat(np.arange(images), rng.poisson(1.5 * rate, images))
        scores = np.concatenate([rng.normal(centre + 1.5, 1.2, hit.sum()), rng.normal(centre - 1.5, 1.2, len(alarm))])
        right = np.arange(len(scores)) < hit.sum()
        parts.append((label, np.concatenate([image[hit], alarm]), scores, right, image))
    right = np.concatenate([part[3] for part in parts])
    return ScoredDetections(
        np.concatenate([np.full(len(part[1]), part[0]) for part in parts]),
        np.concatenate([part[1] for part in parts]),
        sigmoid(np.concatenate([part[2] for part in parts])).astype(np.float32).astype(np.float64),
        right,
        ~right,
        np.concatenate([np.full(len(part[4]), part[0]) for part in parts]),
        np.concatenate([part[4] for part in parts]),
        images,
        tuple(map(str, range(len(centres)))),
    )


def once(scored, goal):
    """The common threshold and that of each class."""
    common, own = choose(DrawnDetections.once(scored), Goal.parse(goal))
    return common[0], own[:, 0]


CLASS = [(0.9, True), (0.8, False), (0.7, True), (0.6, False), (0.5, False), (0.4, True), (0.1, False)]


@pytest.mark.parametrize(
    ("goal", "kept"),
    [
        ("f1", 6),  # 2 x 3 / (6 kept + 4 objects) = 0.6; with 3 kept 2 x 2 / (3 + 4), with one 2 / 5
        ("precision=1", 1),
        ("precision=0.6", 3),
        ("recall=0.5", 3),
        ("recall=0.75", 6),
    ],
)
def test_worked_numbers(goal, kept):
    scored = detections([CLASS], objects=[(0, 0)])  # a fourth object, never found
    _, own = once(scored, goal)
    assert sum(score >= own[0] for score, _ in CLASS) == kept


@pytest.mark.parametrize("goal", ["f1", "precision=0.6", "recall=0.6"])
def test_a_class_gets_what_trying_every_threshold_gives(goal):
    rng = np.random.default_rng(3)
    for _ in range(30):
        scores = rng.random(40).round(2)  # with ties
        right = rng.random(40) < scores
        scored = detections([list(zip(scores, right, strict=True))], objects=[(0, 0), (0, 1)])
        chosen = once(scored, goal)[1][0]
        best = by_trying(scores, right, int(right.sum()) + 2, Goal.parse(goal))
        assert (np.isnan(chosen) and best is None) or (scores >= chosen).sum() == (scores >= best).sum()


def by_trying(scores, right, objects, goal):
    values = []
    for level in np.unique(scores)[::-1]:
        kept = scores >= level
        hits = int(right[kept].sum())
        values.append((level, hits, hits / kept.sum(), hits / objects, 2 * hits / (objects + kept.sum())))
    if goal.kind == "f1":
        best = max(value[4] for value in values)
        return next(value[0] for value in values if value[4] >= best - 1e-12) if best > 0 else None
    if goal.kind == "precision":
        fine = [value for value in values if value[1] and value[2] >= goal.value - 1e-12]
        most = max((value[1] for value in fine), default=None)
        return next((value[0] for value in fine if value[1] == most), None)
    return next((value[0] for value in values if value[3] >= goal.value - 1e-12), None)


@pytest.mark.parametrize("goal", ["fppi=0.1", "fppi=0.2"])
def test_what_is_allotted_finds_as_much_as_any_thresholds_with_as_few_false_alarms(goal):
    rng = np.random.default_rng(4)
    for _ in range(10):
        classes = []
        for _ in range(3):
            scores = rng.permutation(12) / 13 + 0.04
            classes.append(list(zip(scores, rng.random(12) < scores, strict=True)))
        scored = detections(classes)
        own = once(scored, goal)[1]
        counts = [counts_at(one, own[label]) for label, one in enumerate(classes)]
        hits, alarms = sum(hit for hit, _ in counts), sum(alarm for _, alarm in counts)
        assert alarms <= Goal.parse(goal).value * scored.num_images
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


@pytest.mark.parametrize(
    ("goal", "metric"), [("precision=0.85", "precision"), ("recall=0.6", "recall"), ("fppi=1", "false alarms")]
)
def test_targets_hold_on_other_images_on_average(goal, metric):
    rng, wanted = np.random.default_rng(11), Goal.parse(goal)
    name = "false alarms per image" if metric == "false alarms" else metric
    values = []
    for draw in range(20 if wanted.is_joint else 60):
        dev, test = simulated(rng, 60), simulated(rng, 60)
        chosen = choose_thresholds(dev, wanted, num_bootstrap=20, seed=draw)
        values.append(measure(DrawnDetections.once(test), chosen.thresholds[:, None])[name][0])
    assert np.mean(values) == pytest.approx(wanted.value, rel=0.12)


def test_thresholds_per_class_beat_one_threshold_where_classes_have_scales_of_their_own():
    rng = np.random.default_rng(5)
    dev, test = simulated(rng, 300), DrawnDetections.once(simulated(rng, 2000))
    for goal, metric in (("f1", "class-mean F1"), ("fppi=0.5", "recall")):
        chosen = choose_thresholds(dev, Goal.parse(goal), num_bootstrap=50)
        per_class, one = (measure(test, values)[metric][0] for values in (chosen.thresholds[:, None], chosen.common))
        assert per_class > one + 0.05, goal


@pytest.mark.parametrize("seed", range(3))
def test_shrunk_thresholds_meet_a_goal_over_all_classes_just_so(seed):
    scored, limit = simulated(np.random.default_rng(seed), 60), 0.5 * 60
    chosen = choose_thresholds(scored, Goal.parse("fppi=0.5"), num_bootstrap=50)
    assert (chosen.weights < 1).sum() > 0
    alarms = [
        int(
            (
                scored.wrong
                & (clipped_logit(scored.scores) >= (clipped_logit(chosen.thresholds) + move)[scored.labels])
            ).sum()
        )
        for move in (1e-9, -0.3)
    ]
    assert alarms[0] <= limit < alarms[1]


def test_shrinking_helps_classes_with_few_objects():
    rng = np.random.default_rng(6)
    gains = []
    for _ in range(20):
        rates = (2.0, 1.5, 1.0, 0.02, 0.02, 0.02, 0.02, 0.02)
        centres = tuple(rng.normal(0, 0.3, 8))
        dev = simulated(rng, 150, centres=centres, rates=rates)
        test = DrawnDetections.once(simulated(rng, 2000, centres=centres, rates=rates))
        chosen = choose_thresholds(dev, Goal("f1"), num_bootstrap=50)
        plain = once(dev, "f1")[1]
        plain = np.where(np.isnan(plain), chosen.common, plain)
        shrunk, own = (measure(test, values[:, None])["class-mean F1"][0] for values in (chosen.thresholds, plain))
        gains.append(shrunk - own)
        used = chosen.weights[:3][chosen.weights[:3] > 0]
        assert (chosen.weights[3:, None] <= used).all()
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
    moved, _ = shrinkage_weights(np.array(own) + 1.5, 1.5, np.full(len(own), spread), count)
    np.testing.assert_allclose(moved, weights, atol=1e-6)


@pytest.mark.parametrize("goal", ["f1", "recall=0.7", "precision=0.8", "fppi=0.5"])
@pytest.mark.parametrize("rare", [3, 6])
def test_a_class_with_few_objects_keeps_the_common_threshold(rare, goal):
    """Its own F1 threshold would find them among a hundred false alarms."""
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
    labels, images, scores, right = (np.array(column) for column in zip(*rows, strict=True))
    object_labels, object_images = np.array(objects).T
    scored = ScoredDetections(
        labels, images, scores, right, ~right, object_labels, object_images, 24, ("a", "b", "rare")
    )
    chosen = choose_thresholds(scored, Goal.parse(goal), num_bootstrap=50)
    if rare < 5 or goal == "f1":
        assert chosen.weights[2] == 0
        assert chosen.thresholds[2] == pytest.approx(chosen.common)
        assert chosen.reasons[2] == (
            "fewer than 5 right detections" if rare < 5 else "no better threshold on held-out images"
        )


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(2, 40), st.sampled_from([0, 10]))
@settings(deadline=None, max_examples=40)
def test_own_thresholds_are_better_on_held_out_folds(seed, classes, images, draws):
    """Against a plain loop: choose on the other folds, count on this one."""
    rng = np.random.default_rng(seed)
    rates, centres = tuple(rng.uniform(0.05, 2.0, classes)), tuple(rng.normal(0, 2, classes))
    scored = simulated(rng, images, centres=centres, rates=rates)
    if not len(scored.object_labels):
        return
    chosen = choose_thresholds(scored, Goal("f1"), num_bootstrap=draws, seed=seed)
    right = np.bincount(scored.labels[scored.right], minlength=classes)
    assert (chosen.weights[right < 5] == 0).all()
    if draws:
        return  # the folds are shrunk too
    counts = np.zeros((2, 3, classes))  # common and own; hits, false alarms, objects
    rng = np.random.default_rng(seed)
    for _ in range(4):
        folds = rng.permutation(images) % min(5, images)
        for fold in range(min(5, images)):
            common, own = once(scored.part(folds != fold), "f1")
            own = np.where(np.isnan(own) | (right < 5), common, own)
            held_out = DrawnDetections.once(scored.part(folds == fold))
            for side, values in enumerate((np.full(classes, common), own)):
                counts[side] += held_out.at(values[:, None])[:, :, 0]
    hits, alarms, objects = counts.transpose(1, 0, 2)
    assert (objects == 4 * np.bincount(scored.object_labels, minlength=classes)).all()
    scores = 2 * hits / np.maximum(hits + alarms + objects, 1)
    np.testing.assert_array_equal(
        chosen.weights > 0, (scores[1] > scores[0]) & (right >= 5) & ~np.isnan(once(scored, "f1")[1])
    )


class TestOfADetector:
    def points(self, split, *words, **options):
        options = {"num_bootstrap": 20, **options}
        return logn.operating_points(split.store, split.annotations, *words, **options)

    def test_numbers_are_held_out(self, sigmoid_split):
        points = self.points(sigmoid_split)
        before, _, per_class = points.summary.values()
        assert per_class["F1"][1] < per_class["F1"][0] < per_class["F1"][2]
        assert [*points.summary] == ["0.25 for all classes", "best single threshold", "per class"]
        hits, kept = (sum(getattr(point, name) for point in points.points) for name in ("found", "false_alarms"))
        objects = sum(point.objects for point in points.points)
        assert per_class["F1"][0] == pytest.approx(2 * hits / (hits + kept + objects))
        hits = sum(point.found_before for point in points.points)
        assert before["recall"][0] == pytest.approx(hits / objects)
        assert "Numbers are held out: each half of the 40 images" in " ".join(str(points).split())

    def test_a_results_file_gives_the_same_as_a_store(self, sigmoid_split, tmp_path):
        found = decode(sigmoid_split.store)
        content = json.loads(sigmoid_split.annotations.read_text())
        ids = sorted(category["id"] for category in content["categories"])
        boxes = np.concatenate([found.boxes[:, :2], found.boxes[:, 2:] - found.boxes[:, :2]], axis=1)
        rows = zip(found.image_index, found.labels, boxes.tolist(), found.scores.tolist(), strict=True)
        results = [
            {
                "image_id": int(sigmoid_split.store.image_ids[image]),
                "category_id": ids[label],
                "bbox": box,
                "score": score,
            }
            for image, label, box, score in rows
        ]
        (tmp_path / "results.json").write_text(json.dumps(results))
        of_file = logn.operating_points(tmp_path / "results.json", sigmoid_split.annotations, num_bootstrap=20)
        np.testing.assert_allclose(of_file.thresholds, self.points(sigmoid_split).thresholds, atol=1e-6)
        assert of_file.affine().num_columns == 10
        with pytest.raises(logn.InputError, match="has no logits to correct: pass a folder"):
            logn.operating_points(tmp_path / "results.json", sigmoid_split.annotations, affine=ClassAffine.identity(10))

    def test_the_overlap_is_the_users(self, sigmoid_split):
        loose, strict = (self.points(sigmoid_split, iou=iou, num_bootstrap=0) for iou in (0.5, 0.9))
        assert sum(point.found for point in strict.points) < sum(point.found for point in loose.points)

    def test_federated_labels_count_false_alarms_only_where_a_class_was_looked_for(self, sigmoid_split):
        lvis, coco = (self.points(sigmoid_split, "recall=0.5", style=style) for style in ("lvis", "coco"))
        assert sum(point.false_alarms for point in lvis.points) < sum(point.false_alarms for point in coco.points)
        assert any("False alarms count only" in note for note in lvis.notes)

    def test_saved_points_are_the_same(self, softmax_split, tmp_path):
        correction = ClassAffine.over_foreground(np.ones(10), np.linspace(-1, 1, 10), Head(background=0), method="made")
        correction = ClassAffine(
            correction.scale, correction.shift, head=Head(background=softmax_split.store.head.background)
        )
        points = self.points(softmax_split, "fppi=1", correction)
        points.save(tmp_path / "points.json")
        content = json.loads((tmp_path / "points.json").read_text(), parse_constant=pytest.fail)
        assert content["format"] == "logn.operating_points"
        again = logn.OperatingPoints.load(tmp_path / "points.json")
        assert again.to_dict() == points.to_dict()
        assert again.correction == points.correction
        assert [path.name for path in tmp_path.iterdir()] == ["points.json"]

    def test_classes_without_a_threshold_of_their_own_are_listed(self, sigmoid_split):
        content = json.loads(sigmoid_split.annotations.read_text())
        content["annotations"] = [item for item in content["annotations"] if item["category_id"] != 3]
        for item in content["annotations"]:
            if item["category_id"] == 5:
                item["bbox"] = [0, 0, 1, 1]  # where nothing was proposed
        points = logn.operating_points(sigmoid_split.store, content, style="coco", num_bootstrap=20)
        assert (points.points[2].reason, points.points[4].reason) == (
            "no objects in these images",
            "fewer than 5 right detections",
        )
        text = " ".join(str(points).split())
        assert f"Classes with no objects in these images keep the common {points.common:.3f} (1): thing 2." in text

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"goal": "precision"}, "Expected `goal` to be f1, "),
            ({"goal": "f-beta=2"}, "Expected `goal` to be f1, "),
            ({"goal": "fppi=0"}, "fppi to be above 0, but got 0"),
            ({"goal": "recall=2"}, "above 0 and at most 1"),
            ({"at": 1.0}, "`at` to lie between 0 and 1"),
            ({"iou": 0}, "Expected `iou` to be above 0"),
            ({"num_bootstrap": -1}, "Expected `num_bootstrap` to be at least 0"),
            ({"affine": ClassAffine.identity(3)}, "columns differs: 3 in `affine`, 10 in"),
        ],
    )
    def test_wrong_arguments(self, sigmoid_split, options, sentence):
        with pytest.raises(logn.InputError, match=sentence):
            self.points(sigmoid_split, **options)

    def test_labels_without_objects_are_refused(self):
        with pytest.raises(logn.InputError, match="The images have no objects to choose thresholds on"):
            choose_thresholds(detections([[(0.9, False)]]), Goal("f1"))


class TestGiven:
    names = ("car", "person", "bus")

    def test_by_name_with_a_default(self):
        points = logn.OperatingPoints.from_thresholds({"bus": 0.5, "default": 0.1}, 0.3, self.names)
        assert points.thresholds.tolist() == [0.1, 0.1, 0.5]
        points = logn.OperatingPoints.from_thresholds({"bus": 0.5}, 0.3, self.names)
        assert points.thresholds.tolist() == [0.3, 0.3, 0.5]
        assert points.affine().shift[:2].tolist() == [0, 0]
        points = logn.OperatingPoints.from_thresholds({"default": 0.5}, 0.3, ("default", "other"))
        assert points.thresholds.tolist() == [0.5, 0.3]

    @given(st.lists(st.floats(1e-6, 1 - 1e-6), min_size=3, max_size=3), st.floats(0.01, 0.99))
    def test_one_threshold_acts_as_all(self, thresholds, at):
        points = logn.OperatingPoints.from_thresholds(dict(zip(self.names, thresholds, strict=True)), at)
        logits = np.random.default_rng(0).normal(0, 4, (500, 3))
        clear = np.abs(logits - (np.log(thresholds) - np.log1p(-np.array(thresholds)))) > 1e-9
        decisions = (sigmoid(points.affine()(logits)) >= at, sigmoid(logits) >= thresholds)
        assert (decisions[0] == decisions[1])[clear].all()

    @pytest.mark.parametrize("name", ["points.json", "points.csv"])
    def test_files_and_text(self, tmp_path, name):
        points = logn.OperatingPoints.from_thresholds({"bus": 0.5}, 0.3, self.names)
        points.save(tmp_path / name)
        again = logn.OperatingPoints.load(tmp_path / name, at=0.3)
        assert (again.thresholds.tolist(), again.class_names, again.at) == ([0.3, 0.3, 0.5], self.names, 0.3)
        text = logn.OperatingPoints.load('{"bus": 0.5}', 0.3, self.names)
        assert text.thresholds.tolist() == again.thresholds.tolist()

    @pytest.mark.parametrize(
        ("thresholds", "sentence"),
        [
            ({"car": -0.1}, "threshold of `car` to lie between 0 and 1, both excluded, but got -0.1"),
            ({"car": 0.0}, "No class has a threshold of its own"),
            ({"car": 1}, "both excluded, but got 1"),
            ({"car": float("nan")}, "No class has a threshold of its own"),
            ({"car": float("inf")}, "but got inf"),
            ({"car": True}, "but got True"),
            ({"car": "0.5"}, "but got '0.5'"),
            ({"default": 1.5}, "`default` to lie between 0 and 1"),
            ({"default": float("nan")}, "`default` to lie between 0 and 1, both excluded, but got nan"),
            (
                {"per_class_confidence": {"car": 45}},
                "threshold of `car` to lie between 0 and 1, both excluded, but got 45",
            ),
            ({"per_class_confidence": {"car": 0.5}, "confidence": 40}, "`confidence` to lie between 0 and 1"),
            ({"zebra": 0.5}, "share no class name: the model has car, person, bus, the thresholds have zebra"),
        ],
    )
    def test_what_is_wrong_is_one_sentence(self, thresholds, sentence):
        with pytest.raises(logn.InputError, match=sentence):
            logn.OperatingPoints.from_thresholds(thresholds, 0.25, self.names)

    @pytest.mark.parametrize(
        ("name", "content", "sentence"),
        [
            ("a.json", "no json", "is not JSON such as"),
            ("a.json", "[]", "is not a JSON object such as"),
            ("a.json", '{"car": 0.5, "car": 0.4}', "'car' comes twice"),
            ("a.json", '{"format": "logn.operating_points", "schema": 9}', "has schema 9; this version reads 3"),
            ("a.json", '{"format": "logn.operating_points", "schema": 3}', "damaged"),
            ("a.csv", "class,threshold\ncar,0.5\ncar,0.5\n", "names the class `car` twice"),
            ("a.csv", "class,threshold\ncar\n", "has a line without a class and a threshold"),
        ],
    )
    def test_a_file_that_is_wrong_is_one_sentence(self, tmp_path, name, content, sentence):
        (tmp_path / name).write_text(content)
        with pytest.raises(logn.InputError, match=sentence):
            logn.OperatingPoints.load(tmp_path / name, class_names=self.names)


class TestFolded:
    @pytest.mark.parametrize("corrected", [False, True])
    @pytest.mark.parametrize("at", [0.05, 0.25, 0.7])
    def test_a_sigmoid_model_decides_as_before(self, sigmoid_split, corrected, at):
        correction = ClassAffine(np.linspace(0.8, 1.2, 10), np.linspace(-1, 1, 10)) if corrected else None
        points = logn.operating_points(
            sigmoid_split.store, sigmoid_split.annotations, "f1", correction, num_bootstrap=20
        )
        folded = points.fold(at, sigmoid_split.store)
        assert (folded.is_exact, folded.kept) == (True, 1.0)
        assert 0 < folded.agnostic <= 1
        assert "exactly" in folded.describe()
        assert points.affine(at) == folded.affine

    def test_a_softmax_keeps_the_share_that_is_said(self, softmax_split):
        points = logn.operating_points(softmax_split.store, softmax_split.annotations, "f1", num_bootstrap=20)
        folded = points.fold(0.4, softmax_split.store, at_least=0.5)
        plain = decode(softmax_split.store, None, DecodeSettings(max_detections=None))
        one = decode(softmax_split.store, folded.affine, DecodeSettings(max_detections=None, score_threshold=0.4))
        plain = plain.take(plain.scores.astype(float) >= points.thresholds[plain.labels])
        left, right = (
            set(zip(kept.image_index.tolist(), kept.labels.tolist(), kept.proposal.tolist(), strict=True))
            for kept in (plain, one)
        )
        assert folded.kept == pytest.approx(len(left & right) / len(left | right))
        assert not folded.is_exact
        with pytest.raises(
            logn.InputError, match=r"With a softmax, one threshold of 0\.05 keeps .* less than 95 %.* nearer to"
        ):
            points.affine(0.05, softmax_split.store)
        with pytest.raises(logn.InputError, match="Thresholds for a softmax are folded with predictions"):
            points.affine(0.25)


class TestFoldedAsTheFrameworkDecodes:
    """Where a shift is not exact, it is solved on the predictions, and the share that stays is measured."""

    def points(self, folder, **header):
        rng = np.random.default_rng(8)
        options = {"num_columns": 4, "activation": "sigmoid", "dtype": "float32", **header}
        annotations, images = [], []
        with PredictionWriter(folder, store_header(**options)) as writer:
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
        truth = {"images": images, "annotations": annotations, "categories": categories}
        store = Predictions(folder)
        return store, logn.operating_points(store, truth, "f1", num_bootstrap=20)

    def test_with_an_objectness_a_shift_is_refused_and_a_factor_at_the_output_is_exact(self, tmp_path):
        store, points = self.points(tmp_path, objectness=True)
        with pytest.raises(
            logn.InputError, match="No shift of the logits acts as thresholds on scores that an objectness"
        ):
            points.affine(0.25, store)
        for at in (0.05, 0.6):
            folded = points.fold(at, store, at_output=True)
            assert (folded.is_exact, folded.kept) == (True, 1.0)
            assert 0.8 < folded.agnostic <= 1
            assert folded.affine == ClassAffine.identity(4)
            np.testing.assert_allclose(folded.factors, at / points.thresholds)
            assert ("may exceed 1" in folded.describe()) == bool((points.thresholds < at).any())

    def test_where_a_box_is_of_one_class_the_share_is_measured(self, tmp_path):
        store, points = self.points(tmp_path, postprocessing=Postprocessing(multi_label=False))
        folded = points.fold(0.25, store)
        assert folded.is_exact
        assert 0.8 < folded.kept < 1
        assert f"With one class per box {100 * folded.kept:.1f} % stays." in folded.describe()

    def test_columns_without_a_class_are_left_alone(self, tmp_path):
        store, points = self.points(tmp_path, class_columns=(0, 1, 3))
        folded = points.fold(0.25, store)
        assert folded.is_exact
        assert folded.affine.shift[2] == 0
        np.testing.assert_allclose(
            folded.affine.shift[[0, 1, 3]], clipped_logit(0.25) - clipped_logit(points.thresholds)
        )


class TestTheSolver:
    def test_with_a_background_alone_the_formula_is_exact(self):
        """One class beside a background is a sigmoid."""
        rows = np.random.default_rng(0).normal(0, 3, (200, 2)), [0]
        wanted = shifted_scores(*rows, 0.0) >= 0.7
        start = np.array([float(clipped_logit(0.25) - clipped_logit(0.7))])
        assert agreement(wanted, shifted_scores(*rows, start) >= 0.25) == 1.0
        np.testing.assert_array_equal(solve_shifts(*rows, wanted, 0.25, start), start)

    def test_it_is_never_worse_than_its_start(self):
        rows = np.random.default_rng(1).normal(0, 2, (300, 5)), [1, 2, 3, 4]
        thresholds = np.array([0.2, 0.3, 0.5, 0.6])
        wanted = shifted_scores(*rows, 0.0) >= thresholds
        start = clipped_logit(0.4) - clipped_logit(thresholds)
        solved = solve_shifts(*rows, wanted, 0.4, start)
        shares = [agreement(wanted, shifted_scores(*rows, shifts) >= 0.4) for shifts in (start, solved)]
        assert shares[1] > shares[0]
