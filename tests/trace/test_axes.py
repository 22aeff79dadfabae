"""Which axis of a batch counts its examples: what the pass says, and what is compared then."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import depthgauge as dg
from depthgauge.errors import SpecificationError
from depthgauge.profile_text import text
from depthgauge.remarks import remarks
from depthgauge.trace.axes import examples_along
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import run

SEQUENCES, POSITIONS, WIDTH = 4, 10, 16


def encoder(first: bool) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def sequences(count: int = SEQUENCES, positions: int = POSITIONS) -> Tensor:
    return torch.randn(count, positions, WIDTH, generator=torch.Generator().manual_seed(1))


class Heads(nn.Module):
    """``h + attention(h)`` written by hand in several ways; ``first``: of (examples, positions)."""

    def __init__(self, way: str, first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.way, self.first = way, first

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(h).chunk(3, -1)
        found: Tensor = getattr(self, self.way)(q, k, v)
        out: Tensor = h + self.out(found)
        return out

    def fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        axes = (0, 2, 1, 3) if self.first else (1, 2, 0, 3)
        a, b, c = (x.view(*x.shape[:2], 2, -1).permute(axes) for x in (q, k, v))
        back = (0, 2, 1, 3) if self.first else (2, 0, 1, 3)
        return F.scaled_dot_product_attention(a, b, c).permute(back).flatten(2)

    def products(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Examples and heads in one axis, as fairseq has them."""
        if self.first:
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        count = q.shape[1]
        a, b, c = (
            x.contiguous().view(len(x), count * 2, WIDTH // 2).transpose(0, 1) for x in (q, k, v)
        )
        weights = torch.softmax(torch.bmm(a, b.transpose(1, 2)) / math.sqrt(WIDTH // 2), -1)
        out = torch.bmm(weights, c).transpose(0, 1).reshape(len(q), count, WIDTH)
        return out.transpose(0, 1) if self.first else out

    def letters(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a, b, c = (x.view(*x.shape[:2], 2, -1) for x in (q, k, v))
        if self.first:
            scores = torch.einsum("bind,bjnd->bnij", a, b)
            return torch.einsum("bnij,bjnd->bind", scores.softmax(-1), c).flatten(2)
        scores = torch.einsum("ibnd,jbnd->ijbn", a, b)
        return torch.einsum("ijbn,jbnd->ibnd", scores.softmax(1), c).flatten(2)


class Recurrent(nn.Module):
    def __init__(self, layer: Any, first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = layer(WIDTH, WIDTH, batch_first=first)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out


class Cell(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.first = nn.GRUCell(WIDTH, WIDTH), first

    def forward(self, x: Tensor) -> Tensor:
        axis = 1 if self.first else 0
        h = x.new_zeros(x.shape[1 - axis], WIDTH)
        for t in range(x.shape[axis]):
            h = self.cell(x.select(axis, t), h)
        return h


MODELS: dict[str, Any] = {
    "encoder": encoder,
    "fused": lambda first: Heads("fused", first),
    "products": lambda first: Heads("products", first),
    "letters": lambda first: Heads("letters", first),
    "lstm": lambda first: Recurrent(nn.LSTM, first),
    "gru": lambda first: Recurrent(nn.GRU, first),
    "rnn": lambda first: Recurrent(nn.RNN, first),
    "cell": Cell,
}


def axis_of(model: nn.Module, batch: Any) -> int:
    return run(model, batch, None, Readings((), (), (), False)).axis


@pytest.mark.parametrize("positions", [POSITIONS, SEQUENCES, 1])
@pytest.mark.parametrize("name", MODELS)
def test_the_pass_says_which_axis_counts_examples(name: str, positions: int) -> None:
    x = sequences(positions=positions)
    assert axis_of(MODELS[name](True), x) == 0
    assert axis_of(MODELS[name](False), x.transpose(0, 1)) == 1


@pytest.mark.parametrize("name", ["encoder", "lstm", "gru", "rnn"])
def test_one_example(name: str) -> None:
    x = sequences(1)
    assert axis_of(MODELS[name](True), x) == 0
    assert axis_of(MODELS[name](False), x.transpose(0, 1)) == 1


@pytest.mark.parametrize("name", MODELS)
def test_numbers_do_not_depend_on_the_order_of_axes(name: str) -> None:
    x = sequences()
    one = dg.measure(MODELS[name](True), x)
    other = dg.measure(MODELS[name](False), x.transpose(0, 1).contiguous())
    assert (one.batch, other.batch) == (SEQUENCES, SEQUENCES)
    assert set(one.columns) == set(other.columns)
    for quantity in ("correlation", "token_correlation", "dead_fraction", "state_rms"):
        if quantity in one:
            np.testing.assert_allclose(one[quantity], other[quantity], atol=1e-4, err_msg=quantity)


def by_hand(h: Tensor) -> tuple[float, float]:
    """Of states (examples, positions, width), pair by pair: between examples, between positions."""

    def mean(rows: list[Tensor]) -> float:
        pairs = [(a, b) for a in range(len(rows)) for b in range(len(rows)) if a != b]
        return sum(float(F.cosine_similarity(rows[a], rows[b], 0)) for a, b in pairs) / len(pairs)

    h = h.detach().double()
    return mean([x.flatten() for x in h]), sum(mean(list(x)) for x in h) / len(h)


@pytest.mark.parametrize("positions", [POSITIONS, SEQUENCES])
def test_correlations_against_pairs(positions: int) -> None:
    """As many positions as examples, too: sizes do not tell then, and the pass does."""
    x = sequences(positions=positions).transpose(0, 1).contiguous()
    profile = dg.measure(model := encoder(False), x)
    h, expected = x, [by_hand(x.transpose(0, 1))]
    for layer in model.layers:  # type: ignore[union-attr]
        h = layer.norm1(h + layer.self_attn(h, h, h)[0])
        expected.append(by_hand(h.transpose(0, 1)))
        h = layer.norm2(h + layer.linear2(F.relu(layer.linear1(h))))
        expected.append(by_hand(h.transpose(0, 1)))
    for place, quantity in enumerate(("correlation", "token_correlation")):
        column = profile[quantity][:, 0] if profile[quantity].ndim > 1 else profile[quantity]
        assert column[-1] == pytest.approx(expected[-1][place], abs=1e-4)
        assert column[0] == pytest.approx(expected[0][place], abs=1e-4)


class Turned(nn.Module):
    """Takes (examples, positions, width), and exchanges the axes inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = encoder(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.transpose(0, 1))
        return out


@pytest.mark.parametrize("positions", [POSITIONS, SEQUENCES])
def test_axes_that_are_exchanged_inside(positions: int) -> None:
    x = sequences(positions=positions)
    one, other = dg.measure(Turned(), x), dg.measure(encoder(True), x)
    assert one.batch == SEQUENCES
    assert "batch_axis" not in one.settings
    for quantity in ("correlation", "token_correlation"):
        np.testing.assert_allclose(one[quantity][-1], other[quantity][-1], atol=1e-4)


class Across(nn.Module):
    """Attention between features and, of the same numbers, between examples (SAINT)."""

    def __init__(self, *between: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, 2, batch_first=not across) for across in between
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x)[0]
        return x


@pytest.mark.parametrize("between", [(False, True), (True, False), (False, False)])
def test_one_call_that_finds_examples_first_is_enough(between: tuple[bool, ...]) -> None:
    assert axis_of(Across(*between), sequences()) == 0


def test_a_model_without_such_calls_counts_along_the_first_axis() -> None:
    for x in (torch.randn(5, WIDTH), torch.randn(5, 3, WIDTH)):
        profile = dg.measure(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()), x)
        assert profile.batch == 5
    assert examples_along(run(nn.Linear(2, 2), torch.randn(2), None, Readings((), (), (), False))
                          .graph) == (0, "")  # fmt: skip


# ------------------------------------------------------------------------- what is said


def test_the_profile_says_that_examples_are_not_first() -> None:
    x = sequences().transpose(0, 1)
    profile = dg.measure(encoder(False), x)
    assert profile.settings["batch_axis"] == 1
    said = [line for line in remarks(profile) if "counted along axis 1" in line]
    assert said == [
        "examples are counted along axis 1 of the batch, since the attention in "
        "'layers.0.self_attn' takes axis 0 for positions: if its first axis holds examples, that "
        "layer mixes them (batch_first=True does not)"
    ]
    assert "batch 4 (examples along axis 1)" in text(profile)
    other = dg.measure(encoder(True), sequences())
    assert not [line for line in remarks(other) if "counted along" in line]
    assert "along axis" not in text(other)


def test_positions_that_collapse_are_called_positions() -> None:
    """Attention averages the positions of a sequence; sequences stay apart."""

    class Averaged(nn.Module):
        def __init__(self, first: bool) -> None:
            super().__init__()
            self.heads = nn.ModuleList(
                nn.MultiheadAttention(WIDTH, 1, bias=False, batch_first=first) for _ in range(2)
            )
            with torch.no_grad():
                for m in self.heads:
                    m.in_proj_weight.zero_()  # type: ignore[operator]
                    m.in_proj_weight[2 * WIDTH :] = torch.eye(WIDTH)  # type: ignore[operator]
                    m.out_proj.weight.copy_(9 * torch.eye(WIDTH))  # type: ignore[operator, union-attr]

        def forward(self, h: Tensor) -> Tensor:
            for m in self.heads:
                h = h + m(h, h, h)[0]
            return h

    for first in (True, False):
        x = sequences() if first else sequences().transpose(0, 1)
        said = [line for line in remarks(dg.measure(Averaged(first), x)) if "collapse" in line]
        assert len(said) == 1
        assert said[0].startswith("collapse: all positions of an example come to point one way")


def test_a_batch_of_one_sequence_has_no_other() -> None:
    profile = dg.measure(encoder(False), sequences(1).transpose(0, 1))
    assert profile.batch == 1
    assert profile.not_measured["correlation"] == "a batch of one example has no second one"


class OverExamples(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([POSITIONS if first else SEQUENCES, WIDTH])
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.heads = nn.MultiheadAttention(WIDTH, 2, batch_first=first)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.linear(self.norm(h))
        out: Tensor = h + self.heads(h, h, h)[0]
        return out


def test_a_norm_over_examples_is_called_that() -> None:
    for first, words in ((True, "positions and channels"), (False, "examples and channels")):
        x = sequences() if first else sequences().transpose(0, 1)
        (said,) = [
            line for line in remarks(dg.measure(OverExamples(first), x)) if "norm ax" in line
        ]
        assert words in said


# ---------------------------------------------------------------------- labels and spectra


@pytest.mark.parametrize("labels", [
    torch.arange(SEQUENCES) % 2, torch.arange(SEQUENCES * POSITIONS).view(SEQUENCES, -1) % 3,
])  # fmt: skip
def test_labels_of_sequences_and_of_their_positions(labels: Tensor) -> None:
    x = sequences()
    one = dg.measure(encoder(True), x, labels=labels)
    other = dg.measure(encoder(False), x.transpose(0, 1), labels=labels)
    for quantity in ("class_gain", "class_share"):
        np.testing.assert_allclose(one[quantity], other[quantity], rtol=1e-3)


def test_labels_of_positions_alone_are_refused() -> None:
    x = sequences().transpose(0, 1)
    profile = dg.measure(encoder(False), x, labels=torch.arange(POSITIONS) % 2)
    assert "there are 10 labels" in profile.not_measured["class_gain"]


def test_labels_that_are_a_part_of_the_batch_lie_as_it_does() -> None:
    class Told(nn.Module):
        def __init__(self, first: bool) -> None:
            super().__init__()
            self.inner = encoder(first)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out

    x = sequences(positions=SEQUENCES)
    y = torch.arange(SEQUENCES**2).view(SEQUENCES, -1) % 5 % 3
    one = dg.measure(Told(True), (x, y), labels=y)
    turned = y.T.contiguous()
    other = dg.measure(Told(False), (x.transpose(0, 1), turned), labels=turned)
    np.testing.assert_allclose(one["class_share"], other["class_share"], rtol=1e-3)


def test_jacobians_are_of_whole_sequences() -> None:
    x, names = sequences(3, 4), ("apjn", "spectrum", "blocks")
    effort = dg.Effort(examples=2)
    one = dg.measure(encoder(True), x, instruments=names, effort=effort)
    other = dg.measure(encoder(False), x.transpose(0, 1), instruments=names, effort=effort)
    for quantity in ("block_gain", "effective_rank_participation", "stable_rank"):
        np.testing.assert_allclose(one[quantity], other[quantity], rtol=1e-2)


# --------------------------------------------------------------------------- what is given


def test_the_axis_given_is_used() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.one = nn.Linear(WIDTH, WIDTH)

        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = h + self.one(h)
            return out

    x, model = sequences(), Plain()
    one = dg.measure(model, x)
    other = dg.measure(model, x.transpose(0, 1), batch_axis=1)
    assert other.batch == SEQUENCES
    np.testing.assert_allclose(one["correlation"], other["correlation"], atol=1e-6)
    np.testing.assert_allclose(one["token_correlation"], other["token_correlation"], atol=1e-6)
    assert not [line for line in remarks(other) if "counted along" in line]
    assert "batch 4 (examples along axis 1)" in text(other)
    against = dg.measure(encoder(False), x, batch_axis=0)
    assert against.batch == SEQUENCES
    assert "batch_axis" not in against.settings


@pytest.mark.parametrize("axis", [-1, 3, True, 1.0, "1"])
def test_an_axis_that_is_none(axis: Any) -> None:
    with pytest.raises(
        SpecificationError, match=r"batch_axis is .*, expected the axis of the batch"
    ):
        dg.measure(encoder(True), sequences(), batch_axis=axis)


def test_an_equation_has_no_axis_to_choose() -> None:
    with pytest.raises(SpecificationError, match="batch_axis was given with an equation"):
        dg.measure("h + W(h)", 8, depth=2, width=4, batch_axis=1)
