"""LSUV."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.lsuv import LSUV
from tests.recipes.contract import broken, on_equation, on_module, said, scaled, undone
from tests.recipes.models import convolutions, gpt2, mlp, plain, resnet, transformer


def stds(model: nn.Module, batch: Any) -> dict[str, float]:
    """The slow way: a hook on each layer that is a module."""
    found: dict[str, float] = {}

    def hook(name: str) -> Any:
        def keep(module: nn.Module, given: Any, out: Tensor) -> None:
            found[name] = float(out.detach().std(correction=0))

        return keep

    kinds = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)
    handles = [
        module.register_forward_hook(hook(name))
        for name, module in model.named_modules()
        if isinstance(module, kinds) or type(module).__name__ == "Conv1D"
    ]
    was = model.training
    model.eval()
    with torch.no_grad():
        model(**batch) if isinstance(batch, dict) else model(batch)
    model.train(was)
    for handle in handles:
        handle.remove()
    return found


def test_on_equations() -> None:
    _, model, batch = on_equation("lsuv", "h + W2(relu(W1(h, out=4*n)))")
    assert list(stds(model, batch).values()) == pytest.approx([1.0] * 12, abs=2e-3)
    _, model, batch = on_equation("lsuv", "h + attention(h, heads=4); h = h + W2(tanh(W1(h)))")
    assert len(stds(model, batch)) == 6 * 6
    _, model, batch = on_equation("lsuv", "conv3(relu(h))", depth=12, width=8)
    assert list(stds(model, batch).values()) == pytest.approx([1.0] * 12, abs=2e-3)
    broken(
        model,
        batch,
        "lsuv",
        scaled("5.conv3.1.weight", 1.2),
        r"5 of 12 layers of unit variance on the batch: what 'blocks.5.conv3.1.weight' makes has a "
        r"standard deviation of 1.2",
    )


@pytest.mark.parametrize("build", [mlp, resnet, convolutions, gpt2, plain])
def test_on_modules_against_hooks(build: Any) -> None:
    applied, batch = on_module("lsuv", build)
    found = stds(applied.model, batch)
    found.pop("lm_head", None)  # shared with the embedding
    assert list(found.values()) == pytest.approx([1.0] * len(found), abs=3e-3)
    assert applied.changes[-1] == f"{len(found)} layers brought to unit variance on the batch"
    before = {name: p.clone() for name, p in applied.model.state_dict().items()}
    assert LSUV.after is not None
    LSUV.after(applied.model, batch)
    assert all(torch.equal(p, before[n]) for n, p in applied.model.state_dict().items())
    assert applied.model.training is build()[0].training


def test_matrices_that_are_turned_before_they_are_used() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(12, 6)), nn.Parameter(torch.randn(12, 5))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bi,io->bo", torch.tanh(x @ self.a.t()), self.b)

    torch.manual_seed(0)
    applied, batch = on_module("lsuv", lambda: (Turned(), torch.randn(50, 6)))
    a, b = (applied.model.get_parameter(name).detach() for name in "ab")
    assert float((batch @ a.T).std(correction=0)) == pytest.approx(1, abs=2e-3)
    out = torch.tanh(batch @ a.T) @ b
    assert float(out.std(correction=0)) == pytest.approx(1, abs=2e-3)


def test_attention_in_one_function() -> None:
    applied, batch = on_module("lsuv", transformer)
    model = applied.model
    entering = {}
    attention = model.get_submodule("encoder.layers.0.self_attn")

    def keep(module: nn.Module, given: Any, options: Any, out: Any) -> None:
        entering["x"], entering["out"] = given[0], out[0]

    attention.register_forward_hook(keep, with_kwargs=True)
    model(*batch)
    weight = attention.get_parameter("in_proj_weight")
    assert float((entering["x"] @ weight.T).detach().std()) == pytest.approx(1, abs=3e-3)
    assert float(entering["out"].detach().std()) == pytest.approx(1, abs=3e-3)


def test_without_the_data_part_or_with_gaussian_weights_it_is_said() -> None:
    model, batch = plain(nn.ReLU)
    orthogonal = apply(model, batch, "orthogonal").model
    assert "layers of unit variance on the batch" in said(audit(orthogonal, batch, "lsuv"))
    applied, batch = on_module("lsuv", lambda: plain(nn.ReLU))
    plant = undone("2.weight", 0.3)
    broken(applied.model, batch, "lsuv", plant, "1 of 5 weights: singular values from")


def test_a_layer_whose_output_is_zero_is_left_and_said() -> None:
    equation = "h + W3(scalar(0) * W2(relu(W1(h))))"
    network = Network(equation, 3, 16)
    model, batch = network.module(), torch.randn(8, 16)
    applied = apply(model, batch, "lsuv")
    assert applied.changes[-1] == (
        "6 layers brought to unit variance on the batch; 3 left as they are, whose output is zero "
        "('blocks.0.W3.weight')"
    )
    found = audit(applied.model, batch, "lsuv")
    assert found.holds, said(found)
    assert "(3 more have a zero output, 'blocks.0.W3.weight')" in found.findings[-1].said


def test_dropout_is_off_and_the_mode_comes_back() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 8)]
    model, batch = nn.Sequential(*layers), torch.randn(64, 16)
    applied = apply(model, batch, "lsuv")
    assert applied.model.training
    assert applied.model.get_submodule("2").training
    assert list(stds(applied.model, batch).values()) == pytest.approx([1.0, 1.0], abs=2e-3)


def test_what_is_not_finite_is_refused() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / (x - x)

    model = nn.Sequential(nn.Linear(4, 4), Log(), nn.Linear(4, 4))
    assert LSUV.after is not None
    with pytest.raises(NetworkError, match=r"what '2\.weight' makes of this batch is not finite"):
        LSUV.after(model, torch.randn(8, 4))


@pytest.mark.parametrize(
    ("build", "norms"), [(mlp, "6 of layernorm"), (resnet, "6 of batchnorm"), (plain, "")]
)
def test_norms_are_named_where_it_was_made_for_none(build: Any, norms: str) -> None:
    applied, batch = on_module("lsuv", build)
    words = "derived for networks without norms, and "
    told = [line for line in applied.changes if words in line]
    assert len(told) == bool(norms)
    assert all(f"{words}{norms} met, which divide out the size" in line for line in told)
    (weights,) = (f for f in audit(applied.model, batch, "lsuv").findings if f.part == "weights")
    assert (words in weights.said) is bool(norms)


def test_a_norm_makes_the_size_in_front_of_it_nothing() -> None:
    """What the words say: behind the layer stands a norm, and the network does not change."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 16), nn.BatchNorm1d(16, eps=1e-12), nn.ReLU(), nn.Linear(16, 4)]
    model, batch = nn.Sequential(*layers).double(), torch.randn(64, 16, dtype=torch.float64)
    applied = apply(model, batch, "lsuv").model.train()
    before = applied(batch)
    scaled("0.weight", 3.0)(applied)
    torch.testing.assert_close(applied(batch), before)
    scaled("3.weight", 3.0)(applied)
    assert not torch.allclose(applied(batch), before)


def test_a_batch_of_zeros_is_left_and_said() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
    for batch in (torch.randn(64, 8), torch.zeros(64, 8)):
        applied = apply(model, batch, "lsuv")
        found = audit(applied.model, batch, "lsuv")
        assert found.holds is bool(batch.any())
        assert list(applied.left) == [f.said for f in found.findings if not f.holds]
