"""What an audit says explains the numbers: a cause is named where it explains the group, and of
weights that are off in different ways the range is told."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from tests.recipes.contract import said
from tests.recipes.models import gpt2

BATCH = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


def made(recipe: str, block: str = "h + W2(relu(W1(h)))", depth: int = 12) -> nn.Module:
    return rewritten(Network(block, depth, 64), recipe).network.module(0)


def weights(model: nn.Module, name: str) -> list[Tensor]:
    found = [p.detach() for path, p in model.named_parameters() if path.endswith(f"{name}.weight")]
    assert len(found) == 12
    return found


def words(recipe: str, change: Callable[[nn.Module], object]) -> str:
    model = made(recipe)
    assert audit(model, BATCH, recipe).holds
    change(model)
    found = audit(model, BATCH, recipe)
    assert not found.holds
    return said(found)


def test_one_weight_has_no_count_of_the_depth() -> None:
    one = words("fixup", lambda model: weights(model, "W1")[3].mul_(1.2))
    assert "1 of 12 inner weights of branches: std 0.0611, expected 0.0510" in one
    assert "'blocks.3.W1.weight'" in one
    assert "L = " not in one
    every = words("fixup", lambda model: [w.mul_(12**0.5 / 2) for w in weights(model, "W1")])
    assert "12 of 12 inner weights of branches" in every
    assert "L = 4: counted in a part of the network" in every


@pytest.mark.parametrize("layers", [3, 4, 6])
@pytest.mark.parametrize("place", ["attn", "mlp"])
def test_one_projection_of_another_size_is_no_count_of_layers(layers: int, place: str) -> None:
    """The root of 2 between N and 2N is the same at every depth."""

    def of(times: float, odd: Callable[[str], bool]) -> str:
        model, batch = gpt2(n_layer=layers)
        model = apply(model, batch, "gpt2").model
        assert audit(model, batch, "gpt2").holds
        for name, p in model.named_parameters():
            if name.endswith("c_proj.weight") and odd(name):
                p.data.mul_(times)
        return said(audit(model, batch, "gpt2"))

    one = of(1.45, lambda name: f"h.1.{place}" in name)
    assert f"1 of {2 * layers} residual projections: std " in one
    assert f"'transformer.h.1.{place}.c_proj.weight'" in one
    assert "counted" not in one
    assert "counted" not in of(2**0.5, lambda name: place in name and "h.0." not in name)
    counted = f"N = {layers} layers were counted, not 2N = {2 * layers} additions"
    place_by_place = of(2**0.5, lambda name: place in name)
    assert f"{layers} of {2 * layers} residual projections" in place_by_place
    assert counted in place_by_place
    assert counted in of(2**0.5, lambda name: True)


def test_a_layer_that_was_left_at_pytorchs_default_is_one_by_itself() -> None:
    default = words(
        "fixup", lambda model: nn.init.kaiming_uniform_(weights(model, "W1")[3], a=5**0.5)
    )
    assert "1 of 12 inner weights" in default
    by = words("he", lambda model: nn.init.kaiming_uniform_(weights(model, "W1")[3], a=5**0.5))
    assert "1 of 24 weights" in by
    assert "PyTorch's default" in by


def test_errors_in_opposite_directions_are_told_as_a_range() -> None:
    def opposite(model: nn.Module) -> None:
        for k, weight in enumerate(weights(model, "W1")):
            weight.mul_(2.0 if k % 2 else 0.5)

    said_ = words("inv-sqrtL-init", opposite)
    assert re.search(r"12 of 12 other weights of branches: std 0\.4\d+ to 2[.\d]* times", said_)
    same = words("inv-sqrtL-init", lambda model: [w.mul_(3) for w in weights(model, "W1")])
    assert " to " not in same
    assert "(3 times)" in same


@pytest.mark.parametrize(("by", "told"), [(1.01, "scaled by 1.01"), (3.0, "scaled by 3")])
def test_a_scaled_orthogonal_matrix_is_no_gaussian(by: float, told: str) -> None:
    def scaled(model: nn.Module) -> None:
        for weight in (*weights(model, "W1"), *weights(model, "W2")):
            weight.mul_(by)

    found = words("orthogonal", scaled)
    assert "24 of 24 weights: std 0." in found
    assert f"orthogonal, {told}" in found
    assert "(1 times)" not in found


def test_a_gaussian_is_no_orthogonal_matrix() -> None:
    def drawn(std: float) -> Callable[[nn.Module], None]:
        generator = torch.Generator().manual_seed(1)

        def change(model: nn.Module) -> None:
            for weight in (*weights(model, "W1"), *weights(model, "W2")):
                weight.normal_(0, std, generator=generator)

        return change

    assert "24 of 24 weights" in words("orthogonal", drawn(1 / 8))
    assert "a Gaussian of the same size" in words("orthogonal", drawn(1 / 8))
    assert "He, a Gaussian" in words("orthogonal", drawn(2**0.5 / 8))
    root = words(
        "orthogonal",
        lambda model: [w.mul_(2**0.5) for name in ("W1", "W2") for w in weights(model, name)],
    )
    assert "a gain of sqrt(2), ReLU's" in root
    assert "Gaussian" not in root


def test_layerscale_tells_the_number_of_this_depth() -> None:
    for depth, number in ((12, "0.1"), (20, "1e-05")):
        model = Network("h + gain(1)*W2(relu(W1(layernorm(h))))", depth, 64).module(0)
        found = said(audit(model, BATCH, "layerscale"))
        assert f"0 of {depth} branches with a learned multiplier gain({number})" in found
        assert "**" not in found
