"""Data of the figures on kinds of error: a method before and after, and LogN part by part."""

from __future__ import annotations

from collections.abc import Mapping

from logn.errors import InputError
from logn.evaluate.comparison.compare import compare
from logn.evaluate.comparison.method_fitting import fit_for_store
from logn.evaluate.comparison.method_result import MethodResult
from logn.evaluate.comparison.settings import CompareSettings
from logn.report.run_folder import Run

# The parts of LogN as the paper's error analysis takes them: mean, spread and margin, each alone, then all. `{min}` is
# the smallest class mean.
COMPONENTS: Mapping[str, str] = {
    "Baseline": "none",
    "+ mean": "logn:margin=0,use_std=false",
    "+ std": "logn:margin=0,strength=0",
    "+ margin": "logn:margin={min},strength=0,use_std=false",
    "LogN (all)": "logn",
}

Errors = Mapping[str, float]


def error_pair(run: Run, method: str | None = None) -> dict[str, Errors]:
    """Kinds of error of the uncorrected model and of a method, by name, as the comparison found them."""
    comparison = run.comparison
    focus = comparison.focus(method)
    return {"Baseline": known_errors(comparison.baseline), focus.name: known_errors(focus)}


def known_errors(row: MethodResult) -> Errors:
    """AP50 and what mending each kind of error would add: over all images, or over those that were looked at."""
    if row.tide is None:
        raise InputError(
            "Expected the comparison to have kinds of error, but it has none; compare again (`logn compare --errors`)."
        )
    return row.tide


def error_components(run: Run) -> dict[str, Errors]:
    """Kinds of error of the uncorrected model, of each part of LogN alone, and of all of it.

    These are no methods that people compare, so this figure has a comparison of its own, made from the predictions.
    """
    made = run.comparison.settings if run.has("comparison") else CompareSettings()
    paper = fit_for_store("logn", run.store.header, moments=run.moments)
    specs = {title: spec.format(min=paper.settings["margin_value"]) for title, spec in COMPONENTS.items()}
    comparison = compare(
        run.store,
        run.path("annotations"),
        list(specs.values()),
        settings=CompareSettings(
            made.style,
            made.decode,
            num_bootstrap=0,
            errors=True,
            bounds=made.bounds,
            only_predicted=True,
            report_images=0,
        ),
        moments=run.moments,
        counts=run.counts if run.has("counts") else None,
    )
    return {title: known_errors(comparison[spec]) for title, spec in specs.items()}
