"""Claims and suite results: what a built-in suite asserts, measured, and says in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from depthgauge.errors import ClaimError
from depthgauge.jsonable import jsonable


@dataclass(frozen=True)
class Claim:
    """``min < value < max``, both strict; a value that is not finite never holds.

    At least one bound is given.
    """

    name: str
    value: float
    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        assert self.min is not None or self.max is not None, self.name

    @property
    def holds(self) -> bool:
        above = self.min is None or self.value > self.min
        below = self.max is None or self.value < self.max
        return math.isfinite(self.value) and above and below

    @property
    def bound(self) -> str:
        """The bound in words: ``> 1e+08``, ``< 3``, ``0.5 to 2``."""
        if self.min is None:
            return f"< {self.max:g}"
        return f"> {self.min:g}" if self.max is None else f"{self.min:g} to {self.max:g}"

    def to_dict(self) -> dict[str, Any]:
        bound = {k: v for k, v in (("min", self.min), ("max", self.max)) if v is not None}
        measured = jsonable({"value": self.value, "bound": bound})
        return {"name": self.name, "holds": self.holds, **measured}


@dataclass(frozen=True)
class Assertion:
    """``min < quantity < max`` for one configuration: what a claim will be once it is measured."""

    name: str
    configuration: str
    quantity: str
    min: float | None = None
    max: float | None = None

    def about(self, configurations: Iterable[Mapping[str, Any]]) -> Claim:
        value = by_name(configurations)[self.configuration][self.quantity]
        return Claim(self.name, value, self.min, self.max)


def by_name(configurations: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {configuration["name"]: configuration for configuration in configurations}


def quoted(name: str, value: float, printed: str) -> Claim:
    """``value`` rounds to ``printed``: it lies within half a unit of the last digit printed."""
    figure = Decimal(printed)
    exponent = figure.as_tuple().exponent
    assert isinstance(exponent, int), printed  # a number, not NaN or infinity
    half = Decimal(1).scaleb(exponent) / 2
    return Claim(name, value, min=float(figure - half), max=float(figure + half))


@dataclass(frozen=True, repr=False)
class SuiteResult:
    """What one run of a suite measured.

    ``configurations``: JSON-able mappings with a ``name`` each, and ``curves`` where there are any.
    ``lessons``: what the numbers teach, in words, with the numbers in them. ``legend``: what a
    reader of the table is told, by the key of a column, and by ``""`` what a row is, and over what
    its numbers are.
    """

    suite: str
    about: str
    configurations: tuple[Mapping[str, Any], ...]
    claims: tuple[Claim, ...]
    lessons: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    legend: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        word = "PASS" if self.passed else "FAIL"
        return f"<SuiteResult of {self.suite}: {word}, {len(self.claims)} claims>"

    @property
    def passed(self) -> bool:
        return bool(self.claims) and all(claim.holds for claim in self.claims)

    def check(self) -> SuiteResult:
        """Itself; raises ClaimError when a claim does not hold."""
        broken = [claim for claim in self.claims if not claim.holds]
        if broken or not self.claims:
            said = "; ".join(f"{c.name} is {c.value:.4g}, claimed {c.bound}" for c in broken)
            raise ClaimError(f"suite {self.suite}: {said or 'no claim was checked'}", self)
        return self

    def to_dict(self) -> dict[str, Any]:
        """The JSON document: names as in the contract, numbers finite or null."""
        return {
            "suite": self.suite,
            "about": self.about,
            "checks": "PASS" if self.passed else "FAIL",
            "configurations": [jsonable(dict(c)) for c in self.configurations],
            "claims": [claim.to_dict() for claim in self.claims],
            "lessons": list(self.lessons),
            "settings": jsonable(dict(self.settings)),
        }
