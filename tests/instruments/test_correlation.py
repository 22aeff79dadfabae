"""The mean cosine between examples and between tokens, against the table of all pairs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from depthgauge.instruments.correlation import between, of_examples, of_tokens, same
from depthgauge.measurement import measure


def slow(vectors: Tensor) -> float:
    """Over all pairs, one by one, in float64."""
    rows = vectors.double().reshape(len(vectors), -1)
    cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in itertools.combinations(rows, 2)]
    return math.fsum(cosines) / len(cosines)


@given(st.integers(2, 6), st.integers(1, 9), st.integers(0, 999), st.floats(-25, 25))
def test_it_is_the_mean_over_all_pairs(count: int, size: int, seed: int, decades: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, count, size, generator=generator)
    x = x * 10.0**decades  # float32: squares overflow or vanish at the ends
    for found, group in zip(between(x), x, strict=True):
        assert found == pytest.approx(slow(group), abs=3e-6)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("apart", [1e-1, 1e-3, 1e-5, 1e-6])
def test_what_is_left_to_1_is_no_rounding(kind: torch.dtype, apart: float) -> None:
    """Against all pairs in float64, by differences: a cosine in float32 has 1e-7 of its own."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(2, 1, 40, generator=generator, dtype=torch.float64)
    x = (base + apart * torch.randn(2, 6, 40, generator=generator, dtype=torch.float64)).to(kind)
    for found, group in zip(between(x), x.double(), strict=True):
        unit = group / group.norm(dim=1, keepdim=True)
        pairs = itertools.combinations(unit, 2)
        left = np.mean([float((a - b).square().sum()) / 2 for a, b in pairs])
        assert 1 - found == pytest.approx(left, rel=1e-3, abs=3e-16)
    assert between(base.expand(2, 6, 40).to(kind)) == [1.0, 1.0]


def test_examples_that_are_one() -> None:
    row = torch.randn(1, 3, 4)
    assert same(row.expand(5, 3, 4))
    rounded = row.repeat(5, 1, 1)
    rounded[3] *= 1 + 2e-7
    assert same(rounded)
    rounded[3, 0, 0] += 1e-5
    assert not same(rounded)
    assert same(torch.ones(4, 2, dtype=torch.long))
    assert not same(torch.tensor([[1, 2], [1, 3]]))
    assert not same(row)
    assert not same(torch.full((2, 2), math.nan))


def test_vectors_that_point_one_way_and_opposite_ones() -> None:
    base = torch.randn(7, dtype=torch.float64)
    same = torch.stack([base, 3 * base, 1e-9 * base])[None]
    assert between(same) == pytest.approx([1.0], abs=1e-14)
    assert between(torch.stack([base, -2 * base])[None]) == pytest.approx([-1.0], abs=1e-14)
    axes = torch.eye(4)[None]
    assert between(axes) == pytest.approx([0.0], abs=1e-7)


def test_what_has_no_direction_is_nan() -> None:
    x = torch.ones(4, 3, 5)
    x[1, 0] = 0.0
    x[2, 1, 2] = math.nan
    x[3, 1, 2] = math.inf
    found = between(x)
    assert found[0] == pytest.approx(1.0)
    assert all(math.isnan(value) for value in found[1:])
    assert math.isnan(between(torch.ones(1, 1, 5))[0])


def test_examples_and_tokens() -> None:
    x = torch.randn(1, 3, 4, 5, dtype=torch.float64)
    assert of_examples(x) == pytest.approx([slow(x[0])], abs=1e-12)
    assert of_tokens(x) == pytest.approx([np.mean([slow(one) for one in x[0]])], abs=1e-12)
    assert math.isnan(of_tokens(x.reshape(1, 3, 20))[0])


def test_a_module_and_its_equation_say_the_same() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    x = torch.randn(5, 8)
    profile = measure(model, x, instruments="correlation")
    states = [x]
    with torch.no_grad():
        for layer in model:
            states.append(layer(states[-1]))
    assert profile["correlation"] == pytest.approx([slow(h) for h in states], abs=1e-6)
    assert profile.not_measured["token_correlation"].startswith("no state has positions")


def test_sequence_first_states_are_counted_by_their_examples() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)  # (tokens, examples, width)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(3, 5, 8)

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            turned: Tensor = self.inner(x.transpose(0, 1))
            return turned.transpose(0, 1)

    profile = measure(Turned(), x, instruments="correlation")
    assert profile["correlation"][0] == pytest.approx(slow(x), abs=1e-6)
    assert profile["token_correlation"][0] == pytest.approx(
        np.mean([slow(one) for one in x]), abs=1e-6
    )


def test_a_batch_of_one_has_no_second_example() -> None:
    profile = measure("tanh(W(h))", 1, depth=2, width=4, instruments="correlation")
    assert profile.not_measured["correlation"] == "a batch of one example has no second one"
    module = measure(nn.Linear(4, 4), torch.randn(1, 4), instruments="correlation")
    assert module.not_measured["correlation"] == "a batch of one example has no second one"


class Tokens(nn.Module):
    """Blocks on (examples, positions, width), or on (positions, examples, width)."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first, self.layers = first, nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = x.transpose(0, 1) if self.first else x
        for layer in self.layers:
            h = h + torch.tanh(layer(h))
        return h.transpose(0, 1) if self.first else h


@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize("examples", [1, 3])
def test_one_position_has_no_second_one(positions: int, examples: int) -> None:
    x = torch.randn(examples, positions, 8)
    equation = "h = h + attention(h, heads=2)"
    found = [
        measure(equation, examples, depth=2, width=8, tokens=positions, instruments="correlation"),
        measure(equation, x, depth=2, width=8, tokens=positions, instruments="correlation"),
        *(measure(Tokens(first), x, instruments="correlation") for first in (False, True)),
    ]
    for profile in found:
        assert ("correlation" in profile) == (examples > 1)
        assert ("token_correlation" in profile) == (positions > 1)
        why = profile.not_measured.get("token_correlation", "")
        assert why == ("" if positions > 1 else "one position an example has no second one")
        assert not any("correlation_reason" in key for site in profile.to_dict()["sites"]
                       for key in site)  # fmt: skip


def test_a_batch_without_variance_is_collapsed_from_the_start() -> None:
    profile = measure("tanh(W(h))", torch.ones(4, 8), depth=2, width=8)
    assert profile["correlation"] == pytest.approx([1.0, 1.0, 1.0], abs=1e-6)
