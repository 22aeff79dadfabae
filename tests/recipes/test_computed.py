"""Weights that a module computes of its parameters in its own ``forward``: an audit looks at what
the layer is given, not at the parameter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.trace.layout import layout
from tests.recipes.contract import said

EXACT, SAMPLED = math.sqrt(2 / (1 - 1 / math.pi)), 1.7139588594


class Standard(nn.Conv2d):
    """Scaled weight standardisation, by its formula or by the function of batch norm."""

    def __init__(
        self, entering: int, leaving: int, number: float = 1.0, form: str = "formula"
    ) -> None:
        super().__init__(entering, leaving, 3, padding=1)
        nn.init.normal_(self.weight, std=(entering * 9) ** -0.5)
        assert self.bias is not None
        nn.init.zeros_(self.bias)
        self.number, self.form = number, form
        self.gain = nn.Parameter(torch.ones(leaving, 1, 1, 1))

    def standardised(self) -> Tensor:
        w = self.weight
        fan = w[0].numel()
        match self.form:
            case "formula":
                v, mean = torch.var_mean(w, (1, 2, 3), keepdim=True, correction=0)
                scale = torch.rsqrt((v * fan).clamp_min(1e-4))
                return self.gain * self.number * (w - mean) * scale
            case "batch norm":
                gain = (self.gain * self.number * fan**-0.5).flatten()
                rows = F.batch_norm(
                    w.reshape(1, len(w), -1), None, None, gain, None, True, 0.0, 1e-6
                )
                return rows.reshape_as(w)
            case "without the mean":
                size = w.square().sum((1, 2, 3), keepdim=True).sqrt()
                return self.gain * self.number * w / size
        return self.gain * self.number * w

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.standardised(), self.bias, padding=1)


class Bottle(nn.Module):
    def __init__(self, block: int, number: float, behind: tuple[float, float], form: str) -> None:
        super().__init__()
        self.a, self.b = (Standard(8, 8, number, form) for _ in range(2))
        self.beta, self.behind = 1 / math.sqrt(1 + 0.04 * block), behind
        self.skip = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(x) * self.behind[0] * self.beta
        h = torch.relu(self.a(h)) * self.behind[1]
        out: Tensor = x + 0.2 * (self.skip * self.b(h))
        return out


def network(
    number: float, behind: tuple[float, float] = (1, 1), form: str = "formula"
) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    blocks = [Bottle(k, number, behind, form) for k in range(3)]
    ends = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    return nn.Sequential(Standard(3, 8, 1.0, form), *blocks, *ends), torch.randn(8, 3, 8, 8)


NETWORKS: dict[str, tuple[float, tuple[float, float], str, str]] = {
    "in the weights": (EXACT, (1, 1), "formula", ""),
    "by batch norm": (EXACT, (1, 1), "batch norm", ""),
    "behind the activations": (1, (SAMPLED, SAMPLED), "formula", ""),
    "missing": (1, (1, 1), "formula", "6 of 6 weights .*: the activation's gain is missing"),
    "twice": (EXACT, (SAMPLED, SAMPLED), "formula", "6 of 6 .*activation's gain counts twice"),
    "of the root mean square": (2**0.5, (1, 1), "formula", "gain of the root mean square, 1.4142"),
    "behind one alone": (1, (1, SAMPLED), "formula", "0 of 3 .*: the activation's gain is missing"),
    "of another size": (1, (1.6, 1.6), "formula", "the activation's gain is 1.6000, not 1.7129"),
    "of another size inside": (1, (SAMPLED, 1.6), "formula", "'1.b.weight' it is 1.6000, not 1.71"),
    "of the root mean square behind": (
        1,
        (2**0.5, 2**0.5),
        "formula",
        "1.4142, not 1.7129: that of the root mean square",
    ),
    "with the mean": (EXACT, (1, 1), "without the mean", "rows whose mean is not taken off"),
    "a number alone": (EXACT, (1, 1), "none", "of 6 weights of branches: (std|rows)"),
}


@pytest.mark.parametrize(("number", "behind", "form", "words"), NETWORKS.values(), ids=NETWORKS)
def test_standardised_in_forward(
    number: float, behind: tuple[float, float], form: str, words: str
) -> None:
    model, batch = network(number, behind, form)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = audit(model, batch, "nfnet")
    assert found.holds is (not words), said(found)
    if words:
        assert re.search(words, said(found)), said(found)
    assert not layout(model, batch).norms
    assert not any("at the start alone" in f.said for f in found.findings)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("gain", [2**0.5, 1.6, 2.0])
def test_a_wrong_gain_behind_activations_is_not_called_a_missing_one(gain: float) -> None:
    words = said(audit(*network(1, (gain, gain)), "nfnet"))
    assert (
        "0 of 3 layers behind an activation that its gain multiplies: behind '1.relu' in front of"
        in words
    )
    assert words.count(f"{gain:.4f}, not 1.7129") == 2
    assert "missing" not in words
    assert "weights of branches" not in words


def test_what_is_standardised_already_is_not_standardised_again() -> None:
    model, batch = network(EXACT)
    with torch.no_grad():
        model.get_parameter("1.a.gain").fill_(3.0)
    assert "1 of 6 weights of branches: std" in said(audit(model, batch, "nfnet"))
    applied = apply(network(EXACT)[0], batch, "nfnet")
    assert not any(".parametrizations." in name for name, _ in applied.model.named_parameters())
    assert audit(applied.model, batch, "nfnet").holds


# ------------------------------------------------------------------------- spectral norms


SIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda w: torch.linalg.matrix_norm(w, 2),
    "length": lambda w: torch.linalg.matrix_norm(w, "fro"),
    "first of svdvals": lambda w: torch.linalg.svdvals(w)[0],
    "first of svd": lambda w: torch.linalg.svd(w)[1][0],
    "first of torch.svd": lambda w: torch.svd(w).S[0],
    "last of svdvals": lambda w: torch.linalg.svdvals(w)[-1],
    "root of eigvalsh": lambda w: torch.linalg.eigvalsh(w @ w.mT)[-1].sqrt(),
}


class Divided(nn.Linear):
    """A weight over its spectral norm (or its whole length), times a learned number."""

    def __init__(self, entering: int, leaving: int, gamma: float, form: str) -> None:
        super().__init__(entering, leaving)
        self.gamma, self.form = nn.Parameter(torch.tensor(gamma)), form

    def forward(self, x: Tensor) -> Tensor:
        weight = self.gamma * self.weight / SIZES.get(self.form, SIZES["norm"])(self.weight)
        return F.linear(x, weight + 0.1 if self.form == "moved" else weight, self.bias)


def divided(gamma: float, form: str = "") -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = [Divided(a, b, gamma, form) for a, b in ((8, 16), (16, 24), (24, 5))]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2]), torch.randn(64, 8)


@pytest.mark.parametrize(
    ("gamma", "form", "words"),
    [
        (1.0, "", ""),
        (2.0, "", "0 of 3 learned numbers gamma that begin at 1: that of '0.weight' is 2"),
        (1.0, "length", "0 of 3 weights whose spectral norm is gamma: '0.weight' has"),
        *[(1.0, form, "") for form in SIZES if form not in ("length", "last of svdvals")],
        (2.0, "first of svdvals", "0 of 3 learned numbers gamma that begin at 1"),
        (1.0, "last of svdvals", "0 of 3 weights whose spectral norm is gamma: '0.weight' has"),
        (1.0, "moved", "0 of 3 weights divided by their spectral norm"),
    ],
)
def test_divided_by_its_spectral_norm_in_forward(gamma: float, form: str, words: str) -> None:
    found = audit(*divided(gamma, form), "sigma-reparam")
    assert found.holds is (not words)
    assert said(found).startswith(words)


# --------------------------------------------------------------------- weights of all kinds


class Halved(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * 0.5, self.bias)


class Lengths(nn.Linear):
    """Weight normalisation in ``forward``; directions of standard deviation 0.05."""

    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__(entering, leaving)
        nn.init.normal_(self.weight, std=0.05)
        self.g = nn.Parameter(torch.ones(leaving, 1))

    def forward(self, x: Tensor) -> Tensor:
        w = self.g * self.weight / self.weight.norm(dim=1, keepdim=True)
        return F.linear(x, w, self.bias)


def chain(layer: Callable[[int, int], nn.Module]) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    sizes = ((8, 64), (64, 64), (64, 5))
    layers = [m for a, b in sizes for m in (layer(a, b), nn.ReLU())][:-1]
    return nn.Sequential(*layers), torch.randn(64, 8)


@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_the_size_is_that_of_what_the_layer_is_given(gain: float) -> None:
    """Weights twice as large, of which the layer takes half, are He's."""
    model, batch = chain(Halved)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
            with torch.no_grad():
                module.weight.mul_(gain)
    assert audit(model, batch, "he").holds is (gain == 2)


def test_lengths_and_directions_in_forward() -> None:
    model, batch = chain(Lengths)
    applied = apply(model, batch, "weight-norm")
    assert not applied.left
    assert audit(applied.model, batch, "weight-norm").holds
    with torch.no_grad():
        applied.model.get_parameter("2.g").mul_(2)
    assert "of '2' has" in said(audit(applied.model, batch, "weight-norm"))


def test_parametrisations_of_pytorch_are_read_where_they_are() -> None:
    model, batch = chain(nn.Linear)
    parametrizations.spectral_norm(model[2])
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    found = layout(model, batch)
    assert not found.computed
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())


def test_a_weight_that_is_moved_about_alone_is_the_parameter() -> None:
    class Turned(nn.Module):
        def __init__(self, entering: int, leaving: int) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(entering, leaving))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x @ self.w.to(x.dtype).contiguous() + F.linear(x, self.w.t())
            return out

    assert not layout(*chain(Turned)).computed
    assert list(layout(*chain(Halved)).computed) == ["0.weight", "2.weight", "4.weight"]
