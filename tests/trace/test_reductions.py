"""Statistics of many small tensors at once, against those of each in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from depthgauge.instruments import rivers
from depthgauge.trace.reductions import Numbers, Together
from depthgauge.trace.reductions import numbers as read

FLOAT32 = 1e-4
NAMES = ("rms", "mean", "max", "nonfinite")


def slow(x: Tensor) -> list[float]:
    """The four, one after the other, in float64."""
    x = x.detach().double()
    top = x.abs().max().item()
    scale = top if 0 < top < math.inf else 1.0
    rms = (x / scale).square().mean().sqrt().item() * scale
    finite = x.isfinite().double().mean().item()
    return [rms, x.mean().item(), top, 1 - finite]


def together(given: Sequence[Tensor], names: Sequence[str] = NAMES) -> dict[int, Numbers]:
    table: dict[int, Numbers] = {}
    small = Together(names, table)
    assert all(small.add(i, x) for i, x in enumerate(given))
    small.end()
    return table


def draws(count: int, *shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [(10.0**k * (torch.randn(shape) + 0.3)).to(dtype) for k in [*range(-3, 4)] * count]


def agree(found: Numbers, x: Tensor) -> bool:
    return list(found) == pytest.approx(slow(x), rel=FLOAT32, abs=0, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_many_tensors_of_one_shape(dtype: torch.dtype) -> None:
    given = draws(30, 6, 8, dtype=dtype)  # 210: full batches and a rest
    found = together(given)
    assert list(found) == list(range(len(given)))
    assert all(agree(found[i], x) for i, x in enumerate(given))


def test_more_shapes_than_there_are_batches() -> None:
    given = [x for n in range(1, 12) for x in draws(1, 3, n)] * 2
    found = together(given)
    assert all(agree(found[i], x) for i, x in enumerate(given))


def test_views_scalars_and_what_requires_a_gradient() -> None:
    x = torch.randn(6, 8).requires_grad_()
    given = [x.t() * 2, x[::2, 1:5], x.sum(), x.exp().t()[3]]
    found = together(given)
    assert all(agree(found[i], x) for i, x in enumerate(given))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e30, -3e38, 1e-30, 1e-42, 0.0])
def test_a_row_out_of_range_is_its_own_affair(bad: float) -> None:
    given = draws(1, 4, 5)
    given[2] = torch.full((4, 5), bad)
    given[4][1, 2] = bad
    found = together(given)
    assert all(agree(found[i], x) for i, x in enumerate(given))


def test_what_is_written_over_later_is_read_as_it_was() -> None:
    given = draws(1, 4, 5)
    before = [slow(x) for x in given]
    table: dict[int, Numbers] = {}
    small = Together(NAMES, table)
    for i, x in enumerate(given):
        small.add(i, x)
        x.mul_(-2)
    small.end()
    assert [list(found) for found in table.values()] == [
        pytest.approx(row, rel=FLOAT32) for row in before
    ]
    assert not any(agree(table[i], x) for i, x in enumerate(given))


@pytest.mark.parametrize("names", [("max",), ("nonfinite", "rms"), ("mean",)])
def test_some_of_the_statistics_in_their_order(names: Sequence[str]) -> None:
    given = draws(1, 4, 5)
    given[1][0, 0] = math.nan
    for i, numbers in together(given, names).items():
        wanted = dict(zip(NAMES, slow(given[i]), strict=True))
        assert list(numbers) == pytest.approx(
            [wanted[name] for name in names], rel=FLOAT32, nan_ok=True
        )


@pytest.mark.parametrize(
    ("names", "x"),
    [
        (NAMES, torch.zeros(2**15 + 1)),
        ((*NAMES, "q50"), torch.zeros(8)),
        ((), torch.zeros(8)),
        (NAMES, torch.zeros(8, device="meta")),
    ],
    ids=["large", "a quantile", "nothing", "elsewhere"],
)
def test_what_is_read_one_by_one(names: Sequence[str], x: Tensor) -> None:
    table: dict[int, Numbers] = {}
    small = Together(names, table)
    assert not small.add(0, x)
    small.end()
    assert not table


def test_room_made_in_inference_mode_is_written_to_outside_of_it() -> None:
    given = draws(1, 4, 5)
    table: dict[int, Numbers] = {}
    small = Together(NAMES, table)
    with torch.inference_mode():
        small.add(0, given[0] * 2)
    for i, x in enumerate(given[1:], 1):
        small.add(i, x)
    small.end()
    assert agree(table[0], given[0] * 2)
    assert all(agree(table[i], x) for i, x in enumerate(given[1:], 1))


def magnitudes() -> dict[str, Tensor]:
    x = draws(1, 2**13)[3]
    small = torch.tensor([1e-45, 2e-40, 1e-38, 0.0]).repeat(2**11)
    return {
        "drawn": x,
        "half zeros": x.relu(),
        "three numbers": x.sign(),
        "one number": torch.full((2**13,), -3.0),
        "from tiny to huge": 10.0 ** (12 * x),
        "too small for a normal number": small,
        "infinite": torch.where(x > 2, math.inf, x),
        "mostly infinite": torch.where(x > -1, -math.inf, x),
        "with NaN": torch.where(x.abs() > 2, math.nan, torch.where(x < -1, math.inf, x)),
        "of NaN": torch.full((2**13,), math.nan),
        "few": x[:5000],
        "of too few to select from": x[:1000],
        "wide": x.double(),
    }


@pytest.mark.parametrize("name", magnitudes())
def test_quantiles_are_the_very_elements_that_a_sort_puts_there(name: str) -> None:
    x = magnitudes()[name]
    names = list(rivers.QUANTILES)
    ordered = np.sort(x.abs().numpy())
    places = rivers.places(len(x), rivers.QUANTILES.values())
    found = read(x, names)
    assert [float(v).hex() for v in found] == [float(v).hex() for v in ordered[places]]


def test_another_element_is_seen() -> None:
    x = magnitudes()["drawn"]
    ordered = np.sort(x.abs().numpy())
    places = rivers.places(len(x), rivers.QUANTILES.values())
    assert list(read(x, list(rivers.QUANTILES))) != [float(ordered[i + 1]) for i in places]
