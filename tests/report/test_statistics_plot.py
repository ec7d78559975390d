"""The figure of mean and standard deviation per class."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from tests.conftest import moments_of

from logn.errors import InputError
from logn.report.statistics_plot import plot_statistics
from logn.statistics.summary import diagnose


@pytest.mark.parametrize("counts", [None, [900, 80, 20, 1]])
def test_the_figure_has_a_symbol_per_class_and_panel(tmp_path, counts):
    rows, path = np.random.default_rng(0).standard_normal((50, 5)), tmp_path / "figure.svg"
    rows[:, 2] = 1.0
    diagnosis = diagnose(moments_of(rows, background=0), counts)
    plot_statistics(diagnosis, path)
    picture = ET.parse(path).getroot()  # noqa: S314 - our own file
    symbols = [item.get("d") for item in picture.findall(".//{*}path") if item.get("fill")]
    assert sum(path.count("M") for path in symbols) == 8
    words = {item.text for item in picture.findall(".//{*}text")}
    assert {"Mean logit", "Standard deviation", "dead"} <= words
    assert ({"frequent", "common", "rare"} <= words) == (counts is not None)
    assert list(tmp_path.iterdir()) == [path]


def test_another_format_is_refused(tmp_path):
    diagnosis = diagnose(moments_of(np.random.default_rng(0).standard_normal((50, 5))), None)
    with pytest.raises(InputError, match=r"figure\.png"):
        plot_statistics(diagnosis, tmp_path / "figure.png")
