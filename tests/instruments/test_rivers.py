"""River statistics against plain NumPy in float64."""

import math

import numpy as np
import pytest
import torch

from depthgauge.instruments.rivers import QUANTILES, River, rms

STATISTICS = ["rms", "mean", "max", "nonfinite", *QUANTILES]


def slow(x: np.ndarray) -> dict[str, float]:
    """Every statistic of one member's elements, sorted and summed the obvious way."""
    x = x.astype(np.float64).ravel()
    ordered = np.sort(np.abs(x))
    with np.errstate(over="ignore", invalid="ignore"):
        top = ordered[-1]
        scaled = x / top if 0 < top < math.inf else x
        root = math.sqrt(np.mean(scaled**2)) * (top if 0 < top < math.inf else 1)
        found = {
            "rms": root,
            "mean": float(x.mean()),
            "max": float(np.abs(x).max()),
            "nonfinite": float((~np.isfinite(x)).mean()),
        }
    for name, q in QUANTILES.items():
        found[name] = float(ordered[math.ceil(q * len(x)) - 1])
    return found


def measured(x: torch.Tensor, members: int = 1) -> dict[str, np.ndarray]:
    river = River(STATISTICS, 1, members)
    river.see(0, x)
    return {name: values[0] for name, values in river.values.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7, 5), (128, 64), (3, 4, 6), (2, 3, 4, 4), (1, 1)])
def test_every_statistic(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype) * 2 + 0.5
    found, expected = measured(x), slow(x.float().numpy() if dtype != torch.float64 else x.numpy())
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    for name in STATISTICS:
        assert found[name][0] == pytest.approx(expected[name], rel=tolerance, abs=1e-6)


def test_members_are_kept_apart() -> None:
    x = (
        torch.randn(4, 10, 3, dtype=torch.float64)
        * torch.tensor([1, 10, 100, 1000.0])[:, None, None]
    )
    found = measured(x, members=4)
    for e in range(4):
        expected = slow(x[e].numpy())
        for name in STATISTICS:
            assert found[name][e] == pytest.approx(expected[name], rel=1e-10)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-30, 1.0, 1e30, 1e160, 1e300])
def test_rms_neither_overflows_nor_underflows(scale: float) -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64) * scale
    assert rms(x)[0] == pytest.approx(math.sqrt(12.5) * scale, rel=1e-12)
    if 1e-38 < scale < 1e38:
        assert rms(x.float())[0] == pytest.approx(math.sqrt(12.5) * scale, rel=1e-5)


def test_a_plain_rms_would_have_overflowed() -> None:
    x = torch.full((1, 4), 1e30)
    assert x.square().mean().sqrt().isinf()
    assert rms(x)[0] == pytest.approx(1e30, rel=1e-5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, math.inf], {"rms": math.inf, "max": math.inf, "nonfinite": 0.5}),
        ([1.0, -math.inf, math.nan, 2.0], {"nonfinite": 0.5}),
        ([0.0, 0.0], {"rms": 0.0, "max": 0.0, "nonfinite": 0.0, "q99": 0.0}),
    ],
)
def test_what_is_not_finite_is_counted(values: list[float], expected: dict[str, float]) -> None:
    found = measured(torch.tensor(values))
    for name, value in expected.items():
        assert found[name][0] == value


def test_quantiles_are_elements_at_the_published_shares() -> None:
    x = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).double() + 1
    found = measured(-x)
    assert [found[name][0] for name in ("q01", "q50", "q99", "q999")] == [10, 500, 990, 999]


def test_nan_is_never_silent() -> None:
    found = measured(torch.tensor([1.0, math.nan, 2.0]))
    for name in ("rms", "mean", "max", "q999"):
        assert math.isnan(found[name][0])
    assert found["nonfinite"][0] == pytest.approx(1 / 3)


def test_a_place_that_was_not_seen_is_not_a_number() -> None:
    river = River(["rms"], 2, 1)
    river.see(1, torch.ones(3))
    assert math.isnan(river.values["rms"][0, 0])
    assert river.values["rms"][1, 0] == pytest.approx(1)


def test_a_tensor_is_read_before_see_returns() -> None:
    x = torch.ones(3)
    river = River(["rms"], 1, 1)
    river.see(0, x)
    x.zero_()
    assert river.values["rms"][0, 0] == pytest.approx(1)
