"""Walk the README's examples of arrays with whatever `logn` is installed: `walk_readme.py [FOLDER]`.

Needs nothing but LogN itself, on any system: no pytest, no shell. FOLDER has the README; by default the repository's.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

EXAMPLE = "logn collect 'train_logits/*.npy'"


def commands_of(text: str, start: str) -> list[list[str]]:
    """The commands of the block that starts so, as words."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, flags=re.M | re.S)
    (found,) = [block for block in blocks if block.startswith(f"$ {start}")]
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in found.splitlines()]


def make_data(folder: Path) -> None:
    """What the example presumes: shards of a detector's logits."""
    random = np.random.default_rng(0)
    (folder / "train_logits").mkdir()
    for name in ("train_logits/a.npy", "train_logits/b.npy", "test_logits.npy"):
        foreground = random.normal(np.linspace(-6, -2, 20), 1.0, (2000, 20))
        np.save(folder / name, np.hstack([random.normal(5, 1, (2000, 1)), foreground]).astype(np.float32))


def main(folder: Path) -> None:
    """Run the example in a folder of its own, and check what comes out."""
    import logn

    text = (folder / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        make_data(Path(place))
        for program, *words in commands_of(text, EXAMPLE):
            assert program == "logn"
            print("$ logn", *words, flush=True)
            # -I: what is installed, not what lies in the current folder.
            subprocess.run([sys.executable, "-I", "-m", "logn", *words], cwd=place, check=True)
        before, after = (np.load(Path(place, name)) for name in ("test_logits.npy", "corrected.npy"))
        spread = [float(np.ptp(logits[:, 1:].mean(0))) for logits in (before, after)]
        assert spread[0] > 3.5, spread
        assert spread[1] < 0.6 * spread[0], spread  # three quarters of the prior
        assert (before[:, 0] == after[:, 0]).all(), "the background has changed"
        (line,) = re.findall(r"`(logn\.LogitNormalizer\(\)[^`]+)`", text)
        train = before[:, 1:]
        corrected = eval(line, {"logn": logn, "train_logits": train, "test_logits": train})  # noqa: S307 - our own page
        assert corrected.shape == train.shape
    print(
        f"The README's arrays are corrected by LogN {logn.__version__} on Python {sys.version.split()[0]} ({os.name})."
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2])
