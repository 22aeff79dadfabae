"""Dead layers, by name: those that cut the stream, those that a path goes around, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import depthgauge as dg
from depthgauge.remarks import remarks

WIDTH = 32
CUT = "no gradient gets back through it"
AROUND = "a path goes around it"


def plain(
    dead: int | None,
    *,
    head_bias: bool = True,
    activation: Callable[[], nn.Module] = nn.ReLU,
    depth: int = 6,
) -> nn.Sequential:
    """He layers; the biases of one may be so low that none of its units ever opens."""
    layers: list[nn.Module] = []
    for k in range(depth):
        linear = nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(linear.weight, std=(2 / WIDTH) ** 0.5)
        nn.init.constant_(linear.bias, -60.0 if k == dead else 0.0)
        layers += [linear, activation()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3, bias=head_bias))


class Block(nn.Module):
    def __init__(self, post: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.post = nn.LayerNorm(WIDTH), post

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            out: Tensor = self.norm(x + self.down(torch.relu(self.up(x))))
            return out
        out = x + self.down(torch.relu(self.up(self.norm(x))))
        return out


class Residual(nn.Module):
    """A stem, residual blocks, a head with a layer of its own; ``dead``: whose units never open."""

    def __init__(self, *dead: str, post: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.ModuleList(Block(post) for _ in range(5))
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))
        for name in dead:
            nn.init.constant_(self.get_parameter(f"{name}.bias"), -60.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


@pytest.mark.parametrize("examples", [1, 2, 16, 200])
@pytest.mark.parametrize("head_bias", [True, False])
@pytest.mark.parametrize("dead", [0, 2, 5])
def test_a_dead_layer_is_the_cause_and_not_a_collapse(
    dead: int, head_bias: bool, examples: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(examples, WIDTH)
    (line,) = remarks(dg.measure(plain(dead, head_bias=head_bias), x))
    where = f"'{2 * dead + 1}' (block {dead + 1})"
    assert line.startswith(f"dead layer: every unit of {where} is 0 for the whole batch: ")
    assert CUT in line
    alive = remarks(dg.measure(plain(None, head_bias=head_bias), x))
    assert not any("dead layer" in said for said in alive)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.SiLU, nn.Softplus])
def test_other_activations_and_a_narrow_type(activation: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, WIDTH)
    for model, batch in (
        (plain(2, activation=activation), x),
        (plain(2, activation=activation).bfloat16(), x.bfloat16()),
    ):
        (line,) = remarks(dg.measure(model, batch))
        assert line.startswith("dead layer: every unit of '5' (block 3)")
        assert CUT in line
    for low in (nn.Tanh, lambda: nn.LeakyReLU(0.1)):  # saturated, or with a slope: not dead
        assert not any(
            "dead layer" in line for line in remarks(dg.measure(plain(2, activation=low), x))
        )


def test_a_layer_that_one_example_opens_is_not_dead() -> None:
    torch.manual_seed(0)
    model, x = plain(2), torch.randn(16, WIDTH)
    x[3] *= 1e3
    assert not any("dead layer" in line for line in remarks(dg.measure(model, x)))


@pytest.mark.parametrize("post", [False, True])
def test_around_a_dead_branch_the_stream_goes_on(post: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, WIDTH)
    (line,) = remarks(dg.measure(Residual("blocks.2.up", post=post), x))
    assert line.startswith("dead layer: every unit of 'blocks.2.relu' (block 3) is 0 for")
    assert AROUND in line
    (line,) = remarks(dg.measure(Residual("blocks.2.up", "blocks.4.up", post=post), x))
    assert "the whole batch, as in 'blocks.4.relu': that branch" in line
    names = [f"blocks.{k}.up" for k in range(5)]
    (line,) = remarks(dg.measure(Residual(*names, post=post), x))
    assert line.startswith("dead layer: every unit of 'blocks.0.relu' (block 1)")
    assert "as in 4 more layers" in line
    assert remarks(dg.measure(Residual(post=post), x)) == []


@pytest.mark.parametrize("name", ["stem", "head"])
def test_outside_of_the_blocks(name: str) -> None:
    """Behind a dead stem all examples are alike, which is no fault of the batch."""
    torch.manual_seed(0)
    x = torch.randn(16, WIDTH)
    (line,) = remarks(dg.measure(Residual(f"{name}.0"), x))
    assert line.startswith(f"dead layer: every unit of '{name}.1'")
    assert CUT in line
    (line,) = remarks(dg.measure(Residual(), x[:1].repeat(16, 1)))
    assert line.startswith("all examples are alike at the input already")


def test_a_dead_branch_does_not_hide_a_collapse_nor_a_collapse_a_dead_layer() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, WIDTH)
    deep = plain(45, depth=48)
    dead, collapse = remarks(dg.measure(deep, x))
    assert dead.startswith("dead layer: every unit of '91' (block 46)")
    assert collapse.startswith("collapse: all examples come to point one way")
    assert "at block 45, " in collapse  # not of what stands behind the dead layer
    assert collapse.endswith("are so because the examples are alike")
    (line,) = remarks(dg.measure(plain(None, depth=48)[:-1], x))
    assert line.startswith("collapse: all examples come to point one way")

    class Drawn(nn.Module):
        """Keeps little of what tells examples apart."""

        def forward(self, x: Tensor) -> Tensor:
            return x + 3 * torch.ones_like(x)

    model = nn.Sequential(*(m for _ in range(4) for m in (Block(False), Drawn())))
    nn.init.constant_(model.get_parameter("2.up.bias"), -60.0)
    dead, collapse = remarks(dg.measure(model, x))
    assert "'2.relu'" in dead
    assert AROUND in dead
    assert collapse.startswith("collapse: all examples come to point one way")


def test_a_layer_of_zeros_is_not_a_collapse_either() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(5))), torch.randn(16, WIDTH)
    for name in ("weight", "bias"):
        nn.init.zeros_(model.get_parameter(f"2.{name}"))
    lines = remarks(dg.measure(model, x))
    assert any(line.startswith("the state of '2' (block 3) is 0 for the whole") for line in lines)
    assert not any(line.startswith("collapse") for line in lines)
    nn.init.ones_(model.get_parameter("2.bias"))  # the examples come to be alike, and none is 0
    lines = remarks(dg.measure(model, x))
    assert any(line.startswith("collapse") for line in lines)
    assert not any(" is 0 for the whole" in line for line in lines)


@pytest.mark.parametrize("seed", [1, [1, 2, 3]])
@pytest.mark.parametrize("at", [1, 3, 6])
def test_equations(at: int, seed: int | list[int]) -> None:
    shift = f"100*max(0, 1-abs(l-{at}))"

    def found(equation: str) -> list[str]:
        every = remarks(dg.measure(equation, 16, depth=6, width=WIDTH, seed=seed))
        return [line for line in every if "dead layer" in line]

    of = " (3 of 3 seeds)" if isinstance(seed, list) else ""
    for equation, what in (
        (f"relu(W1(h) - {shift})", CUT),
        (f"h + W2(relu(W1(h) - {shift}))", AROUND),
        (f"W2(relu(W1(h) - {shift}), bias=True)", CUT),
    ):
        (line,) = found(equation)
        assert line.startswith(f"dead layer: every unit of 'blocks.{at - 1}.relu.1' (block {at})")
        assert what in line
        assert line.endswith(f"in front of it{of}")
        assert found(equation.replace("100*", "0*")) == []


def test_without_a_gradient_the_states_tell() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, WIDTH)
    for model, what in ((plain(2), CUT), (Residual("blocks.2.up"), AROUND)):
        frozen = model.requires_grad_(False)
        (line,) = remarks(dg.measure(frozen, x))
        assert line.startswith("dead layer")
        assert (CUT in line) == (what == CUT)
