"""Averaged Jacobians, spectra and effective ranks, against dense Jacobians in float64."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from depthgauge import probing
from depthgauge.arguments import HEAVY
from depthgauge.errors import SpecificationError
from depthgauge.instruments.jacobians import APJN
from depthgauge.instruments.spectra import BLOCKS, SPECTRUM
from depthgauge.instruments.spectrum import GradedProducts
from depthgauge.instruments.subject import Effort, Found, Subject
from depthgauge.measurement import measure
from depthgauge.network.chain import Chain
from depthgauge.network.draws import INPUT, draws
from depthgauge.network.module import EquationNetwork
from depthgauge.network.spec import Network
from depthgauge.profile import Profile
from depthgauge.remarks import remarks
from depthgauge.sites import FloatArray

RESIDUAL = Network("h + a*W2(tanh(W1(rmsnorm(h))))", 5, 6, scalars={"a": "1/sqrt(L)"})


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.down(torch.tanh(self.up(h)))
        return out


def stack(depth: int = 4, width: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width) for _ in range(depth))).double()


def dense(model: nn.Sequential, x: Tensor) -> list[Tensor]:
    """``J_(k->D)`` for k = 0 ... D - 1 of one example."""
    found, h = [], x
    for k, block in enumerate(model):
        rest = model[k:]
        found.append(
            torch.func.jacrev(lambda h, rest=rest: rest(h).reshape(-1))(h).reshape(-1, h.numel())
        )
        h = block(h).detach()
    return found


def spectrum_of(jacobian: Tensor) -> np.ndarray[Any, Any]:
    logs: np.ndarray[Any, Any] = torch.linalg.svdvals(jacobian.detach()).log().numpy()
    return logs


def ends(model: nn.Sequential, x: Tensor) -> list[tuple[float, float]]:
    """The largest and smallest singular value of every block's own Jacobian."""
    found, h = [], x
    for block in model:
        values = torch.linalg.svdvals(torch.func.jacrev(block)(h))
        found.append((values[0].item(), values[-1].item()))
        h = block(h).detach()
    return found


# ----------------------------------------------------------------------------- averaged sizes


@pytest.mark.parametrize("batch", [1, 3])
def test_apjn_with_every_direction_is_the_frobenius_norm(batch: int) -> None:
    model, x = stack(), torch.randn(batch, 5, dtype=torch.float64)
    profile = measure(model, x, instruments="jacobian", effort=Effort(probes=1000))
    each = [[j.square().sum().item() / 5 for j in dense(model, row)] for row in x]
    assert profile["apjn"] == pytest.approx([*np.mean(each, axis=0), 1.0], rel=1e-10)
    assert profile["apjn_standard_error"] == pytest.approx(np.zeros(5))
    assert profile.settings["instruments"]["jacobian"]["probes"].startswith("every")  # type: ignore[index]


def test_apjn_by_probes_is_within_its_own_standard_error() -> None:
    model, x = stack(), torch.randn(2, 5, dtype=torch.float64)
    exact = measure(model, x, instruments="jacobian", effort=Effort(probes=1000))["apjn"]
    distances = []
    for seed in range(40):
        effort = Effort(probes=8, seed=seed)
        found = measure(model, x, instruments="jacobian", effort=effort)
        error = found["apjn_standard_error"][:-1]
        assert (error > 0).all()
        distances.append((found["apjn"][:-1] - exact[:-1]) / error)
        assert found["apjn"][-1] == 1.0
    # Student's t with 7 degrees of freedom has the variance 7 / 5.
    assert 0.6 < np.square(distances).mean() < 2.8


def test_one_probe_has_no_standard_error() -> None:
    profile = measure(RESIDUAL, 3, instruments="jacobian", effort=Effort(probes=1))
    assert "apjn" in profile
    assert profile.not_measured["apjn_standard_error"].startswith("one probe has no spread")


def test_apjn_of_orthogonal_layers_is_one_and_of_gains_their_power() -> None:
    network = Network("W(h)", 6, 8, init="orthogonal")
    assert measure(network, 4, instruments="apjn")["apjn"] == pytest.approx(np.ones(7))
    half = Network("0.5*W(h)", 6, 8, init="orthogonal")
    wanted = [0.25 ** (6 - k) for k in range(7)]
    assert measure(half, 4, instruments="apjn")["apjn"] == pytest.approx(wanted)


def test_apjn_block_by_block_is_apjn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = measure(RESIDUAL, 3, instruments="apjn")["apjn"]
    monkeypatch.setattr("depthgauge.instruments.jacobians._AT_ONCE", 1)
    assert measure(RESIDUAL, 3, instruments="apjn")["apjn"] == pytest.approx(at_once, rel=1e-10)


# ------------------------------------------------------------------------------------ spectra


def assert_spectra(profile: Profile, model: nn.Sequential, rows: Sequence[Tensor]) -> None:
    each = [[spectrum_of(j) for j in dense(model, row)] for row in rows]
    vectors = profile.vectors["log_singular_values"]
    states = [site.index for site in profile.sites if site.role == "state"]
    for k, row in enumerate(states[:-1]):
        wanted = np.mean([spectra[k] for spectra in each], axis=0)
        assert vectors[row][0] == pytest.approx(wanted, abs=1e-9)
        sigma = [np.exp(spectra[k]) for spectra in each]
        ratio = np.mean([(s**2).sum() ** 2 / (s**4).sum() for s in sigma])
        place = profile.columns["effective_rank_participation"].rows.index(row)
        assert profile["effective_rank_participation"][place] == pytest.approx(ratio)
    gains = np.mean([ends(model, row) for row in rows], axis=0)
    assert profile["block_gain"] == pytest.approx(gains[:, 0])
    assert profile["block_loss"] == pytest.approx(gains[:, 1])


def test_spectra_of_a_module_are_those_of_dense_jacobians() -> None:
    model, x = stack(), torch.randn(3, 5, dtype=torch.float64)
    profile = measure(model, x, instruments="spectrum,blocks", effort=Effort(examples=3))
    assert_spectra(profile, model, list(x))


@pytest.mark.parametrize(("apart", "right"), [(1e6, True), (1e300, False)])
def test_a_steep_network_of_several_examples(
    apart: float, right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the product in arithmetic of 200 digits; with stretches that may lose every digit
    the same numbers are wrong."""
    monkeypatch.setattr("depthgauge.instruments.spectra._APART", apart)
    passes, together = [], []
    pull, take = Chain.pull_through, GradedProducts.times

    def pulling(chain: Chain, later: int, earlier: Sequence[int], u: Tensor) -> list[Tensor]:
        passes.append(u)
        return pull(chain, later, earlier, u)

    def taking(products: GradedProducts, columns: FloatArray) -> GradedProducts:
        together.append(len(columns))
        return take(products, columns)

    monkeypatch.setattr(Chain, "pull_through", pulling)
    monkeypatch.setattr(GradedProducts, "times", taking)
    depth, width = 60, 12
    network = Network("tanh(W(h))", depth, width)
    profile = measure(
        network, 3, dtype="float64", instruments="spectrum", effort=Effort(examples=3, sites=3)
    )
    model = network.module(0, torch.float64)
    assert isinstance(model, EquationNetwork)
    x = torch.from_numpy(draws("keyed", 0).source(INPUT, "input").normal(3 * width)).double()
    each: dict[int, list[list[float]]] = {0: [], 30: []}
    for example in x.reshape(3, width):
        h, blocks = example[None], []
        for block in model.blocks:
            blocks.append(torch.func.jacrev(block)(h).reshape(width, width).tolist())
            h = block(h).detach()
        with mpmath.workdps(200):
            whole = mpmath.eye(width)
            for k in range(depth, 0, -1):
                whole = whole * mpmath.matrix(blocks[k - 1])
                if k - 1 in each:
                    values = mpmath.svd_r(whole, compute_uv=False)
                    logs = sorted((float(mpmath.log(v)) for v in values), reverse=True)
                    each[k - 1].append(logs)
    assert min(logs[0] - logs[-1] for logs in each[0]) > 100
    vectors = profile.vectors["log_singular_values"]
    for row, wanted in zip(sorted(vectors), each.values(), strict=True):
        assert (abs(vectors[row][0] - np.mean(wanted, axis=0)).max() < 1e-9) == right
    # Some stretches were too long at first, and a nearer state of the same pass was taken.
    assert (together.count(3) > len(passes)) == right


def test_a_head_that_keeps_few_directions_leaves_the_blocks_their_own() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 2)).double()
    x = torch.randn(2, 6, dtype=torch.float64)
    profile = measure(model, x, instruments="spectrum,blocks", effort=Effort(examples=2))
    assert_spectra(profile, model, list(x))


def test_spectra_of_an_equation_are_those_of_its_module() -> None:
    profile = measure(RESIDUAL, 4, seed=[0, 3], instruments="spectrum", effort=Effort(examples=4))
    for k, seed in enumerate((0, 3)):
        model = RESIDUAL.module(seed, torch.float64)
        numbers = draws("keyed", seed).source(INPUT, "input").normal(24)
        x = torch.from_numpy(numbers).reshape(4, 6).double()
        wanted = np.mean(
            [spectrum_of(torch.func.jacrev(model)(row[None]).reshape(6, 6)) for row in x], axis=0
        )
        assert profile.vectors["log_singular_values"][0][k] == pytest.approx(wanted, abs=1e-9)


def test_images_are_long_vectors() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Conv2d(2, 2, 3, padding=1) for _ in range(2))).double()
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    profile = measure(model, x, instruments="spectrum", effort=Effort(examples=2))
    j = [torch.func.jacrev(model)(row[None]).reshape(18, 18) for row in x]
    wanted = np.mean([spectrum_of(one) for one in j], axis=0)
    assert profile.vectors["log_singular_values"][0][0] == pytest.approx(wanted, abs=1e-9)


def test_examples_that_act_on_one_another_are_one_state() -> None:
    """Under batch norm the Jacobian is that of the whole batch."""
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(3, track_running_stats=False) for _ in range(2)]
    model = nn.Sequential(nn.Linear(3, 3), norms[0], nn.Linear(3, 3), norms[1]).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    profile = measure(model, x, instruments="spectrum", effort=Effort(examples=4))
    whole = torch.func.jacrev(model)(x)  # (4, 3, 4, 3)
    values = torch.linalg.svdvals(whole.reshape(12, 12)).log().detach().numpy()
    found = profile.vectors["log_singular_values"][0][0]
    assert found[:6] == pytest.approx(values[:6], abs=1e-9)
    # Of each norm's three channels the length is all but gone (its eps), the mean wholly.
    assert found[6:9] == pytest.approx(values[6:9], abs=1e-3)
    assert found[9:].max() < -30
    notes = profile.settings["instruments"]["spectrum"]  # type: ignore[index]
    assert notes["examples"].startswith("all at once")


def test_the_leading_directions_of_wide_states() -> None:
    exact = measure(RESIDUAL, 4, instruments="spectrum", effort=Effort(examples=1))
    effort = Effort(examples=1, exact=4, rank=3, iterations=60, probes=400)
    found = measure(RESIDUAL, 4, instruments="spectrum", effort=effort)
    wanted = exact.vectors["log_singular_values"][0][0]
    assert found.vectors["log_singular_values"][0][0] == pytest.approx(wanted[:3], abs=1e-6)
    assert found["stable_rank"][0] == pytest.approx(exact["stable_rank"][0], rel=0.05)
    notes = found.settings["instruments"]["spectrum"]  # type: ignore[index]
    error = notes["standard_error_over_probes"]["effective_rank_participation"]
    difference = found["effective_rank_participation"][0] - exact["effective_rank_participation"][0]
    assert 0 < error < 0.3
    assert abs(difference) < 5 * error
    assert notes["largest_change_of_a_logarithm"] < 1e-6
    one = measure(
        RESIDUAL,
        4,
        instruments="spectrum",
        effort=Effort(examples=1, exact=4, rank=2, iterations=1),
    )
    loose = one.vectors["log_singular_values"][0][0]
    assert np.abs(loose - wanted[:2]).max() > 1e-3  # and the change says that it is loose
    stated = one.settings["instruments"]["spectrum"]["largest_change_of_a_logarithm"]  # type: ignore[index]
    assert stated > np.abs(loose[:1] - wanted[:1]).max()


def test_the_leading_directions_of_every_wide_block() -> None:
    exact = measure(RESIDUAL, 4, instruments="blocks", effort=Effort(examples=1))
    effort = Effort(examples=1, exact=4, rank=4, iterations=80)
    found = measure(RESIDUAL, 4, instruments="blocks", effort=effort)
    assert found["block_gain"] == pytest.approx(exact["block_gain"], rel=1e-6)
    name = "block_log_singular_values"
    for row, values in exact.vectors[name].items():
        assert found.vectors[name][row][0] == pytest.approx(values[0, :4], abs=1e-2)
        assert found.vectors[name][row][0][:2] == pytest.approx(values[0, :2], abs=1e-5)
    assert "only the 4 leading directions" in found.not_measured["block_loss"]
    change = found.settings["instruments"]["blocks"]["largest_change_of_a_logarithm"]  # type: ignore[index]
    assert change < 1e-6


def test_a_budget_is_shared_by_those_who_are_left() -> None:
    effort = Effort(budget=100.0)
    each = [effort.share(parts).deadline for parts in (4, 2, 1)]
    assert each == pytest.approx([25, 50, 100], abs=1)
    assert Effort().share(4).deadline is None


@pytest.mark.parametrize("spender", ["precision", "updates"])
def test_no_run_that_nothing_ends_starves_another_instrument(
    spender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that only that instrument moves: it takes the whole budget."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    take, finds = probing.INSTRUMENTS[spender]

    def long(subject: Subject, effort: Effort) -> Found:
        clock[0] += 100.0
        return take(subject, effort)

    def ran(order: tuple[str, ...]) -> Mapping[str, str]:
        monkeypatch.setattr(probing, "HEAVY", order)
        monkeypatch.setitem(probing.INSTRUMENTS, spender, (long, finds))
        clock[0] = 0.0
        found = measure(RESIDUAL, 4, instruments="thorough", effort=Effort(budget=10.0))
        return found.not_measured

    usual = HEAVY
    words = "the budget of 10 seconds was spent by the pass and the instruments before it"
    others = ("apjn", "direction_gain", "stiffness", "block_gain", "stable_rank")
    assert not {name for name, why in ran(usual).items() if name in others and "budget" in why}
    starved = ran((spender, *(name for name in usual if name != spender)))
    assert {name: starved.get(name) for name in others} == dict.fromkeys(others, words)


@pytest.mark.parametrize("until", [None, 4, 5, 6, 99])
@pytest.mark.parametrize("exact", [4, 256])
def test_a_state_beyond_the_last_is_said_to_be_the_last(until: int | None, exact: int) -> None:
    effort = Effort(until=until, exact=exact, rank=2)
    profile = measure(RESIDUAL, 4, instruments="jacobian,blocks,spectrum", effort=effort)
    notes = profile.settings["instruments"]
    assert isinstance(notes, dict)
    said = [line for line in profile.to_dict()["remarks"] if line.startswith("Jacobians lead")]
    for name in ("jacobian", "blocks", "spectrum"):
        assert notes[name]["until"] == min(until or 5, 5)
        assert ("until_note" in notes[name]) == (until in (6, 99))
    if until in (6, 99):
        why = f"{until} was asked for, and the last state is 5"
        assert notes["spectrum"]["until_note"] == why
        assert said == [f"Jacobians lead to the last state: {why}"]
    else:
        assert not said


@pytest.mark.parametrize("exact", [4, 256])
def test_one_state_has_no_spread(exact: int) -> None:
    for examples, why in ((1, "one state, no spread"), (2, None)):
        effort = Effort(examples=examples, exact=exact, rank=2)
        profile = measure(RESIDUAL, 4, instruments="spectrum", effort=effort)
        ends = profile.to_dict()["settings"]["instruments"]["spectrum"]["from_end_to_end"]
        for each in ends.values():
            assert each.get("standard_error_reason") == why
            assert (each["standard_error"] is None) == (examples == 1)


def test_more_directions_than_there_are() -> None:
    found = measure(RESIDUAL, 4, instruments="spectrum", effort=Effort(exact=4, rank=500))
    assert found.vectors["log_singular_values"][0].shape == (1, 6)
    notes = found.settings["instruments"]["spectrum"]  # type: ignore[index]
    assert notes["directions"] == 6


def test_jacobians_from_any_block_to_any_later_one() -> None:
    model, x = stack(), torch.randn(2, 5, dtype=torch.float64)
    effort = Effort(probes=1000, examples=2, until=3)
    profile = measure(model, x, instruments="jacobian,spectrum,blocks", effort=effort)
    shorter = nn.Sequential(*list(model)[:3])
    each = [dense(shorter, row) for row in x]
    sizes = np.mean([[j.square().sum().item() / 5 for j in one] for one in each], axis=0)
    assert profile["apjn"] == pytest.approx([*sizes, 1.0], rel=1e-10)
    wanted = np.mean([spectrum_of(one[0]) for one in each], axis=0)
    assert profile.vectors["log_singular_values"][0][0] == pytest.approx(wanted, abs=1e-9)
    whole = measure(model, x, instruments="spectrum", effort=Effort(examples=2, until=99))
    assert whole.vectors["log_singular_values"][0][0] != pytest.approx(wanted, abs=1e-3)
    assert profile.settings["instruments"]["jacobian"]["until"] == 3  # type: ignore[index]
    for until in (0, -1, 1.5, "2"):
        with pytest.raises(SpecificationError, match="expected a whole number of at least 1"):
            Effort(until=until)  # type: ignore[arg-type]


def test_all_singular_values_of_every_block() -> None:
    model, x = stack(), torch.randn(1, 5, dtype=torch.float64)
    profile = measure(model, x, instruments="blocks", effort=Effort(examples=1))
    h, rows = x[0], profile.columns["block_gain"].rows
    for block, row in zip(model, rows, strict=True):
        values = torch.linalg.svdvals(torch.func.jacrev(block)(h)).log().detach().numpy()
        assert profile.vectors["block_log_singular_values"][row][0] == pytest.approx(values)
        h = block(h).detach()


@pytest.mark.parametrize("sites", [2, 13])
@pytest.mark.parametrize("sizes", [(8, 8, 2, 8, 8), (6, 1, 9), (3, 8, 5), (8, 8, 8)])
def test_directions_that_a_narrow_state_takes_are_lost(sizes: Sequence[int], sites: int) -> None:
    torch.manual_seed(0)
    pairs = itertools.pairwise(sizes)
    layers = (nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairs)
    model, x = nn.Sequential(*layers).double(), torch.randn(2, sizes[0], dtype=torch.float64)
    profile = measure(model, x, instruments="spectrum,blocks", effort=Effort(sites=sites))
    each = [dense(model, row) for row in x]
    column = profile.columns["lost_direction_fraction"]
    assert len(column.rows) == (1 if sites == 2 else len(sizes) - 1)
    vectors = profile.vectors["log_singular_values"]
    for row, share in zip(column.rows, column.values[:, 0], strict=True):
        k = profile.sites[row].block
        sigma = [torch.linalg.svdvals(one[k].detach()).numpy() for one in each]
        assert share == pytest.approx(np.mean([(s < s[0] / 10).mean() for s in sigma]))
        narrowest, count = min(sizes[k:]), min(sizes[k], sizes[-1])
        assert vectors[row].shape == (1, count)
        assert (vectors[row][0][narrowest:] == -np.inf).all()
        wanted = np.mean([np.log(s[:narrowest]) for s in sigma], axis=0)
        assert vectors[row][0][:narrowest] == pytest.approx(wanted, abs=1e-9)
        ranks = np.mean([(s**2).sum() ** 2 / (s**4).sum() for s in sigma])
        place = profile.columns["effective_rank_participation"].rows.index(row)
        assert profile["effective_rank_participation"][place] == pytest.approx(ranks)
    gains = np.mean([ends(model, row) for row in x], axis=0)
    assert profile["block_loss"] == pytest.approx(gains[:, 1])  # of each block by itself
    notes = profile.settings["instruments"]["spectrum"]  # type: ignore[index]
    gone = min(sizes[0], sizes[-1]) - min(sizes)
    assert (notes["of"], notes["exactly_lost"]) == (min(sizes[0], sizes[-1]), gone)
    said = [line for line in remarks(profile) if "exactly 0" in line]
    assert len(said) == (gone > 0)
    if sizes == (8, 8, 2, 8, 8):
        assert notes["narrowest"] == {"path": "1.1", "numbers": 2}
        assert said == [
            "directions: of the 8 singular values from end to end 6 are exactly 0, since the state "
            "made in '1.1' has 2 numbers an example"
        ]


# ------------------------------------------------------------------- what theory says of them


def participation(
    equation: str, depth: int, seeds: Sequence[int] = (0, 1), **scalars: Any
) -> float:
    """The participation ratio of the whole depth over the width, mean over seeds."""
    network = Network(equation, depth, 128, scalars=scalars, init={"W1": "he", "W2": "lecun"})
    profile = measure(network, 2, seed=[0, 1], instruments="spectrum", effort=Effort(sites=2))
    return float(profile["effective_rank_participation"][:, 0].mean()) / 128


def test_the_participation_law() -> None:
    """``PR / n = 1 / (1 + sum_l (2 e^2 + k e^4) / (1 + e^2)^2)``, e^2 the branch's gain over the
    skip's, k = 1.5 at an inner width of 4 n; large n, so n = 128 is a few per cent off."""
    depth, k = 12, 1.5
    f = "W2(relu(W1({}, out=4*n)))"
    found = {
        "no skip": participation(f.format("h"), depth),
        "post": participation(f"layernorm(h + {f.format('h')})", depth),
        "pre": participation(f"h + {f.format('layernorm(h)')}", depth),
        "1/sqrt(L)": participation(f"h + a*{f.format('layernorm(h)')}", depth, a="1/sqrt(L)"),
        "zero": participation(f"h + 0*{f.format('h')}", depth),
    }

    def law(squares: Sequence[float]) -> float:
        return 1 / (1 + sum((2 * e + k * e * e) / (1 + e) ** 2 for e in squares))

    wanted = {
        "no skip": 1 / (1 + k * depth),
        "post": law([1.0] * depth),
        "pre": law([1 / (l + 1) for l in range(depth)]),
        "1/sqrt(L)": law([1 / depth / (1 + l / depth) for l in range(depth)]),
        "zero": 1.0,
    }
    assert list(found.values()) == sorted(found.values())
    for name, value in found.items():
        assert value == pytest.approx(wanted[name], abs=0.03), name


# -------------------------------------------------------------------------------- bad input


def test_nan_is_a_finding_of_every_instrument() -> None:
    network = Network("tanh(W(h))*W2(h)", 3, 4, init="normal(1e200)")
    profile = measure(network, 3, dtype="float64", instruments="thorough")
    assert not np.isfinite(profile["state_rms"][-1])
    for name in (*APJN, *SPECTRUM[1:], *BLOCKS[:2], "direction_gain"):
        why = "the states are not finite from state 2 on (blocks.1)"
        assert profile.not_measured[name] == why
    profile.to_dict()


def test_half_precision_says_nothing_about_directions() -> None:
    model = stack().bfloat16()
    profile = measure(model, torch.randn(2, 5).bfloat16(), instruments="thorough")
    for name in ("apjn", "stable_rank", "direction_gain"):
        assert profile.not_measured[name] == (
            "Jacobians are taken in float32 or wider, and the states are bfloat16"
        )


def test_a_module_that_no_gradient_passes() -> None:
    class Blind(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach() * 2

    profile = measure(Blind(), torch.randn(2, 3), instruments="thorough")
    assert "apjn" not in profile
    assert profile.not_measured["apjn"]


def test_a_module_without_parameters() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(2 * x)

    model = nn.Sequential(Twice(), Twice(), Twice())
    profile = measure(model, torch.randn(2, 3), instruments="thorough")
    assert profile.not_measured["apjn"].startswith("there is one state only")
    for name in ("stiffness", "functional_update"):
        assert profile.not_measured[name] == "the model has no parameters"
    profile.to_dict()
    some = measure(nn.Sequential(nn.Linear(3, 3), Twice()), torch.randn(2, 3), instruments="all")
    assert some.not_measured.get("stiffness") != "the model has no parameters"
    assert "functional_update" in some


def test_a_custom_function_without_a_batched_backward() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx: Any, *g: Any) -> Any:
            (x,) = ctx.saved_tensors
            if float(g[0].abs().sum()) < 0:  # reads a number: no batch of cotangents can
                raise AssertionError
            return 2 * x * g[0]

    class Squared(Block):
        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = h + self.down(Square.apply(self.up(h)))
            return out

    torch.manual_seed(0)
    model = nn.Sequential(*(Squared(5) for _ in range(3))).double()
    x = torch.randn(2, 5, dtype=torch.float64)
    profile = measure(model, x, instruments="jacobian", effort=Effort(probes=100))
    each = []
    for row in x:
        h, chain = row, []
        for block in model:
            assert isinstance(block, Block)
            up, down = block.up, block.down
            chain.append(torch.func.jacrev(lambda h, u=up, d=down: h + d(u(h).square()))(h))
            h = h + down(up(h).square())
        product = torch.eye(5, dtype=torch.float64)
        sizes = [1.0]
        for j in reversed(chain):
            product = product @ j
            sizes.append(product.square().sum().item() / 5)
        each.append(sizes[::-1])
    assert profile["apjn"] == pytest.approx(np.mean(each, axis=0), rel=1e-9)


def test_a_budget_that_is_spent() -> None:
    profile = measure(RESIDUAL, 4, instruments="thorough", effort=Effort(budget=1e-9))
    assert profile.not_measured["apjn"] == (
        "the budget of 1e-09 seconds was spent by the pass and the instruments before it"
    )
    assert "state_rms" in profile
    rich = measure(RESIDUAL, 4, instruments="thorough", effort=Effort(budget=600))
    assert "apjn" in rich
