"""The page without a browser: what it says, what it escapes, and what it says when something is missing."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest
from jinja2 import UndefinedError

from logn.cli.main import execute
from logn.errors import InputError
from logn.measure.compare import compare
from logn.measure.comparison import CompareSettings, Comparison
from logn.measure.detection.bootstrap import Interval
from logn.measure.detection.threshold_curve import describe_threshold
from logn.report import next_steps, sections
from logn.report.page import make_sections, render_page, write_report
from logn.report.view import View

SECTIONS = ["gallery", "methods", "strengths", "thresholds", "classes", "statistics", "errors", "steps", "provenance"]


@pytest.fixture(scope="module")
def page(run_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    summary = write_report(run_folder, path, method="recommended")
    return summary, path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def comparison(run_folder):
    return Comparison.load(run_folder)


def plain(text):
    """What a reader reads."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", "", text))).strip()


def section(text, name):
    return re.search(rf'<section id="{name}".*?</section>', text, re.DOTALL).group(0)


def test_the_story_is_told_in_order_and_the_bar_leads_to_it(page, comparison):
    summary, text = page
    assert summary.missing == {}
    assert summary.verdict == comparison.verdict("recommended")
    assert re.findall(r'<section id="([a-z-]+)"', text) == SECTIONS
    assert re.findall(r'<a href="#([a-z-]+)"', text) == SECTIONS
    made = comparison.provenance.created[:10]
    kicker = re.search(r'<p class="kicker">(.*?)</p>', text).group(1)
    assert kicker == f"LogN report · run on test.json · 6 classes, 12 images, every class verified in each · {made}"


def test_headline_cards_table_and_threshold_agree(page, comparison):
    _, text = page
    before, after = comparison.baseline, comparison["recommended"]
    headline = plain(re.search(r"<h1>.*?</h1>", text, re.DOTALL).group(0))
    of_groups = [100 * row.recall[0.25].groups[group] for group in "rf" for row in (before, after)]
    assert headline.startswith("Rare classes: recall {:.1f} → {:.1f}. Frequent: {:.1f} → {:.1f}.".format(*of_groups))
    header = plain(text.split("<header>")[1].split("</header>")[0])
    recalls = [100 * row.recall[0.25].recall for row in (before, after)]
    assert f"AP, rare {100 * before['APr']:.1f} → {100 * after['APr']:.1f}" in header
    assert "Class-mean recall {:.1f} → {:.1f}".format(*recalls) in header
    curves = before.thresholds, after.thresholds
    found = f"{curves[0].found_at} → {curves[1].found_use} of {curves[1].objects} found"
    assert f"Score threshold 0.25 → use {curves[1].use:.2g} {found}" in header
    assert curves[1].use == after.recall[0.25].threshold
    assert curves[1].found_use == after.recall[0.25].found
    assert describe_threshold(*curves) in plain(section(text, "thresholds"))
    assert f"{curves[1].use:.2g} after" in plain(section(text, "gallery"))
    table = plain(section(text, "methods"))
    assert all(f"{value:.1f}" in table for value in (*of_groups, *recalls))


def view_with(comparison, **changes):
    row = comparison["recommended"]
    return View.of(comparison, replace(row, differences={**row.differences, **changes}))


def test_the_headline_is_ap_and_recall_where_ap_hardly_moves(comparison):
    moving = view_with(comparison, APr=Interval(0.05, 0.03, 0.07))
    recall = {f"recall-{group}@n:0.25": Interval(0.1, low, 0.2) for group, low in (("r", 0.05), ("f", -0.05))}
    small = {metric: Interval(0.001, -0.01, 0.01) for metric in ("AP", "APr", "APc", "APf")}
    still = view_with(comparison, **small, **recall)
    made = replace(comparison.provenance, inputs={"statistics": {"activation": "sigmoid"}})
    sigmoid = replace(comparison, provenance=made)
    recalls = [moving.focus.recall[0.25].groups[group] for group in "rf"]
    for view, words, values in (
        (moving, "AP", [moving.focus["APr"], moving.focus["APf"]]),
        (still, "recall", recalls),
        (View.of(sigmoid, moving.focus), "recall", recalls),
    ):
        pieces, where = sections.headline(view)
        assert [piece.words for piece in pieces] == [f"Rare classes: {words}", "Frequent:"]
        assert [piece.after for piece in pieces] == values
        assert ("equal number of detections" in where) == (words == "recall")
    assert [piece.tone for piece in sections.headline(still)[0]] == ["up", "flat"]


@pytest.mark.parametrize(
    ("ends", "tone"), [((0.01, 0.03), "up"), ((-0.03, -0.01), "down"), ((-0.01, 0.03), "flat"), ((np.nan,) * 2, "flat")]
)
def test_only_what_the_interval_makes_sure_is_coloured(comparison, ends, tone):
    view = view_with(comparison, APr=Interval(0.02, *ends), AP=Interval(0.1, *ends))
    assert sections.headline(view)[0][0].tone == tone
    assert sections.cards(view)[0].tone == tone


def test_the_table_marks_the_best_of_each_column(page, comparison):
    for best in (max(row["AP"] for row in comparison.rows), min(row["ECE"] for row in comparison.rows)):
        assert f'<td data-value="{best:.6g}" class="best">' in section(page[1], "methods")


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
    "\u2028]]><!--",
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_name_from_the_data_stays_text(run_folder, tmp_path, attack):
    """Of a method, a file, a folder and a class; the data for the script comes back as it was."""
    folder = tmp_path / f"run {attack}".replace("/", "")
    shutil.copytree(run_folder, folder)
    content = (folder / "comparison.json").read_text()
    content = content.replace('"loga"', json.dumps(f"loga {attack}")).replace('"spoon"', json.dumps(f"spoon {attack}"))
    content = re.sub(r'"images/\d+\.png"', lambda found: json.dumps(f"gone {attack}.png"), content)
    (folder / "comparison.json").write_text(content)
    path = folder / "report.html"
    assert list(write_report(folder, path, method="logn").missing) == ["See it"]
    page = path.read_text(encoding="utf-8")
    elements = Elements(page)
    assert elements.names.count("script") == 3
    assert "img" not in elements.names
    assert not [name for name in elements.attributes if name.startswith("on")]
    for name in ("loga", "gone", "run", "spoon"):
        assert f"{name} {attack}" in "".join(elements.text)
    inside = page.split('<script type="application/json" id="class-data">')[1].split("</script>")[0]
    assert not set("<>&\u2028") & set(inside)
    assert f"spoon {attack}" in [tip[0] for tip in json.loads(inside)["classes"]]


def test_mistakes_in_templates_are_errors(comparison):
    view = View.of(comparison, comparison.focus())
    with pytest.raises(UndefinedError, match="bases"):
        render_page(view, [{"id": "errors", "word": "", "title": "", "reason": ""}], title="", kicker="")
    with pytest.raises(TypeError, match="None"):
        render_page(view, [], title="", kicker=None)
    folder = files("logn.report").joinpath("templates")
    unescaped = [line for path in folder.iterdir() for line in path.read_text().splitlines() if "|safe" in line]
    ours = ['<script>{{ file("page.js")|safe }}</script>', '<style>{{ file("page.css")|safe }}</style>']
    assert sorted(unescaped) == ours


def test_nothing_is_fetched_and_each_picture_is_there_once(page):
    text = page[1]
    addresses = re.findall(r'(?:src|href|action)="([^"#]*)', text)
    assert all(address.startswith("data:") for address in addresses if address)
    assert "url(" not in text
    assert re.findall(r"https?://[^\s\"']+", text) == ["http://www.w3.org/2000/svg"]
    assert text.count('<use href="#picture-') == text.count("data:image/jpeg;base64,") > 0


def moved(run_folder, folder):
    """The comparison alone on another machine: no store, no annotations, no statistics, no images."""
    folder.mkdir()
    text = (run_folder / "comparison.json").read_text()
    (folder / "comparison.json").write_text(text.replace(str(run_folder), "/nowhere"))
    return folder


def test_a_comparison_that_was_moved_lacks_only_its_pictures_and_still_shows_the_boxes(run_folder, tmp_path, page):
    folder = moved(run_folder, tmp_path / "moved")
    summary = write_report(folder, folder / "report.html", method="recommended")
    assert list(summary.missing) == ["See it"]
    assert "`/nowhere/data/images/" in summary.missing["See it"]
    text = (folder / "report.html").read_text()
    for name in SECTIONS[1:6]:
        assert section(text, name) == section(page[1], name)
    assert "data:image/jpeg" not in text
    assert section(text, "gallery").count('class="hit"') == section(page[1], "gallery").count('class="hit"') > 1


def test_some_pictures_are_shown_and_one_of_another_size_is_not(run_folder, tmp_path):
    from PIL import Image

    folder = moved(run_folder, tmp_path / "moved")
    first, second, *others = Comparison.load(folder)["logn"].details.gallery
    (tmp_path / "images").mkdir()
    shutil.copy(run_folder / "data" / first.names[0], tmp_path / "images")
    Image.new("RGB", (30, 20)).save(tmp_path / second.names[0])
    missing = write_report(folder, folder / "report.html", images=tmp_path).missing["See it"]
    assert f"{1 + len(others)} of {2 + len(others)} pictures are missing" in missing
    assert "has height and width (20, 30), but the annotations say (64, 96)" in missing
    assert (folder / "report.html").read_text().count("data:image/jpeg;base64,") == 1


def test_errors_of_some_images_stand_in_and_what_was_not_compared_is_named(run_folder, tmp_path):
    missing = []
    for images in (0, 3):
        settings = CompareSettings(num_bootstrap=0, report_images=images)
        inputs = run_folder / "predictions", run_folder / "data" / "test.json"
        compare(*inputs, ["temperature:value=2"], settings=settings).save(tmp_path)
        missing.append({*write_report(tmp_path, tmp_path / "report.html").missing})
    assert missing[1] == {"How far?", "Logits and training frequency"}
    assert missing[0] == missing[1] | {"See it", "Which errors it fixes, and which it makes"}
    text = (tmp_path / "report.html").read_text()
    assert "made without `--counts`" in plain(section(text, "statistics"))
    assert "Over 3 of the 12 images" in section(text, "errors")
    assert "No intervals were computed" in text


def test_without_groups_there_is_a_page_too(run_folder, tmp_path):
    content = json.loads((run_folder / "comparison.json").read_text())
    for entry in content["classes"]:
        entry["group"] = None
    for entry in content["rows"]:
        for name in [name for name in entry["values"] if re.match(r"AP[rcf]|recall-", name)]:
            del entry["values"][name]
            entry["differences"].pop(name, None)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "comparison.json").write_text(json.dumps(content))
    assert write_report(folder, folder / "report.html").missing == {}
    text = (folder / "report.html").read_text()
    assert re.findall(r'<section id="([a-z-]+)"', text) == SECTIONS
    assert re.match(r"AP [\d.]+ → [\d.]+\. Class-mean recall [\d.]+ → [\d.]+\.", plain(text.split("<h1>")[1]))


def test_a_map_that_is_not_affine_has_no_statistics_after_it(comparison):
    focus = replace(comparison["logn"], transform=np.negative)
    _, missing = make_sections(View.of(comparison, focus))
    assert "`logn` is not a scale and shift per class" in missing["Logits and training frequency"]


def test_a_correction_flattens_mean_and_spread(comparison):
    logits = sections.logit_statistics(View.of(comparison, comparison["logn"]))
    (mean_before, mean_after), (std_before, std_after) = logits.mean, logits.std
    assert sections.follows_count(mean_before, logits.images) > 0.9
    np.testing.assert_allclose(mean_after * std_before, mean_before.min(), atol=1e-3)
    np.testing.assert_allclose(std_after, 1.0, atol=1e-3)


@pytest.mark.parametrize(
    ("metric", "change", "said", "unsaid"),
    [
        ("AP", Interval(0.02, 0.01, 0.03), "Use it: correct the model", "keep the model as it is"),
        ("AP", Interval(0.0, -0.01, 0.01), "Use it, if the groups that matter to you gain more", "keep the model as"),
        ("AP", Interval(-0.02, -0.03, -0.01), "keep the model as it is", "logn correct"),
        ("APf", Interval(-0.02, -0.03, -0.01), "take less of it: see “How far?”", "keep the model as it is, "),
    ],
)
def test_the_next_steps_follow_from_the_numbers(run_folder, comparison, metric, change, said, unsaid):
    unclear = {"recall@n:0.25": Interval(0.0, -0.01, 0.01), "AP": Interval(0.0, -0.01, 0.01)}
    steps = next_steps.steps(view_with(comparison, **{**unclear, metric: change}))["steps"]
    told = " ".join(" ".join(step) for step in steps)
    assert said in told
    assert unsaid not in told
    assert f"logn thresholds {run_folder}/predictions -d {run_folder}/data/test.json --method recommended" in told


def test_the_commands_on_the_page_can_be_pasted(run_folder, tmp_path, capsys):
    """What was typed is on the page as it was typed, and gives the same numbers again."""
    given = ["compare", run_folder / "predictions", "-s", run_folder / "statistics.safetensors"]
    given += ["-d", run_folder / "data" / "test.json", "--counts", run_folder / "data" / "train.json"]
    given += ["--methods", "none,logn:margin=0,use_std=false", "--bootstrap", "5", "-o", tmp_path / "a run"]
    assert execute(list(map(str, given))) == 0
    program, *arguments = shlex.split(capsys.readouterr().err.split("For one page with charts: ")[1])
    assert (program, execute([*arguments, "--json"])) == ("logn", 0)
    said = json.loads(capsys.readouterr().out)
    page = tmp_path / "a run" / "report.html"
    assert (said["report"], said["bytes"], said["missing"]) == (str(page), page.stat().st_size, said["missing"])
    assert [*said["missing"]] == ["How far?"]  # the recommendation is not among the methods
    commands = re.search(r"<pre>(.*?)</pre>", section(page.read_text(), "provenance"), re.DOTALL).group(1)
    again, report_again = (unescape(re.sub(r"<[^>]*>", "", line)) for line in commands.splitlines())
    assert shlex.split(again) == ["logn", *map(str, given), "--overwrite"]
    assert shlex.split(report_again)[1:3] == ["report", str(tmp_path / "a run")]
    first = Comparison.load(tmp_path / "a run")
    assert execute(shlex.split(again)[1:]) == 0
    assert [row.values for row in Comparison.load(tmp_path / "a run").rows] == [row.values for row in first.rows]
    assert execute(shlex.split(report_again)[1:]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("nowhere", "does not exist: create `nowhere` first."),
        ("RUN -o RUN/report.txt", "to end in .html"),
        ("RUN -m magic", "method` to be one of none, logn,"),
        ("RUN/data", "has no `comparison.json`. Pass a folder that `logn compare -o` wrote"),
    ],
)
def test_bad_input_gets_one_sentence(run_folder, capsys, arguments, sentence):
    assert execute(["report", *arguments.replace("RUN", str(run_folder)).split()]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


DAMAGE = {
    "inputs that are no text": (("provenance", "inputs", "predictions"), 5),
    "a row of other metrics": (("rows", 1, "values", "AP"), None),
    "a class less": (("rows", 1, "per_class", 0), None),
    "an unknown task": (("task",), "x"),
    "a number for a name": (("classes", 0, "name"), 7),
    "a text for a number": (("rows", 0, "values", "AP"), "x"),
    "a list for an object": (("rows", 1, "differences"), [1]),
    "a curve cut short": (("rows", 0, "thresholds"), {}),
    "a mapping for a list": (("notes",), {}),
    "a curve of unequal lengths": (("rows", 1, "thresholds", "found"), [1]),
    "a kind of error less": (("rows", 1, "errors", "gains", "Cls"), None),
    "a box of no class": (("rows", 1, "details", "gallery", 0, "before", 0, "label"), 99),
    "a metric less at one strength": (("strengths", 1, "values", "recall@n:0.25"), None),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_comparison_is_refused_in_one_sentence(run_folder, tmp_path, case):
    path, value = DAMAGE[case]
    content = json.loads((run_folder / "comparison.json").read_text())
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"comparison\.json"):
        write_report(tmp_path, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
