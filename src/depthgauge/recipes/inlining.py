"""A block with each branch written out where its sum stands."""

from __future__ import annotations

from collections import Counter

from depthgauge.equation.nodes import (
    SCALARS,
    Add,
    Block,
    Call,
    Define,
    Let,
    Local,
    Node,
    Statement,
    Update,
    Value,
    rewrite,
    walk,
)
from depthgauge.equation.written import WEIGHTS

__all__ = ["inlined"]


def inlined(block: Block) -> Block:
    """Definitions that are called once, where they are called, and names of branches that are used
    once, where they are used."""
    return _names_inlined(_defined(block))


def _names_inlined(block: Block) -> Block:
    """``f = W2(relu(W1(h))); h = h + f`` as one sum; a name stays whose layers are anonymous beside
    others that are, since their places in the text are their names."""
    uses = Counter(node.name for node in walk(block) if isinstance(node, Local))
    anonymous = sum(
        any(isinstance(node, WEIGHTS) and node.name in ("", "W") for node in walk(statement))
        for statement in block.statements
    )
    bodies: dict[str, Value] = {}

    def rule(node: Node) -> Node:
        return bodies.get(node.name, node) if isinstance(node, Local) else node

    out: list[Statement] = []
    for place, statement in enumerate(block.statements):
        changed = rewrite(statement, rule)
        assert isinstance(changed, Statement)
        if isinstance(changed, Let) and not isinstance(changed.bound, (*SCALARS, Add)):
            layers = [node for node in walk(changed.bound) if isinstance(node, WEIGHTS)]
            bare = any(node.name in ("", "W") for node in layers)
            once = uses[changed.name] == 1 and _before_update(changed.name, block, place)
            if layers and once and (anonymous < 2 or not bare):
                bodies[changed.name] = changed.bound
                continue
        out.append(changed)
    return Block(tuple(out))


def _before_update(name: str, block: Block, place: int) -> bool:
    """Whether the state is still the same where a name of this statement is used."""
    for statement in block.statements[place + 1 :]:
        if any(isinstance(node, Local) and node.name == name for node in walk(statement)):
            return True
        if isinstance(statement, Update):
            return False
    return False


def _defined(block: Block) -> Block:
    """Definitions that are called once, where they are called."""
    calls = Counter(node.name for node in walk(block) if isinstance(node, Call))
    bodies: dict[str, Define] = {}

    def rule(node: Node) -> Node:
        if isinstance(node, Call) and calls[node.name] == 1 and node.name in bodies:
            define = bodies[node.name]
            given = dict(zip(define.parameters, node.arguments, strict=True))

            def put(inner: Node) -> Node:
                return given.get(inner.name, inner) if isinstance(inner, Local) else inner

            return rewrite(define.body, put)
        return node

    out: list[Statement] = []
    for statement in block.statements:
        changed = rewrite(statement, rule)
        assert isinstance(changed, Statement)
        if isinstance(changed, Define) and calls[changed.name] == 1:
            bodies[changed.name] = changed
        else:
            out.append(changed)
    return Block(tuple(out))
