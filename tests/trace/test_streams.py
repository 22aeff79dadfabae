"""Where a branch is added: at once, after another has read the sum, or a merge later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge import measure

WIDTH = 8


def branch() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.SiLU(), nn.Linear(32, WIDTH))


class Late(nn.Module):
    """Three blocks of ``function(self, block, x, outputs)``."""

    def __init__(self, function: Callable[[Late, int, Tensor, list[Any]], Tensor]) -> None:
        super().__init__()
        self.stem, self.function = nn.Linear(4, WIDTH), function
        self.f = nn.ModuleList(branch() for _ in range(9))
        self.aside, self.head = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Any:
        outputs: list[Any] = []
        x = self.stem(x)
        for block in range(3):
            x = self.function(self, block, x, outputs)
        return (self.head(x), *outputs)


def two(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[2 * l](x)
    x = x + m.f[2 * l + 1](x)
    y: Tensor = x + c
    return y


def read_between(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[2 * l](x)
    x = x + m.f[2 * l + 1](x)
    out.append(m.aside(x))
    y: Tensor = x + c
    return y


def logged_between(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[2 * l](x)
    x = x + m.f[2 * l + 1](x)
    x.pow(2).mean()
    y: Tensor = x + c
    return y


def a_merge_later(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[3 * l](x)
    x = x + m.f[3 * l + 1](x)
    y: Tensor = x + m.f[3 * l + 2](x) + c
    return y


def a_merge_later_at_once(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[3 * l](x)
    x = x + m.f[3 * l + 1](x)
    y: Tensor = x + (m.f[3 * l + 2](x) + c)
    return y


def after_a_cast(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[3 * l](x)
    x = (x + m.f[3 * l + 1](x)).double().float()
    y: Tensor = x + m.f[3 * l + 2](x) + c
    return y


def after_a_relu(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    c = m.f[3 * l](x)
    x = torch.relu(x + m.f[3 * l + 1](x))
    y: Tensor = x + m.f[3 * l + 2](x) + c
    return y


def turned(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
    x = x + m.f[l](x)
    return x + x.flip(0) if l == 2 else x


@pytest.mark.parametrize(
    ("function", "branches", "parallel"),
    [
        (two, 6, 3),
        (read_between, 6, 0),
        (logged_between, 6, 3),
        (a_merge_later, 9, 3),
        (a_merge_later_at_once, 9, 3),
        (after_a_cast, 9, 3),
        (after_a_relu, 9, 3),
        (turned, 3, 0),
    ],
)
def test_no_branch_is_lost(function: Any, branches: int, parallel: int) -> None:
    torch.manual_seed(0)
    profile = measure(Late(function), torch.randn(16, 4))
    (stream,) = profile.streams
    assert (stream["branches"], stream["parallel"]) == (branches, parallel)
    assert stream["norm_at"] == ["in"]
    assert stream["skip"] == "identity"
    assert stream["m"] == [2] * branches
    assert sum(profile.sites_of("branch_rms")[i].role == "branch" for i in range(3)) == 3


def mean_before(x: Tensor, f: nn.Module) -> Tensor:
    x = x + x.mean(1, keepdim=True)
    y: Tensor = x + f(x)
    return y


def mean_after(x: Tensor, f: nn.Module) -> Tensor:
    x = x + f(x)
    return x + x.mean(1, keepdim=True)


def neighbour_before(x: Tensor, f: nn.Module) -> Tensor:
    x = x + 0.5 * x.roll(1, 1)
    y: Tensor = x + f(x)
    return y


def squashed_after(x: Tensor, f: nn.Module) -> Tensor:
    x = x + f(x)
    return x + torch.sin(x)


class Free(nn.Module):
    """A block in which something is added to the stream that no weights made."""

    def __init__(self, function: Callable[[Tensor, nn.Module], Tensor]) -> None:
        super().__init__()
        self.f, self.function = branch(), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.f)


@pytest.mark.parametrize(
    "function",
    [mean_before, mean_after, neighbour_before, squashed_after],
    ids=lambda f: f.__name__,
)
def test_what_is_made_of_the_stream_without_weights_is_no_branch_in_any_block(
    function: Callable[[Tensor, nn.Module], Tensor],
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, WIDTH), *(Free(function) for _ in range(3)))
    profile = measure(model, torch.randn(3, 5, 4))
    (stream,) = profile.to_dict()["streams"]
    assert (profile.depth, stream["branches"], stream["segments"]) == (3, 3, 1)
    assert (stream["norm_at"], stream["m"]) == (["in"], [2, 2, 2])
    # It is part of the equation between two sums.
    (first, two), (last, one) = ((block["equation"], block["times"]) for block in stream["blocks"])
    assert (two, one) == (2, 1)
    word = {"mean_after": "mean", "squashed_after": "sin"}.get(function.__name__, "Free")
    assert word in first
    assert word not in last


def test_a_branch_that_reads_an_older_state_is_one_though_a_free_term_stands_beside_it() -> None:
    def both(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
        c = m.f[2 * l](x)
        x = x + m.f[2 * l + 1](x)
        out.append(m.aside(x))
        y: Tensor = x + c
        return y

    def mean(m: Late, l: int, x: Tensor, out: list[Any]) -> Tensor:
        x = x + m.f[l](x)
        out.append(m.aside(x))
        return x + x.mean(-1, keepdim=True).expand_as(x)

    for function, branches in ((both, 6), (mean, 3)):
        torch.manual_seed(0)
        (stream,) = measure(Late(function), torch.randn(16, 4)).streams
        assert stream["branches"] == branches


class Half(nn.Module):
    """The first half of the channels is written, the second is passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH // 2)

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first + self.down(F.relu(self.up(x))), second], -1)


@pytest.mark.parametrize("head", [True, False])
def test_half_updates_are_put_together_in_the_last_block_too(head: bool) -> None:
    torch.manual_seed(0)
    ends = [nn.Linear(WIDTH, 3)] if head else []
    model = nn.Sequential(*(Half() for _ in range(3)), *ends)
    profile = measure(model, torch.randn(4, WIDTH))
    (stream,) = profile.to_dict()["streams"]
    assert (stream["branches"], stream["fraction"], profile.depth) == (3, 0.5, 3)
    (block,) = stream["blocks"]
    assert block["times"] == 3
    assert block["equation"].startswith('h = opaque("cat", ')
    assert not profile.to_dict()["coverage"]["fallback"]


def test_a_bias_spread_over_the_stream_is_no_branch() -> None:
    """``bias.expand_as(x)`` takes the shape of x and nothing else."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f, self.bias = branch(), nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x + (self.f(x) + self.bias.expand_as(x))
            return y

    profile = measure(nn.Sequential(*(Biased() for _ in range(3))), torch.randn(16, WIDTH))
    assert profile.branches == 3
    assert profile.streams[0]["parallel"] == 0


# ------------------------------------------------------------- what is a merge, and what is none


class Conditioned(nn.Module):
    """Residual convolutions that a condition is added inside of, a stride between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.down = nn.Conv2d(WIDTH, WIDTH, 3, 2, 1)
        self.condition = nn.Linear(1, WIDTH)
        self.enter = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(3))
        self.emb = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.leave = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        e, x = F.silu(self.condition(t)), self.first(x)
        for k, (a, b, c) in enumerate(zip(self.enter, self.emb, self.leave, strict=True)):
            h = a(F.silu(x)) + b(e)[:, :, None, None]
            x = x + c(F.silu(h))
            x = self.down(x) if k == 0 else x
        return x


class Recurrent(nn.Module):
    """Five steps of a cell, its state from zeros, a parameter or the batch."""

    def __init__(self, cell: type[nn.Module], begins: str) -> None:
        super().__init__()
        self.cell, self.begins = cell(4, WIDTH), begins
        self.start, self.stem = nn.Parameter(torch.randn(1, WIDTH)), nn.Linear(4, WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.zeros(len(x), WIDTH)
        h = {
            "zeros": zeros,
            "parameter": self.start.expand(len(x), -1),
            "batch": self.stem(x[:, 0]),
        }
        state: Any = h[self.begins]
        if isinstance(self.cell, nn.LSTMCell):
            state = (state, state)
        for t in range(5):
            state = self.cell(x[:, t], state)
        out: Tensor = self.head(state[0] if isinstance(state, tuple) else state)
        return out


class Sliced(nn.Module):
    """An LSTM written out, which reads one step of the batch after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.x2h, self.h2h = nn.Linear(4, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), WIDTH)
        for t in range(4):
            i, f, g, o = (self.x2h(x[:, t]) + self.h2h(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        out: Tensor = self.head(h)
        return out


class Queries(nn.Module):
    """A decoder on learned queries that are added to what its attention reads."""

    def __init__(self, position: bool, content: bool = False) -> None:
        super().__init__()
        self.queries, self.stem = nn.Parameter(torch.randn(5, WIDTH)), nn.Linear(4, WIDTH)
        self.content = nn.Parameter(torch.randn(5, WIDTH)) if content else None
        self.own, self.cross = (
            nn.ModuleList(nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))
            for _ in range(2)
        )
        self.norms, self.position = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4)), position

    def forward(self, batch: Tensor) -> Tensor:
        memory = self.stem(batch)
        q = self.queries.expand(len(batch), -1, -1)
        x = torch.zeros_like(q) if self.content is None else self.content.expand(len(batch), -1, -1)
        for k in range(2):
            at = x + q if self.position else x
            x = self.norms[2 * k](x + self.own[k](at, at, x)[0])
            at = x + q if self.position else x
            x = self.norms[2 * k + 1](x + self.cross[k](at, memory, memory)[0])
        return x


class Excited(nn.Module):
    """Blocks whose branch is gated and shifted by what its own means give."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.g = nn.ModuleList(nn.Linear(4, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for f, g in zip(self.f, self.g, strict=True):
            y = f(torch.tanh(x))
            gate, shift = g(y.mean(1, keepdim=True)).chunk(2, -1)
            x = x + torch.sigmoid(gate) * y + shift
        return x


class Pooled(nn.Module):
    """Attentive statistics: a weighted mean, and what is left without it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.score, self.head = (
            nn.Linear(4, WIDTH),
            nn.Linear(WIDTH, 1),
            nn.Linear(16, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        w = self.score(x).softmax(1)
        mean = (w * x).sum(1)
        spread = (w * (x - mean[:, None]) ** 2).sum(1).sqrt()
        out: Tensor = self.head(torch.cat([mean, spread], -1))
        return out


class Outputs(nn.Module):
    """Layers without a skip whose outputs, bent, are summed at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(())
        for layer in self.layers:
            x = torch.tanh(layer(x))
            total = total + torch.relu(x)
        out: Tensor = self.head(total)
        return out


class Coupled(nn.Module):
    """Three affine couplings with alternating masks."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = (
            nn.ModuleList(
                nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3)
            )
            for _ in range(2)
        )
        self.register_buffer("mask", torch.arange(4) % 2 * 1.0)

    def forward(self, x: Tensor) -> Tensor:
        for k, (scale, shift) in enumerate(zip(self.scale, self.shift, strict=True)):
            mask = self.get_buffer("mask") if k % 2 else 1 - self.get_buffer("mask")
            kept = mask * x
            x = kept + (1.0 - mask) * (x * torch.exp(torch.tanh(scale(kept))) + shift(kept))
        out: Tensor = x
        return out


class Refined(nn.Module):
    """A hidden state, gated, that only the next estimate reads."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, WIDTH), nn.Linear(4, 4)
        self.gate, self.new = nn.Linear(WIDTH + 4, WIDTH), nn.Linear(WIDTH + 4, WIDTH)
        self.delta = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))

    def forward(self, x: Tensor) -> Tensor:
        h, y = torch.tanh(self.a(x)), self.b(x)
        for _ in range(3):
            both = torch.cat([h, y], -1)
            z = torch.sigmoid(self.gate(both))
            h = (1 - z) * h + z * torch.tanh(self.new(both))
            y = y + self.delta(h)
        out: Tensor = y
        return out


SEQUENCES = (16, 5, 4)
#: The model, its batch, and of each stream its branches and the kind of its skip.
FOUND: dict[str, tuple[Callable[[], nn.Module], Any, list[tuple[int, str]]]] = {
    "a condition inside of branches": (
        Conditioned,
        (torch.randn(4, 3, 8, 8), torch.rand(4, 1)),
        [(3, "identity")],
    ),
    "a GRU cell from zeros": (lambda: Recurrent(nn.GRUCell, "zeros"), SEQUENCES, [(4, "gated")]),
    "from a parameter": (lambda: Recurrent(nn.GRUCell, "parameter"), SEQUENCES, [(5, "gated")]),
    "from the batch": (lambda: Recurrent(nn.GRUCell, "batch"), SEQUENCES, [(5, "gated")]),
    # The last step's cell state is read by nobody, the first's comes from no stream.
    "an LSTM cell": (lambda: Recurrent(nn.LSTMCell, "zeros"), SEQUENCES, [(3, "gated")]),
    "a plain cell": (lambda: Recurrent(nn.RNNCell, "batch"), SEQUENCES, [(0, "none")]),
    "an LSTM written out": (Sliced, SEQUENCES, [(3, "gated")]),
    "queries without a position": (lambda: Queries(False), SEQUENCES, [(3, "identity")]),
    "queries with a position": (lambda: Queries(True), SEQUENCES, [(3, "identity")]),
    "queries with content and position": (
        lambda: Queries(True, True),
        SEQUENCES,
        [(4, "identity")],
    ),
    "gated and shifted": (Excited, SEQUENCES, [(3, "identity")]),
    "attentive pooling": (Pooled, SEQUENCES, [(0, "none")]),
    "outputs summed": (Outputs, (16, 4), [(0, "none")]),
    "couplings": (Coupled, (16, 4), [(3, "gated")]),
    "a hidden state and an estimate": (Refined, (16, 4), [(3, "gated"), (3, "identity")]),
}


@pytest.mark.parametrize("name", FOUND)
def test_streams_are_those_of_the_definition(name: str) -> None:
    torch.manual_seed(0)
    build, batch, expected = FOUND[name]
    given = batch if isinstance(batch[0], Tensor) else torch.randn(*batch)
    profile = measure(build(), given)
    assert [(s["branches"], s["skip"]) for s in profile.streams] == expected


def test_a_norm_of_what_a_bias_was_taken_off_is_a_norm() -> None:
    """``x * mean((x - bias)^2)^(-1/2)``, after every sum."""

    class BiasNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(0.1 * torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * (x - self.bias).square().mean(-1, keepdim=True) ** -0.5

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f, self.norm = (
                nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)),
                BiasNorm(),
            )

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(x + self.f(x))
            return out

    torch.manual_seed(0)
    (stream,) = measure(nn.Sequential(*(Block() for _ in range(3))), torch.randn(16, 4)).streams
    assert (stream["branches"], stream["norm_at"]) == (3, ["stream"])


class Projected(nn.Module):
    """A block whose skip is a projection, with a norm somewhere; ``where`` says where."""

    def __init__(self, where: str, layer: Callable[[], nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.where, self.norm = where, norm
        self.p, self.a, self.b = layer(), layer(), layer()
        self.skips = nn.Identity() if where == "once" else self.p

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "before":
            x = self.norm(x)
        x = self.skips(x) + self.b(F.relu(self.a(x)))
        return x if self.where == "before" else self.norm(x)


class Added(nn.Module):
    """The sum alone, whose norm a module around both calls."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.p, self.a, self.b = layer(), layer(), layer()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.p(x) + self.b(F.relu(self.a(x)))
        return out


class Two(nn.Module):
    """Two projected sums in one module, each with a norm behind it."""

    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.f, self.g = Projected("in", layer, norm()), Projected("in", layer, norm())

    def forward(self, x: Tensor) -> Tensor:
        return self.g.forward(self.f.forward(x))


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def conv() -> nn.Module:
    return nn.Conv2d(WIDTH, WIDTH, 3, padding=1)


def norm() -> nn.Module:
    return nn.LayerNorm(WIDTH)


#: Blocks whose skips are all projected, with the norm flags by the definition.
PROJECTED: dict[str, tuple[Callable[[], list[nn.Module]], list[str]]] = {
    "post-norm": (lambda: [Projected("behind", linear, norm()) for _ in range(4)], ["stream"]),
    "post-norm, one identity skip": (
        lambda: [Projected("once" if l == 1 else "behind", linear, norm()) for l in range(4)],
        ["stream"],
    ),
    "post-norm, convolutions": (
        lambda: [Projected("behind", conv, nn.BatchNorm2d(WIDTH)) for _ in range(4)],
        ["stream"],
    ),
    "post-norm, by a module around the sum": (
        lambda: [nn.Sequential(Added(linear), norm()) for _ in range(4)],
        ["stream"],
    ),
    "post-norm, two a block": (lambda: [Two(linear) for _ in range(2)], ["stream"]),
    "pre-norm": (lambda: [Projected("before", linear, norm()) for _ in range(4)], ["in"]),
    "pre-activation, convolutions": (
        lambda: [
            Projected("before", conv, nn.Sequential(nn.BatchNorm2d(WIDTH), nn.ReLU()))
            for _ in range(4)
        ],
        ["in"],
    ),
    "pre-norm, by a module around the sum": (
        lambda: [nn.Sequential(norm(), Added(linear)) for _ in range(4)],
        ["in"],
    ),
}


@pytest.mark.parametrize("name", PROJECTED)
def test_whose_norm_stands_between_two_projected_sums(name: str) -> None:
    """The module tells that calls it: that of the sum in front, or that of the sum behind."""
    torch.manual_seed(0)
    blocks, flags = PROJECTED[name]
    images = "convolutions" in name
    stem: nn.Module = nn.Conv2d(3, WIDTH, 3) if images else nn.Linear(3, WIDTH)
    made = blocks()
    profile = measure(
        nn.Sequential(stem, *made), torch.randn(4, 3, 6, 6) if images else torch.randn(4, 3)
    )
    (stream,) = profile.streams
    assert (stream["branches"], stream["norm_at"]) == (4, flags)
    assert stream["skip"] == ("mixed" if "identity" in name else "projected")
    assert len(profile["state_rms"]) == 5
    if flags == ["stream"]:  # whose RMS is that of a fresh norm
        assert profile["state_rms"][1:] == pytest.approx([1.0] * 4, abs=2e-3)
