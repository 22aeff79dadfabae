"""What is put around layers: norms of every kind, and modules that pass on what they are asked."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from depthgauge.equation.functions import NORMS
from depthgauge.equation.nodes import SCALARS
from depthgauge.equation.scalars import evaluate
from depthgauge.errors import NetworkError
from depthgauge.network.norms import normaliser
from depthgauge.recipes.wrappers import (
    Entered,
    Left,
    PerChannel,
    Scaled,
    Shifted,
    Standardised,
    Times,
    norm_of,
)

WIDTH = 96
SHAPES = {"rows": (10, WIDTH), "tokens": (4, 5, WIDTH), "images": (4, WIDTH, 6, 6)}


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm", "batchnorm", "groupnorm"])
def test_a_norm_put_into_a_module_is_that_of_an_equation(kind: str, layout: str) -> None:
    torch.manual_seed(0)
    x = 3 * torch.randn(SHAPES[layout]) + 1
    options = {k: evaluate(v, {}) if isinstance(v, SCALARS) else v for k, v in NORMS[kind].items()}
    if kind == "rmsnorm":
        options["eps"] = torch.finfo(torch.float32).eps
    if kind == "groupnorm":
        options["groups"] = 32 if layout == "images" else 4
    made = norm_of(kind, WIDTH, -3 if layout == "images" else -1)
    expected = normaliser(kind, options, layout)(x)  # type: ignore[arg-type]
    torch.testing.assert_close(made(x), expected, atol=1e-5, rtol=1e-4)


def test_groups_of_few_channels() -> None:
    """Of one token a group of one channel would be zero, whatever it is."""
    x = torch.randn(5, 32)
    for width in (24, 32, 33):
        y = norm_of("groupnorm", width)(torch.randn(5, width)).detach()
        assert float(y.square().mean()) > 0.9
    torch.testing.assert_close(norm_of("groupnorm", 32)(x), nn.GroupNorm(2, 32)(x))


def test_bounded_norms_and_channels_of_sequences() -> None:
    x = torch.randn(4, WIDTH, 7)
    for axis in (-2, -3):
        y = x if axis == -2 else x[..., None]
        torch.testing.assert_close(norm_of("dyt", WIDTH, axis)(y), torch.tanh(0.5 * y))
        torch.testing.assert_close(norm_of("derf", WIDTH, axis)(y), torch.erf(0.5 * y))
    assert isinstance(norm_of("batchnorm", WIDTH, -2), nn.BatchNorm1d)
    expected = nn.LayerNorm(WIDTH)(x.mT).mT
    torch.testing.assert_close(norm_of("layernorm", WIDTH, -2)(x), expected)
    with pytest.raises(NetworkError, match="there is no module of scalenorm; use layernorm"):
        norm_of("scalenorm", WIDTH)


class Named(nn.Module):
    """Takes its input by name, returns more than it, and has something to ask for."""

    heads = 4

    def forward(self, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, int]:
        assert other is None or other is x
        return 2 * x, 7


def test_what_is_wrapped_is_called_and_asked_as_before() -> None:
    x = torch.ones(2, 3)
    entered = Entered(Named(), Times(5.0))
    for given, named in (((x,), {}), ((x, x), {}), ((), {"x": x}), ((), {"x": x, "other": x})):
        out, rest = entered(*given, **named)
        torch.testing.assert_close(out, 10 * x)
        assert rest == 7
    around = Left(Shifted(Scaled(PerChannel(entered, 2.0, 3))), Times(0.5))
    torch.testing.assert_close(around(x)[0], 10 * x)
    assert around.heads == 4
    with pytest.raises(AttributeError, match="tails"):
        _ = around.tails
    assert Shifted(nn.Linear(3, 3)).bias.shape == (1,)


def test_a_wrapper_answers_for_what_it_holds() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    wrapped = Scaled(Shifted(attention), 0.5)
    assert wrapped.batch_first is True
    assert wrapped.scale.item() == 0.5
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        _ = wrapped.absent
    x = torch.randn(2, 3, 8)
    assert torch.equal(wrapped(x, x, x)[0], 0.5 * attention(x, x, x)[0])


def test_a_wrapper_is_copied_with_what_it_holds() -> None:
    layer = nn.Linear(6, 4)
    parametrize.register_parametrization(layer, "weight", Standardised(4, 1.5))
    wrapped = PerChannel(Entered(layer, Times(2.0)), 0.1, 4)
    copied = copy.deepcopy(wrapped)
    names = [name for name, _ in wrapped.named_parameters()]
    assert [name for name, _ in copied.named_parameters()] == names
    x = torch.randn(3, 6)
    assert torch.equal(copied(x), wrapped(x))
    with torch.no_grad():
        copied.gain.zero_()
    assert bool(wrapped(x).any())
