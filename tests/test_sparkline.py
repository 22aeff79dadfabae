"""A curve in one line: its scale, its marks, and what survives the cut to a width."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.sparkline import sparkline

POSITIVE = st.floats(1e-200, 1e200)


def test_the_scale_is_logarithmic() -> None:
    assert sparkline([10.0**k for k in range(8)]) == "▁▂▃▄▅▆▇█"
    assert sparkline([float(k) for k in range(1, 9)]) != "▁▂▃▄▅▆▇█"


def test_zero_and_what_has_no_logarithm_are_marked() -> None:
    assert sparkline([1.0, 0.0, math.inf, math.nan, -1.0, 10.0]) == "▁·×××█"


@pytest.mark.parametrize("value", [1e-300, 1.0, 7.5, 1e300])
def test_a_constant_curve_is_flat_in_the_middle(value: float) -> None:
    assert sparkline([value] * 5) == "▄▄▄▄▄"
    assert sparkline([value, value * (1 + 1e-9)]) == "▄▄"
    assert sparkline([value, value * 1.01]) == "▁█"


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], ""), ([0.0, 0.0], "··"), ([math.nan], "×"), ([math.inf, 0.0], "×·"), ([5.0], "▄")],
)
def test_curves_with_nothing_to_scale(values: list[float], expected: str) -> None:
    assert sparkline(values) == expected


@pytest.mark.parametrize(("spike", "mark"), [(1e6, "█"), (1e-6, "▁"), (0.0, "·"), (math.inf, "×")])
def test_one_odd_value_among_thousands_survives(spike: float, mark: str) -> None:
    values = [1.0 + (i % 7) / 10 for i in range(5000)]
    even = sparkline(values)
    values[3210] = spike
    line = sparkline(values)
    assert len(line) == len(even) == 48
    assert even.count(mark) != 1
    assert line.count(mark) == 1
    assert line.index(mark) == 3210 * 48 // 5000


def test_what_is_not_finite_wins_its_bucket_over_zero() -> None:
    assert sparkline([0.0, math.nan, 1.0, 0.0], width=2) == "×·"


@given(st.lists(POSITIVE, min_size=1, max_size=300), st.integers(1, 60))
def test_extremes_survive_unless_a_farther_one_shares_the_bucket(
    values: list[float], width: int
) -> None:
    line = sparkline(values, width)
    count = min(width, len(values))
    assert len(line) == count
    logs = [math.log10(x) for x in values]
    low, high, middle = min(logs), max(logs), statistics.median(logs)
    if high - low < 0.01:
        return
    edges = [len(logs) * i // count for i in range(count + 1)]
    buckets = [logs[a:b] for a, b in itertools.pairwise(edges)]
    for bucket, mark in zip(buckets, line, strict=True):
        if high in bucket and high - middle > middle - min(bucket):
            assert mark == "█"
        if low in bucket and middle - low > max(bucket) - middle:
            assert mark == "▁"


@given(st.lists(POSITIVE, min_size=1, max_size=60), st.integers(-100, 100))
def test_a_power_of_ten_moves_no_bar_by_more_than_rounding(values: list[float], power: int) -> None:
    a, b = sparkline(values, 60), sparkline([x * 10.0**power for x in values], 60)
    if math.log10(max(values)) - math.log10(min(values)) > 1e-3:
        assert all(abs(ord(x) - ord(y)) <= 1 for x, y in zip(a, b, strict=True))
