"""Products of the loss's Hessian with vectors over all trainable parameters.

Index legend: ``N`` numbers in all trainable parameters, in the model's order; ``v``: ``(N,)``.

    double backward      H v = d<g, v>/dw, on the graph of one pass (Pearlmutter 1994)
    finite difference    H v ~ (g(w + e v) - g(w - e v)) / 2e, |v| = 1, on a copy in float64

The second is for networks in which an operation's backward has no derivative (a fused kernel, a
function once differentiable), or one that is wrong: where a hand-written function stands in the
graph, the two are compared once along a random direction. (Along the gradient, in which a network
is stiffest, kinks of ReLU weigh more and a missing term less.) ``e = u^(1/3) max(1, |w|)`` with u
the unit roundoff: the truncation error grows like e^2 and the rounding error like u/e.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.overrides import has_torch_function

from depthgauge.errors import ModelError, NetworkError
from depthgauge.instruments.modes import Widest
from depthgauge.instruments.subject import Run
from depthgauge.network.chain import Chain
from depthgauge.trace.backward import dense, gradients, within_modes
from depthgauge.trace.batches import mapped
from depthgauge.trace.replaced import restored

__all__ = [
    "Hessian",
    "converted",
    "duplicate",
    "flat",
    "hessian",
    "nodes_of",
    "trainable",
    "widened",
]

DOUBLE: Final = "double backward"
DIFFERENCE: Final = "finite difference"
#: How far the two products may be apart along a random direction, by the type of the differences.
#: Of models up to 24 blocks in float32 and float64 they are, where the function is right, 5e-7 at
#: the usual size of weights and mostly below 6e-4 at twice that; where it lacks a term 0.09 to 0.5,
#: and at a tenth of the usual size 9e-4 and more.
_APART: Final = {torch.float64: 1e-3, torch.float32: 0.05}


@dataclass(frozen=True)
class Hessian:
    """The loss and its gradient ``(N,)`` at one point, and ``v -> H v``. ``product`` says how it is
    taken, ``reason`` why not by double backward, ``step`` how far off the two gradients are;
    ``reached``: which parameters a gradient reaches at all; ``apart``: how far a product by double
    backward was found to be from a finite difference, relative to it."""

    loss: float
    gradient: Tensor
    times: Callable[[Tensor], Tensor]
    product: str
    reason: str = ""
    step: float | None = None
    dtype: torch.dtype = torch.float64
    reached: tuple[bool, ...] = ()
    apart: float | None = None


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Each once, in the model's order."""
    return [p for p in model.parameters() if p.requires_grad and p.numel()]


def flat(parts: Sequence[Tensor]) -> Tensor:
    """``(N,)``, on the first one's device, in the widest of their types."""
    kind = torch.float64 if any(p.dtype == torch.float64 for p in parts) else torch.float32
    return torch.cat([p.detach().reshape(-1).to(parts[0].device, kind) for p in parts])


def _parts(v: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    pieces = torch.split(v, [p.numel() for p in like])
    return [x.reshape(p.shape).to(p) for x, p in zip(pieces, like, strict=True)]


def duplicate(model: nn.Module) -> nn.Module:
    """A copy that shares nothing with the model; of a forward that was compiled on a module the
    copy has what is inside, of its own. Raises NetworkError where there can be none."""
    try:
        copied = copy.deepcopy(model)
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        raise NetworkError(
            f"the model cannot be copied ({type(error).__name__}: {line}), so it cannot be moved "
            f"without touching it; make it work with copy.deepcopy"
        ) from error
    for one, other in zip(model.modules(), copied.modules(), strict=False):
        restored(one, other)
    return copied


def converted(model: nn.Module, batch: Any, kind: torch.dtype) -> tuple[nn.Module, Any]:
    """A copy of the model, and the batch, whose real numbers are ``kind``."""

    def wide(x: Tensor) -> Tensor:
        return x.to(kind) if x.is_floating_point() else x

    return duplicate(model).to(kind), mapped(batch, wide)


def widened(run: Run) -> Run:
    """``run`` of copies in a wider type, in which the model's own casts to narrower ones are casts
    to that type: the precision's reference does the same."""

    @contextmanager
    def wider(model: nn.Module | None = None, batch: Any = None) -> Iterator[Chain]:
        assert model is not None
        double = any(p.dtype == torch.float64 for p in model.parameters())
        mode = Widest(model, torch.float64 if double else torch.float32)
        with mode.watching(), run(model, batch) as chain:
            yield chain

    return wider


@contextmanager
def hessian(run: Run, model: nn.Module, batch: Any, wrong: str = "") -> Iterator[Hessian]:
    """The Hessian at the model's weights, while the block lasts; the model is as it was after it.
    ``wrong``: why double backward is not to be believed, where that was found at other weights.

    Raises NetworkError where no gradient reaches a parameter, or no product can be had.
    """
    if wrong:
        yield _difference(run, model, batch, wrong)
        return
    with run(model, batch) as chain:
        parameters = trainable(model)
        total = chain.total()
        if not total.requires_grad:
            raise NetworkError("the loss does not depend on a trainable parameter")
        found, why = _double(total, parameters)
        custom = [] if found is None else _written_by_hand(total)
        if found is not None and not custom:
            yield found
            return
        along = None if found is None else _along(found)
        del chain, total, found  # one graph at a time
    unchecked, apart = "", None
    if along is not None:
        why, unchecked, apart = _compared(along, run, model, batch, custom)
    if why:
        yield dataclasses.replace(_difference(run, model, batch, why), apart=apart)
        return
    with run(model, batch) as chain:
        found, _ = _double(chain.total(), trainable(model))
        assert found is not None
        yield dataclasses.replace(found, reason=unchecked, apart=apart)


def _double(total: Tensor, parameters: list[nn.Parameter]) -> tuple[Hessian | None, str]:
    """The Hessian on the graph of ``total``, or why it is not there."""
    try:
        found = _back([total], parameters, [torch.ones_like(total)], twice=True)
        reached = tuple(g is not None for g in found)
        first = [
            torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)
        ]
        if any(
            n.name() == "torch::autograd::Error" for n in nodes_of(first)
        ):  # which no pass reaches
            return None, "a function in it is marked as once differentiable"
        live = [i for i, g in enumerate(first) if g.requires_grad]

        def times(v: Tensor) -> Tensor:
            if not live:
                return torch.zeros_like(v)
            along = _parts(v, parameters)
            products = _back([first[i] for i in live], parameters, [along[i] for i in live])
            pairs = zip(parameters, products, strict=True)
            return flat([torch.zeros_like(p) if x is None else x for p, x in pairs]).to(v)

        gradient = flat(first)
        times(gradient)
    except RuntimeError as error:
        return None, str(error).strip().partition("\n")[0]
    loss = float(total.detach())
    return Hessian(loss, gradient, times, DOUBLE, dtype=gradient.dtype, reached=reached), ""


def _back(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    twice: bool = False,
) -> Sequence[Tensor | None]:
    """Gradients at leaves, on a graph that stays; in the modes that are active, if there are."""
    if has_torch_function(tuple(outputs)):
        return within_modes(outputs, cotangents, inputs, keep=True, twice=twice)
    return torch.autograd.grad(
        outputs, inputs, cotangents, retain_graph=True, create_graph=twice, allow_unused=True
    )


def _written_by_hand(total: Tensor) -> list[str]:
    """Names of the ``autograd.Function``s in a graph, whose double backward may be missing without
    a word: what a backward does to numbers that were not saved as tensors leaves no trace."""
    by_hand = {type(n).__name__ for n in nodes_of([total]) if isinstance(n, BackwardCFunction)}
    return sorted(name.removesuffix("Backward") for name in by_hand)


def nodes_of(tensors: Sequence[Tensor]) -> Iterator[Node]:
    """Every node of the graph that made these tensors."""
    seen: set[Node] = set()
    todo = [t.grad_fn for t in tensors if t.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            yield node
            todo += [n for n, _ in node.next_functions if n is not None]


def _along(found: Hessian) -> tuple[Tensor, Tensor]:
    """A random direction, and its product."""
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randn(found.gradient.numel(), generator=generator, dtype=torch.float32)
    unit = (drawn / torch.linalg.vector_norm(drawn)).to(found.gradient)
    return unit, found.times(unit)


def _compared(
    along: tuple[Tensor, Tensor], run: Run, model: nn.Module, batch: Any, custom: Sequence[str]
) -> tuple[str, str, float | None]:
    """Why double backward is not to be believed, by a finite difference in one direction, or
    ``""``; why that could not be seen, or ``""``; and how far apart the two are."""
    unit, mine = along
    names = f"{', '.join(custom)}, written by hand,"
    try:
        found = _difference(run, model, batch, "")
        other = found.times(unit.double())
    except (ModelError, NetworkError, RuntimeError) as error:
        line = str(error).strip().partition("\n")[0]
        return "", f"the second derivative of {names} was not checked: {line}", None
    rest = torch.linalg.vector_norm(mine.to(other) - other)
    apart = float(rest / torch.linalg.vector_norm(other)) if bool(rest > 0) else 0.0
    if not apart > _APART[found.dtype]:
        return "", "", apart
    why = (
        f"the second derivative of {names} is wrong or missing: along a random direction its "
        f"product differs from a finite difference by {apart:.2g} of it"
    )
    return why, "", apart


def _difference(run: Run, model: nn.Module, batch: Any, why: str) -> Hessian:
    """In float64, in float32 where the model cannot run in it."""
    try:
        return _differences(run, *converted(model, batch, torch.float64), why)
    except (ModelError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0]
        if any(p.dtype == torch.float64 for p in trainable(model)):
            raise
    narrow = f"; in float32, since it does not run in float64: {first}"
    why = why if narrow in why else f"{why}{narrow}"
    return _differences(run, *converted(model, batch, torch.float32), why)


def _differences(run: Run, model: nn.Module, batch: Any, why: str) -> Hessian:
    """``model`` is a copy, and is moved."""
    parameters = trainable(model)
    here = [p.detach().clone() for p in parameters]
    size = float(torch.linalg.vector_norm(flat(here)))
    step = (torch.finfo(here[0].dtype).eps / 2) ** (1 / 3) * max(1.0, size)

    reached: tuple[bool, ...] = ()

    def gradient(offset: Sequence[Tensor] | None) -> tuple[float, Tensor]:
        nonlocal reached
        for i, p in enumerate(parameters):
            p.data.copy_(here[i] if offset is None else here[i] + offset[i])
        with run(model, batch) as chain:
            total = chain.total()
            found = gradients(total, list(parameters))
            reached = tuple(g is not None for g in found)
            pairs = zip(parameters, found, strict=True)
            each = [torch.zeros_like(p) if g is None else dense(g) for p, g in pairs]
            return float(total.detach()), flat(each)

    def times(v: Tensor) -> Tensor:
        length = float(torch.linalg.vector_norm(v))
        if not length > 0:
            return torch.zeros_like(v)
        offset = _parts(v * (step / length), parameters)
        ahead, behind = gradient(offset)[1], gradient([-x for x in offset])[1]
        product: Tensor = (ahead - behind).to(v) * (length / (2 * step))
        return product

    loss, at = gradient(None)
    return Hessian(loss, at, times, DIFFERENCE, why, step, at.dtype, reached)
