"""The report: one HTML file that holds everything it shows."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logn import __version__
from logn.base.commands import command
from logn.base.files import write_text
from logn.base.text_table import unbroken
from logn.errors import InputError, MissingExtraError, import_extra
from logn.measure.comparison import CLASSIFICATION, DETECTION, Comparison
from logn.report import next_steps, sections
from logn.report.gallery import gallery
from logn.report.svg import number
from logn.report.view import View, metric_text

if TYPE_CHECKING:
    from jinja2 import Environment

BOTH = (DETECTION, CLASSIFICATION)
# Sections in the order of the page: the function, whose name is that of the template macro and of the section in
# addresses; the word in the bar of contents; the title; what has the section.
SECTIONS = (
    (gallery, "Images", "See it", (DETECTION,)),
    (sections.methods, "Methods", "All methods", BOTH),
    (next_steps.strengths, "How far?", "How far?", BOTH),
    (sections.thresholds, "Threshold", "Which score threshold to use now", (DETECTION,)),
    (sections.confusions, "Confusions", "What is taken for what", (CLASSIFICATION,)),
    (sections.reliability, "Reliability", "Can its probabilities be believed?", (CLASSIFICATION,)),
    (sections.classes, "Classes", "Which classes gained and lost most", BOTH),
    (sections.statistics, "Why", "Logits and training frequency", BOTH),
    (sections.errors, "Errors", "Which errors it fixes, and which it makes", (DETECTION,)),
    (next_steps.steps, "Next steps", "What to do now", BOTH),
    (sections.provenance, "Provenance", "How it was made", BOTH),
)


@dataclass(frozen=True)
class ReportSummary:
    """What was written.

    Args:
        path: The page.
        method: The method that it looks at closely.
        verdict: What that method changes, in words.
        missing: Sections that could not be made, and why.
    """

    path: Path
    method: str
    verdict: str
    missing: Mapping[str, str] = field(default_factory=dict)


def write_report(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    method: str | None = None,
    images: str | os.PathLike[str] | None = None,
    overwrite: bool = True,
) -> ReportSummary:
    """Write the page of a comparison.

    Args:
        folder: What `logn compare -o` or `Comparison.save` wrote.
        output: The HTML file.
        method: The method to look at closely; by default the first of the comparison.
        images: Folder that the image paths of the annotations start from; by default where the comparison saw them.
        overwrite: Replace a file that is there.

    Example:
        >>> import logn, numpy as np, tempfile
        >>> labels, folder = np.repeat([0, 1, 2], 20), tempfile.mkdtemp()
        >>> logits = 2 * np.eye(3)[labels] + [3.0, 1.0, 0.0]
        >>> logn.compare(logits, labels, ["recommended"], train_logits=logits, counts=[900, 90, 9]).save(folder)
        >>> write_report(folder, f"{folder}/report.html").missing
        {}
    """
    comparison = Comparison.load(folder)
    focus = comparison.focus(method)
    commands = _commands(comparison, folder, focus.name, images, output)
    view = View.of(comparison, focus, None if images is None else Path(images), commands)
    parts, missing = make_sections(view)
    page = render_page(view, parts, **_names(view, Path(folder)))
    write_text(output, page, overwrite=overwrite)
    return ReportSummary(Path(output), focus.name, comparison.verdict(focus.name), missing)


def make_sections(view: View) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """All sections in order, and by its title why one is missing or lacks something."""
    parts: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for section, word, title, tasks in SECTIONS:
        if view.comparison.task not in tasks:
            continue
        part: dict[str, Any] = {"id": section.__name__, "word": word, "title": title, "reason": "", "view": view}
        try:
            part |= section(view)
        except (InputError, MissingExtraError) as error:
            part["reason"] = str(error)
        if lacking := part["reason"] or part.get("lacking"):
            missing[title] = lacking
        parts.append(part)
    return parts, missing


def _names(view: View, folder: Path) -> dict[str, str]:
    """The title of the window, and the line above the headline: which model, on which data, when."""
    comparison, subject = view.comparison, sections.subject(view, folder)
    if view.is_detector:
        measured = comparison.protocol.images or "all images"
    else:
        measured = f"{sum(entry.examples for entry in comparison.classes):,} rows"
    date = comparison.provenance.created.partition(" ")[0]
    line = ["LogN report", subject, f"{len(comparison.classes):,} classes, {measured}", date]
    return {"title": f"LogN report: {view.focus.name}, {subject}", "kicker": " · ".join(filter(None, line))}


def _commands(
    comparison: Comparison,
    folder: str | os.PathLike[str],
    method: str,
    images: str | os.PathLike[str] | None,
    output: str | os.PathLike[str],
) -> tuple[str, ...]:
    """The command that compared the methods, as it was typed, and the one that writes the page; both replace files."""
    where = [] if images is None else ["--images", images]
    again = command("logn", "report", folder, *where, "--method", method, "-o", output, "--overwrite")
    typed = comparison.provenance.command
    replace = [] if "--overwrite" in typed else ["--overwrite"]
    return (*([command(*typed, *replace)] if typed else []), again)


def render_page(view: View, parts: Sequence[Mapping[str, Any]], *, title: str, kicker: str) -> str:
    """Draw the page. Whatever comes from the data is text: no name in it can become code."""
    template = _environment().get_template("page.html.jinja")
    return template.render(
        view=view, top=sections.top(view), parts=parts, title=title, kicker=kicker, version=__version__
    )


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
        points=lambda value: metric_text("", value),
        signed=lambda value: "–" if math.isnan(value) else f"{100 * value:+.1f}",
        thousands="{:,}".format,
        sort_key=sort_key,
        unbroken=unbroken,
    )
    # Style sheet and script go into the page as they are; they are no templates, so braces mean nothing in them.
    environment.globals["file"] = lambda name: loader.get_source(environment, name)[0]
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def _written(value: Any) -> Any:
    """What a template writes for a value: a coordinate for a float; None is a mistake of ours."""
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
