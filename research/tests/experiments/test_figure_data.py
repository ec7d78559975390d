"""Each figure's data by known numbers, and that every figure can be drawn."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from logn_research.figures.assigned_proposals import AssignedProposals, assigned_proposals
from logn_research.figures.error_data import COMPONENTS, error_components, error_pair
from logn_research.figures.figure_data import (
    background_ratio,
    label_shift,
    logit_statistics,
    margin_effect,
    margin_of_run,
    online_comparison,
    positive_statistics,
    resampled_statistics,
    shift_between,
    statistics_of_run,
)
from logn_research.figures.figure_style import paper_style
from logn_research.figures.figures import FIGURES, FigureOptions, draw_figure, draw_online

from logn.cli.main import execute
from logn.errors import InputError
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.comparison import Comparison, DetectionScope
from logn.evaluate.comparison.settings import CompareSettings
from logn.evaluate.detection.assignment import assign
from logn.evaluate.detection.protocol import EvaluationProtocol
from logn.evaluate.store.store import PredictionWriter, StoreHeader
from logn.logits.proposals import Proposals
from logn.report.run_folder import open_run
from logn.statistics.moments import ClassMoments, StatisticsMetadata

START_OF_FILE = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def counted(per_class, background, objects):
    return AssignedProposals(np.array(per_class), background, np.array(objects), ClassMoments(2), images=5)


# Fig. 1a
def test_label_shift_is_the_difference_of_logarithms():
    prior, repeated = np.array([0.2, 0.8]), np.array([0.4, 0.6])
    shift = shift_between(prior, repeated, counted([30, 10], 100, [5, 5]))
    assert shift.order.tolist() == [1, 0]
    np.testing.assert_allclose(shift.external, np.log([0.75, 2.0]))
    np.testing.assert_allclose(shift.internal, np.log([0.5, 1.5]))
    assert shift.both is None  # nobody says which images the proposals are from


def test_the_joint_shift_is_counted_and_not_the_sum_of_the_two():
    # Image 0 shows class 0 only; image 1 shows both, and is repeated three times for the sake of class 1.
    assigned = replace(
        counted([4, 2], 10, [3, 1]),
        proposal_image=np.array([0, 0, 1, 1, 1, 1]),
        proposal_class=np.array([0, 0, 0, 0, 1, 1]),
        image_classes=(np.array([0]), np.array([0, 1])),
    )
    prior = np.array([0.75, 0.25])
    shift = shift_between(prior, np.array([5 / 8, 3 / 8]), assigned, factors=np.array([1.0, 3.0]))
    # Class 0: 2 + 3 * 2 proposals, class 1: 3 * 2; of objects three of four are of class 0.
    np.testing.assert_allclose(shift.both, np.log([(8 / 14) / 0.75, (6 / 14) / 0.25]))
    assert not np.allclose(shift.both, shift.external + shift.internal)


def test_a_class_that_no_proposal_covers_has_no_shift():
    shift = shift_between(np.array([0.5, 0.5]), np.array([0.5, 0.5]), counted([4, 0], 9, [1, 1]))
    assert np.isnan(shift.internal).tolist() == [False, True]
    np.testing.assert_allclose(shift.external, 0.0)


def test_label_shift_of_a_run_repeats_images_of_rare_classes(tmp_path):
    # Nine images show class 1; one image shows class 2 twice. At threshold 0.4 its factor is sqrt(0.4 / 0.1) = 2.
    images = [{"id": number, "width": 50, "height": 50, "file_name": f"{number}.png"} for number in range(10)]
    labels = [(number, 1) for number in range(9)] + [(9, 2), (9, 2)]
    annotations = [
        {"id": place, "image_id": image, "category_id": label, "bbox": [0, 0, 9, 9], "area": 81, "iscrowd": 0}
        for place, (image, label) in enumerate(labels)
    ]
    categories = [{"id": 1, "name": "cup"}, {"id": 2, "name": "saucer"}]
    (tmp_path / "data").mkdir()
    content = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "data" / "train.json").write_text(json.dumps(content))
    shift = label_shift(open_run(tmp_path), threshold=0.4)
    assert shift.internal is None
    np.testing.assert_allclose(shift.external, np.log([(9 / 13) / (9 / 11), (4 / 13) / (2 / 11)]))


# Fig. 1b
def test_background_ratio_is_sorted_and_adds_up():
    ratio = background_ratio(counted([5, 20], 50, [1, 1]))
    assert ratio.order.tolist() == [1, 0]
    np.testing.assert_allclose(ratio.ratio, [0.4, 0.1])
    np.testing.assert_allclose(ratio.cumulative, [0.4, 0.5])


def test_without_background_there_is_no_ratio():
    with pytest.raises(InputError, match="background proposals"):
        background_ratio(counted([5, 20], 0, [1, 1]))


def test_proposals_go_to_the_box_they_overlap_most():
    proposals = np.array([[0, 0, 10, 10], [9, 0, 19, 10], [0, 0, 3, 3], [50, 50, 60, 60]], float)
    boxes, labels = np.array([[0, 0, 10, 9], [10, 0, 10, 10]], float), np.array([4, 7])
    assert assign(proposals, boxes, labels).tolist() == [4, 7, -1, -1]
    assert assign(proposals, boxes[:0], labels[:0]).tolist() == [-1] * 4


@pytest.fixture
def two_proposals(tmp_path):
    """One image, one object of class 1 of 2, three proposals: two upon it, one elsewhere; the background is last."""
    (tmp_path / "data").mkdir()
    annotation = {"id": 1, "image_id": 3, "category_id": 2, "bbox": [0, 0, 10, 10], "area": 100}
    categories = [{"id": 1, "name": "cup"}, {"id": 2, "name": "jug"}]
    content = {"images": [{"id": 3}], "annotations": [annotation], "categories": categories}
    (tmp_path / "data" / "test.json").write_text(json.dumps(content))
    (tmp_path / "counts.json").write_text("[90, 10]")
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 8], [80, 80, 90, 90]], np.float32)
    logits = np.array([[0, 2, 0], [0, 4, 0], [9, 9, 9]], np.float32)
    with PredictionWriter(tmp_path / "predictions", StoreHeader(num_columns=3, background=-1)) as writer:
        writer.append(3, Proposals(boxes, logits, height=100, width=100))
    return open_run(tmp_path)


# Fig. 6
def test_positive_statistics_look_only_at_a_class_on_its_own_objects(two_proposals):
    found = assigned_proposals(two_proposals)
    assert found.per_class.tolist() == [0, 2]
    assert found.background == 1
    assert found.objects.tolist() == [0, 1]
    statistics = positive_statistics(two_proposals, found)
    assert statistics.order.tolist() == [0, 1]
    np.testing.assert_array_equal(statistics.mean, [np.nan, 3.0])
    np.testing.assert_array_equal(statistics.variance, [np.nan, 2.0])


# Fig. 2
def test_logit_statistics_stand_in_the_order_of_the_counts():
    moments = ClassMoments(4, metadata=StatisticsMetadata(background=0))
    moments.update(np.array([[0, 1, 5, 3], [0, 3, 9, 3.5]]))
    statistics = logit_statistics(moments, [10, 1000, 100])
    assert statistics.order.tolist() == [1, 2, 0]
    np.testing.assert_allclose(statistics.log_share, np.log(np.array([1000, 100, 10]) / 1110))
    np.testing.assert_allclose(statistics.mean, [7, 3.25, 2])
    np.testing.assert_allclose(statistics.variance, [8, 0.125, 2])
    assert statistics.mean_link.spearman == pytest.approx(1.0)
    assert statistics.variance_link.spearman == pytest.approx(0.5)


def test_labels_stand_as_often_as_they_were_shown():
    moments = ClassMoments(2)
    moments.update(np.array([[1.0, 5.0], [3.0, 9.0]]))
    statistics = logit_statistics(moments, [90, 10], shown=[90, 30])
    np.testing.assert_allclose(statistics.log_share, np.log([0.75, 0.25]))
    assert statistics.order.tolist() == [0, 1]


def test_both_samplers_stand_in_one_figure(run_folder, tmp_path):
    arguments = ["figure", "logit-statistics", str(run_folder), "--repeat-threshold", "0.04"]
    assert execute([*arguments, "-o", str(tmp_path / "one.svg")]) == 0
    assert execute([*arguments, "--resampled", str(run_folder), "-o", str(tmp_path / "two.svg")]) == 0
    assert (tmp_path / "two.svg").stat().st_size > (tmp_path / "one.svg").stat().st_size
    found = resampled_statistics(open_run(run_folder), threshold=0.04)
    usual = statistics_of_run(open_run(run_folder))
    np.testing.assert_array_equal(found.mean, usual.mean)
    assert np.ptp(found.log_share) < np.ptp(usual.log_share)  # repeats make the labels more even


def test_the_statistics_of_a_run_follow_its_counts(run_folder):
    statistics = statistics_of_run(open_run(run_folder))
    assert statistics.mean_link.spearman > 0.9
    assert (np.diff(statistics.log_share) <= 0).all()


def test_counts_of_other_classes_are_refused():
    with pytest.raises(InputError, match="Expected the counts to have 2 classes, but they have 3"):
        logit_statistics(ClassMoments(2), [1, 2, 3])


# Fig. 3
def test_online_stands_beside_baseline_and_post_hoc(run_folder, tmp_path):
    run = Comparison.load(run_folder)
    data = online_comparison(run, run, "recommended")
    assert data.metrics == ("APr", "APc", "APf", "AP")
    assert list(data.series) == ["Baseline", "Online LogN", "Post-hoc (recommended)"]
    assert data.series["Baseline"] == data.series["Online LogN"] == tuple(run["none"][name] for name in data.metrics)
    assert data.series["Post-hoc (recommended)"][3] == run["recommended"]["AP"]


def test_both_margins_stand_in_one_figure(run_folder, tmp_path):
    run = Comparison.load(run_folder)
    data = online_comparison(run, {"Online (margin-0)": run, "Online (margin-min)": run}, "logn")
    assert list(data.series) == ["Baseline", "Online (margin-0)", "Online (margin-min)", "Post-hoc (logn)"]
    folders = [shutil.copytree(run_folder, tmp_path / name) for name in ("margin-0", "margin-min")]
    arguments = ["figure", "online", str(run_folder), *(f"--online={folder}" for folder in folders)]
    assert execute([*arguments, "-o", str(tmp_path / "online.svg")]) == 0
    assert (tmp_path / "online.svg").exists()
    assert execute([*arguments[:3], *[f"--online={folders[0]}"] * 2, "-o", str(tmp_path / "again.svg")]) == 2
    assert not (tmp_path / "again.svg").exists()


def test_long_names_stay_inside_the_figure(run_folder):
    run = Comparison.load(run_folder)
    others = {f"Online ({'a-rather-long-name-of-a-folder-' * 2}{margin})": run for margin in ("0", "min")}
    with paper_style() as make:
        figure = draw_online(online_comparison(run, others, "logn"), make)
        (legend,) = figure.legends
        assert legend.get_window_extent().width <= figure.bbox.width
        assert [text.get_text() for text in legend.get_texts()] == ["Baseline", *others, "Post-hoc (logn)"]


def test_online_refuses_another_protocol(run_folder):
    run = Comparison.load(run_folder)
    other = replace(run, scope=DetectionScope(EvaluationProtocol(style="coco")))
    with pytest.raises(InputError, match="same protocol"):
        online_comparison(run, other)


# Fig. 4 and 5
def test_errors_are_those_of_the_comparison(run_folder):
    run = open_run(run_folder)
    pair = error_pair(run, "norcal")
    assert list(pair) == ["Baseline", "norcal"]
    content = json.loads((run_folder / "comparison.json").read_text())
    for title, method in (("Baseline", "none"), ("norcal", "norcal")):
        (known,) = (entry["errors"] for entry in content["methods"] if entry["method"] == method)
        assert pair[title] == {"AP50": known["AP50"], **known["gains"]}


def test_errors_of_the_images_that_were_looked_at_serve_where_no_others_are(run_folder, tmp_path):
    run = open_run(run_folder)
    settings = CompareSettings(num_bootstrap=0)
    compare(run.store, run.path("annotations"), ["norcal"], settings=settings, counts=run.counts).save(tmp_path)
    assert error_pair(open_run(tmp_path)) == error_pair(run, "norcal")
    settings = CompareSettings(num_bootstrap=0, report_images=0)
    compare(run.store, run.path("annotations"), ["norcal"], settings=settings, counts=run.counts).save(tmp_path)
    with pytest.raises(InputError, match="to have kinds of error, but it has none; compare again"):
        error_pair(open_run(tmp_path))


def test_components_are_each_alone_and_all_together(run_folder):
    run = open_run(run_folder)
    found = error_components(run)
    assert list(found) == list(COMPONENTS)
    assert found["Baseline"] == pytest.approx(run.comparison["none"].tide)
    assert found["LogN (all)"] == pytest.approx(run.comparison["logn"].tide)


# Appendix
def test_a_negative_margin_makes_the_ranking_depend_more_on_the_background():
    effect = margin_effect([0.0, -2.0], own=-3.5)
    assert effect.margins == (0.0, -2.0, -3.5)
    np.testing.assert_allclose(effect.foreground[0], 1 - effect.background)
    assert (effect.steepness[1] > effect.steepness[0]).all()
    # The steepness is the slope of the logarithm.
    slope = -np.gradient(np.log(effect.foreground[1]), effect.background)
    np.testing.assert_allclose(slope[5:-5], effect.steepness[1][5:-5], rtol=0.02)


def test_the_margin_of_a_run_is_its_lowest_mean(run_folder):
    run = open_run(run_folder)
    assert margin_of_run(run) == pytest.approx(run.moments.mean[1:].min())


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_can_be_drawn(name, run_folder, tmp_path):
    pytest.importorskip("matplotlib")
    suffix = list(START_OF_FILE)[list(FIGURES).index(name) % 3]
    path = tmp_path / f"figure{suffix}"
    draw_figure(name, open_run(run_folder), path, FigureOptions(online=run_folder))
    assert path.read_bytes().startswith(START_OF_FILE[suffix])
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_run_gives_the_same_bytes(run_folder, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "two.svg"):
        draw_figure("margin-effect", open_run(run_folder), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["online", "RUN", "-o", "OUT.svg"], "Expected `--online` to be the run folder of a model that was trained"),
        (["tide", "RUN", "-o", "OUT.gif"], "to end in one of .svg, .png, .pdf"),
        (["tide", "BARE", "-o", "OUT.svg"], "to hold `comparison.json`"),
        (["positive-statistics", "BARE", "-o", "OUT.svg"], "which `logn predict` writes"),
        (["logit-statistics", "BARE", "-o", "OUT.svg"], "which `logn collect` writes"),
        (["label-shift", "BARE", "-o", "OUT.svg"], "training annotations or class counts are"),
        (["label-shift", "BARE", "--counts", "COUNTS", "-o", "OUT.svg"], "since a sampler looks at each image"),
    ],
)
def test_what_a_figure_lacks_is_said_in_one_sentence(run_folder, tmp_path, capsys, arguments, sentence):
    (tmp_path / "counts.json").write_text("[3, 2, 1]")
    bare = tmp_path / "bare"
    bare.mkdir()
    places = {"RUN": run_folder, "BARE": bare, "OUT": tmp_path / "figure", "COUNTS": tmp_path / "counts.json"}
    for word, path in places.items():
        arguments = [argument.replace(word, str(path)) for argument in arguments]
    assert execute(["figure", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_the_command_says_what_it_wrote(run_folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    assert execute(["figure", "margin-effect", str(folder), "-o", str(tmp_path / "figure.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == (tmp_path / "figure.png").stat().st_size
