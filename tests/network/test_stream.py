"""Streaming against one autograd pass over an ordinary module that keeps everything."""

import dataclasses
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from depthgauge.errors import NetworkError
from depthgauge.measurement import measure, measure_all
from depthgauge.network.activations import Gate
from depthgauge.network.spec import Network
from depthgauge.network.stream import Ensemble, Plan, _Stream, plan, stream
from tests.network.references import EQUATIONS, both_rivers, keyed_input

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}


class Keeper:
    """Keeps every tensor that streams past, as no instrument does."""

    def __init__(self) -> None:
        self.states: dict[int, Tensor] = {}
        self.gradients: dict[int, Tensor] = {}
        self.gates: list[tuple[int, str]] = []
        self.steps: list[tuple[int, int]] = []

    def state(self, block: int, h: Tensor) -> None:
        assert block not in self.states
        self.states[block] = h

    def gradient(self, block: int, g: Tensor) -> None:
        assert block not in self.gradients
        self.gradients[block] = g

    def gate(self, block: int, name: str, rule: Gate, z: Tensor, y: Tensor) -> None:
        assert torch.equal(rule.apply(z), y)
        self.gates.append((block, name))

    def progress(self, done: int, total: int) -> None:
        self.steps.append((done, total))


def keep(
    networks: Network | list[Network], seeds: tuple[int, ...] = (0,), **options: object
) -> Keeper:
    keeper = Keeper()
    several = networks if isinstance(networks, list) else [networks] * len(seeds)
    settings = {"batch": 5, "dtype": torch.float64} | options
    stream(Ensemble(tuple(several), seeds), keeper, **settings)  # type: ignore[arg-type]
    return keeper


def network(name: str, depth: int = 6) -> Network:
    equation = EQUATIONS[name]
    sizes: dict[str, Any] = {"tokens": 3} if "attention" in equation else {}
    sizes |= {"size": 4} if "conv" in equation else {}
    return Network(equation, depth=depth, width=8, **sizes)


def check(keeper: Keeper, states: list[Tensor], gradients: list[Tensor]) -> None:
    assert sorted(keeper.states) == sorted(keeper.gradients) == list(range(len(states)))
    for block, (h, g) in enumerate(zip(states, gradients, strict=True)):
        assert torch.allclose(keeper.states[block], h, **EXACT)
        assert torch.allclose(keeper.gradients[block], g, **EXACT)


SIZES = {"depth": 1000, "state": 32_000, "weights": 32_000, "results": 96_000}


def test_what_fits_is_one_segment_and_what_does_not_is_several() -> None:
    assert plan(**SIZES, memory=2**28) == Plan(1000, 1000)
    assert plan(**SIZES, memory=2**26).segment < 200
    assert plan(**SIZES, memory=1) == Plan(0, 16)  # sqrt(1000 * 32 / 128)


@given(
    st.integers(1, 20_000),
    st.integers(1, 10**7),
    st.integers(0, 10**7),
    st.integers(1, 10**8),
    st.integers(1, 10**10),
)
def test_the_plan_keeps_to_the_memory_where_anything_can(
    depth: int, state: int, weights: int, results: int, memory: int
) -> None:
    found = plan(depth=depth, state=state, weights=weights, results=results, memory=memory)
    block = weights + results
    assert 1 <= found.segment <= depth
    used = found.segment * block + state * depth / found.segment
    least = 2 * (depth * state * block) ** 0.5 + block + state
    assert used <= max(memory, 2 * least)
    assert used + found.keep * weights <= max(1.05 * memory, 2 * least) or found.segment == depth


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_smallest_memory_really_runs_in_segments(name: str) -> None:
    ensemble = Ensemble((network(name),), (0,))
    run = _Stream(ensemble, Keeper(), 5, torch.float64, torch.device("cpu"), 1)
    assert len(run._segments()) > 1


@pytest.mark.parametrize("memory", [2**30, 1], ids=["whole", "in segments"])
@pytest.mark.parametrize("name", EQUATIONS)
def test_both_rivers_are_those_of_an_ordinary_module(name: str, memory: int) -> None:
    check(keep(network(name), memory=memory), *both_rivers(network(name)))


def test_the_reference_can_tell_networks_apart() -> None:
    keeper = keep(network("residual"))
    states, gradients = both_rivers(network("residual"), seed=1)
    assert not torch.allclose(keeper.states[6], states[-1], rtol=0.1)
    assert not torch.allclose(keeper.gradients[0], gradients[0], rtol=0.1)


@pytest.mark.parametrize("name", EQUATIONS)
def test_an_ensemble_is_its_members(name: str) -> None:
    seeds = (3, 0, 8)
    for memory in (2**30, 1):
        together = keep(network(name), seeds, memory=memory)
        for e, seed in enumerate(seeds):
            alone = keep(network(name), (seed,))
            for block in alone.states:
                assert torch.allclose(together.states[block][e], alone.states[block], **EXACT)
                assert torch.allclose(together.gradients[block][e], alone.gradients[block], **EXACT)


def test_scales_initialisers_and_gains_vary_inside_an_ensemble() -> None:
    members = [
        Network(
            f"h + {a}*W2(relu(W1(h)))*scalar({s}) + gain({s})*h",
            depth=4,
            width=8,
            init={"W1": init},
        )
        for a, s, init in [("0.5/sqrt(l)", 1, "he"), ("1/L", 0.5, "orthogonal"), ("2", 0, "zeros")]
    ]
    together = keep(members, (0, 0, 5))
    for e, (member, seed) in enumerate(zip(members, (0, 0, 5), strict=True)):
        states, gradients = both_rivers(member, seed)
        for block in range(5):
            assert torch.allclose(together.states[block][e], states[block], **EXACT)
            assert torch.allclose(together.gradients[block][e], gradients[block], **EXACT)


def test_trees_of_another_shape_are_refused() -> None:
    with pytest.raises(NetworkError, match="equations of one shape"):
        keep([network("residual"), network("plain")], (0, 0))
    with pytest.raises(NetworkError, match="equations of one shape"):
        keep([network("residual"), network("residual", depth=7)], (0, 0))


@pytest.mark.parametrize(
    "memory", [1, 20_000, 60_000, 10**9], ids=["1 B", "20 kB", "60 kB", "1 GB"]
)
def test_segments_of_any_length_give_the_same_rivers(memory: int) -> None:
    deep = network("wide", depth=37)
    check(keep(deep, memory=memory), *both_rivers(deep))


def test_sequential_draws_can_be_streamed_in_segments() -> None:
    deep = dataclasses.replace(network("residual", depth=37), draws="sequential-pcg64")
    whole, parts = keep(deep, (7,)), keep(deep, (7,), memory=1)
    for block in whole.states:
        assert torch.equal(whole.states[block], parts.states[block])
        assert torch.equal(whole.gradients[block], parts.gradients[block])


def test_dropout_masks_come_back_when_a_block_runs_again() -> None:
    dropped = Network("h + W2(dropout(relu(W1(h)), 0.3))", depth=9, width=8)
    whole, parts = keep(dropped), keep(dropped, memory=1)
    assert torch.equal(whole.gradients[0], parts.gradients[0])
    assert not torch.equal(whole.states[9], keep(Network("h + W2(relu(W1(h)))", 9, 8)).states[9])
    several = keep(dropped, (0, 1))
    assert torch.allclose(several.states[9][0], whole.states[9], **EXACT)


EDITS = {
    "norm moved": "rmsnorm(h + W2(relu(W1(h))))",
    "norm added": "h + W2(relu(W1(layernorm(h))))",
    "activation changed": "h + W2(gelu(W1(h)))",
    "rescaled": "h + 0.1*W2(relu(W1(h)))",
    "skip removed": "W2(relu(W1(h)))",
    "a layer added": "h + W2(relu(W3(relu(W1(h)))))",
    "dropout added": "h + W2(dropout(relu(W1(h)), 0.5))",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_elsewhere_changes_no_weight(edit: str) -> None:
    before = Network("h + W2(relu(W1(h)))", depth=3, width=8).module(seed=4).state_dict()
    after = Network(EDITS[edit], depth=3, width=8).module(seed=4).state_dict()
    for name in before:
        assert torch.equal(before[name], after[name])
    other = Network(EDITS[edit], depth=3, width=8).module(seed=5).state_dict()
    assert not torch.equal(before["blocks.0.W1.weight"], other["blocks.0.W1.weight"])


def test_gates_are_seen_once_each_and_progress_reaches_the_end() -> None:
    for memory in (2**30, 1):
        keeper = keep(network("swiglu sandwich", depth=5), memory=memory)
        assert keeper.gates == [(block, "silu.1") for block in range(1, 6)]
        assert keeper.steps[-1] == (10, 10)
        assert keeper.steps == sorted(keeper.steps)


def test_a_given_batch_is_used_as_it_is() -> None:
    net = network("residual")
    h0 = keyed_input(net, 9, 4)
    keeper = keep(net, (0,), batch=h0)
    assert torch.equal(keeper.states[0], h0)
    several = keep(net, (0, 1), batch=h0)
    assert torch.equal(several.states[0], torch.stack([h0, h0]))
    assert torch.allclose(several.states[6][0], keeper.states[6], **EXACT)


def test_dropout_scales_what_it_keeps_and_follows_the_seed() -> None:
    dropped = keep(Network("dropout(h, p=0.5)", depth=1, width=8), (0, 1), batch=64)
    kept = dropped.states[1] != 0
    assert torch.equal(dropped.states[1][kept], 2 * dropped.states[0][kept])
    assert abs(kept.double().mean().item() - 0.5) < 4 * 0.5 / 1024**0.5
    assert not torch.equal(kept[0], kept[1])


@pytest.mark.parametrize("option", ["slope", "alpha", "eps", "heads", "p", "groups"])
def test_networks_that_differ_in_an_option_do_not_share_a_program(option: str) -> None:
    equation, values = {
        "slope": ("h + W(leaky_relu(h, slope=s))", (0.01, 0.9)),
        "alpha": ("h + W(elu(h, alpha=s))", (0.5, 2)),
        "eps": ("h + W(rmsnorm(h, eps=s))", (0.1, 2)),
        "heads": ("h + attention(h, heads=s)", (1, 4)),
        "p": ("h + W(dropout(h, p=s))", (0.1, 0.6)),
        "groups": ("h + W(groupnorm(h, groups=s))", (1, 4)),
    }[option]
    nets = [Network(equation, depth=3, width=8, scalars={"s": v}) for v in values]
    with pytest.raises(NetworkError, match="equations of one shape"):
        Ensemble(tuple(nets), (0, 0))
    together = measure_all(nets, 4, dtype="float64")
    for net, profile in zip(nets, together, strict=True):
        assert profile["state_rms"] == pytest.approx(measure(net, 4, dtype="float64")["state_rms"])


def test_an_initialiser_that_uses_l_differs_from_block_to_block() -> None:
    beside = Network("h + W(h)", depth=4, width=8, init="normal(1/l)")
    inside = Network("h + W(h, init='normal(1/l)')", depth=4, width=8)
    assert torch.equal(keep(beside).states[4], keep(inside).states[4])
    stds = [block.get_submodule("W.1").weight.std() for block in beside.module().blocks]  # type: ignore[union-attr]
    assert stds[3] < 0.5 * stds[0]


@pytest.mark.parametrize(
    "equation",
    [
        "h + sigmoid(scalar(0))*W(h)",
        "h + tanh(gain(0.5))*W(h)",
        "h + dropout(scalar(1), p=0.5)*W(h)",
    ],
)
def test_a_learnable_number_can_be_a_gate(equation: str) -> None:
    net = Network(equation, depth=3, width=8)
    several = keep(net, (0, 1))
    if "dropout" not in equation:
        states, gradients = both_rivers(net)
        check(keep(net), states, gradients)
    assert torch.allclose(several.states[3][0], keep(net).states[3], **EXACT)


def test_a_scale_beyond_the_range_overflows_as_a_result() -> None:
    keeper = keep(Network("h + 1e39*W(h)", depth=1, width=8), dtype=torch.float32)
    assert not keeper.states[1].isfinite().any()
    assert keep(Network("h + 1e39*W(h)", depth=1, width=8)).states[1].isfinite().all()


@pytest.mark.parametrize("factor", [8.0, -8.0])
def test_it_overflows_where_the_module_does(factor: float) -> None:
    """A factor within the product would overflow its partial sums, a block where the sum does not:
    0.74 against 0.43 of the state at the first such block. Alone, and beside a smaller factor."""
    network = Network("h + a * W2(relu(W1(h)))", 60, 32, init="he", scalars={"a": factor})
    small = dataclasses.replace(network, scalars={"a": 0.1})
    x = torch.randn(128, 32, generator=torch.Generator().manual_seed(1))
    h = x
    expected = [0.0]
    with torch.no_grad():
        for layer in network.module(1).float().blocks:  # type: ignore[union-attr]
            h = layer(h)
            expected.append(float((~h.isfinite()).float().mean()))
    assert sum(0 < share < 1 for share in expected) > 0
    alone = measure(network, x, seed=1)
    beside = measure_all([small, network], x, seed=1)[1]
    for found in (alone, beside):
        shares = [row.item() for row in found.columns["nonfinite_fraction"].values]
        states = [site.index for site in found.sites if site.role == "state"]
        rows = found.columns["nonfinite_fraction"].rows
        assert [s for s, row in zip(shares, rows, strict=True) if row in states] == pytest.approx(
            expected, abs=1e-6
        )


def test_a_batch_of_one_with_a_constant_that_differs() -> None:
    nets = [Network(f"h + W({s} + W1(h))", depth=2, width=8) for s in (1, 4)]
    together = keep(nets, (0, 0), batch=1)
    for e, net in enumerate(nets):
        assert torch.allclose(together.states[2][e], keep(net, batch=1).states[2], **EXACT)


def test_streaming_leaves_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    measure(network("plain"), 5, seed=range(3))
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert torch.get_num_threads() == before
    assert seen == [before]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_can_measure() -> None:
    code = """
import os, depthgauge as dg
dg.measure("h + W(h)", 4, depth=2, width=4)
child = os.fork()
if child == 0:
    dg.measure("h + W(h)", 4, depth=2, width=4, seed=range(2))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
