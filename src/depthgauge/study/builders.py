"""Modules that code builds, as cases: their causal factors are the arguments of the code.

``torch.manual_seed(seed)`` stands before each build, so that what is drawn in the same order is the
same; what an argument moves in that order is not, and is told.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from depthgauge.arguments import device_of, dtype_of
from depthgauge.errors import SpecificationError, TargetError, nearest
from depthgauge.profile import Column, Profile
from depthgauge.study.changes import Change
from depthgauge.study.factors import Difference
from depthgauge.trace.batches import mapped, tensors
from depthgauge.trace.inputs import input_of
from depthgauge.trace.overwritten import watched
from depthgauge.trace.targets import Target, arguments_of, called, defaults, load

if TYPE_CHECKING:
    from depthgauge.measurement import Progress
    from depthgauge.study.corridor import Corridor

__all__ = ["BuilderCase", "Built", "built", "stacked"]

#: ``path/file.py:callable``, a callable, or callables by size.
Code = str | Callable[..., Any] | Mapping[Any, Callable[..., Any]]


class Built(NamedTuple):
    module: nn.Module
    batch: Any
    loss: Callable[..., Any] | None


def built(
    target: str | Callable[..., Any],
    arguments: Mapping[str, object],
    inputs: Sequence[str],
    seed: int,
    dtype: str | None = None,
    device: str | None = None,
) -> Built:
    """The module, its batch and loss, on the device and in the precision asked for.

    Raises SpecificationError where there is no batch, and what ``trace.targets.load`` raises.
    """
    given = input_of(inputs, seed) if inputs else None
    kind = None if dtype is None else dtype_of(dtype)
    place = None if device is None else device_of(device)
    torch.manual_seed(seed)
    loaded: Target
    if isinstance(target, str):
        loaded = load(target, arguments)
    else:
        loaded = called(target, arguments, _name(target))
    batch = loaded.batch if given is None else given
    if batch is None:
        raise SpecificationError(
            f"'{loaded.name}' gives no batch; return (module, batch) or give --input, such as "
            f'--input "float 8x3x32x32"'
        )
    if kind is not None or place is not None:
        loaded.module.to(device=place, dtype=kind)

        def moved(x: Tensor) -> Tensor:
            return x.to(device=place, dtype=kind if x.is_floating_point() else None)

        batch = mapped(batch, moved)
    return Built(loaded.module, batch, loaded.loss)


@dataclass(frozen=True, eq=False)
class BuilderCase:
    """What code builds under each seed; ``{size: builder}`` has the one argument ``size``.

    ``input``: texts as for ``--input``, where the code gives no batch. ``dtype``: what the module
    and its data are converted to, as they were built where it is None.
    """

    target: Code
    arguments: Mapping[str, object] = field(default_factory=dict)
    input: tuple[str, ...] = ()
    seed: tuple[int, ...] = (0, 1, 2)
    name: str = "baseline"
    dtype: str | None = None
    #: By seed, of what was measured: a digest of every parameter and of the batch.
    digests: dict[int, dict[str, str]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.target, nn.Module):
            raise TargetError(
                "a module ready made has nothing to vary; give the function that builds it"
            )
        if isinstance(self.target, Mapping):
            if not self.target or not all(map(callable, self.target.values())):
                raise TargetError(
                    "a table of sizes has no function for each; give {64: build64, 128: build128}"
                )
            if "size" not in self.arguments:
                first = next(iter(self.target))
                object.__setattr__(self, "arguments", {**self.arguments, "size": first})

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.seed

    @property
    def instruments(self) -> str:
        return "fast"

    @property
    def corridor(self) -> Corridor | None:
        return None

    @property
    def factors(self) -> Mapping[str, str]:
        precision = {"precision": self.dtype or "as built"}
        return {name: _text(value) for name, value in self._values.items()} | precision

    @cached_property
    def _values(self) -> dict[str, object]:
        if isinstance(self.target, Mapping):
            return dict(self.arguments)
        return {**defaults(self.target, self.arguments), **self.arguments}

    def changed(self, change: Change) -> BuilderCase:
        name, value = change.factor, change.value
        if name == "dtype" and name not in self._values:
            dtype_of(value)
            return replace(self, dtype=value, name=str(change), digests={})
        if isinstance(self.target, Mapping) and name == "size":
            given: object = self._size(value)
        elif value[:1] in ("*", "/"):
            raise SpecificationError(
                f"a change of code is '{change}', expected ARGUMENT=VALUE, such as width=128"
            )
        else:
            given = arguments_of([str(change)], "a change")[name]
        arguments = {**self.arguments, name: given}
        return replace(self, arguments=arguments, name=str(change), digests={})

    def usual(self) -> list[Change]:
        if isinstance(self.target, Mapping):
            own = self.arguments["size"]
            others = [size for size in self.target if size != own]
            if not others:
                raise SpecificationError(
                    f"the table has one size, {own}, and nothing that it could be held against; "
                    f"give a second size with its function"
                )
            return [Change("size", str(size)) for size in others]
        named = ", ".join(self._values) or "none with a default"
        raise SpecificationError(
            f"'{_name(self.target)}' is code, in which only its arguments can be varied ({named}); "
            f"name a change of one, such as width=128"
        )

    def against(self, other: BuilderCase) -> list[Difference]:
        a, b = self.factors, other.factors
        names = dict.fromkeys([*a, *b])
        missing = "not given"
        return [
            Difference(n, a.get(n, missing), b.get(n, missing))
            for n in names
            if a.get(n, missing) != b.get(n, missing)
        ]

    def seen(self, before: Profile, after: Profile) -> list[Difference]:
        """Of a table of sizes, which stands for one factor: what two that were measured differ in,
        where that is more than one of depth, width and the form of the blocks."""
        if not isinstance(self.target, Mapping):
            return []
        sides = [
            {"depth": str(p.depth), "width": str(p.width), "form": _form(p.equation)}
            for p in (before, after)
        ]
        a, b = sides
        found = [Difference(name, a[name], b[name]) for name in a if a[name] != b[name]]
        return found if len(found) > 1 else []

    def build(self, seed: int) -> Built:
        """The module under this seed, with its batch and loss."""
        target, arguments = self.target, dict(self.arguments)
        if isinstance(target, Mapping):
            target = target[arguments.pop("size")]
        return built(target, arguments, self.input, seed, self.dtype)

    def measure(
        self,
        instruments: str | Iterable[str] = "fast",
        progress: Progress | None = None,
        **more: Any,
    ) -> Profile:
        from depthgauge.trace.measuring import measure_module

        found = []
        for done, seed in enumerate(self.seed, 1):
            with watched() as watch:
                made = self.build(seed)
            self.digests[seed] = _digests(made)
            name = "" if isinstance(self.target, Mapping) else _name(self.target)
            profile = measure_module(*made, seed=seed, instruments=instruments, name=name, **more)
            found.append(watch.noted(profile, made.module))
            if progress is not None:
                progress(done, len(self.seed))
        return stacked(found)

    def not_held(self, other: BuilderCase) -> list[str]:
        """What begins with other numbers in ``other``, although it has the same name and shape;
        both have been measured."""
        lines = []
        for what in ("batch", "weights"):
            apart, of = 0, 0
            for seed in self.digests:
                ours, theirs = self.digests[seed], other.digests.get(seed, {})
                for path in set(ours) & set(theirs):
                    if path.startswith(what) and _shape(ours[path]) == _shape(theirs[path]):
                        apart, of = apart + (ours[path] != theirs[path]), of + 1
            if apart:
                words = "weights" if what == "weights" else "tensors of the batch"
                lines.append(
                    f"{apart} of {of} {words} of one name and shape are not those of the baseline: "
                    f"the change sets them, or draws more or less before them"
                )
        return lines

    def _size(self, value: str) -> object:
        assert isinstance(self.target, Mapping)
        sizes = {str(size): size for size in self.target}
        if value not in sizes:
            raise SpecificationError(
                f"size is '{value}', expected one of {', '.join(sizes)}{nearest(value, sizes)}"
            )
        return sizes[value]


def stacked(profiles: Sequence[Profile]) -> Profile:
    """Profiles of the same sites, each of one seed, as one with a seed axis.

    A quantity that one of them lacks is not measured. Raises SpecificationError where the sites of
    two seeds are not the same.
    """
    first = profiles[0]
    if len(profiles) == 1:
        return first
    for profile in profiles[1:]:
        if profile.sites != first.sites:
            raise SpecificationError(
                f"seeds {first.seeds[0]} and {profile.seeds[0]} build networks of "
                f"{len(first.sites)} and {len(profile.sites)} sites, which are not the same; give "
                f"one seed"
            )
    missing = {n: why for profile in profiles for n, why in profile.not_measured.items()}
    columns = {}
    for name, column in first.columns.items():
        others = [profile.columns.get(name) for profile in profiles]
        rows = {None if c is None else c.rows for c in others}
        if rows == {column.rows}:
            values = [c.values for c in others if c is not None]
            columns[name] = Column(column.rows, np.concatenate(values, axis=1))
        else:
            missing.setdefault(name, "it was not measured at the same sites under every seed")
    vectors = {}
    for name, at in first.vectors.items():
        found = [profile.vectors.get(name, {}) for profile in profiles]
        shared = [row for row in at if all(row in other for other in found)]
        alike = [row for row in shared if len({other[row].shape for other in found}) == 1]
        if alike:
            vectors[name] = {row: np.concatenate([o[row] for o in found]) for row in alike}
    return replace(
        first,
        seeds=tuple(seed for profile in profiles for seed in profile.seeds),
        seed_axis=True,
        columns=columns,
        vectors=vectors,
        not_measured={n: why for n, why in missing.items() if n not in columns},
    )


def _form(equation: str) -> str:
    """The different blocks without their numbers, which may follow from a depth or a width."""
    lines = re.sub(r"\b\d+ x (?=\[)", "", equation).splitlines()
    numberless = (re.sub(r"(?<![\w.])\d+(?:\.\d*)?(?:e[+-]?\d+)?", "#", line) for line in lines)
    return "; ".join(dict.fromkeys(line.strip() for line in numberless))


def _digests(made: Built) -> dict[str, str]:
    """``dtype shape digest`` by ``weights PATH`` and ``batch PATH``."""
    found: dict[str, Tensor] = {f"weights {p}": x for p, x in made.module.named_parameters()}
    found |= {f"batch {path}": x for path, x in tensors(made.batch)}
    return {name: f"{x.dtype} {list(x.shape)} {_digest(x)}" for name, x in found.items()}


def _digest(x: Tensor) -> str:
    if x.is_meta:
        return "no numbers"
    held = x.detach().cpu().contiguous()
    raw = held.view(torch.uint8) if held.dim() else held.reshape(1).view(torch.uint8)
    return hashlib.blake2b(raw.numpy().tobytes(), digest_size=16).hexdigest()


def _shape(digest: str) -> str:
    return digest.rpartition(" ")[0]


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _name(target: Code) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
