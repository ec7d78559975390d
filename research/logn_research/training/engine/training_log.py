"""The log of a run: one JSON object per line, for reports, and a progress bar, for people."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from logn.files import write_text

FILE_NAME = "log.jsonl"


class TrainingLog:
    """Means of the losses over a few iterations at a time, appended to `log.jsonl`.

    Each line has `iteration` (done so far), `loss`, `losses`, `learning_rate` and `seconds` of training so far.

    Args:
        folder: Of the run.
        start: Iterations that were done before; later lines, of a run that was killed after its last checkpoint,
            are taken away.
    """

    def __init__(self, folder: Path, start: int) -> None:
        self.path = folder / FILE_NAME
        self._sums: dict[str, float] = {}
        self._count = 0
        kept = [line for line in read_log(folder) if line["iteration"] <= start] if start else []
        self.seconds_before = float(kept[-1]["seconds"]) if kept else 0.0
        if self.path.exists():  # no empty file, in case the first iteration fails
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def add(self, losses: Mapping[str, float]) -> None:
        """Take in the losses of one iteration."""
        for name, value in losses.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self._count += 1

    def write(self, iteration: int, *, learning_rate: float, seconds: float) -> dict[str, float]:
        """Append the means since the last line, and give them."""
        means = {name: value / max(self._count, 1) for name, value in self._sums.items()}
        line = {
            "iteration": iteration,
            "loss": sum(means.values()),
            "losses": means,
            "learning_rate": learning_rate,
            "seconds": round(self.seconds_before + seconds, 3),
        }
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(json.dumps(line) + "\n")
        self._sums, self._count = {}, 0
        return means

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added since the last line."""
        return self._count == 0


def read_log(folder: str | Path) -> list[dict[str, Any]]:
    """Read the log of a run; a last line that a kill cut short is left out."""
    path = Path(folder) / FILE_NAME
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    entries = []
    for line in lines:
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries


def training_seconds(folder: str | Path) -> float:
    """Time of the iterations of a run, as its log says; NaN without a log."""
    lines = read_log(folder)
    return float(lines[-1]["seconds"]) if lines else float("nan")


Report = Callable[[int, str], None]


@contextlib.contextmanager
def progress_bar(total: int, start: int, *, shown: bool | None, title: str = "Training") -> Iterator[Report]:
    """Draw a bar with the losses and the time left on stderr; yields what to call with (iterations done, losses).

    Args:
        total: Iterations of the run.
        start: Iterations done before.
        shown: True or False; None shows it when stderr is a terminal.
        title: What is being done.
    """
    if shown is False or (shown is None and not sys.stderr.isatty()):
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total, completed=start)
        yield lambda done, text: bar.update(task, completed=done, description=text)
