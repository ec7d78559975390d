"""How scores move under a correction, and which thresholds stand in for the old ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from logn.evaluate.comparison.comparison import Comparison, MethodResult
from logn.evaluate.detection.gallery import ReportDetails, ScoreHistogram
from logn.evaluate.detection.metrics import SHOWN_AT, RecallAtCount
from logn.report.svg_charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, step_path

HISTOGRAMS = {"all": "All detections", "rare": "Detections of rare classes"}
GROUP_NAMES = {"r": "rare", "c": "common", "f": "frequent"}


@dataclass(frozen=True)
class Histogram:
    """How many detections have which score: outlines before and after, and how many there are in all."""

    title: str
    x: Axis
    y: Axis
    before: str
    after: str
    totals: tuple[int, int]


@dataclass(frozen=True)
class Scores:
    """Scores move under a correction: how, and which thresholds stand in for the old ones.

    Args:
        histograms: Of all detections and of those of rare classes.
        points: What is found above usual thresholds, before, and after with as many detections.
        typical: The one of them to recommend in a sentence.
        images: How many the histograms are of.
        of_images: How many the run has.
    """

    template: ClassVar[str] = "scores.html.jinja"
    group_names: ClassVar[dict[str, str]] = GROUP_NAMES
    histograms: tuple[Histogram, ...]
    points: tuple[tuple[RecallAtCount, RecallAtCount], ...]
    typical: tuple[RecallAtCount, RecallAtCount]
    images: int
    of_images: int

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the table."""
        groups = (GROUP_NAMES[group] for group in self.typical[1].groups)
        return "old threshold", "new threshold", "kept", "found", "class-mean recall", *groups


def score_changes(details: ReportDetails, comparison: Comparison, focus: MethodResult) -> Scores:
    """Draw histograms of the scores next to a table of thresholds."""
    histograms = (
        _histogram(title, details.histograms[name]) for name, title in HISTOGRAMS.items() if name in details.histograms
    )
    points = {at: (before, focus.recall[at]) for at, before in comparison.baseline.recall.items()}
    return Scores(tuple(histograms), tuple(points.values()), points[SHOWN_AT], details.images, details.of_images)


def _histogram(title: str, counts: ScoreHistogram) -> Histogram:
    top = max(int(counts.before.max(initial=1)), int(counts.after.max(initial=1)), 10)
    x = Axis(float(counts.edges[0]), 1.0, LEFT, WIDTH - RIGHT, logarithmic=True)
    y = Axis(0.7, top * 1.3, HEIGHT - BOTTOM, TOP + 8, logarithmic=True)
    edges = counts.edges.tolist()
    before, after = (step_path(x, y, edges, side.tolist()) for side in (counts.before, counts.after))
    return Histogram(title, x, y, before, after, (int(counts.before.sum()), int(counts.after.sum())))
