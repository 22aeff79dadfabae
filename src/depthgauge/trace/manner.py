"""What is known of a function of PyTorch before it is called, and what its arguments say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from torch import Tensor

from depthgauge.trace.graph import Ref, Value
from depthgauge.trace.operations import kind_of, plain_name

__all__ = [
    "FUSED", "MANNERS", "SUMMED", "Manner", "axis_of", "factors_of", "in_place", "manner_of",
    "overwrites", "summed",
]  # fmt: skip

#: A sum that makes one of its terms itself.
FUSED: Final = ("addmm", "baddbmm", "addbmm", "addmv", "addr", "addcmul", "addcdiv")
#: What adds up a stack, if that is what it is given.
SUMMED: Final = ("sum", "mean", "einsum")
_LASTING: Final = ("method_descriptor", "wrapper_descriptor", "builtin_function_or_method")
#: Those that have written to their input only if they say so.
_OPTIONAL: Final = ("elu", "leaky_relu", "celu", "rrelu", "threshold")


class Manner(NamedTuple):
    """What is known of a function before it is called: its plain name and kind, whether anything is
    to be done before it runs, whether it may write to its first tensor, and whether its name says
    that it does."""

    name: str
    kind: str
    first: bool
    writes: bool
    in_place: bool


#: Functions met so far.
MANNERS: dict[Any, Manner] = {}


def manner_of(function: Any) -> Manner:
    """What is known of a function; kept for those that live as long as PyTorch does."""
    name = plain_name(function)
    own = getattr(function, "__name__", "")
    operator = own.startswith("__i") and name != own  # __iadd__
    trailing = own.endswith("_") and not own.endswith("__")
    writes = operator or trailing or name in ("setitem", "data", "embedding")
    kind = kind_of(name)
    first = writes or kind in ("sum", "act") or name in (*FUSED, *SUMMED, "requires_grad")
    found = Manner(name, kind, first, writes, trailing)
    # Properties come as a new object each time, and lambdas would be held for ever.
    lasts = getattr(function, "__module__", None) is not None or type(function).__name__ in _LASTING
    if lasts and len(MANNERS) < 4096:
        MANNERS[function] = found
    return found


def overwrites(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a function that may write to its first tensor does (an embedding with a largest norm
    writes to its table)."""
    if name == "embedding":
        bounded = len(args) > 3 and args[3] is not None
        return len(args) > 1 and (bounded or "max_norm" in kwargs)
    return bool(args) and isinstance(args[0], Tensor) and (name != "data" or len(args) == 2)


def factors_of(name: str, args: Any, kwargs: Any) -> tuple[float, float] | None:
    """The factors of the two terms of a sum; None where the function does more than add two."""
    alpha = kwargs.get("alpha", 1)
    match name:
        case "add" | "iadd":
            return 1.0, alpha
        case "sub" | "subtract" | "isub":
            return 1.0, -alpha
        case "rsub":
            return -alpha, 1.0
        case "lerp":
            weight = args[2] if len(args) > 2 else kwargs.get("weight")
            return None if isinstance(weight, Tensor) else (1 - weight, weight)
        case "addmm" | "addmv" | "addr" | "baddbmm" | "addbmm" | "addcmul" | "addcdiv":
            return None
    return 1.0, 1.0


def in_place(manner: Manner, args: Any, kwargs: Mapping[str, Any]) -> bool:
    if manner.in_place or kwargs.get("inplace"):
        return True
    return manner.name in _OPTIONAL and args[-1] is True


def axis_of(args: tuple[Any, ...], options: Mapping[str, Any], default: int | None) -> int | None:
    """The one axis among a function's arguments: the second one, or the one called dim."""
    for arg in (*args[1:2], options.get("dim"), options.get("axis")):
        if isinstance(arg, tuple) and len(arg) == 1:
            arg = arg[0]
        if isinstance(arg, int) and not isinstance(arg, bool | Ref):
            return arg
    return default


def summed(values: list[Value], inputs: list[int], shown: list[Any]) -> list[int]:
    """What ``einsum("k,k...->...", numbers, stack)`` adds up with constant or learned numbers."""
    equation = next((a for a in shown if isinstance(a, str)), "")
    left, arrow, right = equation.replace(" ", "").partition("->")
    subscripts = left.split(",")
    if not arrow or len(subscripts) != 2 or len(inputs) != 2:
        return []
    for which, other in ((0, 1), (1, 0)):
        stack, numbers = values[inputs[which]], subscripts[other]
        if stack.name != "stack" or values[inputs[other]].data or len(numbers) != 1:
            continue
        axis = axis_of(stack.args, stack.options, 0)
        letters = subscripts[which].replace("...", "." * (len(stack.shape) - 1))
        if axis is not None and letters[axis % len(stack.shape)] == numbers not in right:
            return list(stack.inputs)
    return []
