"""A class mix given to a comparison reaches every method that can aim at one."""

import numpy as np

import logn
from logn.evaluate.comparison.comparison import CompareSettings


def maps_of(found):
    return {row.name: row.transform for row in found.rows}


def test_a_target_reaches_all_methods_that_can_aim(softmax_split):
    mix = logn.ClassCounts(np.arange(1.0, 11.0), names=tuple(f"thing {number}" for number in reversed(range(10))))
    settings = CompareSettings(num_bootstrap=0)
    found = maps_of(
        logn.compare(
            softmax_split.store,
            softmax_split.annotations,
            ["loga", "norcal:target=uniform"],
            settings=settings,
            counts=softmax_split.counts,
            target=mix,
        )
    )
    counts = softmax_split.counts.instance_counts
    assert found["loga"] == logn.methods.logit_adjustment(counts, background=-1, target=np.arange(10.0, 0.0, -1.0))
    assert found["norcal:target=uniform"] == logn.methods.norcal(counts, background=-1)
