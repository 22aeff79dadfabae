"""Number formats as data: how far values are from overflow and underflow, and what a cast does.

A binary format has numbers ``(-1)^s 2^(e - p) m``: ``p`` mantissa bits behind the leading one,
exponents ``e`` from ``e_min`` (smallest normal ``2^e_min``) up, below it subnormals down to
``2^(e_min - p)`` (IEEE 754-2019, section 3; float8 after Micikevicius et al., "FP8 formats for deep
learning", arXiv 2209.05433, table 1).

    ulp(x)          2^(max(floor(log2 |x|), e_min) - p)      the gap above |x|, away from 0
    head-room       log2(largest finite / largest magnitude)            binary digits to overflow
    flushed         non-zero, and 0 after the cast: |x| <= 2^(e_min - p - 1)
    lost            non-zero update u with round(w + u) = w

Casts round to nearest, ties to even. Beyond the largest finite number they give inf, except for
float8_e4m3, which has no inf and saturates. Head-room is negative as soon as the magnitude is above
the largest finite number, also where a cast would still round down to it (float16: 65504 to 65520).
All statistics are taken in float32 or wider; NaN stays NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from depthgauge.errors import SpecificationError, nearest
from depthgauge.instruments.rivers import wide

__all__ = [
    "FORMATS",
    "Format",
    "Scaling",
    "Shares",
    "cast",
    "format_named",
    "headroom_bits",
    "lost_updates",
    "relative_distance",
    "scaling_room",
    "shares",
    "ulp",
    "underflow_bits",
]


@dataclass(frozen=True)
class Format:
    """One format. ``mantissa``: bits behind the leading one, ``p``; ``lowest``: exponent of the
    smallest normal number, ``e_min``; ``highest``: exponent of the last binade; ``dtype`` is None
    for tf32, in which nothing is stored."""

    name: str
    dtype: torch.dtype | None
    mantissa: int
    lowest: int
    highest: int
    largest: float
    saturates: bool = False

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.lowest

    @property
    def smallest_subnormal(self) -> float:
        return 2.0 ** (self.lowest - self.mantissa)


def _ieee(name: str, dtype: torch.dtype | None, mantissa: int, bias: int) -> Format:
    """A format whose last exponent is kept for inf and NaN."""
    largest = (2 - 2.0**-mantissa) * 2.0**bias
    return Format(name, dtype, mantissa, 1 - bias, bias, largest)


FORMATS: Final[dict[str, Format]] = {
    format.name: format
    for format in (
        _ieee("float64", torch.float64, 52, 1023),
        _ieee("float32", torch.float32, 23, 127),
        _ieee("tf32", None, 10, 127),
        _ieee("bfloat16", torch.bfloat16, 7, 127),
        _ieee("float16", torch.float16, 10, 15),
        # One mantissa of the last exponent is NaN, the others are numbers: 1.75 * 2^8.
        Format("float8_e4m3", torch.float8_e4m3fn, 3, -6, 8, 448.0, saturates=True),
        _ieee("float8_e5m2", torch.float8_e5m2, 2, 15),
    )
}


def format_named(name: str | Format) -> Format:
    """The format of that name. Raises SpecificationError with the nearest name."""
    if isinstance(name, Format):
        return name
    if name not in FORMATS:
        raise SpecificationError(
            f"the number format is {name!r}, expected one of {', '.join(FORMATS)}"
            f"{nearest(str(name), FORMATS)}"
        )
    return FORMATS[name]


# ------------------------------------------------------------------------------- one number


def headroom_bits(largest_magnitude: float, format: str | Format) -> float:
    """``log2(largest finite / largest_magnitude)``: binary digits until overflow, negative beyond.

    By convention inf for 0 (nothing to overflow), -inf for inf; NaN stays NaN.
    """
    return _digits(format_named(format).largest, abs(largest_magnitude))


def underflow_bits(
    smallest_magnitude: float, format: str | Format, *, subnormal: bool = False
) -> float:
    """``log2(smallest_magnitude / smallest normal)``: binary digits down to where digits get lost,
    or with ``subnormal`` to the smallest number that is not 0; negative below.

    ``smallest_magnitude`` is that of the non-zero values: by convention inf for 0, there being
    none; NaN stays NaN.
    """
    chosen = format_named(format)
    floor = chosen.smallest_subnormal if subnormal else chosen.smallest_normal
    return _digits(abs(smallest_magnitude), floor) if smallest_magnitude else math.inf


def _digits(over: float, under: float) -> float:
    """``log2(over / under)``; the quotient first, which is exact to rounding where it is near 1."""
    if math.isnan(under):
        return math.nan
    if under in (0, math.inf):
        return math.inf if under == 0 else -math.inf
    ratio = over / under if under >= 1 or over < 1 else 0.0  # never overflows
    if 2.0**-900 < ratio < 2.0**900:
        return math.log2(ratio)
    return math.log2(over) - math.log2(under)


# ----------------------------------------------------------------------------------- tensors


def ulp(x: Tensor, format: str | Format) -> Tensor:
    """The gap between |x| and the next number of the format away from 0, in float64, any shape.

    At a power of two the gap towards 0 is half of it. NaN where x is not finite.
    """
    chosen = format_named(format)
    _, exponent = torch.frexp(x.detach().double().abs())  # |x| = m 2^exponent, 1/2 <= m < 1
    exponent = (exponent - 1).clamp_min(chosen.lowest).where(x != 0, chosen.lowest)
    # 2^exponent from its bits: torch.ldexp goes through float32
    binade = ((exponent.clamp_max(1023).long() + 1023) << 52).view(torch.float64)
    return (binade * 2.0**-chosen.mantissa).where(x.isfinite(), math.nan)


def cast(x: Tensor, format: str | Format) -> Tensor:
    """``x`` rounded to the format and back, in float32, or in float64 where ``x`` is.

    From float64 it rounds once; PyTorch's own cast goes through float32.
    """
    chosen = format_named(format)
    x = wide(x.detach())
    if chosen.dtype is not None and x.dtype == torch.float32:
        # Releases of PyTorch differ in what becomes of what is beyond 448: said here.
        kept = x.clamp(-chosen.largest, chosen.largest) if chosen.saturates else x
        return kept.to(chosen.dtype).float()
    if chosen.name == "float64":
        return x
    step = ulp(x, chosen)
    rounded = (x.double() / step).round() * step  # exact but for the rounding: steps are powers
    beyond = rounded.abs() > chosen.largest
    edge = chosen.largest if chosen.saturates else math.inf
    rounded = rounded.where(~beyond, torch.copysign(torch.full_like(rounded, edge), rounded))
    at_inf = edge * x.double().sign() if chosen.saturates else x.double()
    return rounded.where(x.isfinite(), at_inf).where(~x.isnan(), math.nan).to(x.dtype)


class Shares(NamedTuple):
    """Shares of the finite non-zero values: ``near``: in the last two binades below overflow
    (float16: from 16384 to 65504); ``over``: above the largest finite number; ``subnormal``: below
    the smallest normal one and not flushed; ``flushed``: 0 after a cast. ``nonfinite``: share of
    all values. ``values``: how many are finite and not 0."""

    near: float
    over: float
    subnormal: float
    flushed: float
    nonfinite: float
    values: int


def shares(x: Tensor, format: str | Format) -> Shares:
    """Where the values of ``x``, any shape, lie in the format.

    Without a finite non-zero value the shares are 0, or NaN where there are others.
    """
    chosen = format_named(format)
    x = wide(x.detach()).abs()
    finite = x.isfinite()
    lost = 1 - finite.double().mean().item() if x.numel() else 0.0
    values = x[finite & (x > 0)]
    if not values.numel():
        none = math.nan if lost else 0.0
        return Shares(none, none, none, none, lost, 0)

    def share(marks: Tensor) -> float:
        return marks.double().mean().item()

    gone = values.double() <= chosen.smallest_subnormal / 2  # half of it is a tie, 0 is even
    return Shares(
        share((values >= 2.0 ** (chosen.highest - 1)) & (values <= chosen.largest)),
        share(values > chosen.largest),
        share((values < chosen.smallest_normal) & ~gone),
        share(gone),
        lost,
        values.numel(),
    )


def relative_distance(x: Tensor, reference: Tensor) -> float:
    """``|x - reference| / |reference|``, Euclidean norms over all elements, in float64.

    Two zeros are at distance 0, anything else is at inf from zero; NaN where either has NaN or the
    reference is not finite; inf where only ``x`` has overflowed.
    """
    a, b = x.detach().double(), reference.detach().double()
    if not b.numel():
        return 0.0
    scale = b.abs().max().item()
    if not math.isfinite(scale) or bool(a.isnan().any()):
        return math.nan
    if scale == 0:
        return math.inf if bool((a != 0).any()) else 0.0
    error = torch.linalg.vector_norm(a / scale - b / scale)
    return float(error / torch.linalg.vector_norm(b / scale))


def lost_updates(weight: Tensor, update: Tensor, format: str | Format) -> float:
    """The share of non-zero updates that leave their weight, stored in the format, as it was:
    ``round(w + u) = w``. Shapes alike; ``update`` is what is added, with its sign.

    At 1.0 in bfloat16 an update is lost up to 2^-9 downward and 2^-8 upward: the gap towards 0 is
    half of that away from 0. NaN where a weight or an update is not finite; 0 where there is no
    update.
    """
    chosen = format_named(format)
    w, u = cast(weight.double(), chosen), update.detach().double()
    if not bool(w.isfinite().all() & u.isfinite().all()):
        return math.nan
    moved = u != 0
    count = int(moved.sum())
    return int(((cast(w + u, chosen) == w) & moved).sum()) / count if count else 0.0


class Scaling(NamedTuple):
    """``bits``: the largest whole power of two by which all gradients can be multiplied before the
    largest overflows (negative where it has; None where there is no finite non-zero one);
    ``before``: the share of the non-zero ones that a cast makes 0 without scaling; ``flushed``:
    that it still makes 0 with it; ``under``: then still below the smallest normal number."""

    bits: int | None
    before: float
    flushed: float
    under: float


def scaling_room(gradients: Iterable[Tensor], format: str | Format) -> Scaling:
    """What scaling the loss can do (Micikevicius et al., "Mixed precision training", ICLR 2018,
    section 3.2). Gradients of any shapes; one that is not finite makes the shares NaN."""
    chosen = format_named(format)
    given = [wide(g.detach()).abs() for g in gradients]
    tops = [g.max().item() for g in given if g.numel()]
    top = max((t for t in tops if not math.isnan(t)), default=0.0)
    if any(math.isnan(t) for t in tops) or not 0 < top < math.inf:
        unknown = math.nan if any(not math.isfinite(t) for t in tops) else 0.0
        return Scaling(None, unknown, unknown, unknown)
    bits = math.floor(headroom_bits(top, chosen))
    normal = math.ldexp(chosen.smallest_normal, -bits)
    gone = math.ldexp(chosen.smallest_subnormal / 2, -bits)
    count = before = flushed = under = 0
    for g in given:
        found = g[g > 0].double()
        count += found.numel()
        under += int((found < normal).sum())
        before += int((found <= chosen.smallest_subnormal / 2).sum())
        flushed += int((found <= gone).sum())
    return Scaling(bits, before / count, flushed / count, under / count)
