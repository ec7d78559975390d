"""What a comparison found, in words that claim no more than the intervals allow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from logn.evaluate.detection.bootstrap import Interval

VERDICT_METRICS = ("APr", "APc", "APf", "AP")
# What the verdict on a classifier is about, and what to call it there.
CLASSIFIER_VERDICTS = {
    "few": "few-shot accuracy",
    "medium": "medium-shot accuracy",
    "many": "many-shot accuracy",
    "top-1": "overall accuracy",
}


def describe_changes(name: str, differences: Mapping[str, Interval], metrics: tuple[str, ...] = VERDICT_METRICS) -> str:
    """Say which of `metrics` a method raises, which it lowers, and of which neither can be said.

    Example:
        >>> describe_changes("logn", {"APr": Interval(0.041, 0.02, 0.063), "APf": Interval(-0.003, -0.009, 0.002)})
        'logn raises APr by 4.1 [2.0, 6.3]; no clear change in APf (-0.3 [-0.9, 0.2]).'
        >>> describe_changes("logn", {"APf": Interval(-0.028, -0.038, -0.018)})
        'logn lowers APf by 2.8 [1.8, 3.8].'
        >>> describe_changes("logn", {"AP": Interval(0.0002, 0.0001, 0.0003)})
        'logn makes no clear difference; no clear change in AP (+0.0 [0.0, 0.0]).'
        >>> describe_changes("logn", {"AP": Interval(0.01, float("nan"), float("nan"))})
        'logn changes AP by +1.0, without intervals to say how sure that is.'
    """
    changes = {
        metric: differences[metric]
        for metric in metrics
        if metric in differences and not math.isnan(differences[metric].difference)
    }
    if not changes:
        return f"Nothing can be said about {name}: no metric was measured."
    if all(math.isnan(change.low) for change in changes.values()):
        listed = join_words(f"{metric} by {100 * change.difference:+.1f}" for metric, change in changes.items())
        return f"{name} changes {listed}, without intervals to say how sure that is."
    # What is sure, and yet 0.0 when it is written, is no change to speak of.
    told = {metric for metric, change in changes.items() if change.is_clear and abs(change.difference) >= 0.0005}
    raised = [_amount(metric, change) for metric, change in changes.items() if metric in told and change.low > 0]
    lowered = [_amount(metric, change) for metric, change in changes.items() if metric in told and change.high < 0]
    unclear = [
        f"{metric} ({100 * change.difference:+.1f} {interval_text(change)})"
        for metric, change in changes.items()
        if metric not in told
    ]
    verbs = [f"{verb} {join_words(amounts)}" for verb, amounts in (("raises", raised), ("lowers", lowered)) if amounts]
    clear = f"{name} {' and '.join(verbs)}" if verbs else f"{name} makes no clear difference"
    return f"{clear}; no clear change in {join_words(unclear)}." if unclear else f"{clear}."


def describe_classifier(
    name: str, differences: Mapping[str, Interval], before: Mapping[str, float], after: Mapping[str, float]
) -> str:
    """Say what a method changes of a classifier: its accuracies, and whether its probabilities still mean something.

    Args:
        name: The method.
        differences: Of each metric to the uncorrected model.
        before: Metrics of the uncorrected model.
        after: Metrics of the method.
    """
    called = {title: differences[metric] for metric, title in CLASSIFIER_VERDICTS.items() if metric in differences}
    changes = describe_changes(name, called, tuple(CLASSIFIER_VERDICTS.values()))
    confidence = f"{100 * before['confidence']:.1f} to {100 * after['confidence']:.1f}"
    return f"{changes} {describe_calibration(before, after)}, its mean confidence goes from {confidence}."


def describe_calibration(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Say whether scores mean less than before, without the stop.

    Example:
        >>> describe_calibration({"ECE": 0.062}, {"ECE": 0.19})
        'Its calibration error (ECE) rises from 6.2 to 19.0'
    """
    one, two = before["ECE"], after["ECE"]
    if math.isnan(one) or math.isnan(two):
        return "Its calibration error (ECE) could not be measured"
    if math.isclose(one, two, abs_tol=5e-4):
        return f"Its calibration error (ECE) stays at {100 * two:.1f}"
    return f"Its calibration error (ECE) {'falls' if two < one else 'rises'} from {100 * one:.1f} to {100 * two:.1f}"


def tone(change: Interval) -> str:
    """Whether a change is a clear gain or a clear loss: only what the whole interval makes sure is coloured.

    Example:
        >>> tone(Interval(0.02, 0.01, 0.03)), tone(Interval(0.02, -0.01, 0.03)), tone(Interval(-0.1, -0.2, -0.05))
        ('up', 'flat', 'down')
    """
    if change.low > 0:
        return "up"
    return "down" if change.high < 0 else "flat"


def _amount(metric: str, change: Interval) -> str:
    """By how much, without a sign: the verb has it, and so the ends of the interval have none either."""
    low, high = sorted((abs(change.low), abs(change.high)))
    return f"{metric} by {in_points(abs(change.difference))} [{in_points(low)}, {in_points(high)}]"


def interval_text(change: Interval) -> str:
    """Write the ends of an interval in points.

    Example:
        >>> interval_text(Interval(0.02, -0.01, 0.05))
        '[-1.0, 5.0]'
    """
    return f"[{in_points(change.low)}, {in_points(change.high)}]"


def in_points(value: float) -> str:
    """A value between -1 and 1 in points, where a zero has no sign.

    Example:
        >>> in_points(-0.0283), in_points(-0.0002)
        ('-2.8', '0.0')
    """
    return f"{round(100 * value, 1) + 0.0:.1f}"


def join_words(words: Iterable[str]) -> str:
    """Join with commas and a last "and".

    Example:
        >>> join_words(["a", "b", "c"])
        'a, b and c'
    """
    listed = list(words)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
