"""The report: one HTML file that holds everything it shows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from logn import __version__
from logn.errors import InputError, MissingExtraError
from logn.evaluate.error_types import error_types
from logn.evaluate.protocol import EvaluationProtocol
from logn.files import write_text
from logn.report.before_after import BeforeAfter, load_before_after, operating_point, operating_points
from logn.report.class_changes_data import FloatArray, class_changes
from logn.report.comparison_record import MethodRecord
from logn.report.gallery_data import choose_images
from logn.report.markup import Markup, join, tag
from logn.report.page_classes import changed_section, statistics_section
from logn.report.page_errors import error_section
from logn.report.page_gallery import gallery_section
from logn.report.page_parts import section
from logn.report.page_provenance import provenance_section
from logn.report.page_scores import score_section
from logn.report.page_summary import group_bars, method_table, verdict
from logn.report.run_folder import Run

# The gallery shows what a user sees who keeps detections of at least this score.
GALLERY_THRESHOLD = 0.3
# Nothing may be fetched, not even by a picture whose name comes from the data.
SECURITY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class ReportSummary:
    """What was written.

    Args:
        path: The page.
        method: The method that it looks at closely.
        verdict: What that method changes, in one sentence.
        missing: Sections that could not be made, and why.
    """

    path: Path
    method: str
    verdict: str
    missing: Mapping[str, str] = field(default_factory=dict)


def write_report(run: Run, output: str | os.PathLike[str], *, method: str | None = None) -> ReportSummary:
    """Write the page of a run.

    Args:
        run: The run; only its comparison is necessary. A section that lacks its input says what it needs.
        output: The HTML file.
        method: The method to look at closely; by default the first of the comparison.
    """
    focus = run.comparison.focus(method)
    builder = _Builder(run, focus, Path(output))
    body = builder.body()
    write_text(output, _document(run, focus, body))
    return ReportSummary(Path(output), focus.name, focus.verdict, builder.missing)


def _document(run: Run, focus: MethodRecord, body: Markup) -> str:
    comparison = run.comparison
    kicker = (
        f"LogN report · {run.folder.name or run.folder.resolve().name} · {len(comparison.classes):,} classes, "
        + str(comparison.protocol.get("images") or "all images")
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=SECURITY),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"LogN report: {focus.name}"),
        tag("style", Markup(_resource("page.css"))),
    )
    header = tag("header", tag("p", kicker, class_="kicker"), verdict(comparison, focus))
    footer = tag("footer", f"Written by LogN {__version__}. This file holds everything it shows and fetches nothing.")
    script = tag("script", Markup(_resource("page.js")))
    page = tag("html", head, tag("body", header, tag("main", body), footer, script), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _resource(name: str) -> str:
    return files("logn.report").joinpath(name).read_text(encoding="utf-8")


class _Builder:
    """Makes the sections in order; one that cannot be made leaves a sentence in its place."""

    def __init__(self, run: Run, focus: MethodRecord, output: Path) -> None:
        self.run, self.focus, self.output = run, focus, output
        self.missing: dict[str, str] = {}
        self._pair: BeforeAfter | InputError | None = None

    def body(self) -> Markup:
        comparison, focus = self.run.comparison, self.focus
        return join(
            [
                method_table(comparison, focus),
                group_bars(comparison, focus),
                self._attempt("Logit statistics by class", self._statistics),
                changed_section(comparison, focus, self._image_counts()),
                self._attempt("Kinds of error", self._errors),
                self._attempt("Scores and thresholds", self._scores),
                self._attempt("Images", self._gallery),
                provenance_section(self.run, focus, self.output),
            ]
        )

    def _attempt(self, title: str, make: Callable[[], Markup]) -> Markup:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # clipped boxes were told of when they were first read
                return make()
        except (InputError, MissingExtraError) as error:
            self.missing[title] = str(error)
            return section(title.lower().replace(" ", "-"), title, "Not shown. " + str(error))

    def _image_counts(self) -> FloatArray | None:
        comparison = self.run.comparison
        if not self.run.has("counts"):
            return None
        images = self.run.image_counts(tuple(entry.name for entry in comparison.classes))
        return images if len(images) == len(comparison.classes) else None

    def _statistics(self) -> Markup:
        changes = class_changes(self.run, self.focus.name)
        if len(changes.images) != len(self.run.comparison.classes):
            raise InputError(
                f"Expected the statistics to have the {len(self.run.comparison.classes)} classes of the comparison, "
                f"but they have {len(changes.images)}."
            )
        return statistics_section(self.run.comparison, self.focus, changes)

    @property
    def pair(self) -> BeforeAfter:
        """Detections before and after: decoded once, for the sections that need them."""
        if self._pair is None:
            try:
                self._pair = load_before_after(self.run, self.focus.name)
            except InputError as error:
                self._pair = error
        if isinstance(self._pair, InputError):
            raise self._pair
        return self._pair

    def _errors(self) -> Markup:
        before, after = self.run.comparison.baseline.errors, self.focus.errors
        if before is not None and after is not None:
            return error_section(before, after, "Over all images and classes of the comparison.")
        pair, protocol = self.pair, self.run.comparison.protocol
        rules = EvaluationProtocol(style=protocol["style"], max_detections=protocol["max_detections"])
        found = [error_types(side, pair.truth, rules, groups=pair.groups) for side in (pair.before, pair.after)]
        one, two = ({"AP50": side.base, **side.gains} for side in found)
        return error_section(
            one, two, f"Computed for this page over {pair.truth.num_images:,} of {pair.of_images:,} images."
        )

    def _scores(self) -> Markup:
        return score_section(self.pair, operating_points(self.pair))

    def _gallery(self) -> Markup:
        pair = self.pair
        point = operating_point(pair, GALLERY_THRESHOLD)
        images = choose_images(pair, point)
        data, positions = self.run.test_data, self.run.positions
        pictures = [data.read_image(positions[image.image_id]) for image in images]
        return gallery_section(images, pictures, pair.truth, point)
