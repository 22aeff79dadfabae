"""Laws of growth: drawn and recognised, noise that is none, intervals, words."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.sites import FloatArray
from depthgauge.study.growth import REACH, growth
from depthgauge.study.scaling import exponent

DEPTHS = (12, 48, 96)
TRIALS = 400
Logs = Callable[[FloatArray], FloatArray]

#: The logarithm of the summary over depth.
LAWS: dict[str, Logs] = {
    "constant": lambda depth: 0 * depth,
    "power": lambda depth: 0.5 * np.log(depth),
    "exponential": lambda depth: -0.02 * depth,
}


def drawn(
    law: Logs, seeds: int, noise: float, walk: bool, depths: tuple[int, ...] = DEPTHS
) -> Counter[str]:
    """The states found over many draws. Each seed has a level of its own; its noise is independent
    at each depth, or a walk over depth, as that of a state whose first blocks are the same."""
    rng, x = np.random.default_rng(7), np.array(depths, dtype=np.float64)
    found: Counter[str] = Counter()
    for _ in range(TRIALS):
        apart = noise * rng.standard_normal((len(x), seeds))
        if walk:
            apart = np.cumsum(np.sqrt(np.diff(x, prepend=0) / x.mean())[:, None] * apart, axis=0)
        levels = 0.3 * rng.standard_normal(seeds)
        found[growth(depths, np.exp(law(x)[:, None] + levels + apart)).state] += 1
    return found


# --------------------------------------------------------------------------- recognition


@pytest.mark.parametrize("walk", [False, True])
@pytest.mark.parametrize("name", ["power", "exponential"])
def test_a_law_is_recognised_in_97_of_100_draws(name: str, walk: bool) -> None:
    found = drawn(LAWS[name], 3, 0.05, walk)
    assert found[name] >= 0.97 * TRIALS
    other = {"power": "exponential", "exponential": "power"}[name]
    assert found[other] == found["constant"] == 0


@pytest.mark.parametrize(
    ("seeds", "walk", "most"),
    [(3, False, 0.03), (3, True, 0.05), (5, False, 0.03), (5, True, 0.05)],
)
def test_noise_on_a_constant_is_not_called_growth(seeds: int, walk: bool, most: float) -> None:
    found = drawn(LAWS["constant"], seeds, 0.1, walk)
    assert found["power"] + found["exponential"] <= most * TRIALS
    assert found["constant"] >= 0.7 * TRIALS
    assert found["constant"] + found["undecided"] >= (1 - most) * TRIALS


def test_without_a_penalty_noise_would_grow() -> None:
    rng, smaller = np.random.default_rng(3), 0
    for _ in range(TRIALS):
        found = growth(DEPTHS, np.exp(0.1 * rng.standard_normal((3, 3))))
        by_kind = {law.kind: law for law in found.laws}
        smaller += by_kind["power"].departure < by_kind["constant"].departure
    assert smaller == TRIALS  # a further parameter never fits worse


def test_one_seed_tells_less() -> None:
    """As docs/sweep.md says: a twelfth of the time noise of one seed looks like growth."""
    one, three = drawn(LAWS["constant"], 1, 0.1, False), drawn(LAWS["constant"], 3, 0.1, False)
    assert 0.03 < (one["power"] + one["exponential"]) / TRIALS < 0.15
    assert three["power"] + three["exponential"] < one["power"] + one["exponential"]


def test_what_noise_hides_is_undecided() -> None:
    found = drawn(LAWS["power"], 3, 0.3, False)
    assert found["undecided"] > 0.2 * TRIALS
    assert found["exponential"] < 0.2 * TRIALS
    clear = drawn(LAWS["power"], 3, 0.02, False)
    assert clear["power"] == TRIALS


def test_two_depths_tell_growth_and_not_its_law() -> None:
    rng = np.random.default_rng(0)
    grown = np.exp(0.01 * rng.standard_normal((2, 3))) * np.array([[1.0], [4.0]])
    found = growth((12, 96), grown)
    assert {law.kind for law in found.within} == {"power", "exponential"}
    assert found.law is None
    lone = growth((12, 96), grown[:, 0])
    assert {law.kind for law in lone.within} == {"power", "exponential", "constant"}
    assert "no interval" in str(lone)
    assert lone.to_dict()["laws"][0]["low"] is None
    assert lone.to_dict()["laws"][0]["low_reason"].startswith("two depths of one seed")


# --------------------------------------------------------------------------- parameters


@given(st.floats(0.05, 3), st.sampled_from([1, -1]), st.integers(1, 4), st.booleans())
def test_exact_laws_give_their_parameters(
    rate: float, sign: int, seeds: int, exponential: bool
) -> None:
    depths, signed = np.array([4.0, 16.0, 64.0, 100.0]), rate * sign
    logs = signed * depths if exponential else signed * np.log(depths)
    levels = np.linspace(0.0, 0.2, seeds)
    found = growth([4, 16, 64, 100], np.exp(logs[:, None] + levels))
    assert found.state == ("exponential" if exponential else "power")
    assert found.law is not None
    assert found.law.rate == pytest.approx(signed, rel=1e-6)
    assert found.law.low - 1e-9 <= signed <= found.law.high + 1e-9
    assert found.law.at([16])[0] == pytest.approx(math.exp(logs[1] + levels.mean()), rel=1e-6)
    assert found.law.departure < 1e-6


def test_the_power_law_is_that_of_exponent() -> None:
    rng = np.random.default_rng(2)
    values = np.array(DEPTHS)[:, None] ** 0.7 * np.exp(0.05 * rng.standard_normal((3, 4)))
    law, fitted = growth(DEPTHS, values).law, exponent(DEPTHS, values)
    assert law is not None
    assert (law.rate, law.low, law.high) == pytest.approx((fitted.slope, fitted.low, fitted.high))
    assert law.line.constant == pytest.approx(fitted.constant)


@pytest.mark.parametrize("seeds", [1, 4])
@pytest.mark.parametrize("at", [30, 400])
def test_the_band_holds_the_law_as_often_as_it_says(seeds: int, at: int) -> None:
    rng, depths, trials = np.random.default_rng(5), (8, 16, 32, 64, 128), 1000
    inside = half_as_wide = total = 0
    for _ in range(trials):
        noise = 0.1 * rng.standard_normal((5, seeds))
        found = growth(depths, np.exp(noise) * np.array(depths)[:, None] ** 0.5)
        law = next(law for law in found.laws if law.kind == "power")
        low, high = (float(np.log(side[0])) for side in law.band([at]))
        truth = 0.5 * math.log(at)
        inside += low < truth < high
        half_as_wide += abs((low + high) / 2 - truth) < (high - low) / 4
        total += 1
    error = math.sqrt(0.95 * 0.05 * total)
    assert abs(inside - 0.95 * total) < 4 * error
    assert abs(half_as_wide - 0.95 * total) > 4 * error


def test_seeds_are_paired_over_depths() -> None:
    """Levels ten times apart hide nothing when each seed keeps its own."""
    levels, rng = np.array([0.0, 2.3, 4.6]), np.random.default_rng(1)
    logs = 0.1 * np.log(np.array(DEPTHS))[:, None] + 0.002 * rng.standard_normal((3, 3))
    paired = growth(DEPTHS, np.exp(logs + levels))
    assert paired.state == "power"
    mixed = np.array([levels, np.roll(levels, 1), np.roll(levels, 2)])
    assert growth(DEPTHS, np.exp(logs + mixed)).state == "constant"


# --------------------------------------------------------------------- laws that bend


def bends(law: Logs, noise: float, seeds: int = 3) -> Counter[str]:
    """How often the law chosen is said to go on slower, faster or as it says (empty)."""
    rng, x = np.random.default_rng(11), np.array(DEPTHS, dtype=np.float64)
    found: Counter[str] = Counter()
    for _ in range(TRIALS):
        logs = law(x)[:, None] + noise * rng.standard_normal((3, seeds))
        found[growth(DEPTHS, np.exp(logs)).within[0].bend] += 1
    return found


def test_a_law_that_none_of_the_three_is_bends() -> None:
    """A constant, then a power: slower than the exponential that is nearest."""
    found = bends(lambda depth: 0.5 * np.log(1 + 0.02 * depth), 0.002)
    assert found["slower"] > 0.9 * TRIALS
    assert found["faster"] < 0.02 * TRIALS
    other = bends(lambda depth: -0.5 * np.log(1 + 0.02 * depth), 0.002)
    assert other["slower"] > 0.9 * TRIALS  # a fall that slows down
    upward = bends(lambda depth: (depth / 48) ** 1.3, 0.002)
    assert upward["faster"] > 0.9 * TRIALS


@pytest.mark.parametrize("name", ["power", "exponential"])
def test_a_law_seldom_bends_where_it_is_right(name: str) -> None:
    found = bends(LAWS[name], 0.02)
    assert found["slower"] + found["faster"] < 0.1 * TRIALS  # 5 per cent by its interval
    assert growth(DEPTHS, np.exp(LAWS[name](np.array(DEPTHS)))).within[0].bend == ""  # one seed


def test_a_bend_is_said() -> None:
    rng, x = np.random.default_rng(0), np.array(DEPTHS, dtype=np.float64)
    logs = 0.5 * np.log(1 + 0.02 * x)[:, None] + 0.001 * rng.standard_normal((3, 3))
    found = growth(DEPTHS, np.exp(logs))
    assert str(found).endswith("a block), and slower with depth")
    assert found.to_dict()["laws"][0]["bend"] == "slower"


# ------------------------------------------------------------------------------- bits


def test_bits_are_logarithms_already() -> None:
    sizes = np.array(DEPTHS)[:, None] ** 0.5 * np.exp(0.01 * np.arange(3.0))
    bits = growth(DEPTHS, 15 - np.log2(sizes), "bits")
    assert bits.state == "power"
    assert bits.law is not None
    assert bits.law.rate == pytest.approx(-0.5)
    assert str(bits) == "loses 0.50 +- 0.00 bits with each doubling of the depth"
    assert bits.law.at([48])[0] == pytest.approx(15 - math.log2(48**0.5) - 0.01 / math.log(2))
    block = growth(DEPTHS, 15 - 0.25 * np.array(DEPTHS)[:, None] * np.ones(3), "bits")
    assert str(block) == "loses 0.25 +- 0.00 bits a block"
    assert growth(DEPTHS, [-3.0, -3.0, -3.0], "bits").state == "constant"
    negative = growth(DEPTHS, [[1.0], [-1.0], [-4.0]], "bits")
    assert negative.left_out == ()


# ---------------------------------------------------------------------- words and edges


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([2.0, 4.0, 2.0 * 8**0.5], "grows like L^0.50 +- 0.00"),
        ([4.0, 2.0, 2.0**0.5], "falls like L^-0.50 +- 0.00"),
        ([math.exp(0.12), math.exp(0.48), math.exp(0.96)], "grows like exp(0.010 L) +- 0.000 (x"),
        ([3.0, 3.0, 3.0], "stays at 3 [3, 3]"),
        ([0.0, 0.0, 0.0], "stays at 0 [0, 0]"),
    ],
)
def test_words(values: list[float], words: str) -> None:
    assert str(growth(DEPTHS, np.array(values)[:, None] * np.ones(3))).startswith(words)


def test_depths_without_a_logarithm_are_left_out() -> None:
    values = np.array([1.0, 2.0, 2 * 2**0.5, math.inf])[:, None] * np.array([1.0, 1.1, 1.3])
    found = growth((12, 48, 96, 192), values)
    assert found.left_out == (192,)
    assert found.depths == (12, 48, 96)
    assert str(found).endswith("; not at depth 192")
    one_bad = values.copy()
    one_bad[2, 1] = math.nan
    assert growth((12, 48, 96, 192), one_bad).left_out == (96, 192)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([0.0, 0.1, math.inf], "a value is 0, negative or not finite at depth 12, 96"),
        ([math.nan] * 3, "a value is 0, negative or not finite at depth 12, 48, 96"),
        ([math.inf] * 3, "a value is 0, negative or not finite at depth 12, 48, 96"),
        ([-1.0] * 3, "a value is 0, negative or not finite at depth 12, 48, 96"),
    ],
)
def test_what_follows_no_law(values: list[float], reason: str) -> None:
    found = growth(DEPTHS, values)
    assert (found.state, found.law, found.reason) == ("none", None, reason)
    assert str(found) == f"no law: {reason}"
    json.dumps(found.to_dict(), allow_nan=False)
    assert growth((12,), [3.0]).reason == "a law needs at least two depths"


def test_the_document_is_json_and_names_all_three() -> None:
    rng = np.random.default_rng(0)
    document = growth(DEPTHS, np.exp(rng.standard_normal((3, 3)))).to_dict()
    json.dumps(document, allow_nan=False)
    assert {law["kind"] for law in document["laws"]} == {"constant", "power", "exponential"}
    constant = next(law for law in document["laws"] if law["kind"] == "constant")
    assert constant["rate"] == constant["low"] == constant["high"] == 0
    criteria = [law["criterion"] for law in document["laws"]]
    assert criteria == sorted(criteria)
    json.dumps(growth(DEPTHS, [0.0] * 3).to_dict(), allow_nan=False)
    assert REACH == 2.0
