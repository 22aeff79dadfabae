"""How a module starts, held to a recipe: branches that add nothing, gradients that are zero at the
first steps, measured and taken on a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from depthgauge.recipes.finding import Finding
from depthgauge.recipes.first_steps import first_gradients
from depthgauge.recipes.inside import effective
from depthgauge.trace.counted import Layout
from depthgauge.trace.measuring import measure_module

__all__ = ["behind_zero_heads", "silent_finding", "woken_findings"]


def silent_finding(model: nn.Module, batch: Any) -> Finding:
    """Whether every branch adds exactly zero."""
    profile = measure_module(model, batch, instruments=["branch_rms"])
    sizes: list[float] = profile["branch_rms"].tolist() if "branch_rms" in profile else []
    zero = sum(size == 0 for size in sizes)
    said = f"{zero} of {len(sizes)} branches add exactly zero at the start"
    return Finding("branches that are zero at the start", zero, len(sizes), said)


def behind_zero_heads(
    model: nn.Module, found: Layout, wakes: Mapping[str, int]
) -> Mapping[str, int]:
    """``wakes``, a step later where every head is exactly zero, which passes no gradient on before
    it has moved; as it is where the plan counts the head itself (Fixup), and where the model
    returns the stream beside its head."""
    heads = {weight.path for weight in found.heads}
    last = found.branches[-1].stream if found.branches else ""
    returned = any(end.returned for end in found.ends if end.stream == last)
    if not heads or heads & wakes.keys() or returned:
        return wakes
    weights = effective(model, dict(model.named_parameters()), found)
    if any(bool(weights[path].any()) for path in heads):
        return wakes
    return {path: first + 1 for path, first in wakes.items()}


def woken_findings(
    model: nn.Module, batch: Any, wakes: Mapping[str, int], loss: Callable[..., Any] | None
) -> Iterator[Finding]:
    """Whose gradient is zero at which of the first three steps, as the recipe has it."""
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    frozen = [path for path in wakes if path not in learning]
    wakes = {path: first for path, first in wakes.items() if path in learning}
    zero = first_gradients(model, batch, loss)
    if not wakes or not zero:
        said = "no parameter requires a gradient, so the first steps could not be taken"
        yield Finding("gradients of the first steps", 0, max(len(frozen), 1), said)
        return
    for step, gradients in enumerate(zero):
        asleep = [path for path, first in wakes.items() if first > step]
        awake = [path for path, first in wakes.items() if first <= step]
        early = [path for path in asleep if not gradients.get(path, True)]
        late = [path for path in awake if gradients.get(path, True)]
        wrong = [*early, *late]
        said = f"step {step}: {len(asleep)} tensors are to have no gradient, {len(awake)} one"
        said += f", {len(frozen)} frozen" if frozen else ""
        if early:
            said += f"; '{early[0]}' has one already ({len(early)} in all)"
        if late:
            said += f"; '{late[0]}' has none ({len(late)} in all)"
        yield Finding(f"gradients at step {step}", len(wakes) - len(wrong), len(wakes), said)
