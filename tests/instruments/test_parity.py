"""A module of the user's own against the one that was measured."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.instruments.parity import parity
from depthgauge.instruments.subject import Effort
from depthgauge.measurement import measure
from tests.instruments.subjects import subject_of


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm, self.w = nn.LayerNorm(n), nn.Linear(n, n)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + torch.tanh(self.w(self.norm(h)))
        return out


class Fused(nn.Module):
    """The same numbers in fewer functions, from the same parameters; wrong by ``factor``."""

    def __init__(self, model: nn.Sequential, factor: float = 1.0) -> None:
        super().__init__()
        for i, block in enumerate(model):
            self.add_module(str(i), block)
        self.factor = factor

    def forward(self, h: Tensor) -> Tensor:
        for block in self.children():
            assert isinstance(block, Block)
            u = F.layer_norm(h, h.shape[-1:], block.norm.weight, block.norm.bias)
            h = torch.addcmul(h, torch.tanh(F.linear(u, block.w.weight, block.w.bias)),
                              torch.full_like(h, self.factor))  # fmt: skip
        return h


def model_of(depth: int = 3) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(8) for _ in range(depth))), torch.randn(5, 8)


def test_the_same_module_in_float32_is_compared_state_by_state() -> None:
    model, x = model_of()
    found = parity(subject_of(model, x), Effort(), copy.deepcopy(model))
    note = found.notes["parity"]
    assert note["compared"] == "states, outputs and gradients"
    assert 0 < max(found.columns["relative_error_state"][1]) < 1e-6
    assert 0 < note["output_error"]["output"] < 1e-6
    assert 0 < note["input_gradient_error"]["input"] < 1e-6
    assert set(note["parameter_gradient_error"]) == {n for n, _ in model.named_parameters()}
    assert not found.missing


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_fused_code_is_compared_by_outputs_and_gradients(factor: float) -> None:
    model, x = model_of()
    found = parity(subject_of(model, x), Effort(), Fused(copy.deepcopy(model), factor))
    note = found.notes["parity"]
    assert note["compared"].startswith("outputs and gradients only: ")
    assert found.missing["relative_error_state"] == note["compared"]
    assert not found.columns
    right = factor == 1.0
    errors = [note["output_error"]["output"], note["input_gradient_error"]["input"]]
    errors += [note["parameter_gradient_error"]["2.w.weight"]]
    assert all((error < 1e-6) == right for error in errors)
    assert note["unmatched_parameters"] == []


def test_a_compiled_module_runs_compiled() -> None:
    model, x = model_of()
    compiled: nn.Module = torch.compile(copy.deepcopy(model), backend="eager")  # type: ignore[assignment]
    found = parity(subject_of(model, x), Effort(), compiled)
    note = found.notes["parity"]
    assert "compiled code" in note["compared"]
    assert 0 < note["output_error"]["output"] < 1e-6
    assert note["unmatched_parameters"] == []


def test_the_users_loss_is_followed() -> None:
    model, x = model_of()
    target = torch.randn(5, 8)

    def loss(y: Tensor) -> Tensor:
        return F.mse_loss(y, target)

    found = parity(subject_of(model, x, loss), Effort(), Fused(copy.deepcopy(model)))
    assert 0 < found.notes["parity"]["input_gradient_error"]["input"] < 1e-6


def test_another_module_that_raises_is_named() -> None:
    model, x = model_of()
    found = parity(subject_of(model, x), Effort(), nn.Linear(3, 3))
    assert "Linear raised RuntimeError" in found.missing["relative_error_state"]


def test_both_are_as_before() -> None:
    model, x = model_of()
    other = nn.Sequential(*model, nn.BatchNorm1d(8))
    before = {k: v.clone() for k, v in other.state_dict().items()}
    parity(subject_of(model, x), Effort(), other)
    assert all(torch.equal(v, before[k]) for k, v in other.state_dict().items())
    assert all(p.grad is None for p in other.parameters())


def test_measure_compares_a_module_in_place_of_an_arithmetic() -> None:
    model, x = model_of()
    for other, largest in ((Fused(model), 1e-6), (Fused(model, 1.5), 1.0)):
        effort = Effort(arithmetic=other)
        profile = measure(model, x, instruments="precision", effort=effort)
        note = profile.settings["instruments"]["parity"]  # type: ignore[index]
        alone = parity(subject_of(model, x), effort, other).notes["parity"]
        assert note["output_error"] == pytest.approx(alone["output_error"])
        assert largest / 100 < note["output_error"]["output"] < largest
        assert "headroom_float16_bits" in profile
        assert profile.not_measured["relative_error_state"].startswith("outputs and gradients only")
        (said,) = (line for line in profile.to_dict()["remarks"] if line.startswith("Fused"))
        assert f"outputs by {note['output_error']['output']:.2g}" in said
