"""The state of a module that code built, held against the curve that its record keeps.

Neither the equation that a run shows nor the weights tell how many heads attend, whether a mask
stands before them, an ``eps`` or what is dropped. The size of the state behind a block does, but
where one block alone is another the stream hides it: 4 heads for 2 move the RMS of a state in its
fifth digit, and that of the branch in its third. So the branch is looked at by itself, how large it
is and which way it points, and the largest number of the state, which no mean hides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from depthgauge.record.changes import Change, between

if TYPE_CHECKING:
    from torch import nn

    from depthgauge.profile import Profile
    from depthgauge.record.folder import Stored
    from depthgauge.sites import FloatArray

__all__ = ["SEEN", "state_changes"]

#: By quantity its blocks, and a number at each.
Curves: TypeAlias = dict[str, tuple[Any, "FloatArray"]]

#: What is held against the record, and how it is called.
SEEN: Final = {
    "state_rms": "the RMS of the state",
    "branch_rms": "the RMS of the branch",
    "branch_stream_cosine": "the cosine between branch and stream",
    "state_max": "the largest number of the state",
}
#: How far apart two that are the same may be in float32, relative, of a cosine absolute: sums in
#: another order, other kernels and another number of threads leave 1e-6.
_SIZES: Final = 1e-5
_OTHERWISE: Final = (
    "though equation and weights read alike (heads, a mask, eps or another option differs, or what "
    "is done between the blocks)"
)


def state_changes(
    kept: Stored, module: nn.Module, weights: str, seen: Profile, batch: Any
) -> Iterator[Change]:
    """The first block at which state or branch are not what they are in the record.

    Compared on the batch of the seed whose ``weights`` (their hash) the module has, on the device
    of the record. ``seen``: the module's profile, with ``SEEN``. Of a module that draws at random
    it is said where it gives what was commissioned once it does not; else nothing can be.
    """
    subject = kept.record.subject
    seed = _seed(kept, weights, batch)
    before = {} if seed is None else _kept(kept, seed)
    after = _curves(seen)
    if not {"state_rms"} <= {*before} & {*after} or str(seen.settings["device"]) != subject.device:
        return
    blocks = [curves["state_rms"][0].tolist() for curves in (before, after)]
    if blocks[0] != blocks[1]:
        yield from between(blocks[0], blocks[1], "blocks")
        return
    apart = _apart(before, after, seen.dtype)
    if apart is None:
        return
    if _draws(module, batch):
        if _apart(before, _still(module, batch), seen.dtype) is None:
            words = "the module draws at random (dropout), and what was commissioned does not"
            yield Change("dropout", None, None, words)
        return
    name, k = apart
    at, old, new = before[name][0][k], float(before[name][1][k]), float(after[name][1][k])
    digits = 6
    while f"{old:.{digits}g}" == f"{new:.{digits}g}" and digits < 17:
        digits += 1
    mode = "" if module.training else "; the module is in evaluation mode"
    yield Change(
        name,
        old,
        new,
        f"{SEEN[name]} at block {at} is {new:.{digits}g}, and was {old:.{digits}g} under seed "
        f"{seed} on the same batch, {_OTHERWISE}{mode}",
    )


def _seed(kept: Stored, weights: str, batch: Any) -> int | None:
    """The seed whose weights and batch these are."""
    from depthgauge.record.subject import batch_hash

    subject, data = kept.record.subject, batch_hash(batch)
    known = subject.batches or {}
    seeds = (s for s, each in subject.weights.items() if each == weights and known.get(s) == data)
    return next(map(int, seeds), None)


def _kept(kept: Stored, seed: int) -> Curves:
    """The curves of what was commissioned under the seed, as the record holds them."""
    baseline, found = f"baseline, depth {kept.record.subject.depth}", Curves()
    for curve in kept.record.curves:
        wanted = curve.configuration == baseline and curve.gate in ("rivers", "first update")
        if wanted and curve.quantity in SEEN and seed in curve.seeds:
            values = kept.arrays[curve.values][:, curve.seeds.index(seed)]
            found.setdefault(curve.quantity, (kept.arrays[curve.blocks], values))
    return found


def _curves(profile: Profile) -> Curves:
    found = {name: profile.by_block(name) for name in SEEN}
    return {name: (np.asarray(river[0]), river[1][:, 0]) for name, river in found.items() if river}


def _apart(before: Curves, after: Curves, dtype: str) -> tuple[str, int] | None:
    """The quantity and the place in it at which they are no longer the same, at the first block at
    which one is not. What both do not have at the same blocks is not compared."""
    first: tuple[int, str, int] | None = None
    for name in SEEN:
        if name not in before or name not in after:
            continue
        (blocks, a), (others, b) = before[name], after[name]
        if not np.array_equal(blocks, others):
            continue
        tolerance = _tolerance(name, before, blocks, dtype)
        relative = not name.endswith("cosine")
        near = np.abs(a - b) <= tolerance * (np.abs(a) if relative else 1.0)
        same = near | (a == b) | (np.isnan(a) & np.isnan(b))
        if not same.all():
            k = int((~same).argmax())
            if first is None or blocks[k] < first[0]:
                first = int(blocks[k]), name, k
    return first and first[1:]


def _tolerance(name: str, before: Curves, blocks: Any, dtype: str) -> Any:
    """How far apart two may be at each block. What is small beside the stream may be known from a
    difference of two states alone, and then no better than these are."""
    import torch

    rounding = 8 * torch.finfo(getattr(torch, dtype, torch.float32)).eps
    if not name.startswith("branch") or "branch_rms" not in before:
        return max(_SIZES, rounding)
    (at, state), (_, branch) = before["state_rms"], before["branch_rms"]
    if len(branch) != len(blocks):
        return max(_SIZES, rounding)
    held = dict(zip(at.tolist(), state.tolist(), strict=True))
    beside = np.array([held.get(block, 0.0) for block in blocks.tolist()])
    with np.errstate(all="ignore"):
        return np.fmax(max(_SIZES, rounding), rounding * beside / branch)


def _measured(module: nn.Module, batch: Any, seed: int) -> Curves:
    """What is held against the record, under the random numbers of a seed."""
    import torch

    from depthgauge.trace.measuring import measure_module

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _curves(measure_module(module, batch, instruments=[*SEEN]))


def _draws(module: nn.Module, batch: Any) -> bool:
    first, second = (_measured(module, batch, seed)["state_rms"][1] for seed in (0, 1))
    return not np.array_equal(first, second, equal_nan=True)


def _still(module: nn.Module, batch: Any) -> Curves:
    """The same where nothing is dropped: in evaluation mode, which is then as it was."""
    from depthgauge.trace.inventory import inventory
    from depthgauge.trace.untouched import untouched

    with untouched(inventory(module)):
        module.eval()
        return _measured(module, batch, 0)
