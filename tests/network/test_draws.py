"""Keyed draws are independent of everything but their key; sequential ones are NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthgauge.network.draws import COTANGENT, INPUT, KeyedDraws, SequentialDraws, keyed_normals

KEYS = [(0, 1, "W1"), (1, 1, "W1"), (0, 2, "W1"), (0, 1, "W2"), (0, 11, "W"), (0, 1, "1W")]

GOLDEN_NORMALS = [0.09254314, -0.8218427, 0.8315194, 0.008003259]
GOLDEN_UNIFORMS = [0.2953079342842102, 0.28662264347076416, 0.23235958814620972]


def test_the_first_numbers_of_a_key_never_change() -> None:
    # A change here changes every keyed network: records of older versions become stale.
    normals = KeyedDraws(7).source(1, "W1").normal(4)
    assert normals.dtype == np.float32
    assert normals == pytest.approx(GOLDEN_NORMALS, rel=1e-6)
    uniforms = KeyedDraws(7).source(1, "W1").uniform(3)
    assert uniforms.tolist() == GOLDEN_UNIFORMS  # raw bits: exactly these on every machine


def test_every_part_of_the_key_matters() -> None:
    drawn = [KeyedDraws(s).source(b, n).normal(64) for s, b, n in KEYS]
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(64)
            assert not np.isin(a, b).any()


@given(st.permutations(range(len(KEYS))), st.integers(1, 9))
def test_keyed_draws_do_not_depend_on_order_or_on_what_was_drawn_before(
    order: list[int], count: int
) -> None:
    expected = [KeyedDraws(0).source(b, n).normal(count).tolist() for _, b, n in KEYS]
    draws = KeyedDraws(0)
    for i in order:
        assert draws.source(*KEYS[i][1:]).normal(count).tolist() == expected[i]


def test_normals_have_the_moments_of_a_normal() -> None:
    count = 1_000_000
    z = KeyedDraws(3).source(1, "W1").normal(count).astype(np.float64)
    # |deviation| < 4 standard errors: of the mean, variance, skewness and fourth moment
    assert abs(z.mean()) < 4 / np.sqrt(count)
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / count)
    assert abs((z**3).mean()) < 4 * np.sqrt(15 / count)
    assert abs((z**4).mean() - 3) < 4 * np.sqrt(96 / count)
    assert abs(np.corrcoef(z[: count // 2], z[count // 2 :])[0, 1]) < 4 / np.sqrt(count // 2)
    assert abs((np.abs(z) > 2).mean() - 0.0455003) < 4 * np.sqrt(0.0455 / count)


@pytest.mark.parametrize("std", [0.0, 1e-300, 1e-20, 0.3, 1e20, 1e300])
def test_any_standard_deviation_scales_the_same_normals(std: float) -> None:
    z = KeyedDraws(3).source(1, "W1").normal(1001).astype(np.float64)
    scaled = KeyedDraws(3).source(1, "W1").normal(1001, std)
    assert scaled == pytest.approx(z * std, rel=1e-6)
    together = keyed_normals([KeyedDraws(3), KeyedDraws(4)], [1, 2], "W1", 1001, [[std, 1], [1, 1]])
    assert together[0, 0] == pytest.approx(z * std, rel=1e-6)
    assert together[1, 1] == pytest.approx(KeyedDraws(4).source(2, "W1").normal(1001), rel=1e-6)


@pytest.mark.parametrize("count", [64, 2**15 + 2])
def test_blocks_of_a_page_are_independent(count: int) -> None:
    draws = KeyedDraws(0)
    rows = [draws.source(block, "W1").normal(count) for block in range(1, 19)]
    correlations = np.corrcoef(rows)[np.triu_indices(18, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(count)  # 153 pairs


def test_uniforms_are_in_the_half_open_interval() -> None:
    u = KeyedDraws(3).source(1, "W1").uniform(100_000)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 4 / np.sqrt(12 * 100_000)


def test_sequential_draws_are_one_numpy_generator_in_order() -> None:
    rng = np.random.default_rng(7)
    draws = SequentialDraws(7)
    for block, name, count in [
        (INPUT, "input", 6),
        (1, "W1", 4),
        (1, "W2", 5),
        (COTANGENT, "c", 3),
    ]:
        assert (
            draws.source(block, name).normal(count).tolist() == rng.standard_normal(count).tolist()
        )


def test_a_sequential_tensor_asked_for_again_is_replayed() -> None:
    draws = SequentialDraws(7)
    first = [draws.source(b, "W1").normal(4).tolist() for b in (1, 2, 3)]
    assert draws.source(2, "W1").normal(4).tolist() == first[1]
    # and the replay has not moved the place where new tensors go on
    reference = np.random.default_rng(7).standard_normal(16)[12:].tolist()
    assert draws.source(4, "W1").normal(4).tolist() == reference
    assert draws.source(4, "W1").normal(4).tolist() == reference
