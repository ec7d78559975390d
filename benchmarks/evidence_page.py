"""The page docs/when-it-helps.md, written from the measured numbers."""

from __future__ import annotations

from collections.abc import Sequence

from evidence import METHODS, TUNED, Evidence
from evidence_tables import advice_record, configuration_table, method_table, summary

_PAGE = """\
# When it helps, and when not

<!-- Written by benchmarks/when_it_helps.py; change the text there, not here. -->

What does each correction do to detectors that differ in head, sampler and data? {count} small detectors were trained
on [glyph scenes](glyph-scenes.md) (100 classes, 2,400 training images, {iterations} iterations), and every method was
applied to the same proposals of each. Rivals run with their published defaults; in the rows marked *tuned* the
parameter was chosen on dev. Every number below is from test.
**Real LVIS has not been run**: glyph scenes are small pictures of symbols, and what holds here need not hold there.
[On photographs](real-images.md) it does not: the balanced form gains next to nothing there.

```sh
python benchmarks/when_it_helps.py --root runs/bench --jobs 2     # trains and measures; hours, resumes
python benchmarks/when_it_helps.py --from-data                    # this page from docs/results/when-it-helps.json
```

{summary}

![Change of AP and APr by each method, one dot per detector](images/when-it-helps.png)

## Every method over all detectors

Change in points against no correction: mean with its 95 % interval over kinds of detector, the worst and the best
detector, and on how many AP rises. APr, APc, APf are of rare, common and frequent classes, under federated labels with
300 detections per image; then AP where every class is labelled in every image (exhaustive), [AP-Fixed](protocols.md)
(no limit per image), and AP of masks.

{methods}

What each row is, as `logn compare --method` takes it:

{names}
{tuned}

## Detector by detector

AP under federated labels, mean over seeds ± half their range. A name is made of data (families of look-alikes, or
distinct glyphs), head (cosine 20: normalised, temperature 20), sampler (rfs: repeat factor sampling) and loss (ce:
cross-entropy).

{configurations}

The same where every class is labelled in every image:

{exhaustive}

For image classifiers, see [the ImageNet-LT table](results/imagenet-lt.md) on glyph classes: there logit adjustment
gains more than LogN. Losses, for which the detector is trained again, are in [table 1](results/table1.md).
[Other label-free forms](forms-on-dev.md) were tried on dev.

## How good the advice is

`logn inspect` recommends a form from the statistics alone, without labels and counts ([diagnosis](diagnosis.md)).
These numbers are of the rule as it was before photographs were measured, when it knew one form, `logn:balanced`.
{advice} Its thresholds were set on dev images of some of these detectors, so this is no proof that they fit other
detectors.
"""


def evidence_page(evidence: Sequence[Evidence]) -> str:
    """The whole page as Markdown."""
    record = advice_record(evidence)
    forms = sorted({str(one.advice.get("form")) for one in evidence})
    total = record.pop("detectors")
    advice = (
        f"On the {total} detectors here it said {' or '.join(f'`{form}`' for form in forms)}. "
        "On test the advised form was "
        + ", ".join(f"{name} on {value} of {total}" for name, value in record.items())
        + "."
    )
    return _PAGE.format(
        count=len(evidence),
        iterations="/".join(sorted({str(one.settings["iterations"]) for one in evidence})),
        summary=summary(evidence),
        methods=method_table(evidence),
        names="\n".join(f"- {name}: `{spec}`" for name, spec in METHODS.items() if name != "none"),
        tuned="\n".join(f"- {name}: `{form.format('…')}`" for name, (form, _) in TUNED.items()),
        configurations=configuration_table(evidence),
        exhaustive=configuration_table(evidence, protocol="exhaustive"),
        advice=advice,
    )
