"""Data of the figures on kinds of error: a method before and after, and LogN part by part."""

from __future__ import annotations

from collections.abc import Mapping

from logn.errors import InputError
from logn.evaluate.compare import compare
from logn.evaluate.compare_settings import CompareSettings
from logn.report.before_after import decode_settings
from logn.report.run_folder import Run

# The parts of LogN as the paper's error analysis takes them: mean, spread and margin, each alone, then all.
COMPONENTS: Mapping[str, str] = {
    "Baseline": "none",
    "+ mean": "logn:margin=0,use_std=false",
    "+ std": "logn:margin=0,use_mean=false",
    "+ margin": "logn:margin=min,use_mean=false,use_std=false",
    "LogN (all)": "logn",
}

Errors = Mapping[str, float]


def error_pair(run: Run, method: str | None = None) -> dict[str, Errors]:
    """Kinds of error of the uncorrected model and of a method, by name: as compared, or computed now."""
    focus = run.comparison.focus(method)
    baseline = run.comparison.baseline
    if baseline.errors is not None and focus.errors is not None:
        return {"Baseline": baseline.errors, focus.name: focus.errors}
    found = measured_errors(run, [focus.name])
    return {"Baseline": found["none"], focus.name: found[focus.name]}


def error_components(run: Run) -> dict[str, Errors]:
    """Kinds of error of the uncorrected model, of each part of LogN alone, and of all of it."""
    if not run.has("statistics"):
        raise InputError(run.missing("statistics"))
    specs = list(dict.fromkeys(COMPONENTS.values()))
    found = measured_errors(run, specs)
    return {title: found[spec] for title, spec in COMPONENTS.items()}


def measured_errors(run: Run, specs: list[str]) -> dict[str, Errors]:
    """Decode the predictions under each method and find the kinds of error."""
    style, settings = "lvis", CompareSettings().decode
    if run.has("comparison"):
        style, settings = run.comparison.protocol["style"], decode_settings(run)
    comparison = compare(
        run.store,
        run.path("annotations"),
        specs,
        settings=CompareSettings(style=style, decode=settings, draws=0, errors=True, only_predicted=True),
        **run.fit_inputs(),
    )
    return {
        row.name: {"AP50": row.errors.base, **row.errors.gains} for row in comparison.rows if row.errors is not None
    }
