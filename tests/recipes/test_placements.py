"""Where norms stand, and of which kind they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.placements import KINDS
from depthgauge.recipes.rewritten import rewritten
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, said
from tests.recipes.models import (
    WIDTH,
    bert,
    encoder,
    gpt2,
    llama,
    mlp,
    neox,
    normed_preactivation,
    olmo2,
    postnorm,
    preactivation,
    qwen3,
    transformer,
)

MLP = "h = h + W2(relu(W1(h, out=4*n)))"
BLOCK = "h = h + attention(h, heads=4); h = h + W2(gelu(W1(h, out=4*n)))"
WRITTEN = {
    "prenorm": "h = h + W2(relu(W1({N}(h), out=4*n)))",
    "postnorm": "h = {N}(h + W2(relu(W1(h, out=4*n))))",
    "sandwich": "h = h + {N}(W2(relu(W1({N}(h), out=4*n))))",
}


@pytest.mark.parametrize("kind", ["", *KINDS])
@pytest.mark.parametrize("name", WRITTEN)
def test_on_equations(name: str, kind: str) -> None:
    recipe = f"{name}-{kind}" if kind else name
    changed, _, _ = on_equation(recipe, MLP)
    assert str(changed.block) == WRITTEN[name].format(N=kind or "layernorm")
    on_equation(recipe, BLOCK, depth=3)


def test_from_one_placement_to_another() -> None:
    for name, written in WRITTEN.items():
        for other in WRITTEN:
            if other != name:
                changed, _, _ = on_equation(other, written.format(N="scalenorm"), depth=2)
                assert str(changed.block) == WRITTEN[other].format(N="scalenorm")
    on_equation("prenorm-groupnorm", "h = batchnorm(h + conv3(relu(conv3(h))))", width=8)


def test_learned_gains_and_offsets_of_norms_are_kept() -> None:
    network = Network("h = layernorm(h + W2(relu(W1(h))), gain=1, bias=True, eps=1e-3)", 3, 8)
    pre = rewritten(network, "prenorm").network.block
    assert "W1(layernorm(h, eps=0.001, gain=1, bias=True))" in str(pre)
    root = rewritten(network, "prenorm-rmsnorm").network.block
    assert "W1(rmsnorm(h, gain=1, bias=True))" in str(root)


@pytest.mark.parametrize(
    ("name", "build", "follows"),
    [
        ("prenorm", encoder, False),
        ("prenorm", lambda: encoder(pre=True), False),  # the final norm is missing
        ("prenorm", lambda: encoder(pre=True, final=True), True),
        ("prenorm", transformer, False),
        ("prenorm", bert, False),
        ("prenorm", llama, True),
        ("prenorm", gpt2, True),
        ("prenorm", qwen3, True),
        ("prenorm-rmsnorm", qwen3, True),
        ("prenorm", olmo2, False),
        ("prenorm", normed_preactivation, False),  # which has a norm inside, too
        ("prenorm", postnorm, False),
        ("prenorm-rmsnorm", gpt2, False),
        ("prenorm-batchnorm", encoder, False),
        ("prenorm-groupnorm", llama, False),
        ("prenorm-layernorm", normed_preactivation, False),
        ("prenorm-rmsnorm", normed_preactivation, False),
        ("prenorm-groupnorm", normed_preactivation, False),
        ("postnorm", encoder, True),
        ("postnorm", lambda: encoder(pre=True, final=True), False),
        ("postnorm", lambda: encoder(final=True), False),  # a norm too many
        ("postnorm", transformer, False),  # two of them
        ("postnorm", bert, True),
        ("postnorm", mlp, False),
        ("postnorm-rmsnorm", bert, False),
        ("postnorm-groupnorm", encoder, False),
        ("postnorm-batchnorm", encoder, False),
        ("sandwich", encoder, False),
        ("sandwich", gpt2, False),
        ("sandwich", qwen3, False),
        ("sandwich-rmsnorm", olmo2, False),
        ("sandwich", llama, False),
        ("sandwich", bert, False),
        ("sandwich", lambda: transformer(pre=True), False),
        ("sandwich-batchnorm", normed_preactivation, False),
    ],
)
def test_on_modules(name: str, build: Callable[[], tuple[nn.Module, Any]], follows: bool) -> None:
    on_module(name, build, follows)


#: Of a ResNet whose transitions take the shortcut behind norm and activation.
SHARED = ("postnorm", "deepnorm", "inv-sqrt2", "deepscalelm")


@pytest.mark.parametrize(
    ("recipe", "deep"),
    [*((recipe, False) for recipe in SHARED), *((recipe, True) for recipe in SHARED[:3])],
)
def test_what_stands_behind_a_sum_is_the_streams_in_front_of_a_transition_too(
    recipe: str, deep: bool
) -> None:
    applied, batch = on_module(recipe, lambda: preactivation((2, 3), deep))

    def plant(model: nn.Module) -> None:  # the sum in front of the second transition
        model.get_submodule("2").after = nn.Identity()

    words = "4 of 5 branches .*: the " if recipe in SHARED[:2] else "1 of 5 sums: 1 h \\+ "
    broken(applied.model, batch, recipe, plant, words)


def test_the_norm_of_a_transition_is_its_own_where_no_sum_has_one() -> None:
    found = layout(*preactivation((2, 3)))
    assert [[n.at for n in b.placed] for b in found.branches[1:]] == [["in", "inner"]] * 4
    applied, _ = on_module("prenorm", lambda: preactivation((2, 3)))
    assert [n.at for b in layout(applied.model, _).branches for n in b.placed] == ["in"] * 5


def test_the_last_norm_of_a_post_norm_stack_becomes_the_final_one() -> None:
    model, _ = postnorm()
    applied, batch = on_module("prenorm", postnorm)
    norms = [m for m in applied.model.modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == 6 + 1
    assert applied.model.get_submodule("6.norm").weight is not model.get_submodule("6.norm").weight
    get = applied.model.get_submodule
    x = get("0")(batch)
    for i in range(1, 7):
        inner = get(f"{i}.up.module")(get(f"{i}.up.before")(x))
        x = x + get(f"{i}.down")(torch.relu(inner))
    torch.testing.assert_close(applied.model(batch), get("7")(get("6.norm")(x)))


def test_layers_of_pytorch_compute_alike_where_they_are_evaluated() -> None:
    """Evaluated without gradients, they would go past what was put around their layers."""
    for name in ("sandwich", "prenorm-rmsnorm", "deepnorm"):
        model, batch = encoder()
        changed = apply(model, batch, name).model
        trained = changed.train()(batch)
        with torch.no_grad():
            torch.testing.assert_close(changed.eval()(batch), trained)


class Listed(nn.Module):
    """Queries, keys and values in a list, which nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x) for layer in self.qkv)
        y: Tensor = x + self.out(F.scaled_dot_product_attention(q, k, v))
        return y


def test_a_norm_goes_in_front_of_each_layer_of_a_list() -> None:
    def build() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        blocks = [Listed(), Listed(), nn.LayerNorm(WIDTH)]
        return nn.Sequential(*blocks, nn.Linear(WIDTH, 2)), torch.randn(2, 5, WIDTH)

    applied, _ = on_module("prenorm", build)
    fronts = [applied.model.get_submodule(f"0.qkv.{i}.before") for i in range(3)]
    assert len(set(map(id, fronts))) == 1, "one norm for the three"


def test_what_cannot_be_reached_from_outside_is_named() -> None:
    model, batch = gpt2()
    applied = apply(model, batch, "postnorm")
    assert applied.left[:-1] == tuple(
        f"no module returns the sum after 'transformer.h.{i}.attn': no norm put there"
        for i in range(3)
    )
    found = audit(applied.model, batch, "postnorm")
    assert applied.left[-1] == said(found), "the audit says the same"
    assert "3 of 6 branches with their norms in place (norm stream)" in said(found)


# ------------------------------------------------------------------------------ mistakes


class Norms(nn.Module):
    """One branch with norms where ``form`` has them."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.a, self.b = form, nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def branch(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.relu(self.up(x)))
        return out

    def forward(self, x: Tensor) -> Tensor:
        match self.form:
            case "residual of the normed":
                normed: Tensor = self.a(x)
                return normed + self.branch(normed)
            case "second after the sum":
                after: Tensor = self.b(x + self.branch(self.a(x)))
                return after
            case "two in front":
                front: Tensor = x + self.branch(self.b(self.a(x)))
                return front
            case "of the branch alone":
                alone: Tensor = x + self.a(self.branch(x))
                return alone
        return x + self.branch(x)


@pytest.mark.parametrize(
    ("recipe", "form", "words"),
    [
        (
            "prenorm",
            "residual of the normed",
            "'1.down' has layernorm stream: the residual is taken",
        ),
        ("prenorm", "second after the sum", "a second norm stands after the sum"),
        ("prenorm", "two in front", "layernorm in, layernorm in: one norm is to stand at each"),
        ("prenorm", "of the branch alone", "the norm stands at the branch's end"),
        ("postnorm", "of the branch alone", "the norm is of the branch alone"),
        ("postnorm", "none", "the sum has no norm"),
        ("sandwich", "second after the sum", "stands after the sum, not at the branch's end"),
        ("sandwich", "of the branch alone", "the norm in front is missing"),
    ],
)
def test_a_norm_in_the_wrong_place_is_named(recipe: str, form: str, words: str) -> None:
    torch.manual_seed(0)
    blocks = [Norms(form) for _ in range(4)]
    model = nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2))
    assert words in said(audit(model, torch.randn(16, 8), recipe))


class Three(nn.Module):
    """A branch of three layers, with a norm around each of its activations."""

    def __init__(self, *kinds: type[nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(kind(WIDTH) for kind in kinds)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.layers
        n, k, last = self.norms
        total: Tensor = x + c(torch.relu(k(b(torch.relu(n(a(last(x))))))))
        return total


def three(*kinds: type[nn.Module]) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [Three(*kinds) for _ in range(3)]
    stem, head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 2)
    return nn.Sequential(stem, *blocks, nn.LayerNorm(WIDTH), head), torch.randn(16, 8)


@pytest.mark.parametrize("name", ["prenorm", "postnorm", "sandwich", "prenorm-rmsnorm"])
def test_both_inner_norms_of_a_branch_go_out(name: str) -> None:
    applied, _ = on_module(name, lambda: three(nn.LayerNorm, nn.RMSNorm, nn.LayerNorm))
    for block in range(1, 4):
        inner = applied.model.get_submodule(f"{block}" + ".module" * (name == "postnorm"))
        assert isinstance(inner.get_submodule("norms.0"), nn.Identity)
        assert isinstance(inner.get_submodule("norms.1"), nn.Identity)


def test_one_of_two_norms_in_a_row_goes_out() -> None:
    def build() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        blocks = [Norms("two in front") for _ in range(3)]
        stem, head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 2)
        return nn.Sequential(stem, *blocks, nn.LayerNorm(WIDTH), head), torch.randn(16, 8)

    applied, _ = on_module("prenorm", build)
    assert applied.changes == ("3 norms out",)


class Twice(nn.Module):
    """A norm of its own result, by a function or by one module."""

    def __init__(self, times: int, function: bool) -> None:
        super().__init__()
        self.times, self.norm = times, nn.Identity() if function else nn.LayerNorm(WIDTH)
        self.function = function
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for _ in range(self.times):
            y = F.layer_norm(y, (WIDTH,)) if self.function else self.norm(y)
        total: Tensor = x + self.down(torch.relu(self.up(y)))
        return total


@pytest.mark.parametrize("function", [True, False])
def test_a_norm_of_its_own_result_is_a_second_one(function: bool) -> None:
    torch.manual_seed(0)
    for times in (1, 2):
        blocks = [Twice(times, function) for _ in range(3)]
        ends = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)
        model = nn.Sequential(nn.Linear(8, WIDTH), *blocks, *ends)
        found = audit(model, torch.randn(16, 8), "prenorm")
        assert found.holds is (times == 1)
    assert "has layernorm in, layernorm in: one norm is to stand" in said(found)
    *left, last = apply(model, torch.randn(16, 8), "prenorm").left
    assert last == said(found)
    assert [line.partition("'")[2] for line in left] == [
        f"{path}' norms twice; take one out by hand"
        for path in (("1", "2", "3") if function else ("1.norm", "2.norm", "3.norm"))
    ]


class Apart(nn.Module):
    """A gated branch each of whose layers has a norm of its own in front."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + self.down(F.silu(self.gate(self.a(x))) * self.up(self.b(x)))
        return total


def apart() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    stem, head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 2)
    blocks = [Apart() for _ in range(3)]
    return nn.Sequential(stem, *blocks, nn.LayerNorm(WIDTH), head), torch.randn(16, 8)


def test_layers_side_by_side_may_have_a_norm_each() -> None:
    """One that is missing, or a second in a row, is seen."""

    def missing(model: nn.Module) -> None:
        model.get_submodule("2").register_module("b", nn.Identity())

    def second(model: nn.Module) -> None:
        rows = nn.Sequential(nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH))
        model.get_submodule("2").register_module("b", rows)

    for plant, words in (
        (missing, "2 of 3 branches .* '2.up' reads the stream itself, past the norm in front"),
        (second, "2 of 3 branches .* layernorm in, layernorm in, layernorm in: one norm is to"),
    ):
        broken(*apart(), "prenorm", plant, words)
    applied, _ = on_module("prenorm-rmsnorm", apart)
    assert applied.changes == ("7 norms replaced by rmsnorm",)
    applied, _ = on_module("postnorm", apart)
    assert "7 norms out" in applied.changes


@pytest.mark.parametrize("name", ["prenorm-batchnorm", "sandwich-batchnorm", "prenorm-layernorm"])
def test_of_an_equation_with_a_norm_in_front_of_each_layer(name: str) -> None:
    changed, _, batch = on_equation(name, "h + W3(silu(W1(rmsnorm(h)))*W2(rmsnorm(h)))")
    assert str(changed.block).count(f"{name.partition('-')[2]}(h)") == 2
    bare = Network("h + W3(silu(W1(batchnorm(batchnorm(h))))*W2(batchnorm(h)))", 4, 8).module(0)
    assert "one norm is to stand at each" in said(audit(bare, batch[:, :8], "prenorm"))


def test_a_bounded_function_takes_the_place_of_both_inner_norms() -> None:
    applied, batch = on_module("dyt", lambda: three(nn.LayerNorm, nn.RMSNorm, nn.LayerNorm))

    def plant(model: nn.Module) -> None:
        model.get_submodule("2.norms").register_module("0", nn.LayerNorm(WIDTH))

    broken(
        applied.model, batch, "dyt", plant, "2 of 3 branches .* has dyt in, layernorm inner, dyt"
    )


@pytest.mark.parametrize("name", ["postnorm", "deepnorm"])
def test_one_norm_stands_behind_the_sum_of_parallel_branches(name: str) -> None:
    applied, batch = on_module(name, neox)
    layers = applied.model.get_submodule("gpt_neox.layers")
    assert [type(m).__name__ for m in layers.modules()].count("LayerNorm") == 3
    assert "3 layernorm put in (stream)" in applied.changes

    def plant(model: nn.Module) -> None:
        layer = model.get_submodule("gpt_neox.layers.1")
        layer.after = nn.Sequential(layer.get_submodule("after"), nn.LayerNorm(32))

    words = "4 of 6 branches .* has layernorm stream, layernorm stream: one norm is to stand"
    broken(applied.model, batch, name, plant, words)


def test_final_norms_are_counted() -> None:
    assert "0 of 1 streams with a final norm; '0.layers' has none" in said(
        audit(*encoder(pre=True), "prenorm")
    )
    assert "1 norms after the last branch of a stream; '0.norm' stands behind a norm" in said(
        audit(*encoder(final=True), "postnorm")
    )
    assert "2 norms after the last branch" in said(audit(*transformer(), "postnorm"))
    wrong = said(audit(*encoder(pre=True, final=True), "prenorm-rmsnorm"))
    assert "0 of 1 streams with a final norm; '0.layers' has layernorm" in wrong


@pytest.mark.parametrize("build", [qwen3, olmo2])
@pytest.mark.parametrize("recipe", ["prenorm", "sandwich-layernorm", "layerscale"])
def test_norms_of_queries_and_keys_are_left_alone(
    recipe: str, build: Callable[[], tuple[nn.Module, Any]]
) -> None:
    model, batch = build()

    def scored(module: nn.Module) -> list[type]:
        ends = ("q_norm", "k_norm")
        return [type(m) for name, m in module.named_modules() if name.endswith(ends)]

    assert scored(apply(model, batch, recipe).model) == scored(model) != []


def test_a_norm_of_the_values_of_attention_is_one_too_many() -> None:
    model, batch = qwen3()

    def plant(module: nn.Module) -> None:
        attention = module.get_submodule("model.layers.1.self_attn")
        attention.v_proj = nn.Sequential(attention.get_submodule("v_proj"), nn.LayerNorm(16))

    words = "5 of 6 branches .*'model.layers.1.self_attn' has rmsnorm in, layernorm inner"
    broken(model, batch, "prenorm", plant, words)


def test_a_final_norm_written_out_is_of_its_own_kind() -> None:
    model, batch = llama()
    assert audit(model, batch, "prenorm-rmsnorm").holds
    assert apply(model, batch, "prenorm-rmsnorm").changes == ()
    model.get_submodule("model").norm = nn.LayerNorm(32)
    wrong = said(audit(model, batch, "prenorm-rmsnorm"))
    assert "0 of 1 streams with a final norm; 'model.layers' has layernorm" in wrong


def test_a_network_without_branches_is_refused() -> None:
    plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(NetworkError, match="no residual branch was found, and Post-norm with RMS"):
        apply(plain, torch.randn(4, 8), "postnorm-rmsnorm")


class Length(nn.Module):
    """ScaleNorm, in the ways that it is written."""

    def __init__(self, form: str, g: float) -> None:
        super().__init__()
        self.form, self.g = form, nn.Parameter(torch.tensor(g))

    def forward(self, x: Tensor) -> Tensor:
        length = x.norm(dim=-1, keepdim=True).clamp(min=1e-5)
        out: Tensor
        match self.form:
            case "multiplied first":
                out = self.g * x / length
            case "divided first":
                out = x / length * self.g
            case "its number divided":
                out = x * (self.g / length)
            case _:
                out = self.g * F.normalize(x, dim=-1)
        return out


@pytest.mark.parametrize(
    "form", ["multiplied first", "divided first", "its number divided", "called"]
)
def test_a_scalenorm_begins_at_the_root_of_the_width(form: str) -> None:
    def built(g: float) -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        model, batch = three(*(nn.LayerNorm,) * 3)
        for block in list(model.children())[1:4]:
            block.norms = nn.ModuleList([nn.Identity(), nn.Identity(), Length(form, g)])
        model.register_module("4", Length(form, g))
        return model, batch

    assert audit(*built(WIDTH**0.5), "prenorm").holds
    words = "4 of 4 gains of ScaleNorm: 1, expected sqrt(d)"
    assert words in said(audit(*built(1.0), "prenorm"))
    applied, _ = on_module("prenorm", lambda: built(1.0))
    numbers = [float(p.detach()) for n, p in applied.model.named_parameters() if n.endswith(".g")]
    assert numbers == pytest.approx([WIDTH**0.5] * 4)


def _length(x: Tensor) -> Tensor:
    found: Tensor = x.norm(dim=-1, keepdim=True)
    return found


def _squares(x: Tensor) -> Tensor:
    return x.pow(2).sum(-1, keepdim=True)


LENGTHS: dict[str, Callable[[Tensor], Tensor]] = {
    "no eps": _length,
    "at least": lambda x: _length(x).clamp(min=1e-5),
    "beside it": lambda x: _length(x) + 1e-5,
    "in the root": lambda x: (_squares(x) + 1e-6).sqrt(),
    "of linalg": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
}
#: ScaleNorm with its number g, the state and its length.
QUOTIENTS: dict[str, Callable[[Tensor, Tensor, Callable[[Tensor], Tensor]], Tensor]] = {
    "g x / n": lambda g, x, n: g * x / n(x),
    "g (x / n)": lambda g, x, n: g * (x / n(x)),
    "g / n x": lambda g, x, n: g / n(x) * x,
    "x / (n / g)": lambda g, x, n: x / (n(x) / g),
    "x (1 / n) g": lambda g, x, n: x * (1 / n(x)) * g,
    "x (g 1 / n)": lambda g, x, n: x * (g * n(x).reciprocal()),
}
#: Spellings of their own, with what g begins with in them.
OTHERS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float]] = {
    "one over the root": (lambda g, x: g * x * torch.rsqrt(_squares(x) + 1e-6), WIDTH**0.5),
    "normalize": (lambda g, x: F.normalize(x, dim=-1) * g, WIDTH**0.5),
    "normalize, root, g": (lambda g, x: F.normalize(x, dim=-1) * WIDTH**0.5 * g, 1.0),
    "normalize, g, 2": (lambda g, x: F.normalize(x, dim=-1) * g * 2, WIDTH**0.5 / 2),
}


class Written(nn.Module):
    def __init__(self, form: Callable[[Tensor, Tensor], Tensor], g: float) -> None:
        super().__init__()
        self.form, self.g = form, nn.Parameter(torch.tensor(g))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self.g, x)


def _written(form: Callable[[Tensor, Tensor], Tensor], g: float) -> tuple[nn.Module, Any]:
    model, batch = three(*(nn.LayerNorm,) * 3)
    for block in list(model.children())[1:4]:
        block.norms = nn.ModuleList([nn.Identity(), nn.Identity(), Written(form, g)])
    model.register_module("4", Written(form, g))
    return model, batch


SPELLINGS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float]] = {
    f"{name}, eps {eps}": (lambda g, x, f=quotient, n=length: f(g, x, n), WIDTH**0.5)
    for name, quotient in QUOTIENTS.items()
    for eps, length in LENGTHS.items()
} | OTHERS


@pytest.mark.parametrize(("form", "start"), SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_of_scalenorm_is_held_to_its_start(
    form: Callable[[Tensor, Tensor], Tensor], start: float
) -> None:
    held = audit(*_written(form, start), "prenorm")
    assert held.holds, said(held)
    assert [f.of for f in held.findings if f.part == "gains of ScaleNorm"] == [4]
    for wrong in {1.0, WIDTH**0.5, 0.3} - {start}:
        found = said(audit(*_written(form, wrong), "prenorm"))
        assert found.startswith(f"4 of 4 gains of ScaleNorm: {wrong:.4g}, expected sqrt(d)")


def test_a_number_in_front_of_what_is_normed_is_no_scalenorms() -> None:
    """Of a root mean square, or one that the division takes away."""
    norms: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda g, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * g,
        lambda g, x: (g * x) / _length(g * x),
    ]
    for form in norms:
        found = audit(*_written(form, 1.0), "prenorm")
        assert found.holds, said(found)
        assert not [f for f in found.findings if f.part == "gains of ScaleNorm"]


def test_a_scalenorm_of_an_equation_begins_there_too() -> None:
    for recipe in WRITTEN:
        network = "h = h + W2(relu(W1(scalenorm(h, gain=1), out=4*n)))"
        changed, model, batch = on_equation(recipe, network, depth=3)
        assert "gain" not in str(changed.block), "sqrt(n) is what it begins with"

        def plant(model: nn.Module) -> None:
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if name.endswith("gain"):
                        p.fill_(1.0)

        broken(model, batch, recipe, plant, "gains of ScaleNorm: 1, expected .* it is a length")


class Readers(nn.Module):
    """Several layers that read the stream, behind the norm or, those of ``bare``, not."""

    def __init__(self, kind: str, bare: str) -> None:
        super().__init__()
        self.kind, self.bare = kind, bare
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        names = {"attention": "qkv", "gated": "gu", "experts": "rab"}[kind]
        self.layers = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in names})

    def forward(self, x: Tensor) -> Tensor:
        u = self.norm(x)
        a, b, *c = (layer(x if n in self.bare else u) for n, layer in self.layers.items())
        match self.kind:
            case "attention":
                made = (a @ b.mT / WIDTH**0.5).softmax(-1) @ c[0]
            case "gated":
                made = F.silu(a) * b
            case _:
                first, second = a.softmax(-1)[..., :2].unbind(-1)
                made = first[..., None] * F.relu(b) + second[..., None] * F.relu(c[0])
        out: Tensor = x + self.out(made)
        return out


def _readers(kind: str, bare: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    blocks = [Readers(kind, bare if k == 1 else "") for k in range(3)]
    model = nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))
    return model, torch.randn(4, 5, 8)


@pytest.mark.parametrize(
    ("kind", "bare", "reader"),
    [
        ("attention", "qk", "q"),
        ("attention", "v", "v"),
        ("gated", "g", "g"),
        ("gated", "u", "u"),
        ("experts", "r", "r"),
    ],
)
def test_every_layer_that_reads_the_stream_stands_behind_the_norm(
    kind: str, bare: str, reader: str
) -> None:
    assert audit(*_readers(kind, ""), "prenorm").holds
    found = audit(*_readers(kind, bare), "prenorm")
    assert not found.holds
    assert f"'2.layers.{reader}' reads the stream itself, past the norm" in said(found)
    model, batch = _readers(kind, bare)
    assert any("past the norm" in line for line in apply(model, batch, "prenorm").left)
    for other in ("sandwich", "mix-ln", "sub-ln"):
        assert any("past the norm" in line for line in apply(model, batch, other).left), other


class Halves(nn.Module):
    """Two branches; ``normed``: which of them stand beside the normed x, as their skip."""

    def __init__(self, normed: str) -> None:
        super().__init__()
        self.at, self.ff = (
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(2)
        )
        self.n1, self.n2, self.normed = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), normed

    def forward(self, x: Tensor) -> Tensor:
        for name, norm, branch in (("at", self.n1, self.at), ("ff", self.n2, self.ff)):
            h = norm(x)
            x = (h if name in self.normed else x) + branch(h)
        return x


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize(
    ("normed", "right", "named"),
    [("", 12, ""), ("at", 6, "1.at"), ("ff", 6, "0.ff"), ("at ff", 0, "0.at")],
)
@pytest.mark.parametrize("recipe", ["prenorm", "prenorm-layernorm", "layernorm-scaling"])
def test_residuals_of_the_normed_x_are_counted_one_by_one(
    recipe: str, normed: str, right: int, named: str, final: bool
) -> None:
    """And the norm in front of the head is there, whatever the sums before it are."""
    torch.manual_seed(0)
    body = nn.Sequential(*(Halves(normed) for _ in range(6)))
    last = nn.LayerNorm(WIDTH) if final else nn.Identity()
    model = nn.Sequential(nn.Linear(8, WIDTH), body, last, nn.Linear(WIDTH, 2))
    found = {f.part: f for f in audit(model, torch.randn(16, 8), recipe).findings}
    norms, end = found["norms"], found["final norms"]
    assert (norms.matching, norms.of) == (right, 12)
    assert end.holds is final
    if recipe != "layernorm-scaling":
        words = f"'1.{named}' has layernorm stream: the residual is taken from the normed x"
        assert (words in norms.said) is bool(normed)
    if not final:
        assert "has none in front of its reader" in end.said
