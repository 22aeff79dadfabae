"""The state of a module that code built, held against the curve that its record keeps.

Neither the equation that a run shows nor the weights tell how many heads attend, whether a mask
stands before them, an ``eps`` or what is dropped; the size of the state behind a block does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from depthgauge.record.changes import Change, between

if TYPE_CHECKING:
    from torch import nn

    from depthgauge.profile import Profile
    from depthgauge.record.folder import Stored
    from depthgauge.sites import FloatArray

__all__ = ["state_changes"]

#: How far the sizes of two states that are the same may be apart, relative, in float32.
_SIZES: Final = 1e-4
_OTHERWISE: Final = (
    "though equation and weights read alike (heads, a mask, eps or another option differs, or what "
    "is done between the blocks)"
)


def state_changes(
    kept: Stored, module: nn.Module, weights: str, seen: Profile, batch: Any
) -> Iterator[Change]:
    """The first block at which the state is not as large as in the record.

    Compared on the batch of the seed whose ``weights`` (their hash) the module has, on the device
    of the record. ``seen``: the module's profile. Of a module that draws at random it is said where
    it gives what was commissioned once it does not; else nothing can be.
    """
    subject = kept.record.subject
    seed = _seed(kept, weights, batch)
    curve = None if seed is None else _curve(kept, seed)
    own = seen.by_block("state_rms")
    if curve is None or own is None or str(seen.settings["device"]) != subject.device:
        return
    (at, before), (blocks, after) = curve, (np.asarray(own[0]), own[1][:, 0])
    if not np.array_equal(at, blocks):
        yield from between(at.tolist(), blocks.tolist(), "blocks")
        return
    apart = _apart(before, after, seen.dtype)
    if not apart.any():
        return
    if _draws(module, batch):
        if not _apart(before, _still(module, batch), seen.dtype).any():
            words = "the module draws at random (dropout), and what was commissioned does not"
            yield Change("dropout", None, None, words)
        return
    k = int(apart.argmax())
    mode = "" if module.training else "; the module is in evaluation mode"
    yield Change(
        "state_rms",
        float(before[k]),
        float(after[k]),
        f"the RMS of the state at block {blocks[k]} is {after[k]:.6g}, and was {before[k]:.6g} "
        f"under seed {seed} on the same batch, {_OTHERWISE}{mode}",
    )


def _seed(kept: Stored, weights: str, batch: Any) -> int | None:
    """The seed whose weights and batch these are."""
    from depthgauge.record.subject import batch_hash

    subject, data = kept.record.subject, batch_hash(batch)
    known = subject.batches or {}
    seeds = (s for s, each in subject.weights.items() if each == weights and known.get(s) == data)
    return next(map(int, seeds), None)


def _curve(kept: Stored, seed: int) -> tuple[Any, FloatArray] | None:
    """Blocks and RMS of the state of what was commissioned, under the seed."""
    wanted = ("rivers", f"baseline, depth {kept.record.subject.depth}", "state_rms")
    for curve in kept.record.curves:
        if (curve.gate, curve.configuration, curve.quantity) == wanted and seed in curve.seeds:
            values = kept.arrays[curve.values][:, curve.seeds.index(seed)]
            return kept.arrays[curve.blocks], values
    return None


def _apart(a: FloatArray, b: FloatArray, dtype: str) -> Any:
    import torch

    tolerance = max(_SIZES, 8 * torch.finfo(getattr(torch, dtype, torch.float32)).eps)
    return ~np.isclose(b, a, rtol=tolerance, atol=0.0, equal_nan=True)


def _measured(module: nn.Module, batch: Any, seed: int) -> FloatArray:
    """RMS of the state at each block, under the random numbers of a seed."""
    import torch

    from depthgauge.trace.measuring import measure_module

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        found = measure_module(module, batch, instruments=["state_rms"]).by_block("state_rms")
    assert found is not None
    return found[1][:, 0]


def _draws(module: nn.Module, batch: Any) -> bool:
    first, second = (_measured(module, batch, seed) for seed in (0, 1))
    return not np.array_equal(first, second, equal_nan=True)


def _still(module: nn.Module, batch: Any) -> FloatArray:
    """The same where nothing is dropped: in evaluation mode, which is then as it was."""
    from depthgauge.trace.inventory import inventory
    from depthgauge.trace.untouched import untouched

    with untouched(inventory(module)):
        module.eval()
        return _measured(module, batch, 0)
