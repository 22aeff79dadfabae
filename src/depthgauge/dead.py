"""Layers all of whose units are dead, and whether anything that tells examples apart gets past.

Dead: every unit is 0 with derivative 0 for the whole batch (``dead_fraction`` 1). It cuts where no
gradient comes back from the state after it to the state before it; where no gradient was taken, or
none came so far, where the state after it is 0 or the same for all examples. Else a path goes
around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from depthgauge.sites import ALIKE, ROUNDINGS, Site

if TYPE_CHECKING:
    from depthgauge.profile import Profile

__all__ = ["DeadLayer", "dead_layers", "rounding", "said"]

#: What falls below this share of itself in one step of the stream is gone.
_GONE: Final = 1e-4
#: What rounding makes is at most this share of what surely tells two states apart.
_SURE: Final = 0.01
#: Spacing of the numbers above 1.
_EPS: Final = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}


@dataclass(frozen=True)
class DeadLayer:
    """One activation, or a state that is 0 without one (``zero``). ``seed``: its place on the seed
    axis; ``cut``: nothing goes around it, None where that cannot be seen."""

    site: Site
    seed: int
    cut: bool | None
    zero: bool = False


def dead_layers(profile: Profile) -> list[DeadLayer]:
    """In forward order, seed by seed: those that are dead of themselves. What stands behind a state
    of zeros, a cut or another dead layer of the same step is dead because of that."""
    return [one for seed in range(len(profile.seeds)) for one in _of(profile, seed)]


def rounding(profile: Profile) -> float:
    """1 - cosine of what differs by rounding alone; it is itself known to a few 1e-16."""
    apart = ROUNDINGS * _EPS.get(profile.dtype, _EPS["float32"])
    return max(apart**2 / 2, 1e-15)


def said(profile: Profile, found: list[DeadLayer]) -> Iterator[str]:
    """A sentence for what is cut, one for the branches that are dead, each by its first site."""
    for cut in (True, False, None):
        some = [one for one in found if one.cut is cut]
        if not some:
            continue
        sites = list(dict.fromkeys(one.site for one in some))
        first = sites[0]
        where = f"'{first.path}'" + (f" (block {first.block})" if first.block else "")
        more = f", as in {len(sites) - 1} more layers" if len(sites) > 2 else ""
        more = more or (f", as in '{sites[1].path}'" if len(sites) > 1 else "")
        seeds = len({one.seed for one in some})
        of = f" ({seeds} of {len(profile.seeds)} seeds)" if len(profile.seeds) > 1 else ""
        if some[0].zero:
            yield f"the state of {where} is 0 for the whole batch{more}: {_CUT}{of}"
            continue
        what = {True: _CUT, False: _AROUND, None: _UNSEEN}[cut]
        yield f"dead layer: every unit of {where} is 0 for the whole batch{more}: {what}{of}"


_CUT: Final = (
    "what comes after it is the same for all examples and no gradient gets back through it; look "
    "at the weights and biases in front of it"
)
_AROUND: Final = (
    "that branch carries nothing of the input and learns nothing, while a path goes around it; "
    "look at the weights and biases in front of it"
)
_UNSEEN: Final = "look at the weights and biases in front of it"


def _of(profile: Profile, seed: int) -> Iterator[DeadLayer]:
    dead: set[int] = set()
    if (column := profile.columns.get("dead_fraction")) is not None:
        shares = zip(column.rows, column.values[:, seed], strict=True)
        dead = {row for row, share in shares if share >= 1}
    states = [s.index for s in profile.sites if s.role == "state"]
    read = _Read(profile, seed)
    # Activations before the first block stand behind the state that they lead to.
    order = sorted(profile.sites, key=lambda s: (s.block > 0, s.block == 0 and s.role == "state"))
    before: int | None = None
    broken = False  # by a dead layer since the last state, or by zeros there
    for site in order:
        if site.index in dead and not broken:
            after = next((i for i in states if before is None or i > before), None)
            yield (found := DeadLayer(site, seed, read.cut(before, after)))
            if found.cut:
                return
            broken = True
        elif site.role == "state":
            zero = read.zero(site.index)
            inside = not broken and before is not None and site.index != states[-1]
            if zero and inside and read.blocked(before):
                yield DeadLayer(site, seed, True, zero=True)
                return
            before, broken = site.index, zero


class _Read:
    """Numbers of one seed at states."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self._alike = profile.settings.get("examples") == ALIKE
        self._found = {
            name: dict(zip(c.rows, map(float, c.values[:, seed]), strict=True))
            for name, c in profile.columns.items()
            if name in ("state_rms", "gradient_rms", "correlation")
        }
        self._least = rounding(profile)

    def _at(self, name: str, row: int | None) -> float | None:
        return None if row is None else self._found.get(name, {}).get(row)

    def zero(self, row: int) -> bool:
        return self._at("state_rms", row) == 0

    def blocked(self, row: int | None) -> bool:
        """Whether no gradient at all comes back to a state."""
        return self._at("gradient_rms", row) == 0

    def cut(self, before: int | None, after: int | None) -> bool | None:
        """Whether what stands between two states ends what tells examples apart; None where the
        numbers do not say so."""
        back, here = self._at("gradient_rms", before), self._at("gradient_rms", after)
        if back is not None and after is None:
            return back == 0
        if back is not None and here is not None and 0 < here < math.inf:
            return back <= _GONE * here
        size, was = self._at("state_rms", after), self._at("state_rms", before)
        if size is not None and (size == 0 or (was is not None and size <= _GONE * was)):
            return True
        left, apart = self._apart(after), self._apart(before)
        if left is None or (before is not None and not (apart and apart > self._least / _SURE)):
            return None
        return left <= self._least or (apart is not None and left <= _GONE * apart)

    def _apart(self, row: int | None) -> float | None:
        """1 - cosine of two examples; None where these are alike by themselves."""
        likeness = self._at("correlation", row)
        return None if likeness is None or self._alike else 1 - likeness
