"""The evidence as tables: each method over all detectors, detector by detector, and how good the advice is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from evidence import MAIN, METHODS, TUNED, Evidence

from logn.experiments.formatting import half_width

BASELINE, OURS, PAPER = "none", "LogN balanced", "LogN (paper)"


def changes(
    evidence: Iterable[Evidence],
    method: str,
    metric: str = "AP",
    *,
    protocol: str = "federated",
    against: str = BASELINE,
) -> list[float]:
    """Change of a metric by a method against no correction or another one, in points, for each detector that has it.

    Example:
        >>> measured = {"none": {"AP": 0.20}, "NorCal": {"AP": 0.23}}
        >>> one = Evidence("a", {}, measured, measured, {}, {}, {})
        >>> [round(change, 3) for change in changes([one], "NorCal")]
        [3.0]
    """
    found = []
    for one in evidence:
        values: Mapping[str, Mapping[str, float]] = getattr(one, protocol)
        if method in values and metric in values[method]:
            found.append(100 * (values[method][metric] - values[against][metric]))
    return found


def kinds_of(evidence: Iterable[Evidence]) -> dict[str, list[Evidence]]:
    """The detectors of each kind, which differ only in their seed.

    Example:
        >>> found = [Evidence(name, {}, {}, {}, {}, {}, {}) for name in ("linear-s0", "linear-s1", "normed-s0")]
        >>> {kind: len(members) for kind, members in kinds_of(found).items()}
        {'linear': 2, 'normed': 1}
    """
    kinds: dict[str, list[Evidence]] = {}
    for one in evidence:
        kinds.setdefault(one.name.rpartition("-s")[0], []).append(one)
    return kinds


def mean_and_interval(evidence: Iterable[Evidence], method: str, *, against: str = BASELINE) -> str:
    """Mean change of AP over all detectors, with its 95 % interval over kinds of detector.

    Two seeds of a kind change nearly alike: as two independent values they would make the interval too narrow.

    Example:
        >>> measured = [{"none": {"AP": 0.20}, "NorCal": {"AP": 0.20 + gain}} for gain in (0.02, 0.03, 0.04, 0.05)]
        >>> names = ("linear-s0", "linear-s1", "normed-s0", "normed-s1")
        >>> found = [Evidence(name, {}, one, one, {}, {}, {}) for name, one in zip(names, measured)]
        >>> mean_and_interval(found, "NorCal")
        '+3.5 ± 12.7'
    """
    evidence = list(evidence)
    of_kinds = [changes(members, method, against=against) for members in kinds_of(evidence).values()]
    mean = statistics.fmean(changes(evidence, method, against=against))
    width = half_width([statistics.fmean(found) for found in of_kinds if found])
    return f"{mean:+.1f}" if math.isnan(width) else f"{mean:+.1f} ± {width:.1f}"


def method_table(evidence: Sequence[Evidence]) -> str:
    """One row per method: mean changes over all detectors, and how many it makes better and worse."""
    header = ["method", "AP", "worst", "best", "raised", "APr", "APc", "APf", "AP exhaustive", "AP-Fixed", "AP-mask"]
    lines = [_row(header), _row(["---"] + ["---:"] * (len(header) - 1))]
    for method in (*METHODS, *TUNED):
        change = changes(evidence, method)
        if method == BASELINE or not change:
            continue
        cells = [method, mean_and_interval(evidence, method), f"{min(change):+.1f}", f"{max(change):+.1f}"]
        cells.append(f"{sum(value > 0 for value in change)} of {len(change)}")
        cells += [_mean(changes(evidence, method, metric)) for metric in ("APr", "APc", "APf")]
        cells.append(_mean(changes(evidence, method, protocol="exhaustive")))
        cells += [_mean(changes(evidence, method, metric)) for metric in ("AP-Fixed", "AP-mask")]
        lines.append(_row(cells))
    return "\n".join(lines)


def configuration_table(evidence: Sequence[Evidence], *, protocol: str = "federated") -> str:
    """One row per kind of detector, the mean over its seeds with half the range: AP of the main methods."""
    methods = [*MAIN, *TUNED]
    lines = [_row(["detector", "seeds", *methods]), _row(["---"] + ["---:"] * (len(methods) + 1))]
    for kind, members in sorted(kinds_of(evidence).items()):
        cells = [kind, str(len(members))]
        best = max(
            (_seed_mean(members, method, protocol) for method in methods if _has(members, method, protocol)),
            default=0.0,
        )
        for method in methods:
            if not _has(members, method, protocol):
                cells.append("–")
                continue
            values = [100 * getattr(one, protocol)[method]["AP"] for one in members]
            text = f"{statistics.fmean(values):.1f}"
            text = f"**{text}**" if _seed_mean(members, method, protocol) == best else text
            cells.append(text + (f" ± {(max(values) - min(values)) / 2:.1f}" if len(values) > 1 else ""))
        lines.append(_row(cells))
    return "\n".join(lines)


def clearly_lowered(evidence: Iterable[Evidence], method: str) -> list[str]:
    """Detectors whose AP a method lowers beyond the noise: the 95 % interval over test images lies below 0."""
    return [one.name for one in evidence if method in one.intervals and one.intervals[method][1] < 0]


def advice_record(evidence: Iterable[Evidence]) -> dict[str, int]:
    """How the advised form did on test: count of detectors, not worse than none, best of the forms within 0.5 AP."""
    record = {"detectors": 0, "not worse than none": 0, "better than the paper's form": 0, "within 0.5 of the best": 0}
    for one in evidence:
        name = next((name for name, spec in METHODS.items() if spec == one.advice.get("form")), None)
        if name is None:
            continue
        precision = {method: 100 * values["AP"] for method, values in one.federated.items()}
        forms = [value for method, value in precision.items() if METHODS.get(method, "").startswith(("logn", "none"))]
        record["detectors"] += 1
        record["not worse than none"] += precision[name] >= precision[BASELINE]
        record["better than the paper's form"] += precision[name] > precision[PAPER]
        record["within 0.5 of the best"] += precision[name] >= max(forms) - 0.5
    return record


def summary(evidence: Sequence[Evidence]) -> str:
    """The findings in sentences, computed from the numbers."""
    ours, rival = changes(evidence, OURS), changes(evidence, "NorCal")
    gain = {method: mean_and_interval(evidence, method) for method in (OURS, "NorCal", PAPER)}
    lowered = {method: clearly_lowered(evidence, method) for method in (OURS, PAPER, "NorCal")}
    lines = [
        f"Over {len(evidence)} trained detectors, AP on test changes by {gain[OURS]} with the balanced form, by "
        f"{gain['NorCal']} with NorCal as published, and by {gain[PAPER]} with the paper's form (mean over detectors, "
        f"95 % interval over their {len(kinds_of(evidence))} kinds, since two seeds of a kind are much alike).",
        f"The balanced form is above NorCal on {sum(a > b for a, b in zip(ours, rival, strict=True))} of "
        f"{len(ours)} detectors, by {mean_and_interval(evidence, OURS, against='NorCal')} on average.",
    ]
    for method, names in lowered.items():
        listed = f": {', '.join(names)}" if 0 < len(names) <= 6 else ""
        lines.append(
            f"{method} lowers AP beyond the noise of the test images on {len(names)} of {len(evidence)}{listed}."
        )
    return "\n".join(f"- {line}" for line in lines)


def _has(members: Sequence[Evidence], method: str, protocol: str) -> bool:
    return all(method in getattr(one, protocol) for one in members)


def _seed_mean(members: Sequence[Evidence], method: str, protocol: str) -> float:
    return statistics.fmean(getattr(one, protocol)[method]["AP"] for one in members)


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):+.1f}" if values else "–"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
