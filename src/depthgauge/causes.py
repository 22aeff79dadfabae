"""What a measured module does wrong that its curves show and do not name: a sentence each.

From one pass: copies of a layer, attention that begins saturated, norms over positions, an
initial loss that a head makes, weights whose fans were read off a kernel's axes, a loss that does
not see the output. A layer of zeros that the first step wakes is by design, and said so.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from depthgauge.errors import DepthgaugeError
from depthgauge.positions import mixed
from depthgauge.trace.ends import ends
from depthgauge.trace.graph import Graph, Value, numberless
from depthgauge.trace.logits import logits
from depthgauge.trace.roles import Roles
from depthgauge.zeros import zeros

if TYPE_CHECKING:
    from depthgauge.trace.readings import Readings
    from depthgauge.trace.running import Pass

__all__ = ["BLIND", "blind", "causes", "waking"]

#: Attention is saturated where its entropy is below this share of the most that it can have.
_SATURATED: Final = 0.4
#: How far a number may lie from the one that explains it.
_CLOSE: Final = 0.1
#: Times ln(outputs) from which an initial loss is the head's.
_LARGE: Final = 3.0
#: Of how many numbers a tensor is asked whether they are different.
_LOOKED: Final = 64
#: Below this share of the gradient at the output, none of it reaches the states.
BLIND: Final = 1e-4


def causes(model: nn.Module, batch: Any, loss: Any, passed: Pass, readings: Readings) -> list[str]:
    """The sentences, in the order of the pass; ``loss``: what was given, None without one."""
    return [
        *_copies(passed),
        *_kernels(passed),
        *zeros(model, batch, loss, passed),
        *mixed(model, batch, passed.graph, passed.axis),
        *_saturated(passed, readings),
        *_head(passed, readings),
    ]


# --------------------------------------------------------------------------------- weights


def _copies(passed: Pass) -> Iterator[str]:
    """Tensors in one place of several blocks that hold the same numbers and are not shared.

    Blocks are what a list holds, or where none of those are copies what is numbered by its name
    (``l1``, ``block_2``). Constants, zeros and ones among them, begin alike by design; so does what
    is frozen. Vectors are left out: PyTorch's own Transformer draws the matrices of its copies anew
    and no bias.
    """
    drawn = [
        (name, p)
        for name, p in passed.held.parameters
        if p.requires_grad and p.dim() > 1 and p.numel()
    ]
    for what, place in (("blocks", numberless), ("layers", _unnumbered)):
        places: dict[tuple[str, tuple[int, ...]], list[tuple[str, Tensor]]] = defaultdict(list)
        for name, p in drawn:
            if name != (where := place(name)):
                places[where, tuple(p.shape)].append((name, p))
        equal = pairs = 0
        first: tuple[str, str] | None = None
        for group in places.values():
            if len(group) > 1:
                pairs += math.comb(len(group), 2)
                for same in _equal(group):
                    equal += math.comb(len(same), 2)
                    first = first or (same[0], same[1])
        if first is not None:
            yield (
                f"{what} begin as copies: {equal} of {pairs} pairs of drawn weights in one place "
                f"hold the same numbers without being shared, such as '{first[0]}' and "
                f"'{first[1]}'; a layer was copied after it was drawn: draw each copy anew"
            )
            return


def _unnumbered(path: str) -> str:
    """``l*.up_*`` for ``l1.up_2``: numbers in names stand for a place too."""
    return re.sub(r"\d+", "*", path)


def _equal(group: Sequence[tuple[str, Tensor]]) -> Iterator[list[str]]:
    """The names of drawn tensors that hold the same numbers; those whose first and last number
    differ need no closer look."""
    alike: dict[tuple[float, float], list[tuple[str, Tensor]]] = defaultdict(list)
    for row, end in zip(group, ends([x for _, x in group]), strict=True):
        alike[end].append(row)
    for rows in alike.values():
        _, one = rows[0]
        same = [name for name, x in rows if torch.equal(x, one)] if len(rows) > 1 else []
        if len(same) > 1 and _drawn(one):
            yield same


def _drawn(x: Tensor) -> bool:
    """Whether it may have been drawn: no slice of it repeats along an axis, as in a constant and in
    the rates of a state space, and among some of its numbers that are not zero most are different,
    as in an identity's they are not. Few are looked at: a narrow format holds few."""
    if any(n > 1 and bool((x == x.narrow(axis, 0, 1)).all()) for axis, n in enumerate(x.shape)):
        return False
    kept = x[x != 0]
    step = max(1, kept.numel() // _LOOKED)
    some = kept[::step][:_LOOKED]
    return len(set(some.tolist())) > max(1, len(some) // 2)


def _kernels(passed: Pass) -> Iterator[str]:
    """Weights of three axes and more that a product contracts, of the size that PyTorch's Xavier
    gives a convolution's kernel of that shape."""
    held = dict(passed.held.parameters)
    found = []
    for value in passed.graph.values:
        for path, fans in _contracted(passed.graph.values, value):
            p = held.get(path)
            if p is None or p.dim() < 3:
                continue
            std = float(p.detach().double().square().mean().sqrt())
            places = math.prod(p.shape[2:])
            kernel = math.sqrt(2 / ((p.shape[0] + p.shape[1]) * places))
            right = math.sqrt(2 / sum(fans))
            if abs(std / kernel - 1) < _CLOSE and abs(kernel / right - 1) > 3 * _CLOSE:
                found.append((path, tuple(p.shape), std, right, fans))
    if found:
        path, shape, std, right, fans = found[0]
        yield (
            f"fans: {len(found)} weights that einsum contracts have the size that Xavier gives a "
            f"convolution's kernel: '{path}' of shape {shape} has a standard deviation of "
            f"{std:.3g}, where the axes that are contracted have fans {fans[0]} and {fans[1]} and "
            f"ask for {right:.3g} ({right / std:.2g} times): draw it as a matrix"
        )


def _contracted(values: Sequence[Value], value: Value) -> Iterator[tuple[str, tuple[int, int]]]:
    """Of an einsum of data and one parameter: its path, and its fans by the axes."""
    if value.name != "einsum" or not value.args or not isinstance(value.args[0], str):
        return
    left, arrow, right = value.args[0].replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(value.inputs) or "." in left:
        return
    for term, i in zip(terms, value.inputs, strict=True):
        if values[i].path and not values[i].data and len(values[i].shape) == len(term):
            sizes = dict(zip(term, values[i].shape, strict=True))
            others = {axis for other in terms if other is not term for axis in other}
            into = [sizes[axis] for axis in term if axis in others and axis not in right]
            out = [sizes[axis] for axis in term if axis in right and axis not in others]
            if into and out:
                yield values[i].path, (math.prod(into), math.prod(out))


# ------------------------------------------------------------------------------- attention


def _saturated(passed: Pass, readings: Readings) -> Iterator[str]:
    """Attention whose probabilities are nearly one at the start, and the number that is missing."""
    every = list(readings.attention.items())
    sharp = [(i, n) for i, n in every if n[2] < _SATURATED]
    if not sharp:
        return
    index, (std, largest, entropy) = sharp[0]
    graph = passed.graph
    path = graph.calls[graph.values[index].call].path or "the model"
    said = (
        f"attention begins saturated in {len(sharp)} of {len(every)} places ('{path}'): its logits "
        f"have a standard deviation of {std:.3g}, the largest probability is {largest:.2g} in the "
        f"mean, the entropy {entropy:.2g} of what is possible"
    )
    yield f"{said}; {_too_sharp(graph, index, std)}"


def _too_sharp(graph: Graph, index: int, std: float) -> str:
    """Whether the number in front of the products is missing or is another one than 1/sqrt(d), as
    the graph has it, or queries and keys are too large."""
    head = _head_size(graph.values, graph.values[index])
    number = logits(Roles(graph), {}, [index]).number
    if head and abs(std / math.sqrt(head) - 1) < 3 * _CLOSE and abs(number - 1) < _CLOSE:
        return f"that is sqrt({head}), the features of a head: the factor 1/sqrt({head}) is missing"
    fused = graph.values[index].name == "scaled_dot_product_attention"
    if fused and head and number * math.sqrt(head) > 1 + 3 * _CLOSE:
        return f"its scale was given as {number:.3g}, and 1/sqrt({head}) is {head**-0.5:.3g}"
    return "queries and keys are too large for their product"


def _head_size(values: Sequence[Value], value: Value) -> int:
    """The features of a head: the length of the products that the logits are; 0 if not found."""
    for _ in range(16):
        if value.name in ("matmul", "bmm", "scaled_dot_product_attention"):
            return int(values[value.inputs[0]].shape[-1])
        if not value.inputs:
            return 0
        value = values[max(value.inputs, key=lambda i: values[i].data)]
    return 0


# -------------------------------------------------------------------------------- the loss


def _output(passed: Pass, readings: Readings) -> tuple[Value, dict[str, float]] | None:
    """The first output that numbers were read of, and those."""
    for i in passed.graph.outputs:
        value = passed.graph.values[i]
        found: dict[str, float] = {}
        for part, numbers in readings.found(readings.place(i), "state", "gradient"):
            found |= {
                f"{part} {name}": float(x)
                for name, x in zip(readings.names[part], numbers, strict=True)
            }
        if found and math.prod(value.shape) > 1:
            return value, found
    return None


def _head(passed: Pass, readings: Readings) -> Iterator[str]:
    """A loss that begins far above even odds, because of what the head's weights are."""
    found, start = _output(passed, readings), passed.total
    if found is None or not passed.cotangent.startswith("the gradient of the loss given"):
        return
    value, numbers = found
    outputs, size = value.shape[-1] if value.shape else 0, numbers.get("state rms", math.nan)
    if outputs < 2 or not math.isfinite(start) or not start > _LARGE * math.log(outputs):
        return
    # What a cross entropy of Gaussian logits can be: a squared error would be their square.
    if start > math.log(outputs) + 1.5 * size * math.sqrt(2 * math.log(outputs)):
        return
    said = (
        f"the loss begins at {start:.3g}, and a cross entropy over {outputs} outputs at even odds "
        f"is ln {outputs} = {math.log(outputs):.3g}: the outputs have an RMS of {size:.3g}"
    )
    weights = dict(passed.held.parameters)
    made = _carried(passed, value)
    heads = [p for i in made.inputs if (p := passed.graph.values[i].path) in weights]
    if made.kind == "weights" and heads and weights[heads[0]].dim() == 2:
        name, weight = heads[0], weights[heads[0]]
        width = weight.shape[1]
        std = float(weight.detach().double().square().mean().sqrt())
        said += (
            f"; '{name}' has a standard deviation of {std:.3g}, and {width}^-1/2 = "
            f"{width**-0.5:.3g} keeps them at that of its input"
        )
    yield said


def blind(passed: Pass, readings: Readings) -> str:
    """``""``, or that a loss does not see the normed output that it is of: the norm takes the
    gradient away, as of the mean of its squares."""
    found, last = _output(passed, readings), _behind(passed)
    if found is None or last is None or readings.place(last) not in readings.gradients:
        return ""
    names = readings.names["gradient"]
    if "rms" not in names:
        return ""
    here = float(dict(readings.found(readings.place(last), "gradient"))["gradient"][
        names.index("rms")
    ])  # fmt: skip
    there = found[1].get("gradient rms", math.nan)
    if not 0 < here < BLIND * there:
        return ""
    return (
        f"the loss does not see the output: the norm in front of it passes {here / there:.1g} "
        f"of the loss's gradient on, since the loss hardly changes with what a norm leaves "
        f"(the mean, or the mean square, of a normed output is constant); give the loss that "
        f"it trains on"
    )


def _behind(passed: Pass) -> int | None:
    """The value that a norm made the output of."""
    if not passed.graph.outputs:
        return None
    value = _carried(passed, passed.graph.values[passed.graph.outputs[0]])
    return value.inputs[0] if value.kind == "norm" and value.inputs else None


def _carried(passed: Pass, value: Value) -> Value:
    """What a value is but for its shape."""
    while value.inputs and value.kind in ("shape", "drop"):
        value = passed.graph.values[value.inputs[0]]
    return value


# ---------------------------------------------------------------------------------- zeros


def waking(model: nn.Module, batch: Any, loss: Any) -> list[str]:
    """Weights of zeros whose own gradient is not zero: the first step makes them something else."""
    zeros = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and p.dim() > 1 and p.numel() and not bool(p.detach().any())
    ]
    if not zeros:
        return []
    from depthgauge.recipes.first_steps import first_gradients

    try:
        none = first_gradients(model, batch, loss, steps=1)
    except DepthgaugeError:
        return []
    return [name for name in zeros if none and not none[0].get(name, True)]
