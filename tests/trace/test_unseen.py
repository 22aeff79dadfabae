"""States that no function of PyTorch shows to be states: halves put together again, scripts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from depthgauge import Profile, measure

WIDTH, DEPTH, BATCH = 8, 4, 6
EXACT = 1e-10


def rms(x: Tensor) -> float:
    return x.detach().square().mean().sqrt().item()


def loss(output: Tensor) -> Tensor:
    return output.square().sum()


def rivers(
    parts: Sequence[Callable[[Tensor], Tensor]], x: Tensor, first: bool
) -> tuple[list[float], list[float]]:
    """RMS of every state and of its gradient, all kept: between the parts, with the input if it is
    the ``first`` state, without what the last part returns if it is the head."""
    states = [x.clone().requires_grad_()]
    assert not any(isinstance(part, torch.jit.ScriptModule) for part in parts)
    for part in parts:
        states.append(part(states[-1]))
    gradients = torch.autograd.grad(loss(states[-1]), states)
    kept = slice(0, None) if first else slice(1, -1)
    return [rms(s) for s in states[kept]], [rms(g) for g in gradients[kept]]


def assert_rivers(profile: Profile, expected: tuple[list[float], list[float]]) -> None:
    assert profile["state_rms"] == pytest.approx(expected[0], rel=EXACT)
    assert profile["gradient_rms"] == pytest.approx(expected[1], rel=EXACT)


def silent(profile: Profile) -> bool:
    """Whether the coverage says of nothing that it was not read."""
    return not any("known from the graph alone" in why for _, why in profile.coverage["fallback"])


# -------------------------------------------------------------------------------- halves


class Coupling(nn.Module):
    """One half of the state shifts, and scales, the other (NICE, RealNVP)."""

    def __init__(self, affine: bool, turned: bool) -> None:
        super().__init__()
        self.affine, self.turned = affine, turned
        self.s, self.t = (
            nn.Sequential(
                nn.Linear(WIDTH // 2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(),
                nn.Linear(16, WIDTH // 2),
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)[:: -1 if self.turned else 1]
        b = b * torch.exp(torch.tanh(self.s(a))) + self.t(a) if self.affine else b + self.t(a)
        return torch.cat([b, a] if self.turned else [a, b], -1)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("between", [True, False])
def test_couplings_have_whole_states(affine: bool, between: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Coupling(affine, l % 2 == 1) for l in range(DEPTH))).double()
    if between:  # a stem and a head
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *model, nn.Linear(WIDTH, WIDTH)).double()
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    profile = measure(model, x, loss)
    assert (profile.branches, profile.depth) == (DEPTH, DEPTH)
    assert profile.streams[0]["fraction"] == 0.5
    assert_rivers(profile, rivers(list(model), x, first=not between))
    shifts = [part.t for part in model if isinstance(part, Coupling)]
    states = [x]
    for part in model:
        states.append(part(states[-1]))
    into = [s for s, part in zip(states, model, strict=False) if isinstance(part, Coupling)]
    halves = [s.chunk(2, -1)[l % 2] for l, s in enumerate(into)]
    added = [rms(t(half)) for t, half in zip(shifts, halves, strict=True)]
    assert profile["branch_rms"] == pytest.approx(added, rel=EXACT)
    assert silent(profile)


class Gated(nn.Module):
    """``(1 - g) x + g f(x)`` behind a norm: nothing but the gate, and the sum, reads the state."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.n, self.f, self.g = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(1, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        u = self.n(x)
        g = torch.sigmoid(self.g(u[:, :1]))
        for _ in range(self.layers):
            u = torch.tanh(self.f(u))
        out: Tensor = (1 - g) * x + g * u
        return out


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x) + self.b(x.roll(1, -1))
        return out


@pytest.mark.parametrize("layers", [1, 20])
def test_a_stream_may_begin_with_a_sum_that_is_no_merge(layers: int) -> None:
    """And its first state is known, however much is made of it before it is added to."""
    torch.manual_seed(0)
    model = nn.Sequential(
        Summed(), *(Gated(layers) for _ in range(DEPTH)), nn.Linear(WIDTH, 2)
    ).double()
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    profile = measure(model, x, loss)
    assert (profile.branches, profile.depth) == (DEPTH, DEPTH)
    assert_rivers(profile, rivers(list(model), x, first=False))


# ------------------------------------------------------------------------------- scripts


class Block(nn.Module):
    def __init__(self, post: bool) -> None:
        super().__init__()
        self.post, self.n = post, nn.LayerNorm(WIDTH)
        self.a, self.b = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        u = x if self.post else self.n(x)
        out: Tensor = x + self.b(torch.tanh(self.a(u)))
        return self.n(out) if self.post else out


class Stack(nn.Module):
    def __init__(self, scripted: Sequence[int], post: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.h = nn.ModuleList()
        for l in range(DEPTH - 1):
            block: nn.Module = Block(post).double()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                self.h.append(torch.jit.script(block) if l in scripted else block)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.h:
            x = block(x)
        out: Tensor = self.head(x)
        return out


@pytest.mark.parametrize("scripted", [(1,), (0,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("post", [False, True])
def test_what_goes_into_scripts_and_comes_out_is_read(
    scripted: tuple[int, ...], post: bool
) -> None:
    model = Stack(scripted, post).double()
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    profile = measure(model, x, loss)
    assert (profile.branches, profile.depth) == (3, 3)
    assert profile.streams[0]["norm_at"] == (["stream"] if post else ["in"])
    twin = Stack((), post).double()  # of the same weights: a script that has run is another one
    assert_rivers(profile, rivers([twin.stem, *twin.h, twin.head], x, first=False))
    states = [site for site in profile.sites if site.role == "state"]
    assert [site.block for site in states] == [0, 1, 2, 3]
    inner = ".n" if post else ""
    paths = [f"h.{l}{'' if l in scripted else inner}" for l in range(3)]
    assert [site.path for site in states] == ["stem", *paths]
    # What was added inside is not seen, and that is said of each.
    missing = [path for path, why in profile.coverage["fallback"] if "known from the graph" in why]
    assert len(missing) == len(scripted)
    assert len(profile.columns["branch_rms"].rows if len(scripted) < 3 else ()) == 3 - len(scripted)


def test_scripts_change_no_number() -> None:
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    plain, scripted = (measure(Stack(s, False).double(), x, loss) for s in ((), (0, 1, 2)))
    for name in ("state_rms", "state_max", "gradient_rms"):
        assert scripted[name] == pytest.approx(plain[name], rel=EXACT)
    assert silent(plain)
    assert not silent(scripted)
    assert "known from the graph alone" in scripted.not_measured["branch_rms"]


def three(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    x = x + torch.tanh(x @ a)
    x = x + torch.tanh(x @ b)
    return x + torch.tanh(x @ c)


class Function(nn.Module):
    """Three blocks in one scripted function."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.randn(WIDTH, WIDTH) / 4) for _ in range(3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.function = torch.jit.script(three)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.function(x, self.a, self.b, self.c)
        return out


def test_states_inside_a_script_are_said_to_be_missing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Function(), nn.Linear(WIDTH, 2)).double()
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    profile = measure(model, x, loss)
    assert (profile.branches, profile.depth) == (3, 3)
    stem, inner, head = model

    def plain(h: Tensor) -> Tensor:
        return three(h, *inner.parameters())

    ends = rivers([stem, plain, head], x, first=False)
    assert_rivers(profile, ends)  # the state in front and the one behind, out of four
    assert profile.blocks_of("state_rms") == (0, 3)
    assert [path for path, why in profile.coverage["fallback"] if "neither its value" in why] == [
        "1"
    ]
    document = profile.to_dict()
    neither = "neither a value nor a gradient was measured here"
    assert [e["reason"] for e in document["coverage"]["no_gradient"]] == [neither] * 2
    text = str(profile)
    assert "at block 3, not measured at 2 of 4 blocks" in text
    assert "neither its value nor its gradient was read" in text


def test_a_script_that_has_run_before_is_opaque_and_its_ends_are_read() -> None:
    """PyTorch has made one piece of it by then."""
    model, twin = Stack((0, 1, 2), False).double(), Stack((), False).double()
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    for _ in range(4):
        loss(model(x)).backward()
    profile = measure(model, x, loss)
    assert profile.branches == 0
    assert {path for path, _ in profile.coverage["opaque"]} == {"h.0", "h.1", "h.2"}
    assert_rivers(profile, rivers([twin.stem, *twin.h, twin.head], x, first=True))
