"""What a recipe says of one network: a standard deviation or zero for each weight, and counts.

A recipe is a function of what the tracer counted. Its rules are written once; applying writes them
into the weights, auditing measures the weights against them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from depthgauge.trace.layout import Layout

__all__ = ["Count", "Plan", "Recipe", "Rule", "Target"]


@dataclass(frozen=True)
class Target:
    """One tensor's standard deviation at the start, 0 for a tensor of zeros; ``mistakes``: others
    that are met in its place, each with the mistake that makes it."""

    path: str
    std: float
    mistakes: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True)
class Rule:
    """A group of tensors under one law, in words with its numbers."""

    group: str
    law: str
    targets: tuple[Target, ...]


@dataclass(frozen=True)
class Count:
    """Something that the recipe wants so often, and how often it is there."""

    what: str
    found: int
    expected: int
    why: str = ""


@dataclass(frozen=True)
class Plan:
    """``rules`` and ``counts`` for one network; ``silent``: every branch adds exactly zero at the
    start; ``shifts``: learned numbers are put in front of layers and activations, a multiplier at
    the end of each branch, and norms are taken out."""

    rules: tuple[Rule, ...]
    counts: tuple[Count, ...] = ()
    silent: bool = False
    shifts: bool = False


@dataclass(frozen=True)
class Recipe:
    """``needs``: what it asks of the network; ``rule`` and ``traps`` in lines of words;
    ``reference``: the paper. ``plan`` raises NetworkError for a network that it does not cover."""

    name: str
    title: str
    needs: str
    rule: Sequence[str]
    traps: Sequence[str]
    reference: str
    plan: Callable[[Layout], Plan]
