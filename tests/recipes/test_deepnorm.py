"""DeepNorm: its numbers, its function, and each mistake that is met in its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.deepnorm import ALPHA, BETA, DEEPNORM, constants, deepnorm
from depthgauge.recipes.inside import scaled_biases
from depthgauge.recipes.rules import number_of
from depthgauge.recipes.stacks import Stack, stacks
from depthgauge.trace.counted import Weight
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said
from tests.recipes.models import bert, encoder, gpt2, mlp, postnorm, transformer

BLOCK = "h = h + attention(rmsnorm(h), heads=4); h = h + W2(gelu(W1(rmsnorm(h), out=4*n)))"
_BRANCH = "W2(relu(W1(h, out=4*n)))"


@pytest.mark.parametrize(
    ("layers", "alpha", "beta"),
    [
        (6, 1.86121, 0.37992),
        (12, 2.21336, 0.31947),
        (18, 2.44949, 0.28868),
        (24, 2.63215, 0.26864),
        (48, 3.13017, 0.22590),
        (50, 3.16228, 0.22361),
        (100, 3.76060, 0.18803),
        (200, 4.47214, 0.15811),
        (500, 5.62341, 0.12574),
        (1000, 6.68740, 0.10574),
    ],
)
def test_numbers_of_one_stack(layers: int, alpha: float, beta: float) -> None:
    scope = {"L": 2.0 * layers}
    found = [number_of(text, scope) for text in (ALPHA, BETA)]
    assert found == pytest.approx([alpha, beta], abs=6e-6)


@pytest.mark.parametrize(
    ("layers", "numbers"),
    [
        (6, (1.41794, 0.49699, 2.05977, 0.34329)),
        (12, (1.76088, 0.40020, 2.44949, 0.28868)),
        (18, (1.99875, 0.35257, 2.71081, 0.26085)),
        (50, (2.75051, 0.25621, 3.49964, 0.20205)),
        (100, (3.41574, 0.20631, 4.16179, 0.16990)),
        (500, (5.64824, 0.12476, 6.22333, 0.11362)),
    ],
)
def test_numbers_of_an_encoder_and_a_decoder(layers: int, numbers: tuple[float, ...]) -> None:
    texts = [
        text
        for role in ("encoder", "decoder")
        for text in constants(Stack(role, "", ()), layers, layers)
    ]
    assert [number_of(text, {}) for text in texts] == pytest.approx(list(numbers), abs=6e-6)


def test_on_equations() -> None:
    changed, model, batch = on_equation("deepnorm", BLOCK, depth=3)
    assert str(changed.block) == (
        "h = rmsnorm(L**0.25 * h + attention(h, heads=4)); "
        "h = rmsnorm(L**0.25 * h + W2(gelu(W1(h, out=4*n))))"
    )
    values = model.get_parameter("blocks.1.attention.1.v.weight")
    assert float(values.detach().std()) == pytest.approx(32**-0.5 * (4 * 6) ** -0.25, rel=0.06)
    broken(model, batch, "deepnorm", redrawn("deepnorm", batch, "xavier"), "beta was never applied")


@pytest.mark.parametrize(
    "build",
    [
        encoder,
        lambda: encoder(pre=True, final=True),
        lambda: encoder(final=True, layers=6, dropout=0.1),
        lambda: transformer(3, 2),
        lambda: transformer(1, 4, pre=True),
        bert,
        postnorm,
        mlp,
    ],
)
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    on_module("deepnorm", build)


def test_a_decoder_takes_its_own_numbers_and_values_a_part_of_a_matrix() -> None:
    applied, batch = on_module("deepnorm", lambda: transformer(3, 2))
    found = layout(applied.model, batch)
    assert [(s.role, s.layers) for s in stacks(found, "")] == [("encoder", 3), ("decoder", 2)]
    ratios = {b.stream: b.skip / b.factor for b in found.branches}
    assert ratios == {
        "encoder.layers": pytest.approx(0.81 * (3**4 * 2) ** (1 / 16)),
        "decoder.layers": pytest.approx(6**0.25),
    }
    packed = applied.model.get_parameter("decoder.layers.1.multihead_attn.in_proj_weight")
    query, key, value = packed.detach().chunk(3)
    assert float(query.std()) == pytest.approx(32**-0.5, rel=0.08)
    assert float(key.std()) == pytest.approx(32**-0.5, rel=0.08)
    assert float(value.std()) == pytest.approx(32**-0.5 * 24**-0.25, rel=0.08)


def test_a_module_computes_what_the_rule_says() -> None:
    model, batch = postnorm()
    applied = apply(model, batch, "deepnorm").model
    x = applied.get_submodule("0")(batch)
    for i in range(1, 7):
        inner = torch.relu(applied.get_submodule(f"{i}.up")(x))
        branch = applied.get_submodule(f"{i}.down.module")(inner)
        x = F.layer_norm(6**0.25 * x + branch, (24,), eps=6**0.5 * 1e-5)
    torch.testing.assert_close(applied(batch), applied.get_submodule("7")(x))


def test_pre_norm_that_cannot_be_moved_is_left_and_named() -> None:
    model, batch = gpt2()
    applied = apply(model, batch, "deepnorm")
    assert "no module returns the sum after 'transformer.h.0.attn': no norm put there" in (
        applied.left
    )
    assert "its skip was not scaled" in " ".join(applied.left)
    assert "3 of 6 branches with their norms in place" in said(
        audit(applied.model, batch, "deepnorm")
    )


def test_streams_that_are_no_encoder_and_decoder_are_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = mlp()[0], mlp()[0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.a(x), self.b(x)], -1)

    with pytest.raises(NetworkError, match=r"2 streams were found, branches a layer: .* with 1"):
        apply(Two(), torch.randn(4, 8), "deepnorm")


# ------------------------------------------------------------------------------ mistakes


def _is_value(weight: Weight) -> bool:
    return weight.role == "value"


def _of_encoder(weight: Weight) -> bool:
    return weight.path.startswith("encoder.")


@pytest.mark.parametrize(
    ("init", "where", "words"),
    [
        ("xavier", None, "a gain of 1: beta was never applied"),
        ("xavier", _is_value, "3 of 12 values.*the values in a fused matrix were missed"),
        ("xavier(gain=(4*L)**0.25)", None, "the gain has the wrong sign in its exponent"),
        (f"xavier(gain={ALPHA})", None, "alpha, where beta belongs: .* were swapped"),
        ("xavier(gain=(8*L)**-0.25)", None, "additions were counted as layers"),
        ("torch", None, "PyTorch's default: beta was never applied"),
    ],
)
def test_a_wrong_gain_is_named(
    init: str, where: Callable[[Weight], bool] | None, words: str
) -> None:
    applied, batch = on_module("deepnorm", encoder)
    plant = redrawn("deepnorm", batch, init, where or (lambda _: True))
    broken(applied.model, batch, "deepnorm", plant, words)


@pytest.mark.parametrize("build", [encoder, bert])
def test_values_that_were_missed_are_in_a_fused_matrix_where_there_is_one(
    build: Callable[[], tuple[nn.Module, Any]],
) -> None:
    applied, batch = on_module("deepnorm", build)
    words = "the values in a fused matrix were missed" if build is encoder else "values were missed"
    plant = redrawn("deepnorm", batch, "xavier", _is_value)
    broken(applied.model, batch, "deepnorm", plant, f"3 of 12 .*: a gain of 1: (the )?{words} ")
    assert "never applied" not in said(audit(applied.model, batch, "deepnorm"))


def test_the_inverted_constant_of_an_encoder_is_named() -> None:
    applied, batch = on_module("deepnorm", lambda: transformer(3, 2))
    init = "xavier(gain=1.15*(3**4*2)**(-1/16))"
    words = "1.15 = 1/.87 where .87 belongs: the constant was inverted"
    broken(applied.model, batch, "deepnorm", redrawn("deepnorm", batch, init, _of_encoder), words)


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        (f"h = layernorm(h + L**0.25*{_BRANCH})", "alpha multiplies the branch, and belongs on"),
        (f"h = layernorm(h + {_BRANCH})", "alpha was never applied"),
        (f"h = layernorm((4*L)**-0.25*h + {_BRANCH})", "beta stands on the skip: .* swapped"),
        (f"h = layernorm((2*L)**0.25*h + {_BRANCH})", "additions were counted as layers"),
        (f"h = layernorm(64**0.25*h + {_BRANCH})", "2.8284, the number of 32 layers"),
        (f"h = L**0.25*h + {_BRANCH}", "the norm after the sum is missing"),
        (
            "h = L**0.25*h + W2(relu(W1(layernorm(h), out=4*n)))",
            "the norm stands in front of the branch: DeepNorm's is of the sum",
        ),
    ],
)
def test_a_wrong_sum_is_named(equation: str, words: str) -> None:
    gain = f"xavier(gain={BETA})"
    right = Network(f"h = layernorm(L**0.25*h + {_BRANCH})", 6, 32, init=gain)
    batch = torch.randn(8, 32)
    assert audit(right.module(), batch, DEEPNORM).holds
    wrong = audit(Network(equation, 6, 32, init=gain).module(), batch, DEEPNORM)
    (finding, *_) = [f.said for f in wrong.findings if not f.holds]
    assert re.search(words, said(wrong)), finding


def test_a_norm_behind_the_last_is_named() -> None:
    applied, batch = on_module("deepnorm", encoder)

    def plant(model: nn.Module) -> None:
        model.get_submodule("0").norm = nn.LayerNorm(32)

    broken(applied.model, batch, "deepnorm", plant, "'0.norm' stands behind a norm")


@pytest.mark.parametrize(("numbers", "accused"), [(3, False), (60, True)])
def test_few_biases_accuse_nobody(numbers: int, accused: bool) -> None:
    """Of six numbers the size could be either's; and biases of zero say nothing."""
    weight = Weight("w", (numbers, 8), 8, numbers, False, False, bias="b")
    bias = torch.linspace(-1, 1, numbers) * 0.3 / 8**0.5
    found = list(scaled_biases({"b": bias}, [(weight, 0.3), (weight, 0.3)]))
    assert [(count.found, count.expected) for count in found] == [(2 * accused, 0)]
    assert not list(scaled_biases({"b": 0 * bias}, [(weight, 0.3)]))
    (unscaled,) = scaled_biases({"b": bias / 0.3}, [(weight, 0.3), (weight, 0.3)])
    assert unscaled.found == 0


# -------------------------------------------------------------------------- the count of layers


class Sublayer(nn.Module):
    """A block of one addition, with ``alpha`` on the skip and a norm, or on the branch and none."""

    def __init__(self, layers: int, right: bool) -> None:
        super().__init__()
        self.alpha, self.right = (2 * layers) ** 0.25, right
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)
        for layer in (self.up, self.down):
            nn.init.xavier_normal_(layer.weight, gain=(8 * layers) ** -0.25)
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.down(self.up(x).relu())
        out = self.norm(self.alpha * x + branch) if self.right else x + self.alpha * branch
        assert isinstance(out, torch.Tensor)
        return out


def sublayers(layers: int, right: bool = True) -> tuple[nn.Module, torch.Tensor]:
    """18 of them, drawn for this number of layers."""
    torch.manual_seed(0)
    return nn.Sequential(*[Sublayer(layers, right) for _ in range(18)]), torch.randn(8, 32)


def test_of_blocks_with_one_addition_half_of_them_or_all_are_the_layers() -> None:
    """The paper says neither; both are held, and which one is said."""
    half = audit(*sublayers(9), "deepnorm")
    assert half.holds
    assert "N = " not in " ".join(f.said for f in half.findings)
    each = audit(*sublayers(18), "deepnorm")
    assert each.holds
    assert "N = 18, where half of the 18 additions is 9" in each.findings[0].said
    assert "1 F" in each.findings[1].said
    assert not audit(*sublayers(12), "deepnorm").holds


def test_with_all_of_them_alpha_on_the_branch_is_named_as_that() -> None:
    words = said(audit(*sublayers(18, right=False), "deepnorm"))
    assert "18 of 18 sums: 1 h + 2.449 F, expected 2.449 h + 1 F: alpha multiplies the" in words
    assert "the norm after the sum is missing" in words
    assert "Xavier times" not in words  # the weights are right


def test_alpha_and_beta_are_of_one_count() -> None:
    model, batch = sublayers(18)
    for block in model.children():
        assert isinstance(block, Sublayer)
        block.alpha = 18**0.25
    assert not audit(model, batch, "deepnorm").holds
    model, batch = sublayers(9)
    for block in model.children():
        assert isinstance(block, Sublayer)
        block.alpha = 36**0.25
    assert "additions were counted as layers" in said(audit(model, batch, "deepnorm"))


def test_a_number_of_layers_that_is_given_is_the_only_one() -> None:
    assert audit(*sublayers(12), deepnorm(12)).holds
    assert not audit(*sublayers(18), deepnorm(9)).holds
    assert audit(*sublayers(9), deepnorm(9)).holds
    assert apply(*sublayers(9), deepnorm(18)).left == ()
    with pytest.raises(NetworkError, match="DeepNorm was given 3 layers, and an encoder and a"):
        audit(*transformer(3, 2), deepnorm(3))
