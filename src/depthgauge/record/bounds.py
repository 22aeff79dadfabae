"""Where the bounds of a corridor moved that are not in force at the depth that was commissioned.

A record judges more than that depth: those of its sweep, its shallow control, the changes of its
ablation, and by its laws every depth beyond. Of two bounds on one summary the later counts where
both hold, so that what moved is told by what is in force, depth by depth, and not by what stands in
the file: a bound that another one covers everywhere may say what it likes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final

from depthgauge.record.changes import Change
from depthgauge.record.document import Record

__all__ = ["elsewhere_changes"]

#: ``depth 200 to 999``, ``depth 200 and more``, as a plan says where a bound holds.
_DEPTHS: Final = re.compile(r"depth (\d+)(?: to (\d+)| and more)")
#: Stands for every precision that no bound names.
_OTHERS: Final = "other precisions"


@dataclass(frozen=True)
class _Bound:
    """A bound as a plan tells it, from ``least`` to ``most`` blocks, in ``dtype`` ("": any)."""

    text: str
    least: float
    most: float
    dtype: str

    @classmethod
    def of(cls, told: str) -> _Bound:
        """Of ``depth 200 and more, float16: max 4, warn 0.1``."""
        where, colon, text = told.rpartition(": ")
        if not colon:
            return cls(told, 1, math.inf, "")
        depths = _DEPTHS.search(where)
        least, most = depths.groups() if depths else (1, None)
        last = math.inf if most is None else float(most)
        return cls(text, float(least), last, _DEPTHS.sub("", where).strip(", "))

    def holds(self, depth: float, dtype: str) -> bool:
        return self.least <= depth <= self.most and self.dtype in ("", dtype)


@dataclass(frozen=True)
class _Span:
    """Depths at which one bound is in force where another was."""

    least: float
    most: float
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if math.isinf(self.most):
            return "every depth" if self.least <= 1 else f"depth {self.least:g} and more"
        to = f" to {self.most:g}" if self.most > self.least else ""
        return f"depth {self.least:g}{to}"


def elsewhere_changes(
    record: Record, before: Mapping[str, Any], after: Mapping[str, str], told: Collection[str] = ()
) -> list[Change]:
    """What is in force otherwise, of two tables as a plan has them; but for the summaries that were
    ``told``, whose bound moved at the depth that was commissioned.

    Looked at are all depths, in the precisions that the record judges.
    """
    old, new = (_by_summary(table) for table in (before, after))
    dtypes = _judged_in(record, [*old.values(), *new.values()])
    found = []
    for name in dict.fromkeys((*old, *new)):
        if name in told:
            continue
        spans = {d: _spans(old.get(name, ()), new.get(name, ()), d) for d in dtypes}
        alike = len({tuple(each) for each in spans.values()}) == 1
        for dtype in dtypes[:1] if alike else dtypes:
            for span in spans[dtype]:
                found.append(_change(record, name, span, "" if alike else dtype))
    return found


def _by_summary(table: Mapping[str, Any]) -> dict[str, list[_Bound]]:
    """By summary its bounds, the later behind: ``forward_drift 2`` is the second on one."""
    found: dict[str, list[tuple[int, _Bound]]] = {}
    for name, text in table.items():
        summary, _, number = name.partition(" ")
        found.setdefault(summary, []).append((int(number or 1), _Bound.of(str(text))))
    return {
        summary: [bound for _, bound in sorted(bounds, key=lambda each: each[0])]
        for summary, bounds in found.items()
    }


def _judged_in(record: Record, bounds: Iterable[Sequence[_Bound]]) -> list[str]:
    """The precisions of what was judged: the subject's own and those that its ablation tried. What
    an argument makes of the code of a builder cannot be told: all that are named, and any other."""
    subject = record.subject
    given = record.provenance.plan.get("vary")
    varied = list(map(str, given)) if isinstance(given, list) else []
    if subject.kind == "builder" and varied:
        named = [bound.dtype for each in bounds for bound in each if bound.dtype]
        return list(dict.fromkeys((subject.dtype, *named, _OTHERS)))
    pairs = (text.replace(" ", "").partition("=") for text in varied)
    tried = [value for factor, _, value in pairs if factor in ("dtype", "precision")]
    return list(dict.fromkeys((subject.dtype, *tried)))


def _spans(old: Sequence[_Bound], new: Sequence[_Bound], dtype: str) -> list[_Span]:
    """Where the bound in force in a precision is another one, neighbours of one change together."""
    edges = sorted({1.0, *(end for b in (*old, *new) for end in (b.least, b.most + 1))})
    parts = [
        _Span(least, after - 1, _in_force(old, least, dtype), _in_force(new, least, dtype))
        for least, after in pairwise((*edges, *([] if math.isinf(edges[-1]) else [math.inf])))
    ]
    return list(_joined(parts))


def _in_force(bounds: Sequence[_Bound], depth: float, dtype: str) -> str | None:
    return next((b.text for b in reversed(bounds) if b.holds(depth, dtype)), None)


def _joined(parts: Sequence[_Span]) -> Iterator[_Span]:
    for (before, after), held in groupby(parts, key=lambda span: (span.before, span.after)):
        same = list(held)
        if before != after:
            yield _Span(same[0].least, same[-1].most, before, after)


def _change(record: Record, name: str, span: _Span, dtype: str) -> Change:
    """What moved, and what of the record it reaches."""
    subject = record.subject
    other = {curve.depth for curve in record.curves} - {subject.depth}
    judged = [str(each) for each in sorted(other) if span.least <= each <= span.most]
    reached = f"judges depth {', '.join(judged)}" if judged else "judges what the laws foretell"
    if dtype not in ("", subject.dtype):
        reached = "judges what the ablation tried"
    where = f"{span}, {dtype}" if dtype else f"{span}"
    sentence = (
        f"corridor: {name} at {where}: {span.before or 'no bound'} -> {span.after or 'no bound'} "
        f"(it {reached}; depth {subject.depth} in {subject.dtype} is judged as before)"
    )
    return Change(f"corridor.{name}", span.before, span.after, sentence)
