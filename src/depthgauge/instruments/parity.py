"""A module or function of the user's own, compiled, fused or written anew, against the subject in
float64.

    output_error              |y - y*| / |y*| of every floating output, in order
    input_gradient_error      the same of the gradient at every floating tensor of the batch
    parameter_gradient_error  the same of the gradient of every parameter that both have, by name

Names are those of the subject, also of what a wrapper holds: ``depthgauge.instruments.matching``.
States are compared only where the other module calls the same functions in the same order: fused
code has other states, or none that a hook could see, and compiled code would run uncompiled. A
function has no modules and no parameters by name: the gradients are those of the parameters of the
subject that it uses.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthgauge.errors import DepthgaugeError, ModelError
from depthgauge.instruments.arithmetic import Arithmetic, arithmetic_named, own
from depthgauge.instruments.differences import ERRORS, errors, other_functions
from depthgauge.instruments.formats import relative_distance
from depthgauge.instruments.matching import matched, strays
from depthgauge.instruments.runs import Runs
from depthgauge.instruments.subject import Effort, Found, Subject
from depthgauge.trace.admission import unwrapped
from depthgauge.trace.backward import dense, gradients
from depthgauge.trace.batches import call, mapped, tensors
from depthgauge.trace.inventory import Inventory, Renamed, inventory
from depthgauge.trace.total import loss_of
from depthgauge.trace.untouched import untouched

__all__ = ["parity"]


class _Function(nn.Module):
    """A function as a module, which holds nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))


def parity(subject: Subject, effort: Effort, other: nn.Module | Callable[..., Any]) -> Found:
    """Errors of ``other``, run as it is on the subject's batch, against the subject in float64;
    nothing is compared where its outputs have other shapes, and ``not_compared`` says so."""
    if not isinstance(other, nn.Module):
        other = _Function(other)
    found = Found()
    held = inventory(subject.model)
    exact = arithmetic_named("float64")
    note: dict[str, Any] = {"against": _name(other), "reference": "float64"}
    found.notes["parity"] = note
    try:
        model, batch = exact.prepared(subject.model, held, subject.batch)
        wanted = _ends(model, batch, subject.loss, effort.seed, exact, inventory(model))
        theirs = held if isinstance(other, _Function) else matched(held, inventory(other))
        as_it_is = own(theirs, subject.batch)
        ends = _ends(
            other, subject.batch, subject.loss, effort.seed, as_it_is, theirs, wanted.outputs
        )
    except DepthgaugeError as error:
        note["not_compared"] = str(error)
        found.missing = dict.fromkeys(ERRORS, str(error))
        return found
    note["output_error"] = _distances(ends.outputs, wanted.outputs)
    note["input_gradient_error"] = _distances(ends.inputs, wanted.inputs)
    note["parameter_gradient_error"] = _distances(ends.parameters, wanted.parameters)
    note["unmatched_parameters"] = sorted(ends.parameters.keys() ^ wanted.parameters.keys())
    if why := _states(subject, effort, other, theirs, found, note):
        note["compared"] = f"outputs and gradients only: {why}"
        found.missing |= dict.fromkeys(ERRORS, note["compared"])
    else:
        note["compared"] = "states, outputs and gradients"
    return found


def _states(
    subject: Subject,
    effort: Effort,
    other: nn.Module,
    theirs: Inventory,
    found: Found,
    note: dict[str, Any],
) -> str:
    """``""`` and the errors at states, or why these are not compared."""
    if isinstance(other, _Function):
        return "a function has no modules whose states could be followed"
    if unwrapped(other)[1]:
        return "compiled code has no states that a hook sees"
    runs = Runs(subject, effort)
    reference = runs.of(arithmetic_named("float64"))
    seen = runs.of(own(theirs, subject.batch), model=Renamed(other, theirs))
    if reference is None or (seen is None and not runs.strayed):
        return next(iter(runs.why.values()))
    if seen is None:
        differs = strays(inventory(subject.model), theirs)
        return (
            f"{differs}, and states are found by the paths of modules; give its modules the names "
            f"they have in the model that is measured"
            if differs
            else "it does not call the modules and functions that make the states of the model"
        )
    if differs := other_functions(reference.ranges, seen.ranges):
        return f"{differs}, so that states cannot be compared"
    errors(subject, reference, seen, found, note)
    return found.missing.pop("relative_error_state", "")


@dataclass(frozen=True)
class _Ends:
    """What goes into a pass and what comes out of it, by name."""

    outputs: dict[str, Tensor]
    inputs: dict[str, Tensor]
    parameters: dict[str, Tensor]


def _ends(
    model: nn.Module,
    batch: Any,
    loss: Callable[..., Any] | None,
    seed: int,
    arithmetic: Arithmetic,
    held: Inventory,
    expected: Mapping[str, Tensor] | None = None,
) -> _Ends:
    """One pass as the model runs by itself: nothing recorded, nothing uncompiled. Raises ModelError
    where it raises, or where its outputs are not as ``expected``."""
    leaves: list[Tensor] = []

    def given(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x.detach().clone()
        leaves.append(x.detach().clone().requires_grad_())
        return leaves[-1] * 1  # may be written over

    with untouched(held), torch.enable_grad(), warnings.catch_warnings():
        # A compiler looks at the gradients of what it is given, which are no leaves here.
        warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not")
        try:
            with arithmetic.around(model):
                output = call(model, mapped(batch, given))
                floating = ((n, t) for n, t in tensors(output) if t.is_floating_point())
                outputs = {n or "output": t for n, t in floating}
                if expected and (why := _other_outputs(outputs, expected)):
                    raise ModelError(f"{_name(model)}: {why}")
                if loss is None:
                    total = _along(list(outputs.values()), seed)
                else:
                    total = loss_of(loss, output, batch)
                named = [(n, p) for n, p in held.parameters if p.requires_grad]
                back = gradients(total, [*leaves, *(p for _, p in named)])
        except DepthgaugeError:
            raise
        except Exception as error:
            line = str(error).strip().partition("\n")[0]
            raise ModelError(f"{_name(model)} raised {type(error).__name__}: {line}") from error
    names = [name or "input" for name, t in tensors(batch) if t.is_floating_point()]
    inputs = {n: g for n, g in zip(names, back, strict=False) if g is not None}
    pairs = zip(named, back[len(leaves) :], strict=True)
    parameters = {name: dense(g) for (name, _), g in pairs if g is not None}
    return _Ends({n: t.detach() for n, t in outputs.items()}, inputs, parameters)


def _other_outputs(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """``""``, or why nothing of the outputs, or one of them, can be compared with those expected:
    there is none, none of the name, or one of another shape."""
    if not found:
        return "it returned no tensor of floating-point numbers"
    if not found.keys() & expected.keys():
        names, others = (", ".join(map(repr, each)) for each in (found, expected))
        return f"the outputs are called {names}, expected {others}; return them in the same form"
    for name in (name for name in found if name in expected):
        shape, wanted = (tuple(each[name].shape) for each in (found, expected))
        if shape != wanted:
            at = "" if name == "output" else f" at '{name}'"
            return f"the outputs have shape {shape}{at}, expected {wanted}"
    return ""


def _name(model: nn.Module) -> str:
    return repr(model) if isinstance(model, _Function) else type(model).__name__


def _along(outputs: list[Tensor], seed: int) -> Tensor:
    """The outputs along random cotangents of RMS 1, the same numbers in every precision; a single
    number as it is."""
    generator = torch.Generator("cpu").manual_seed(seed)
    total = torch.zeros((), dtype=torch.float64)
    for tensor in outputs:
        if not tensor.requires_grad:
            continue
        draw = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        draw /= (torch.linalg.vector_norm(draw) / math.sqrt(max(draw.numel(), 1))).clamp_min(1e-30)
        draw = draw if tensor.numel() > 1 else torch.ones_like(draw)
        total = total + (tensor * draw.to(tensor)).sum().double().cpu()
    return total


def _distances(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    """Relative distances by name, of what both have in one shape: a gradient may have another."""
    return {
        name: relative_distance(x, wanted[name])
        for name, x in found.items()
        if name in wanted and x.shape == wanted[name].shape
    }
