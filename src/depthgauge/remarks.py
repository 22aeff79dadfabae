"""What the numbers of a profile mean where their names alone would name the wrong cause."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from depthgauge.dead import DeadLayer, dead_layers, rounding, said
from depthgauge.sites import ALIKE
from depthgauge.summaries import has_loss, spread

if TYPE_CHECKING:
    from depthgauge.profile import Profile

__all__ = ["by_design", "remarks"]

_ALIKE: Final = (
    "all examples are alike at the input already, so correlation, dead units and what else "
    "compares examples say nothing of the depth; give a batch of different examples"
)
_POSITIONS_ALIKE: Final = (
    "all positions of an example are alike at the input already, so what compares them says "
    "nothing of the depth"
)
#: What comes of a step along a loss's gradient.
_OF_A_LOSS: Final = ("functional_update", "branch_update", "update_to_weight")
#: What tells two examples apart, 1 - cosine, has collapsed below this share of what it was.
COLLAPSED: Final = 0.1

_SHOWN: Final = 3
_NO_LOSS: Final = (
    "no loss was given: what one step changes is that of the output along a random cotangent, "
    "whose size is no training loss's"
)


def remarks(profile: Profile) -> list[str]:
    """A sentence each: collapse, values that a format cannot hold, updates that are lost, steps
    that are too long for the curvature, what was not taken as it would be in training. Of several
    seeds the notes are those of the first."""
    found = profile.settings.get("instruments")
    notes = found if isinstance(found, Mapping) else {}
    trained = has_loss(profile)
    of_one = [*_precision(notes.get("precision", {})), *_parity(notes.get("parity", {}))]
    of_one += _until(notes)
    of_one += _narrow(notes.get("spectrum", {}))
    of_one += _foreign(notes)
    of_one += _stiffness(notes.get("stiffness", {}))
    if len(profile.seeds) > 1:
        of_one = [f"{line} (seed {profile.seeds[0]})" for line in of_one]
    causes, dead = profile.settings.get("causes"), dead_layers(profile)
    return [
        *(map(str, causes) if isinstance(causes, list | tuple) else ()),
        *([str(blind)] if (blind := profile.settings.get("blind")) else []),
        *_placed(profile.settings.get("batch_axis"), profile.settings.get("batch_axis_reason")),
        *_woken(profile.settings.get("waking")),
        *said(profile, dead),
        *_collapse(profile, "correlation", "examples come", dead),
        *_collapse(profile, "token_correlation", "positions of an example come", dead),
        *of_one,
        *_replaced(notes, profile.not_measured.values()),
        *([_NO_LOSS] if not trained and any(name in profile for name in _OF_A_LOSS) else []),
    ]


def _placed(axis: object, reason: object) -> Iterator[str]:
    """That examples are not along the first axis of the batch, where the pass says so."""
    if axis and reason:
        yield (
            f"examples are counted along axis {axis} of the batch, since {reason}: if its first "
            f"axis holds examples, that layer mixes them (batch_first=True does not)"
        )


def _woken(paths: object) -> Iterator[str]:
    """That layers of zeros stop the gradient at the start alone."""
    if isinstance(paths, list | tuple) and paths:
        yield by_design(paths)


def by_design(paths: Sequence[str]) -> str:
    """What is to be known of layers of zeros that the first step wakes."""
    others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return (
        f"'{paths[0]}'{others} {'are' if others else 'is'} zero at the start, which lets no "
        f"gradient through before it has moved: by design of a zero last layer, which the first "
        f"step moves; measure again after a few steps"
    )


def _collapse(
    profile: Profile, quantity: str, what: str, dead: Sequence[DeadLayer]
) -> Iterator[str]:
    """Of the states in front of a layer that cuts the stream: what is alike behind it is so for
    another reason."""
    of_examples = quantity == "correlation"
    if of_examples and profile.settings.get("examples") == ALIKE:
        yield _ALIKE
        return
    if not (found := profile.by_block(quantity)):
        return
    end = min((_reached(one) for one in dead if one.cut), default=len(profile.sites))
    count = sum(1 for block in found[0] if _last_state(profile, block) < end)
    blocks, values = found[0][:count], found[1][:count]
    if not count:
        return
    apart = 1 - np.array([spread(row).median for row in values])  # NaN where a state is 0
    if apart[0] <= rounding(profile):
        yield _ALIKE if of_examples else _POSITIONS_ALIKE
        return
    with np.errstate(invalid="ignore"):
        below = np.flatnonzero(apart < COLLAPSED * apart[0])
    if not below.size or not apart[-1] < COLLAPSED * apart[0]:
        return
    at = f"{1 - apart[-1]:.3f} at block {blocks[-1]}, {1 - apart[0]:.3f} at block {blocks[0]}"
    line = (
        f"collapse: all {what} to point one way (mean cosine {at}; a tenth of what told "
        f"them apart is left at block {blocks[int(below[0])]})"
    )
    if of_examples and _some_dead(profile, end, {one.site.index for one in dead}):
        line += "; units that are dead are so because the examples are alike"
    yield line


def _reached(one: DeadLayer) -> int:
    """The row of the first state that a dead layer makes: activations before the first block stand
    behind the input's row."""
    return 0 if one.site.block == 0 else one.site.index


def _last_state(profile: Profile, block: int) -> int:
    return max(s.index for s in profile.sites if s.role == "state" and s.block == block)


def _some_dead(profile: Profile, end: int, whole: Collection[int]) -> bool:
    """Whether some units of layers that are not dead as a whole are, in front of row ``end``."""
    if "dead_fraction" not in profile:
        return False
    column = profile.columns["dead_fraction"]
    rows = [row < end and row not in whole for row in column.rows]
    return bool((column.values[rows] > 0).any())


def _precision(note: Mapping[str, Any]) -> Iterator[str]:
    if not note:
        return
    meant = note.get("arithmetic")
    if first := note.get("first_nonfinite"):
        yield f"{meant} against float64: not finite from {_place(first)} on"
    for name, room in note.get("headroom", {}).items():
        if not (under := room["first_under_0"]):
            continue
        more = room["under_0"] - 1
        after = f", and {more} value{'s' if more > 1 else ''} after it" if more else ""
        if not math.isfinite(under["largest"]):
            yield f"{_place(under)} makes values that are not finite in float64{after}"
            break  # in every format
        size = f"{under['largest']:.3g}, too large by {-under['bits']:.2g} binary digits"
        yield f"{name} cannot hold what {_place(under)} makes ({size}){after}"
    for name, scaling in (note.get("loss_scaling") or {}).items():
        if not (scaling["flushed"] or 0) > 0.01:
            continue
        least = scaling["flushed_when_scaled"]
        yield (
            f"{name} makes {scaling['flushed']:.0%} of the parameters' gradients zero; {least:.0%} "
            f"with the loss scaled by 2^{scaling['bits']}, the most that overflows none of them"
        )
    for name, lost in note.get("lost_updates", {}).items():
        if not isinstance(lost, Mapping) or not (frozen := lost.get("frozen")):
            continue
        others = f" and {len(frozen) - _SHOWN} more" if len(frozen) > _SHOWN else ""
        yield (
            f"in {name} weights a step of {note['lost_updates']['optimizer']} changes nothing of "
            f"{', '.join(frozen[:_SHOWN])}{others}: every update is under half a unit in the last "
            f"place"
        )


def _until(notes: Mapping[str, Any]) -> Iterator[str]:
    """That Jacobians lead to another state than the one asked for: once for all instruments."""
    each = (notes.get(name, {}).get("until_note") for name in ("jacobian", "blocks", "spectrum"))
    if said := next(filter(None, each), None):
        yield f"Jacobians lead to the last state: {said}"


def _narrow(note: Mapping[str, Any]) -> Iterator[str]:
    """That a state on the way has too few numbers for all directions."""
    if narrowest := note.get("narrowest"):
        where = f"the state made in '{narrowest['path']}'" if narrowest["path"] else "a state"
        count = narrowest["numbers"]
        yield (
            f"directions: of the {note['of']} singular values from end to end "
            f"{note['exactly_lost']} are exactly 0, since {where} has {count} "
            f"number{'' if count == 1 else 's'} an example"
        )


def _foreign(notes: Mapping[str, Any]) -> Iterator[str]:
    """That the optimiser has parameters of something else: once for all instruments."""
    lost = notes.get("precision", {}).get("lost_updates") or {}
    each = (notes.get("updates", {}), notes.get("stiffness", {}), lost)
    if count := next(filter(None, (note.get("foreign_parameters") for note in each)), 0):
        plural = count > 1
        yield (
            f"the optimizer holds {count} parameter{'s' * plural} that {'are' if plural else 'is'} "
            f"not the model's: {'they stay' if plural else 'it stays'} where "
            f"{'they are' if plural else 'it is'} in the steps measured here"
        )


def _parity(note: Mapping[str, Any]) -> Iterator[str]:
    if why := note.get("not_compared"):
        yield f"precision: nothing was compared with {why}"
    parts = [
        f"{word} by {max(errors.values()):.2g}"
        for word, key in (
            ("outputs", "output_error"),
            ("gradients of the input", "input_gradient_error"),
            ("of parameters", "parameter_gradient_error"),
        )
        if (errors := note.get(key))
    ]
    if parts:
        yield f"{note['against']} differs from float64, at most: {', '.join(parts)}"


def _stiffness(note: Mapping[str, Any]) -> Iterator[str]:
    """What the learning rate is against the curvature."""
    ratio, where = note.get("ratio"), note.get("ratio_at")
    if where is None or ratio is None or math.isnan(ratio):
        return
    at = where if where == "step 0" else f"{where} steps"
    groups = note.get("groups") or [note]
    name = " and ".join(dict.fromkeys(group["optimizer"]["name"] for group in groups))
    rates = sorted({group["learning_rate"] for group in groups})
    rate = " to ".join(f"{r:g}" for r in (rates[0], rates[-1])[: len(rates)])
    if math.isinf(ratio):
        yield f"stiffness: {name} at learning rate {rate} leaves what is finite {at}"
        return
    point, loose = note[where], "" if note["converged"] else "; the curvature has not converged"
    if "groups" in note:
        yield (
            f"stiffness: the curvature scaled by each parameter's learning rate ({rate}) over the "
            f"stability limit of its group ({name}) is {ratio:.3g} of that limit, {at}{loose}"
        )
        return
    of = f" ({of})" if (of := str(note.get("of", ""))).startswith("the cross-entropy of") else ""
    conditioned = point.get("preconditioned", {}).get("largest")
    curvature = point.get("largest") if conditioned is None else conditioned
    kind = "largest curvature" if conditioned is None else "preconditioned curvature"
    yield (
        f"stiffness: learning rate {rate} times the {kind} {curvature:.3g} is {ratio:.3g} of "
        f"the stability limit of {name}, {at}{loose}{of}"
    )


def _replaced(notes: Mapping[str, Any], reasons: Collection[str]) -> Iterator[str]:
    """What was emulated, or taken in another way than asked for: a line for each such fact, unless
    it is the reason why something was not measured."""
    for line in notes.get("precision", {}).get("notes", ()):
        if line not in reasons:
            yield f"precision: {line}"
    note = notes.get("stiffness", {})
    looks = [note, *(look for look in note.values() if isinstance(look, Mapping))]
    for look in looks:
        if why := look.get("product_reason"):
            differ = look.get("product") == "finite difference"
            yield (
                f"stiffness: products of the Hessian are finite differences of gradients, since "
                f"{why}"
                if differ
                else f"stiffness: {why}"
            )
    if copied := note.get("precision"):
        yield f"stiffness: taken on {copied}"
    if names := notes.get("updates", {}).get("sparse_made_dense"):
        others = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield f"updates: the sparse gradient of {', '.join(names[:_SHOWN])}{others} was made dense"


def _place(found: Mapping[str, Any]) -> str:
    return (
        f"'{found['path']}' ({found['function']})"
        if found["path"]
        else (f"the model itself ({found['function']})")
    )
