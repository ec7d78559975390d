"""The list of what the paper has: every row has a command, tests that exist, and what differs; every command runs."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from logn_research.datasets.glyphs.settings import GlyphSettings
from logn_research.experiments import specs
from logn_research.experiments.tables import TABLES
from logn_research.pages import ROOT
from logn_research.strong import tables

REPOSITORY = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reproducing.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and line.count("|") == 5 and not line.startswith(("|---", "| paper |"))
]
COMMANDS = list(dict.fromkeys(re.findall(r"`(logn (?:bench [^`]+|(?:train|figure|fit) [^`]+ -o [^`]+))`", TEXT)))
# What is a GPU, a residual network or a long run on the page is a CPU, a small one and a moment here.
SHORTER = {
    r"-m (mask-rcnn|cascade)-r101 --weights resnet101.pth": "-m small",
    r" --device cuda": "",
    r"--seeds \d": "--seeds 1",
    r"--iterations 200": "--iterations 1",
    r"--jobs 1": "",
}


def test_every_row_has_a_command_a_test_and_what_differs():
    assert len(ROWS) > 25
    for item, command, test, difference in ROWS:
        assert item
        assert command
        assert difference, item
        named = re.findall(r"`((?:research/)?tests/[^`]+)`", test)
        assert named, item
        assert all((REPOSITORY / path).is_file() for path in named), item


def test_every_equation_table_and_figure_is_listed():
    items = " ".join(row[0] for row in ROWS)
    tables = ("Table 1", "Table 2", "Table 3", "ImageNet-LT")
    for name in ("Eq. 1", "Eq. 2", "Eq. 3", "Eq. 4 to 6", "Algorithm 1", *tables):
        assert name in items
    for name in ("Fig. 1a", "Fig. 1b", "Fig. 2", "Fig. 3", "Fig. 4 and 5", "Fig. 6", "Appendix"):
        assert name in items


@pytest.fixture(scope="module")
def paper_workplace(trained, tmp_path_factory):
    """The data, run and files that the page names, all tiny."""
    from logn_research.datasets.sample_dataset import SampleDataset
    from logn_research.experiments.detector_statistics import collect_detector_statistics
    from logn_research.training.train import load_detector

    folder = tmp_path_factory.mktemp("paper")
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    detector, dataset = load_detector(folder / "runs/glyphs"), SampleDataset(folder / "glyphs/train.json")
    collect_detector_statistics(detector, dataset, max_images=4).save(folder / "statistics.safetensors")
    for split, name in (("train", "train"), ("test", "val")):
        content = json.loads((folder / f"glyphs/{split}.json").read_text())
        content["images"] = content["images"][:8]
        kept = {image["id"] for image in content["images"]}
        content["annotations"] = [item for item in content["annotations"] if item["image_id"] in kept]
        (folder / f"lvis_v1_{name}.json").write_text(json.dumps(content))
    (folder / "coco").symlink_to(folder / "glyphs")
    shutil.copytree(ROOT / "results", folder / "bench-results")
    return folder


@pytest.mark.usefixtures("one_thread", "few_regions")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs_at_a_tiny_size(command, paper_workplace, monkeypatch, run_logn):
    glyphs = GlyphSettings(classes=5, train=12, dev=1, test=3, size=64)
    monkeypatch.setattr(specs, "SCENES", replace(specs.SCENES, name="tiny", glyphs=glyphs, iterations=4))
    monkeypatch.chdir(paper_workplace)
    for long, short in SHORTER.items():
        command = re.sub(long, short, command)
    more = {"bench": " --root bench -o out --jobs 1", "figure": " --overwrite --max-images 4"}
    command += more.get(command.split()[1], "")
    if "lvis" in command:
        command += " --iterations 4"
    if "table1" in command:  # all rows of random sampling on drawn scenes, else the first two
        table, whole = TABLES["table1"], () if "lvis" in command else ("Random sampling",)

        def few(*given):
            return {title: rows[: None if title in whole else 2] for title, rows in table.sections(*given).items()}

        monkeypatch.setitem(TABLES, "table1", replace(table, sections=few))
    if command.startswith("logn train") and "--iterations" not in command:
        command += " --iterations 1"
    Path("affine.safetensors").unlink(missing_ok=True)
    run_logn(command)


def test_what_the_moving_average_keeps_of_its_start():
    """LVIS v1 has 100,170 training images; the official code averages in each of four processes."""
    kept = [(1 - 5e-5) ** (100_170 / processes) for processes in (4, 1)]
    assert f"{kept[0]:.0%}".replace("%", " %") in TEXT
    assert f"{kept[1]:.1%}".replace("%", " %") in TEXT


def test_the_findings_that_differ_have_the_numbers_of_the_data():
    section = " ".join(TEXT.partition("## Findings that differ")[2].partition("\n## ")[0].split())
    kept = {
        name: json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))["sections"]
        for name in ("table1", "online", "components")
    }

    def points(name, part, method, metric="AP"):
        row = next(row for row in kept[name][part]["rows"] if row["method"] == method)
        values = row["metrics" if metric == "AP" else "errors"].values()
        return f"{100 * sum(value[metric] for value in values) / len(values):.1f}"

    drawn = [points("table1", part, method) for part in (0, 1) for method in ("LogA", "LogN")]
    assert "({} and {} AP on the normalised head, {} and {} with RFS)".format(*drawn) in section
    online = [points("online", 1, method) for method in ("online LogN, margin min", "CE", "LogN")]
    assert "{} AP with RFS, where the baseline has {} and LogN after training {}".format(*online) in section
    errors = [
        points("components", 3, method, kind)
        for kind in ("FP", "Cls")
        for method in ("none", "mean, std and margin: LogN")
    ]
    assert "{} to {}), and the classification error falls from {} to {}".format(*errors) in section
    strong = {k: v for k, v in tables.read(ROOT / "results" / "strong.json")["test"].items() if k != "public"}
    gains, _ = tables.layer_tables(strong, ("logn", "loga", "half prior"))
    one, two, three, four = ([row[column].split()[0] for row in gains] for column in (1, 3, 2, 4))
    assert [row[1].split(" ", 1)[1] for row in gains] == ["(8 of 8)"] * 3
    logn, loga, half = (value.removeprefix("+") for value in one)
    assert (
        f"the paper's LogN gains {logn} AP, LogA {loga} and half of the prior, which needs no counts, {half}" in section
    )
    assert "on linear heads {}, {} and {}".format(*two) in section
    assert "With exhaustive labels: {}, {} and {}, and {}, {} and {}".format(*three, *four) in section


def test_the_trainings_of_table_1_are_counted():
    from logn_research.experiments.paper import TABLE1

    # A normalised CE for each of six, and the first stage of LOCE for each of two.
    whole = sum(row.epochs == "24" and row.method != "BAGS" for row in TABLE1) + 6 + 2
    second = sum(row.method == "BAGS" or row.epochs == "24+6" for row in TABLE1)
    assert f"{whole} whole trainings and {second} second stages" in TEXT
