"""Activations that a recipe transforms, in an equation and in a module.

In an equation a transformed activation is written out in words that the language has,

    gamma * (phi(alpha * x + beta) + delta)

in a module it is a module around the activation's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import nn

from depthgauge.equation.nodes import (
    SCALARS,
    Activation,
    Add,
    Block,
    Constant,
    Node,
    Norm,
    Number,
    Option,
    Scale,
    Value,
    rewrite,
)
from depthgauge.equation.parse import parse_scalar
from depthgauge.errors import NetworkError
from depthgauge.recipes.kernel_maps import Curve
from depthgauge.recipes.wrappers import Transformed
from depthgauge.trace.bends import Bend

__all__ = ["bare", "by_kind", "changes", "rounded", "written"]

#: Digits of a constant in an equation.
_DIGITS = 7


def rounded(number: float) -> float:
    """A constant as an equation has it."""
    return float(f"{number:.{_DIGITS}g}")


# ---------------------------------------------------------------------------- an equation


def bare(block: Block) -> Block:
    """The block without norms, and without fixed numbers directly around its activations."""

    def rule(node: Node) -> Node:
        match node:
            case Norm(value=inside):
                return inside
            case Activation(value=inside):
                while (below := _peeled(inside)) is not None:
                    inside = below
                return Activation(node.kind, inside, node.options)
            case Scale() | Add():
                found = _peeled(node)
                return found if isinstance(found, Activation) else node
        return node

    found = rewrite(block, rule)
    assert isinstance(found, Block)
    return found


def _peeled(value: Value) -> Value | None:
    """What a fixed number multiplies, or is added to."""
    match value:
        case Scale(_, inside) | Add(inside, Constant()) | Add(Constant(), inside):
            return inside
    return None


def by_kind(bends: Sequence[Bend], curves: Sequence[Curve]) -> Mapping[str, Curve]:
    """What an activation of each kind becomes. Raises NetworkError where that is not one thing."""
    found: dict[str, Curve] = {}
    for bend, curve in zip(bends, curves, strict=True):
        if found.setdefault(bend.kind, curve) != curve:
            raise NetworkError(
                f"{bend.kind} stands in the equation with different options, each of which has "
                f"constants of its own; build the network and apply the recipe to the module"
            )
    return found


def written(block: Block, curves: Mapping[str, Curve]) -> Block:
    """The block with each activation transformed."""

    def rule(node: Node) -> Node:
        if isinstance(node, Activation) and node.kind in curves:
            return _written(node, curves[node.kind])
        return node

    found = rewrite(block, rule)
    assert isinstance(found, Block)
    return found


def _written(node: Activation, curve: Curve) -> Value:
    made: Value = _plus(_times(curve.alpha, node.value), curve.beta)
    if curve.kind == "leaky_relu":
        slope = rounded(dict(curve.options)["slope"])
        options: tuple[tuple[str, Option], ...] = (("slope", Number(slope)),)
        scale = parse_scalar(f"sqrt(2/(1+{slope!r}**2))")
        assert isinstance(scale, SCALARS)
        return Scale(scale, Activation(curve.kind, made, options))
    return _times(curve.gamma, _plus(Activation(node.kind, made, node.options), curve.delta))


def _times(number: float, value: Value) -> Value:
    return value if number == 1 else Scale(Number(rounded(number)), value)


def _plus(value: Value, number: float) -> Value:
    return value if number == 0 else Add(value, Constant(Number(rounded(number))))


# ------------------------------------------------------------------------------ a module

Change = Callable[[nn.Module], nn.Module]


def changes(
    bends: Sequence[Bend], curves: Sequence[Curve], modules: Mapping[str, nn.Module]
) -> Iterator[tuple[str, Change | str, Curve]]:
    """For each activation the path of a module, what to put in its place, or why nothing can be.
    A sum that an activation alone reads is divided in that one's input scale."""
    for bend, asked in zip(bends, curves, strict=True):
        curve = replace(asked, alpha=asked.alpha / bend.spread)
        path, numbers = bend.path, (bend.alpha, bend.beta, bend.gamma, bend.delta)
        module, around = modules[path], path.rpartition(".")[0]
        wrapper = modules.get(around)
        if any(True for _ in module.children()) or any(True for _ in module.parameters()):
            yield path, f"the activation in '{path}' is called as a function: it was kept", curve
        elif isinstance(wrapper, Transformed):
            outside = bend.alpha / wrapper.alpha  # numbers in front of it, of a sum before
            curve = replace(curve, alpha=curve.alpha / outside)
            yield around, _inside(curve), curve
        elif numbers != (1.0, 0.0, 1.0, 0.0):
            yield path, f"numbers stand around the activation '{path}' already: it was kept", curve
        else:
            yield path, _around(curve), curve


def _around(curve: Curve) -> Change:
    def change(module: nn.Module) -> nn.Module:
        if curve.kind == "leaky_relu":
            module = nn.LeakyReLU(dict(curve.options)["slope"])
        return Transformed(module, curve.alpha, curve.beta, curve.gamma, curve.delta)

    return change


def _inside(curve: Curve) -> Change:
    """New numbers in place of those that stand there."""

    def change(module: nn.Module) -> nn.Module:
        assert isinstance(module, Transformed)
        return _around(curve)(module.module)

    return change
