"""One change of one factor, as text, and what it makes of a specification.

    activation=relu    norm=none  norm=layernorm    placement=post    dtype=bfloat16
    scale*2  scale/2  scale=1/sqrt(L)    init=orthogonal  init.W2=zeros
    depth=12  width=128  batch=32  tokens=64  size=16    equation=h + W2(relu(W1(h)))

Every layer keeps its name, so that every weight that both networks have begins with the same
numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from depthgauge.equation.functions import ACTIVATIONS, ALIASES, NORMS
from depthgauge.equation.nodes import (
    Activation,
    Arithmetic,
    Block,
    Node,
    Norm,
    Number,
    Scalar,
    State,
    Update,
    rewrite,
    walk,
)
from depthgauge.equation.parse import parse, parse_init, parse_scalar
from depthgauge.equation.text import to_text
from depthgauge.equation.written import WEIGHTS, with_scalars, without_inits
from depthgauge.errors import NetworkError, SpecificationError, nearest
from depthgauge.network.layers import named
from depthgauge.network.spec import Network
from depthgauge.recipes.placements import form_of
from depthgauge.recipes.reshape import multipliers, reshaped
from depthgauge.recipes.rules import Form

if TYPE_CHECKING:
    from depthgauge.study.specification import Specification

__all__ = ["Change", "activations", "applied"]

_WRITTEN: Final = re.compile(r"\s*([^\W\d][\w.]*)\s*(?:=\s*(.*?)|([*/]\s*\S.*?))\s*", re.DOTALL)

#: Forms by the words that counting has for where norms stand.
_PLACEMENTS: Final[dict[str, Form]] = {
    "pre": form_of("prenorm"),
    "post": form_of("postnorm"),
    "sandwich": form_of("sandwich"),
    "inner": Form(norms={"inner": ""}),
    "out": Form(norms={"out": ""}),
}
_SIZES: Final = ("depth", "width", "tokens", "size")
_KNOWN: Final = (
    "activation", "norm", "placement", "scale", "init", "init.NAME", "dtype", *_SIZES, "batch",
    "draws", "equation",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """``factor`` becomes ``value``; of the scale also ``*2`` and ``/2``."""

    factor: str
    value: str

    @classmethod
    def of(cls, text: str | Change) -> Change:
        """From ``"norm=none"`` or ``"scale*2"``; raises SpecificationError for other text."""
        if isinstance(text, Change):
            return text
        match = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
        factor, value, times = match.groups() if match else ("", "", "")
        if not (value or times) or (times and factor != "scale"):
            raise SpecificationError(
                f"a change is {text!r}, expected FACTOR=VALUE, such as norm=none or depth=12, or "
                f"scale*2"
            )
        return cls(factor, value or times.replace(" ", ""))

    def __str__(self) -> str:
        times = self.factor == "scale" and self.value[:1] in ("*", "/")
        return f"{self.factor}{self.value}" if times else f"{self.factor}={self.value}"


def applied(specification: Specification, change: Change) -> Specification:
    """The specification with this one change, which may turn out to change nothing.

    Raises SpecificationError, EquationError or NetworkError for what cannot be changed so.
    """
    network, factor, value = specification.network, change.factor, change.value
    if factor in ("dtype", "precision"):
        from depthgauge.arguments import dtype_of

        dtype_of(value)
        return replace(specification, dtype=value)
    if factor == "batch":
        from depthgauge.arguments import batch_of

        examples = batch_of(_whole(factor, value), [])
        return replace(specification, batch=int(examples))
    if factor in ("seed", "seeds"):
        raise SpecificationError("a change names the seeds, which are held: effects are over them")
    return replace(specification, network=_network(network, factor, value))


def _network(network: Network, factor: str, value: str) -> Network:
    if factor in _SIZES:
        size: Any = {factor: _whole(factor, value)}
        return replace(network, **size)
    if factor == "draws":
        return replace(network, draws=value)  # type: ignore[arg-type]  # it says what it takes
    if factor == "init" or factor.startswith("init."):
        return _initialised(network, factor.removeprefix("init").removeprefix("."), value)
    if factor == "equation":
        return _rewritten(network, value)
    changes: dict[str, Callable[[Network, str], Block]] = {
        "activation": _activated,
        "norm": _normed,
        "placement": _placed,
        "scale": _scaled,
    }
    if factor not in changes:
        raise SpecificationError(
            f"a change names '{factor}', expected one of {', '.join(_KNOWN)}"
            f"{nearest(factor, _KNOWN)}"
        )
    return replace(network, equation=changes[factor](network, value), scalars=None)


def _whole(factor: str, value: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", value):
        raise SpecificationError(f"{factor} is '{value}', expected a whole number")
    return int(value)


# ------------------------------------------------------------------------------ the tree


def _activated(network: Network, value: str) -> Block:
    found = _call("activation", value, {**ACTIVATIONS, "none": {}})
    if all(node.kind == "identity" for node in activations(network.block)):
        raise NetworkError(f"'{network.block}' has no activation that could be another")

    def rule(node: Node) -> Node:
        if not isinstance(node, Activation) or node.kind == "identity":
            return node
        return node.value if found is None else replace(found, value=node.value)

    return _block(network.block, rule)


def activations(block: Block) -> list[Activation]:
    return [node for node in walk(block) if isinstance(node, Activation)]


def _normed(network: Network, value: str) -> Block:
    found = _call("norm", value, {**NORMS, "none": {}})
    if found is not None and not any(isinstance(node, Norm) for node in walk(network.block)):
        form = form_of("prenorm", found.kind)
        block = _reshaped(network, form, "in front of which a norm stands")
        return _block(block, lambda n: replace(found, value=n.value) if isinstance(n, Norm) else n)

    def rule(node: Node) -> Node:
        if not isinstance(node, Norm):
            return node
        if found is None:
            return node.value
        before, options = dict(node.options), dict(found.options)
        # What a norm learns is not its kind: gains and offsets stay where both kinds have them.
        if "bias" in before and "bias" in options and "(" not in value:
            options |= {name: before[name] for name in ("gain", "bias")}
        return Norm(found.kind, node.value, tuple(options.items()))

    return _block(network.block, rule)


def _placed(network: Network, value: str) -> Block:
    if value not in _PLACEMENTS:
        raise SpecificationError(
            f"placement is '{value}', expected one of {', '.join(_PLACEMENTS)}"
            f"{nearest(value, _PLACEMENTS)}; norm=none takes norms away"
        )
    return _reshaped(network, _PLACEMENTS[value], "whose norm could stand elsewhere")


def _scaled(network: Network, value: str) -> Block:
    block = with_scalars(network.block)
    if not network.count.branches:
        raise NetworkError(f"'{network.block}' has no residual branch that could be scaled")
    times = value[:1] in ("*", "/")
    by = parse_scalar(value[1:] if times else value)
    if value[:1] == "/":
        by = Number(1 / by.value) if isinstance(by, Number) and by.value else (
            Arithmetic("/", Number(1.0), by)
        )  # fmt: skip
    factors = [_times(by, each.factor) if times else by for each in multipliers(block)]
    return reshaped(block, [Form(factor=to_text(factor)) for factor in factors])


def _reshaped(network: Network, form: Form, what: str) -> Block:
    """The block with every branch in this form, and every layer under its own name."""
    block, branches = network.block, network.count.branches
    if not branches:
        raise NetworkError(f"'{block}' has no residual branch {what}")
    after = reshaped(block, [form] * branches)
    if _names(named(after)) != _names(reshaped(named(block), [form] * branches)):
        raise NetworkError(
            f"in another form the layers of '{block}' would trade their weights; name them W1, W2"
        )
    return after


def _names(block: Block) -> list[str]:
    return [node.name for node in walk(block) if isinstance(node, WEIGHTS)]


def _block(block: Block, rule: Callable[[Node], Node]) -> Block:
    out = rewrite(block, rule)
    assert isinstance(out, Block)
    return out


def _call(factor: str, value: str, known: Mapping[str, object]) -> Any:
    """The node that ``leaky_relu(slope=0.2)`` describes, None for ``none`` and ``identity``."""
    match = re.fullmatch(r"([^\W\d]\w*)(?:\((.*)\))?", value)
    word, options = match.groups() if match else (value, None)
    if ALIASES.get(word, word) not in known:
        raise SpecificationError(
            f"{factor} is '{value}', expected one of {', '.join(known)}{nearest(word, known)}"
        )
    if word in ("none", "identity"):
        return None
    match parse(f"h = {word}(h, {options})" if options else f"h = {word}(h)").statements:
        case (Update(Activation(value=State()) | Norm(value=State()) as found),):
            return found
    raise SpecificationError(f"{factor} is '{value}', expected a word and its options")


def _times(by: Scalar, factor: Scalar) -> Scalar:
    """Their product, with the number in front: twice 1/sqrt(L) is 2/sqrt(L)."""
    match by, factor:
        case Number(x), Number(y):
            return Number(x * y)
        case Number(x), Arithmetic(("*" | "/") as op, Number(y), right):
            return right if op == "*" and x * y == 1 else Arithmetic(op, Number(x * y), right)
    return Arithmetic("*", by, factor)


# --------------------------------------------------------------------- what stands beside it


def _initialised(network: Network, name: str, value: str) -> Network:
    init = parse_init(value)
    layers = network.layers.weights
    if name:
        wanted = [layer.name for layer in layers if name in layer.aliases]
        bias = [
            f"{x.name}.bias" for x in layers if x.bias and name in {f"{a}.bias" for a in x.aliases}
        ]
        if not wanted + bias:
            names = list(dict.fromkeys(layer.name for layer in layers))
            raise NetworkError(
                f"init.{name} names no weight: the block has {', '.join(names)}"
                f"{nearest(name, names)}"
            )
        inits = {**network.chosen, **dict.fromkeys(wanted + bias, init)}
    else:
        inits = {layer.name: init for layer in layers}
        inits |= {n: each for n, each in network.chosen.items() if n not in inits}
    return replace(network, equation=without_inits(network.block), scalars=None, init=inits)


def _rewritten(network: Network, text: str) -> Network:
    """Another equation at the same sizes, with what stands beside the first that it has too."""
    words = set(re.findall(r"[^\W\d]\w*", text))
    scalars = {n: v for n, v in (network.scalars or {}).items() if n in words}
    bare = replace(network, equation=text, scalars=scalars, init=None, tokens=None, size=None)
    known = {alias for layer in bare.layers.weights for alias in layer.aliases} | {"default"}
    inits = {
        n: i for n, i in network.inits.items() if n in known or n.removesuffix(".bias") in known
    }
    kept = {
        name: getattr(network, name)
        for name, layout in (("tokens", "tokens"), ("size", "images"))
        if layout == bare.layout or (name == "tokens" and bare.layout == "rows")
    }
    return replace(bare, init=inits or None, **kept)
