"""``measure`` as a whole: the numbers of a slow reference, and every wrong use."""

import dataclasses
import json
import math
import threading
from typing import Any

import numpy as np
import pytest
import torch

import depthgauge as dg
from depthgauge.arguments import quantities_of
from depthgauge.errors import NetworkError, SpecificationError, TargetError, UsageError
from depthgauge.measurement import measure, measure_all
from depthgauge.network.spec import Network
from depthgauge.sites import QUANTITIES
from tests.network.references import EQUATIONS, both_rivers

#: What one pass over an equation's blocks of rows finds: they run as one program, which hides its
#: additions, and rows have no positions.
EQUATION = [
    name
    for name in quantities_of("fast")
    if QUANTITIES[name].roles != ("branch",) and name != "token_correlation"
]

SMALL: dict[str, Any] = {"depth": 6, "width": 8}


def network(name: str) -> Network:
    equation = EQUATIONS[name]
    sizes: dict[str, Any] = {"tokens": 3} if "attention" in equation else {}
    sizes |= {"size": 4} if "conv" in equation else {}
    return Network(equation, **SMALL, **sizes)


@pytest.mark.parametrize("name", EQUATIONS)
def test_rivers_are_those_of_the_slow_reference(name: str) -> None:
    profile = measure(network(name), 5, dtype="float64")
    states, gradients = both_rivers(network(name))
    for river, tensors in (("state", states), ("gradient", gradients)):
        root = [t.square().mean().sqrt().item() for t in tensors]
        assert profile[f"{river}_rms"] == pytest.approx(root, rel=1e-10)
        top = [t.abs().max().item() for t in tensors]
        assert profile[f"{river}_max"] == pytest.approx(top, rel=1e-10)
        mean = [t.mean().item() for t in tensors]
        assert profile[f"{river}_mean"] == pytest.approx(mean, rel=1e-8, abs=1e-12)
    summary = profile.summary()
    root = [t.square().mean().sqrt().item() for t in states]
    assert summary["forward_drift"][0] == pytest.approx(max(root) / max(min(root), 1e-30))
    assert summary["forward_end_rms"][0] == pytest.approx(root[-1])
    ends = [gradients[i].square().mean().sqrt().item() for i in (0, -1)]
    assert ends[1] == pytest.approx(1, rel=1e-12)
    assert summary["gradient_ratio"][0] == pytest.approx(ends[0] / ends[1], rel=1e-9)


def test_seeds_are_an_axis_and_one_batched_pass_gives_what_each_gives_alone() -> None:
    together = measure(network("wide"), 5, seed=range(20), dtype="float64")
    assert together["state_rms"].shape == (20, 7)
    assert together.seeds == tuple(range(20))
    for seed in (0, 7, 19):
        alone = measure(network("wide"), 5, seed=seed, dtype="float64")
        assert alone["state_rms"].shape == (7,)
        for name in EQUATION:
            assert together[name][seed] == pytest.approx(alone[name], rel=1e-9, abs=1e-12)


def test_networks_of_one_shape_run_together_and_come_back_in_order() -> None:
    networks = [
        Network(f"h + {a}*W2({phi}(W1(h)))", **SMALL)
        for a, phi in [("1", "relu"), ("0.5", "tanh"), ("0.25", "relu"), ("1/L", "relu")]
    ]
    found = measure_all(networks, 5, seed=(1, 2), dtype="float64")
    for net, profile in zip(networks, found, strict=True):
        alone = measure(net, 5, seed=(1, 2), dtype="float64")
        assert profile.equation == alone.equation
        assert profile["gradient_rms"] == pytest.approx(alone["gradient_rms"], rel=1e-9)


def test_a_list_may_hold_equations_and_a_single_one_is_refused() -> None:
    found = measure_all(["h + W(h)", Network("h + W(h)", depth=3, width=8)], 4)
    assert [profile.depth for profile in found] == [96, 3]
    for single in ("h + W(h)", Network("h + W(h)"), 5):
        with pytest.raises(TargetError, match="expected a list of equations or Networks"):
            measure_all(single)  # type: ignore[arg-type]


def test_progress_counts_every_block_once_there_and_back() -> None:
    steps: list[tuple[int, int]] = []
    networks = [Network("h + W(h)", 5, 4), Network("W(tanh(h))", 7, 4)]
    measure_all(networks, 2, seed=range(3), progress=lambda d, t: steps.append((d, t)))
    assert steps[-1] == (72, 72)
    assert steps == sorted(steps)


def test_overflow_is_a_result_that_says_where_it_began() -> None:
    profile = measure("h + 30*W2(relu(W1(h)))", 8, depth=60, width=16, dtype="float32")
    first = profile.first_nonfinite()
    assert first is not None
    assert 20 < first.block < 60
    before = profile["state_rms"][first.block - 1]
    assert np.isfinite(before)
    assert before > 1e19  # its squares are past float32's range, its RMS is not
    document = json.dumps(profile.to_dict(), allow_nan=False)
    assert "null" in document
    healthy = measure("h + W2(relu(W1(h)))/sqrt(L)", 8, depth=60, width=16, dtype="float32")
    assert healthy.first_nonfinite() is None


def test_gradients_through_a_lost_state_are_not_numbers() -> None:
    # Comparisons with NaN open every gate: autograd's numbers there are finite and mean nothing.
    lost = measure("h + 3*W2(relu(W1(h)))", 8, depth=400, width=16, seed=(3, 4), init={"W1": "he"})
    first = lost.first_nonfinite()
    assert first is not None
    assert np.isnan(lost["state_rms"][:, -1]).all()
    assert np.isnan(lost["gradient_rms"]).all()
    assert (lost["gradient_nonfinite_fraction"] == 1).all()
    finite = measure(
        "h + 3*W2(relu(W1(h)))", 8, depth=400, width=16, init={"W1": "he"}, dtype="float64"
    )
    assert np.isfinite(finite["gradient_rms"]).all()


def test_the_mean_does_not_overflow_before_the_state() -> None:
    profile = measure("h + 3*W2(relu(W1(h)))", 64, depth=90, width=16, init={"W1": "he"})
    before = profile["nonfinite_fraction"] == 0
    assert profile["state_max"][before].max() > 1e35
    assert np.isfinite(profile["state_mean"][before]).all()


def test_float16_overflows_where_bfloat16_does_not() -> None:
    equation = "h + 4*W2(relu(W1(h)))"
    half = measure(equation, 8, depth=24, width=16, dtype="float16")
    brain = measure(equation, 8, depth=24, width=16, dtype="bfloat16")
    assert half.first_nonfinite() is not None
    assert brain.first_nonfinite() is None
    exact = measure(equation, 8, depth=24, width=16, dtype="float64")
    assert brain["state_rms"] == pytest.approx(exact["state_rms"], rel=0.05)


def test_a_network_without_activations_has_no_gates() -> None:
    profile = measure("h + W(h)", 4, **SMALL)
    assert "live_derivative_fraction" not in profile
    assert profile.not_measured["dead_fraction"] == "the equation has no activation"
    assert not any(site.role == "activation" for site in profile.sites)


def test_instruments_are_chosen_by_preset_name_or_quantity() -> None:
    every = measure(network("residual"), 4)
    assert set(every.columns) == set(EQUATION)
    some = measure(network("residual"), 4, instruments=["state_rms", "gates"])
    assert set(some.columns) == {
        *(f"derivative_{name}" for name in ("q05", "q50", "q95")),
        "state_rms",
        "live_derivative_fraction",
        "saturated_fraction",
        "dead_fraction",
    }
    assert some.not_measured["gradient_rms"] == "not among the instruments asked for"
    assert some["state_rms"] == pytest.approx(every["state_rms"])


def test_given_sizes_replace_those_of_a_network() -> None:
    net = Network("h + W(h)/sqrt(L)", depth=6, width=8)
    assert measure(net, 4, depth=3).depth == 3
    assert measure(net, 4, width=16).width == 16
    assert net.depth == 6


def test_threads_change_no_number_and_an_error_in_one_ends_them_all() -> None:
    net = Network("h + W2(gelu(W1(h)))/sqrt(L)", depth=12, width=32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = measure(net, 512, seed=range(6))
        torch.set_num_threads(3)
        shared = measure(net, 512, seed=range(6))
        assert any(t.name.startswith("depthgauge") for t in threading.enumerate())
        for name in EQUATION:
            assert shared[name] == pytest.approx(alone[name], rel=1e-4)

        def fail(done: int, total: int) -> None:
            if done > 20:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            measure(net, 512, seed=range(6), progress=fail)
        assert measure(net, 512, seed=range(6))["state_rms"] == pytest.approx(shared["state_rms"])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.set_grad_enabled(False),
        lambda: torch.autocast("cpu", torch.bfloat16),
    ],
    ids=["no_grad", "inference_mode", "grad disabled", "autocast"],
)
def test_the_callers_modes_change_nothing(mode: Any) -> None:
    net = network("wide")
    expected = measure(net, 4)
    data = measure(net, torch.ones(4, 8))
    with mode():
        assert np.array_equal(measure(net, 4)["gradient_rms"], expected["gradient_rms"])
        given = measure(net, torch.ones(4, 8))
    assert np.array_equal(given["gradient_rms"], data["gradient_rms"])


def test_global_random_states_and_threads_are_left_alone() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.random_sample(), torch.get_num_threads()
    np.random.seed(5)
    measure(network("wide"), 4, seed=range(3))
    Network("h + dropout(W(h), 0.5)", depth=2, width=4).module()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.random_sample() == before[1]
    assert torch.get_num_threads() == before[2]


def test_a_batch_of_data_is_used() -> None:
    data = torch.full((3, 8), 2.0)
    profile = measure(network("residual"), data)
    assert profile["state_rms"][0] == pytest.approx(2)
    assert profile.settings["input"] == "given"
    with pytest.raises(NetworkError, match=r"shape \(3, 9\), but a state of this network is"):
        measure(network("residual"), torch.ones(3, 9))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (dict(dtype="float31"), "dtype is 'float31', expected one of float64, float32"),
        (dict(dtype=torch.int32), "dtype is 'int32'"),
        (dict(device="tpu0"), "device is 'tpu0'"),
        (dict(device="meta"), "device is 'meta'"),
        (dict(seed=-1), "seed is -1"),
        (dict(seed=[]), "seed is []"),
        (dict(seed=[1, 1]), "names a seed twice"),
        (dict(seed=1.5), "seed is 1.5"),
        (dict(batch=0), "batch is 0"),
        (dict(batch=2.0), "batch is 2.0"),
        (dict(instruments="fst"), "instruments names 'fst'"),
        (dict(instruments=["state_rm"]), "did you mean 'state_rms'?"),
        (dict(depth=0), "depth is 0"),
    ],
)
def test_wrong_use(given: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UsageError) as caught:
        measure("h + W(h)", **given)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_target_of_another_kind_is_refused() -> None:
    with pytest.raises(TargetError, match="a target of type device cannot be measured"):
        measure(torch.device("cpu"))  # type: ignore[arg-type]


def test_cuda_is_refused_with_a_sentence_where_there_is_none() -> None:
    if torch.cuda.is_available():
        assert measure("h + W(h)", 4, **SMALL, device="cuda").settings["device"] == "cuda"
        return
    with pytest.raises(SpecificationError, match="device is 'cuda', which this PyTorch cannot use"):
        measure("h + W(h)", 4, **SMALL, device="cuda")


def test_memory_bounds_change_no_number() -> None:
    net = dataclasses.replace(network("wide"), depth=50)
    whole = measure(net, 5, dtype="float64")
    tight = measure(net, 5, dtype="float64", memory=10_000)
    for name in EQUATION:
        assert np.array_equal(whole[name], tight[name])


def test_the_public_name_is_the_function_also_after_the_module_was_imported() -> None:
    assert dg.measure is measure
    assert math.isfinite(dg.measure("h + W(h)", 2, **SMALL)["state_rms"][-1])
