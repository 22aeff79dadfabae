"""ResiDual (Xie et al., arXiv 2304.14802): a post-norm stream, and beside it the sum of all its
branches, which no norm touches; joined at the end.

    x <- N(x + F(x)),    r <- r + s F(x),   r_0 = s x_0;    y = x_L + N(r_L)

Every branch reads the post-norm stream. The last norm takes the number s away but for its eps.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.rules import Count, Form, Plan, Recipe
from depthgauge.recipes.wrappers import Around, given_path, norm_of
from depthgauge.trace.counted import Layout, Normed, Residual
from depthgauge.trace.layout import layout

__all__ = ["RESIDUAL", "Beside"]

_FORM: Final = Form(
    skip="1",
    factor="1",
    norms={"stream": ""},
    misplaced=(
        (("in",), "the norm stands in front of the branch: what is summed is a pre-norm stream"),
        ((), "the sum of the first stream has no norm"),
    ),
)


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "ResiDual")
    if projected := [branch.path for branch in layout.branches if branch.projected]:
        raise NetworkError(
            f"the skip beside '{projected[0]}' has weights of its own, and ResiDual adds up what "
            f"all branches give as it is; give a network whose skips carry the state itself"
        )
    forms = tuple(_FORM for _ in layout.branches)
    return Plan(forms=forms, counts=tuple(_counts(layout)), final="none", second=True)


def _counts(layout: Layout) -> list[Count]:
    seconds, streams = layout.second, len(layout.streams)
    counts = [
        Count(
            "streams with the sum of their branches beside them",
            len(seconds),
            streams,
            "no sum of a norm of the stream and of what its branches add was found",
        )
    ]
    if not seconds:
        return counts
    missing = [path for second in seconds for path in second.missing]
    why = f"that of '{missing[0]}' is not in it, or by another number" if missing else ""
    branches = sum(second.branches for second in seconds)
    counts.append(Count("branches in that sum", branches - len(missing), branches, why))
    for what, found, why in (
        (
            "such sums that begin with what the stream begins with",
            sum(second.begins for second in seconds),
            "x_0 is not in it, or by another number than the branches",
        ),
        (
            "such sums with one norm, in front of the joint sum",
            sum(second.normed for second in seconds),
            "it grows with depth and is added as it is",
        ),
        (
            "joint sums that hold the stream as it is",
            sum(abs(second.first - 1) < 1e-6 for second in seconds),
            f"it is multiplied by {seconds[0].first:.4g}",
        ),
    ):
        counts.append(Count(what, found, len(seconds), why))
    others = sum(second.others for second in seconds)
    counts.append(Count("other terms in such sums", others, 0, "branches and x_0 are all"))
    return counts


# ------------------------------------------------------------------------------ in a module


class _Memory:
    """What the norms of one stream share while a pass runs: the sum so far, and the state."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.state: Tensor | None = None


class Beside(Around):
    """A norm of a post-norm stream, ``module(z)``, that keeps the sum of what was added, ``z`` less
    the state before; ``after``: the norm of that sum, at the last, which adds it."""

    def __init__(
        self, module: nn.Module, memory: _Memory, first: bool, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.memory, self.first, self.after = memory, first, after
        self.module = module

    def forward(self, z: Tensor) -> Tensor:
        memory, total = self.memory, z
        if not self.first and memory.total is not None and memory.state is not None:
            total = memory.total + (z - memory.state)
        x: Tensor = self.module(z)
        if self.after is None:
            memory.total, memory.state = total, x
            return x
        memory.total = memory.state = None
        added: Tensor = self.after(total)
        return x + added


def _joined(model: nn.Module, batch: Any) -> str:
    """The second stream put beside each post-norm one. Raises NetworkError where not every sum has
    one norm behind it that is a module of its own."""
    found = layout(model, batch)
    if found.second:
        return "the sum of the branches is there already"
    norms = {name: _norms(model, found, name) for name in found.streams}
    for row in norms.values():
        _put(model, row)
    return f"{len(norms)} sums of all branches put beside the stream"


def _norms(model: nn.Module, found: Layout, stream: str) -> list[Normed]:
    """The norm behind each sum of the stream, in order. Raises NetworkError where one cannot be
    told to keep what was added."""
    norms: dict[int, Normed] = {}
    for branch in (branch for branch in found.branches if branch.stream == stream):
        row, where = _behind(branch), f"the sum after '{given_path(model, branch.path)}'"
        if len(row) != 1:
            raise _unkept(f"{len(row) or 'no'} norms stand behind {where}")
        norms[branch.place] = norm = row[0]
        if not norm.path or any(model.get_submodule(norm.path).children()):
            raise _unkept(f"the norm behind {where} is no module of its own")
        if found.runs[norm.path] > 1:
            raise _unkept(f"the norm behind {where} runs {found.runs[norm.path]} times in a pass")
    if len(norms) < 2:
        raise NetworkError(
            f"'{given_path(model, stream)}' has one sum alone, beside which there is nothing to "
            f"keep; give a network of two residual branches or more"
        )
    return list(norms.values())


def _unkept(what: str) -> NetworkError:
    return NetworkError(
        f"{what}, and ResiDual is put into the one norm behind each sum, which keeps what was "
        f"added there; write it as a module of its own for each sum"
    )


def _behind(branch: Residual) -> list[Normed]:
    return [norm for norm in branch.norms if norm.at == "stream"]


def _put(model: nn.Module, norms: list[Normed]) -> None:
    memory, last = _Memory(), norms[-1]
    for k, norm in enumerate(norms):
        parent, _, name = norm.path.rpartition(".")
        owner, module = model.get_submodule(parent), model.get_submodule(norm.path)
        after = None
        if norm is last:
            after = norm_of(norm.kind, norm.width, norm.axis)
            sample = next(iter((*module.parameters(), *model.parameters())))
            after.to(sample.device, sample.dtype)
        made = Beside(module, memory, k == 0, after)
        made.train(module.training)
        setattr(owner, name, made)


RESIDUAL = Recipe(
    "residual",
    "ResiDual",
    "residual branches whose norms are modules of their own",
    (
        "x <- N(x + F(x)), every branch reads this stream",
        "r <- r + s F(x) beside it, r_0 = s x_0, never normed on the way",
        "the end is x + N(r); no norm after it",
    ),
    (
        "a branch that reads r makes the network pre-norm",
        "r has to begin with x_0, not with zero",
        "r without its norm grows with depth and drowns the other stream",
        "what is put in keeps r while a pass runs: not with checkpoints that run a block again",
    ),
    "Xie et al., arXiv 2304.14802; microsoft/ResiDual",
    _plan,
    tier=2,
    judgement="s is 1 in what is put in: the norm at the end takes it away but for its eps and for "
    "what half precision can hold; both streams are joined with 1",
    after=_joined,
    unwritten="an equation has one state, and ResiDual has two; apply it to a module",
)
