"""u-muP: shares of branches, and the groups of an optimiser."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import number_of, scope_of
from depthgauge.recipes.u_mup import U_MUP, u_mup
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, redrawn, said
from tests.recipes.models import gpt2, mlp, plain, transformer
from tests.recipes.test_unit_scaling import convolved, embedded

ONE = "h + W2(relu(W1(layernorm(h), out=4*n)))"
WRITTEN = (
    "h = sqrt((L/2 + (l - 1))/(L/2 + l)) * h + 1/sqrt(L/2 + l)/sqrt(4*n) * "
    "W2(sqrt(2/(1 - 1/pi)) * relu(1/sqrt(n) * W1(layernorm(h), out=4*n)))"
)


def weights_of_sums(branches: int) -> list[tuple[float, float]]:
    """Of each sum of an MLP the number of its skip and that of its branch, as they are read."""
    network = rewritten(Network("h + W2(tanh(W1(h)))", branches, 16), "u-mup").network
    found = layout(network.module(), torch.randn(4, 16))
    return [(b.skip, b.factor * math.sqrt(16)) for b in found.branches]


@pytest.mark.parametrize(
    ("branches", "taus"),
    [
        (2, [1, 0.70711]),
        (4, [0.70711, 0.57735, 0.5, 0.44721]),
        (8, [0.5, 0.44721, 0.40825, 0.37796, 0.35355, 0.33333, 0.31623, 0.30151]),
    ],
)
def test_tau(branches: int, taus: list[float]) -> None:
    sums = weights_of_sums(branches)
    assert [b / a for a, b in sums] == pytest.approx(taus, abs=5e-6)
    assert [a * a + b * b for a, b in sums] == pytest.approx([1] * branches, rel=1e-6)


def test_every_branch_has_the_same_share_at_the_end() -> None:
    sums = weights_of_sums(40)
    shares = [b * math.prod(a for a, _ in sums[k + 1 :]) for k, (_, b) in enumerate(sums)]
    assert shares == pytest.approx([1 / math.sqrt(1.5 * 40)] * 40, rel=1e-6)
    assert math.prod(a for a, _ in sums) == pytest.approx(1 / math.sqrt(3), rel=1e-6)


def test_rho_weighs_all_branches_together() -> None:
    branches = layout(*mlp()).branches
    forms = u_mup(0.5).plan(layout(*mlp())).forms
    scope = {**scope_of(layout(*mlp())), "n": 24.0}
    rows = zip(forms, branches, strict=True)
    skips = [number_of(f.skip or "1", {**scope, "l": b.block}) for f, b in rows]
    state = math.prod(skips)
    assert (1 - state**2) / state**2 == pytest.approx(2 * 0.5**2)


def test_on_equations() -> None:
    changed, model, batch = on_equation("u-mup", ONE)
    assert str(changed.block) == WRITTEN
    plant = redrawn("u-mup", batch, "normal(std=0.02)")
    broken(model, batch, "u-mup", plant, "12 of 12 weights: .*0.02 at every width")
    two = "h = h + W2(tanh(W1(h))); h = h + W4(gelu(W3(layernorm(h))))"
    changed, model, batch = on_equation(u_mup(0.5), two, depth=4)
    assert len({round(b.factor, 9) for b in layout(model, batch).branches}) == 8
    on_equation("u-mup", "h + conv3(tanh(conv1(h)))", width=8)


@pytest.mark.parametrize("build", [mlp, convolved, embedded])
def test_on_modules(build: Any) -> None:
    applied, batch = on_module("u-mup", build)
    assert not audit(applied.model, batch, "unit-scaling").holds


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            "sqrt((L/2 + (l - 1))/(L/2 + l)) * h + 1/sqrt(L/2 + l)/",
            "1/sqrt(L/2 + l) * h + sqrt((L/2 + (l - 1))/(L/2 + l))/",
            "tau weighs the skip, where it is to weigh the branch",
        ),
        (
            "sqrt((L/2 + (l - 1))/(L/2 + l)) * h + 1/sqrt(L/2 + l)/",
            "sqrt((L + (l - 1))/(L + l)) * h + 1/sqrt(L + l)/",
            "L, where L / 2 is asked",
        ),
        (
            "sqrt((L/2 + (l - 1))/(L/2 + l)) * h + 1/sqrt(L/2 + l)/",
            "h + 1/sqrt(L/2 + l - 1)/",
            "the branch is weighed by tau, and the sum is not divided",
        ),
        (
            "sqrt((L/2 + (l - 1))/(L/2 + l)) * h + 1/sqrt(L/2 + l)/",
            "1/sqrt(2) * h + 1/sqrt(2)/",
            "tau = 1 in every branch, unit scaling without u-muP",
        ),
        ("1/sqrt(n) * W1", "W1", "the layer's number is missing"),
    ],
)
def test_another_number_is_named(before: str, after: str, words: str) -> None:
    assert before in WRITTEN
    network = Network(WRITTEN.replace(before, after), 6, 32, init="normal(std=1)")
    found = said(audit(network.module(seed=1), torch.randn(8, 32), "u-mup"))
    assert re.search(words, found), found
    assert " | " not in found


# ----------------------------------------------------------------------------- an optimiser


def grouped(build: Any = mlp) -> tuple[nn.Module, Any, list[dict[str, Any]]]:
    model, batch = build()
    applied = apply(model, batch, "u-mup")
    return applied.model, batch, applied.groups(0.5, weight_decay=0.1)


def test_the_groups_of_an_optimiser() -> None:
    model, batch, rows = grouped()
    slow = 6**-0.5
    rates = [1, slow / math.sqrt(24), slow / math.sqrt(96), 1 / math.sqrt(8), slow]
    assert [row["lr"] for row in rows] == pytest.approx([0.5 * rate for rate in rates])
    assert [row["weight_decay"] * row["lr"] for row in rows] == pytest.approx([0.05] * 5)
    assert [len(row["params"]) for row in rows] == [3, 6, 6, 1, 24]
    found = audit(model, batch, "u-mup", torch.optim.AdamW(rows))
    assert found.holds, said(found)


def test_embeddings_learn_by_their_features() -> None:
    model, batch, rows = grouped(embedded)
    table = model.get_parameter("0.weight")
    row = next(row for row in rows if any(p is table for p in row["params"]))
    assert row["lr"] == pytest.approx(0.5 / math.sqrt(24))
    assert audit(model, batch, "u-mup", torch.optim.AdamW(rows)).holds


@pytest.mark.parametrize(
    ("at", "change", "words"),
    [
        (1, {"lr": 0.5 / 24**0.5}, "0 of 6 weights of branches, fan in 24 learn at 0.0833333"),
        (4, {"lr": 0.5}, "0 of 24 biases and norms of branches learn at 0.408248 of the rate"),
        (2, {"weight_decay": 0.1}, "0 of 6 weights of branches, fan in 96 with 24 times the"),
    ],
)
def test_a_wrong_group_is_named(at: int, change: dict[str, float], words: str) -> None:
    model, batch, rows = grouped()
    rows[at] |= change
    assert words in said(audit(model, batch, "u-mup", torch.optim.AdamW(rows)))


def test_another_optimiser_is_named() -> None:
    model, batch, rows = grouped()
    assert "SGD: the rates are for Adam" in said(
        audit(model, batch, "u-mup", torch.optim.SGD(rows))
    )


def _step(width: int, recipe: bool) -> float:
    """Root mean square of the change of the output by one step of Adam."""
    torch.manual_seed(0)
    network = Network("h + W2(relu(W1(h)))", 3, width, init="lecun")
    stem, head = nn.Linear(8, width), nn.Linear(width, 4)
    model: nn.Module = nn.Sequential(stem, network.module(seed=0), head)
    batch, target = torch.randn(64, 8), torch.randn(64, 4)
    rows: list[dict[str, Any]] = [{"params": list(model.parameters()), "lr": 1e-3}]
    if recipe:
        applied = apply(model, batch, "u-mup")
        assert not applied.left
        model, rows = applied.model, applied.groups(0.1)
    optimizer = torch.optim.Adam(rows)
    before = model(batch)
    (before - target).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        return float((model(batch) - before).square().mean().sqrt())


def test_the_first_step_changes_the_function_as_much_at_every_width() -> None:
    widths = (32, 512)
    kept = [_step(width, True) for width in widths]
    grown = [_step(width, False) for width in widths]
    assert 0.5 < kept[1] / kept[0] < 2
    assert grown[1] / grown[0] > 6


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (plain, "no residual branch was found, and u-muP is a rule"),
        (gpt2, "has attention, and no fixed number keeps the size of what u-muP makes"),
        (transformer, "2 streams were found, and u-muP counts the branches of one"),
    ],
)
def test_what_it_does_not_cover(build: Any, words: str) -> None:
    model, batch = build()
    with pytest.raises(NetworkError, match=words):
        apply(model, batch, U_MUP)
    with pytest.raises(NetworkError, match="rho is 0, expected a finite number above 0"):
        u_mup(0)
