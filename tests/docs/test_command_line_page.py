"""The page on the command line works by copy and paste."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")
def test_the_journey_can_be_pasted(tmp_path, blocks, shell):
    make_logits, *after = blocks("python")
    (tmp_path / "make_logits.py").write_text(make_logits)
    printed = shell("".join(blocks("sh")), tmp_path)
    for shown in blocks("text"):
        assert " ".join(shown.split()) in " ".join(printed.split())
    for text in after:
        subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True)
    assert (tmp_path / "statistics.png").exists()
    before, corrected = np.load(tmp_path / "shard0.npy"), np.load(tmp_path / "corrected.npy")
    # The drawn bias is gone: class means that fell by four now differ by chance only.
    assert np.ptp(before[:, :-1].mean(0)) > 3.5
    assert np.ptp(corrected[:, :-1].mean(0)) < 0.6 * np.ptp(before[:, :-1].mean(0))  # half of the prior
    np.testing.assert_array_equal(before[:, -1], corrected[:, -1])
