"""Scores move under a correction: how, and which thresholds stand in for the old ones."""

from __future__ import annotations

from typing import Any

from logn.report.before_after import BeforeAfter, OperatingPoint, ScoreHistogram, score_histogram
from logn.report.markup import Markup, join, tag
from logn.report.page_parts import cell, legend, section, sortable_table, swatch
from logn.report.svg_charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, axes, chart, step_path


def score_section(pair: BeforeAfter, operating: list[OperatingPoint]) -> Markup:
    """Histograms of the scores and a table of thresholds."""
    lowest = max(float(min(pair.before.scores.min(initial=1), pair.after.scores.min(initial=1))), 1e-4)
    lowest = min(lowest, 0.1)
    panels: list[tuple[str, Any, Any]] = [("All detections", slice(None), slice(None))]
    if not pair.rare.all():
        panels.append(("Detections of rare classes", pair.rare[pair.before.labels], pair.rare[pair.after.labels]))
    figures = [
        tag(
            "figure",
            tag("h3", title),
            _histogram(title, score_histogram(pair.before.scores[one], pair.after.scores[two], lowest=lowest)),
        )
        for title, one, two in panels
    ]
    return section(
        "scores",
        "Scores move, so thresholds must move",
        "How many detections have which score. AP does not depend on the scale of the scores, but a threshold that you "
        "chose for the old model does.",
        legend((swatch("area-before"), "before"), (swatch("bar-after"), "after")),
        tag("div", *figures, class_="charts"),
        _advice(operating),
        tag("div", _threshold_table(operating), class_="scroll"),
        tag(
            "p",
            f"From {pair.truth.num_images:,} of {pair.of_images:,} images. A new threshold keeps as many detections in "
            "all as the old one. Right: the class was annotated there and the boxes overlap by half; wrong: it was "
            "looked for and is not there. Detections of classes that nobody looked for in an image are neither.",
            class_="note",
        ),
    )


def _histogram(title: str, counts: ScoreHistogram) -> Markup:
    top = max(int(counts.before.max(initial=1)), int(counts.after.max(initial=1)), 10)
    x = Axis(float(counts.edges[0]), 1.0, LEFT, WIDTH - RIGHT, logarithmic=True)
    y = Axis(0.7, top * 1.3, HEIGHT - BOTTOM, TOP + 8, logarithmic=True)
    edges = counts.edges.tolist()
    return chart(
        axes(x, y, "score (logarithmic)", "detections (logarithmic)"),
        tag("path", d=step_path(x, y, edges, counts.before.tolist()), class_="area-before"),
        tag("path", d=step_path(x, y, edges, counts.after.tolist()), class_="area-after"),
        label=f"{title}: {int(counts.before.sum()):,} before, {int(counts.after.sum()):,} after, by score",
    )


def _advice(operating: list[OperatingPoint]) -> Markup:
    middle = min(operating, key=lambda point: abs(point.old - 0.3))
    return tag(
        "p",
        "If you kept detections with a score of at least ",
        tag("b", f"{middle.old:g}"),
        ", keep those of at least ",
        tag("b", f"{middle.new:.3g}"),
        f" now: as many detections in all ({middle.kept[1]:,}), of which {middle.hits[1]:,} instead of "
        f"{middle.hits[0]:,} are right, and {middle.rare_hits[1]:,} instead of {middle.rare_hits[0]:,} of those are "
        "of rare classes.",
        class_="advice",
    )


def _threshold_table(operating: list[OperatingPoint]) -> Markup:
    header = [(title, False) for title in ("old threshold", "new threshold", "kept", "right", "wrong", "right, rare")]
    rows = [
        tag(
            "tr",
            join(
                [
                    cell(f"{point.old:g}", point.old),
                    cell(f"{point.new:.3g}", point.new),
                    cell(f"{point.kept[1]:,}", str(point.kept[1])),
                    *(_pair(values) for values in (point.hits, point.false_alarms, point.rare_hits)),
                ]
            ),
        )
        for point in operating
    ]
    return sortable_table(header, rows)


def _pair(values: tuple[int, int]) -> Markup:
    return cell(f"{values[0]:,} → {values[1]:,}", str(values[1]))
