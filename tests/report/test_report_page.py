"""The page without a browser: what it says, what it escapes, and what it says when something is missing."""

import html
import json
import re
import shlex
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from types import SimpleNamespace

import numpy as np
import pytest
from jinja2 import UndefinedError

from logn.calibrators.fracal import fracal
from logn.cli.main import execute
from logn.errors import InputError
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.comparison import CompareSettings, Comparison
from logn.evaluate.comparison.threshold_curve import describe_threshold
from logn.evaluate.decode.decoder import decode
from logn.evaluate.detection.bootstrap import Interval
from logn.evaluate.detection.gallery import GalleryImage, Mark, ReportDetails, ScoreHistogram
from logn.evaluate.detection.metrics import RecallAtCount
from logn.report.page import NotShown, PageData, render_page, write_report
from logn.report.page_classes import ChangedClasses, ClassRow, StatisticsCharts
from logn.report.page_gallery import Gallery, GalleryPart, Key, Picture, View, gallery
from logn.report.page_next_steps import next_steps
from logn.report.page_provenance import commands, subject
from logn.report.page_summary import error_kinds, verdict
from logn.report.run_folder import open_run

HOSTILE = "<script>alert(1)</script>"
SECTIONS = ["methods", "groups", "statistics", "classes", "errors", "thresholds", "scores", "gallery", "next-steps"]
SECTIONS += ["provenance"]


@pytest.fixture(scope="module")
def page(run_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    summary = write_report(open_run(run_folder), path, method="recommended")
    return summary, path.read_text(encoding="utf-8")


def test_the_story_is_told_in_order(page):
    summary, text = page
    assert summary.missing == {}
    assert re.findall(r'<section id="([a-z-]+)"', text) == SECTIONS
    assert f'<p id="verdict">{summary.verdict}</p>' in unescape(text).replace("\xa0", " ")
    assert text.index("verdict") < text.index('<section id="methods"')


def test_names_from_the_data_are_text(page):
    _, text = page
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<b>bold</b> name" not in text
    # Scripts: the data and our own; a name in the data does not end its element.
    assert text.count("<script") == text.count("</script>") == 2


class Elements(HTMLParser):
    """What a browser sees: names of elements and attributes, values of attributes, and text."""

    def __init__(self, page):
        super().__init__()
        self.names, self.attributes, self.values, self.text = [], set(), [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data):
        self.text.append(data)


ATTACKS = (
    "<script>alert(1)",
    "<img src=x onerror=alert(1)>",
    '" onload="alert(1)',
    "' onload='alert(1)",
    "{{ 7 * 7 }}",
    "{% include 'page.css' %}",
    "{# gone #}",
    "&lt;b&gt;",
)


@pytest.fixture(scope="module")
def top(run_folder):
    """A page without sections."""
    comparison = open_run(run_folder).comparison
    return PageData("LogN report", verdict(comparison, comparison.focus()), ())


def check_harmless(elements, scripts):
    assert elements.names.count("script") == scripts
    assert "img" not in elements.names
    assert not [name for name in elements.attributes if name.startswith("on")]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_in_the_name_of_a_method_a_file_or_a_folder_stays_text(run_folder, tmp_path, attack):
    folder = tmp_path / f"run {attack}".replace("/", "")
    shutil.copytree(run_folder, folder)
    content = (folder / "comparison.json").read_text()
    content = content.replace('"loga"', json.dumps(f"loga {attack}"))
    content = re.sub(r'"images/\d+\.png"', lambda found: json.dumps(f"gone {attack}.png"), content)
    (folder / "comparison.json").write_text(content)
    path = folder / "report.html"
    assert list(write_report(open_run(folder), path, method="logn").missing) == ["Images"]
    elements = Elements(path.read_text(encoding="utf-8"))
    check_harmless(elements, scripts=2)
    for name in ("loga", "gone", "run"):
        assert f"{name} {attack}" in "".join(elements.text)
    assert f"loga {attack}" in "".join(elements.values)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_in_the_name_of_a_class_stays_text(top, attack):
    row = ClassRow(attack, group="r", images=3.0, examples=2, before=0.1, after=0.3)
    key = Key("hit", 1, "found", attack, 0.5)
    view = View("Before", {"hit": 0}, (), ())
    picture = Picture(0, 7, "data:,", 10, 10, 1.0, (view, view), (key,))
    point = RecallAtCount(0.3, 1, 0.2, 1, 1, 1.0, {})
    sections = [ChangedClasses((row,), (), (row,)), Gallery(point, (GalleryPart("Found", "most", (picture,)),))]
    elements = Elements(render_page(replace(top, sections=sections)))
    check_harmless(elements, scripts=1)
    assert "".join(elements.text).count(attack) == 3


def test_a_template_that_names_what_is_not_there_is_an_error(top):
    lacking = SimpleNamespace(template=NotShown.template, title="Images")
    with pytest.raises(UndefinedError, match="reason"):
        render_page(replace(top, sections=[lacking]))


def test_a_template_that_would_write_nothing_for_a_value_is_an_error(top):
    with pytest.raises(TypeError, match="None"):
        render_page(replace(top, kicker=None))


def test_only_our_own_style_sheet_and_script_go_in_as_they_are():
    folder = files("logn.report").joinpath("templates")
    found = [line for path in folder.iterdir() for line in path.read_text().splitlines() if "|safe" in line]
    assert sorted(found) == [
        '<script>{{ file("page.js")|safe }}</script>',
        '<style>{{ file("page.css")|safe }}</style>',
    ]


KINDS = ("Cls", "Loc", "Both", "Dupe", "Bkg", "Miss", "FP", "FN")


@pytest.mark.parametrize(("gain", "words"), [(0.0, "no error"), (float("nan"), "–")])
def test_a_ring_of_nothing_says_so(top, gain, words):
    errors = {"AP50": 1.0, **dict.fromkeys(KINDS, gain)}
    text = render_page(replace(top, sections=[error_kinds(errors, errors, "Over all images.")]))
    assert text.count(f">{words}</text>") == 2
    assert "nan" not in text


def test_nothing_is_fetched(page):
    _, text = page
    addresses = re.findall(r'(?:src|href|action)="([^"#]*)', text)
    assert all(address.startswith("data:") for address in addresses if address)
    assert "url(" not in text
    assert re.findall(r"https?://[^\s\"']+", text) == ["http://www.w3.org/2000/svg"]


def test_the_gallery_holds_each_picture_once_and_uses_it_twice(page):
    _, text = page
    pictures = text.count("data:image/jpeg;base64,")
    assert pictures > 0
    assert text.count('<use href="#picture-') == pictures


def test_the_table_marks_the_best_of_each_column(page, run_folder):
    _, text = page
    methods = json.loads((run_folder / "comparison.json").read_text())["rows"]
    best = max(method["values"]["AP"] for method in methods)
    rows = re.search(r'<table[^>]*id="method-table".*?</table>', text, re.DOTALL).group(0)
    assert f'data-value="{best:.6g}" data-label="AP" class="best"' in rows


def moved(run_folder, folder):
    """The comparison alone on another machine: no store, no annotations, no statistics, no images."""
    folder.mkdir()
    for path in run_folder.glob("comparison.*"):
        shutil.copy(path, folder)
    text = (folder / "comparison.json").read_text()
    (folder / "comparison.json").write_text(text.replace(str(run_folder), "/nowhere"))
    return folder


def test_a_comparison_that_was_moved_lacks_nothing_but_the_images(run_folder, tmp_path, page):
    folder = moved(run_folder, tmp_path / "moved")
    summary = write_report(open_run(folder), folder / "report.html", method="recommended")
    assert list(summary.missing) == ["Images"]
    assert "`/nowhere/data/images/" in summary.missing["Images"]
    _, whole = page
    for section in ("statistics", "classes", "errors", "thresholds", "scores"):
        part = re.compile(rf'<section id="{section}".*?</section>', re.DOTALL)
        assert part.search((folder / "report.html").read_text()).group(0) == part.search(whole).group(0)


def test_some_pictures_are_shown_and_the_others_named(run_folder, tmp_path):
    folder = moved(run_folder, tmp_path / "moved")
    gallery = Comparison.load(folder)["logn"].details.gallery
    (tmp_path / "images").mkdir()
    shutil.copy(run_folder / "data" / gallery[0].names[0], tmp_path / "images")
    summary = write_report(open_run(folder, images=tmp_path), folder / "report.html")
    assert f"{len(gallery) - 1} of {len(gallery)} pictures are not here" in summary.missing["Images"]
    text = (folder / "report.html").read_text()
    assert text.count("data:image/jpeg;base64,") == 1
    assert "Their pictures are not here." in text


def test_a_picture_of_another_size_is_not_drawn_upon(run_folder, tmp_path):
    from PIL import Image

    folder = moved(run_folder, tmp_path / "moved")
    (tmp_path / "images").mkdir()
    for path in (run_folder / "data" / "images").iterdir():
        Image.new("RGB", (30, 20)).save(tmp_path / "images" / path.name)
    summary = write_report(open_run(folder, images=tmp_path), folder / "report.html")
    assert "to have height and width (64, 96) as the annotations say, but it has (20, 30)" in summary.missing["Images"]


def test_errors_of_some_images_are_shown_where_the_comparison_has_no_others(run_folder, tmp_path):
    run = open_run(run_folder)
    known = run.comparison
    settings = CompareSettings(num_bootstrap=0)
    options = {"moments": run.moments, "counts": run.counts}
    compare(run.store, run.path("annotations"), ["logn"], settings=settings, **options).save(tmp_path)
    write_report(open_run(tmp_path), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "Over 12 of 12 images" in text
    before, after = (100 * known[name].errors.gains["Cls"] for name in ("none", "logn"))
    assert f"Before to after: Cls {before:.1f} to {after:.1f}" in text


def test_images_that_are_not_there_cost_the_gallery_only(run_folder, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    shutil.rmtree(folder / "data" / "images")
    assert list(write_report(open_run(folder), folder / "report.html").missing) == ["Images"]


def test_without_intervals_the_headline_says_only_the_change(run_folder, tmp_path):
    content = json.loads((run_folder / "comparison.json").read_text())
    for entry in content["rows"]:
        for change in entry["differences"].values():
            change["low"] = change["high"] = None
    content["settings"]["num_bootstrap"] = 0
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    write_report(open_run(tmp_path), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "no intervals were computed" in text
    assert " changes AP by " in text


def test_the_command_writes_beside_the_run_and_says_so(run_folder, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    assert execute(["report", str(folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["report"] == str(folder / "report.html")
    assert said["bytes"] == (folder / "report.html").stat().st_size
    assert said["missing"] == {}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "Expected `nowhere` to be the folder of a run"),
        (["RUN", "-o", "RUN/report.txt"], "to end in .html"),
        (["RUN", "-m", "magic"], "Expected `method` to be one of none, logn,"),
        (["RUN/data"], "to hold `comparison.json`, which `logn compare -o` writes"),
    ],
)
def test_bad_input_gets_one_sentence(run_folder, capsys, arguments, sentence):
    arguments = [argument.replace("RUN", str(run_folder)) for argument in arguments]
    assert execute(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_broken_comparison_is_named(tmp_path):
    (tmp_path / "comparison.json").write_text('{"format": "logn.comparison", "schema": 3, "rows": [{}]}')
    with pytest.raises(InputError, match=r"comparison\.json` to be what `logn compare -o` writes"):
        write_report(open_run(tmp_path), tmp_path / "report.html")


def test_the_command_to_repeat_is_the_one_that_was_given(run_folder, tmp_path, capsys):
    given = ["compare", run_folder / "predictions", "-s", run_folder / "statistics.safetensors"]
    given += ["-d", run_folder / "data" / "test.json", "--counts", run_folder / "data" / "train.json"]
    given += ["--methods", "none,logn:margin=0,use_std=false,fracal", "--bootstrap", "5", "-o", tmp_path / "a run"]
    assert execute(list(map(str, given))) == 0
    run = open_run(tmp_path / "a run", images=tmp_path / "pictures")
    compare_again, report_again = commands(run, "fracal", tmp_path / "page.html")
    assert shlex.split(compare_again) == ["logn", *map(str, given)]
    where = f"'{tmp_path}/a run' --images {tmp_path}/pictures"
    assert report_again == f"logn report {where} --method fracal -o {tmp_path}/page.html"
    write_report(run, tmp_path / "page.html")
    shown = unescape(re.sub(r"</?span[^>]*>", "", (tmp_path / "page.html").read_text()))
    for words in ("--methods none,logn:margin=0,use_std=false,fracal", "--bootstrap 5"):
        assert words in shown
    # The numbers come again from the command alone.
    first = json.loads((tmp_path / "a run" / "comparison.json").read_text())["rows"]
    assert execute(shlex.split(compare_again)[1:]) == 0
    again = json.loads((tmp_path / "a run" / "comparison.json").read_text())["rows"]
    assert [entry["values"] for entry in again] == [entry["values"] for entry in first]


def test_the_page_shows_the_correction_of_its_table(run_folder, tmp_path):
    """FRACAL with dimensions: scores, thresholds and pictures are those of the map whose AP is in the table."""
    run = open_run(run_folder)
    dimensions = np.array([0.4, 0.5, 0.7, 1.2, 1.8, 2.0])
    settings = CompareSettings(num_bootstrap=0)
    found = compare(
        run.store, run.path("annotations"), ["fracal"], settings=settings, counts=run.counts, dimensions=dimensions
    )
    found.save(tmp_path)
    read = Comparison.load(tmp_path)["fracal"]
    fitted = fracal(run.counts.image_counts, run.counts.num_images, dimensions, background=0)
    without = fracal(run.counts.image_counts, run.counts.num_images, None, background=0)
    assert read.transform == fitted != without
    drawn = [decode(run.store, affine).scores for affine in (fitted, without)]
    histogram = read.details.histograms["all"]
    right, wrong = (np.histogram(scores.clip(histogram.edges[0]), histogram.edges)[0] for scores in drawn)
    assert (histogram.after == right).all()
    assert (histogram.after != wrong).any()
    write_report(open_run(tmp_path), tmp_path / "report.html")
    assert f"keep those above <b>{read.recall[0.25].threshold:.3g}</b>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "&amp;", "\u2028", "{{ 7 * 7 }}"])
def test_data_for_the_script_comes_back_and_cannot_end_it(top, text):
    page = render_page(replace(top, sections=[StatisticsCharts(False, (), (), tips=((text,),))]))
    inside = page.split('<script type="application/json" id="class-data">')[1].split("</script>")[0]
    assert not set("<>&\u2028") & set(inside)
    assert json.loads(inside) == {"points": {}, "classes": [[text]]}


def test_compare_ends_with_the_command_that_writes_the_page(run_folder, tmp_path, capsys):
    data = run_folder / "data"
    options = [run_folder / "predictions", "-s", run_folder / "statistics.safetensors", "-d", data / "test.json"]
    options += ["--counts", data / "train.json", "--bootstrap", 0, "-o", tmp_path / "a folder"]
    assert execute(["compare", *map(str, options)]) == 0
    program, *arguments = shlex.split(capsys.readouterr().err.split("For one page with charts: ")[1])
    assert program == "logn"
    assert execute(arguments) == 0
    assert "Not shown" not in capsys.readouterr().err
    assert (tmp_path / "a folder" / "report.html").exists()


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((0.01, 0.03), 'raises AP by <b class="up">2.0 points</b> (1.0 to 3.0)'),
        ((-0.03, -0.01), 'lowers AP by <b class="down">2.0 points</b> (1.0 to 3.0)'),
        ((-0.01, 0.03), 'makes no clear difference to AP <span class="flat">(-1.0 to 3.0)</span>'),
    ],
)
def test_the_headline_claims_only_what_the_interval_allows(run_folder, ends, words):
    comparison = open_run(run_folder).comparison
    middle = 0.02 if ends[0] > 0 else -0.02
    focus = replace(comparison.focus(), differences={"AP": Interval(middle, *ends)})
    assert words in render_page(PageData("", verdict(comparison, focus), ()))


def test_coco_without_groups_has_a_page_too(run_folder, tmp_path):
    content = json.loads((run_folder / "comparison.json").read_text())
    content["protocols"]["AP"]["style"] = "coco"
    for entry in content["classes"]:
        entry["group"] = None
    for entry in content["rows"]:
        for group in ("APr", "APc", "APf"):
            del entry["values"][group], entry["differences"][group]
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    (folder / "comparison.json").write_text(json.dumps(content))
    assert write_report(open_run(folder), folder / "report.html").missing == {}
    sections = re.findall(r'<section id="([a-z-]+)"', (folder / "report.html").read_text())
    assert sections == [name for name in SECTIONS if name != "groups"]


def test_the_verdict_says_what_happens_at_the_users_threshold(page, run_folder):
    """More AP may come with fewer objects found at a threshold that stays as it was: both are said."""
    summary, text = page
    comparison = Comparison.load(run_folder)
    before, after = comparison.baseline.thresholds, comparison.focus(summary.method).thresholds
    sentence = describe_threshold(before, after)
    assert sentence in summary.verdict
    top = text.split('<p id="verdict">')[1].split("</p>")[0]
    assert html.escape(sentence) in top
    part = text.split('<section id="thresholds">')[1].split("</section>")[0]
    assert [title in part for title in ("Precision", "Recall", "F1")] == [True] * 3
    assert part.count("<tr>") == 1 + len(comparison.classes)


def test_a_comparison_of_before_thresholds_were_measured_says_so(run_folder, tmp_path):
    folder = moved(run_folder, tmp_path / "older")
    path = folder / "comparison.json"
    content = json.loads(path.read_text())
    for method in content["rows"]:
        del method["thresholds"]
    del content["settings"]["at"]
    path.write_text(json.dumps(content))
    loaded = Comparison.load(folder)
    assert "At a score of" not in loaded.verdict()
    summary = write_report(open_run(folder), tmp_path / "report.html")
    assert "compare again" in summary.missing["What is found at your threshold"]


def test_the_top_says_what_it_costs(page, run_folder):
    _, text = page
    top, comparison = text.split("<main>")[0], Comparison.load(run_folder)
    before, after = comparison.baseline, comparison["recommended"]
    assert f"<small>{100 * before['ECE']:.1f} → </small>{100 * after['ECE']:.1f}" in top
    assert f"<small>{before.thresholds.found_at:,} → </small>{after.thresholds.found_at:,}" in top
    assert f"of {after.thresholds.objects:,} objects" in top
    recalls = [row.recall[0.25] for row in (before, after)]
    assert "Class-mean recall at as many detections" in top
    assert f"<small>{100 * recalls[0].recall:.1f} → </small>{100 * recalls[1].recall:.1f}" in top
    assert f"<small>0.25 → </small>{recalls[1].threshold:.3g}" in top
    assert f"keeps {recalls[0].detections:,} detections" in top
    assert f"<small>{before.thresholds.false_alarms_at:,} → </small>{after.thresholds.false_alarms_at:,}" in top
    assert "Frequent classes" in top
    assert f"Its calibration error (ECE) {'falls' if after['ECE'] < before['ECE'] else 'rises'} from" in top


def test_model_data_and_date_stand_above_the_title(page, run_folder):
    _, text = page
    made = Comparison.load(run_folder).provenance
    kicker = re.search(r'<p class="kicker">(.*?)</p>', text).group(1)
    assert (
        kicker
        == f"LogN report · run on test.json · 6 classes, 12 images, every class verified in each · {made.created[:10]}"
    )
    named = replace(made, inputs={**made.inputs, "predictions": {**made.inputs["predictions"], "model": "best.pt"}})
    run = SimpleNamespace(folder=run_folder, comparison=replace(Comparison.load(run_folder), provenance=named))
    assert subject(run) == "best.pt on test.json"


def changed(comparison, metric, change):
    row = comparison["recommended"]
    return replace(row, differences={**row.differences, metric: change})


@pytest.mark.parametrize(
    ("metric", "change", "said", "unsaid"),
    [
        ("AP", Interval(0.02, 0.01, 0.03), "Use it: correct the model", "keep the model as it is"),
        ("AP", Interval(0.0, -0.01, 0.01), "Use it, if the groups that matter to you gain more", "keep the model as"),
        ("AP", Interval(-0.02, -0.03, -0.01), "keep the model as it is", "logn correct"),
        ("APf", Interval(-0.02, -0.03, -0.01), "recommended:strength=0.25", "keep the model as it is, "),
    ],
)
def test_the_next_steps_follow_from_the_numbers(run_folder, metric, change, said, unsaid):
    comparison = Comparison.load(run_folder)
    steps = next_steps(comparison, changed(comparison, metric, change)).steps
    told = " ".join(f"{step.text} {step.command}" for step in steps)
    assert said in told
    assert unsaid not in told
    assert f"logn thresholds {run_folder}/predictions -d {run_folder}/data/test.json --method recommended" in told


def test_boxes_carry_class_and_score_and_after_it_the_score_of_the_old_scale():
    histogram = ScoreHistogram(np.array([0.01, 0.1, 0.3, 1.0]), np.array([0, 4, 4]), np.array([4, 4, 0]))
    point = RecallAtCount(0.3, 1, 0.1, 1, 1, 1.0, {})
    box, other = (10.0, 40.0, 60.0, 80.0), (90.0, 40.0, 120.0, 80.0)
    image = GalleryImage(
        "Objects lost",
        1,
        0,
        7,
        before=(Mark("hit", box, 0, 0.5, changed=True), Mark("missed", other, 1, changed=True)),
        after=(Mark("missed", box, 0, changed=True), Mark("hit", other, 1, 0.1, changed=True)),
    )
    details = ReportDetails(1, 1, {"all": histogram}, (image,))
    names = ["cup", "a class with a long name"]
    (picture,) = gallery(details, point, {7: np.zeros((100, 170, 3), np.uint8)}, names).parts[1].pictures
    before, after = picture.views
    assert [label.text for label in before.labels] == ["1 cup 0.50"]
    assert [(label.kind, label.text) for label in after.labels] == [("hit", "2 a class with … 0.30"), ("lost", "cup")]
    assert [frame.kind for frame in before.frames] == ["missed", "lost"]
    assert [(key.kind, key.what, key.name, round(key.score, 2)) for key in picture.keys] == [
        ("lost", "lost", "cup", 0.5),
        ("hit", "found", "a class with a long name", 0.3),
    ]
    assert after.frames[-1].title == "lost: cup"


def test_labels_hide_no_other_and_stay_in_the_picture(page, run_folder):
    row = Comparison.load(run_folder)["recommended"]
    details = row.details
    pictures = {image.image_id: np.zeros((64, 96, 3), np.uint8) for image in details.gallery}
    drawn = gallery(details, row.recall[0.5], pictures, [f"a rather long name {place}" for place in range(6)])
    views = [view for part in drawn.parts for picture in part.pictures for view in picture.views]
    assert sum(len(view.labels) for view in views) > 10
    for view in views:
        for place, one in enumerate(view.labels):
            assert one.x >= 0
            assert one.y >= 0
            assert one.x + one.width <= 96.001
            assert one.y + one.height <= 64.001
            for two in view.labels[:place]:
                apart = abs(one.x - two.x) >= min(one.width, two.width) or abs(one.y - two.y) >= one.height - 1e-6
                assert apart
