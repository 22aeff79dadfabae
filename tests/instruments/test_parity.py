"""A module of the user's own against the one that was measured."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.instruments.parity import parity
from depthgauge.instruments.subject import Effort
from depthgauge.measurement import measure
from depthgauge.network.spec import Network
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


class Wrapper(nn.Module):
    """Another module as it is, one name deeper."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.net(h)
        return out


class Renames(nn.Module):
    """The blocks under other names."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.a, self.b, self.c = model

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.c(self.b(self.a(h)))
        return out


def same(model: nn.Module) -> nn.Module:
    return model


@pytest.mark.parametrize("copied", [same, copy.deepcopy])
@pytest.mark.parametrize(
    ("measured", "held"),
    [
        (same, Wrapper),
        (same, lambda model: Wrapper(Wrapper(model))),
        (Wrapper, same),
        (Wrapper, lambda model: Wrapper(Wrapper(model))),
        (Wrapper, lambda model: nn.Sequential(model)),
    ],
)
def test_a_wrapper_is_compared_as_what_is_in_it(
    measured: Callable[..., nn.Module],
    held: Callable[..., nn.Module],
    copied: Callable[..., nn.Module],
) -> None:
    model, x = model_of()
    subject = subject_of(measured(model), x)
    found = parity(subject, Effort(), held(copied(model)))
    plain = parity(subject, Effort(), measured(model))  # the slow way: the same names in both
    note = found.notes["parity"]
    assert note["compared"] == "states, outputs and gradients"
    assert note["unmatched_parameters"] == []
    assert set(note["parameter_gradient_error"]) == {n for n, _ in subject.model.named_parameters()}
    for key in ("output_error", "parameter_gradient_error", "relative_error_state"):
        assert note[key] == plain.notes["parity"][key]
    assert found.columns == plain.columns
    assert max(found.columns["relative_error_state"][1]) > 0


def test_the_same_blocks_under_other_names_are_the_same() -> None:
    model, x = model_of()
    note = parity(subject_of(model, x), Effort(), Renames(model)).notes["parity"]
    assert note["compared"] == "states, outputs and gradients"
    assert len(note["parameter_gradient_error"]) == 12


def test_other_paths_are_named_and_nothing_is_called_random() -> None:
    model, x = model_of()
    found = parity(subject_of(model, x), Effort(), Renames(copy.deepcopy(model)))
    note = found.notes["parity"]
    assert note["compared"] == (
        "outputs and gradients only: it has no module called '0' and 8 more, and states are found "
        "by the paths of modules; give its modules the names they have in the model that is "
        "measured"
    )
    assert note["parameter_gradient_error"] == {}
    assert "a.w.weight" in note["unmatched_parameters"]
    fused = parity(subject_of(model, x), Effort(), Fused(copy.deepcopy(model))).notes["parity"]
    assert fused["compared"].endswith(
        "it does not call the modules and functions that make the states of the model"
    )


def test_a_wrapper_that_does_more_is_not_what_is_in_it() -> None:
    class Doubled(Wrapper):
        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = self.net(torch.mul(h, 2.0))
            return out

    model, x = model_of()
    note = parity(subject_of(model, x), Effort(), Doubled(model)).notes["parity"]
    assert "the model calls mul in '(Doubled)'" in note["compared"]
    assert note["output_error"]["output"] > 0.1
    assert note["parameter_gradient_error"]["0.w.weight"] > 1e-3


def test_a_wrapper_without_parameters() -> None:
    model, x = nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Tanh()), torch.randn(5, 8)
    found = parity(subject_of(model, x), Effort(), Wrapper(copy.deepcopy(model)))
    assert found.notes["parity"]["compared"] == "states, outputs and gradients"


def test_a_module_in_place_of_the_arithmetic_of_an_equation() -> None:
    network = Network("h + W2(relu(W1(h)))", 3, 8)
    module = network.module(0, torch.float64)
    for other, states in ((module, True), (Wrapper(module), False)):
        effort = Effort(arithmetic=other)
        profile = measure(network, 4, instruments="precision", effort=effort)
        note = profile.settings["instruments"]["parity"]  # type: ignore[index]
        assert set(note["parameter_gradient_error"]) == {n for n, _ in module.named_parameters()}
        assert ("relative_error_state" in profile) == states
        assert states or "Wrapper is none" in profile.not_measured["relative_error_state"]


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


class Part(nn.Module):
    """Some of the rows of what a model returns."""

    def __init__(self, model: nn.Module, rows: int) -> None:
        super().__init__()
        self.model, self.rows = model, rows

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.model(h)[: self.rows]
        return out


def nothing(h: Tensor) -> None:
    return None


def named(h: Tensor) -> dict[str, Tensor]:
    return {"logits": h}


@pytest.mark.parametrize("loss", [None, lambda output: output.square().mean()])
@pytest.mark.parametrize(
    ("rows", "other", "said"),
    [
        (2, None, "Part: the outputs have shape (2, 8), expected (5, 8)"),
        (0, nothing, "nothing: it returned no tensor of floating-point numbers"),
        (
            0,
            named,
            "named: the outputs are called 'logits', expected 'output'; return them in the same "
            "form",
        ),
        (5, None, ""),
    ],
)
def test_outputs_of_another_form_are_not_compared(
    rows: int, other: Any, said: str, loss: Callable[..., Any] | None
) -> None:
    model, x = model_of()
    effort = Effort(arithmetic=other or Part(model, rows))
    profile = measure(model, x, loss, instruments="precision", effort=effort)
    notes = profile.settings["instruments"]
    assert isinstance(notes, dict)
    assert not notes["precision"].keys() & {"relative_error_state", "relative_error_gradient"}
    remarks = profile.to_dict()["remarks"]
    if said:
        assert notes["parity"]["not_compared"] == said
        assert "output_error" not in notes["parity"]
        assert profile.not_measured["relative_error_state"] == said
        assert f"precision: nothing was compared with {said}" in remarks
    else:
        assert "not_compared" not in notes["parity"]
        assert 0 < notes["parity"]["output_error"]["output"] < 1e-6
        assert not [line for line in remarks if "nothing was compared" in line]


def test_the_errors_of_the_model_itself_stand_beside_no_other_module() -> None:
    model, x = model_of()
    alone = measure(model, x, instruments="precision").settings["instruments"]
    assert isinstance(alone, dict)
    assert alone["precision"]["relative_error_state"]["last"] > 0


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
