"""Signs of a bias against the tail, without labels and counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logn.statistics.diagnosis import chance_correlation, tail_bias
from logn.statistics.metadata import StatisticsMetadata
from logn.statistics.moments import ClassMoments


def recorded(means, stds, *, rows=4000, sample_rows=2000, background=None):
    moments = ClassMoments(len(means), sample_rows=sample_rows, metadata=StatisticsMetadata(background=background))
    moments.update(np.random.default_rng(0).standard_normal((rows, len(means))) * stds + means)
    return moments


def test_level_classes_show_nothing():
    bias = tail_bias(recorded(np.zeros(40), np.ones(40)))
    assert bias.mean_spread < 0.05
    assert bias.std_spread < 0.05
    assert abs(bias.mean_std_correlation) < 2 * chance_correlation(40)
    assert bias.starved_share == 0


def test_a_tail_shows_in_every_sign():
    classes = np.arange(40)
    bias = tail_bias(recorded(-classes / 10, 2 - classes / 40))
    # Between the 16th and the 84th percentile lie 0.68 of forty steps of 0.1; the median spread is 1.5.
    assert bias.mean_spread == pytest.approx(0.68 * 39 * 0.1 / 2 / 1.5, rel=0.05)
    assert bias.std_spread == pytest.approx(0.68 * 39 / 40 / 2 / 1.5, rel=0.1)
    assert bias.mean_std_correlation > 0.99
    assert bias.starved_share > 0.3


@settings(deadline=None, max_examples=25)
@given(st.floats(0.01, 50.0), st.floats(-20.0, 20.0))
def test_a_common_scale_and_shift_change_nothing(scale, shift):
    means, stds = np.array([0.0, -1.0, -1.5, -3.0, -4.0]), np.array([2.0, 1.8, 1.2, 1.0, 0.7])
    one, other = tail_bias(recorded(means, stds)), tail_bias(recorded(means * scale + shift, stds * scale))
    assert other.mean_spread == pytest.approx(one.mean_spread, rel=1e-6)
    assert other.std_spread == pytest.approx(one.std_spread, rel=1e-6)
    assert other.mean_std_correlation == one.mean_std_correlation


def test_one_odd_class_sets_no_spread():
    level = recorded(np.zeros(40), np.ones(40))
    odd = recorded(np.r_[np.zeros(39), -80.0], np.r_[np.ones(39), 30.0])
    assert tail_bias(odd).mean_spread == pytest.approx(tail_bias(level).mean_spread, abs=0.02)
    assert tail_bias(odd).std_spread == pytest.approx(tail_bias(level).std_spread, abs=0.02)


def test_background_and_dead_classes_do_not_take_part():
    means, stds = np.array([30.0, 0.0, -1.0, -60.0, -2.0]), np.array([9.0, 1.0, 1.0, 0.0, 1.0])
    bias = tail_bias(recorded(means, stds, background=0))
    assert bias.classes == 3
    assert bias.mean_spread == pytest.approx(0.68, abs=0.05)
    assert tail_bias(recorded(means, stds, background=0), background=None).classes == 4


def test_a_small_sample_starves_classes_by_chance():
    level = tail_bias(recorded(np.zeros(400), np.ones(400), rows=800, sample_rows=400))
    # With one row a class, equal classes win nothing with probability 1/e.
    assert level.starved_by_chance == pytest.approx(np.exp(-1), abs=1e-12)
    assert level.starved_share == pytest.approx(level.starved_by_chance, abs=0.08)


def test_chance_agrees_with_a_sum_of_poisson_probabilities():
    bias = tail_bias(recorded(np.zeros(20), np.ones(20), rows=1000, sample_rows=600))
    drawn = np.random.default_rng(0).poisson(30, 200_000)
    assert bias.starved_by_chance == pytest.approx((drawn < 3).mean(), abs=1e-4)


def test_without_rows_only_the_moments_speak():
    bias = tail_bias(recorded([0.0, -1.0, -2.0], [1.0, 1.0, 1.0], sample_rows=0))
    assert bias.mean_spread > 0
    assert np.isnan(bias.starved_share)
    assert bias.rows == 0


def test_an_empty_file_has_no_numbers():
    bias = tail_bias(ClassMoments(4, sample_rows=10))
    assert bias.classes == 0
    assert np.isnan(bias.mean_spread)


def test_a_class_is_starved_below_a_tenth_of_its_fair_share():
    wins = np.repeat(np.arange(4), [290, 90, 11, 9])  # 100 each would be fair
    moments = ClassMoments(4, sample_rows=400)
    moments.update(np.eye(4)[wins] + 0.01 * np.random.default_rng(0).random((400, 4)))
    assert tail_bias(moments).starved_share == 0.25
