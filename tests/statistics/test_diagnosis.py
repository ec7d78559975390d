"""What the statistics are said to mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import moments_of

from logn.classes.counts import ClassCounts
from logn.errors import InputError, LogNWarning
from logn.statistics.diagnosis import diagnose, spearman
from logn.statistics.moments import ClassMoments


def _moments(means, spreads, **metadata):
    return moments_of(np.random.default_rng(0).standard_normal((400, len(means))) * spreads + means, **metadata)


@settings(deadline=None)
@given(st.permutations(range(9)))
def test_rank_correlation_agrees_with_numpy(order):
    straight = np.arange(9)
    assert spearman(np.exp(order), straight) == pytest.approx(np.corrcoef(order, straight)[0, 1], abs=1e-9)


def test_rank_correlation_shares_ranks_between_equal_values():
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3.5, 3.5.
    assert spearman([1, 2, 2, 3], [1, 2, 3, 3]) == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3.5, 3.5])[0, 1])
    assert np.isnan(spearman([1, 1, 1], [1, 2, 3]))
    assert np.isnan(spearman([1.0], [2.0]))


def test_the_background_is_left_out():
    diagnosis = diagnose(_moments([9.0, -1.0, -3.0], 1.0, background=0, class_names=("bg", "cup", "spoon")))
    assert diagnosis.names == ("cup", "spoon")
    assert diagnosis.mean == pytest.approx([-1, -3], abs=0.2)
    assert diagnosis.background_mean == pytest.approx(9, abs=0.2)
    assert "give the counts" in diagnosis.conclusion


def test_dead_classes_do_not_enter_the_correlation():
    diagnosis = diagnose(_moments([0.0, -50.0, -1.0, -2.0], [1.0, 0.0, 1.0, 1.0]), [1000, 500, 100, 10])
    assert diagnosis.dead == ("class 1",)
    assert diagnosis.mean_with_count == pytest.approx(1.0)


def test_a_file_of_nothing_has_only_dead_classes():
    diagnosis = diagnose(ClassMoments(3), [5, 5, 5])
    assert diagnosis.dead == ("class 0", "class 1", "class 2")
    assert np.isnan(diagnosis.mean_with_count)
    assert "little" in diagnosis.conclusion


COUNTS = np.geomspace(2000, 1, 40).round()


@pytest.mark.parametrize(
    ("means", "words"),
    [
        (np.log(COUNTS), "strongly follow"),
        (-np.log(COUNTS), "reverse"),
        (np.tile([0.0, 1.0], 20), "beyond chance"),
        (np.log(COUNTS) / 4 + np.tile([0.0, 1.5], 20), "partly follow"),
    ],
)
def test_the_conclusion_says_what_the_numbers_say(means, words):
    diagnosis = diagnose(_moments(means, 0.5), COUNTS)
    assert words in diagnosis.conclusion
    assert f"{diagnosis.mean_with_count:+.2f}" in diagnosis.conclusion


def test_counts_are_matched_by_name_and_sorted_for_show():
    moments = _moments([0.0, 1.0, 2.0, 5.0], 1.0, background=-1, class_names=("a", "b", "c", "background"))
    counts = ClassCounts(np.array([500.0, 50.0, 5.0]), names=("c", "a", "b"))
    diagnosis = diagnose(moments, counts)
    assert diagnosis.image_counts.tolist() == [50, 5, 500]
    assert diagnosis.groups.tolist() == ["c", "r", "f"]
    assert diagnosis.order().tolist() == [2, 0, 1]
    assert diagnose(moments).order().tolist() == [2, 1, 0]


def test_names_come_from_the_counts_where_none_were_recorded_and_their_number_must_fit():
    moments = _moments([5.0, 0.0, 1.0], 1.0, background=0)
    with pytest.warns(LogNWarning, match="taken in their order"):
        found = diagnose(moments, ClassCounts(np.array([9.0, 2.0]), names=("cup", "spoon")))
    assert found.names == ("cup", "spoon")
    assert diagnose(moments, [9, 2]).names == ("class 1", "class 2")
    with pytest.raises(InputError, match="3 foreground classes, but got 2"):
        diagnose(_moments([0.0, 1.0, 2.0], 1.0), [1, 2])
