"""The script that makes a row of Table 1: its commands, its costs, and how it goes on. Run by `make test-mmdet`."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mmdet", reason="MMDetection has an environment of its own: make test-mmdet")

from logn_research.experiments.paper import TABLE1

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "mmdetection"
FRAMEWORKS = {"Mask-R50": "mask_rcnn_r50", "Mask-R101": "mask_rcnn_r101", "Cascade-R101": "cascade_mask_rcnn_r101"}
TRAINED = [row for row in TABLE1 if row.method != "LogA"]


@pytest.fixture
def script(monkeypatch):
    """Import one of the scripts, whose folder is on the path as when it is called."""
    monkeypatch.syspath_prepend(FOLDER)

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look themselves up
        spec.loader.exec_module(module)
        return module

    return load


def config_of(row):
    sampler = "random" if row.sampler == "mfs" else row.sampler
    return str(FOLDER / f"{FRAMEWORKS[row.framework]}_{sampler}_lvis.py")


@pytest.mark.parametrize("row", TRAINED, ids=lambda row: f"{row.framework}-{row.sampler}-{row.method}")
def test_every_row_has_commands_that_the_scripts_take(row, script, capsys):
    script("table1").main([config_of(row), "--row", row.method, "--data", "missing", "--dry-run"])
    printed = capsys.readouterr().out
    commands = [shlex.split(line) for line in printed.splitlines() if line.startswith(sys.executable)]
    parsers = {name: script(name).parse for name in ("train", "test")}
    used = {"train": [], "test": []}
    for words in commands:
        for place, word in enumerate(words):
            if Path(word).parent == FOLDER and Path(word).stem in parsers:
                used[Path(word).stem].append(parsers[Path(word).stem](words[place + 1 :]))
                break
        else:
            assert words[1:4] == ["-m", "logn", "fit"]
    assert len(used["train"]) == (2 if row.method in ("BAGS", "LOCE", "LOCE + MFS") else 1)
    assert all(Path(training.config).is_file() for training in used["train"])
    *_, last = used["train"]
    assert all(Path(test.config).name == Path(last.config).name for test in used["test"])
    # Two populations, plain, four corrections, and LogA where the paper has it.
    assert len(used["test"]) == 7 + (row.method == "LogN")
    assert sum(test.official for test in used["test"]) == 1


def test_the_page_has_the_costs_that_the_script_prints(script, capsys):
    config = str(FOLDER / "mask_rcnn_r101_rfs_lvis.py")
    script("table1").main([config, "--data", "missing", "--dry-run"])
    days, disk = re.search(r"All: ([\d.]+) GPU days and ([\d.]+) GB", capsys.readouterr().out).groups()
    page = (ROOT / "research" / "docs" / "mmdetection.md").read_text(encoding="utf-8")
    assert f"{days} GPU days and {disk} GB" in page


def test_a_row_goes_on_where_it_stopped(script, capsys, tmp_path, monkeypatch):
    table1 = script("table1")
    data = tmp_path / "lvis"
    (data / "annotations").mkdir(parents=True)
    content = {"images": [{"id": 1}], "annotations": [{"image_id": 1, "category_id": 3}]}
    (data / "annotations/lvis_v1_train.json").write_text(json.dumps(content))
    called, failing = [], ["--official"]

    def pretend(command, **_):
        called.append(command)
        if "--work-dir" in command:
            Path(command[command.index("--work-dir") + 1]).mkdir(exist_ok=True)
        if failing and failing[0] in command:
            return subprocess.CompletedProcess(command, 1)
        for option in ("--metrics", "-o"):
            if option in command:
                metrics = {"lvis/bbox_AP": 0.268, "lvis/segm_AP": 0.265, "lvis/segm_APr": -1.0}
                Path(command[command.index(option) + 1]).write_text(json.dumps(metrics))
        if "--resume" in command:
            run = Path(command[command.index("--work-dir") + 1])
            (run / "last_checkpoint").write_text(f"{run}/epoch_24.pth")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(table1.subprocess, "run", pretend)
    given = [str(FOLDER / "mask_rcnn_r50_rfs_lvis.py"), "--data", str(data), "--out", str(tmp_path / "runs")]
    with pytest.raises(SystemExit, match=r"collect official: .* failed"):
        table1.main(given)
    assert len(called) == 3
    failing.clear()
    called.clear()
    table1.main(given)
    assert not any("--resume" in command for command in called)
    assert sum("--collect-only" in command for command in called) == 1
    assert f"{tmp_path}/runs/mask_rcnn_r50_rfs_lvis/epoch_24.pth" in called[0]
    printed = capsys.readouterr().out
    assert re.search(r"LogN, exact +here +26.8 +26.5 +- +- +-\n +paper +28.1 +27.5 +21.8 +27.1 +30.4", printed)
    called.clear()
    table1.main(given)
    assert not called


def test_a_row_that_the_paper_has_not_is_refused(script, capsys):
    with pytest.raises(SystemExit):
        script("table1").main([str(FOLDER / "mask_rcnn_r50_rfs_lvis.py"), "--row", "EQL v2", "--dry-run"])
    assert "Table 1 has no row EQL v2 for mask_rcnn_r50_rfs" in capsys.readouterr().err
