"""The report: one HTML file that holds everything it shows."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from logn import __version__
from logn.errors import InputError, MissingExtraError
from logn.evaluate.error_types import error_types
from logn.evaluate.protocol import EvaluationProtocol
from logn.evaluate.tables import points
from logn.files import write_text
from logn.report.before_after import BeforeAfter, load_before_after, operating_point, operating_points
from logn.report.class_changes_data import FloatArray, class_changes
from logn.report.comparison_record import MethodRecord
from logn.report.gallery_data import choose_images
from logn.report.page_classes import StatisticsCharts, changed_classes, statistics_charts
from logn.report.page_detections import TYPICAL_THRESHOLD, Gallery, Scores, gallery, score_changes
from logn.report.page_provenance import provenance
from logn.report.page_summary import (
    ErrorKinds,
    Verdict,
    change_words,
    error_kinds,
    group_bars,
    method_table,
    tone,
    verdict,
)
from logn.report.run_folder import Run
from logn.report.svg_charts import number

if TYPE_CHECKING:
    from jinja2 import Environment


class Section(Protocol):
    """A part of the page: what it shows, and the template that draws it."""

    @property
    def template(self) -> str:
        """File under `templates`, which sees the section as `part`."""


@dataclass(frozen=True)
class NotShown:
    """A sentence in the place of a section that lacks its input."""

    template: ClassVar[str] = "not_shown.html.jinja"
    title: str
    reason: str


@dataclass(frozen=True)
class PageData:
    """All that the page shows.

    Args:
        kicker: Above the title: which run it is.
        verdict: The top of the page.
        sections: What follows, in this order.
    """

    kicker: str
    verdict: Verdict
    sections: Sequence[Section]


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
    data = PageData(_kicker(run), verdict(run.comparison, focus), builder.sections())
    write_text(output, render_page(data))
    return ReportSummary(Path(output), focus.name, focus.verdict, builder.missing)


def _kicker(run: Run) -> str:
    name = run.folder.name or run.folder.resolve().name
    images = run.comparison.protocol.get("images") or "all images"
    return f"LogN report · {name} · {len(run.comparison.classes):,} classes, {images}"


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
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("logn.report")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_written,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        points=points, tone=tone, change_words=change_words, thousands="{:,}".format, sort_key=sort_key
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

    def __init__(self, run: Run, focus: MethodRecord, output: Path) -> None:
        self.run, self.focus, self.output = run, focus, output
        self.missing: dict[str, str] = {}
        self._pair: BeforeAfter | InputError | None = None

    def sections(self) -> tuple[Section, ...]:
        """All sections in the order of the page."""
        comparison, focus = self.run.comparison, self.focus
        sections = [
            method_table(comparison, focus),
            group_bars(comparison, focus),
            self._attempt("Logit statistics by class", self._statistics),
            changed_classes(comparison, focus, self._image_counts()),
            self._attempt("Kinds of error", self._errors),
            self._attempt("Scores and thresholds", self._scores),
            self._attempt("Images", self._gallery),
            provenance(self.run, focus, self.output),
        ]
        return tuple(section for section in sections if section is not None)

    def _attempt(self, title: str, make: Callable[[], Section]) -> Section:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # clipped boxes were told of when they were first read
                return make()
        except (InputError, MissingExtraError) as error:
            self.missing[title] = str(error)
            return NotShown(title, str(error))

    def _image_counts(self) -> FloatArray | None:
        comparison = self.run.comparison
        if not self.run.has("counts"):
            return None
        images = self.run.image_counts(tuple(entry.name for entry in comparison.classes))
        return images if len(images) == len(comparison.classes) else None

    def _statistics(self) -> StatisticsCharts:
        changes = class_changes(self.run, self.focus.name)
        if len(changes.images) != len(self.run.comparison.classes):
            raise InputError(
                f"Expected the statistics to have the {len(self.run.comparison.classes)} classes of the comparison, "
                f"but they have {len(changes.images)}."
            )
        return statistics_charts(self.run.comparison, self.focus, changes)

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

    def _errors(self) -> ErrorKinds:
        before, after = self.run.comparison.baseline.errors, self.focus.errors
        if before is not None and after is not None:
            return error_kinds(before, after, "Over all images and classes of the comparison.")
        pair, protocol = self.pair, self.run.comparison.protocol
        rules = EvaluationProtocol(style=protocol["style"], max_detections=protocol["max_detections"])
        found = [error_types(side, pair.truth, rules, groups=pair.groups) for side in (pair.before, pair.after)]
        one, two = ({"AP50": side.base, **side.gains} for side in found)
        return error_kinds(
            one, two, f"Computed for this page over {pair.truth.num_images:,} of {pair.of_images:,} images."
        )

    def _scores(self) -> Scores:
        return score_changes(self.pair, operating_points(self.pair))

    def _gallery(self) -> Gallery:
        pair = self.pair
        point = operating_point(pair, TYPICAL_THRESHOLD)
        images = choose_images(pair, point)
        data, positions = self.run.test_data, self.run.positions
        pictures = [data.read_image(positions[image.image_id]) for image in images]
        return gallery(images, pictures, pair.truth.class_names, point)
