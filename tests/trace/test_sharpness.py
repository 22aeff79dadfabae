"""How sharp attention is, against the same worked out over every query with its mask known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depthgauge.trace.sharpness import WIDE, sharpness

SHAPES = st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(3, 24))
#: What is added, or put, where a key is hidden.
MASKS = {
    "bert": -1e4,
    "half": -3e4,
    "billion": -1e9,
    "least": torch.finfo(torch.float32).min,
    "infinite": -math.inf,
}


def drawn(shape: tuple[int, ...], size: float, seed: int = 0) -> Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).triu(1)


def every(logits: Tensor, hidden: Tensor) -> tuple[float, float, float]:
    """The slow way: each query by itself."""
    rows = []
    whole = hidden.expand(logits.shape)
    keys = logits.shape[-1]
    for row, mask in zip(logits.reshape(-1, keys), whole.reshape(-1, keys), strict=True):
        x = row[~mask].double()
        if len(x) > 1:
            p = x.softmax(0)
            entropy = -(p * p.clamp(min=1e-300).log()).sum() / math.log(len(x))
            rows.append((float(x.var(correction=0)), float(p.max()), float(entropy)))
    std, top, entropy = (math.fsum(column) / len(rows) for column in zip(*rows, strict=True))
    return math.sqrt(std), top, entropy


@given(SHAPES, st.sampled_from(sorted(MASKS)), st.booleans())
@settings(max_examples=60, deadline=None)
def test_saturated_attention_is_found_in_every_shape(
    shape: tuple[int, int, int], mask: str, added: bool
) -> None:
    """Also where batch times heads is a multiple of the sample, and masks differ in how they are
    written: what is read is the logits of the keys that a query sees."""
    batch, heads, tokens = shape
    logits, hidden = drawn((batch, heads, tokens, tokens), 12.0), causal(tokens)
    whole = logits + torch.zeros(()).where(~hidden, MASKS[mask])
    found = sharpness(
        "softmax", (whole if added else logits.masked_fill(hidden, MASKS[mask]), -1), {}
    )
    assert found is not None
    if batch * heads * tokens <= 32:  # of fewer queries than the sample each is looked at
        assert found == pytest.approx(every(logits, hidden), rel=1e-4)
    else:
        std, _, entropy = found
        assert 6 < std < 18
        assert entropy < 0.4


@pytest.mark.parametrize(("batch", "heads"), [(32, 1), (8, 4), (16, 8), (1, 64), (4, 24), (1, 1)])
@pytest.mark.parametrize("tokens", [16, 32, 64])
@pytest.mark.parametrize("last", [True, False])
def test_queries_are_spread_whatever_the_shape(
    batch: int, heads: int, tokens: int, last: bool
) -> None:
    """The queries of one half of the sequence are sharp: half of the sample is, wherever the axis
    of queries stands. A sample that is strided by the tokens would see one query alone."""
    logits = drawn((batch, heads, tokens, tokens), 1.0)
    logits[:, :, tokens // 2 :] *= 40
    expected = every(logits, torch.zeros(tokens, dtype=torch.bool))
    found = sharpness("softmax", (logits if last else logits.transpose(1, 2), -1), {})
    assert found is not None
    assert found == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", ["bert", "half", "least of its format", "infinite"])
def test_masks_in_every_precision(dtype: torch.dtype, mask: str) -> None:
    by = torch.finfo(dtype).min if mask not in MASKS else MASKS[mask]
    logits, hidden = drawn((4, 4, 12, 12), 10.0).to(dtype), causal(12)
    found = sharpness("softmax", (logits.masked_fill(hidden, by), -1), {})
    assert found == pytest.approx(every(logits, hidden), rel=0.15)


@pytest.mark.parametrize("mask", sorted(MASKS))
def test_calm_attention_is_calm_under_every_mask(mask: str) -> None:
    """A mask that was taken for logits would have made it the sharpest there is."""
    logits, hidden = drawn((2, 16, 24, 24), 1.0), causal(24)
    found = sharpness("softmax", (logits.masked_fill(hidden, MASKS[mask]), -1), {})
    assert found is not None
    assert math.isnan(found[0])
    wide = sharpness("softmax", (4 * logits.masked_fill(hidden, MASKS[mask]), -1), {})
    assert wide is not None
    assert WIDE < wide[0] < 5


def test_two_masks_added_hide_twice() -> None:
    """Padding and the future, -1e4 each; a query of padding sees no key."""
    logits, hidden = drawn((4, 2, 16, 16), 8.0), causal(16)
    padded = torch.zeros(4, 1, 1, 16, dtype=torch.bool)
    padded[:2, ..., :5] = True
    whole = logits - 1e4 * hidden.float() - 1e4 * padded.float()
    found = sharpness("softmax", (whole, -1), {})
    # A sample of 32 queries: a query's entropy has a standard deviation of about 0.2.
    assert found == pytest.approx(every(logits, hidden | padded), rel=0.2, abs=4 * 0.2 / 32**0.5)


@given(st.integers(2, 6), st.integers(4, 24), st.floats(3e3, 1e6), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_logits_that_are_huge_are_no_masks(batch: int, tokens: int, size: float, seed: int) -> None:
    """They lie as far apart as they lie low."""
    logits = drawn((batch, 2, tokens, tokens), size, seed)
    found = sharpness("softmax", (logits, -1), {})
    assert found is not None
    assert found[0] == pytest.approx(size, rel=0.5), "what lies low was left out"
    assert found[1] > 0.9


def test_what_is_not_finite_is_not_judged() -> None:
    logits = drawn((2, 2, 8, 8), 10.0)
    for number in (math.nan, math.inf):
        logits[0, 0, 0, 0] = number
        assert sharpness("softmax", (logits[:1, :1], -1), {}) is None
