"""The figure of mean and standard deviation per class."""

import numpy as np
import pytest

from logn.errors import InputError
from logn.report.statistics_plot import plot_statistics
from logn.statistics.diagnosis import diagnose
from logn.statistics.moments import ClassMoments, StatisticsMetadata

pytest.importorskip("matplotlib")

START_OF_FILE = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def _diagnosis(counts=None):
    moments = ClassMoments(5, metadata=StatisticsMetadata(background=0))
    rows = np.random.default_rng(0).standard_normal((50, 5))
    rows[:, 2] = 1.0
    moments.update(rows)
    return diagnose(moments, counts)


@pytest.mark.parametrize("suffix", START_OF_FILE)
@pytest.mark.parametrize("counts", [None, [900, 80, 20, 1]])
def test_the_figure_is_written(tmp_path, suffix, counts):
    path = tmp_path / f"figure{suffix}"
    plot_statistics(_diagnosis(counts), path)
    assert path.read_bytes().startswith(START_OF_FILE[suffix])
    assert list(tmp_path.iterdir()) == [path]


def test_the_svg_names_what_it_shows(tmp_path):
    path = tmp_path / "figure.svg"
    plot_statistics(_diagnosis([900, 80, 20, 1]), path)
    # Text is drawn as outlines; matplotlib keeps the words as comments.
    text = path.read_text()
    assert all(f"<!-- {word} -->" in text for word in ("frequent", "common", "rare", "dead", "Mean logit"))


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        plot_statistics(_diagnosis(), tmp_path / "figure.gif")
