"""Numbers that a recipe is given: each is looked at before anything is made of it."""

from __future__ import annotations

import math
from numbers import Real

from depthgauge.equation.functions import SYMBOLS
from depthgauge.errors import EquationError, NetworkError, UsageError
from depthgauge.network.spec import whole_number
from depthgauge.recipes.rules import number_of

__all__ = ["gain_text", "number", "real_number", "whole"]


def real_number(value: object) -> float | None:
    """``value`` as a float; None for a bool, what is not finite, and everything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    found = float(value)
    return found if math.isfinite(found) else None


def number(
    name: str,
    value: object,
    above: float = 0.0,
    below: float = math.inf,
    least: float = -math.inf,
    error: type[UsageError] = NetworkError,
) -> float:
    """A finite number above ``above`` (or, where ``least`` is given, from there on) and below
    ``below``. Raises NetworkError, or what is asked for."""
    found = real_number(value)
    if found is None or not (found >= least if least > -math.inf else found > above):
        found = None
    if found is None or not found < below:
        side = f"of at least {least:g}" if least > -math.inf else f"above {above:g}"
        side += f" and below {below:g}" if below < math.inf else ""
        raise error(f"{name} is {value!r}, expected a finite number {side}")
    return found


def whole(name: str, value: object, least: int = 1, error: type[UsageError] = NetworkError) -> int:
    """A whole number from ``least`` on. Raises NetworkError, or what is asked for."""
    found = whole_number(value)
    if found is None or found < least:
        raise error(f"{name} is {value!r}, expected a whole number of at least {least}")
    return found


def gain_text(value: object) -> str:
    """A gain as the language has it, ``"sqrt(2)"`` or a number. Raises NetworkError for what is no
    formula of a number above 0."""
    expected = 'expected a number above 0, or a text such as "sqrt(2)"'
    if not isinstance(value, str):
        if (found := real_number(value)) is None or found <= 0:
            raise NetworkError(f"gain is {value!r}, {expected}")
        return f"{found!r}"
    try:
        found = number_of(value, dict.fromkeys(SYMBOLS, 2.0))
    except EquationError as error:
        raise NetworkError(f"gain is {value!r}, {expected} ({error.message})") from None
    if not 0 < found < math.inf:
        raise NetworkError(f"gain is {value!r}, {expected}")
    return value
