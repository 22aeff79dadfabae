"""Zeros that code sets while it builds a model and that a later initialisation draws over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depthgauge.profile import Profile

__all__ = ["Watch", "watched"]

#: Methods that draw, and functions of ``torch.nn.init`` inside which nothing is seen.
_DRAWS: Final = frozenset((
    "normal_", "uniform_", "log_normal_", "cauchy_", "exponential_", "kaiming_normal_",
    "kaiming_uniform_", "xavier_normal_", "xavier_uniform_", "trunc_normal_", "orthogonal_",
))  # fmt: skip
#: What sets every element to one number: the name that the number is given by.
_FILLS: Final = {"zero_": "", "zeros_": "", "fill_": "value", "constant_": "val"}


class Watch(TorchFunctionMode):
    """What was zeroed as a whole, and drawn after that, by the memory that it lies in.

    A tensor that was zeroed is held until the watch ends, so that no other comes to lie there.
    Memory is what ``p.data`` shares with its parameter, which keeps its identity where the model is
    moved or cast.
    """

    def __init__(self) -> None:
        super().__init__()
        self._zeroed: dict[int, Tensor] = {}
        self._drawn: dict[int, Tensor] = {}

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        name, options = getattr(function, "__name__", ""), kwargs or {}
        if name in _DRAWS or name in _FILLS:
            x = args[0] if args else options.get("tensor")
            if isinstance(x, Tensor) and (place := _place(x)):
                if name in _DRAWS:
                    self._draws(place, x)
                else:
                    number = args[1] if len(args) > 1 else options.get(_FILLS[name], 0)
                    self._fills(place, x, bool(number))
        return out

    def _draws(self, place: int, x: Tensor) -> None:
        before = self._zeroed.get(place)
        if before is not None and before.shape == x.shape:
            self._drawn[place] = x

    def _fills(self, place: int, x: Tensor, number: bool) -> None:
        for known in (self._zeroed, self._drawn):
            known.pop(place, None)
        if not number:
            self._zeroed[place] = x

    def release(self) -> None:
        """Hold nothing but what was drawn over."""
        self._zeroed.clear()

    def noted(self, profile: Profile, model: nn.Module) -> Profile:
        """The profile with what is said beside the causes that its pass showed."""
        if not (said := self.said(model)):
            return profile
        seen: Any = profile.settings.get("causes", ())
        return replace(profile, settings={**profile.settings, "causes": [*said, *seen]})

    def said(self, model: nn.Module) -> list[str]:
        """A sentence where parameters of the model were meant to begin at zero and do not. Vectors
        are left out, which PyTorch's own modules set to zero whether or not anyone means it."""
        # Where they lie now: the memory of one that was cast since may be another's.
        drawn = {number for x in self._drawn.values() for number in (id(x), _place(x))} - {0}
        found = [
            (name, p)
            for name, p in model.named_parameters()
            if (p.dim() > 1 or p.numel() == 1)
            and (id(p) in drawn or _place(p) in drawn)
            and bool(p.detach().any())
        ]
        if not found:
            return []
        name, p = found[0]
        size = float(p.detach().double().square().mean().sqrt())
        several = f"{len(found)} parameters were" if len(found) > 1 else "a parameter was"
        return [
            f"initialisation overwritten: {several} set to zero while the model was built and "
            f"drawn again after that ('{name}', whose root mean square is {size:.3g}), so that "
            f"what was to add nothing at the start does: leave it out of the later initialisation, "
            f"or set it to zero behind that"
        ]


def _place(x: Tensor) -> int:
    """Where it lies; 0 where it has no memory, on the meta device."""
    try:
        return int(x.data_ptr())
    except RuntimeError:
        return 0


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch what code does that runs inside."""
    watch = Watch()
    try:
        with watch:
            yield watch
    finally:
        watch.release()
