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

EXAMPLES = ("logn collect 'train_logits/*.npy'", "logn compare test.npy")


def commands_of(text: str, start: str) -> list[list[str]]:
    """The commands of the block that starts so, as words."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, flags=re.M | re.S)
    (found,) = [block for block in blocks if block.startswith(f"$ {start}")]
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in found.splitlines()]


def make_data(folder: Path) -> None:
    """What the examples presume: shards of a detector's logits, and the logits and labels of a classifier."""
    random = np.random.default_rng(0)
    (folder / "train_logits").mkdir()
    for name in ("train_logits/a.npy", "train_logits/b.npy", "test_logits.npy"):
        foreground = random.normal(np.linspace(-6, -2, 20), 1.0, (2000, 20))
        np.save(folder / name, np.hstack([random.normal(5, 1, (2000, 1)), foreground]).astype(np.float32))
    rows = "".join(f"class{number},{2 ** (number // 2)}\n" for number in range(20))
    (folder / "class_counts.csv").write_text("name,image_count\n" + rows, encoding="utf-8")
    labels, counts = random.integers(0, 4, 80), np.array([200, 60, 15, 4])
    for name, drawn in (("test.npy", labels), ("train.npy", random.choice(4, 80, p=counts / counts.sum()))):
        np.save(folder / name, 2 * np.eye(4)[drawn] + random.standard_normal((80, 4)) + np.log(counts))
    np.save(folder / "labels.npy", labels)
    (folder / "counts.csv").write_text("name,image_count\n" + "".join(f"c{n},{n}\n" for n in counts), encoding="utf-8")


def main(folder: Path) -> None:
    """Run the examples in a folder of their own, and check what comes out."""
    import logn

    text = (folder / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        make_data(Path(place))
        for start in EXAMPLES:
            for program, *words in commands_of(text, start):
                assert program == "logn"
                print("$ logn", *words, flush=True)
                # -I: what is installed, not what lies in the current folder.
                subprocess.run([sys.executable, "-I", "-m", "logn", *words], cwd=place, check=True)
        before, after = (np.load(Path(place, name)) for name in ("test_logits.npy", "corrected.npy"))
        spread = [float(np.ptp(logits[:, 1:].mean(0))) for logits in (before, after)]
        assert spread[0] > 3.5, spread
        assert spread[1] < 0.6 * spread[0], spread  # half of the prior
        assert (before[:, 0] == after[:, 0]).all(), "the background has changed"
        (line,) = re.findall(r"`(logn\.LogitNormalizer\(\)[^`]+)`", text)
        train = np.load(Path(place, "train.npy"))
        corrected = eval(line, {"logn": logn, "train_logits": train, "test_logits": train})  # noqa: S307 - our own page
        assert corrected.shape == train.shape
    print(
        f"The README's arrays are corrected by LogN {logn.__version__} on Python {sys.version.split()[0]} ({os.name})."
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2])
