"""DyT and Derf in the place of norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from tests.recipes.contract import broken, on_equation, on_module, parameter, said
from tests.recipes.models import (
    bert,
    encoder,
    gpt2,
    llama,
    normed_preactivation,
    resnet,
    transformer,
)

BLOCK = "h = h + attention(rmsnorm(h, gain=1)); h = h + W2(gelu(W1(rmsnorm(h, gain=1), out=4*n)))"


@pytest.mark.parametrize("kind", ["dyt", "derf"])
def test_on_equations(kind: str) -> None:
    changed, model, batch = on_equation(kind, BLOCK, depth=3)
    assert f"attention({kind}(h, gain=1))" in str(changed.block)
    broken(model, batch, kind, _alpha(0.8), r"alpha of D\w+")
    on_equation(kind, "h = h + batchnorm(W2(relu(W1(layernorm(h)))))")
    post, _, _ = on_equation(kind, "h = layernorm(h + W2(relu(W1(h))))")
    assert str(post.block) == f"h = {kind}(h + W2(relu(W1(h))))"


def test_a_wrong_alpha_is_set_right() -> None:
    network = Network("h = h + W2(relu(W1(dyt(h, alpha=0.2))))", 3, 8)
    assert str(rewritten(network, "dyt").network.block) == "h = h + W2(relu(W1(dyt(h))))"


def test_a_gain_is_kept_and_begins_at_one() -> None:
    for norm in ("dyt", "rmsnorm"):
        network = Network(f"h = h + W2(relu(W1({norm}(h, gain=0.3))))", 3, 8)
        block = rewritten(network, "dyt").network.block
        assert str(block) == "h = h + W2(relu(W1(dyt(h, gain=1))))"
    model = Network("h = h + W2(relu(W1(dyt(h, gain=0.3))))", 3, 8).module()
    found = said(audit(model, torch.randn(4, 8), "dyt"))
    assert "3 of 3 gamma of DyT: 0.3, expected 1 at the start" in found


@pytest.mark.parametrize("kind", ["dyt", "derf"])
@pytest.mark.parametrize("build", [gpt2, resnet])
@pytest.mark.parametrize(
    ("ending", "value", "words"),
    [
        ("gain", 0.3, r"gamma of D\w+: 0.3, expected 1 at the start"),
        ("gain", -1.0, r"gamma of D\w+: -1, expected 1 at the start"),
        ("bias", 2.0, r"beta of D\w+: .* up to 2, expected zero"),
    ],
)
def test_gains_and_offsets_that_begin_elsewhere_are_named(
    kind: str,
    build: Callable[[], tuple[nn.Module, Any]],
    ending: str,
    value: float,
    words: str,
) -> None:
    applied, batch = on_module(kind, build)
    sites = [p for p, module in applied.model.named_modules() if hasattr(module, "alpha")]

    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter(f"{sites[1]}.{ending}").fill_(value)

    broken(applied.model, batch, kind, plant, f"1 of {len(sites)} {words}")
    again = apply(applied.model, batch, kind).model
    assert audit(again, batch, kind).holds


@pytest.mark.parametrize("kind", ["dyt", "derf"])
@pytest.mark.parametrize(
    "build",
    [gpt2, llama, bert, encoder, lambda: transformer(pre=True), resnet, normed_preactivation],
)
def test_on_modules(kind: str, build: Callable[[], tuple[nn.Module, Any]]) -> None:
    applied, batch = on_module(kind, build)
    kinds = nn.LayerNorm | nn.BatchNorm2d | nn.RMSNorm
    assert not any(isinstance(m, kinds) for m in applied.model.modules())
    optimizer = torch.optim.AdamW(applied.groups(1e-3, weight_decay=0.1))
    assert audit(applied.model, batch, kind, optimizer).holds
    plain = torch.optim.AdamW(applied.model.parameters(), 1e-3, weight_decay=0.1)
    assert "without weight decay" in said(audit(applied.model, batch, kind, plain))


def test_what_a_site_computes() -> None:
    applied, _ = on_module("dyt", gpt2)
    site = applied.model.get_submodule("transformer.h.0.ln_1")
    x = torch.randn(3, 32)
    torch.testing.assert_close(site(x), torch.tanh(0.5 * x))
    small = torch.full((3, 32), 1e-4)
    torch.testing.assert_close(site(small), 0.5 * small)
    assert float(site(100 * x).detach().abs().max()) <= 1
    assert not torch.allclose(site(2 * x), site(x))


def test_faults_are_named() -> None:
    applied, batch = on_module("dyt", gpt2)
    broken(applied.model, batch, "dyt", _alpha(0.8, which=2), "1 of 7 alpha of DyT: .*h.1.ln_1")

    def forgotten(model: nn.Module) -> None:
        model.get_submodule("transformer").ln_f = nn.LayerNorm(32)

    applied, batch = on_module("dyt", gpt2)
    broken(applied.model, batch, "dyt", forgotten, "1 norms of another kind: dyt takes their")


def _alpha(value: float, which: int | None = None) -> Callable[[nn.Module], None]:
    def plant(model: nn.Module) -> None:
        found = parameter(model, "alpha")
        with torch.no_grad():
            for p in found if which is None else [found[which]]:
                p.fill_(value)

    return plant


def test_a_shift_that_is_not_zero_is_named() -> None:
    applied, batch = on_module("derf", gpt2)

    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            parameter(model, "shift")[0].fill_(0.1)

    broken(applied.model, batch, "derf", plant, "1 of 7 shift of Derf")


def test_without_norms_there_is_nothing_to_replace() -> None:
    with pytest.raises(NetworkError, match="no norm was found, and Derf takes the place of norms"):
        rewritten(Network("h = h + W2(relu(W1(h)))", 2, 8), "derf")
