"""What an audit says of queries and keys: their norms, and the learned number of their products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from torch import Tensor

from depthgauge.recipes.finding import Finding
from depthgauge.recipes.rules import Form, number_of
from depthgauge.trace.counted import Residual

__all__ = ["scored_finding", "temperature_finding"]

#: How far a learned number may lie from where it is to begin.
_CLOSE: Final = 1e-3


def scored_finding(rows: Sequence[tuple[Residual, Form]]) -> Finding:
    """Norms of queries and of keys over the features of each head, none of values."""
    wrong = [(branch, why) for branch, form in rows if (why := _astray(branch, form.scored or ""))]
    right = len(rows) - len(wrong)
    said = f"{right} of {len(rows)} attentions with {rows[0][1].scored} norms of queries and keys"
    if wrong:
        said += f"; '{wrong[0][0].path}': {wrong[0][1]}"
    return Finding("norms of queries and keys", right, len(rows), said)


def _astray(branch: Residual, kind: str) -> str:
    """``""``, or what is wrong with the norms of one attention."""
    if not branch.head:
        return "its queries and keys could not be followed"
    by_role = {role: [row for row in branch.scored if row[0] == role] for role in _ROLES}
    if by_role["value"]:
        return "values are normed too, and are to stay as they are"
    bare = [_ROLES[role] for role in ("query", "key") if not by_role[role]]
    if bare:
        return f"{' and '.join(bare)} have no norm"
    for role, found, width in (*by_role["query"], *by_role["key"]):
        if found != kind:
            return f"the norm of {_ROLES[role]} is {found}"
        if width != branch.head:
            return (
                f"the norm of {_ROLES[role]} is over {width} numbers, and a head has {branch.head}"
            )
    return ""


_ROLES: Final = {"query": "queries", "key": "keys", "value": "values"}


def temperature_finding(
    rows: Sequence[tuple[Residual, Form]], parameters: Mapping[str, Tensor]
) -> Finding:
    """The one learned number that multiplies the products of queries and keys, where it begins."""
    asked = [(b, form, number_of(form.temperature or "1", {"d": b.head or 1})) for b, form in rows]
    right = [_begins(b, value, parameters) for b, _, value in asked]
    said = f"{sum(right)} of {len(rows)} attentions whose products a learned number multiplies"
    said += f" that begins at {asked[0][2]:.6g}"
    if not all(right):
        wrong = [row for row, ok in zip(asked, right, strict=True) if not ok]
        branch = wrong[0][0]
        said += f"; '{branch.path}' has {_present(branch, parameters)}"
        texts = ({words: t for t, words in form.temperature_mistakes} for _, form, _ in wrong)
        said += _named([b for b, _, _ in wrong], list(texts), parameters)
    return Finding("learned numbers of products", sum(right), len(rows), said)


def _named(
    branches: Iterable[Residual],
    texts: Sequence[Mapping[str, str]],
    parameters: Mapping[str, Tensor],
) -> str:
    """The words of the mistake that explains every one of them, or nothing."""
    for words in texts[0]:
        if all(
            words in here and _begins(b, number_of(here[words], {"d": b.head or 1}), parameters)
            for b, here in zip(branches, texts, strict=True)
        ):
            return f": {words}"
    return ""


def _begins(branch: Residual, value: float, parameters: Mapping[str, Tensor]) -> bool:
    held = [parameters[path].detach() for path in branch.temperatures]
    return len(held) == 1 and bool(((held[0] - value).abs() <= _CLOSE * abs(value)).all())


def _present(branch: Residual, parameters: Mapping[str, Tensor]) -> str:
    held = [parameters[path].detach().double() for path in branch.temperatures]
    if len(held) != 1:
        return f"{len(held) or 'no'} learned numbers there"
    low, high = float(held[0].min()), float(held[0].max())
    return f"{low:.6g}" if math.isclose(low, high) else f"{low:.6g} to {high:.6g}"
