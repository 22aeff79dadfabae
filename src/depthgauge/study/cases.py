"""A case: one fully specified thing to measure, whose causal factors can be named and changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from depthgauge.equation.nodes import Block
from depthgauge.errors import DepthgaugeError, SpecificationError, TargetError
from depthgauge.network.spec import Network
from depthgauge.study.builders import BuilderCase
from depthgauge.study.changes import Change, applied
from depthgauge.study.corridor import Corridor
from depthgauge.study.factors import Difference, Factors, differences
from depthgauge.study.specification import Specification
from depthgauge.study.usual import usual

if TYPE_CHECKING:
    from depthgauge.measurement import Progress
    from depthgauge.profile import Profile

__all__ = [
    "BuilderCase",
    "Case",
    "EquationCase",
    "case_of",
    "differences",
    "measured",
    "specification_of",
]


#: Factors that change how many numbers are drawn, or by which rule.
_CONSUMING: Final = ("form", "init", "width", "batch", "tokens", "size", "draws")

#: The seeds where nobody says any.
SEEDS: Final = (0, 1, 2)


@runtime_checkable
class Case(Protocol):
    """What is measured under its seeds, and what it is made of.

    ``factors``: every causal feature, as canonical text. ``changed`` gives the case with one thing
    changed, which may turn out to be nothing or two; ``differences`` tells.
    """

    @property
    def name(self) -> str: ...

    @property
    def factors(self) -> Mapping[str, str]: ...

    @property
    def seeds(self) -> tuple[int, ...]: ...

    @property
    def instruments(self) -> str | tuple[str, ...]:
        """Those that it is measured with where nobody names others."""
        ...

    @property
    def corridor(self) -> Corridor | None: ...

    def changed(self, change: Change) -> Case: ...

    def usual(self) -> list[Change]:
        """The changes that are tried where nobody names any."""
        ...

    def against(self, other: Any) -> list[Difference]:
        """What differs in another case of this kind."""
        ...

    def not_held(self, other: Any) -> list[str]:
        """What begins with other numbers in the other, although it is there in both; a sentence
        each, after both were measured."""
        ...

    def measure(
        self,
        instruments: str | Iterable[str] = "fast",
        progress: Progress | None = None,
        **more: Any,
    ) -> Profile:
        """Its profile, its seeds on a seed axis; ``more`` goes to ``depthgauge.measure``."""
        ...


@dataclass(frozen=True, eq=False)
class EquationCase:
    """A network that an equation describes, as its specification says it is to be run."""

    specification: Specification
    name: str = "baseline"

    @cached_property
    def _read(self) -> Factors:
        given = self.specification
        return Factors(given.network, given.batch, given.dtype, self.seeds)

    @property
    def factors(self) -> Mapping[str, str]:
        return self._read.texts

    @property
    def seeds(self) -> tuple[int, ...]:
        seed = self.specification.seed
        return (seed,) if isinstance(seed, int) else tuple(seed)

    @property
    def instruments(self) -> str | tuple[str, ...]:
        return self.specification.instruments

    @property
    def corridor(self) -> Corridor | None:
        return self.specification.corridor

    def changed(self, change: Change) -> EquationCase:
        return EquationCase(applied(self.specification, change), str(change))

    def usual(self) -> list[Change]:
        return usual(self.specification.network)

    def against(self, other: EquationCase) -> list[Difference]:
        return self._read.differences(other._read)

    def not_held(self, other: EquationCase) -> list[str]:
        """Keyed draws hold every weight; of one generator in order, what comes before moves it."""
        moved = [found.factor for found in self.against(other) if found.factor in _CONSUMING]
        if self.specification.network.draws == "keyed" or not moved:
            return []
        return [
            f"the weights are drawn in order from one generator, from which another "
            f"{moved[0]} takes more or fewer numbers: they are not those of the baseline"
        ]

    def measure(
        self,
        instruments: str | Iterable[str] = "fast",
        progress: Progress | None = None,
        **more: Any,
    ) -> Profile:
        chosen = instruments if isinstance(instruments, str) else tuple(instruments)
        run = replace(self.specification, seed=self.seeds, instruments=chosen)
        return run.measure(progress, **more)


def case_of(
    target: Any,
    *,
    arguments: Mapping[str, object] | None = None,
    input: str | Iterable[str] | None = None,
    seed: int | Iterable[int] | None = None,
    **given: Any,
) -> Case:
    """The case that a target describes.

    ``target``: an equation (text or tree), a Network, a Specification or the path of one in TOML;
    ``path/file.py:callable``, a callable with its ``arguments``, or ``{size: builder}``, the first
    of which is the baseline; or a Case. ``given``: sizes and settings of an equation (``depth``,
    ``width``, ``init``, ``scalars``, ``tokens``, ``size``, ``draws``, ``batch``, ``dtype``,
    ``device``), which go before what a specification says. ``seed``: 0, 1 and 2 where neither says
    it. Raises TargetError for anything else, and SpecificationError for what a target cannot take.
    """
    from depthgauge.arguments import dtype_name, dtype_of, seeds_of
    from depthgauge.trace.targets import is_code

    options = {name: value for name, value in given.items() if value is not None}
    seeds = None if seed is None else seeds_of(seed)[0]
    text = target if isinstance(target, str) else ""
    toml = text.endswith(".toml") or isinstance(target, os.PathLike)
    if not toml and (is_code(text) or callable(target) or isinstance(target, Mapping)):
        dtype = dtype_name(dtype_of(options.pop("dtype"))) if "dtype" in options else None
        for name in options:
            raise SpecificationError(
                f"{name} is for an equation, and the target is Python code; give the callable its "
                f"sizes as arguments (--arg KEY=VALUE) and its data as input"
            )
        inputs = (input,) if isinstance(input, str) else tuple(input or ())
        return BuilderCase(target, dict(arguments or {}), inputs, seeds or SEEDS, dtype=dtype)
    for name, value in (("arguments", arguments), ("input", input)):
        if value is not None:
            raise SpecificationError(f"{name} was given with an equation; it is for Python code")
    if isinstance(target, str | os.PathLike | Block | Network | Specification):
        return EquationCase(specification_of(target, options, seeds))
    if isinstance(target, Case):
        return _under(target, seeds)
    raise TargetError(
        f"a target of type {type(target).__name__} cannot be varied; give an equation, a Network, "
        f"a specification, a function that builds a module, or sizes with their functions"
    )


def measured(
    cases: Sequence[Case],
    instruments: str | Iterable[str] = "fast",
    progress: Progress | None = None,
    **more: Any,
) -> list[Profile | DepthgaugeError]:
    """The profile of each case, or why it has none.

    Equations that share data, seeds, precision and place are measured together: those of one shape
    are one batched pass.
    """
    from depthgauge.measurement import measure_all

    chosen = instruments if isinstance(instruments, str) else tuple(instruments)
    groups: dict[object, list[int]] = {}
    for i, case in enumerate(cases):
        one = case.specification if isinstance(case, EquationCase) else None
        groups.setdefault(_shared(one, case.seeds) if one else i, []).append(i)
    found: dict[int, Profile | DepthgaugeError] = {}
    for places in groups.values():
        here = [cases[i] for i in places]
        step = _share(progress, len(found), len(places), len(cases))
        first = here[0]
        if isinstance(first, EquationCase) and len(here) > 1:
            run = first.specification
            networks = [c.specification.network for c in here if isinstance(c, EquationCase)]
            try:
                profiles = measure_all(
                    networks,
                    run.batch,
                    seed=first.seeds,
                    dtype=run.dtype,
                    device=run.device,
                    instruments=chosen,
                    progress=step,
                    **more,
                )
                found |= zip(places, profiles, strict=True)
                continue
            except DepthgaugeError:  # of one of them: each by itself tells which
                pass
        for i in places:
            found[i] = _tried(cases[i], chosen, step, more)
    return [found[i] for i in range(len(cases))]


def _shared(run: Specification, seeds: tuple[int, ...]) -> object:
    """What equations that are measured together have in common; of tensors it is the same one."""
    data: object = run.batch if isinstance(run.batch, int) else id(run.batch)
    return data, run.dtype, run.device, seeds


def _tried(
    case: Case, instruments: Any, progress: Progress, more: Mapping[str, Any]
) -> Profile | DepthgaugeError:
    try:
        return case.measure(instruments, progress, **more)
    except DepthgaugeError as error:
        return error


def _share(progress: Progress | None, before: int, here: int, of: int) -> Progress:
    """Progress of a part, as progress of all in thousandths."""

    def step(done: int, total: int) -> None:
        if progress is not None:
            progress(round(1000 * (before + here * done / total) / of), 1000)

    return step


def _under(case: Case, seeds: tuple[int, ...] | None) -> Case:
    """The case under other seeds."""
    if seeds is None:
        return case
    if isinstance(case, EquationCase):
        return replace(case, specification=replace(case.specification, seed=seeds))
    return replace(case, seed=seeds)  # type: ignore[type-var]


_OF_RUN = ("batch", "dtype", "device")


def specification_of(
    target: Any, given: Mapping[str, Any], seeds: tuple[int, ...] | None
) -> Specification:
    """An equation (text, tree or Network), a Specification or the path of one in TOML, with what is
    ``given`` before what it says; seeds 0, 1 and 2 where neither says them."""
    from depthgauge.arguments import batch_of, device_of, dtype_name, dtype_of, network_of
    from depthgauge.study.specification import Changes, read_specification

    options = dict(given)
    run = {name: options.pop(name) for name in _OF_RUN if name in options}
    toml = isinstance(target, os.PathLike) or (isinstance(target, str) and target.endswith(".toml"))
    if "dtype" in run:
        run["dtype"] = dtype_name(dtype_of(run["dtype"]))
    if "device" in run:
        run["device"] = str(device_of(run["device"]))
    if toml:
        init = options.pop("init", {})
        init = init if isinstance(init, Mapping) else {"default": init}
        changes = Changes(options.pop("scalars", {}), init, options, run)
        found = read_specification(target, changes)
    elif isinstance(target, Specification):
        found = replace(target, network=network_of(target.network, options), **run)
    else:
        found = Specification(network_of(target, options), **run)
        seeds = SEEDS if seeds is None else seeds
    batch_of(found.batch, [found.network])
    return found if seeds is None else replace(found, seed=seeds)
