"""The loss of a network as a function of the sizes of its tensors, and rounds of a search in them.

    W_k -> s_k W_k,   s_k > 0 for each tensor k,  from s = 1 on

for initialisers that search the sizes on a batch. A search is repeated from what it found until it
no longer gains, and what the last round found is not taken: an audit runs that round again, from
the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from depthgauge.errors import NetworkError
from depthgauge.instruments.hessian import converted, duplicate
from depthgauge.network.chain import twice_differentiable
from depthgauge.trace.admission import unwrapped
from depthgauge.trace.batches import tensors
from depthgauge.trace.forward import quiet
from depthgauge.trace.total import loss_of

__all__ = [
    "Loss",
    "Reached",
    "Round",
    "Settled",
    "Sized",
    "searched",
    "settled",
    "sized",
]

Loss = Callable[..., Any]
_HALVES: Final = (torch.float16, torch.bfloat16)
#: Rounds of a search, at most.
_ROUNDS: Final = 20


@dataclass(frozen=True)
class Sized:
    """A copy of a network, ready to be evaluated at other sizes of its tensors ``names``."""

    model: nn.Module
    batch: Any
    loss: Loss | None
    parameters: Mapping[str, Tensor]
    names: tuple[str, ...]

    def at(self, sizes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All parameters, those of ``sizes`` multiplied, on the graph of the sizes."""
        return {
            name: value * sizes[name] if name in sizes else value.clone().requires_grad_()
            for name, value in self.parameters.items()
        }

    def of(self, parameters: Mapping[str, Tensor], batch: Any) -> Tensor:
        """The loss with these parameters; buffers stay as they are."""
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        held = {**buffers, **parameters}
        if isinstance(batch, Mapping):
            output = functional_call(self.model, held, (), dict(batch))
        else:
            given = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
            output = functional_call(self.model, held, given)
        return loss_of(self.loss, output, batch) if self.loss is not None else _own(output)


def _own(output: Any) -> Tensor:
    """The loss among the outputs; else the cross-entropy of the first real output with labels drawn
    once for all: its last axis are the classes, of images the second."""
    real = [(n, t) for n, t in tensors(output) if t.is_floating_point() and t.requires_grad]
    for name, tensor in real:
        if name.rpartition(".")[2] == "loss" and tensor.numel() == 1:
            return tensor.sum()
    made = next((t for _, t in real if t.dim() > 1), None)
    if made is None or (classes := made.shape[1 if made.dim() == 4 else -1]) < 2:
        shapes = ", ".join(str(tuple(t.shape)) for _, t in real) or "none on the graph"
        raise NetworkError(
            f"the outputs are {shapes}, expected (examples, classes) for labels that are drawn; "
            f"give a loss to the function that makes the recipe"
        )
    rows = (made.movedim(1, -1) if made.dim() == 4 else made).flatten(0, -2)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (len(rows),), generator=generator).to(rows.device)
    return F.cross_entropy(rows, labels)


@contextmanager
def sized(
    model: nn.Module, batch: Any, loss: Loss | None, matrices: bool, normalised: bool = False
) -> Iterator[Sized]:
    """The network in evaluation mode, its half-precision numbers in float32. ``matrices``: of
    tensors of two axes and more alone; ``normalised``: batch norms by their batch. Raises
    NetworkError where a derivative does not exist, or all tensors are zero."""
    inner, _ = unwrapped(model)
    half = any(p.dtype in _HALVES for p in inner.parameters())
    copied, given = converted(inner, batch, torch.float32) if half else (duplicate(inner), batch)
    copied.eval()
    for module in copied.modules() if normalised else ():
        if isinstance(module, _BatchNorm):
            module.train()
    held = {n: p.detach() for n, p in copied.named_parameters() if p.requires_grad}
    real = {n: p for n, p in held.items() if p.dim() > 1 or not matrices}
    names = tuple(n for n, p in real.items() if bool(p.any()))
    if not names:
        raise NetworkError(
            "every tensor is zero or frozen, and a search in sizes multiplies tensors; start from "
            "another initialisation"
        )
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with quiet(), twice_differentiable(), torch.enable_grad():
            yield Sized(copied, given, loss, held, names)
    except (NotImplementedError, RuntimeError) as error:
        line = str(error).strip().partition("\n")[0]
        raise NetworkError(
            f"a search in sizes needs derivatives of the gradient, and there is none: {line}"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@dataclass(frozen=True)
class Reached:
    """What a search minimises: by how much a constraint is missed (0: kept), and the value; less is
    better, in this order."""

    missed: float
    value: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.missed) and math.isfinite(self.value)

    def before(self, other: Reached) -> bool:
        """Whether it is better; what is not finite is not."""
        return self.finite and (self.missed, self.value) < (other.missed, other.value)

    def gained(self, start: Reached, share: float) -> bool:
        """Whether it is better than ``start`` by more than this share."""
        if start.missed:
            return self.missed < (1 - share) * start.missed
        return not self.missed and self.value < start.value - share * abs(start.value)


@dataclass(frozen=True)
class Round:
    """One search: where it started, the best that it met, and the sizes there."""

    start: Reached
    best: Reached
    sizes: Mapping[str, float]


#: What is added to the logarithms of sizes, from the slopes there.
Move = Callable[[Mapping[str, float]], Mapping[str, float]]


def searched(
    names: Sequence[str],
    steps: int,
    evaluate: Callable[[Mapping[str, Tensor]], tuple[Reached, Tensor]],
    moves: Sequence[Move],
    least: Mapping[str, float],
    scales: Sequence[float] = (),
) -> Round:
    """So many steps of each of ``moves``, each from the best before it, the first from size 1 or,
    where that is better, from the best of ``scales``, one size for all tensors.

    ``evaluate``: from the logarithms of sizes to what is reached and the number to go down.
    ``least``: the smallest size of each tensor.
    """
    kept: Mapping[str, float] = dict.fromkeys(names, 0.0)
    best = start = None
    for scale in (1.0, *scales):
        same = dict.fromkeys(names, math.log(scale))
        value, _ = evaluate(_leaves(same))
        if best is None:
            best = start = value
        elif value.before(best):
            best, kept = value, same
    for move in moves:
        logs = kept
        for step in range(steps + 1):
            leaves = _leaves(logs)
            value, target = evaluate(leaves)
            if best is None or value.before(best):
                best, kept = value, logs
            if not value.finite or step == steps:
                break
            found = torch.autograd.grad(
                target, list(leaves.values()), allow_unused=True, materialize_grads=True
            )
            added = move(dict(zip(leaves, map(float, found), strict=True)))
            floors = {name: math.log(least.get(name, 1e-30)) for name in names}
            logs = {name: max(x + added[name], floors[name]) for name, x in logs.items()}
    assert best is not None
    assert start is not None
    return Round(start, best, {name: math.exp(x) for name, x in kept.items()})


def _leaves(logs: Mapping[str, float]) -> dict[str, Tensor]:
    return {
        name: torch.tensor(x, dtype=torch.float64, requires_grad=True) for name, x in logs.items()
    }


@dataclass(frozen=True)
class Settled:
    """The first round of a search, the last, and whether that gained nothing to speak of."""

    first: Round
    last: Round
    still: bool


def settled(
    model: nn.Module,
    search: Callable[[Mapping[str, float]], Round],
    share: float,
    floor: float = 0.0,
) -> Settled:
    """Multiply the model's tensors by what each round finds, until one gains no more than
    ``share``, whose sizes are not taken. ``floor``: the smallest size of a tensor, of all rounds
    together; ``search`` is given that of each in its round. Raises NetworkError where nothing is
    finite from the start."""
    named = dict(unwrapped(model)[0].named_parameters())
    whole: dict[str, float] = {}
    first = last = search(whole)
    if not first.start.finite:
        raise NetworkError(
            "the loss of this batch or its derivatives are not finite, and no search begins there; "
            "start from an initialisation that keeps the state in range"
        )
    for _ in range(_ROUNDS):
        if not last.best.gained(last.start, share):
            return Settled(first, last, True)
        with torch.no_grad():
            for name, size in last.sizes.items():
                named[name].mul_(size)
                whole[name] = whole.get(name, 1.0) * size
        last = search({name: floor / size for name, size in whole.items() if floor})
    return Settled(first, last, not last.best.gained(last.start, share))
