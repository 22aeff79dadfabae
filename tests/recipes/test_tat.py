"""TAT: rectifiers and smooth activations, in series and beside residual sums."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.equation.text import to_text
from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.kernel_maps import leaky_slope
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.tat import tat
from depthgauge.recipes.wrappers import Transformed
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said, scaled
from tests.recipes.models import (
    convolutions,
    gpt2,
    mlp,
    normed_preactivation,
    plain,
    preactivation,
    resnet,
)

PLAIN = "relu(W1(h))"


def chain(
    kind: Callable[[], nn.Module], layers: int = 24, norm: bool = False
) -> tuple[nn.Sequential, Any]:
    """Layers in series, none of them square."""
    torch.manual_seed(0)
    widths = [8, *(24 + 16 * (k % 2) for k in range(layers)), 3]
    parts: list[nn.Module] = []
    for k in range(layers):
        parts.append(nn.Linear(widths[k], widths[k + 1]))
        parts += [nn.BatchNorm1d(widths[k + 1])] if norm else []
        parts.append(kind())
    return nn.Sequential(*parts, nn.Linear(widths[-2], 3)), torch.randn(32, 8)


def leaky(slope: float, scale: float, only: int | None = None) -> Callable[[nn.Module], None]:
    """The transformed activations (or one of them) with another slope and scale."""

    def plant(model: nn.Module) -> None:
        found = [m for m in model.modules() if isinstance(m, Transformed)]
        for module in found if only is None else [found[only]]:
            assert isinstance(module.module, nn.LeakyReLU)
            module.module.negative_slope, module.gamma = slope, scale

    return plant


def test_a_plain_equation_of_fifty_layers() -> None:
    changed, _, _ = on_equation("tat", PLAIN, depth=50)
    assert str(changed.block) == (
        "h = sqrt(2/(1 + 0.4305229**2)) * leaky_relu(W1(h), slope=0.4305229)"
    )
    assert rewritten(Network(PLAIN, 50, 32), "tat").changes == (
        f"- h = {PLAIN}",
        f"+ {changed.block}",
        "W1: lecun -> orthogonal",
    )
    hundred = rewritten(Network(PLAIN, 100, 32), "tat").network
    assert "slope=0.5704395" in str(hundred.block), "the constants are those of the depth"


def test_examples_leave_it_as_they_are_to() -> None:
    """Two examples of correlation 0 leave 50 layers of width 256 with one of 0.9, of their size:
    the mean of 12 draws within four standard errors; as it was, with one of 0.988."""

    def correlations(network: Network) -> torch.Tensor:
        found = []
        for seed in range(12):
            generator = torch.Generator().manual_seed(seed)
            q, _ = torch.linalg.qr(torch.randn(256, 2, generator=generator))
            with torch.no_grad():
                y = network.module(seed)(16 * q.T)
            found.append(torch.cosine_similarity(y[0], y[1], 0))
        return torch.stack(found)

    network = Network(PLAIN, 50, 256, init="he")
    here = correlations(rewritten(network, "tat").network)
    assert abs(here.mean() - 0.9) < 4 * here.std() / math.sqrt(12)
    before = correlations(network)
    assert before.mean() - 0.9 > 4 * before.std() / math.sqrt(12)


def test_smooth_activations_in_equations() -> None:
    changed, model, batch = on_equation("tat", "gelu(W1(layernorm(h)))", depth=30)
    assert str(changed.block) == (
        "h = 12.55443 * (gelu(0.1058373 * W1(h) + 0.3265386) - 0.2034277)"
    )
    assert layout(model, batch).norms == ()
    on_equation("tat", "tanh(W1(h))", depth=50)
    on_equation("tat", "softplus(W1(h), beta=2)", depth=12)
    # A number around an activation is its own scale: it gives way.
    changed, _, _ = on_equation("tat", "3 * tanh(0.5 * W1(h) + 0.1)", depth=50)
    assert str(changed.block) == str(rewritten(Network("tanh(W1(h))", 50), "tat").network.block)


def test_residual_equations() -> None:
    changed, model, _ = on_equation("tat", "h + W2(relu(W1(relu(h), out=4*n)))", depth=24)
    assert str(changed.block).startswith("h = 1/sqrt(2) * (h + W2(sqrt(2/(1 + 0.2129709**2)) *")
    assert to_text(changed.chosen["W1"]) == "orthogonal(gain=sqrt(128/32))"
    weight = model.get_parameter("blocks.3.W1.weight").detach()
    assert torch.allclose(weight.T @ weight, 4 * torch.eye(32), atol=1e-4)
    # Normalised sums keep their weights and their words.
    changed, _, _ = on_equation("tat", "0.6*h + 0.8*W2(relu(W1(relu(h))))", depth=48)
    assert str(changed.block).startswith("h = 0.6 * h + 0.8 * W2(")
    on_equation("tat", "h + conv3(relu(conv3(relu(h))))", depth=16, width=8)
    on_equation("tat", "h + 0.5 * W2(gelu(W1(h)))", depth=10)
    changed, _, _ = on_equation("tat", "h + scalar(0) * W2(tanh(W1(rmsnorm(h))))", depth=10)
    assert "scalar" not in str(changed.block)
    on_equation("tat", "h = relu(W1(h)); h = h + W3(relu(W2(h)))", depth=24)


def test_on_modules() -> None:
    on_module("tat", lambda: chain(nn.ReLU))
    on_module("tat", lambda: chain(lambda: nn.LeakyReLU(0.1)))
    on_module("tat", lambda: chain(nn.Tanh, 6))
    on_module("tat", lambda: chain(lambda: nn.ELU(inplace=True), 6))
    applied, _ = on_module("tat", lambda: chain(nn.ReLU, norm=True))
    assert "24 norms out" in applied.changes
    assert "24 activations transformed" in applied.changes
    for deep in (False, True):
        applied, batch = on_module("tat", lambda: preactivation((3, 4, 6, 3), deep))  # noqa: B023
        again = apply(applied.model, batch, "tat", seed=1)
        assert audit(again.model, batch, "tat").holds
        again.model.load_state_dict(applied.model.state_dict())
        assert torch.allclose(again.model(batch), applied.model(batch), rtol=1e-4)


def test_what_cannot_be_reached_is_named() -> None:
    model, batch = normed_preactivation()
    assert isinstance(model, nn.Sequential)
    deep = nn.Sequential(model[0], *list(model)[1:4] * 8, *list(model)[4:])
    left = apply(deep, batch, "tat").left
    assert any("the activation in '1' is called as a function: it was kept" in x for x in left)
    assert any("Q(1)" in x or "is relu, expected leaky_relu" in x for x in left)


def test_planted_faults() -> None:
    def build() -> tuple[nn.Module, Any]:
        model, batch = chain(nn.ReLU)
        return apply(model, batch, "tat", seed=1).model, batch

    model, batch = build()
    found = next(m for m in model.modules() if isinstance(m, Transformed))
    assert isinstance(found.module, nn.LeakyReLU)
    slope, scale = found.module.negative_slope, found.gamma
    assert (slope, scale) == pytest.approx((0.23850, 1.37563), abs=1e-5)
    broken(
        *build(),
        "tat",
        leaky(slope, 1.0),
        r"^0 of 24 activations with .*'1.module' has Q\(1\) = 0\.5\d+, expected 1: the output "
        r"scale gamma is missing",
    )
    broken(*build(), "tat", leaky(slope, 1.0, 3), r"23 of 24 activations .*: '7.module' has Q\(1\)")
    broken(
        *build(),
        "tat",
        leaky(0.4305229, math.sqrt(2 / (1 + 0.4305229**2))),
        r"C\(0\) of the network = 0\.764\d+, expected 0\.9: the constants are those of 50 "
        r"activations in series, and 24 are there",
    )
    # One layer more or fewer is seen.
    for layers in (23, 25):
        broken(
            *build(),
            "tat",
            leaky(leaky_slope([layers], 0.9), math.sqrt(2 / (1 + leaky_slope([layers], 0.9) ** 2))),
            f"those of {layers} activations in series",
        )
    broken(*build(), "tat", leaky(0.01, 1.0), "the activation was not transformed")
    broken(*build(), "tat", leaky(slope, math.sqrt(2)), r"the output scale gamma is 1\.4142, exp")
    broken(*build(), "tat", scaled("8.weight", 2**0.5), r"5 of 25 weights: .*a gain of sqrt\(2\)")
    model, batch = build()
    gaussian = redrawn("tat", batch, "lecun", lambda weight: weight.fan_out <= weight.fan_in)
    broken(model, batch, "tat", gaussian, "Gaussian of that variance, not orthogonal")
    model, batch = build()
    narrow = redrawn("tat", batch, "orthogonal", lambda weight: weight.fan_out > weight.fan_in)
    broken(model, batch, "tat", narrow, r"the factor sqrt\(out/in\) was left out")

    def biased(model: nn.Module) -> None:
        model[0].bias.data.fill_(0.1)  # type: ignore[index]

    broken(*build(), "tat", biased, r"1 of 25 biases: .* expected zero")

    def normed(model: nn.Module) -> None:
        model[1] = nn.Sequential(nn.BatchNorm1d(24), model[1])  # type: ignore[operator, index]

    broken(*build(), "tat", normed, r"1 norms: the maps are those of a network without one")


def test_planted_faults_of_smooth_activations_and_sums() -> None:
    _, _, batch = on_equation("tat", "h + W2(tanh(W1(h)))", depth=16)
    network = rewritten(Network("h + W2(tanh(W1(h)))", 16, 32), "tat").network
    text = str(network.block)
    for old, new, why in (
        ("1/sqrt(2) * (h", "1 * (h", r"16 of 16 sums: 1 h \+ 1 F, expected .* weights sum to 2"),
        ("1/sqrt(2) * (h", "0.7 * (h", r"the squares of its weights sum to 0\.98"),
    ):
        assert old in text
        other = Network(text.replace(old, new), 16, 32, init="orthogonal")
        found = audit(other.module(1), batch, "tat")
        assert not found.holds
        assert re.search(why, said(found)), said(found)
    deeper = Network(network.block, 32, 32, init="orthogonal")
    assert "constants of another depth" in said(audit(deeper.module(1), batch, "tat"))


def test_what_it_does_not_cover() -> None:
    cases: tuple[tuple[Callable[[], tuple[nn.Module, Any]], str], ...] = (
        (lambda: plain(nn.ReLU), r"one of 0\.681, below TAT's 0\.9 already"),
        (mlp, r"below TAT's 0\.9 already: it is not deep enough"),
        (gpt2, "'transformer.h.0.attn' has attention, and TAT is for layers and activations"),
        (resnet, r"reads what that in '2\.outer' gives, past no weight layer"),
        (lambda: chain(nn.SELU), "selu was found, which has a kink"),
        (lambda: chain(nn.Hardswish), "is hardswish, whose averages are not known here"),
        (lambda: (nn.Linear(4, 4), torch.randn(2, 4)), "no activation was found"),
        (convolutions, "not deep enough"),
    )
    for build, why in cases:
        model, batch = build()
        with pytest.raises(NetworkError, match=why):
            audit(model, batch, "tat")
    with pytest.raises(NetworkError, match="relu, tanh were found"):
        audit(nn.Sequential(*chain(nn.ReLU)[0], nn.Tanh()), torch.randn(2, 8), "tat")
    with pytest.raises(
        NetworkError, match="eta is 1, expected a finite number above 0 and below 1"
    ):
        tat(eta=1)
    with pytest.raises(NetworkError, match="write each activation and what multiplies it as one"):
        rewritten(Network("u = relu(W1(h)); h = W2(2*u)", 30, 16), "tat")
    with pytest.raises(NetworkError, match=r"the sums of each block other weights"):
        rewritten(Network("h + 1/l * W2(tanh(W1(h)))", 6, 16), "tat")


def test_other_targets() -> None:
    mild = tat(eta=0.75)
    made = rewritten(Network(PLAIN, 50, 32), mild).network
    assert "slope=0.5868396" in str(made.block)
    batch = torch.randn(4, 32)
    assert audit(made.module(1), batch, mild).holds
    assert not audit(made.module(1), batch, "tat").holds
