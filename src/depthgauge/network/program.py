"""A block equation compiled to PyTorch: one rule a node.

``Program`` is compiled once and run for every block with a ``Context``, which says where weights
come from (the user's parameters, or tensors drawn for the moment) and who looks at the gates. An
ensemble is the same program with one more axis in front of every state and weight; a scalar that
differs between its members is a tensor.

A scale and a residual addition next to a linear layer are done inside the matrix product.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from torch import Tensor
from torch.nn import functional as F

from depthgauge.equation.nodes import (
    SCALARS,
    Activation,
    Add,
    Attention,
    Block,
    Call,
    Constant,
    Convolution,
    Define,
    Dropout,
    Init,
    Initial,
    LearnedGain,
    LearnedScalar,
    Let,
    Linear,
    Local,
    Node,
    Norm,
    Number,
    Opaque,
    Options,
    Product,
    Scalar,
    Scale,
    State,
    Symbol,
    Update,
    Value,
    rewrite,
    walk,
)
from depthgauge.equation.scalars import evaluate
from depthgauge.equation.text import to_text
from depthgauge.errors import NetworkError
from depthgauge.network.activations import Gate, gate
from depthgauge.network.layers import Layers, Layout, activation_name, not_built
from depthgauge.network.norms import RootMeanSquare, Standardise, normaliser, of_heads, over_batch

#: A scalar of one block: one number, or one for each member of an ensemble.
Coefficient: TypeAlias = float | Tensor


#: Called with an activation's name, rule, input and output.
Observer: TypeAlias = Callable[[str, Gate, Tensor, Tensor], None]


class Context(Protocol):
    """One block while it runs."""

    h: Tensor
    h0: Tensor
    locals: dict[str, Tensor]
    coefficients: list[Coefficient]
    observe: Observer | None

    def apply(self, name: str, x: Tensor) -> Tensor:
        """The weight layer ``name`` on x."""
        ...

    def apply_add(self, name: str, x: Tensor, residual: Tensor, scale: Coefficient) -> Tensor:
        """``residual + scale * layer(x)``."""
        ...

    def tensor(self, x: Coefficient) -> Tensor:
        """``x`` as a tensor that broadcasts against a state, also where it is one number."""
        ...

    def vector(self, name: str) -> Coefficient:
        """A learnable scalar or per-channel vector, shaped to multiply a state."""
        ...

    def normalise(self, name: str, norm: Standardise, x: Tensor) -> Tensor:
        """A norm over the batch, which a module in eval mode replaces by running statistics."""
        ...

    def rms_norm(self, norm: RootMeanSquare, x: Tensor) -> Tensor:
        """RMSNorm over the width; once differentiable where no more is asked for."""
        ...

    def drop(self, name: str, x: Tensor, p: float) -> Tensor: ...


Step: TypeAlias = Callable[[Any], Any]


class Program:
    """The compiled block. ``scope`` holds ``L, depth, n, pi``; ``l`` comes with each block."""

    def __init__(
        self,
        layers: Layers,
        layout: Layout,
        scope: Mapping[str, float],
        inits: Iterable[Init] = (),
    ) -> None:
        compiler = _Compiler(layout, dict(scope))
        self._steps = [compiler.statement(s) for s in layers.block.statements]
        self._script = compiler.script
        #: Norms over the batch by name: what a trained module keeps running statistics for.
        self.batch_norms = compiler.batch_norms
        self._scope = dict(scope)
        #: The values of all options (slopes, eps, heads): they are compiled in.
        self.options = tuple(compiler.options)
        #: Whether a scalar anywhere in the block or its initialisers differs between blocks.
        nodes: tuple[Node, ...] = (layers.block, *inits)
        self.varies = any(Symbol("l") in walk(node) for node in nodes)
        self._same: tuple[list[float], dict[str, float]] | None = None

    def coefficients(self, block: int) -> tuple[list[float], dict[str, float]]:
        """The scalars of block ``l`` by slot, and the scope with the equation's own scalars."""
        if self._same is not None:
            return self._same
        found = run_script(self._script, {**self._scope, "l": float(block)})
        if not self.varies:
            self._same = found
        return found

    def __call__(self, context: Context) -> Tensor:
        for step in self._steps:
            step(context)
        return context.h


#: Scalars in order of evaluation: (name, scalar) binds a name, (None, scalar) fills the next slot.
Script: TypeAlias = list[tuple[str | None, Scalar]]


def run_script(script: Script, scope: dict[str, float]) -> tuple[list[float], dict[str, float]]:
    slots: list[float] = []
    for name, scalar in script:
        value = evaluate(scalar, scope)
        if name is None:
            slots.append(value)
        else:
            scope[name] = value
    return slots, scope


@dataclass
class _Compiler:
    layout: Layout
    scope: dict[str, float]
    script: Script = field(default_factory=list)
    slots: int = 0
    definitions: dict[str, Define] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    words: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    batch_norms: dict[str, Standardise] = field(default_factory=dict)
    varying: set[str] = field(default_factory=set)
    options: list[float] = field(default_factory=list)

    # ------------------------------------------------------------------------ statements

    def statement(self, statement: Let | Define | Update) -> Step:
        match statement:
            case Let(name, bound) if isinstance(bound, SCALARS):
                if self.uses_l(bound):
                    self.varying.add(name)
                self.script.append((name, bound))
                return lambda context: None
            case Let(name, bound):
                assert not isinstance(bound, SCALARS)
                return self._bind(name, self.value(bound))
            case Define(name):
                self.definitions[name] = statement
                return lambda context: None
            case Update(value):
                return self._update(self.value(value))

    @staticmethod
    def _bind(name: str, step: Step) -> Step:
        def run(context: Context) -> None:
            context.locals[name] = step(context)

        return run

    @staticmethod
    def _update(step: Step) -> Step:
        def run(context: Context) -> None:
            context.h = step(context)

        return run

    # --------------------------------------------------------------------------- scalars

    def slot(self, scalar: Scalar) -> int:
        self.script.append((None, scalar))
        self.slots += 1
        return self.slots - 1

    def fixed(self, options: Options, what: str) -> dict[str, Any]:
        """Options as plain numbers and words; the same in every block."""
        return {
            name: self._number(option, f"{name} of {what}")
            if isinstance(option, SCALARS)
            else option
            for name, option in options
        }

    def uses_l(self, scalar: Scalar) -> bool:
        """Whether the scalar differs between blocks, through the names it uses too."""
        names = {node.name for node in walk(scalar) if isinstance(node, Symbol)}
        return bool(names & {"l", *self.varying})

    def _number(self, scalar: Scalar, what: str) -> float:
        if self.uses_l(scalar):
            raise NetworkError(
                f"{what} = {to_text(scalar)} uses l, but it has to be the same in every block; "
                f"write a multiplier that uses l instead"
            )
        lets: Script = [(n, bound) for n, bound in self.script if n and n not in self.varying]
        value = evaluate(scalar, run_script(lets, dict(self.scope))[1])
        self.options.append(value)
        return value

    # ---------------------------------------------------------------------------- values

    def value(self, node: Value) -> Step:
        match node:
            case State():
                return lambda context: context.h
            case Initial():
                return lambda context: context.h0
            case Local(name):
                name = self.parameters.get(name, name)
                return lambda context: context.locals[name]
            case Constant(scalar):
                slot = self.slot(scalar)
                return lambda context: context.coefficients[slot]
            case LearnedScalar(_, name) | LearnedGain(_, name):
                return lambda context: context.vector(name)
            case Scale(factor, inner):
                slot, step = self.slot(factor), self.value(inner)
                return lambda context: context.coefficients[slot] * step(context)
            case Add(left, right):
                return self.add(left, right)
            case Product(left, right):
                a, b = self.value(left), self.value(right)
                return lambda context: a(context) * b(context)
            case Linear(name, inner) | Convolution(value=inner, name=name):
                step = self.value(inner)
                return lambda context: context.apply(name, step(context))
            case Attention():
                return self.attention(node)
            case Activation():
                return self.activation(node)
            case Norm():
                return self.norm(node)
            case Dropout(inner, p, name):
                step = self.value(inner)
                share = self._number(p, "p of dropout")
                if not 0 <= share < 1:
                    raise NetworkError(f"dropout has p={share:g}; give a share in [0, 1)")
                return lambda context: context.drop(name, context.tensor(step(context)), share)
            case Call():
                return self.call(node)
            case Opaque():
                raise not_built(node)

    def add(self, left: Value, right: Value) -> Step:
        """A sum; a linear layer on either side, scaled or not, takes the other side along."""
        # Slots are numbered in order of evaluation, so compile both sides before deciding.
        first, last = self._product(left), self._product(right)
        if last is not None:
            a = self.value(left)
            slot = self.slot(last.factor) if last.factor is not None else None
            step = self.value(last.inner)
            return _fused(last.name, a, step, slot)
        if first is not None:
            slot = self.slot(first.factor) if first.factor is not None else None
            step = self.value(first.inner)
            return _fused(first.name, self.value(right), step, slot)
        a, b = self.value(left), self.value(right)
        return lambda context: a(context) + b(context)

    @staticmethod
    def _product(node: Value) -> _Scaled | None:
        match node:
            case Linear(name, inner):
                return _Scaled(None, name, inner)
            case Scale(factor, Linear(name, inner)):
                return _Scaled(factor, name, inner)
            case _:
                return None

    def attention(self, node: Attention) -> Step:
        step, name = self.value(node.value), node.name
        heads = int(self._number(node.heads, "heads of attention"))
        unit = node.norm == "l2"  # whose scale is learned
        scale = 1.0 if unit else None
        if node.scale is not None and not unit:
            scale = self._number(node.scale, "scale of attention")
        normal = None if node.norm is None else of_heads(node.norm)

        def projected(context: Context, x: Tensor, part: str) -> Tensor:
            made = context.apply(f"{name}.{part}", x)
            if normal is not None and part != "v":
                made = normal(made.reshape(*x.shape[:-1], heads, -1)).flatten(-2)
            if unit and part == "q":
                made = context.vector(f"{name}.scale") * made
            return made.reshape(-1, x.shape[-2], heads, x.shape[-1] // heads).transpose(1, 2)

        def run(context: Context) -> Tensor:
            x = step(context)
            q, k, v = (projected(context, x, part) for part in "qkv")
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=node.causal, scale=scale)
            return context.apply(f"{name}.o", mixed.transpose(1, 2).reshape(x.shape))

        return run

    def activation(self, node: Activation) -> Step:
        step = self.value(node.value)
        rule = gate(node.kind, self.fixed(node.options, node.kind))
        if node.kind == "identity":
            return step
        name = activation_name(node.kind, self.words)

        def run(context: Context) -> Tensor:
            z = context.tensor(step(context))
            y = rule.apply(z)
            if context.observe is not None:
                context.observe(name, rule, z, y)
            return y

        return run

    def norm(self, node: Norm) -> Step:
        step, name, kind = self.value(node.value), node.name, node.kind
        options = dict(node.options)
        gain, bias = options.get("gain") is not None, bool(options.get("bias"))
        if kind in ("dyt", "derf"):
            normal = _pointwise(kind, name)
        else:
            kept = tuple((k, v) for k, v in node.options if k not in ("gain", "bias"))
            plain = self.fixed(kept, kind)
            rule = normaliser(kind, plain, self.layout)
            if isinstance(rule, Standardise) and over_batch(kind, plain):
                self.batch_norms[name] = rule
                normal = _over_batch(name, rule)
            elif isinstance(rule, RootMeanSquare):
                normal = lambda context, x: context.rms_norm(rule, x)  # noqa: E731
            else:
                normal = lambda context, x: rule(x)  # noqa: E731

        def run(context: Context) -> Tensor:
            x: Tensor = normal(context, step(context))
            if gain:
                x = context.vector(f"{name}.gain") * x
            if bias:
                x = x + context.vector(f"{name}.bias")
            return x

        return run

    def call(self, node: Call) -> Step:
        definition = self.definitions[node.name]
        self.calls += 1
        arguments = [self.value(argument) for argument in node.arguments]
        names = {p: f"{node.name}.{self.calls}.{p}" for p in definition.parameters}
        outer, self.parameters = self.parameters, names
        body = self.value(definition.body)
        self.parameters = outer

        def run(context: Context) -> Tensor:
            for name, argument in zip(names.values(), arguments, strict=True):
                context.locals[name] = argument(context)
            result: Tensor = body(context)
            return result

        return run


@dataclass(frozen=True, slots=True)
class _Scaled:
    factor: Scalar | None
    name: str
    inner: Value


def _fused(name: str, residual: Step, step: Step, slot: int | None) -> Step:
    def run(context: Context) -> Tensor:
        scale = 1.0 if slot is None else context.coefficients[slot]
        return context.apply_add(name, step(context), residual(context), scale)

    return run


def _pointwise(kind: str, name: str) -> Callable[[Context, Tensor], Tensor]:
    def dyt(context: Context, x: Tensor) -> Tensor:
        return (context.vector(f"{name}.alpha") * x).tanh()

    def derf(context: Context, x: Tensor) -> Tensor:
        return (context.vector(f"{name}.alpha") * x + context.vector(f"{name}.shift")).erf()

    return dyt if kind == "dyt" else derf


def _over_batch(name: str, rule: Standardise) -> Callable[[Context, Tensor], Tensor]:
    return lambda context, x: context.normalise(name, rule, x)


def skeleton(block: Block) -> Block:
    """The block with every scalar that may differ inside an ensemble replaced by 0."""
    zero = Number(0.0)

    def rule(node: Node) -> Node:
        match node:
            case Scale():
                return dataclasses.replace(node, factor=zero)
            case Constant():
                return Constant(zero)
            case LearnedScalar() | LearnedGain():
                return dataclasses.replace(node, initial=zero)
            case Linear() | Convolution() | Attention():
                return dataclasses.replace(node, init=None)
            case Let(name, bound) if isinstance(bound, SCALARS):
                return Let(name, zero)
            case _:
                return node

    result = rewrite(block, rule)
    assert isinstance(result, Block)
    return result
