"""The same network at several depths: how its summaries grow, and at which depth a bound breaks."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from depthgauge.errors import SpecificationError, TargetError
from depthgauge.network.spec import LARGEST_DEPTH, Network, whole_number
from depthgauge.profile import Profile
from depthgauge.study.corridor import Corridor
from depthgauge.study.corridors import NamedCorridor, corridor_of
from depthgauge.study.swept import Measured, Sweep, swept
from depthgauge.summaries import SUMMARIES, quantities_for

if TYPE_CHECKING:
    from torch import nn

    from depthgauge.equation.nodes import Block
    from depthgauge.instruments.subject import Effort
    from depthgauge.measurement import Progress
    from depthgauge.study.cases import Case
    from depthgauge.study.specification import Specification

__all__ = ["DEPTHS", "SEEDS", "Build", "sweep"]

DEPTHS: Final = (12, 48, 96)
SEEDS: Final = (0, 1, 2)

#: ``(depth, seed) -> (module, batch, loss)``.
Build: TypeAlias = Callable[[int, int], "tuple[nn.Module, Any, Callable[..., Any] | None]"]


def sweep(
    target: str | os.PathLike[str] | Block | Network | Specification | Build,
    depths: Iterable[int] = DEPTHS,
    corridor: str | os.PathLike[str] | Mapping[str, Any] | Corridor | NamedCorridor | None = None,
    *,
    seed: int | Iterable[int] | None = None,
    instruments: str | Iterable[str] | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
    **given: Any,
) -> Sweep:
    """Measure a target at several depths, fit how it grows, and say where its corridor breaks.

    ``target``: an equation (text or tree), a Network, a Specification or the path of one in TOML,
    whose depth is replaced; or a function ``build(depth, seed)`` that gives a module, its batch and
    its loss (or None). ``corridor``: a name, a file, bounds, or None for ``default``; for
    an equation, which has no loss, ``transport``. A specification's own bounds go before it.
    ``seed``: 0, 1 and 2 unless it or a specification says so. ``instruments``: None for the fast
    ones and those that the corridor asks for. ``given``: for an equation what else ``measure``
    takes: ``batch``, ``width``, ``init``, ``scalars``, ``tokens``, ``size``, ``draws``, ``dtype``,
    ``device``.

    Raises SpecificationError for depths or a corridor that cannot be used, TargetError for another
    target, and what ``measure`` raises.
    """
    from torch import nn

    from depthgauge.arguments import seeds_of
    from depthgauge.equation.nodes import Block
    from depthgauge.study.specification import Specification

    chosen = _depths_of(depths)
    seeds = None if seed is None else seeds_of(seed)[0]
    equation = isinstance(target, str | os.PathLike | Block | Network | Specification)
    named = corridor_of(corridor, "transport" if equation else "default")
    if equation:
        specification = _specification(target, chosen[-1], seeds, given)
        named = named.under(specification.corridor)
        wanted = _instruments(instruments, named, chosen, specification.dtype, loss=False)
        run = _measured(partial(_equation_at, specification), wanted, effort)
        return swept(_name(specification), run, chosen, named, progress=progress)
    if isinstance(target, nn.Module):
        raise TargetError(
            "a module ready made has one depth; give the function build(depth, seed) that builds it"
        )
    if not callable(target):
        raise TargetError(
            f"a target of type {type(target).__name__} cannot be swept over depths; give an "
            f"equation, a Network, a specification or a function build(depth, seed)"
        )
    if given:
        raise SpecificationError(
            f"{next(iter(given))} is for an equation; build(depth, seed) gives the module and its "
            f"data as they are to be"
        )
    wanted = _instruments(instruments, named, chosen, "", loss=True)
    name = getattr(target, "__name__", type(target).__name__)
    run = _measured(partial(_code_at, target, seeds or SEEDS, name), wanted, effort)
    return swept(name, run, chosen, named, progress=progress)


def _measured(
    at: Callable[[int], Case], instruments: str | Sequence[str], effort: Effort | None
) -> Measured:
    """The case at a depth, under its seeds."""

    def measured(depth: int, progress: Progress | None) -> Profile:
        return at(depth).measure(instruments, progress, effort=effort)

    return measured


def _equation_at(specification: Specification, depth: int) -> Case:
    from depthgauge.study.cases import EquationCase

    network = dataclasses.replace(specification.network, depth=depth)
    return EquationCase(dataclasses.replace(specification, network=network))


def _code_at(build: Build, seeds: tuple[int, ...], name: str, depth: int) -> Case:
    """``torch.manual_seed(seed)`` stands before each build, which is told the seed too."""
    import torch

    from depthgauge.study.cases import BuilderCase

    def code() -> Any:
        return build(depth, torch.initial_seed())

    code.__name__ = name
    return BuilderCase(code, seed=seeds)


# ------------------------------------------------------------------------------ what was given


def _depths_of(depths: Iterable[int]) -> tuple[int, ...]:
    each = list(depths) if isinstance(depths, Iterable) and not isinstance(depths, str) else []
    found = sorted({n for d in each if (n := whole_number(d)) and 1 <= n <= LARGEST_DEPTH})
    if len(found) < 2 or len(found) < len(each):
        raise SpecificationError(
            f"depths are {depths!r}, expected two or more different whole numbers of at least 1, "
            f"such as (12, 48, 96)"
        )
    return tuple(found)


def _instruments(
    given: str | Iterable[str] | None,
    corridor: NamedCorridor,
    depths: Sequence[int],
    dtype: str,
    loss: bool,
) -> str | tuple[str, ...]:
    """Those asked for, or the fast ones and what the corridor bounds."""
    if given is not None:
        return given if isinstance(given, str) else tuple(given)
    bounded = {name for d in depths for name, _ in corridor.at(d, dtype).bounds}
    found = [q for name in SUMMARIES if name in bounded for q in quantities_for(name, loss)]
    return ("fast", *found)


def _specification(
    target: Any, depth: int, seeds: tuple[int, ...] | None, given: dict[str, Any]
) -> Specification:
    from depthgauge.study.cases import specification_of

    options = {name: value for name, value in given.items() if value is not None}
    unknown = [name for name in options if name not in (*_OF_NETWORK, *_OF_RUN)]
    if unknown:
        raise SpecificationError(
            f"'{unknown[0]}' is not what an equation takes; use "
            f"{', '.join((*_OF_NETWORK, *_OF_RUN))}"
        )
    return specification_of(target, {**options, "depth": depth}, seeds)


_OF_NETWORK: Final = ("width", "init", "scalars", "tokens", "size", "draws")
_OF_RUN: Final = ("batch", "dtype", "device")


def _name(specification: Specification) -> str:
    from depthgauge.equation.text import to_text

    return to_text(specification.network.block)
