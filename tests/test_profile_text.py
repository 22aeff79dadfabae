"""What a person reads: the compact text of a profile."""

from __future__ import annotations

import math

from depthgauge.sites import QUANTITIES
from tests.factories import profile

NAN, INF = math.nan, math.inf


def test_text_of_one_seed() -> None:
    extra = {"live_derivative_fraction": [0.5, 0.4], "saturated_fraction": [0.1, 0.2]}
    rest = dict.fromkeys(QUANTITIES, "only the rivers were asked for")
    made = profile((1.0, 2.0, 40.0), (30.0, 3.0, 1.0), extra=extra, not_measured=rest)
    lines = str(made).splitlines()
    end = next(i for i, line in enumerate(lines) if line.startswith("not measured"))
    assert lines[:end] == [
        "h = h + a * W2(relu(W1(h)))",
        "depth 2, width 64, 2 branches, batch 128, float32, seed 0",
        "  forward_end_rms           40  n=1",
        "  forward_drift             40  n=1",
        "  gradient_ratio            30  n=1",
        "  gradient_drift            30  n=1",
        "  live_derivative_fraction  0.45  n=1",
        "  saturated_fraction        0.2  n=1",
        "state RMS    ▁▂█  1 at block 0, 40 at block 2",
        "gradient RMS █▃▁  30 at block 0, 1 at block 2",
        "steepest     block 2 (blocks.1): state RMS x 20",
        "             block 1 (blocks.0): gradient RMS x 10",
        "             block 2 (blocks.1): gradient RMS x 3",
    ]
    assert lines[end].startswith("not measured: state_mean, state_max, ")
    assert lines[-1].strip().endswith("the rivers were asked for")
    assert 12 <= len(lines) <= 20
    assert max(map(len, lines)) <= 100


def test_text_of_several_seeds_has_spread_and_n() -> None:
    text = str(profile([[1, 1, 1], [2, 4, 9]]))
    assert "n = 3 seeds, median [min, max]" in text
    assert "  forward_drift             4  [2, 9]  n=3\n" in text
    assert "steepest     block 1 (blocks.0): state RMS x 9 (seed 2)" in text
    bad = str(profile([[1, 1, 1], [2, 4, NAN]]))
    assert "  forward_drift             3  [2, 4]  n=2, not finite in 1 more\n" in bad
    assert "  forward_drift             not a number  n=1\n" in str(profile((1.0, NAN)))


def test_text_shows_where_a_river_ends() -> None:
    text = str(profile((1.0, 2.0, INF, NAN), (NAN, NAN, 1.0, 1.0)))
    assert "state RMS    ▁█××  1 at block 0, not a number at block 3" in text
    assert "state is not finite from block 2 (blocks.1) on, in 1 of 1 seeds" in text
    assert "gradient is not finite, going back, from block 1 (blocks.0) on" in text
    assert "block 1 (blocks.0): state RMS x 2" in text
    assert "steepest     block 1 (blocks.0): state RMS x 0\n" in str(profile((1.0, 0.0, 0.0)))
    assert "state RMS x 1e-310" in str(profile((1.0, 1e-310)))
    assert "not finite" not in str(profile((1.0, 2.0)))
