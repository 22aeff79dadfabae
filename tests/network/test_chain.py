"""One backward pass through several states against the product of the blocks' own Jacobians."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import get_gradient_edge

from depthgauge.network import chain as chains
from depthgauge.network.chain import Chain, Kept, chain_of_blocks
from depthgauge.network.module import EquationNetwork
from depthgauge.network.spec import Network


@pytest.mark.parametrize("at_once", [2**22, 16])
def test_one_pass_through_several_states(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two of the three cotangents fit at once."""
    monkeypatch.setattr(chains, "AT_ONCE", at_once)
    model = Network("h + W2(tanh(W1(h)))", 5, 4).module(0, torch.float64)
    assert isinstance(model, EquationNetwork)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    u = torch.randn(3, 2, 4, dtype=torch.float64, generator=generator)
    h, jacobians = x, []
    for block in model.blocks:
        own = torch.func.jacrev(lambda row, block=block: block(row[None])[0])
        jacobians.append(torch.func.vmap(own)(h).detach())
        h = block(h).detach()
    wanted = {4: u}
    for k in (3, 2, 1, 0):
        wanted[k] = torch.einsum("eij,pei->pej", jacobians[k], wanted[k + 1])
    chain = chain_of_blocks(model, x, x)
    for k, found in zip((3, 0, 2), chain.pull_through(4, (3, 0, 2), u), strict=True):
        torch.testing.assert_close(found, wanted[k], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found, chain.pull(4, k, u), rtol=1e-10, atol=1e-12)


def test_a_state_that_nothing_comes_back_to() -> None:
    first, second = (torch.ones(2, 3, requires_grad=True) for _ in range(2))
    out = 5 * second
    states = [Kept(get_gradient_edge(h), h.detach(), 0) for h in (first, second, out)]
    nothing, five = Chain(states, out.sum).pull_through(2, (0, 1), torch.ones(4, 2, 3))
    assert nothing.shape == five.shape == (4, 2, 3)
    assert not nothing.any()
    assert (five == 5).all()
