"""The page on the diagnosis: its example prints what the page shows, and its table knows every indicator."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from logn.calibrators.advice import LITTLE_MEAN_SPREAD, LITTLE_STD_SPREAD, STRONG_MEAN_SPREAD, advise
from logn.calibrators.score_shift_warning import DETECTIONS_FACTOR, MASS_FACTOR
from logn.statistics.moments import ClassMoments

PAGE = Path(__file__).parents[2] / "docs" / "diagnosis.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


def test_the_example_prints_what_the_page_shows(tmp_path, blocks, shell):
    (code,), (commands,), (shown,) = (blocks(language) for language in ("python", "sh", "text"))
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    printed = shell(commands, tmp_path)
    # Sentences are wrapped on the page.
    assert " ".join(shown.split()) in " ".join(printed.split())


def test_the_table_knows_every_indicator():
    moments = ClassMoments(8, sample_rows=100)
    moments.update(np.random.default_rng(0).standard_normal((100, 8)) - np.arange(8))
    section = PAGE.read_text(encoding="utf-8").split("## The indicators")[1].split("##")[0]
    named = set(re.findall(r"`(\w+)`", section))
    about_the_input = {"classes", "rows"}
    without_news = {"balanced_mass_factor", "paper_winners_changed"}
    assert set(advise(moments, np.arange(8, 0, -1)).indicators) - about_the_input - without_news <= named


def test_the_numbers_on_the_page_are_those_of_the_code():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"the mass by more than a factor of {MASS_FACTOR:g} or" in text
    assert f"the threshold by more than a factor of {DETECTIONS_FACTOR:g}." in text
    assert f"`mean_spread` below {LITTLE_MEAN_SPREAD:g} and `std_spread` below {LITTLE_STD_SPREAD:g}" in text
    assert f"strong from a `mean_spread` of {STRONG_MEAN_SPREAD:g}" in text
