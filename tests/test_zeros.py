"""What begins at zero, or around it, where it should not: each faulty module has a partner that
says nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.measurement import measure


def said(model: nn.Module, batch: Any, loss: Any = None) -> list[str]:
    found: Any = measure(model, batch, loss).settings["causes"]
    return list(found)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words() -> Tensor:
    return torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(0))


def cross_entropy(output: Tensor, given: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), given.flatten().roll(-1))


class Centred(nn.Module):
    """RMS norm whose gain is ``centre + w``."""

    def __init__(self, width: int, centre: float, start: float) -> None:
        super().__init__()
        self.centre = centre
        self.weight = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        return (normed * (self.centre + self.weight)).to(x.dtype)


class Block(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module], width: int = 32) -> None:
        super().__init__()
        self.norm = norm()
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return out


class Language(nn.Module):
    def __init__(self, final: nn.Module, inner: Callable[[], nn.Module], width: int = 32) -> None:
        super().__init__()
        self.table = nn.Embedding(50, width)
        self.blocks = nn.Sequential(*[Block(inner, width) for _ in range(3)])
        self.norm, self.head = final, nn.Linear(width, 50, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.blocks(self.table(tokens))))
        return out


def language(final: Callable[[int], nn.Module], inner: Callable[[int], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return Language(final(32), lambda: inner(32))


FINALS: dict[str, tuple[Callable[[int], nn.Module], Callable[[int], nn.Module]]] = {
    # The gain that is zero, and the one that is meant.
    "0 + w": (lambda n: Centred(n, 0.0, 0.0), lambda n: Centred(n, 0.0, 1.0)),
    "1 + w": (lambda n: Centred(n, 1.0, -1.0), lambda n: Centred(n, 1.0, 0.0)),
    "module": (lambda n: zeroed(nn.LayerNorm(n), "weight"), nn.LayerNorm),
}


def zeroed(module: nn.Module, *names: str) -> nn.Module:
    for name in names:
        nn.init.zeros_(module.get_parameter(name))
    return module


@pytest.mark.parametrize("spelled", FINALS)
def test_a_gain_of_zero_on_every_way_is_named(spelled: str) -> None:
    wrong, right = FINALS[spelled]
    (line,) = said(language(wrong, nn.LayerNorm), words(), cross_entropy)
    assert line.startswith("zero path: the gain of a norm on every way from the input to the")
    assert "0 in all of its 32 channels ('norm.weight')" in line
    # All but the gain itself and, where it has one, the bias behind it.
    assert "; 20 parameters have no gradient at the first step" in line
    assert said(language(right, nn.LayerNorm), words(), cross_entropy) == []


def test_gains_of_zero_in_branches_are_a_recipe() -> None:
    model = language(nn.LayerNorm, nn.LayerNorm)
    for block in model.get_submodule("blocks").children():
        zeroed(block.get_submodule("norm"), "weight")
    assert said(model, words(), cross_entropy) == []
    zeroed(model, "norm.weight")
    assert "('norm.weight')" in "".join(said(model, words(), cross_entropy))


def test_of_norms_after_the_sum_a_gain_of_zero_cuts_the_stream() -> None:
    class After(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(x + self.layer(x))
            return out

    torch.manual_seed(0)
    model = nn.Sequential(*[After() for _ in range(3)])
    assert said(model, drawn(4, 16)) == []
    zeroed(model, "1.norm.weight")
    (line,) = said(model, drawn(4, 16))
    assert "('1.norm.weight')" in line


class Lambdas(nn.Module):
    """Blocks that the first tensor, normed, enters beside the stream: ``a x + b x0``, or without
    it ``b x``, first of all at that tensor itself (``early``) or behind the first block."""

    def __init__(self, norm: Callable[[Tensor], Tensor], early: bool, beside: bool) -> None:
        super().__init__()
        self.embed, self.norm, self.early, self.beside = nn.Linear(8, 32), norm, early, beside
        self.blocks = nn.ModuleList(Block(lambda: nn.LayerNorm(32)) for _ in range(3))
        self.streams, self.firsts = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x0 = self.norm(self.embed(x))
        for i, block in enumerate(self.blocks):
            x = x if self.early else block(x)
            x = self.streams[i] * x + self.firsts[i] * x0 if self.beside else self.firsts[i] * x
            x = block(x) if self.early else x
        return x


NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer": lambda x: F.layer_norm(x, (32,)),
    "rms": lambda x: F.rms_norm(x, (32,)),
    "spelled": lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6),
    "module": nn.LayerNorm(32),
}


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_a_factor_of_zero_cuts_the_way_only_if_the_stream_does_not_go_on_beside_it(
    norm: str, early: bool
) -> None:
    torch.manual_seed(0)
    assert said(Lambdas(NORMS[norm], early, beside=True), drawn(4, 8)) == []
    found = said(Lambdas(NORMS[norm], early, beside=False), drawn(4, 8))
    assert [line.partition(":")[0] for line in found] == ["zero path"] * early


class StateSpace(nn.Module):
    """``x + out(gelu(scan(u)))`` of ``u = norm(x)``: ``h = a h + B u``, ``y = C h + D u``."""

    def __init__(self, norm: nn.Module, through: bool, width: int = 32) -> None:
        super().__init__()
        self.norm, self.through, self.out = norm, through, nn.Linear(width, width)
        self.rate = nn.Parameter(torch.rand(width))
        self.B, self.C, self.D = (nn.Parameter(torch.randn(width)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        u = self.norm(x)
        h, rows = torch.zeros_like(u[:, 0]), []
        for t in range(u.shape[1]) if self.through else ():
            h = torch.sigmoid(self.rate) * h + self.B * u[:, t]
            rows.append(self.C * h + self.D * u[:, t])
        y = torch.stack(rows, 1) if rows else self.B * u
        out: Tensor = x + self.out(F.gelu(y))
        return out


@pytest.mark.parametrize("affine", [True, False])
def test_what_a_state_space_multiplies_by_is_no_gain_of_the_norm(affine: bool) -> None:
    def model(through: bool) -> nn.Module:
        torch.manual_seed(0)
        norms = [nn.LayerNorm(32, elementwise_affine=affine) for _ in range(3)]
        return nn.Sequential(nn.Linear(8, 32), *[StateSpace(norm, through) for norm in norms])

    assert said(model(True), drawn(4, 6, 8)) == []
    # Right behind a norm that has no gain, and read by nothing else, it is one.
    found = said(model(False), drawn(4, 6, 8))
    assert found == [] if affine else "3 norms have gains that were drawn" in found[0]


def test_a_feed_through_beside_a_convolution_is_no_gain_of_the_norm() -> None:
    class Through(nn.Module):
        def __init__(self, beside: bool) -> None:
            super().__init__()
            self.norm, self.beside = nn.LayerNorm(32, elementwise_affine=False), beside
            self.kernel = nn.Conv1d(32, 32, 3, padding=1, groups=32)
            self.D, self.out = nn.Parameter(torch.randn(32)), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            u = self.norm(x).transpose(1, 2)
            y = u * self.D[:, None]
            y = self.kernel(u) + y if self.beside else self.kernel(y)
            out: Tensor = x + self.out(F.gelu(y.transpose(1, 2)))
            return out

    torch.manual_seed(0)
    inside = nn.Linear(8, 32)
    assert said(nn.Sequential(inside, *[Through(True) for _ in range(3)]), drawn(4, 6, 8)) == []
    (line,) = said(nn.Sequential(inside, *[Through(False) for _ in range(3)]), drawn(4, 6, 8))
    assert "3 norms have gains that were drawn" in line


def draw(model: nn.Module, norms: bool) -> nn.Module:
    """A generic rule: every matrix, and if asked every norm, from N(0, .02)."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        for p in module.parameters(recurse=False):
            if norms or not isinstance(module, nn.LayerNorm | nn.BatchNorm1d | Centred):
                nn.init.normal_(p, std=0.02, generator=generator)
    return model


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm, nn.BatchNorm1d, lambda n: Centred(n, 0.0, 1.0)],
    ids=["layer", "batch", "spelled"],
)  # fmt: skip
def test_gains_that_were_drawn_like_weights_are_named(norm: Callable[[int], nn.Module]) -> None:
    def model(norms: bool) -> nn.Module:
        torch.manual_seed(0)
        layers = [Block(lambda: norm(32)) for _ in range(3)]
        return draw(nn.Sequential(*layers, norm(32), nn.Linear(32, 8)), norms)

    (line,) = said(model(True), drawn(6, 32))
    assert line.startswith("norm scale: 4 norms have gains that were drawn around 0, as weights")
    assert "'0.norm.weight', standard deviation 0.019" in line
    assert "begin gains at 1 and biases at 0" in line
    assert said(model(False), drawn(6, 32)) == []


def test_weights_of_gains_that_one_is_added_to_may_lie_around_zero() -> None:
    """What multiplies is 1 + w: a zero-centred gain that has learned."""
    model = language(lambda n: Centred(n, 1.0, 0.0), lambda n: Centred(n, 1.0, 0.0))
    assert said(draw(model, True), words(), cross_entropy) == []
    other = language(lambda n: Centred(n, 0.0, 0.0), lambda n: Centred(n, 0.0, 0.0))
    (line,) = said(draw(other, True), words(), cross_entropy)
    assert "4 norms" in line


def test_gains_that_have_learned_are_no_draw() -> None:
    model = language(nn.LayerNorm, nn.LayerNorm)
    for name, p in model.named_parameters():
        if "norm" in name:
            p.data.add_(0.5 * drawn(*p.shape, seed=len(name)))
    assert said(model, words(), cross_entropy) == []


class Gate(nn.Module):
    """``x + act(gate(x)) * f(x)``."""

    def __init__(self, act: Callable[[Tensor], Tensor], std: float, bias: float | None) -> None:
        super().__init__()
        self.gate, self.f = nn.Linear(32, 32, bias=bias is not None), nn.Linear(32, 32)
        self.act = act
        nn.init.normal_(self.gate.weight, std=std)
        if bias is not None:
            nn.init.constant_(self.gate.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.act(self.gate(x)) * self.f(x)
        return out


def gated(act: Callable[[Tensor], Tensor], std: float, bias: float | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), Gate(act, std, bias), Gate(act, std, bias))


@pytest.mark.parametrize("bias", [None, 0.0])
@pytest.mark.parametrize("act", [F.relu, F.relu6, lambda x: F.relu(x).square()])
def test_a_gate_of_zeros_under_a_relu_is_dead(
    act: Callable[[Tensor], Tensor], bias: float | None
) -> None:
    (line,) = said(gated(act, 0.0, bias), drawn(16, 16))
    assert "dead from the start: 2 activations are given nothing but zeros, where their" in line
    assert "('1', relu" in line
    assert "since '1.gate.weight' is zero" in line
    asleep = 6 if bias is None else 8
    assert f"after 3 steps {asleep} parameters have had no gradient" in line
    assert said(gated(act, 0.02, bias), drawn(16, 16)) == []


@pytest.mark.parametrize("act", [torch.tanh, F.gelu, F.silu, torch.sigmoid])
def test_a_gate_of_zeros_that_has_a_slope_there_wakes(act: Callable[[Tensor], Tensor]) -> None:
    assert said(gated(act, 0.0), drawn(16, 16)) == []


def test_a_gate_of_zeros_with_a_bias_is_open() -> None:
    assert said(gated(F.relu, 0.0, bias=1.0), drawn(16, 16)) == []


def test_a_zero_gain_in_front_of_a_relu_is_dead_and_one_at_a_branch_s_end_is_not() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            self.first, self.last = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.first(self.into(x)))
            return F.relu(x + self.last(self.out(y)))

    def model(*names: str) -> nn.Module:
        torch.manual_seed(0)
        blocks = [zeroed(Normed(), *names) for _ in range(3)]
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * 64, 3))

    images = drawn(4, 4, 8, 8)
    assert said(model("last.weight"), images) == []
    (line,) = said(model("first.weight"), images)
    assert "3 activations are given nothing but zeros" in line
    assert "since '0.first.weight' is zero" in line


def test_zero_last_layers_and_a_zero_head_wake_by_themselves() -> None:
    torch.manual_seed(0)
    blocks = [zeroed(Block(nn.Identity), "down.weight", "down.bias") for _ in range(4)]
    model = nn.Sequential(*blocks, zeroed(nn.Linear(32, 10), "weight"))
    labels = torch.arange(8) % 10
    assert said(model, drawn(8, 32), lambda out: F.cross_entropy(out, labels)) == []
    # A ReLU behind that head is what nothing wakes.
    dead = nn.Sequential(*model, nn.ReLU())
    zeroed(dead, "4.bias")
    assert "since '4.weight' is zero" in "".join(said(dead, drawn(8, 32)))
