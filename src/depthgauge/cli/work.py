"""What ``measure`` may be told of the instruments that run a network again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from depthgauge.cli.options import rate, seconds, several, whole
from depthgauge.errors import SpecificationError

if TYPE_CHECKING:
    from depthgauge.instruments.subject import Effort, Subject
    from depthgauge.profile import Profile

__all__ = ["Work", "with_exponents"]


@dataclass(frozen=True)
class Work:
    """How much the instruments that run a network again may do, and what they follow."""

    probes: str | None
    examples: str | None
    until: str | None
    rank: str | None
    budget: str | None
    optimizer: str | None
    lr: str | None
    depths: str | None
    against: str | None
    directions: str | None
    branches: str | None = None
    steps: str | None = None
    arithmetic: str | None = None

    def instruments(self, asked: str | None) -> str | None:
        """Those asked for, and those that an option is about."""
        wanted = [asked or "fast"]
        ours = (self.optimizer, self.lr, self.branches, self.depths)
        if any(option is not None for option in ours):
            wanted.append("updates")
        if self.steps is not None:
            wanted.append("stiffness")
        if self.against is not None:
            wanted.append("precision")
        return ",".join(wanted) if len(wanted) > 1 else asked

    @property
    def over(self) -> tuple[str, tuple[int, ...]] | None:
        """Which argument is varied, and its values."""
        return several("--depths", self.depths)

    def compared(self, dtype: str | None, code: bool) -> tuple[Work, str | None]:
        """What is compared with float64, and in which precision the measurement itself is taken: a
        module stays as it was built, an equation runs in the arithmetic meant where it is a
        precision of its own."""
        from depthgauge.arguments import DTYPES
        from depthgauge.instruments.arithmetic import arithmetic_named

        if self.against is None:
            return self, dtype
        if self.against != "float64":
            raise SpecificationError(
                f"--against is '{self.against}', expected float64, the reference of every "
                f"arithmetic"
            )
        if dtype is None:
            return self, None
        arithmetic_named(dtype)
        kept = dtype if not code and dtype in DTYPES else None
        return dataclasses.replace(self, arithmetic=dtype), kept

    def effort(self, seed: int, seeds: int = 1) -> Effort:
        """How much the instruments may do, and of which step; its budget is that of the depths too,
        each of which is one more part under each of the ``seeds``."""
        from depthgauge.instruments.step import Step
        from depthgauge.instruments.subject import Effort

        numbers: dict[str, Any] = {
            name: whole(f"--{name}", text)
            for name in ("probes", "examples", "until", "rank", "branches", "steps")
            if (text := getattr(self, name)) is not None
        }
        return Effort(
            **numbers,
            budget=seconds("--budget", self.budget),
            seed=seed,
            step=Step(self.optimizer or "sgd", rate("--lr", self.lr)),
            arithmetic=self.arithmetic,
            after=0 if self.over is None else len(self.over[1]) * seeds,
        )

    def given(self, effort: Effort) -> dict[str, Any]:
        """As ``depthgauge.measure`` takes it."""
        return {"effort": effort, "directions": _vectors(self.directions)}


def _vectors(path: str | None) -> Any:
    """The directions in a ``.npy`` file, as a tensor."""
    if path is None:
        return None
    import numpy as np
    import torch

    try:
        found = np.asarray(np.load(path, allow_pickle=False))
        if found.dtype.kind == "c":
            raise TypeError(f"it holds {found.dtype}, whose imaginary part would be lost")
        return torch.from_numpy(found.astype(np.float64))
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise SpecificationError(
            f"--directions is '{path}', expected a .npy file of real numbers ({reason})"
        ) from None


def with_exponents(
    profile: Profile,
    build: Callable[[int, int], Subject],
    depths: Sequence[int],
    seeds: Sequence[int],
    effort: Effort,
) -> Profile:
    """The profile with how what one step changes grows with depth, and what of it has no exponent;
    the clock of ``effort`` has run since the profile was begun."""
    from depthgauge.study.scaling import within

    found = within(build, depths, seeds, effort)
    over = list(found.depths)
    exponents = {name: {**e.to_dict(), "over": over} for name, e in found.exponents.items()}
    not_measured = {
        **profile.not_measured,
        **{f"exponent of {name}": why for name, why in found.missing.items()},
        **{f"depth {depth}": why for depth, why in found.left_out.items()},
    }
    return dataclasses.replace(profile, exponents=exponents, not_measured=not_measured)
