"""The shallow plain control: the layers and activations of a block, without its skip and its norms.

    h = h + a W2(gelu(W1(rmsnorm(h))))    ->    h = W2(gelu(W1(h))),  W1 ~ he, W2 ~ lecun

Few blocks of it, drawn as He et al. and LeCun et al. say, carry state and gradient well; where they
do not, the block or the bounds are at fault and not the depth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from depthgauge.equation.nodes import (
    Activation,
    Add,
    Attention,
    Block,
    Constant,
    Convolution,
    Initial,
    LearnedGain,
    LearnedScalar,
    Linear,
    Node,
    Norm,
    Product,
    Scale,
    State,
    Value,
    rewrite,
    walk,
)
from depthgauge.equation.written import WEIGHTS, with_scalars, without_inits
from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network

__all__ = ["plain_control"]

#: Activations that pass about half of the second moment on.
_HALVING: Final = ("relu", "gelu", "silu", "mish", "leaky_relu", "elu", "selu", "softplus")


def plain_control(network: Network, blocks: int) -> Network:
    """The control of this network. Raises NetworkError where nothing plain is left, and for
    attention, gates and kernels, whose plain stacks are not healthy however shallow they are."""
    if any(isinstance(node, Attention) for node in walk(network.block)):
        raise NetworkError("attention without a skip collapses however few blocks there are")
    if any(isinstance(node, Convolution) for node in walk(network.block)):
        raise NetworkError("a plain stack of kernels loses what is outside of the image")
    block = rewrite(without_inits(with_scalars(network.block)), _plain)
    assert isinstance(block, Block)
    if any(isinstance(node, Add | Norm) for node in walk(block)):
        raise NetworkError(
            f"'{network.block}' is no skip plus branches that a plain stack could be made of"
        )
    if any(isinstance(node, Product) for node in walk(block)):
        raise NetworkError("a gate multiplies two halves, and a plain stack of it explodes")
    layers = {node.name for node in walk(block) if isinstance(node, Linear | Convolution)}
    if not layers:
        raise NetworkError(f"'{network.block}' has no weight layer of its own")
    active = {
        node.value.name
        for node in walk(block)
        if isinstance(node, Activation)
        and node.kind in _HALVING
        and isinstance(node.value, WEIGHTS)
        and node.value.name not in ("", "W")
    }
    inits = {"default": "lecun", **dict.fromkeys(sorted(active), "he")}
    return replace(network, equation=block, scalars=None, depth=blocks, init=inits)


def _plain(node: Node) -> Node:
    """Bottom up: norms, factors and learned numbers go, and of a sum the term that is a skip."""
    match node:
        case Norm(_, value) | Scale(_, value):
            return value
        case Product(left, right):
            if _learned(left):
                return right
            return left if _learned(right) else node
        case Add(left, right):
            if _carried(left):
                return right
            return left if _carried(right) or _learned(right) else node
    return node


def _learned(value: Value) -> bool:
    return isinstance(value, LearnedScalar | LearnedGain | Constant)


def _carried(value: Value) -> bool:
    return isinstance(value, State | Initial) or _learned(value)
