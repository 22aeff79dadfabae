"""Curves as they are drawn: bands over seeds, thinning, gaps, names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from depthgauge.errors import UsageError
from depthgauge.report.curves import COLOURS, FEWEST, MOST, NUMBERS, Curves, band, kept, points_each
from tests.report.records import EVIL, record

NAN, INF = math.nan, math.inf


def slow_band(row: list[float], log: bool) -> tuple[float, float, float]:
    """Of one block, by the definition: numbers that can be drawn, NumPy's own quantiles."""
    good = [x for x in row if math.isfinite(x) and (x > 0 or not log)]
    if not good:
        return NAN, NAN, NAN
    return (
        float(np.quantile(good, 0.5)),
        float(np.quantile(good, 0.1, method="lower")),
        float(np.quantile(good, 0.9, method="higher")),
    )


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("seeds", [1, 2, 3, 10, 11, 12, 21, 40])
def test_a_band_is_that_of_its_definition(seeds: int, log: bool) -> None:
    values = np.random.default_rng(seeds).normal(1, 1, (50, seeds))
    values[3, 0], values[4, :], values[5, -1] = NAN, INF, 0.0
    found = np.array(band(values, log)).T
    expected = [slow_band(row.tolist(), log) for row in values]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_band_of_few_seeds_is_their_range_and_of_many_is_not() -> None:
    values = np.arange(1.0, 31.0)[None, :]
    assert [x.item() for x in band(values[:, :10], True)] == [5.5, 1.0, 10.0]
    assert [x.item() for x in band(values, True)] == [15.5, 3.0, 28.0]
    assert [x.item() for x in band(np.array([[1e308, 1.7e308]]), True)] == [
        1.35e308,
        1e308,
        1.7e308,
    ]


def test_thinning_keeps_what_a_curve_is() -> None:
    total, points = 10_001, 400
    middle = np.sin(np.arange(total) / 700)
    middle[5003], middle[7777] = 9.0, -9.0
    middle[2000:2300] = NAN
    low, high = middle - 0.1, middle + 0.1
    high[4321] = 5.0
    keep = kept(middle, low, high, points)
    assert keep.size <= 1.2 * points
    assert list(keep) == sorted(set(keep))
    assert {0, total - 1, 5003, 7777, 4321, 1999, 2000, 2299, 2300} <= set(keep.tolist())
    assert np.isnan(middle[keep]).any(), "a gap stays a gap"


def test_a_plain_stride_would_lose_the_peak() -> None:
    middle = np.zeros(10_001)
    middle[5003] = 9.0
    assert middle[kept(middle, middle, middle, 400)].max() == 9.0
    assert middle[:: 10_001 // 400].max() == 0.0


def test_short_curves_are_kept_whole() -> None:
    middle = np.arange(97.0)
    assert kept(middle, middle, middle, 97).tolist() == list(range(97))


def test_all_curves_of_a_page_have_a_budget() -> None:
    assert points_each(1) == MOST
    assert points_each(10**6) == FEWEST
    assert 4 * 300 * points_each(300) <= NUMBERS


def one(quantity: str, values: Any, blocks: Any = None, **more: Any) -> Curves:
    values = np.array(values, dtype=float)
    blocks = np.arange(len(values)) if blocks is None else np.array(blocks)
    curve = {
        "gate": "rivers",
        "configuration": "baseline",
        "depth": 2,
        "quantity": quantity,
        "blocks": "b",
        "values": "v",
        "seeds": [0],
        **more,
    }
    return Curves({"curves": [curve]}, {"b": blocks, "v": values})


@pytest.mark.parametrize(
    ("quantity", "values", "note"),
    [
        ("state_rms", [[1], [2], [3]], ""),
        ("state_rms", [[1], [INF], [NAN]], "not finite from block 1 on"),
        ("gradient_rms", [[INF], [INF], [1]], "not finite from block 1 back"),
        ("state_rms", [[1, 1], [1, 0], [1, NAN]],
         "not finite from block 2 on in 1 of 2 seeds; zero from block 1 on in 1 of 2 seeds"),
        ("correlation", [[0], [0], [0]], ""),
        ("underflow_headroom_bits", [[-INF], [2], [2]], "not finite from block 0 back"),
    ],
)  # fmt: skip
def test_a_gap_is_said(quantity: str, values: Any, note: str) -> None:
    (line,) = one(quantity, values).lines(quantity, 100)
    assert line.note == note
    assert np.isfinite(line.middle).all() == (not any(len(row) == 1 for row in values) or not note)


def test_sites_of_one_block_are_one_point_as_in_a_profile() -> None:
    (line,) = one("state_rms", [[1], [2], [4]], [0, 1, 1]).lines("state_rms", 100)
    assert (line.x.tolist(), line.middle.tolist()) == ([0, 1], [1.0, 4.0])
    (line,) = one("branch_to_stream", [[4], [1], [3]], [2, 1, 1]).lines("branch_to_stream", 100)
    assert (line.x.tolist(), line.middle.tolist()) == ([1, 2], [2.0, 4.0])


def test_the_numbers_of_a_line_are_those_of_its_curve() -> None:
    (line,) = one("state_rms", [[3, 5], [1, 1], [8, 10], [NAN, NAN]]).lines("state_rms", 100)
    assert line.row() == (
        "baseline", "4", "-", "1", "1", "9", "2", "2", "not finite from block 3 on in 2 of 2 seeds"
    )  # fmt: skip
    (line,) = one("state_rms", [[NAN], [NAN]]).lines("state_rms", 100)
    assert line.row()[1:7] == ("-",) * 6


def test_every_configuration_has_a_colour_and_every_depth_a_dash() -> None:
    curves = Curves(*record())
    lines = curves.lines("state_rms", 100)
    assert len(lines) == 15
    assert len({line.style for line in lines}) == 15
    assert {line.style.colour for line in lines if line.configuration == "scale*2"} == {3}
    assert {line.style.dash for line in lines if line.depth == 96} == {0}, "the deepest is solid"
    for other in ("gradient_rms", "correlation"):
        assert {line.name: line.style for line in curves.lines(other, 100)} == {
            line.name: line.style for line in lines
        }


def test_more_configurations_than_colours_differ_by_their_dash() -> None:
    document, arrays = record((4, 8), quantities=["state_rms"])
    document["curves"] += [
        dict(curve, configuration=f"change {number}")
        for number in range(9)
        for curve in document["curves"][:2]
    ]
    lines = Curves(document, arrays).lines("state_rms", 100)
    looks = {(line.style.colour % COLOURS, line.style.dash % 6) for line in lines}
    assert len(looks) == len(lines) == 28


def test_the_depth_is_said_once_and_another_gate_where_it_measured_the_same() -> None:
    document, arrays = record((4, 8), quantities=["state_rms"], evil="x, depth 8")
    first = document["curves"][0]
    document["curves"] += [
        dict(first, configuration="named, depth 4"),
        dict(first, gate="precision", values="other"),
        dict(first, gate="precision"),
    ]
    arrays["other"] = arrays[first["values"]] * 2
    names = [line.name for line in Curves(document, arrays).lines("state_rms", 100)]
    assert names[0] == "baseline, depth 4"
    assert names[-2:] == ["named, depth 4", "baseline (precision), depth 4"]
    assert "x, depth 8, depth 4" in names
    assert "x, depth 8" in names


def test_the_spectrum_is_that_of_the_deepest_of_the_first_configuration() -> None:
    document, arrays = record()
    name, lines = Curves(document, arrays).spectrum("log_singular_values", 100)
    assert name == "baseline, depth 96"
    assert [line.name for line in lines] == [f"direction {rank}" for rank in (1, 4, 8, 12, 16)]
    curve = next(
        c for c in document["curves"]
        if c["quantity"] == "log_singular_values[4]" and c["depth"] == 96
    )  # fmt: skip
    expected = np.median(arrays[curve["values"]], axis=1) / math.log(10)
    np.testing.assert_allclose(lines[1].middle, expected)
    assert Curves({"curves": []}, {}).spectrum("log_singular_values", 100) == ("", ())


def test_arrays_that_do_not_belong_are_refused() -> None:
    document, arrays = record(quantities=["state_rms"])
    key = document["curves"][0]["values"]
    with pytest.raises(UsageError, match=f"names an array '{key}' that curves.npz does not hold"):
        Curves(document, {k: v for k, v in arrays.items() if k != key}).lines("state_rms", 10)
    with pytest.raises(UsageError, match=r"has the shape \(5, 3\), expected a row for each of 13"):
        Curves(document, arrays | {key: arrays[key][:5]}).lines("state_rms", 10)
    with pytest.raises(UsageError, match=r"the shape \(13, 0\)"):
        Curves(document, arrays | {key: arrays[key][:, :0]}).lines("state_rms", 10)


def test_what_steers_a_terminal_is_out_of_a_name() -> None:
    names = [line.name for line in Curves(*record()).lines("state_rms", 10)]
    assert any("alert(1)" in name for name in names)
    assert "\x1b" in EVIL
    assert not any("\x1b" in name or "\u202e" in name for name in names)
