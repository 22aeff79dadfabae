"""Norms against PyTorch's own modules and their formulas written out."""

from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.equation.parse import parse
from depthgauge.errors import NetworkError
from depthgauge.network.layers import Layout
from depthgauge.network.norms import RootMeanSquare, normaliser
from depthgauge.network.spec import Network

STATES: dict[Layout, tuple[int, ...]] = {
    "rows": (6, 12),
    "tokens": (6, 5, 12),
    "images": (6, 12, 4, 4),
}


def state(layout: Layout) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return 3 * torch.randn(STATES[layout], generator=generator, dtype=torch.float64) + 1


def norm(text: str, layout: Layout) -> torch.nn.Module:
    """The norm as the language builds it, run on a state of this layout."""
    sizes: dict[str, Any] = {"tokens": 5} if layout == "tokens" else {}
    word = "conv1(h)" if layout == "images" else "h"
    sizes |= {"size": 4} if layout == "images" else {}
    equation = f"u = {word}; h = {text}"
    return Network(equation, depth=1, width=12, init="identity", **sizes).module().double()


@pytest.mark.parametrize(
    ("text", "layout", "module"),
    [
        ("layernorm(h)", "rows", nn.LayerNorm(12)),
        ("layernorm(h, eps=0.1)", "tokens", nn.LayerNorm(12, eps=0.1)),
        ("rmsnorm(h)", "tokens", nn.RMSNorm(12, eps=1e-6)),
        ("batchnorm(h)", "rows", nn.BatchNorm1d(12)),
        ("batchnorm(h)", "images", nn.BatchNorm2d(12)),
        ("groupnorm(h, groups=3)", "images", nn.GroupNorm(3, 12)),
        ("groupnorm(h, groups=4)", "rows", nn.GroupNorm(4, 12)),
        ("layernorm(h, axis='width+space')", "images", nn.GroupNorm(1, 12)),
        ("groupnorm(h, groups=12)", "images", nn.InstanceNorm2d(12)),
    ],
)
def test_norms_are_those_of_pytorch(text: str, layout: Layout, module: nn.Module) -> None:
    h = state(layout)
    assert torch.allclose(norm(text, layout)(h), module.double()(h), rtol=1e-10, atol=1e-10)


def test_width_norm_of_an_image_acts_on_the_channels() -> None:
    h = state("images")
    expected = nn.LayerNorm(12).double()(h.movedim(1, -1)).movedim(-1, 1)
    assert torch.allclose(norm("layernorm(h)", "images")(h), expected, rtol=1e-10)
    assert not torch.allclose(norm("layernorm(h, axis='space')", "images")(h), expected, rtol=0.1)


def test_eps_inside_and_outside_the_root_differ_as_written() -> None:
    h = state("rows") * 1e-3
    square = h.square().mean(-1, keepdim=True)
    inside = normaliser("rmsnorm", {"axis": None, "eps": 1e-4, "eps_at": "inside"}, "rows")
    outside = normaliser("rmsnorm", {"axis": None, "eps": 1e-4, "eps_at": "outside"}, "rows")
    assert torch.allclose(inside(h), h / (square + 1e-4).sqrt(), rtol=1e-10)
    assert torch.allclose(outside(h), h / (square.sqrt() + 1e-4), rtol=1e-10)
    assert (inside(h) / outside(h)).max() < 0.5


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_the_gradient_at_a_zero_state_is_finite(kind: str) -> None:
    for place in ("inside", "outside"):
        h = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
        rule = normaliser(kind, {"axis": None, "eps": 1e-3, "eps_at": place}, "rows")
        (g,) = torch.autograd.grad(rule(h).sum(), h)
        assert g.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rms_norm_for_a_single_backward_pass_is_pytorchs(dtype: torch.dtype) -> None:
    rule = RootMeanSquare(1e-3)
    h = state("tokens").to(dtype)
    h[0, 0] = 0
    slow, fast = (h.clone().requires_grad_() for _ in range(2))
    g = torch.randn(h.shape, dtype=dtype)
    y, z = rule(slow), rule.once(fast)
    tolerance: dict[str, Any] = {"rtol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-5}
    assert torch.allclose(y, z, **tolerance)
    (a,) = torch.autograd.grad(y, slow, g)
    (b,) = torch.autograd.grad(z, fast, g)
    assert torch.allclose(a, b, atol=1e-6 if dtype == torch.float32 else 1e-12, **tolerance)
    assert a[0, 0].abs().max() > 0


def test_a_second_backward_pass_through_the_fast_one_is_refused() -> None:
    h = state("rows").requires_grad_()
    (g,) = torch.autograd.grad(RootMeanSquare(1e-3).once(h).sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(g.sum(), h)
    (g,) = torch.autograd.grad(RootMeanSquare(1e-3)(h).sum(), h, create_graph=True)
    assert torch.autograd.grad(g.sum(), h)[0].isfinite().all()


def test_scalenorm_dyt_and_derf() -> None:
    h = state("rows")
    expected = 12**0.5 * h / h.norm(dim=-1, keepdim=True)
    assert torch.allclose(norm("scalenorm(h)", "rows")(h), expected, rtol=1e-6)
    assert torch.allclose(norm("dyt(h)", "rows")(h), torch.tanh(0.5 * h), rtol=1e-6)
    assert torch.allclose(
        norm("derf(h, alpha=0.25, shift=1)", "rows")(h), torch.erf(0.25 * h + 1), rtol=1e-6
    )


def test_gain_and_bias_are_parameters() -> None:
    module = norm("layernorm(h, gain=0.5, bias=True)", "rows")
    names = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert names == {
        "blocks.0.layernorm.1.gain": (12,),
        "blocks.0.layernorm.1.bias": (12,),
    }
    h = state("rows")
    assert torch.allclose(module(h), 0.5 * nn.LayerNorm(12).double()(h))


@pytest.mark.parametrize("layout", ["rows", "images"])
def test_batch_norm_in_eval_mode_uses_running_statistics(layout: Layout) -> None:
    ours = norm("batchnorm(h)", layout)
    theirs = (nn.BatchNorm1d(12) if layout == "rows" else nn.BatchNorm2d(12)).double()
    h = state(layout)
    for scale in (1.0, 2.0, 0.5):
        assert torch.allclose(ours(scale * h), theirs(scale * h), rtol=1e-6)
    ours.eval()
    theirs.eval()
    assert torch.allclose(ours(h), theirs(h), rtol=1e-6)
    assert not torch.allclose(ours(h), theirs.train()(h), rtol=1e-2)


def test_an_axis_that_the_state_lacks_is_named() -> None:
    with pytest.raises(NetworkError, match=r"axis='tokens'.*\(batch, width\) has no axis tokens"):
        Network("h + W(layernorm(h, axis='tokens'))")
    with pytest.raises(NetworkError, match="groups=5, which does not divide the width 64"):
        Network(parse("h + W(groupnorm(h, groups=5))"))


def test_a_batch_norm_with_eps_outside_keeps_its_formula_in_eval_mode() -> None:
    module = norm("batchnorm(h, eps=0.5, eps_at='outside')", "rows")
    h = state("rows")
    for _ in range(400):  # the running statistics settle on the batch's own
        module(h)
    unbiased = h.var(0, correction=1).sqrt()
    expected = (h - h.mean(0)) / (unbiased + 0.5)
    assert torch.allclose(module.eval()(h), expected, rtol=1e-9)
