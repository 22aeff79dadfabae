"""Mixtures of experts, whose weights lie in one stack: what is put in has the stream's width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rules import scope_of
from depthgauge.study.compare import compare
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_module
from tests.recipes.models import _tokens, preactivation, resnet


def mixtral() -> tuple[nn.Module, Any]:
    from transformers import MixtralConfig, MixtralForCausalLM

    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return _tokens(MixtralForCausalLM, MixtralConfig, **experts)


class Experts(nn.Module):
    """Three of them for 16 channels, each token by all, weighed by a router; the router reads the
    norm last."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.norm, self.router, self.last = nn.LayerNorm(16), nn.Linear(16, 3), last
        self.up = nn.Parameter(torch.randn(3, 16, 40) / 4)
        self.down = nn.Parameter(torch.randn(3, 40, 16) / 40**0.5)

    def forward(self, x: Tensor) -> Tensor:
        u = self.norm(x)
        first = None if self.last else self.router(u).softmax(-1)
        made = torch.relu(u @ self.up[:, None]) @ self.down[:, None]
        weights = self.router(u).softmax(-1) if first is None else first
        total: Tensor = x + (weights.movedim(-1, 0)[..., None] * made).sum(0)
        return total


class Aside(nn.Module):
    """A convolution over tokens, channels second inside of it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.conv, self.down = (
            nn.Linear(16, 24),
            nn.Conv1d(24, 24, 3, padding=1),
            nn.Linear(24, 16),
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv(torch.relu(self.up(x)).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.down(torch.relu(inner))
        return out


class Sequence(nn.Module):
    """Channels second, in sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv1d(16, 24, 3, padding=1), nn.Conv1d(24, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.b(torch.relu(self.a(x)))
        return out


class Mixed(nn.Module):
    """Experts that are modules, their results beside each other and a weighted sum of them: a
    product of matrices, a sum of products or one term an expert."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.norm, self.router = how, nn.LayerNorm(16), nn.Linear(16, 3)
        self.up = nn.ModuleList(nn.Linear(16, 40) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(40, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        u = self.norm(x)
        g = self.router(u).softmax(-1)
        made = [d(torch.relu(a(u))) for a, d in zip(self.up, self.down, strict=True)]
        if self.how == "product":
            total: Tensor = torch.einsum("bte,bted->btd", g, torch.stack(made, -2))
        elif self.how == "sum":
            total = (torch.stack(made, -1) * g.unsqueeze(-2)).sum(-1)
        else:
            total = sum((g[..., k : k + 1] * y for k, y in enumerate(made)), torch.zeros(()))
        out: Tensor = x + total
        return out


class Squeezed(nn.Module):
    """A branch of convolutions whose result squeeze and excitation weighs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.inner, self.outer = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        made = self.b(torch.relu(self.a(x)))
        gate = self.outer(torch.relu(self.inner(made.mean((2, 3))))).sigmoid()
        out: Tensor = x + made * gate[..., None, None]
        return out


class Stacked(nn.Module):
    """Two stacks of experts that einsum contracts, and a router."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.router = how, nn.Linear(16, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, 16, 40) / 4)
        self.down = nn.Parameter(torch.randn(4, 40, 16) / 40**0.5)

    def forward(self, x: Tensor) -> Tensor:
        g = self.router(x).softmax(-1)
        inner = torch.einsum("btd,edf->btef", x, self.up).relu()
        if self.how == "three at once":
            made = torch.einsum("btef,efd,bte->btd", inner, self.down, g)
            return torch.add(x, made)
        made = torch.einsum("btef,efd->bted", inner, self.down)
        if self.how == "a sum":
            return torch.add(x, (made * g[..., None]).sum(2))
        return torch.add(x, torch.einsum("bted,bte->btd", made, g))


class Attending(nn.Module):
    """Attention whose scores are spelled in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.bias = how, nn.Linear(16, 5)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x) / 4, self.k(x), self.v(x)
        if self.how == "linear":
            return torch.add(x, self.o(q.relu() @ (k.relu().mT @ v)))
        if self.how == "sums":
            p = (q[:, :, None] * k[:, None]).sum(-1).softmax(-1)
            return torch.add(x, self.o((p[..., None] * v[:, None]).sum(2)))
        scores = torch.einsum("bqd,bkd->bqk", q, k)
        hidden = torch.ones(5, 5).triu(1) > 0
        if self.how == "shifted":
            scores = self.bias(x) + scores
        elif self.how == "masked":
            scores = scores.masked_fill(hidden, -1e4)
        elif self.how == "chosen":
            scores = torch.where(hidden, -1e4, scores)
        elif self.how == "capped":
            scores = 5 * torch.tanh(scores / 5)
        return torch.add(x, self.o(scores.softmax(-1) @ v))


class Mixing(nn.Module):
    """A branch that ends without a weight of its own: averages of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + nn.functional.avg_pool1d(self.norm(x).mT, 3, 1, 1).mT
        return out


def _stack(make: Callable[[], nn.Module], *shape: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(*(make() for _ in range(3))), torch.randn(*shape)


WIDTHS: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], list[int]]] = {
    "Mixtral": (mixtral, [32] * 6),
    "experts": (lambda: _stack(lambda: Experts(False), 4, 5, 16), [16] * 3),
    "a router behind them": (lambda: _stack(lambda: Experts(True), 3, 5, 16), [16] * 3),
    "a convolution aside": (lambda: _stack(Aside, 4, 5, 16), [16] * 3),
    "sequences": (lambda: _stack(Sequence, 4, 16, 5), [16] * 3),
    "images": (resnet, [8, 16, 16]),
    "bottlenecks": (lambda: preactivation(deep=True), [16] * 4),
}


@pytest.mark.parametrize(("build", "widths"), WIDTHS.values(), ids=WIDTHS)
def test_a_stream_is_as_wide_as_its_sums(
    build: Callable[[], tuple[nn.Module, Any]], widths: list[int]
) -> None:
    found = layout(*build())
    assert [branch.width for branch in found.branches] == widths
    assert [scope_of(found, branch)["n"] for branch in found.branches] == widths


@pytest.mark.parametrize("recipe", ["sandwich", "layerscale"])
def test_what_is_put_behind_experts_has_the_width_of_the_stream(recipe: str) -> None:
    applied, batch = on_module(recipe, mixtral)
    assert applied.model(**batch).logits.isfinite().all()
    experts = applied.model.get_submodule("model.layers.0.mlp.experts")
    own = [p for name, p in experts.named_parameters() if not name.startswith("module.")]
    assert [tuple(p.shape) for p in own] == [(32,)]

    def taken_out(model: nn.Module) -> None:
        mlp: Any = model.get_submodule("model.layers.0.mlp")
        mlp.experts = mlp.experts.module

    broken(applied.model, batch, recipe, taken_out, "5 of 6 branches")


@pytest.mark.parametrize("recipe", ["postnorm", "deepnorm", "admin"])
def test_a_norm_behind_the_sum_has_it_too(recipe: str) -> None:
    model, batch = mixtral()
    applied = apply(model, batch, recipe)
    norm = applied.model.get_submodule("model.layers.0.after")
    assert [tuple(p.shape) for p in norm.parameters()] == [(32,)]
    assert applied.model(**batch).logits.isfinite().all()
    found = audit(applied.model, batch, recipe)
    wrong = [finding.said for finding in found.findings if not finding.holds]
    assert wrong == list(applied.left[-len(wrong) :])


def test_no_norm_is_put_inside_experts_that_are_one_module() -> None:
    applied = apply(*mixtral(), "sub-ln")
    assert applied.left[0] == (
        "'model.layers.0.mlp.experts' is several layers in one module: no norm can be put inside it"
    )
    assert "3 of 6 branches with their norms in place" in applied.left[-1]


def test_it_is_compared() -> None:
    def build(depth: int, seed: int) -> tuple[nn.Module, Any]:
        return mixtral()

    found = compare(build, ["postnorm", "sandwich"], depth=3, seed=0)
    assert [row.name for row in found.rows][-2:] == ["postnorm", "sandwich"]
    for row in found.rows:
        assert row.quantities["forward_end_rms"]
        assert all(number > 0 for numbers in row.updates.values() for number in numbers)


def _last(model: nn.Module, batch: Any) -> set[str]:
    return {w.path for branch in layout(model, batch).branches for w in branch.weights if w.last}


@pytest.mark.parametrize("how", ["product", "sum", "terms"])
def test_the_last_weights_of_a_mixture_are_the_experts_and_not_the_router(how: str) -> None:
    model, batch = _stack(lambda: Mixed(how), 4, 5, 16)
    assert _last(model, batch) == {f"{k}.down.{e}.weight" for k in range(3) for e in range(3)}


@pytest.mark.parametrize("how", ["product", "sum"])
def test_a_mixture_is_held_to_gpt2(how: str) -> None:
    made, batch = _stack(lambda: Mixed(how), 4, 5, 16)
    wrong = [f for f in audit(made, batch, "gpt2").findings if not f.holds]
    assert any(finding.part == "residual projections" for finding in wrong)
    applied = apply(made, batch, "gpt2")
    assert applied.left == ()
    assert audit(applied.model, batch, "gpt2").holds

    def plain(model: nn.Module) -> None:
        down: Any = model.get_submodule("1.down.2")
        nn.init.normal_(down.weight, std=0.02)

    broken(applied.model, batch, "gpt2", plain, "1 of 9 residual projections")


def test_a_router_is_no_residual_projection() -> None:
    model, batch = mixtral()
    assert {path.split(".", 3)[3] for path in _last(model, batch)} == {
        "self_attn.o_proj.weight",
        "mlp.experts.down_proj",
    }
    applied = apply(model, batch, "gpt2")
    router: Any = applied.model.get_submodule("model.layers.0.mlp.gate")
    assert float(router.weight.detach().std()) == pytest.approx(0.02, rel=0.25)  # not over sqrt(6)

    def shrunk(model: nn.Module) -> None:
        gate: Any = model.get_submodule("model.layers.0.mlp.gate")
        gate.weight.data /= 6**0.5

    broken(applied.model, batch, "gpt2", shrunk, "1 of 15 other weights of branches")


def test_what_squeeze_and_excitation_weighs_comes_last() -> None:
    assert _last(*_stack(Squeezed, 2, 8, 6, 6)) == {f"{k}.b.weight" for k in range(3)}


@pytest.mark.parametrize("fused", [False, True])
def test_attention_without_an_output_layer_ends_with_its_values(fused: bool) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv = nn.LayerNorm(16), nn.Linear(16, 48)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
            if fused:
                return x + nn.functional.scaled_dot_product_attention(q, k, v)
            total: Tensor = x + (q @ k.mT / 4).softmax(-1) @ v
            return total

    found = layout(*_stack(Attention, 4, 5, 16))
    assert [[w.role for w in b.weights if w.last] for b in found.branches] == [["value"]] * 3


def test_a_branch_without_a_last_weight_is_not_measured() -> None:
    blocks = [Experts(False), Mixing(), Experts(False)]
    model, batch = nn.Sequential(*blocks), torch.randn(4, 5, 16)
    found = audit(model, batch, "gpt2")
    assert [f.of - f.matching for f in found.findings if f.state == "NOT MEASURED"] == [1]
    model = nn.Sequential(*blocks[::2])
    assert all(f.measured for f in audit(model, batch, "gpt2").findings)


# ----------------------------------------------------------------------------------------- gates

Weighs = Callable[[Tensor, Tensor, Tensor], Tensor]


class Gated(nn.Module):
    """What three layers make of the state, multiplied."""

    def __init__(self, how: Weighs) -> None:
        super().__init__()
        self.how = how
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.how(self.a(x), self.b(x), self.c(x))


def _ends(how: Weighs) -> str:
    """The layers that a branch ends with, in a word."""
    return "".join(sorted({path[2] for path in _last(*_stack(lambda: Gated(how), 2, 16))}))


#: Each with the layers that are no gates.
ORDERS: dict[str, tuple[Weighs, str]] = {
    "a (b' c')": (lambda a, b, c: a * (b.sigmoid() * c.sigmoid()), "a"),
    "(b' c') a": (lambda a, b, c: (b.sigmoid() * c.sigmoid()) * a, "a"),
    "(a b') c'": (lambda a, b, c: (a * b.sigmoid()) * c.sigmoid(), "a"),
    "a (b' c)": (lambda a, b, c: a * (b.sigmoid() * c), "ac"),
    "a (c b')": (lambda a, b, c: a * (c * b.sigmoid()), "ac"),
    "(b' c) a": (lambda a, b, c: (b.sigmoid() * c) * a, "ac"),
    "(c b') a": (lambda a, b, c: (c * b.sigmoid()) * a, "ac"),
    "b' (a c)": (lambda a, b, c: b.sigmoid() * (a * c), "ac"),
    "a (b' + c')": (lambda a, b, c: a * (b.sigmoid() + c.sigmoid()), "a"),
    "a (b' + c)": (lambda a, b, c: a * (b.sigmoid() + c), "abc"),
    "a (c + b')": (lambda a, b, c: a * (c + b.sigmoid()), "abc"),
}


@pytest.mark.parametrize(("how", "ends"), ORDERS.values(), ids=ORDERS)
def test_gates_read_alike_in_every_order(how: Weighs, ends: str) -> None:
    assert _ends(how) == ends


relu6 = nn.functional.relu6
SPELLED: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "hardsigmoid": nn.functional.hardsigmoid,
    "relu6": lambda h: relu6(h + 3) / 6,
    "a sixth": lambda h: 0.16667 * relu6(3 + h),
    "clamp": lambda h: h.clamp(0, 1),
    "clamp by name": lambda h: torch.clamp(h, min=0.0, max=1.0),
    "clamp of six": lambda h: (h + 3).clamp(0, 6) / 6,
    "relu": lambda h: h.relu().clamp(max=1),
    "hardtanh": lambda h: nn.functional.hardtanh(h, 0, 1),
    "tanh": lambda h: 0.5 * (torch.tanh(h / 2) + 1),
    "tanh halved": lambda h: (1 + torch.tanh(0.5 * h)) / 2,
    "over": lambda h: 1 / (1 + torch.exp(-h)),
    "reciprocal": lambda h: torch.reciprocal(1 + (-h).exp()),
    "power": lambda h: (1 + torch.exp(-h)) ** -1,
    "less": lambda h: 1 - h.clamp(0, 1),
}


@pytest.mark.parametrize("gate", SPELLED.values(), ids=SPELLED)
def test_a_gate_is_one_however_it_is_spelled(gate: Callable[[Tensor], Tensor]) -> None:
    assert _ends(lambda a, b, c: a * gate(b)) == "a"
    assert _ends(lambda a, b, c: gate(b) * a) == "a"


def test_what_is_divided_is_weighed_too() -> None:
    assert _ends(lambda a, b, c: a / (1 + torch.exp(-b))) == "a"
    assert _ends(lambda a, b, c: a / (2 + torch.tanh(b))) == "ab"


VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "silu": nn.functional.silu,
    "relu6": relu6,
    "clamp of six": lambda h: h.clamp(0, 6),
    "clamp around zero": lambda h: h.clamp(-1, 1),
    "clamp below": lambda h: h.clamp(max=1),
    "sine": torch.sin,
    "exponential": torch.exp,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_what_is_not_between_zero_and_one_is_a_value(value: Callable[[Tensor], Tensor]) -> None:
    assert _ends(lambda a, b, c: a * value(b)) == "ab"


# ------------------------------------------------------------------- what is attention and what not


@pytest.mark.parametrize("how", ["a product", "a sum", "three at once"])
def test_a_mixture_of_two_stacks_has_two_layers_in_series(how: str) -> None:
    model, batch = _stack(lambda: Stacked(how), 4, 5, 16)
    found = layout(model, batch)
    assert [(branch.m, branch.attends) for branch in found.branches] == [(2, False)] * 3
    assert _last(model, batch) == {f"{k}.down" for k in range(3)}


@pytest.mark.parametrize(
    "how", ["plain", "linear", "sums", "shifted", "masked", "chosen", "capped"]
)
def test_attention_has_four(how: str) -> None:
    found = layout(*_stack(lambda: Attending(how), 4, 5, 16))
    assert [(branch.m, branch.attends) for branch in found.branches] == [(4, True)] * 3


def _inner(model: nn.Module, batch: Any) -> str:
    parts = audit(model, batch, "fixup").findings
    return next(part.said for part in parts if part.part == "inner weights of branches")


@pytest.mark.parametrize("how", ["product", "sum"])
def test_fixup_draws_experts_as_layers(how: str) -> None:
    applied = apply(*(given := _stack(lambda: Mixed(how), 4, 5, 16)), "fixup")
    model, batch = applied.model, given[1]
    assert _inner(model, batch).endswith(
        "He (fan out) times L^(-1/(2m-2)), L = 3: 0.5774 for m = 2"
    )
    with torch.no_grad():
        for block in range(3):
            for expert in range(3):
                model.get_parameter(f"{block}.up.{expert}.module.weight").mul_(0.7)
    assert _inner(model, batch).startswith("9 of 12 inner weights of branches: std 0.09")


def test_fixup_draws_squeeze_and_excitation_as_layers() -> None:
    """Its longest path has four layers, two of them in the gate."""
    applied = apply(*(given := _stack(Squeezed, 2, 8, 6, 6)), "fixup")
    model, batch = applied.model, given[1]
    assert layout(model, batch).m == (4,)
    assert _inner(model, batch).endswith(
        "He (fan out) times L^(-1/(2m-2)), L = 3: 0.8327 for m = 4"
    )
    with torch.no_grad():  # He's std is sqrt(2 / 72), that of Xavier sqrt(2 / 144)
        for block in range(3):
            model.get_parameter(f"{block}.a.module.weight").mul_(0.5**0.5)
    assert _inner(model, batch).startswith("3 of 9 inner weights of branches: std 0.097")


@pytest.mark.parametrize("how", ["plain", "sums"])
def test_fixup_draws_attention_by_xavier(how: str) -> None:
    applied = apply(*(given := _stack(lambda: Attending(how), 4, 5, 16)), "fixup")
    said = _inner(applied.model, given[1])
    assert said.endswith("Xavier times L^(-1/(2m-2)), L = 3: 0.8327 for m = 4")
