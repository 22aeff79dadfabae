"""Streaming against one autograd pass over an ordinary module that keeps everything."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from depthgauge.errors import NetworkError
from depthgauge.network.activations import Gate
from depthgauge.network.spec import Network
from depthgauge.network.stream import Ensemble, stream
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


@pytest.mark.parametrize("memory", [2**30, 1], ids=["whole", "one block a segment"])
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


def test_the_number_of_threads_is_put_back_also_after_an_error() -> None:
    class Broken(Keeper):
        def gradient(self, block: int, g: Tensor) -> None:
            raise RuntimeError("stop")

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        keep(network("plain"))
        assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="stop"):
            stream(Ensemble((network("plain"),), (0,)), Broken(), batch=5)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
