"""The rank of one example's own Jacobian where a norm makes examples act on one another."""

from __future__ import annotations

import pytest
import torch

from depthgauge import measure
from depthgauge.instruments.spectra import own_rank
from depthgauge.instruments.subject import Effort
from depthgauge.network.spec import Network
from depthgauge.trace.measuring import followed

EXACT = 1e-8


@pytest.mark.parametrize("norm", ["batchnorm", "layernorm"])
@pytest.mark.parametrize("effort", [Effort(), Effort(exact=4, rank=4, probes=64)])
def test_the_rank_of_one_example_among_others(norm: str, effort: Effort) -> None:
    """Against the whole batch's Jacobian, of which one example's own part is cut out."""
    model = Network(f"h + W2(relu(W1({norm}(h))))", 4, 8).module(0, torch.float64)
    batch = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = torch.autograd.functional.jacobian(model, batch)
    ranks = []
    for e in (0, 5):
        square = torch.linalg.svdvals(whole[e, :, e]).square()
        ranks.append(float(square.sum() ** 2 / square.square().sum()))
    streams = followed(model, batch)
    assert isinstance(streams, list)
    found = own_rank(streams[0], effort)
    close = EXACT if effort.exact > 8 else 0.2  # probes, of which there are 64
    assert found == pytest.approx(sum(ranks) / 2, rel=close)
    usual = measure(model, batch, instruments=["effective_rank_participation"])
    apart = usual["effective_rank_participation"][0] / (sum(ranks) / 2) - 1
    assert (abs(apart) > 0.5) == (norm == "batchnorm")
