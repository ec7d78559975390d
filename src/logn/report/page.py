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
from logn.measure.comparison.comparison import CLASSIFICATION, DETECTION, Comparison, MethodResult
from logn.report import next_steps, sections
from logn.report.gallery import gallery
from logn.report.svg import number

if TYPE_CHECKING:
    from jinja2 import Environment

# Sections in the order of the page: the function and template macro, the word in the bar of contents, the title.
COMMON_END = (
    ("classes", "Classes", "Which classes gained and lost most"),
    ("statistics", "Why", "Logits and training frequency"),
)
HOW_FAR = ("strengths", "How far?", "How far?")
LAST = (("steps", "Next steps", "What to do now"), ("provenance", "Provenance", "How it was made"))
CONTENTS = {
    DETECTION: (
        ("gallery", "Images", "See it"),
        ("methods", "Methods", "All methods"),
        HOW_FAR,
        ("thresholds", "Threshold", "Which score threshold to use now"),
        *COMMON_END,
        ("errors", "Errors", "Which errors it fixes, and which it makes"),
        *LAST,
    ),
    CLASSIFICATION: (
        ("methods", "Methods", "All methods"),
        HOW_FAR,
        ("confusions", "Confusions", "What is taken for what"),
        ("reliability", "Reliability", "Can its probabilities be believed?"),
        *COMMON_END,
        *LAST,
    ),
}


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
    try:
        parts, missing = make_sections(comparison, focus, None if images is None else Path(images))
        of_provenance = parts[-1]
        of_provenance["commands"] = _commands(comparison, folder, focus.name, images, output)
        page = render_page(sections.top(comparison, focus), parts, **_names(comparison, focus, Path(folder)))
        summary = ReportSummary(Path(output), focus.name, comparison.verdict(focus.name), missing)
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # Fields that any value may be in, such as those of the provenance, are checked by whoever shows them.
        raise InputError(
            f"The page of `{folder}` cannot be drawn ({type(error).__name__}: {error}): its `comparison.json` is not "
            "as `logn compare -o` writes it. Compare again."
        ) from error
    write_text(output, page, overwrite=overwrite)
    return summary


def make_sections(
    comparison: Comparison, focus: MethodResult, images: Path | None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """All sections in order, and the reason for each missing one by its title."""
    parts: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for name, word, title in CONTENTS[comparison.task]:
        part: dict[str, Any] = {"id": name, "word": word, "title": title, "reason": ""}
        try:
            if name == "gallery":
                content, lacking = gallery(comparison, focus, images)
                missing |= {title: lacking} if lacking else {}
            else:
                module = next_steps if name in ("strengths", "steps") else sections
                content = getattr(module, name)(comparison, focus)
            part |= content
        except (InputError, MissingExtraError) as error:
            missing[title] = part["reason"] = str(error)
        parts.append(part)
    return parts, missing


def _names(comparison: Comparison, focus: MethodResult, folder: Path) -> dict[str, str]:
    """The title of the window, and the line above the headline: which model, on which data, when."""
    subject = sections.subject(comparison, folder)
    if comparison.task == CLASSIFICATION:
        measured = f"{sum(entry.examples for entry in comparison.classes):,} rows"
    else:
        measured = comparison.protocol.images or "all images"
    date = comparison.provenance.created.partition(" ")[0]
    line = ["LogN report", subject, f"{len(comparison.classes):,} classes, {measured}", date]
    return {"title": f"LogN report: {focus.name}, {subject}", "kicker": " · ".join(filter(None, line))}


def _commands(
    comparison: Comparison,
    folder: str | os.PathLike[str],
    method: str,
    images: str | os.PathLike[str] | None,
    output: str | os.PathLike[str],
) -> list[str]:
    """The command that compared the methods, as it was typed, and the one that writes the page; both replace files."""
    where = [] if images is None else ["--images", images]
    again = command("logn", "report", folder, *where, "--method", method, "-o", output, "--overwrite")
    typed = comparison.provenance.command
    replace = [] if "--overwrite" in typed else ["--overwrite"]
    return [*([command(*typed, *replace)] if typed else []), again]


def render_page(top: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], *, title: str, kicker: str) -> str:
    """Draw the page. Whatever comes from the data is text: no name in it can become code."""
    template = _environment().get_template("page.html.jinja")
    return template.render(top=top, parts=parts, title=title, kicker=kicker, version=__version__)


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
        points=lambda value: sections.metric_text("", value),
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
