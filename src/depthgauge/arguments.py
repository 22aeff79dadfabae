"""What a caller may give to ``measure``, checked once, at the door.

Each function returns what was asked for or raises: what came, what was expected, what to do.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from depthgauge.equation.nodes import Block
from depthgauge.errors import (
    NetworkError,
    SpecificationError,
    TargetError,
    nearest,
    nearest_name,
)
from depthgauge.instruments.arithmetic import ARITHMETICS, typed
from depthgauge.instruments.subject import Effort
from depthgauge.network.spec import Network, whole_number
from depthgauge.sites import QUANTITIES

#: Precisions a network may run in. Statistics are in float32 or wider always.
DTYPES: Final[dict[str, torch.dtype]] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

RIVERS: Final = ("rms", "mean", "max", "nonfinite")
QUANTILE_NAMES: Final = ("q01", "q50", "q99", "q999")


def _quantity(river: str, statistic: str) -> str:
    if statistic == "nonfinite":
        return "nonfinite_fraction" if river == "state" else "gradient_nonfinite_fraction"
    return f"{river}_{statistic}"


#: More examples than anybody measures; a typing slip.
LARGEST_BATCH: Final = 100_000_000

#: Instruments that run the network again, in the order in which they run: the dearest last, so
#: that a budget leaves them what the others did not need, and behind all those whose passes nothing
#: ends half-way, so that they starve nobody.
HEAVY: Final = (
    "jacobian",
    "directions",
    "stiffness",
    "blocks",
    "spectrum",
    "updates",
    "precision",
)

#: Of the spectrum, what is one number at a site.
SPECTRUM: Final = (
    "effective_rank_participation",
    "effective_rank_entropy",
    "stable_rank",
    "lost_direction_fraction",
)

#: Of the precision instrument.
PRECISION: Final = (
    "relative_error_state",
    "relative_error_gradient",
    "flushed_gradient_fraction",
    "headroom_float16_bits",
    "headroom_bfloat16_bits",
    "headroom_float8_e4m3_bits",
    "headroom_float8_e5m2_bits",
    "last_binades_fraction",
    "underflow_headroom_bits",
)

#: What each quantity is made of: (which river, the gates, or a heavier instrument; statistic).
PARTS: Final[dict[str, tuple[str, str]]] = {
    **{_quantity(r, s): (r, s) for r in ("state", "gradient") for s in (*RIVERS, *QUANTILE_NAMES)},
    "live_derivative_fraction": ("gate", "live"),
    "saturated_fraction": ("gate", "saturated"),
    "dead_fraction": ("gate", "dead"),
    **{f"derivative_{q}": ("gate", q) for q in ("q05", "q50", "q95")},
    "branch_rms": ("branch", "rms"),
    "branch_to_stream": ("branch", "ratio"),
    "branch_stream_cosine": ("branch", "cosine"),
    "correlation": ("state", "correlation"),
    "token_correlation": ("state", "token_correlation"),
    "apjn": ("jacobian", "apjn"),
    "apjn_standard_error": ("jacobian", "apjn_standard_error"),
    **{name: ("spectrum", name) for name in SPECTRUM},
    **{name: ("precision", name) for name in PRECISION},
    **{name: ("blocks", name) for name in ("block_gain", "block_loss")},
    **{
        name: ("directions", name)
        for name in ("direction_gain", "component_gain", "class_gain", "class_share")
    },
    **{
        name: ("updates", name)
        for name in ("update_to_weight", "functional_update", "branch_update", "update_alignment")
    },
    "stiffness": ("stiffness", "ratio"),
}
assert set(PARTS) == set(QUANTITIES)

#: Instruments by name, and presets; a quantity's own name is an instrument too.
INSTRUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "rivers": tuple(_quantity(r, s) for r in ("state", "gradient") for s in RIVERS),
    "quantiles": tuple(_quantity(r, s) for r in ("state", "gradient") for s in QUANTILE_NAMES),
    "gates": tuple(name for name, (part, _) in PARTS.items() if part == "gate"),
    "branches": tuple(name for name, (part, _) in PARTS.items() if part == "branch"),
    "correlation": ("correlation", "token_correlation"),
    **{heavy: tuple(name for name, (part, _) in PARTS.items() if part == heavy) for heavy in HEAVY},
}
_FAST = ("rivers", "quantiles", "gates", "branches", "correlation")
PRESETS: Final[dict[str, tuple[str, ...]]] = {
    "fast": _FAST,
    "balanced": (*_FAST, "jacobian", "directions"),
    "thorough": tuple(INSTRUMENTS),
    "all": tuple(INSTRUMENTS),
}


def memory_of(memory: int) -> int:
    size = whole_number(memory)
    if size is None or size < 1:
        raise SpecificationError(f"memory is {memory!r}, expected a whole number of bytes")
    return size


def network_of(target: object, given: Mapping[str, Any]) -> Network:
    changes = {name: value for name, value in given.items() if value is not None}
    if isinstance(target, Network):
        return dataclasses.replace(target, **changes) if changes else target
    if isinstance(target, str | Block):
        return Network(target, **changes)
    raise TargetError(
        f"a target of type {type(target).__name__} cannot be measured; give an equation "
        f"(text or tree), a Network or an nn.Module"
    )


def networks_of(targets: object) -> list[Network]:
    if isinstance(targets, str | Block | Network) or not isinstance(targets, Iterable):
        raise TargetError(
            f"networks is of type {type(targets).__name__}, expected a list of equations or "
            f"Networks; a single one goes to measure()"
        )
    return [network_of(target, {}) for target in targets]


def seeds_of(seed: int | Iterable[int]) -> tuple[tuple[int, ...], bool]:
    one = whole_number(seed)
    if one is not None:
        each: list[int | None] = [one]
    else:
        each = [whole_number(s) for s in seed] if isinstance(seed, Iterable) else []
    seeds = tuple(s for s in each if s is not None)
    if not seeds or len(seeds) < len(each) or min(seeds) < 0:
        raise SpecificationError(
            f"seed is {seed!r}, expected a whole number of at least 0 or several of them"
        )
    if len(set(seeds)) < len(seeds):
        raise SpecificationError(f"seed is {seed!r}, which names a seed twice; name each once")
    return seeds, one is None


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    name = dtype_name(dtype) if isinstance(dtype, torch.dtype) else str(dtype)
    if name not in DTYPES:
        near = typed(name) or [nearest_name(name, ARITHMETICS)]
        words = " or ".join(f"'{one}'" for one in near)
        compared = (
            f"; {words} is compared with float64: Effort(arithmetic='{near[0]}'), or depthgauge "
            f"measure TARGET --dtype {near[0]} --against float64"
        )
        said = compared if near[0] and near[0] not in DTYPES else nearest(name, DTYPES)
        raise SpecificationError(f"dtype is '{name}', expected one of {', '.join(DTYPES)}{said}")
    return DTYPES[name]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def device_of(device: str | torch.device) -> torch.device:
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).split("\n")[0].split(". ")[0]
        raise SpecificationError(
            f"device is '{device}', which this PyTorch cannot use ({reason}); try cpu"
        ) from None
    if chosen.type == "meta":
        raise SpecificationError("device is 'meta', which holds no numbers to measure; try cpu")
    return chosen


def batch_of(batch: int | Tensor, networks: Sequence[Network]) -> int | Tensor:
    if isinstance(batch, Tensor):
        if batch.is_complex() or batch.layout != torch.strided or batch.device.type == "meta":
            raise NetworkError(
                f"batch is a tensor of {batch.dtype}, {batch.layout}, on {batch.device}; give "
                f"real numbers in an ordinary tensor"
            )
        for network in networks:
            if batch.shape[1:] != network.state_shape or not len(batch):
                sizes = {"rows": "width", "tokens": "tokens and width", "images": "width and size"}
                raise NetworkError(
                    f"batch has the shape {tuple(batch.shape)}, but a state of this network is "
                    f"(batch, {', '.join(map(str, network.state_shape))}); give the network the "
                    f"{sizes[network.layout]} of the data"
                )
        return batch.detach()
    examples = whole_number(batch)
    if examples is None or not 1 <= examples <= LARGEST_BATCH:
        said = repr(batch) if len(repr(batch)) < 40 else f"of type {type(batch).__name__}"
        raise SpecificationError(
            f"batch is {said}, expected a whole number of examples from 1 to {LARGEST_BATCH}, or "
            f"a tensor"
        )
    return examples


def quantities_of(instruments: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(instruments, Iterable):
        raise SpecificationError(
            f"instruments is {instruments!r}, expected a preset or names of instruments"
        )
    asked = [instruments] if isinstance(instruments, str) else list(instruments)
    asked = [name for word in asked for name in str(word).split(",")]
    known = (*PRESETS, *INSTRUMENTS, *QUANTITIES)
    wanted: set[str] = set()
    for word in asked:
        if word not in known:
            raise SpecificationError(
                f"instruments names '{word}', expected one of "
                f"{', '.join((*PRESETS, *INSTRUMENTS))} or a quantity{nearest(word, known)}"
            )
        for name in PRESETS.get(word, (word,)):
            wanted.update(INSTRUMENTS.get(name, (name,)))
    return tuple(name for name in QUANTITIES if name in wanted)


def chosen(
    instruments: str | Iterable[str], directions: Tensor | None, labels: Tensor | None
) -> tuple[str, ...]:
    """The quantities that are wanted: directions or labels ask for their instrument."""
    wanted = set(quantities_of(instruments))
    if directions is not None:
        wanted.add("component_gain")
    if labels is not None:
        wanted |= {"class_gain", "class_share"}
    return tuple(name for name in QUANTITIES if name in wanted)


def effort_of(effort: Effort | None) -> Effort:
    """The effort, its budget counted from now."""
    if effort is not None and not isinstance(effort, Effort):
        raise SpecificationError(
            f"effort is of type {type(effort).__name__}, expected depthgauge.Effort(...)"
        )
    return dataclasses.replace(effort or Effort(), began=time.perf_counter())


def aims_of(
    directions: Tensor | None, labels: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Directions as ``(k, n)`` and labels as ``(B,)`` or ``(B, T)``."""
    for name, aim in (("directions", directions), ("labels", labels)):
        if aim is not None and not isinstance(aim, Tensor):
            raise SpecificationError(
                f"{name} is of type {type(aim).__name__}, expected a tensor of real numbers"
            )
        if aim is not None and aim.is_complex():
            raise SpecificationError(
                f"{name} are {dtype_name(aim.dtype)}, expected a tensor of real numbers"
            )
    if directions is not None:
        given = directions.detach()
        directions = given[None] if given.dim() == 1 else given
        lengths = torch.linalg.vector_norm(directions.double(), dim=-1)
        if (
            directions.dim() != 2
            or not directions.numel()
            or not bool((lengths.isfinite() & (lengths > 0)).all())
        ):
            raise SpecificationError(
                f"directions have the shape {tuple(directions.shape)}, expected one vector (n,) or "
                f"several (k, n), of finite numbers that are not all zero"
            )
    if labels is not None and (labels.dim() not in (1, 2) or labels.is_floating_point()):
        raise SpecificationError(
            f"labels are {str(labels.dtype).removeprefix('torch.')} of the shape "
            f"{tuple(labels.shape)}, expected whole numbers of the shape (examples,) or "
            f"(examples, positions)"
        )
    return directions, labels


def alone(examples: int, positions: int) -> dict[str, str]:
    """Which correlations have no second vector to be with, and why. ``positions``: of an example, 0
    where no state has any."""
    found = {}
    if examples < 2:
        found["correlation"] = "a batch of one example has no second one"
    if not positions:
        found["token_correlation"] = "no state has positions: (examples, positions, width)"
    elif positions < 2:
        found["token_correlation"] = "one position an example has no second one"
    return found
