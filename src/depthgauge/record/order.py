"""Which blocks run when a module does, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from depthgauge.record.changes import Change

if TYPE_CHECKING:
    from torch import Tensor, nn


__all__ = ["Ran", "out_of_order", "run_of"]


@dataclass
class Ran:
    """Which blocks ran, in their order; the state that entered the first and the generator then;
    the state that left the last."""

    order: list[int] = field(default_factory=list)
    entered: Tensor | None = None
    generator: Tensor | None = None
    left: Tensor | None = None


def run_of(module: nn.Module, blocks: Sequence[nn.Module], batch: Any) -> Ran:
    """What runs when the module does; modes, buffers and generators are left as they were."""
    import torch

    from depthgauge.trace.batches import call, tensors
    from depthgauge.trace.inventory import inventory
    from depthgauge.trace.untouched import untouched

    found = Ran()

    def entering(number: int) -> Any:
        def entered(_: nn.Module, given: Any, named: Any) -> None:
            found.order.append(number)
            if found.entered is None:
                first = next((x for _, x in tensors((*given, named))), None)
                found.entered = None if first is None else first.detach().clone()
                found.generator = torch.get_rng_state()

        return entered

    def left(_: nn.Module, __: Any, output: Any) -> None:
        found.left = next((x.detach() for _, x in tensors(output)), None)

    with ExitStack() as stack, untouched(inventory(module)), torch.no_grad():
        for number, block in enumerate(blocks):
            before = block.register_forward_pre_hook(entering(number), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(block.register_forward_hook(left).remove)
        call(module, batch)
    return found


def out_of_order(order: Sequence[int], depth: int) -> Iterator[Change]:
    if list(order) != list(range(depth)):
        said = _spans(order) or "not at all"
        words = f"its blocks run {said}, and in what was commissioned each runs once: 1 to {depth}"
        yield Change("order", list(range(1, depth + 1)), [n + 1 for n in order], words)


def _spans(order: Sequence[int], most: int = 4) -> str:
    """``1 to 6, 1 to 6``, from 1."""
    spans: list[list[int]] = []
    for number in order:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    said = [f"{a + 1} to {b + 1}" if a < b else f"{a + 1}" for a, b in spans]
    return ", ".join([*said[:most], *(["..."] if len(said) > most else [])])
