"""The arithmetic of samples: grids, gaps, rates over new starts, roll-ups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines.metrics import align
from machines.metrics.align import Agg, edges_of

NAN = float("nan")
GAP = 25.0


def a(*values: float) -> align.Array:
    return np.array(values, dtype=np.float64)


def is_same(found: align.Array, *expected: float) -> bool:
    return np.allclose(found, a(*expected), equal_nan=True)


# ---- grids


@given(st.floats(0, 2e9), st.floats(1, 1e6), st.sampled_from(align.STEPS))
def test_a_grid_covers_what_was_asked_in_whole_steps(start, seconds, step):
    edges = edges_of(start, start + seconds, step)
    assert edges[0] <= start < edges[0] + step
    assert edges[-1] >= start + seconds > edges[-1] - 2 * step
    assert np.array_equal(edges % step, np.zeros(len(edges)))
    assert np.allclose(np.diff(edges), step)


@pytest.mark.parametrize(
    ("seconds", "least", "step"),
    [(3600, 10, 10), (86400, 10, 300), (900, 10, 10), (7 * 86400, 60, 1800), (900, 60, 60)],
)
def test_the_automatic_step_is_round_and_makes_a_few_hundred_points(seconds, least, step):
    assert align.automatic_step(seconds, least) == step


# ---- gauges


def test_a_gauge_is_the_mean_of_its_step_or_its_extreme_where_that_is_asked_for():
    times, values = a(0, 10, 20, 30, 40, 50, 60), a(1, 2, 3, 4, 5, 9, 100)
    edges = a(0, 30, 60, 90)
    assert is_same(align.gauge(times, values, edges, Agg.AVG, GAP), 2, 6, 100)
    assert is_same(align.gauge(times, values, edges, Agg.MAX, GAP), 3, 9, 100)
    assert is_same(align.gauge(times, values, edges, Agg.MIN, GAP), 1, 4, 100)


def test_a_step_without_samples_is_a_gap_and_no_zero():
    found = align.gauge(a(0, 10, 60), a(1, 1, 1), edges_of(0, 70, 10), Agg.AVG, GAP)
    assert is_same(found, 1, 1, NAN, NAN, NAN, NAN, 1)


def test_a_step_that_is_finer_than_the_samples_keeps_the_value_before():
    found = align.gauge(a(0.5, 10.5, 20.5), a(1, 2, 3), edges_of(0, 21, 5), Agg.AVG, GAP)
    assert is_same(found, 1, 1, 2, 2, 3)


def test_nothing_is_made_up_before_the_first_and_after_the_last_sample():
    found = align.gauge(a(20, 30), a(5, 6), edges_of(0, 60, 10), Agg.AVG, GAP)
    assert is_same(found, NAN, NAN, 5, 6, NAN, NAN)


def test_values_that_are_not_known_do_not_count():
    assert is_same(align.gauge(a(0, 1, 2), a(NAN, 4, NAN), a(0, 10), Agg.AVG, GAP), 4)
    assert is_same(align.gauge(a(0, 1), a(NAN, NAN), a(0, 10), Agg.AVG, GAP), NAN)


samples = st.lists(st.tuples(st.floats(0, 3000), st.floats(0, 1e9)), min_size=1, max_size=80, unique_by=lambda s: s[0])


@given(samples, st.sampled_from([10.0, 60.0, 300.0]))
def test_every_value_of_a_gauge_lies_between_the_least_and_the_largest_of_its_step(found, step):
    times, values = (np.array(column) for column in zip(*sorted(found), strict=True))
    edges = edges_of(0, 3001, step)
    low, mean, high = (align.gauge(times, values, edges, agg, 0) for agg in (Agg.MIN, Agg.AVG, Agg.MAX))
    there = ~np.isnan(mean)
    assert there.sum() == len(set(np.floor(times / step)))
    assert (low[there] <= mean[there] * (1 + 1e-9)).all()
    assert (mean[there] <= high[there] * (1 + 1e-9)).all()


# ---- rates


def test_a_rate_is_the_increase_per_second():
    found = align.rate(a(0, 10, 20, 30), a(0, 100, 200, 600), a(0, 10, 20, 30), GAP)
    assert is_same(found, 10, 10, 40)


def test_a_counter_that_fell_began_anew_from_zero():
    found = align.rate(a(0, 10, 20, 30), a(1000, 1100, 50, 150), a(0, 10, 20, 30), GAP)
    assert is_same(found, 10, 5, 10)


def test_a_rate_is_not_known_across_a_gap():
    found = align.rate(a(0, 10, 100, 110), a(0, 100, 10_000, 10_100), edges_of(0, 110, 10), GAP)
    assert is_same(found, 10, *[NAN] * 9, 10)


def test_a_step_that_is_known_in_part_tells_the_rate_of_that_part():
    assert is_same(align.rate(a(5, 10), a(0, 100), a(0, 60), GAP), 20)


@given(st.lists(st.tuples(st.floats(0.5, 20), st.integers(0, 10**12), st.booleans()), min_size=2, max_size=60))
def test_the_steps_of_a_rate_add_up_to_what_the_counter_grew_whatever_its_new_starts(found):
    times = np.cumsum([passed for passed, _, _ in found])
    values, total, counter = [], 0.0, 0.0
    for place, (_, grown, restarts) in enumerate(found):
        counter = grown if restarts else counter + grown
        if place:
            before = values[-1]
            total += counter - before if counter >= before else counter
        values.append(float(counter))
    edges = edges_of(times[0], times[-1], 10)
    rates = align.rate(times, np.array(values), edges, GAP)
    covered = np.clip(np.minimum(edges[1:], times[-1]) - np.maximum(edges[:-1], times[0]), 0, None)
    assert (rates[~np.isnan(rates)] >= 0).all()
    assert np.nansum(rates * covered) == pytest.approx(total, rel=1e-6, abs=1e-3)


# ---- together


def test_series_are_combined_over_what_is_known_of_them():
    rows = np.array([[1.0, NAN, NAN], [3.0, 5.0, NAN]])
    assert is_same(align.combine(rows, Agg.SUM), 4, 5, NAN)
    assert is_same(align.combine(rows, Agg.AVG), 2, 5, NAN)
    assert is_same(align.combine(rows, Agg.MAX), 3, 5, NAN)
    assert is_same(align.combine(rows, Agg.MIN), 1, 5, NAN)


# ---- roll-ups

value = st.one_of(st.just(NAN), st.floats(0, 1e6))
tables = st.lists(st.tuples(st.floats(0, 7200), value, value), min_size=1, max_size=120, unique_by=lambda row: row[0])


@given(tables)
@settings(max_examples=200)
def test_a_roll_up_keeps_means_extremes_and_the_last_of_a_counter(rows):
    table = np.array(sorted(rows), dtype=np.float64)
    rolled = align.rolled(table, np.array([False, True]), 60)
    assert list(rolled[:, 0]) == sorted(set(np.floor(table[:, 0] / 60) * 60))
    for time, mean, last, low, first, high, when in rolled:
        inside = table[(table[:, 0] >= time) & (table[:, 0] < time + 60)]
        gauge = inside[~np.isnan(inside[:, 1]), 1]
        counted = inside[~np.isnan(inside[:, 2])]
        if len(gauge):
            assert (low, high) == (gauge.min(), gauge.max())
            assert mean == pytest.approx(gauge.mean(), abs=1e-6)
        else:
            assert np.isnan([mean, low, high]).all()
        if len(counted):
            assert (last, first, when) == (counted[-1, 2], counted[0, 2], counted[-1, 0])
        else:
            assert np.isnan([last, first, when]).all()


@given(tables)
def test_rolling_up_twice_keeps_extremes_and_last_values_as_rolling_up_once_does(rows):
    table = np.array(sorted(rows), dtype=np.float64)
    counters = np.array([False, True])
    once = align.rolled(table, counters, 600)
    twice = align.rolled(align.rolled(table, counters, 60), counters, 600)
    exact = [0, 2, 3, 4, 5, 6]  # all but the mean of a gauge: that is of minutes, not of samples
    assert np.array_equal(once[:, exact], twice[:, exact], equal_nan=True)
    assert np.array_equal(np.isnan(once[:, 1]), np.isnan(twice[:, 1]))
