"""The report: one HTML file that holds everything it shows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from logn import __version__
from logn.errors import InputError, MissingExtraError, import_extra
from logn.evaluate.comparison.comparison import CLASSIFICATION, MethodResult
from logn.evaluate.comparison.tables import points, tone
from logn.evaluate.detection.gallery import ReportDetails
from logn.evaluate.detection.metrics import SHOWN_AT
from logn.files import write_text
from logn.report.class_changes_data import class_changes
from logn.report.page_classes import StatisticsCharts, changed_classes, statistics_charts
from logn.report.page_classifier import confusion_table, reliability_charts
from logn.report.page_gallery import Gallery, gallery
from logn.report.page_next_steps import next_steps
from logn.report.page_provenance import provenance, subject
from logn.report.page_scores import score_changes
from logn.report.page_summary import (
    ErrorKinds,
    Verdict,
    change_words,
    error_kinds,
    group_bars,
    method_table,
    verdict,
)
from logn.report.page_thresholds import threshold_curves
from logn.report.run_folder import Run
from logn.report.svg_charts import number
from logn.table import unbroken

if TYPE_CHECKING:
    from jinja2 import Environment


class Section(Protocol):
    """A part of the page: what it shows, and the template that draws it."""

    @property
    def template(self) -> str:
        """File under `templates`, which sees the section as `part`."""


@dataclass(frozen=True)
class NotShown:
    """A sentence instead of a section that lacks its input."""

    template: ClassVar[str] = "not_shown.html.jinja"
    title: str
    reason: str


@dataclass(frozen=True)
class PageData:
    """All that the page shows.

    Args:
        kicker: Above the title: which model, on which data, when.
        verdict: The top of the page.
        sections: What follows, in this order.
        subject: Model and data, for the title of the window.
    """

    kicker: str
    verdict: Verdict
    sections: Sequence[Section]
    subject: str = ""


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
    data = PageData(_kicker(run), verdict(run.comparison, focus), builder.sections(), subject(run))
    write_text(output, render_page(data))
    return ReportSummary(Path(output), focus.name, run.comparison.verdict(focus.name), builder.missing)


def _kicker(run: Run) -> str:
    comparison = run.comparison
    if comparison.task == CLASSIFICATION:
        measured = f"{sum(known.examples for known in comparison.classes):,} rows"
    else:
        measured = comparison.protocol.images or "all images"
    created = comparison.provenance.created
    parts = [subject(run), f"{len(comparison.classes):,} classes, {measured}", created.partition(" ")[0]]
    return " · ".join(["LogN report", *filter(None, parts)])


def render_page(data: PageData) -> str:
    """Draw the page. Whatever comes from the data is text: no name in it can become code.

    Example:
        >>> from logn.report.page_summary import Headline
        >>> top = Verdict("logn", Headline("raises AP by", "2.0 points", "up"), "", (), 0.95, draws=0, others=())
        >>> '<p class="kicker">cups &amp; forks</p>' in render_page(PageData("cups & forks", top, ()))
        True
    """
    return _environment().get_template("page.html.jinja").render(page=data, version=__version__)


@cache
def _environment() -> Environment:
    jinja2 = import_extra("jinja2", extra="report")
    loader = jinja2.PackageLoader("logn.report")
    environment: Environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_written,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        points=points,
        tone=tone,
        change_words=change_words,
        thousands="{:,}".format,
        sort_key=sort_key,
        unbroken=unbroken,
    )
    # Style sheet and script go into the page as they are; they are no templates, so braces mean nothing in them.
    environment.globals["file"] = lambda name: loader.get_source(environment, name)[0]
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def _written(value: Any) -> Any:
    """What a template writes for a value: a coordinate for a float; nothing at all is a mistake of ours."""
    if value is None:
        raise TypeError("Expected a template to write a value, but it is None.")
    return number(value) if isinstance(value, float) else value


def sort_key(value: float | None) -> str:
    """What a cell of a table is sorted by; empty where there is no value.

    Example:
        >>> sort_key(0.123456789), sort_key(float("nan")), sort_key(12000000)
        ('0.123457', '', '12000000')
    """
    if value is None or math.isnan(value):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class _Builder:
    """Makes the sections in order; one that cannot be made leaves a sentence in its place."""

    def __init__(self, run: Run, focus: MethodResult, output: Path) -> None:
        self.run, self.focus, self.output = run, focus, output
        self.comparison = run.comparison
        self.missing: dict[str, str] = {}

    def sections(self) -> tuple[Section, ...]:
        """All sections in the order of the page."""
        comparison, focus = self.comparison, self.focus
        of_task = self._of_classifier if comparison.task == CLASSIFICATION else self._of_detector
        sections = [
            method_table(comparison, focus),
            group_bars(comparison, focus),
            self._attempt("Logit statistics by class", self._statistics),
            changed_classes(comparison, focus),
            *of_task(),
            next_steps(comparison, focus),
            provenance(self.run, focus, self.output),
        ]
        return tuple(section for section in sections if section is not None)

    def _of_detector(self) -> list[Section]:
        return [
            self._attempt("Kinds of error", self._errors),
            self._attempt("What is found at your threshold", lambda: threshold_curves(self.comparison, self.focus)),
            self._attempt("Scores and thresholds", lambda: score_changes(self._details(), self.comparison, self.focus)),
            self._attempt("Images", self._gallery),
        ]

    def _of_classifier(self) -> list[Section]:
        return [
            self._attempt("Confusions", lambda: confusion_table(self.comparison)),
            self._attempt("Reliability", lambda: reliability_charts(self.comparison, self.focus)),
        ]

    def _attempt(self, title: str, make: Callable[[], Section]) -> Section:
        try:
            return make()
        except (InputError, MissingExtraError) as error:
            self.missing[title] = str(error)
            return NotShown(title, str(error))

    def _statistics(self) -> StatisticsCharts:
        return statistics_charts(self.comparison, self.focus, class_changes(self.comparison, self.focus.name))

    def _details(self) -> ReportDetails:
        if self.focus.details is None or SHOWN_AT not in self.focus.recall:
            raise InputError(
                "Expected the comparison to hold scores and boxes of some images, but it does not; compare again."
            )
        return self.focus.details

    def _errors(self) -> ErrorKinds:
        before, after = self.comparison.baseline.tide, self.focus.tide
        if before is None or after is None:
            raise InputError(
                "Expected the comparison to have kinds of error, but it has none; `logn compare --errors`."
            )
        scope = "Over all images and classes of the comparison."
        if self.focus.errors is None and self.focus.details is not None:
            scope = f"Over {self.focus.details.images:,} of {self.focus.details.of_images:,} images."
        return error_kinds(before, after, scope)

    def _gallery(self) -> Gallery:
        details = self._details()
        pictures, reasons = {}, []
        for image in details.gallery:
            try:
                pictures[image.image_id] = self.run.read_picture(image)
            except InputError as error:
                reasons.append(str(error))
        if reasons and not pictures:
            raise InputError(reasons[0])
        lacking = ""
        if reasons:
            lacking = f"{len(reasons):,} of {len(details.gallery):,} pictures are not here. {reasons[0]}"
            self.missing["Images"] = lacking
        names = [known.name for known in self.comparison.classes]
        return gallery(details, self.focus.recall[SHOWN_AT], pictures, names, lacking)
