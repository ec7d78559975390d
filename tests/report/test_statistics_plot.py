"""The figure of mean and standard deviation per class."""

import numpy as np
import pytest

from logn.errors import InputError
from logn.report.statistics_plot import plot_statistics
from logn.statistics.head import Head
from logn.statistics.moments import ClassMoments
from logn.statistics.summary import diagnose

pytest.importorskip("matplotlib")

START_OF_FILE = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", [*START_OF_FILE, ".gif"])
@pytest.mark.parametrize("counts", [None, [900, 80, 20, 1]])
def test_the_figure_is_written(tmp_path, suffix, counts):
    moments, path = ClassMoments(Head(5, background=0)), tmp_path / f"figure{suffix}"
    rows = np.random.default_rng(0).standard_normal((50, 5))
    rows[:, 2] = 1.0
    moments.update(rows)
    diagnosis = diagnose(moments, counts)
    if suffix == ".gif":
        with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
            plot_statistics(diagnosis, path)
        return
    plot_statistics(diagnosis, path)
    assert path.read_bytes().startswith(START_OF_FILE[suffix])
    assert list(tmp_path.iterdir()) == [path]
    if suffix == ".svg" and counts:  # text is drawn as outlines; matplotlib keeps the words as comments
        text = path.read_text()
        assert all(f"<!-- {word} -->" in text for word in ("frequent", "common", "rare", "dead", "Mean logit"))
