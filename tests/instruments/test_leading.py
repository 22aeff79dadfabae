"""States of more numbers than can be followed one by one, against their whole dense Jacobians."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from depthgauge.instruments import leading
from depthgauge.instruments.leading import Ends, Leading, ranks, subspace
from depthgauge.instruments.spectra import SPECTRUM
from depthgauge.instruments.spectrum import effective_ranks
from depthgauge.instruments.subject import Effort
from depthgauge.measurement import measure
from depthgauge.network.chain import Chain
from depthgauge.network.spec import Network
from depthgauge.profile import Profile
from depthgauge.sites import FloatArray
from tests.instruments.subjects import subject_of

KEYS = ("participation", "entropy", "stable", "lost")


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        nn.init.normal_(self.up.weight, std=1.4 / math.sqrt(width))
        nn.init.normal_(self.down.weight, std=1.4 / math.sqrt(2 * width))

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.down(torch.relu(self.up(h)))
        return out


class Mixed(nn.Module):
    """Tokens that act on one another, and a gated branch."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.across, self.along = nn.Linear(tokens, tokens), nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.across(h.transpose(1, 2)).transpose(1, 2)
        return h + torch.tanh(self.along(h)) * h


class Plain(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        nn.init.normal_(self.layer.weight, std=math.sqrt(2 / width))

    def forward(self, h: Tensor) -> Tensor:
        return torch.relu(self.layer(h))


def residual(depth: int = 2, width: int = 320) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Residual(width) for _ in range(depth))).double()
    return model, torch.randn(2, width, dtype=torch.float64)


def tokens(depth: int = 3) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(*(Mixed(10, 32) for _ in range(depth))).double()
    return model, torch.randn(2, 10, 32, dtype=torch.float64)


def plain(depth: int = 6, width: int = 300) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(2)
    model = nn.Sequential(*(Plain(width) for _ in range(depth))).double()
    return model, torch.randn(2, width, dtype=torch.float64)


def dense(model: nn.Module, x: Tensor) -> list[FloatArray]:
    """Logarithms of all singular values of every example's Jacobian from end to end."""
    found = []
    for row in x:
        # Row by row: at this size 25 times as fast as torch.func.jacrev.
        whole: Any = torch.autograd.functional.jacobian(lambda h: model(h[None])[0], row)
        jacobian = whole.reshape(whole.shape[: row.ndim].numel(), -1)
        with np.errstate(divide="ignore"):
            found.append(np.log(torch.linalg.svdvals(jacobian).numpy()))
    return found


def noted(profile: Profile, instrument: str = "spectrum") -> dict[str, Any]:
    notes: Any = profile.settings["instruments"]
    found: dict[str, Any] = notes[instrument]
    return found


def assert_like(profile: Profile, wanted: Sequence[FloatArray]) -> None:
    """Within four of its own standard errors (and a hundredth: the Lanczos steps), and 3 %."""
    notes, each = noted(profile), [effective_ranks(logs) for logs in wanted]
    for key, name in zip(KEYS, SPECTRUM[1:], strict=True):
        exact = float(np.mean([one[key] for one in each]))
        ends, error = notes["from_end_to_end"][name], notes["standard_error_over_probes"][name]
        found = profile[name][0]
        assert ends["mean"] == pytest.approx(found)
        assert ends["n"] == notes["examples"] == len(wanted)
        if key == "lost":
            assert abs(found - exact) < max(0.02, 3 * error)
        else:
            assert abs(found - exact) < 4 * error + 0.01 * exact
            assert found == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("made", [residual, tokens, plain])
def test_all_four_numbers_of_wide_states(made: Callable[[], tuple[nn.Sequential, Tensor]]) -> None:
    model, x = made()
    profile = measure(model, x, instruments="spectrum", effort=Effort(probes=24))
    assert_like(profile, dense(model, x))
    notes = noted(profile)
    assert notes["directions"] == 16
    assert notes["of"] == x[0].numel()
    assert notes["probes"] == 24
    assert notes["lanczos_steps"] == leading.STEPS


def test_float32_and_single_precision_noise() -> None:
    """Values below rounding are counted as lost, and no sum sees them."""
    model, x = plain(12)
    wanted = dense(model, x)
    assert wanted[0][-1] - wanted[0][0] < -20  # far below the rounding of float32
    profile = measure(model.float(), x.float(), instruments="spectrum", effort=Effort(probes=24))
    assert_like(profile, wanted)


def test_a_product_that_spans_hundreds_of_decades(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left across its leading directions hardly matters: few Lanczos steps will do."""
    monkeypatch.setattr(leading, "STEPS", 8)
    network = Network("1000*W(h)", 200, 96)
    found, wanted = (
        measure(network, 1, dtype="float64", instruments="spectrum", effort=effort)
        for effort in (
            Effort(examples=1, probes=2, exact=48),
            Effort(examples=1, exact=96, sites=2),
        )
    )
    assert noted(found)["directions"] == 16
    logs = wanted.vectors["log_singular_values"][0][0]
    assert (logs[0] - logs[-1]) / math.log(10) > 100
    assert logs[0] / math.log(10) > 308  # beyond float64
    leading_ones = found.vectors["log_singular_values"][0][0]
    assert leading_ones[:6] == pytest.approx(logs[:6], abs=1e-6)
    # To within one direction: a node that has not settled stands for both its sides.
    assert found["lost_direction_fraction"][0] == pytest.approx(
        wanted["lost_direction_fraction"][0], abs=1 / 96
    )
    for name in SPECTRUM[1:4]:
        assert found[name][0] == pytest.approx(wanted[name][0], rel=0.01)


# ------------------------------------------------------------- what must hold, and must fail


def test_standard_errors_are_those_that_are_seen() -> None:
    model, x = plain(2)
    (wanted,) = (effective_ranks(logs) for logs in dense(model, x[:1]))
    distances: dict[str, list[float]] = {key: [] for key in KEYS}
    with subject_of(model, x[:1]).chain() as chain:
        ends = Ends(chain, [0])
        for seed in range(16):
            effort, generator = Effort(seed=seed), torch.Generator().manual_seed(seed)
            found = ranks(ends, subspace(ends, effort, generator), effort, generator)
            for key in KEYS:
                distances[key].append((found.each[key][0] - wanted[key]) / found.errors[key])
    # Student's t with 7 degrees of freedom has the variance 7/5; the quadrature adds its share.
    for key in KEYS:
        assert 0.4 < np.square(distances[key]).mean() < 4, key
        assert abs(np.mean(distances[key])) < 1.5, key


def estimate(chain: Chain, near: FloatArray | None = None) -> leading.Ranks:
    ends, effort, generator = Ends(chain, [0]), Effort(), torch.Generator().manual_seed(0)
    lead = subspace(ends, effort, generator)
    return ranks(ends, lead if near is None else Leading(lead.logs, near, 0.0), effort, generator)


def test_what_few_lanczos_steps_see_of_small_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that sees every direction alike has no noise; what is left is due to the steps."""
    size = 400
    generator = np.random.default_rng(0)
    whole = np.eye(size)
    for _ in range(8):
        whole = generator.standard_normal((size, size)) @ whole / math.sqrt(size)
    sigma = np.linalg.svd(whole, compute_uv=False)
    wanted = effective_ranks(np.log(sigma))
    model = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(2))).double()
    with torch.no_grad():
        for layer, diagonal in zip(model, (sigma, np.ones(size)), strict=True):
            assert isinstance(layer, nn.Linear)
            layer.weight.copy_(torch.from_numpy(np.diag(diagonal)))
    alike = np.full((1, 1, size), 1 / math.sqrt(size - 16))
    alike[..., :16] = 0
    monkeypatch.setattr(leading, "_across", lambda *_: alike)
    near = np.eye(size)[None, :16]
    x = torch.randn(2, size, dtype=torch.float64)
    with subject_of(model, x).chain() as chain:
        found = estimate(chain, near)
        assert found.each["entropy"][0] == pytest.approx(wanted["entropy"], rel=5e-3)
        assert found.each["lost"][0] == pytest.approx(wanted["lost"], abs=5e-3)
        for key in ("participation", "stable"):
            assert found.each[key][0] == pytest.approx(wanted[key], rel=1e-9)
        # Half of the steps are not beside them: a case that must fail.
        monkeypatch.setattr(leading, "_halved", lambda steps, size: (steps, steps, steps))
        assert estimate(chain, near).each["entropy"][0] < 0.99 * wanted["entropy"]


def test_leading_directions_that_are_none_cost_accuracy_and_no_more() -> None:
    model, x = plain(20)
    (wanted,) = (effective_ranks(logs) for logs in dense(model, x[:1]))
    draw = np.random.default_rng(0).standard_normal((1, 300, 16))
    anywhere = np.linalg.qr(draw)[0].swapaxes(1, 2)
    with subject_of(model, x[:1]).chain() as chain:
        good, poor = estimate(chain), estimate(chain, anywhere)
    for key in KEYS:
        assert good.each[key][0] == pytest.approx(wanted[key], abs=4 * good.errors[key] + 0.01)
        assert abs(poor.each[key][0] - wanted[key]) < 4 * poor.errors[key] + 0.05 * wanted[key]
    assert poor.errors["participation"] > 10 * good.errors["participation"]


@pytest.mark.parametrize("wrong", ["no scale", "no deflation"])
def test_the_numbers_need_the_scale_and_the_deflation(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = plain(12)
    (wanted,) = (effective_ranks(logs) for logs in dense(model, x[:1]))
    applied = Ends.applied

    def unscaled(
        self: Ends, rows: FloatArray, start: int, end: int
    ) -> tuple[FloatArray, FloatArray]:
        out, logs = applied(self, rows, start, end)
        return out, np.zeros_like(logs)

    with subject_of(model, x[:1]).chain() as chain:
        ends, effort, generator = Ends(chain, [0]), Effort(), torch.Generator().manual_seed(0)
        lead = subspace(ends, effort, generator)
        if wrong == "no scale":
            monkeypatch.setattr(Ends, "applied", unscaled)
        else:  # the probes keep what the leading directions have already counted
            real = np.linalg.norm
            whole = torch.randn(1, 8, 300, generator=torch.Generator().manual_seed(5)).numpy()
            monkeypatch.setattr(
                leading, "_across", lambda *_: whole / real(whole, axis=-1)[..., None]
            )
        found = ranks(ends, lead, effort, generator)
    assert found.each["participation"][0] != pytest.approx(wanted["participation"], rel=0.2)


def test_no_scale_changes_a_rank() -> None:
    found = [
        measure(Network(f"{gain}*W(h)", 3, 300), 2, dtype="float64", instruments="spectrum")
        for gain in ("1", "1e60", "1e-60")
    ]
    for name in SPECTRUM[1:]:
        for other in found[1:]:
            assert other[name] == pytest.approx(found[0][name], rel=1e-6)
    tops = [profile.vectors["log_singular_values"][0][0][0] for profile in found]
    assert tops[1] - tops[0] == pytest.approx(180 * math.log(10))


def test_several_examples_have_each_their_own_jacobian() -> None:
    model, x = residual(2, 300)
    both = measure(model, x, instruments="spectrum,blocks")
    wanted = dense(model, x)
    assert wanted[0] != pytest.approx(wanted[1], rel=1e-2)
    notes = noted(both)
    for key, name in zip(KEYS[:3], SPECTRUM[1:4], strict=True):
        spread = notes["from_end_to_end"][name]["standard_error"]
        each = [effective_ranks(logs)[key] for logs in wanted]
        errors = 4 * notes["standard_error_over_probes"][name] + 0.01 * np.mean(each)
        assert abs(spread - abs(each[0] - each[1]) / 2) < errors
    first = both.vectors["log_singular_values"][0][0][0]
    assert first == pytest.approx(np.mean([logs[0] for logs in wanted]), abs=0.05)
    gains, h = [], x
    for block in model:
        gains.append(np.mean([math.exp(logs[0]) for logs in dense(block, h)]))
        h = block(h).detach()
    assert both["block_gain"] == pytest.approx(gains, rel=0.05)
    assert noted(both, "blocks")["examples"] == 2


def test_a_whole_batch_as_one_wide_state() -> None:
    """Under batch norm examples act on one another."""
    torch.manual_seed(0)
    width = 80
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)) for _ in range(2))
    ).double()
    x = torch.randn(4, width, dtype=torch.float64)
    found = measure(model, x, instruments="spectrum,blocks", effort=Effort(probes=24))
    whole: Any = torch.autograd.functional.jacobian(model, x)
    wanted = effective_ranks(torch.linalg.svdvals(whole.reshape(320, 320)).log().numpy())
    notes = noted(found)
    for name in ("spectrum", "blocks"):
        assert noted(found, name)["examples"] == "all at once: they act on one another"
    for key, name in zip(KEYS, SPECTRUM[1:], strict=True):
        error = notes["standard_error_over_probes"][name]
        assert abs(found[name][0] - wanted[key]) < 4 * error + 0.01 * wanted[key], name


# -------------------------------------------------------------------------- every direction


def test_a_rank_of_the_whole_state_follows_every_direction() -> None:
    model, x = residual(2, 300)
    whole = measure(model, x, instruments="spectrum,blocks", effort=Effort(rank=512, sites=2))
    assert whole.vectors["log_singular_values"][0][0] == pytest.approx(
        np.mean(dense(model, x), axis=0), abs=1e-9
    )
    assert noted(whole)["directions"] == 300
    assert "graded" in noted(whole)["method"]
    assert "block_loss" in whole
    part = measure(model, x, instruments="spectrum,blocks", effort=Effort(rank=299, iterations=1))
    assert part.vectors["log_singular_values"][0].shape == (1, 299)
    assert part.not_measured["block_loss"] == (
        "a state has 300 numbers, more than 299; only the 299 leading directions of a block are "
        "followed"
    )


@pytest.mark.parametrize("sizes", [(300, 300, 9), (9, 300, 300), (300, 9, 300)])
def test_a_narrow_state_leaves_no_more_directions_than_it_has(sizes: Sequence[int]) -> None:
    torch.manual_seed(0)
    layers = itertools.pairwise((sizes[0], *sizes))
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in layers)).double()
    x = torch.randn(2, sizes[0], dtype=torch.float64)
    found = measure(model, x, instruments="spectrum")
    wanted = dense(model, x)  # of 300 to 9 to 300 all but 9 are rounding
    assert found.vectors["log_singular_values"][0][0] == pytest.approx(wanted[0][:9], abs=1e-9)
    assert (noted(found)["of"], noted(found)["exactly_lost"]) == (
        len(wanted[0]),
        len(wanted[0]) - 9,
    )
    for key, name in zip(KEYS, SPECTRUM[1:], strict=True):
        assert found[name][0] == pytest.approx(effective_ranks(wanted[0])[key], rel=1e-9)
        assert noted(found)["standard_error_over_probes"][name] == 0
    # With fewer followed than there are, sums over the others come from probes.
    few = measure(model, x, instruments="spectrum", effort=Effort(rank=3, iterations=6, probes=32))
    assert_like_loosely(few, wanted)
    assert noted(few)["of"] == len(wanted[0])
    # Where every probe sees that none is lost it is 0, not the rounding of a sum.
    assert (few["lost_direction_fraction"][0] == 0) == (sizes == (300, 300, 9))


def assert_like_loosely(profile: Profile, wanted: Sequence[FloatArray]) -> None:
    notes = noted(profile)
    for key, name in zip(KEYS, SPECTRUM[1:], strict=True):
        exact = np.mean([effective_ranks(logs)[key] for logs in wanted])
        error = notes["standard_error_over_probes"][name]
        assert abs(profile[name][0] - exact) <= 4 * error + 0.02 * exact, name


def test_blocks_with_a_narrow_end_are_followed_as_a_whole() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 10), nn.Tanh(), nn.Linear(10, 300), nn.Tanh()).double()
    x = torch.randn(2, 300, dtype=torch.float64)
    found = measure(model, x, instruments="blocks", effort=Effort(rank=10))
    half = model[:2](x).detach()
    each = [dense(model[:2], x), dense(model[2:], half)]
    gains = np.exp([np.array(logs)[:, [0, -1]] for logs in each]).mean(1)
    assert found["block_gain"] == pytest.approx(gains[:, 0], rel=1e-9)
    assert found["block_loss"] == pytest.approx(gains[:, 1], rel=1e-9)
    few = measure(model, x, instruments="blocks", effort=Effort(rank=9))
    assert "only the 9 leading directions" in few.not_measured["block_loss"]


# -------------------------------------------------------------------------------- bad input


def test_no_path_from_end_to_end() -> None:
    profile = measure(Network("0*W(h)", 2, 300), 2, instruments="spectrum,blocks")
    assert [profile[name][0] for name in SPECTRUM[1:]] == [0, 0, 0, 1]
    assert (profile.vectors["log_singular_values"][0] == -math.inf).all()
    assert profile["block_gain"] == pytest.approx([0, 0])
    profile.to_dict()


def test_states_that_are_not_finite() -> None:
    network = Network("tanh(W(h))*W2(h)", 3, 300, init="normal(1e200)")
    profile = measure(network, 2, dtype="float64", instruments="spectrum,blocks")
    for name in (*SPECTRUM[1:], "block_gain"):
        why = "the states are not finite from state 2 on (blocks.1)"
        assert profile.not_measured[name] == why
    profile.to_dict()


def test_derivatives_that_are_not_finite() -> None:
    """The states are: a root has none at 0."""

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(300, 300, dtype=torch.float64)

        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = h + self.layer(torch.relu(h).sqrt())
            return out

    model, x = nn.Sequential(Root(), Root()), torch.eye(2, 300, dtype=torch.float64)
    profile = measure(model, x, instruments="spectrum,blocks")
    assert profile.first_nonfinite() is None
    assert all(np.isnan(profile[name][0]) for name in SPECTRUM[1:])
    assert np.isnan(profile["block_gain"]).all()
    profile.to_dict()


def test_one_probe_has_no_standard_error() -> None:
    effort = Effort(probes=1)
    profile = measure(Network("W(h)", 1, 300), 2, instruments="spectrum", effort=effort)
    assert all(math.isnan(e) for e in noted(profile)["standard_error_over_probes"].values())
    assert 0 < profile["effective_rank_entropy"][0] < 300
    profile.to_dict()


@pytest.mark.parametrize(
    ("after", "why"), [(3, "1 of 6 iterations"), (14, "2 of 32 Lanczos steps")]
)
def test_a_budget_that_is_spent_in_the_middle(
    after: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = itertools.count()
    monkeypatch.setattr(Effort, "spent", property(lambda self: next(asked) >= after))
    profile = measure(Network("W(h)", 2, 300), 2, instruments="spectrum", effort=Effort(budget=5))
    words = f"its share of the budget of 5 seconds was spent after {why}"
    assert profile.not_measured["effective_rank_entropy"] == words
    assert profile.not_measured["stable_rank"] == words
    assert ("log_singular_values" in profile.vectors) == (after == 14)  # what there was by then
    profile.to_dict()


class Rectified(nn.Module):
    """``h + W2 relu(W1 h)`` as PyTorch draws it: the largest values lie close together."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.w2(torch.relu(self.w1(h)))
        return out


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("width", [400, 700])
def test_leading_values_that_lie_close_together(
    width: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 and at the defaults; the change that is stated is more than what is missing."""
    torch.manual_seed(seed)
    model, x = nn.Sequential(Rectified(width), Rectified(width)), torch.randn(2, width)
    h, wanted, ends = x, [], [torch.eye(width)] * 2
    for block in model:
        each = [torch.func.jacrev(block)(row).detach() for row in h]
        ends = [j @ product for j, product in zip(each, ends, strict=True)]
        wanted.append(float(np.mean([float(torch.linalg.svdvals(j)[0]) for j in each])))
        h = block(h)
    top = np.mean([float(torch.linalg.svdvals(j)[0].log()) for j in ends])

    def missing() -> list[tuple[float, float]]:
        """Of the largest values, what is missing and what is stated."""
        profile = measure(model, x, instruments="blocks,spectrum")
        per_block = np.max(1 - profile["block_gain"] / wanted)
        end = -math.expm1(profile.vectors["log_singular_values"][0][0][0] - top)
        key = "relative_change_of_the_largest"
        return [
            (per_block, noted(profile, "blocks")[key]),
            (end, noted(profile, "spectrum")[key]),
        ]

    for error, stated in missing():
        assert -1e-6 < error < 0.01
        assert error < stated < 0.05
    monkeypatch.setattr(leading, "_STEEP", -1.0)  # subspace iteration alone must fail
    for error, _ in missing():
        assert error > 0.02


def test_every_direction_of_a_krylov_space_is_exact() -> None:
    """Sixteen at a time of 40: the third block is what is left."""
    torch.manual_seed(0)
    model = nn.Sequential(Rectified(40), Rectified(40)).double()
    x = torch.randn(1, 40, dtype=torch.float64)
    found = measure(model, x, instruments="blocks", effort=Effort(exact=8))
    exact = measure(model, x, instruments="blocks")
    assert found["block_gain"] == pytest.approx(exact["block_gain"], rel=1e-12)
    for row, values in exact.vectors["block_log_singular_values"].items():
        near = found.vectors["block_log_singular_values"][row][0]
        assert near == pytest.approx(values[0][:16], abs=1e-12)
    note = noted(found, "blocks")
    assert (note["iterations"], note["relative_change_of_the_largest"]) == (3, 0)
    two = measure(model, x, instruments="blocks", effort=Effort(exact=8, iterations=1))
    assert noted(two, "blocks")["relative_change_of_the_largest"] > 1e-6
    assert (two["block_gain"] < exact["block_gain"]).all()


def test_a_space_that_does_not_fit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = residual()
    monkeypatch.setattr(leading, "_AT_ONCE", 2**12)
    profile = measure(model, x, instruments="blocks")
    assert noted(profile, "blocks")["iterations"] == 6
    monkeypatch.undo()
    assert (measure(model, x, instruments="blocks")["block_gain"] > profile["block_gain"]).all()


def test_a_backward_pass_without_a_derivative() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

    class Doubled(Residual):
        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = h + self.down(Once.apply(self.up(h)))
            return out

    model = nn.Sequential(*(Doubled(260) for _ in range(2)))
    profile = measure(model, torch.randn(2, 260), instruments="spectrum,blocks")
    for name in ("stable_rank", "effective_rank_entropy", "block_gain"):
        assert profile.not_measured[name] == (
            "a state has 260 numbers, more than 256, and cannot be pushed forward: the derivative "
            "of the backward pass is not that of the forward pass"
        )
    assert "stable_rank" in measure(
        model, torch.randn(2, 260), instruments="spectrum", effort=Effort(exact=260)
    )
