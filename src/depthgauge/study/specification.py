"""A TOML specification: the network, how it is run and where it has to stay.

    [block]     equation = "h + a * W2(gelu(W1(rmsnorm(h), out=4*n)))", scalars: a = "1/sqrt(L)"
    [init]      W1 = "he", "attention.o" = "zeros", default = "lecun"
    [network]   depth, width, tokens, size, draws
    [run]       batch, seed = 7 | [0, 1, 2] | "0..15", dtype, device, instruments
    [run]       optimizer = "adamw", lr = 1e-3: the step whose update is measured
    [corridor]  forward_drift = { max = 3.0, warn = 0.1 }

Only ``block.equation`` must be there. Every mistake is a SpecificationError of one sentence that
names the file and the key (an equation's mistake keeps its caret lines).
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from depthgauge.equation.parse import parse, parse_init, parse_scalar
from depthgauge.errors import EquationError, NetworkError, SpecificationError, expect, expect_path
from depthgauge.network.spec import Network
from depthgauge.study.corridor import Corridor
from depthgauge.study.corridors import CorridorFile
from depthgauge.study.sections import read_document

if TYPE_CHECKING:
    from depthgauge.instruments.step import Step
    from depthgauge.measurement import Progress
    from depthgauge.profile import Profile

__all__ = ["Changes", "Specification", "parse_seed", "read_specification"]

#: More seeds than anybody measures; a typing slip.
MOST_SEEDS = 100_000


@dataclasses.dataclass(frozen=True)
class Specification:
    """Everything that ``measure`` needs, and the corridor its profile is judged by."""

    network: Network
    batch: int = 128
    seed: int | tuple[int, ...] = 0
    dtype: str = "float32"
    device: str = "cpu"
    instruments: str | tuple[str, ...] = "fast"
    corridor: Corridor | None = None
    optimizer: str = "sgd"
    lr: float | None = None
    #: Of the section [commission]: depths, rival, shallow, vary, corridor.
    commission: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        todo = "Network(equation, depth, width) makes one"
        expect("network", self.network, Network, "a depthgauge.Network", todo)

    def __str__(self) -> str:
        lines = [str(self.network), f"batch {self.batch}, seed {self.seed}, {self.dtype}"]
        if self.corridor is not None:
            lines.append(f"corridor: {', '.join(str(self.corridor).splitlines())}")
        return "\n".join(lines)

    @property
    def step(self) -> Step:
        """The optimiser's step whose update is measured; its usual rate where none is given."""
        from depthgauge.instruments.step import Step

        return Step(self.optimizer, self.lr)

    def measure(self, progress: Progress | None = None, **more: Any) -> Profile:
        """The network's profile, as this specification says it is to be run; ``more`` goes to
        ``depthgauge.measure`` (effort, directions, labels)."""
        from depthgauge.measurement import measure

        return measure(
            self.network,
            self.batch,
            seed=self.seed,
            dtype=self.dtype,
            device=self.device,
            instruments=self.instruments,
            progress=progress,
            **more,
        )


@dataclasses.dataclass(frozen=True)
class Changes:
    """What is given beside a file and goes before it; ``scalars`` and ``init`` name by name.

    ``network`` and ``run`` hold the keys of their sections.
    """

    scalars: Mapping[str, str] = dataclasses.field(default_factory=dict)
    init: Mapping[str, str] = dataclasses.field(default_factory=dict)
    network: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read_specification(
    path: str | os.PathLike[str], changes: Changes | None = None
) -> Specification:
    """The specification in the file; ``changes`` replace what it says before anything is built."""
    expect_path("path", path, "a specification's file in TOML")
    file = os.fspath(path)
    document = read_document(file)
    source = f"{file} with the options given" if changes and any(vars(changes).values()) else file
    changes = changes or Changes()
    scalars = {**document.block.scalars, **changes.scalars}
    init = {**document.init, **changes.init}
    run = {**document.run.given(), **changes.run}
    _check_language(source, document.block.equation, scalars, init)
    _check_choices(source, run)
    try:
        network = Network(
            document.block.equation,
            scalars=scalars,
            init=init,
            **{**document.network.given(), **changes.network},
        )
    except (EquationError, NetworkError) as error:
        raise SpecificationError(f"{source}: {error}") from None
    declared = _corridor(source, document.corridor)
    planned = document.commission.given()
    if (named := planned.get("corridor")) is not None:
        planned["corridor"] = _corridor_of(file, named)
    found = Specification(network, corridor=declared, commission=planned, **run)
    try:
        _ = found.step
    except SpecificationError as error:
        raise SpecificationError(f"{source}: run.{error}") from None
    return found


def _corridor_of(file: str, corridor: str) -> str | CorridorFile:
    """The corridor that a specification names: a name, or a file that is looked for beside it."""
    if not corridor.endswith(".toml"):
        return corridor
    return CorridorFile(os.path.join(os.path.dirname(file), corridor), corridor)


def parse_seed(text: str) -> int | tuple[int, ...]:
    """``"7"`` is 7, ``"0,3,5"`` and ``"0..15"`` (both ends included) are several seeds."""
    parts = [part.strip() for part in text.split(",")]
    seeds: list[int] = []
    for part in parts:
        match = re.fullmatch(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?", part)
        if match is None:
            raise SpecificationError(
                f"seed is '{text}', expected a whole number of at least 0, a range such as 0..15 "
                f"or a list such as 0,3,5"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise SpecificationError(f"seed is '{text}', but {last} is below {first}; swap them")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise SpecificationError(
                f"seed is '{text}', which is more than {MOST_SEEDS:,} seeds; give fewer"
            )
        seeds.extend(range(first, last + 1))
    return int(text) if text.strip().isdecimal() else tuple(seeds)


# ------------------------------------------------------------------- what the words must mean


def _check_language(
    source: str, equation: str, scalars: Mapping[str, Any], init: Mapping[str, str]
) -> None:
    """Each text by itself, so that a mistake is found at its key."""
    key = ""
    try:
        known: list[str] = []
        for name, value in scalars.items():
            key = f"block.{name}"
            if isinstance(value, str):
                parse_scalar(value, known)
            known.append(name)
        for name, value in init.items():
            key = f"init.{name}"
            parse_init(value)
        key = "block.equation"
        parse(equation, scalars)
    except EquationError as error:
        raise SpecificationError(f"{source}: {key}: {error}") from None


def _check_choices(source: str, run: dict[str, Any]) -> None:
    """The names and seeds in ``run``; a text of seeds is read in place."""
    from depthgauge.arguments import dtype_of, quantities_of, seeds_of

    checks: dict[str, Callable[[Any], object]] = {
        "seed": seeds_of,
        "dtype": dtype_of,
        "instruments": quantities_of,
    }
    try:
        if isinstance(seed := run.get("seed"), str):
            run["seed"] = parse_seed(seed)
        for key, check in checks.items():
            if key in run:
                check(run[key])
    except SpecificationError as error:
        raise SpecificationError(f"{source}: run.{error}") from None


def _corridor(source: str, declared: Mapping[str, Any] | None) -> Corridor | None:
    if declared is None:
        return None
    for name, bound in declared.items():
        try:
            Corridor.of({name: bound})
        except SpecificationError as error:
            raise SpecificationError(f"{source}: corridor.{name}: {error}") from None
    return Corridor.of(declared)
