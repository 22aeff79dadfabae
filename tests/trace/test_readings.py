"""What is read at every sum and state, against a slow pass of autograd in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge import Profile, measure
from depthgauge.instruments import gates
from depthgauge.network.activations import Gate, gate
from depthgauge.trace.readings import _dead

WIDTH, DEPTH, BATCH = 8, 3, 64
EXACT = 1e-10


class Block(nn.Module):
    def __init__(self, function: Callable[[Block, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.n = function, nn.LayerNorm(WIDTH)
        self.g = nn.Linear(WIDTH, WIDTH)
        self.f = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def model(function: Callable[[Block, Tensor], Tensor]) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    blocks = [Block(function) for _ in range(DEPTH)]
    made = nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks, nn.Linear(WIDTH, 2)).double()
    return made, torch.randn(BATCH, WIDTH, dtype=torch.float64)


def rms(x: Tensor) -> float:
    return x.detach().square().mean().sqrt().item()


def reference(made: nn.Sequential, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Every state and its gradient, by keeping them all."""
    states = [made[0](x)]
    for block in list(made)[1:-1]:
        states.append(block(states[-1]))
    out = made[-1](states[-1])
    draw = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    draw = (draw / draw.square().mean().sqrt()).to(out)
    return states, list(torch.autograd.grad((out * draw).sum(), states))


def through_a_view(z: Tensor, y: Tensor) -> Tensor:
    z.view(-1).add_(y.view(-1))
    return z


def numbers() -> Tensor:
    return torch.tensor([0.8, -0.3], dtype=torch.float64)


def deep(block: Block, x: Tensor) -> Tensor:
    """Many values made one from the other."""
    x = block.n(x)
    for _ in range(8):
        x = torch.tanh(block.g(x))
    out: Tensor = block.f(x)
    return out


#: A block, and what it adds to which stream: (stream, branch) of every addition, in order.
Added = Callable[[Block, Tensor], list[tuple[Tensor, Tensor]]]
SUMS: dict[str, tuple[Callable[[Block, Tensor], Tensor], Added]] = {
    "plain": (lambda b, x: x + b.f(x), lambda b, x: [(x, b.f(x))]),
    "turned round": (lambda b, x: b.f(x) + x, lambda b, x: [(x, b.f(x))]),
    "alpha": (lambda b, x: torch.add(x, b.f(x), alpha=0.3), lambda b, x: [(x, 0.3 * b.f(x))]),
    "alpha on the skip": (
        lambda b, x: torch.add(b.f(x), x, alpha=0.3),
        lambda b, x: [(0.3 * x, b.f(x))],
    ),
    "minus": (lambda b, x: x - b.f(x), lambda b, x: [(x, -b.f(x))]),
    "from the branch": (lambda b, x: b.f(x) - x, lambda b, x: [(-x, b.f(x))]),
    "lerp": (
        lambda b, x: torch.lerp(x, b.f(x), 0.3),
        lambda b, x: [(0.7 * x, 0.3 * b.f(x))],
    ),
    "DeepNorm": (lambda b, x: b.n(2.4 * x + b.f(x)), lambda b, x: [(2.4 * x, b.f(x))]),
    "pre-norm, scaled skip": (
        lambda b, x: 0.8 * x + b.f(b.n(x)),
        lambda b, x: [(0.8 * x, b.f(b.n(x)))],
    ),
    "halved": (lambda b, x: (x + b.f(x)) * 0.5, lambda b, x: [(x, b.f(x))]),
    "post-norm": (lambda b, x: b.n(x + b.f(x)), lambda b, x: [(x, b.f(x))]),
    "post-norm after dropout": (
        lambda b, x: b.n(F.dropout(x + b.f(x), 0.0)),
        lambda b, x: [(x, b.f(x))],
    ),
    "two in turn": (
        lambda b, x: x + b.f(x) + b.g(x),
        lambda b, x: [(x, b.f(x)), (x + b.f(x), b.g(x))],
    ),
    "two, the linear one first": (
        lambda b, x: b.g(x) + (x + b.f(x)),
        lambda b, x: [(x, b.f(x)), (x + b.f(x), b.g(x))],
    ),
    "two at once": (
        lambda b, x: x + (b.f(x) + b.g(x)),
        lambda b, x: [(x, b.f(x) + b.g(x))],
    ),
    "addcmul": (
        lambda b, x: torch.addcmul(x, b.n.weight, b.f(x)),
        lambda b, x: [(x, b.n.weight * b.f(x))],
    ),
    "addmm": (
        lambda b, x: torch.addmm(x, F.relu(b.g(x)), b.g.weight.T),
        lambda b, x: [(x, F.relu(b.g(x)) @ b.g.weight.T)],
    ),
    "in place": (
        lambda b, x: x.clone().add_(b.f(x)),
        lambda b, x: [(x, b.f(x))],
    ),
    "in place through a view": (
        lambda b, x: through_a_view(x.clone(), b.f(x)),
        lambda b, x: [(x, b.f(x))],
    ),
    "a stack's sum": (
        lambda b, x: torch.stack([x, b.f(b.n(x))]).sum(0),
        lambda b, x: [(x, b.f(b.n(x)))],
    ),
    "a stack's mean": (
        lambda b, x: torch.stack((b.f(b.n(x)), x), dim=1).mean(1) * 2,
        lambda b, x: [(0.5 * x, 0.5 * b.f(b.n(x)))],
    ),
    "a stack of three": (
        lambda b, x: torch.stack([x, b.f(x), F.relu(b.g(x))], -1).sum(-1),
        lambda b, x: [(x, b.f(x) + F.relu(b.g(x)))],
    ),
    "einsum of a stack": (
        lambda b, x: torch.einsum("k,kbn->bn", numbers(), torch.stack([x, b.f(b.n(x))])),
        lambda b, x: [(0.8 * x, -0.3 * b.f(b.n(x)))],
    ),
    "einsum of a stack, the other way": (
        lambda b, x: torch.einsum("bkn,k->bn", torch.stack([x, b.f(b.n(x))], 1), numbers()),
        lambda b, x: [(0.8 * x, -0.3 * b.f(b.n(x)))],
    ),
    "a stack whose part is written over": (
        lambda b, x: torch.stack([x, b.f(b.n(x))]).sum(0).relu_() + 0.0,
        lambda b, x: [(x, b.f(b.n(x)))],
    ),
    "a long branch in front of a scaled skip": (
        lambda b, x: 0.8 * x + deep(b, x),
        lambda b, x: [(0.8 * x, deep(b, x))],
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_states_and_gradients(name: str) -> None:
    made, x = model(SUMS[name][0])
    states, gradients = reference(made, x)
    profile = measure(made, x)
    assert profile["state_rms"] == pytest.approx([rms(s) for s in states], rel=EXACT)
    assert profile["state_max"] == pytest.approx([s.abs().max().item() for s in states], rel=EXACT)
    assert profile["state_mean"] == pytest.approx([s.mean().item() for s in states], rel=1e-8)
    assert profile["gradient_rms"] == pytest.approx([rms(g) for g in gradients], rel=EXACT)


@pytest.mark.parametrize("name", SUMS)
def test_branches(name: str) -> None:
    function, added = SUMS[name]
    made, x = model(function)
    states, _ = reference(made, x)
    expected = []
    for block, h in zip(list(made)[1:-1], states, strict=False):
        assert isinstance(block, Block)
        expected += added(block, h.detach())
    profile: Profile = measure(made, x)
    assert profile["branch_rms"] == pytest.approx([rms(b) for _, b in expected], rel=1e-8)
    ratios = [rms(b) / rms(s) for s, b in expected]
    assert profile["branch_to_stream"] == pytest.approx(ratios, rel=1e-8)
    cosines = [
        F.cosine_similarity(s.detach().flatten(), b.detach().flatten(), dim=0).item()
        for s, b in expected
    ]
    assert profile["branch_stream_cosine"] == pytest.approx(cosines, abs=1e-8)


class Scaled(nn.Module):
    """A pre-norm block that scales its skip; ``long``: with more functions in its branch than the
    tensors that are held."""

    def __init__(self, long: bool) -> None:
        super().__init__()
        self.n, self.long = nn.LayerNorm(WIDTH), long
        self.f = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        u = self.n(x)
        for _ in range(20 if self.long else 1):
            u = torch.tanh(u * 1.1)
        added: Tensor = self.f(u)
        return 0.8 * x + added


def stack(stem: bool, long: bool) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    first = nn.Linear(WIDTH, WIDTH) if stem else nn.Identity()
    made = nn.Sequential(first, *(Scaled(long) for _ in range(DEPTH)), nn.Linear(WIDTH, 2))
    return made.double(), torch.randn(BATCH, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("stem", [False, True])
def test_the_first_state_of_a_scaled_skip(stem: bool, long: bool) -> None:
    """The batch itself, or what a stem has made of it long before the sum."""
    made, x = stack(stem, long)
    states, gradients = reference(made, x.clone().requires_grad_())
    profile = measure(made, x)
    assert profile["state_rms"] == pytest.approx([rms(s) for s in states], rel=EXACT)
    assert profile["gradient_rms"] == pytest.approx([rms(g) for g in gradients], rel=EXACT)
    assert "forward_drift" in profile.summary()


def test_a_batch_that_takes_no_gradient_is_no_state() -> None:
    class Refuses(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            if input.requires_grad:
                raise ValueError("give numbers that are given")
            made: Tensor = super().forward(input)
            return made

    made, x = stack(stem=False, long=False)
    given, refused = measure(made, x), measure(Refuses(*made), x)
    # What no gradient leads to is no stream: it begins behind the first block.
    for column in ("state_rms", "gradient_rms"):
        assert len(given[column]) == DEPTH + 1
        assert refused[column] == pytest.approx(given[column][1:], rel=EXACT)


def test_a_number_that_is_wrong_is_seen() -> None:
    """The reference of one block is not that of another."""
    made, x = model(SUMS["plain"][0])
    states, _ = reference(*model(SUMS["minus"][0]))
    assert measure(made, x)["state_rms"] != pytest.approx([rms(s) for s in states], rel=1e-3)


def test_dead_units_of_a_plain_convolutional_network() -> None:
    """Channels, also where no merge has come yet."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(200, 2),
    )
    x = torch.randn(4, 3, 9, 9)
    with torch.no_grad():
        for layer in (made[0], made[2]):
            layer.bias[:4] = -50  # type: ignore[operator]
    assert measure(made, x)["dead_fraction"].tolist() == [0.5, 0.5]
    with torch.no_grad():
        made[0].bias[:4] = 50  # type: ignore[operator]
    assert measure(made, x)["dead_fraction"][0] == 0


@pytest.mark.parametrize("in_place", [False, True])
def test_gates_of_an_activation_that_works_in_place(in_place: bool) -> None:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(8, 16), nn.SiLU(inplace=in_place), nn.Linear(16, 2)).double()
    x = torch.randn(32, 8, dtype=torch.float64)
    z = made[0](x).detach().requires_grad_()
    (slope,) = torch.autograd.grad(F.silu(z).sum(), z)
    slope = slope.abs()
    profile = measure(made, x)
    assert profile["live_derivative_fraction"].item() == (slope > 0.1).double().mean().item()
    ordered = slope.flatten().sort().values
    for name, q in (("q05", 0.05), ("q50", 0.5), ("q95", 0.95)):
        expected = ordered[math.ceil(q * len(ordered)) - 1].item()
        assert profile[f"derivative_{name}"].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("front", "behind", "size"),
    [
        (nn.Linear(6, 8), nn.Linear(8, 2), (32, 6)),
        (nn.Linear(6, 8), nn.Linear(8, 2), (4096, 6)),  # of which a sample is taken
        (nn.Conv1d(3, 8, 3), nn.Conv1d(8, 2, 1), (4, 3, 9)),
        (nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 1), (4, 3, 9, 9)),
        (nn.Conv3d(3, 8, 3), nn.Conv3d(8, 2, 1), (2, 3, 5, 5, 5)),
    ],
)
def test_gates_of_an_activation_with_a_slope_a_channel(
    front: nn.Module, behind: nn.Module, size: tuple[int, ...]
) -> None:
    """Three channels of four pass what is negative, two of them hardly; one with a bias of -50 and
    the slope 0 is dead."""
    torch.manual_seed(0)
    prelu = nn.PReLU(8)
    made = nn.Sequential(front, prelu, behind).double()
    with torch.no_grad():
        prelu.weight.copy_(torch.tensor([0.0, 0.005, 0.005, 0.5] * 2, dtype=torch.float64))
        front.bias[0] = -50  # type: ignore[operator]
    x = torch.randn(size, dtype=torch.float64)
    z = front(x).detach().requires_grad_()
    (slope,) = torch.autograd.grad(F.prelu(z, prelu.weight).sum(), z)
    flat = slope.abs().flatten()
    profile = measure(made, x)
    names = ("live_derivative_fraction", "saturated_fraction", "dead_fraction", "derivative_q50")
    live, saturated, dead, middle = (profile[name].item() for name in names)
    tolerance = 1e-12 if flat.numel() <= 2**13 else 0.03
    assert live == pytest.approx((flat > 0.1).double().mean().item(), abs=tolerance)
    assert saturated == pytest.approx((flat < 0.01).double().mean().item(), abs=tolerance)
    assert dead == 1 / 8
    assert middle in {0.0, 0.005, 0.5, 1.0}
    one = F.prelu(z, prelu.weight.mean()[None])
    (other,) = torch.autograd.grad(one.sum(), z)
    assert saturated != pytest.approx((other.abs() < 0.01).double().mean().item(), abs=0.1)


class Spelled(nn.Module):
    """GELU in the form of tanh, written out: an activation in six functions."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def test_an_activation_in_several_functions_is_one() -> None:
    torch.manual_seed(0)
    twin = nn.Sequential(nn.Linear(8, 16), nn.GELU("tanh"), nn.Linear(16, 2)).double()
    spelled = nn.Sequential(twin[0], Spelled(), twin[2])
    x = torch.randn(32, 8, dtype=torch.float64)
    one, other = measure(twin, x), measure(spelled, x)
    assert [s.path for s in other.sites_of("dead_fraction")] == ["1"]
    for name in ("live_derivative_fraction", "saturated_fraction", "derivative_q50"):
        assert other[name] == pytest.approx(one[name], rel=1e-9)
    assert other.equation == one.equation == "h = gelu(W(h)); h = W(h)"


def test_an_expert_without_tokens_is_no_crash() -> None:
    def experts(b: Block, x: Tensor) -> Tensor:
        none = torch.zeros(0, dtype=torch.long)
        return x.index_add(0, none, b.g(F.relu(b.g(x[none]))))

    made, x = model(experts)
    assert measure(made, x).branches == DEPTH


def test_numbers_that_stay_on_a_device_are_the_same() -> None:
    """The way of a GPU, on the CPU: statistics as one tensor, fetched at the end."""
    from depthgauge.trace import reductions

    x = torch.randn(1000, dtype=torch.float64)
    names = ("rms", "mean", "max", "nonfinite", "q01", "q50", "q99", "q999")
    there, here = reductions._on_device(x, names).tolist(), reductions.numbers(x, names)
    assert there == pytest.approx(here, rel=1e-12)


def test_a_deep_stack_of_small_layers_reads_like_a_slow_pass() -> None:
    """More states than one batch of copies holds."""
    torch.manual_seed(0)
    linear = [nn.Linear(WIDTH, WIDTH) for _ in range(150)]
    made = nn.Sequential(*(layer for one in linear for layer in (one, nn.ReLU()))).double()
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        for layer in linear:
            layer.weight.mul_(2)
    found = measure(made, x, instruments="rivers,branches")
    states = [x.clone().requires_grad_()]
    for k in range(0, 300, 2):
        states.append(made[k + 1](made[k](states[-1])))
    draw = torch.randn(states[-1].shape, generator=torch.Generator().manual_seed(0))
    draw = (draw / draw.square().mean().sqrt()).to(states[-1])
    slopes = torch.autograd.grad((states[-1] * draw).sum(), states)
    assert found["state_rms"].tolist() == pytest.approx(list(map(rms, states)), rel=1e-10)
    assert found["gradient_rms"].tolist() == pytest.approx(list(map(rms, slopes)), rel=1e-6)
    assert found["state_max"].tolist() == pytest.approx([s.abs().max().item() for s in states])
    assert found["state_rms"].tolist() != pytest.approx(list(map(rms, slopes)), rel=1e-6)


def dead_of(z: Tensor, y: Tensor, rule: Gate, axis: int) -> float:
    """The share of units that are 0 with derivative 0 on every example, one unit at a time."""
    if bool(y.isnan().any()):
        return math.nan
    found = []
    for unit_z, unit_y in zip(z.movedim(axis, 0), y.movedim(axis, 0), strict=True):
        slope = rule.derivative(unit_z, unit_y).abs()
        found.append(bool((slope <= 1e-6).all()) and bool((unit_y.abs() <= 1e-6).all()))
    return sum(found) / len(found)


@pytest.mark.parametrize("kind", ["relu", "gelu", "elu", "tanh"])
@pytest.mark.parametrize("count", [1, 8, 200])
def test_dead_units_of_few_numbers_and_of_many(kind: str, count: int) -> None:
    torch.manual_seed(0)
    options: dict[str, dict[str, Any]] = {
        "gelu": {"approximate": "none"},
        "elu": {"alpha": 1e-9},
    }
    rule, shift = gate(kind, options.get(kind, {})), torch.linspace(-60, 6, 64)
    z = torch.randn(count, 64) + shift
    z[:, -1], z[:, -2], z[0, -3] = 0.0, 1e-7, 1e4
    images = torch.randn(count, 64, 3, 3) + shift[:, None, None]
    for x, axis in ((z, -1), (images, -3), (z[0], -1)):
        y = rule.apply(x)
        share = dead_of(x, y, rule, axis)
        assert _dead(rule, x, y, axis) == share
        assert share == 0 if kind == "tanh" else 0.3 < share < 0.99
        y = y.clone()
        y.view(-1)[-1] = math.nan
        assert math.isnan(_dead(rule, x, y, axis))


def test_the_slopes_of_a_relu_are_counted_as_those_of_any_other_function_are() -> None:
    torch.manual_seed(0)
    rule = gate("relu", {})
    other = dataclasses.replace(rule, kind="another")
    for shift in (-9.0, -1.6, -0.1, 0.0, 0.1, 1.7, 9.0):
        z = torch.randn(999) + shift
        z[:3] = 0.0
        names = [name for name in gates.STATISTICS if name != "dead"]
        found = gates.of_one(names, rule, z, torch.relu(z))
        assert found == gates.of_one(names, other, z, torch.relu(z))
    assert found["live"] > 0.99 > gates.of_one(names, rule, -z, torch.relu(-z))["live"]
