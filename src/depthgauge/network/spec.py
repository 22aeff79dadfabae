"""A network: a block equation, a depth, a width, an initialisation. Numbers and names only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING

from depthgauge.equation.count import Count, count
from depthgauge.equation.nodes import Block, Init, Scalar, Symbol, walk
from depthgauge.equation.parse import parse, parse_init
from depthgauge.equation.text import to_text
from depthgauge.errors import NetworkError, SpecificationError, nearest
from depthgauge.network.draws import DRAW_ORDERS, DrawOrder
from depthgauge.network.layers import LAYOUT_AXES, Layers, Layout, layers_of, layout_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from depthgauge.network.program import Program

#: More blocks or channels than anybody measures; a typing slip, not a network.
LARGEST_DEPTH, LARGEST_WIDTH = 10_000_000, 1_000_000


@dataclass(frozen=True)
class Network:
    """``depth`` copies of one block in sequence, each with weights of its own.

    ``equation``: text or a tree. ``scalars``: free scalars of a text by name. ``init``:
    initialisers by weight name (``"W1"``), word (``"W"``, ``"attention.o"``, ``"conv"``) or
    ``"default"``; without one, LeCun (std = 1/sqrt(fan_in)). A state is ``(batch, width)``; with
    attention, or where ``tokens`` is given, ``(batch, tokens, width)``; with conv,
    ``(batch, width, size, size)``.

    ``draws``: ``"keyed"`` (an edit elsewhere changes no weight) or ``"sequential-pcg64"`` (one
    NumPy generator in order). Raises EquationError or NetworkError for what no network can be.
    """

    equation: str | Block
    depth: int = 96
    width: int = 64
    init: Mapping[str, str | Init] | str | Init | None = None
    scalars: Mapping[str, str | float | Scalar] | None = field(default=None, repr=False)
    tokens: int | None = None
    size: int | None = None
    draws: DrawOrder = "keyed"

    def __post_init__(self) -> None:
        for name, most in (("depth", LARGEST_DEPTH), ("width", LARGEST_WIDTH)):
            _whole(name, getattr(self, name), most)
        for name in ("tokens", "size"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), LARGEST_WIDTH)
        if self.draws not in DRAW_ORDERS:
            raise NetworkError(
                f"draws is '{self.draws}', expected one of {', '.join(DRAW_ORDERS)}"
                f"{nearest(str(self.draws), DRAW_ORDERS)}"
            )
        # Everything that can be wrong with the equation is found here, before any tensor exists.
        self._fits()
        _ = self.inits, self.layout, self.program

    def __str__(self) -> str:
        sizes = [f"depth {self.depth}", f"width {self.width}"]
        sizes += [f"{name} {n}" for name in ("tokens", "size") if (n := getattr(self, name))]
        inits = ", ".join(f"{name} {to_text(init)}" for name, init in self.chosen.items())
        return f"{self.block}\n{', '.join(sizes)}; {inits}"

    def __repr__(self) -> str:
        fields = {name: getattr(self, name) for name in ("depth", "width", "tokens", "size")}
        said = [f"{name}={value}" for name, value in fields.items() if value is not None]
        if self.inits:
            said.append(f"init={ {name: to_text(init) for name, init in self.inits.items()} }")
        said += [f"draws={self.draws!r}"] * (self.draws != "keyed")
        return f"Network({str(self.block)!r}, {', '.join(said)})"

    def _fits(self) -> None:
        """Raise where circular padding would wrap an image around more than once."""
        if self.layout != "images":
            return
        for layer in self.layers.weights:
            if layer.padding == "circular" and layer.shape[-1] // 2 > self.state_shape[-1]:
                raise NetworkError(
                    f"{layer.name} has a kernel of side {layer.shape[-1]} with circular padding, "
                    f"but the image has side {self.state_shape[-1]}; give a larger size"
                )

    @cached_property
    def block(self) -> Block:
        if isinstance(self.equation, Block):
            if self.scalars:
                names = ", ".join(self.scalars)
                raise NetworkError(
                    f"scalars {names} stand beside a parsed equation; give them to parse()"
                )
            return self.equation
        return parse(self.equation, self.scalars)

    @cached_property
    def inits(self) -> dict[str, Init]:
        given = {} if self.init is None else self.init
        if isinstance(given, str | Init):
            given = {"default": given}
        if not isinstance(given, Mapping) or not all(isinstance(n, str) for n in given):
            raise NetworkError(
                f"init is {self.init!r}, expected an initialiser or a table of them by weight name"
            )
        for name, init in given.items():
            if not isinstance(init, str | Init):
                raise NetworkError(
                    f"init of {name} is {init!r}, expected an initialiser such as 'he'"
                )
        return {n: i if isinstance(i, Init) else parse_init(i) for n, i in given.items()}

    @cached_property
    def chosen(self) -> dict[str, Init]:
        """The initialiser of every weight layer."""
        from depthgauge.network.weights import choose

        return choose(self.layers.weights, self.inits)

    @cached_property
    def count(self) -> Count:
        """The residual branches and weight layers of one block."""
        return count(self.block)

    @property
    def branches(self) -> int:
        """``L``: residual branches in the whole network."""
        return self.depth * self.count.branches

    @cached_property
    def scope(self) -> dict[str, float]:
        """The symbols that every block shares."""
        if not self.branches and Symbol("L") in walk(self.block):
            raise NetworkError(
                f"the equation uses L, the number of residual branches, but "
                f"'{to_text(self.block)}' has none; use depth ({self.depth}) instead"
            )
        return {
            "L": float(self.branches),
            "depth": float(self.depth),
            "n": float(self.width),
            "pi": math.pi,
        }

    @cached_property
    def layers(self) -> Layers:
        return layers_of(self.block, self.width, self.scope)

    @cached_property
    def layout(self) -> Layout:
        layout = layout_of(self.block)
        if self.tokens is not None:
            if layout == "images":
                raise NetworkError(
                    "tokens is given, but conv works on (batch, width, size, size); leave it out"
                )
            return "tokens"
        if self.size is not None and layout != "images":
            raise NetworkError("size is given, but the equation has no conv; leave it out")
        return layout

    @cached_property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of one example's state."""
        sizes = {"tokens": self.tokens or 32, "width": self.width, "space": self.size or 8}
        return tuple(sizes[axis] for axis in LAYOUT_AXES[self.layout][1:])

    @cached_property
    def program(self) -> Program:
        """The block compiled to PyTorch; compiled where it is first needed."""
        from depthgauge.network.program import Program

        program = Program(self.layers, self.layout, self.scope, self.chosen.values())
        for block in {1, self.depth}:
            program.coefficients(block)
        return program

    def module(self, seed: int = 0, dtype: torch.dtype | None = None) -> nn.Module:
        """The network as an ``nn.Module`` to train, with the weights of this seed, in float32."""
        from depthgauge.arguments import dtype_of
        from depthgauge.network.module import EquationNetwork

        return EquationNetwork(self, seed_of(seed), dtype_of("float32" if dtype is None else dtype))


def whole_number(value: object) -> int | None:
    """``value`` as an int, NumPy's whole numbers too; None for a bool and everything else."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return int(value)


def seed_of(seed: object) -> int:
    """One seed as an int. Raises SpecificationError."""
    number = whole_number(seed)
    if number is None or number < 0:
        raise SpecificationError(f"seed is {seed!r}, expected a whole number of at least 0")
    return number


def _whole(name: str, value: object, most: int) -> None:
    number = whole_number(value)
    if number is None or not 1 <= number <= most:
        raise NetworkError(f"{name} is {value!r}, expected a whole number from 1 to {most}")
