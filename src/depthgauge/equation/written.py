"""A block written out: names, definitions and free scalars put where they are used.

``a = 1/sqrt(L); u = rmsnorm(h); h = h + a * W(u)`` and ``h + 1/sqrt(L) * W(rmsnorm(h))`` are one
function of the state; what is left of both is the same tree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from depthgauge.equation.nodes import (
    SCALARS,
    Attention,
    Block,
    Call,
    Convolution,
    Define,
    Let,
    Linear,
    Local,
    Node,
    Scalar,
    State,
    Statement,
    Symbol,
    Update,
    Value,
    rewrite,
)

__all__ = ["WEIGHTS", "state_name", "with_scalars", "without_inits", "written_out"]

WEIGHTS: Final = (Linear, Convolution, Attention)


def with_scalars(block: Block) -> Block:
    """The block with each named scalar where its name stands, ``1/sqrt(L)`` for ``a``."""
    known: dict[str, Scalar] = {}

    def rule(node: Node) -> Node:
        return known.get(node.name, node) if isinstance(node, Symbol) else node

    out: list[Statement] = []
    for statement in block.statements:
        changed = rewrite(statement, rule)
        if isinstance(changed, Let) and isinstance(changed.bound, SCALARS):
            known[changed.name] = changed.bound
        else:
            assert isinstance(changed, Statement)
            out.append(changed)
    return Block(tuple(out))


def without_inits(block: Block) -> Block:
    """The block with no layer's initialiser in it, for all of them to stand beside it."""

    def rule(node: Node) -> Node:
        return replace(node, init=None) if isinstance(node, WEIGHTS) else node

    out = rewrite(block, rule)
    assert isinstance(out, Block)
    return out


def written_out(block: Block) -> tuple[Value, ...]:
    """What each update assigns, as one expression of ``h0`` and of the states before it.

    The state that ``k`` updates made is ``Local(state_name(k))``: a name that reads ``h`` keeps the
    state that it read, also where it is used after another update.
    """
    values: dict[str, Value] = {}
    definitions: dict[str, Define] = {}
    updates: list[Value] = []

    def settled(node: Node, given: dict[str, Value]) -> Value:
        def rule(inner: Node) -> Node:
            match inner:
                case State():
                    return Local(state_name(len(updates)))
                case Local(name):
                    return given.get(name, values.get(name, inner))
                case Call(name, arguments):
                    define = definitions[name]
                    bound = dict(zip(define.parameters, arguments, strict=True))
                    return settled(define.body, bound)
            return inner

        out = rewrite(node, rule)
        assert isinstance(out, Value)
        return out

    for statement in with_scalars(block).statements:
        match statement:
            case Define(name):
                definitions[name] = statement
            case Let(name, bound):
                values[name] = settled(bound, {})
            case Update(value):
                updates.append(settled(value, {}))
    return tuple(updates)


def state_name(updates: int) -> str:
    """No name of the language has a dot."""
    return f"h.{updates}"
