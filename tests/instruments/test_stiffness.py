"""Stiffness against dense Hessians, and against what the optimisers then do."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import depthgauge as dg
from depthgauge.errors import ModelError, NetworkError, SpecificationError
from depthgauge.instruments.stability import Rule
from depthgauge.instruments.step import Step
from depthgauge.instruments.stiffness import curvature, stiffness
from depthgauge.instruments.subject import Effort, Subject
from depthgauge.jsonable import jsonable
from depthgauge.network.classified import classified
from tests.instruments.test_hessian import Once, attention, by_hand, dense, mlp, runner, targets


def fingerprint(model: nn.Module) -> str:
    """Weights, buffers, gradients, modes, hooks and the generators."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    for p in model.parameters():
        found.update(f"{p.grad is None} {p.requires_grad} {p._version}".encode())
    for m in model.modules():
        found.update(f"{m.training} {len(m._forward_hooks)} {sorted(vars(m))}".encode())
    found.update(torch.get_rng_state().numpy().tobytes())
    return found.hexdigest()


def ends(matrix: Tensor) -> tuple[float, float]:
    values = torch.linalg.eigvalsh(matrix)
    return float(values[-1]), float(values[0])


class Quadratic(nn.Module):
    """The loss ``sum curvature w^2 / 2`` in a rotated basis; the batch is not looked at."""

    def __init__(self, curvatures: Tensor, size: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        n = len(curvatures)
        draw = torch.randn(n, n, generator=generator, dtype=torch.float64)
        q = torch.linalg.qr(draw)[0]
        self.register_buffer("matrix", q @ torch.diag(curvatures) @ q.T)
        start = size * torch.randn(n, generator=generator, dtype=torch.float64)
        self.w = nn.Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.w @ self.get_buffer("matrix") @ self.w / 2
        return loss + 0 * x.sum()


ONE = torch.zeros(1, 1, dtype=torch.float64)


# ------------------------------------------------------------------------------ curvature


@pytest.mark.parametrize("make", [mlp, attention])
def test_the_ends_are_those_of_the_dense_hessian(
    make: Callable[[], tuple[nn.Module, Tensor]],
) -> None:
    model, batch = make()
    found = curvature(model, batch, targets, lr=0.1, steps=0, iterations=500)["step 0"]
    matrix = dense(model, batch, targets)
    top, bottom = ends(matrix)
    # A residual below 1e-2 leaves an error of about its square over the gap.
    assert found["largest"] == pytest.approx(top, rel=1e-3)
    assert abs(found["largest"] - top) <= found["largest_residual"]
    assert abs(found["smallest"] - bottom) <= found["smallest_residual"] + 0.1 * abs(bottom)
    (first,) = (torch.autograd.grad(targets(model(batch)), list(model.parameters())),)
    g = torch.cat([x.flatten() for x in first])
    assert found["gradient_norm"] == pytest.approx(float(g.norm()), rel=1e-10)
    assert found["along_gradient"] == pytest.approx(float(g @ matrix @ g / (g @ g)), rel=1e-9)
    assert found["along_gradient"] != pytest.approx(found["largest"], rel=1e-2)
    assert found["converged"]


def test_a_known_spectrum() -> None:
    model = Quadratic(torch.tensor([5.0, 1.0, 0.5, 0.1, -9.0]).double())
    found = curvature(model, ONE, lambda out: out, lr=0.1, steps=0)
    first = found["step 0"]
    assert (first["largest"], first["smallest"]) == pytest.approx((5.0, -9.0), rel=1e-10)
    assert first["largest_magnitude"] == first["smallest"]
    assert found["ratio"] == pytest.approx(0.1 * 5 / 2, rel=1e-10)
    assert found["margin_decades"] == pytest.approx(-math.log10(0.25), rel=1e-10)
    assert first["stopped"] == "whole space"


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("steps", [0, 3])
def test_adams_is_the_dense_preconditioned_hessian(name: str, steps: int) -> None:
    model, batch = mlp()
    rule = Rule(name, 1e-2, weight_decay=0.1)
    options: dict[str, Any] = {"lr": 1e-2, "optimizer": name, "weight_decay": 0.1}
    found = curvature(model, batch, targets, steps=steps, iterations=200, **options)
    parameters = list(model.parameters())
    optimizer = rule.made(parameters)
    squares, losses = [], []
    for step in range(steps + 1):
        loss = targets(model(batch))
        losses.append(loss.detach().item())
        optimizer.zero_grad()
        loss.backward()
        decay = rule.coupled
        each = [p.grad + decay * p.detach() for p in parameters if p.grad is not None]
        squares.append(torch.cat([g.flatten() for g in each]) ** 2)
        if step < steps:
            optimizer.step()
    weights = 0.001 * 0.999 ** torch.arange(steps, -1, -1, dtype=torch.float64)
    v_hat = (weights[:, None] * torch.stack(squares)).sum(0) / weights.sum()
    half = (v_hat.sqrt() + 1e-8).rsqrt()
    matrix = dense(model, batch, targets)
    top, _ = ends(half[:, None] * (matrix + rule.coupled * torch.eye(len(half))) * half)
    point = found[f"after {steps}" if steps else "step 0"]
    # The ends of P^-1/2 H P^-1/2 stand close together: the residual's 1e-2 is what is promised.
    assert point["preconditioned"]["largest"] == pytest.approx(top, rel=2e-2)
    assert found["ratio"] == pytest.approx(1e-2 * top / rule.limit, rel=2e-2)
    assert found["ratio_at"] == (f"after {steps}" if steps else "step 0")
    if steps:
        assert point["losses"] == pytest.approx(losses[:-1], rel=1e-12)
        assert point["loss"] == pytest.approx(losses[-1], rel=1e-12)
        assert point["largest"] != pytest.approx(found["step 0"]["largest"], rel=1e-3)


def test_decay_in_the_gradient_adds_to_the_curvature() -> None:
    model = Quadratic(torch.tensor([5.0, 1.0]).double())
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 3.0, "steps": 0}
    found = curvature(model, ONE, lambda out: out, **options)
    assert found["ratio"] == pytest.approx(0.1 * 8 / 2, rel=1e-10)
    assert found["step 0"]["largest"] == pytest.approx(5.0, rel=1e-10)
    assert "adds to every eigenvalue" in found["conventions"][0]


# ------------------------------------------------------------------------- what it foretells


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov"])
def test_a_ratio_over_one_diverges_and_under_one_does_not(optimizer: str) -> None:
    limit = Rule(optimizer).limit
    for share, grows in ((0.97, False), (1.03, True)):
        model = Quadratic(torch.tensor([4.0, 1.0, 0.5]).double())
        lr = share * limit / 4.0
        ratio = curvature(model, ONE, lambda out: out, lr=lr, optimizer=optimizer)["ratio"]
        assert ratio == pytest.approx(share, rel=1e-9)
        stepper = Rule(optimizer, lr).made(model.parameters())
        before = model(ONE).item()
        for _ in range(400):
            stepper.zero_grad()
            model(ONE).backward()
            stepper.step()
        assert (model(ONE).item() > before) is grows


class Parted(Quadratic):
    """The same loss, its weights in two parameters."""

    def __init__(self, curvatures: Tensor, first: int) -> None:
        super().__init__(curvatures)
        whole = self.w.detach()
        del self.w
        self.a, self.b = nn.Parameter(whole[:first].clone()), nn.Parameter(whole[first:].clone())

    def forward(self, x: Tensor) -> Tensor:
        w = torch.cat([self.a, self.b])
        loss: Tensor = w @ self.get_buffer("matrix") @ w / 2
        return loss + 0 * x.sum()


def of_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    subject = Subject(model, ONE, lambda out: out, [4], runner(lambda out: out, ONE))
    found = stiffness(subject, Effort(step=Step(optimizer), iterations=20, steps=0))
    note: dict[str, Any] = found.notes["stiffness"]
    return note


#: Of both groups: the rate for a ratio of 1 times a share, the momentum, whether it is Nesterov's.
GROUPS = {
    "rates": ((1.0, 0.0, False), (0.1, 0.0, False)),
    "momenta": ((0.5, 0.0, False), (0.5, 0.9, False)),
    "both kinds of momentum": ((0.3, 0.8, True), (1.0, 0.5, False)),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_groups_that_differ_diverge_over_one_and_not_under(kind: str) -> None:
    curvatures = torch.tensor([4.0, 3.0, 1.0, 0.5, 0.2]).double()
    for share, grows in ((0.97, False), (1.03, True)):
        model = Parted(curvatures, 2)
        unit = 1.0
        for scale in (1.0, share):  # first where the ratio is 1, then beside it
            groups = [
                {"params": [p], "lr": scale * unit * lr, "momentum": mu, "nesterov": nesterov}
                for p, (lr, mu, nesterov) in zip((model.a, model.b), GROUPS[kind], strict=True)
            ]
            stepper = torch.optim.SGD(groups)
            note = of_optimizer(model, stepper)
            unit = unit / note["ratio"]
        assert note["ratio"] == pytest.approx(share, rel=1e-8)
        rules = [
            Rule(g["optimizer"]["name"], momentum=mu)
            for g, (_, mu, _) in zip(note["groups"], GROUPS[kind], strict=True)
        ]
        scales = [g["learning_rate"] / r.limit for g, r in zip(note["groups"], rules, strict=True)]
        s = torch.tensor([scales[0]] * 2 + [scales[1]] * 3, dtype=torch.float64).sqrt()
        top = ends(s[:, None] * model.get_buffer("matrix") * s)[0]
        assert note["ratio"] == pytest.approx(top, rel=1e-4)  # Lanczos stops at residuals of 1e-2
        before = model(ONE).item()
        for _ in range(600):
            stepper.zero_grad()
            model(ONE).backward()
            stepper.step()
        assert (model(ONE).item() > before) is grows


def test_what_an_optimizer_does_not_hold_has_no_curvature_for_it() -> None:
    model = Parted(torch.tensor([4.0, 3.0, 1.0, 0.5, 0.2]).double(), 2)
    note = of_optimizer(model, torch.optim.SGD([model.a], lr=0.1))
    matrix = model.get_buffer("matrix")
    held, whole = ends(matrix[:2, :2])[0], ends(matrix)[0]
    assert note["ratio"] == pytest.approx(0.1 * held / 2, rel=1e-3)
    assert held < 0.95 * whole
    assert note["parameters_not_moved"] == 3


def test_adam_of_two_rates_is_the_dense_matrix_of_both() -> None:
    model = Parted(torch.tensor([4.0, 3.0, 1.0, 0.5, 0.2]).double(), 2)
    groups: list[dict[str, Any]] = [
        {"params": [model.a], "lr": 1e-2},
        {"params": [model.b], "lr": 1e-3, "betas": (0.5, 0.9)},
    ]
    note = of_optimizer(model, torch.optim.Adam(groups))
    model(ONE).backward()
    each = []
    for p, lr, beta in ((model.a, 1e-2, 0.9), (model.b, 1e-3, 0.5)):
        assert p.grad is not None
        each.append(lr * (1 - beta) / (2 * (1 + beta)) / (p.grad.abs() + 1e-8))
    s = torch.cat(each).sqrt()
    assert note["ratio"] == pytest.approx(
        ends(s[:, None] * model.get_buffer("matrix") * s)[0], rel=1e-2
    )
    assert [group["parameters"] for group in note["groups"]] == [2, 3]


def test_the_state_of_a_training_run_is_what_the_next_step_uses() -> None:
    model = Parted(torch.tensor([4.0, 3.0, 1.0, 0.5, 0.2]).double(), 2)
    run = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        run.zero_grad()
        model(ONE).backward()
        run.step()
    run.zero_grad()
    before = {p: {k: v.clone() for k, v in s.items()} for p, s in run.state.items()}
    ratio = of_optimizer(model, run)["ratio"]
    model(ONE).backward()
    each: list[Tensor] = []
    for p in (model.a, model.b):
        assert p.grad is not None
        state = run.state[p]
        square = state["exp_avg_sq"] * 0.999 + 0.001 * p.grad**2
        each.append(1e-2 / 38 / ((square / (1 - 0.999**201)).sqrt() + 1e-8))
    s = torch.cat(each).sqrt()
    top = ends(s[:, None] * model.get_buffer("matrix") * s)[0]
    assert ratio == pytest.approx(top, rel=1e-2)
    assert of_optimizer(model, torch.optim.Adam(model.parameters(), lr=1e-2))["ratio"] > 2 * top
    for q, state in before.items():
        assert all(torch.equal(run.state[q][name], value) for name, value in state.items())


def test_the_decay_of_what_no_gradient_reaches_does_not_count() -> None:
    class Unused(Parted):
        def __init__(self) -> None:
            super().__init__(torch.tensor([4.0, 3.0, 1.0, 0.5, 0.2]).double(), 2)
            self.unused = nn.Parameter(torch.ones(3).double())

    model = Unused()
    groups: list[dict[str, Any]] = [
        {"params": [model.a, model.b]},
        {"params": [model.unused], "weight_decay": 1000.0},
    ]
    ratio = of_optimizer(model, torch.optim.SGD(groups, lr=0.1))["ratio"]
    assert ratio == pytest.approx(0.1 * 4 / 2, rel=1e-3)


def test_adam_on_its_way_past_the_limit_is_thrown_back() -> None:
    """arXiv 2207.14484: P grows as soon as the iterates do, so that Adam hovers at its limit."""
    torch.manual_seed(0)
    ratios = []
    model = Quadratic(torch.linspace(0.1, 4.0, 6).double(), 3.0)
    rule = Rule("adam", 0.05, betas=(0.9, 0.99), eps=0.0)
    stepper = rule.made(model.parameters())
    for _ in range(600):
        stepper.zero_grad()
        model(ONE).backward()
        stepper.step()
        assert model.w.grad is not None
        half = rule.preconditioner(model.w, model.w.grad, stepper.state[model.w])
        scaled = half[:, None] * model.get_buffer("matrix") * half
        ratios.append(rule.lr * ends(scaled)[0] / rule.limit)
    assert 0.3 < sum(ratios[300:]) / 300 < 1.5
    assert ratios[5] < 0.1


class ReZero(nn.Module):
    """``h + a W2 act(W1 h)`` with a = 0 at the start, or with a zero last layer in its place."""

    def __init__(
        self,
        zero: str,
        blocks: int = 3,
        width: int = 6,
        act: Callable[[Tensor], Tensor] = torch.tanh,
    ) -> None:
        super().__init__()
        self.act = act
        self.a = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(blocks))
        self.first = nn.ModuleList(nn.Linear(width, width, False) for _ in range(blocks))
        self.last = nn.ModuleList(nn.Linear(width, width, False) for _ in range(blocks))
        self.out = nn.Linear(width, 3)
        with torch.no_grad():
            for part in {"rezero": self.a, "fixup": self.last.parameters(), "": ()}[zero]:
                part.zero_()

    def forward(self, h: Tensor) -> Tensor:
        for a, first, last in zip(self.a, self.first, self.last, strict=True):
            h = h + a * last(self.act(first(h)))
        made: Tensor = self.out(h)
        return made


def test_the_branches_are_zero_at_the_start() -> None:
    batch = torch.randn(3, 6)
    for zero in ("rezero", "fixup"):
        model = ReZero(zero)
        assert torch.equal(model(batch), model.out(batch))
    assert not torch.equal(ReZero("")(batch), ReZero("").out(batch))


@pytest.mark.parametrize("zero", ["rezero", "fixup", ""])
def test_a_zero_branch_hides_the_curvature_of_its_weights_at_step_0(zero: str) -> None:
    torch.manual_seed(0)
    model = ReZero(zero).double()
    batch = torch.randn(12, 6, dtype=torch.float64)

    def of_first() -> float:
        """The largest curvature in the first layers of the branches, dense."""
        named = list(model.named_parameters())
        at = torch.tensor([n.startswith("first") for n, p in named for _ in range(p.numel())])
        block = dense(model, batch, targets)[at][:, at]
        return float(torch.linalg.eigvalsh(block).abs().max())

    hidden = of_first()
    found = curvature(model, batch, targets, lr=0.5, steps=3, iterations=200)
    stepper = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        stepper.zero_grad()
        targets(model(batch)).backward()
        stepper.step()
    top, _ = ends(dense(model, batch, targets))
    assert found["after 3"]["largest"] == pytest.approx(top, rel=1e-3)
    if zero:
        assert hidden == 0.0
        assert of_first() > 1e-6
    else:
        assert hidden > 1e-3


def test_a_rezero_network_passes_at_step_0_and_not_after_a_few_steps() -> None:
    torch.manual_seed(0)
    model, batch = ReZero("rezero", blocks=64, width=16, act=torch.relu), torch.randn(64, 16)
    for layer in (*model.first, *model.last):
        nn.init.kaiming_normal_(layer.weight)
    found = curvature(model, batch, targets, lr=0.25, steps=5)
    assert found["step 0"]["ratio"] < 0.9
    assert found["ratio"] == found["after 5"]["ratio"] > 1.2
    assert found["ratio_at"] == "after 5"
    assert found["after 5"]["losses"] == sorted(found["after 5"]["losses"], reverse=True)


# ------------------------------------------------------------------------------ the subject


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_model_is_exactly_as_it_was(optimizer: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    )
    batch = torch.randn(9, 5)
    before = fingerprint(model)
    first = curvature(model, batch, targets, lr=0.1, optimizer=optimizer)
    assert fingerprint(model) == before
    assert math.isfinite(first["ratio"])
    with torch.no_grad():
        model.get_parameter("4.bias")[0].add_(1e-7)
    assert fingerprint(model) != before


def test_the_same_seed_gives_the_same_numbers() -> None:
    model, batch = mlp()
    runs = [curvature(model, batch, targets, lr=0.1, seed=s) for s in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert runs[0]["ratio"] == pytest.approx(runs[2]["ratio"], rel=1e-3)


def test_without_a_double_backward_it_says_finite_difference() -> None:
    model, batch = by_hand(Once)
    for seen in (model, model.float()):
        kind = next(seen.parameters()).dtype
        found = curvature(seen, batch.to(kind), targets, lr=0.1)
        assert found["product"] == "finite difference"
        assert found["product_reason"] == "a function in it is marked as once differentiable"
        assert 1e-6 < found["step 0"]["finite_difference_step"] < 1e-3
        assert found["dtype"] == "float64"
    plain = curvature(*mlp(), targets, lr=0.1)
    assert plain["product"] == "double backward"
    assert "product_reason" not in plain


class Bent(torch.autograd.Function):
    """tanh, whose backward forgets what its output depends on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        back: Tensor = g * (1 - y.detach() ** 2)
        return back


class Bends(nn.Module):
    """``h + a W2 tanh(W1 h)``, three times."""

    def __init__(self, a: float, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.a, self.function = nn.Parameter(torch.tensor(a)), function

    def forward(self, h: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            h = h + self.a * down(self.function(up(h)))
        return h


def _stepped(model: nn.Module, batch: Tensor, lr: float, steps: int) -> nn.Module:
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        targets(model(batch)).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize(("a", "where"), [(1.0, "at step 0"), (0.0, "after 3 steps")])
def test_what_is_wrong_at_one_look_is_believed_at_none(
    a: float, where: str, kind: torch.dtype
) -> None:
    """A branch of zeros hides it at first. Both looks are those of the dense Hessian of tanh."""
    batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(3), dtype=kind)
    model = Bends(a, Bent.apply).to(kind)
    plain = Bends(a, torch.tanh).double()
    found = curvature(model, batch, targets, lr=0.5)
    right = curvature(plain, batch.double(), targets, lr=0.5)
    assert (found["product"], right["product"]) == ("finite difference", "double backward")
    assert re.fullmatch(
        r"the second derivative of Bent, written by hand, is wrong or missing: along a random "
        rf"direction its product differs from a finite difference by [\d.e-]+ of it, {where}",
        found["product_reason"],
    )
    for name, steps in (("step 0", 0), ("after 3", 3)):
        stepped = _stepped(plain, batch.double(), 0.5, steps)
        most, least = ends(dense(stepped, batch.double(), targets))
        assert found[name]["largest"] == pytest.approx(most, rel=1e-3)
        # Lanczos ends where the largest has converged; the other end is known to its residual.
        assert abs(found[name]["smallest"] - least) <= found[name]["smallest_residual"] + 1e-4
        assert found[name]["smallest"] == pytest.approx(right[name]["smallest"], rel=1e-3)
        assert "product" not in found[name]  # said once, of both


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_function_that_is_right_is_believed_in_deep_networks(
    kind: torch.dtype, scale: float
) -> None:
    class Right(Bent):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (y,) = ctx.saved_tensors
            back: Tensor = g * (1 - y**2)
            return back

    torch.manual_seed(0)
    model = nn.Sequential(*(Bends(1.0, Right.apply) for _ in range(6))).to(kind)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale)
    found = curvature(model, torch.randn(8, 6, dtype=kind), targets, lr=0.01, steps=0)
    assert found["product"] == "double backward"
    assert found["step 0"]["double_backward_error"] < 1e-4


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_looked_at_in_float32(kind: torch.dtype) -> None:
    model, batch = mlp()
    model, batch = model.to(kind), batch.to(kind)
    wide = curvature(model.float(), batch.float(), targets, lr=0.1)
    found = curvature(model.to(kind), batch, targets, lr=0.1)
    assert found["precision"].startswith("a copy in float32 with the same weights")
    assert found["dtype"] == "float32"
    assert found["ratio"] == pytest.approx(wide["ratio"], rel=1e-3)
    assert "precision" not in wide
    assert next(model.parameters()).dtype == kind


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
def test_half_precision_keeps_the_state_of_a_training_run(
    kind: torch.dtype, optimizer: str
) -> None:
    torch.manual_seed(0)
    narrow = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = torch.randn(12, 6)
    rule = Rule(optimizer, 0.02, momentum=0.95, weight_decay=0.01)
    training = rule.made(narrow.parameters())
    for _ in range(10):
        training.zero_grad()
        targets(narrow(batch)).backward()
        training.step()
    training.zero_grad()
    narrow, batch = narrow.to(kind), batch.to(kind)
    training.load_state_dict(training.state_dict())  # moments of the parameters' type
    held = {p: {k: v.clone() for k, v in s.items()} for p, s in training.state.items()}
    wide = copy.deepcopy(narrow).float()
    same = rule.made(wide.parameters())
    same.load_state_dict(training.state_dict())
    assert all(v.dtype == torch.float32 for s in same.state.values() for v in s.values())

    def looked(model: nn.Module, x: Tensor, given: torch.optim.Optimizer) -> dict[str, Any]:
        subject = Subject(model, x, targets, [4], runner(targets, x))
        note: dict[str, Any] = stiffness(subject, Effort(step=Step(given))).notes["stiffness"]
        return note

    found = looked(narrow, batch, training)
    expected = looked(wide, batch.float(), same)
    fresh = looked(narrow, batch, rule.made(narrow.parameters()))
    assert found["precision"].startswith("a copy in float32")
    for name in ("step 0", "after 3"):
        assert found[name]["ratio"] == pytest.approx(expected[name]["ratio"], rel=1e-3)
    assert found["after 3"]["losses"] == pytest.approx(expected["after 3"]["losses"], rel=1e-4)
    assert found["after 3"]["losses"] != pytest.approx(fresh["after 3"]["losses"], rel=1e-3)
    assert found["after 3"]["ratio"] != pytest.approx(fresh["after 3"]["ratio"], rel=2e-3)
    assert any(v.dtype == kind for state in held.values() for v in state.values())
    for p, state in held.items():
        assert p.dtype == kind
        assert all(torch.equal(training.state[p][k], v) for k, v in state.items())
        assert all(training.state[p][k].dtype == v.dtype for k, v in state.items())


class Casting(nn.Module):
    """Brings its input and its states to the type that it was trained in (None: to none)."""

    def __init__(self, kind: torch.dtype | None, way: str, kept: bool | None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head, self.kind, self.way, self.kept = nn.Linear(8, 3), kind, way, kept

    def forward(self, x: Tensor) -> Tensor:
        x = self._cast(x)
        for layer in self.inner:
            x = x + self._branch(layer, x)
        out: Tensor = self.head(x)
        return out

    def _branch(self, layer: nn.Module, x: Tensor) -> Tensor:
        if self.kept is None:
            return self._inner(layer, x)
        made: Tensor = checkpoint(self._inner, layer, x, use_reentrant=self.kept)
        return made

    def _inner(self, layer: nn.Module, x: Tensor) -> Tensor:
        wide = x if self.kind is None else x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        out: Tensor = torch.tanh(layer(self._cast(normed)))
        return out

    def _cast(self, x: Tensor) -> Tensor:
        if self.kind is None:
            return x
        if self.way == "weight":
            return x.to(self.head.weight.dtype)
        if self.way == "dtype":
            return x.to(dtype=self.kind)
        if self.way == "like":
            return x.type_as(torch.zeros(1, dtype=self.kind))
        return x.half() if self.kind == torch.float16 else x.bfloat16()


@pytest.mark.parametrize("kept", [None, False, True])
@pytest.mark.parametrize("way", ["weight", "method", "dtype", "like"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_casts_inside_a_half_precision_model_are_left_out_of_its_copy(
    kind: torch.dtype, way: str, kept: bool | None
) -> None:
    """It is that of the float32 model with the same weights, in every way to write the cast and in
    what a checkpoint computes anew; the model itself goes on casting."""
    batch = torch.randn(12, 8).to(kind)
    batch.requires_grad_(kept is True)  # a re-entrant checkpoint of data alone has no gradient
    narrow = Casting(kind, way, kept).to(kind)
    wide = Casting(None, way, kept).to(kind).float()

    def cast(out: Tensor) -> Tensor:
        return targets(out.to(kind)) if out.dtype == torch.float32 else targets(out.float())

    before = fingerprint(narrow.float())
    narrow.to(kind)
    found = curvature(narrow, batch, cast, lr=0.1)
    expected = curvature(wide, batch.float(), targets, lr=0.1)
    assert found["precision"].startswith("a copy in float32 with the same weights")
    assert found["product"] == ("finite difference" if kept else "double backward")
    for name in ("step 0", "after 3"):
        assert found[name]["ratio"] == pytest.approx(expected[name]["ratio"], rel=1e-4)
        assert found[name]["loss"] == pytest.approx(expected[name]["loss"], rel=1e-5)
    assert narrow(batch).dtype == kind
    assert fingerprint(narrow.float()) == before


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_finite_differences_of_a_half_precision_model_that_casts(kind: torch.dtype) -> None:
    """They are taken in float64, where its casts are none either."""

    class Hand(nn.Module):
        def __init__(self, narrow: torch.dtype | None) -> None:
            super().__init__()
            self.first, self.narrow = Casting(narrow, "method", None), narrow

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.first(x)
            return Once.apply(out)  # type: ignore[no-any-return]

    batch = torch.randn(12, 8).to(kind)
    found = curvature(Hand(kind).to(kind), batch, targets, lr=0.1)
    expected = curvature(Hand(None).to(kind).double(), batch.double(), targets, lr=0.1)
    assert found["dtype"] == "float64"
    assert found["step 0"]["ratio"] == pytest.approx(expected["step 0"]["ratio"], rel=1e-4)


def test_a_half_precision_model_that_runs_in_no_other_type() -> None:
    class Strict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.bfloat16:
                raise RuntimeError(f"the kernel takes bfloat16, not {x.dtype}")
            out: Tensor = self.inner(x)
            return out

    model, batch = Strict().bfloat16(), torch.randn(12, 8).bfloat16()
    why = (
        "curvature is taken on a float32 copy of this bfloat16 model, which does not run, also "
        "with its casts to narrower types left out: the forward pass of the model (Strict) raised "
        "RuntimeError: the kernel takes bfloat16, not torch.float32"
    )
    profile = dg.measure(model, batch, lambda out: targets(out.float()), instruments="stiffness")
    assert profile.not_measured["stiffness"] == why
    with pytest.raises(ModelError, match=f"^{re.escape(why)}$"):
        curvature(model, batch, targets, lr=0.1)


def test_a_loss_that_is_nan_is_a_finding() -> None:
    model, batch = mlp()
    found = curvature(model, batch, lambda out: out.sum() * math.nan, lr=0.1)
    assert found["ratio_reason"] == "the loss is nan"
    assert not found["converged"]
    text = json.dumps(jsonable(found), allow_nan=False)
    assert '"ratio": null' in text
    runs = curvature(model, batch, targets, lr=1e200, steps=2)
    assert runs["step 0"]["ratio"] > 1e190
    assert runs["ratio"] == math.inf
    assert runs["ratio_reason"] == "the loss is nan after step 1"


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_without_a_loss_there_is_curvature_and_no_ratio(optimizer: str) -> None:
    """Steps go down a random cotangent without end: what they lead to says nothing of training, and
    neither does a learning rate times its curvature."""
    model, batch = mlp()
    given = curvature(model, batch, targets, lr=0.1, optimizer=optimizer)
    assert given["of"] == "the loss given"
    assert given["ratio"] > 0
    found = curvature(model, batch, lr=0.1, optimizer=optimizer)
    assert found["of"].startswith("the output along a random cotangent")
    assert math.isnan(found["ratio"])
    assert found["ratio_reason"].startswith("no loss was given: a random cotangent has no")
    assert "return (module, batch, loss)" in found["ratio_reason"]
    assert not any(name.startswith(("after", "ratio_at", "margin")) for name in found)
    assert found["step 0"]["largest"] > 0
    assert math.isnan(found["step 0"]["ratio"])


def test_a_loss_that_the_model_returns_is_one() -> None:
    """Among the outputs by its name, or as the only number that comes back."""

    class Own(nn.Module):
        def __init__(self, alone: bool) -> None:
            super().__init__()
            self.inner, self.alone = mlp()[0], alone

        def forward(self, x: Tensor) -> Any:
            out = self.inner(x)
            loss = targets(out)
            return loss if self.alone else {"loss": loss, "logits": out}

    batch = mlp()[1]
    given = curvature(Own(True).inner, batch, targets, lr=0.1)
    for alone, of in ((True, "the loss returned"), (False, "the loss among the outputs")):
        found = curvature(Own(alone), batch, lr=0.1)
        assert found["of"] == of
        assert found["ratio"] == pytest.approx(given["ratio"], rel=1e-6)
        profile = dg.measure(Own(alone), batch, instruments="stiffness")
        assert float(profile["stiffness"][0]) == pytest.approx(given["ratio"], rel=1e-6)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.ReLU()), "the model has no parameters"),
        (nn.Linear(5, 2).requires_grad_(False), "all 2 parameters are frozen"),
    ],
)
def test_without_parameters_there_is_nothing_to_curve(model: nn.Module, reason: str) -> None:
    batch = torch.randn(3, 5)
    with pytest.raises(NetworkError, match=reason):
        curvature(model, batch, lr=0.1)
    subject = Subject(model, batch, None, [0], runner(targets, batch))
    found = stiffness(subject, Effort())
    assert found.missing == {"stiffness": reason}
    assert not found.columns


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "adamm"}, "did you mean 'adam'"),
        ({"lr": math.inf}, "lr is inf"),
        ({"steps": -1}, "steps is -1, expected a whole number of at least 0"),
        ({"iterations": 0}, "iterations is 0, expected a whole number of at least 1"),
    ],
)
def test_what_cannot_be_asked_for(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        curvature(*mlp(), targets, **{"lr": 0.1, **given})


def test_a_budget_ends_it_and_says_so() -> None:
    model, batch = mlp()
    found = curvature(model, batch, targets, lr=0.1, budget=1e-9)
    assert "the budget of 1e-09 seconds was spent before it" in found["ratio_reason"]
    subject = Subject(model, batch, targets, [0], runner(targets, batch))
    much = stiffness(subject, Effort(budget=60.0)).notes["stiffness"]
    assert much["converged"]


class Slow(nn.Module):
    """Takes its time, and counts how often, where nobody puts it back."""

    calls = 0

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.inner, self.seconds = mlp()[0], seconds

    def forward(self, x: Tensor) -> Tensor:
        Slow.calls += 1
        time.sleep(self.seconds)
        out: Tensor = self.inner(x)
        return out


@pytest.mark.parametrize("steps", [0, 3])
def test_a_look_that_does_not_fit_is_not_begun(steps: int) -> None:
    """10 passes a look and one a step, by the time of the pass that was taken."""
    model, (_, batch), before = Slow(0.1), mlp(), Slow.calls
    found = curvature(model, batch, targets, lr=0.1, budget=0.9, steps=steps)
    assert Slow.calls == before + 1
    passes = 10 if not steps else 23
    assert re.fullmatch(
        rf"it needs about [\d.]+ seconds at the least, {passes} times a pass of 0.1\d*, and its "
        r"share of the budget of 0.9 seconds has 0.\d+ left",
        found["ratio_reason"],
    )
    assert math.isnan(found["ratio"])
    profile = dg.measure(
        model, batch, targets, instruments="stiffness", effort=Effort(budget=0.9, steps=steps)
    )
    assert f"{passes} times a pass of" in profile.not_measured["stiffness"]
    enough = curvature(model, batch, targets, lr=0.1, budget=60.0, steps=steps)
    assert enough["converged"]


class Clock:
    """Stands in for the ``time`` of the instrument: so many readings long nothing has passed."""

    def __init__(self, readings: int) -> None:
        self.left = readings

    def perf_counter(self) -> float:
        self.left -= 1
        return 0.0 if self.left >= 0 else 1e9


def stiff() -> tuple[nn.Module, Tensor]:
    """Few of very many directions are curved, so that a random one is flat."""
    torch.manual_seed(0)
    model = ReZero("", blocks=6, width=32, act=torch.relu)
    with torch.no_grad():
        for p in (*model.first.parameters(), *model.last.parameters()):
            p.mul_(2)
    return model, torch.randn(16, 32)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_budget_gives_the_ratio_or_none(
    optimizer: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = stiff()
    options: dict[str, Any] = {"lr": 1e-3, "optimizer": optimizer, "steps": steps}
    whole = curvature(model, batch, targets, **options)
    assert whole["converged"]
    given, without = [], []
    for readings in (*range(2, 34), 80):
        effort = Effort(budget=1.0, began=0.0, step=Step(optimizer, 1e-3), steps=steps)
        subject = Subject(model, batch, targets, [4], runner(targets, batch))
        with monkeypatch.context() as patched:
            clock = Clock(readings)
            patched.setattr("depthgauge.instruments.subject.time", clock)
            found = stiffness(subject, effort)
        note = found.notes["stiffness"]
        if math.isnan(note["ratio"]):
            without.append(note)
            assert "stiffness" not in found.columns
            assert found.missing["stiffness"] == note["ratio_reason"]
            assert "the budget of 1 seconds was spent" in note["ratio_reason"]
            assert note.get("ratio_at_least", 0.0) <= whole["ratio"] * 1.01
        else:
            given.append(note)
            assert whole["ratio"] / 3 < note["ratio"] < whole["ratio"] * 1.01
            assert note["ratio_at"] == whole["ratio_at"] or optimizer == "sgd"
            looks = [note[name] for name in ("step 0", "after 3") if name in note]
            assert optimizer != "sgd" or not any(math.isnan(look["ratio"]) for look in looks)
    assert any("the curvature had not settled" in note["ratio_reason"] for note in without)
    assert any(note["converged"] for note in given)
    assert not all(note["converged"] for note in given)


@pytest.mark.parametrize("deadline", [0.1, None])
def test_it_ends_with_its_own_share_of_the_budget(
    deadline: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = stiff()
    now = itertools.count(0, 0.01)  # a hundredth of a second between two readings

    class Ticking:
        def perf_counter(self) -> float:
            return next(now)

    effort = Effort(budget=20.0, began=0.0, step=Step("adam", 1e-3), deadline=deadline)
    subject = Subject(model, batch, targets, [4], runner(targets, batch))
    monkeypatch.setattr("depthgauge.instruments.subject.time", Ticking())
    found = stiffness(subject, effort)
    gone = next(now)
    assert gone < 20
    if deadline is None:
        assert gone > 0.2
        assert "stiffness" in found.columns
    else:
        assert gone < 0.2
        assert "its share of the budget of 20 seconds" in found.missing["stiffness"]


def test_an_optimiser_whose_limit_is_not_known_is_missing_with_its_reason() -> None:
    model, batch = mlp()
    subject = Subject(model, batch, targets, [4], runner(targets, batch))
    found = stiffness(subject, Effort(step=Step(lambda p: torch.optim.RMSprop(p, lr=0.1))))
    assert "limit of RMSprop is not known" in found.missing["stiffness"]
    found = stiffness(subject, Effort(step=Step("momentum", 0.2)))
    assert found.notes["stiffness"]["optimizer"]["momentum"] == 0.9
    assert found.columns["stiffness"][0] == [4]
    user = torch.optim.AdamW(model.parameters(), lr=0.01)
    found = stiffness(subject, Effort(step=Step(user)))
    assert found.notes["stiffness"]["optimizer"]["name"] == "adamw"
    assert not user.state


# ------------------------------------------------------------------------------ in a profile


def test_a_module_and_an_equation_have_it_in_their_profile() -> None:
    torch.manual_seed(0)
    model = ReZero("", blocks=2)
    batch = torch.randn(12, 6)
    profile = dg.measure(model, batch, targets, instruments="stiffness")
    note: Any = profile.settings["instruments"]["stiffness"]  # type: ignore[index]
    alone = curvature(model, batch, targets, lr=0.1)
    assert float(profile["stiffness"][0]) == pytest.approx(alone["ratio"], rel=1e-6)
    assert profile.sites_of("stiffness")[0].role == "state"
    assert note["of"] == "the loss given"
    json.dumps(profile.to_dict(), allow_nan=False)
    both = dg.measure("h + W2(relu(W1(h)))", depth=3, width=8, seed=[0, 1], instruments="stiffness")
    assert both["stiffness"].shape == (2, 1)
    assert float(both["stiffness"][0, 0]) != float(both["stiffness"][1, 0])


@pytest.mark.parametrize("given", [None, "batch", "labels"])
def test_an_equation_trains_on_classes(given: str | None) -> None:
    """What it says is what the classified network says as a module with its loss."""
    network = dg.Network("h + W2(relu(W1(rmsnorm(h))))/sqrt(L)", depth=3, width=8)
    torch.manual_seed(3)
    batch = 16 if given is None else torch.randn(12, 8)
    labels = torch.tensor([7, 2, 2] * 4) if given == "labels" else None
    effort = dg.Effort(step=dg.Step("sgd", 0.1))
    found = dg.measure(network, batch, instruments="stiffness", labels=labels, effort=effort)
    task = classified(network, 0, batch, torch.float64, labels)
    expected = curvature(task.module, task.batch, task.loss, lr=0.1)
    assert float(found["stiffness"][0]) == pytest.approx(expected["ratio"], rel=1e-4)
    note: Any = found.settings["instruments"]["stiffness"]  # type: ignore[index]
    classes, count = (2 if given == "labels" else 10), (16 if given is None else 12)
    assert note["of"].startswith(f"the cross-entropy of {classes} classes")
    assert f"on {count} examples" in note["of"]
    losses = note["after 3"]["losses"]
    assert losses[-1] < losses[0]


def test_two_streams_are_one_network() -> None:
    torch.manual_seed(0)
    layer = nn.Transformer(8, 2, 2, 2, 16, 0.0, batch_first=True)
    batch = (torch.randn(2, 3, 8), torch.randn(2, 4, 8))
    profile = dg.measure(
        layer, batch, lambda out: out.sigmoid().square().mean(), instruments="stiffness"
    )
    assert len(profile.streams) == 2
    assert profile["stiffness"].shape == (1,)


def test_the_page_says_what_its_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "stiffness.md").read_text()
    code, said = re.findall(r"```(?:python)?\n(.*?)```", page, flags=re.S)
    exec(compile(code, "stiffness.md", "exec"), {"__name__": "page"})
    printed = capsys.readouterr().out
    numbers = [[float(x) for x in re.findall(r"[0-9]\.[0-9]+", text)] for text in (printed, said)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.05, abs=0.011)
    assert re.sub("[0-9]", "", printed) == re.sub("[0-9]", "", said)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_measure_takes_the_steps_of_its_effort(steps: int) -> None:
    model, batch = mlp()
    effort = Effort(step=Step("sgd", 0.1), steps=steps)
    profile = dg.measure(model, batch, targets, instruments="stiffness", effort=effort)
    settings: Any = profile.settings["instruments"]
    note = settings["stiffness"]
    alone = curvature(model, batch, targets, lr=0.1, steps=steps)
    assert (f"after {steps}" in note) == (steps > 0)
    assert "after 3" not in note
    assert note["ratio"] == pytest.approx(alone["ratio"], rel=1e-3)
    if steps:
        assert len(note[f"after {steps}"]["losses"]) == steps
