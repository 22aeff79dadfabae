"""The slow, obvious reference: an ordinary module, every state kept, one backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from depthgauge.network.draws import COTANGENT, INPUT, KeyedDraws
from depthgauge.network.module import EquationNetwork
from depthgauge.network.spec import Network

#: Blocks of every kind; each has a name for the test's report.
EQUATIONS = {
    "plain": "W2(tanh(W1(h)))",
    "residual": "h + W2(relu(W1(h)))/sqrt(L)",
    "wide": "h + W2(gelu(W1(rmsnorm(h), out=3*n)))/sqrt(L)",
    "post-norm": "layernorm(h + W2(silu(W1(h, out=n/2))))",
    "swiglu sandwich": "u = rmsnorm(h); h = h + 0.5*rmsnorm(W2(silu(W1(u)) * W3(u)))",
    "highway": "t = sigmoid(W1(h)); h = t*tanh(W2(h)) + (1 - t)*h",
    "input skip": "h = 0.9*h + 0.3*W(h) + 0.1*h0",
    "learned": "h + gain(0.2)*W2(relu(W1(h + scalar(0.1)) - scalar(0.05)))*scalar(1.5)",
    "per block": "h + W(tanh(h))/sqrt(l)",
    "definition": "F(x, y) = W2(x * softsign(W1(y))); h = h + 0.3*F(h, rmsnorm(h))",
    "tied": "h + 0.2*W1(relu(W1(h)))",
    "biased": "h + W2(relu(W1(h, bias=True, init='torch')), bias=True, init='torch')",
    "batchnorm": "h + 0.5*W(relu(batchnorm(h, gain=0.7, bias=True)))",
    "post-norm transformer": (
        "h = layernorm(h + attention(h, heads=2)); h = layernorm(h + W2(relu(W1(h))))"
    ),
    "causal": "h + attention(rmsnorm(h), heads=4, causal=True, scale=0.3)/sqrt(L)",
    "normed by length": "h + attention(h, heads=2, scale=4, norm='l2')",
    "normed queries": "h + attention(h, heads=2, norm='rmsnorm')",
    "convolution": "h + 0.5*conv1(relu(conv3(batchnorm(h), out=2*n)))",
    "circular": "relu(h + 0.3*conv3(relu(groupnorm(W(h), groups=2)), padding='circular'))",
    "dead end": "W(h0)",
}


def keyed_input(network: Network, seed: int, batch: int) -> Tensor:
    shape = (batch, *network.state_shape)
    numbers = KeyedDraws(seed).source(INPUT, "input").normal(torch.Size(shape).numel())
    return torch.from_numpy(numbers).double().reshape(shape)


def both_rivers(
    network: Network, seed: int = 0, batch: int = 5
) -> tuple[list[Tensor], list[Tensor]]:
    """Every state and the gradient at every state, in float64, by one pass of autograd."""
    module = EquationNetwork(network, seed, torch.float64)
    h0 = keyed_input(network, seed, batch).requires_grad_()
    states = [h0]
    for block in module.blocks:
        h = block(states[-1], h0)
        states.append(h)
    numbers = KeyedDraws(seed).source(COTANGENT, "cotangent").normal(states[-1].numel())
    g = torch.from_numpy(numbers).double().reshape(states[-1].shape)
    g = g / g.square().mean().sqrt()
    found = torch.autograd.grad(states[-1], states, g, allow_unused=True)
    gradients = [torch.zeros_like(h0) if f is None else f for f in found]
    return [h.detach() for h in states], gradients
