"""The stacks of a Transformer, as its recipes count them: one, or an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from depthgauge.errors import NetworkError
from depthgauge.network.init import rms_of
from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.rules import Target, init_of
from depthgauge.trace.counted import Layout, Residual, Weight

__all__ = ["Stack", "embeddings", "factors", "stacks", "width_of"]


@dataclass(frozen=True)
class Stack:
    """One stream: ``alone``, ``encoder`` (two branches a layer) or ``decoder`` (three). ``layers``
    of it: N or M."""

    role: str
    stream: str
    branches: tuple[Residual, ...]

    @property
    def layers(self) -> int:
        return len(self.branches) // (3 if self.role == "decoder" else 2)

    def crosses(self, branch: Residual) -> bool:
        """Whether the branch attends to the encoder: the second of a decoder's layer."""
        return self.role == "decoder" and self.branches.index(branch) % 3 == 1


def stacks(layout: Layout, title: str) -> tuple[Stack, ...]:
    """The stacks, the encoder in front of the decoder.

    Raises NetworkError for a network without branches and for streams that are neither.
    """
    refuse_plain(layout, title)
    rows: dict[str, list[Residual]] = {}
    for branch in layout.branches:
        rows.setdefault(branch.stream, []).append(branch)
    if len(rows) == 1:
        return tuple(Stack("alone", name, tuple(found)) for name, found in rows.items())
    each = {name: len(found) / _layers(found) for name, found in rows.items()}
    if sorted(each.values()) != [2, 3]:
        counted = ", ".join(f"'{name}' with {number:g}" for name, number in each.items())
        raise NetworkError(
            f"{len(rows)} streams were found, branches a layer: {counted}; {title} has a rule for "
            f"one stack, and for an encoder of two branches a layer with a decoder of three; give "
            f"each stack by itself"
        )
    order = sorted(rows, key=lambda name: each[name])
    return tuple(
        Stack("decoder" if each[name] == 3 else "encoder", name, tuple(rows[name]))
        for name in order
    )


def _layers(branches: Iterable[Residual]) -> int:
    """Each layer has one feed-forward branch: also a layer that nothing repeats is told so."""
    return max(1, sum(not branch.attends for branch in branches))


def factors(targets: Iterable[Target]) -> tuple[tuple[Weight, float], ...]:
    """Of targets that are Xavier times a number, each weight with that number."""
    xavier = init_of("xavier")
    return tuple(
        (
            t.weight,
            rms_of(init_of(t.init), t.weight.group, t.scope) / rms_of(xavier, t.weight.group, {}),
        )
        for t in targets
    )


def width_of(branch: Residual) -> int:
    """The width of the stream that the branch adds to."""
    return branch.width


def embeddings(layout: Layout) -> tuple[Weight, ...]:
    """Tables that are looked up."""
    found = {w.path: w for w in layout.outside if w.path in layout.tables}  # a tied one once
    return tuple(found.values())
