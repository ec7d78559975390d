"""The page on the class mix of the deployment: its commands run."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import logn

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "deployment-prior.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside the tests")


def test_the_journey_can_be_pasted(tmp_path, blocks, run_logn, run_python, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_logits, in_python = blocks("python")
    subprocess.run([sys.executable, "-c", make_logits], cwd=tmp_path, check=True, env=dict(os.environ))
    (commands,) = blocks("sh")
    run_logn(commands)
    names = run_python(in_python)
    np.testing.assert_allclose(names["mix"].target, [0.2, 0.2, 0.3, 0.3], atol=0.02)
    exact = logn.ClassAffine.load("affine.safetensors")
    np.testing.assert_allclose(names["affine"].shift, exact.shift, atol=0.1)
