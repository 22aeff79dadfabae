"""``measure``: a network in, a Profile out. Both rivers at every block, for any number of seeds."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from depthgauge._version import __version__
from depthgauge.equation.nodes import Block, Init, Scalar
from depthgauge.equation.text import to_text
from depthgauge.errors import NetworkError, SpecificationError, TargetError, nearest
from depthgauge.instruments.gates import Gates
from depthgauge.instruments.rivers import River
from depthgauge.network.activations import Gate
from depthgauge.network.draws import DrawOrder
from depthgauge.network.norms import width_axis
from depthgauge.network.spec import Network
from depthgauge.network.stream import MEMORY, Ensemble, signature, stream
from depthgauge.profile import Column, Profile
from depthgauge.sites import QUANTITIES, Site

Progress = Callable[[int, int], None]

#: Precisions a network may run in. Statistics are in float32 or wider always.
DTYPES: Final[dict[str, torch.dtype]] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_RIVERS: Final = ("rms", "mean", "max", "nonfinite")
_QUANTILES: Final = ("q01", "q50", "q99", "q999")


def _quantity(river: str, statistic: str) -> str:
    if statistic == "nonfinite":
        return "nonfinite_fraction" if river == "state" else "gradient_nonfinite_fraction"
    return f"{river}_{statistic}"


#: What each quantity is made of: (which river or the gates, statistic).
_PARTS: Final[dict[str, tuple[str, str]]] = {
    **{_quantity(r, s): (r, s) for r in ("state", "gradient") for s in (*_RIVERS, *_QUANTILES)},
    "live_derivative_fraction": ("gate", "live"),
    "saturated_fraction": ("gate", "saturated"),
    "dead_fraction": ("gate", "dead"),
}
assert set(_PARTS) == set(QUANTITIES)

#: Instruments by name, and presets; a quantity's own name is an instrument too.
INSTRUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "rivers": tuple(_quantity(r, s) for r in ("state", "gradient") for s in _RIVERS),
    "quantiles": tuple(_quantity(r, s) for r in ("state", "gradient") for s in _QUANTILES),
    "gates": tuple(name for name, (part, _) in _PARTS.items() if part == "gate"),
}
PRESETS: Final[dict[str, tuple[str, ...]]] = {
    "fast": ("rivers", "quantiles", "gates"),
    "all": tuple(INSTRUMENTS),
}


def measure(
    target: str | Block | Network,
    batch: int | Tensor = 128,
    *,
    depth: int | None = None,
    width: int | None = None,
    init: Mapping[str, str | Init] | str | None = None,
    scalars: Mapping[str, str | float | Scalar] | None = None,
    tokens: int | None = None,
    size: int | None = None,
    draws: DrawOrder | None = None,
    seed: int | Iterable[int] = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    instruments: str | Iterable[str] = "fast",
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Profile:
    """Measure both rivers at every block of a network given as an equation.

    A Gaussian batch (or the tensor given) goes down through the depth, a gradient of RMS 1 comes
    back; every state, gradient and activation is turned into a few numbers where it is seen. What
    each quantity averages over is said in ``depthgauge.sites.QUANTITIES``.

    ``target``: an equation (text or tree) or a ``Network``; ``depth``, ``width``, ``init``, ``scalars``,
    ``tokens``, ``size`` and ``draws`` are the Network's, and replace those of a Network given.
    ``batch``: how many examples, or a tensor ``(batch, *state)``. ``seed``: one integer, or several:
    then the Profile has a seed axis and all of them run as one batched pass. ``instruments``: a
    preset, or names of instruments and quantities. ``memory``: bytes that weights and intermediate
    results may take; past it blocks are drawn and run again. ``progress(done, total)`` is called
    after every block.

    Raises EquationError, NetworkError or SpecificationError for what cannot be measured. Overflow
    and NaN are results: ``Profile.first_nonfinite``.
    """
    network = _network(
        target,
        {
            "depth": depth,
            "width": width,
            "init": init,
            "scalars": scalars,
            "tokens": tokens,
            "size": size,
            "draws": draws,
        },
    )
    return measure_all(
        [network],
        batch,
        seed=seed,
        dtype=dtype,
        device=device,
        instruments=instruments,
        memory=memory,
        progress=progress,
    )[0]


def measure_all(
    networks: Sequence[Network],
    batch: int | Tensor = 128,
    *,
    seed: int | Iterable[int] = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    instruments: str | Iterable[str] = "fast",
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> list[Profile]:
    """Measure several networks under the same seeds; those whose trees have one shape run together.

    Scales, initialisers and seeds do not change a tree's shape, so a sweep over them is one batched
    pass. The profiles come in the order of ``networks``. Arguments as in ``measure``.
    """
    seeds, seed_axis = _seeds(seed)
    run = _Run(
        seeds=seeds,
        seed_axis=seed_axis,
        batch=_batch(batch, networks),
        dtype=_dtype(dtype),
        device=_device(device),
        quantities=_quantities(instruments),
        memory=memory,
    )
    groups: dict[object, list[int]] = {}
    for i, network in enumerate(networks):
        groups.setdefault(signature(network), []).append(i)
    total = sum(2 * networks[i].depth for i in range(len(networks))) * len(seeds)
    done = 0

    def step(members: int) -> Progress:
        before = done
        return lambda d, t: progress(before + d * members, total) if progress else None

    profiles: dict[int, Profile] = {}
    for group in groups.values():
        members = [(networks[i], s) for i in group for s in seeds]
        at_once = _members_at_once(networks[group[0]], run)
        columns: list[dict[str, Column]] = []
        for start in range(0, len(members), at_once):
            part = members[start : start + at_once]
            columns.append(_measure_ensemble(part, run, step(len(part))))
            done += 2 * part[0][0].depth * len(part)
        for place, i in enumerate(group):
            wanted = slice(place * len(seeds), (place + 1) * len(seeds))
            profiles[i] = _profile(networks[i], run, columns, wanted)
    return [profiles[i] for i in range(len(networks))]


@dataclasses.dataclass(frozen=True)
class _Run:
    seeds: tuple[int, ...]
    seed_axis: bool
    batch: int | Tensor
    dtype: torch.dtype
    device: torch.device
    quantities: tuple[str, ...]
    memory: int

    def statistics(self, part: str) -> list[str]:
        return [_PARTS[name][1] for name in self.quantities if _PARTS[name][0] == part]


class _Watcher:
    """Feeds what streams past to the instruments."""

    def __init__(self, network: Network, run: _Run, members: int, progress: Progress) -> None:
        depth, per_block = network.depth, len(network.layers.activations)
        self._places = {name: i for i, name in enumerate(network.layers.activations)}
        self.rivers = {
            part: River(run.statistics(part), depth + 1, members) for part in ("state", "gradient")
        }
        self.gates = Gates(
            run.statistics("gate"), depth * per_block, members, width_axis(network.layout)
        )
        self.progress = progress

    def state(self, block: int, h: Tensor) -> None:
        self.rivers["state"].see(block, h)

    def gradient(self, block: int, g: Tensor) -> None:
        self.rivers["gradient"].see(block, g)

    def gate(self, block: int, name: str, rule: Gate, z: Tensor, y: Tensor) -> None:
        self.gates.see((block - 1) * len(self._places) + self._places[name], rule, z, y)


def _measure_ensemble(
    members: Sequence[tuple[Network, int]], run: _Run, progress: Progress
) -> dict[str, Column]:
    networks, seeds = zip(*members, strict=True)
    watcher = _Watcher(networks[0], run, len(members), progress)
    stream(
        Ensemble(networks, seeds),
        watcher,
        batch=run.batch,
        dtype=run.dtype,
        device=run.device,
        memory=run.memory,
    )
    sites = _sites(networks[0])
    rows = {
        role: tuple(site.index for site in sites if site.role == role)
        for role in ("state", "activation")
    }
    columns = {}
    for river in watcher.rivers.values():
        river.flush()
    for name in run.quantities:
        part, statistic = _PARTS[name]
        source = watcher.gates if part == "gate" else watcher.rivers[part]
        columns[name] = Column(
            rows["activation" if part == "gate" else "state"], source.values[statistic]
        )
    return columns


def _members_at_once(network: Network, run: _Run) -> int:
    return 16


def _sites(network: Network) -> tuple[Site, ...]:
    """Input, then each block's activations and the state it gives, in forward order."""
    sites = [Site(0, 0, "input", "state")]
    for block in range(1, network.depth + 1):
        path = f"blocks.{block - 1}"
        for name in network.layers.activations:
            sites.append(Site(len(sites), block, f"{path}.{name}", "activation"))
        sites.append(Site(len(sites), block, path, "state"))
    return tuple(sites)


def _profile(
    network: Network, run: _Run, parts: Sequence[Mapping[str, Column]], wanted: slice
) -> Profile:
    columns = {
        name: Column(
            parts[0][name].rows,
            np.concatenate([part[name].values for part in parts], axis=1)[:, wanted],
        )
        for name in run.quantities
    }
    not_measured = {
        name: "not among the instruments asked for"
        for name in QUANTITIES
        if name not in run.quantities
    }
    if not network.layers.activations:
        for name in INSTRUMENTS["gates"]:
            columns.pop(name, None)
            not_measured[name] = "the equation has no activation"
    return Profile(
        target=to_text(network.block),
        equation=to_text(network.block),
        depth=network.depth,
        width=network.width,
        branches=network.branches,
        streams=(stream_document(network),),
        dtype=_name_of(run.dtype),
        batch=run.batch if isinstance(run.batch, int) else len(run.batch),
        seeds=run.seeds,
        seed_axis=run.seed_axis,
        sites=_sites(network),
        columns=columns,
        settings={
            "init": {name: to_text(init) for name, init in network.chosen.items()},
            "draws": network.draws,
            "state": list(network.state_shape),
            "input": "standard normal" if isinstance(run.batch, int) else "given",
            "cotangent": "standard normal, divided by its RMS",
            "device": str(run.device),
            "versions": {
                "depthgauge": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        },
        not_measured=not_measured,
    )


def stream_document(network: Network) -> dict[str, Any]:
    """The network's one stream under the names of the JSON contract."""
    found = network.count
    return {
        "name": "h",
        "branches": network.branches,
        "inner": network.depth * found.inner,
        "projected": network.depth * found.projected,
        "parallel": network.depth * found.parallel,
        "norm_at": list(found.norm_at),
        "skip": found.skip,
        "placement": found.placement,
        "m": list(found.m) * network.depth if network.depth <= 1024 else list(found.m),
        "segments": 1,
        "states": network.depth + 1,
    }


# ------------------------------------------------------------------- what the user gave


def _network(target: object, given: Mapping[str, Any]) -> Network:
    changes = {name: value for name, value in given.items() if value is not None}
    if isinstance(target, Network):
        return dataclasses.replace(target, **changes) if changes else target
    if isinstance(target, str | Block):
        return Network(target, **changes)
    raise TargetError(
        f"a target of type {type(target).__name__} cannot be measured; give an equation "
        f"(text or tree) or a Network"
    )


def _seeds(seed: int | Iterable[int]) -> tuple[tuple[int, ...], bool]:
    if isinstance(seed, int) and not isinstance(seed, bool):
        seeds, axis = (seed,), False
    else:
        try:
            seeds, axis = tuple(seed), True  # type: ignore[arg-type]
        except TypeError:
            seeds, axis = (), True
    whole = all(isinstance(s, int | np.integer) and not isinstance(s, bool) for s in seeds)
    if not seeds or not whole or min(seeds) < 0:
        raise SpecificationError(
            f"seed is {seed!r}, expected a whole number of at least 0 or several of them"
        )
    if len(set(seeds)) < len(seeds):
        raise SpecificationError(f"seed is {seed!r}, which names a seed twice; name each once")
    return tuple(int(s) for s in seeds), axis


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    name = _name_of(dtype) if isinstance(dtype, torch.dtype) else dtype
    if name not in DTYPES:
        raise SpecificationError(
            f"dtype is '{name}', expected one of {', '.join(DTYPES)}{nearest(str(name), DTYPES)}"
        )
    return DTYPES[name]


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device(device: str | torch.device) -> torch.device:
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0].split(". ")[0]
        raise SpecificationError(
            f"device is '{device}', which this PyTorch cannot use ({reason}); try cpu"
        ) from None
    if chosen.type == "meta":
        raise SpecificationError("device is 'meta', which holds no numbers to measure; try cpu")
    return chosen


def _batch(batch: int | Tensor, networks: Sequence[Network]) -> int | Tensor:
    if isinstance(batch, Tensor):
        for network in networks:
            if batch.shape[1:] != network.state_shape or not len(batch):
                raise NetworkError(
                    f"batch has the shape {tuple(batch.shape)}, but a state of this network is "
                    f"(batch, {', '.join(map(str, network.state_shape))})"
                )
        return batch.detach()
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise SpecificationError(
            f"batch is {batch!r}, expected a whole number of examples, at least 1, or a tensor"
        )
    return batch


def _quantities(instruments: str | Iterable[str]) -> tuple[str, ...]:
    asked = [instruments] if isinstance(instruments, str) else list(instruments)
    asked = [name for word in asked for name in str(word).split(",")]
    known = (*PRESETS, *INSTRUMENTS, *QUANTITIES)
    wanted: set[str] = set()
    for word in asked:
        if word not in known:
            raise SpecificationError(
                f"instruments names '{word}', expected one of {', '.join((*PRESETS, *INSTRUMENTS))} "
                f"or a quantity{nearest(word, known)}"
            )
        for name in PRESETS.get(word, (word,)):
            wanted.update(INSTRUMENTS.get(name, (name,)))
    return tuple(name for name in QUANTITIES if name in wanted)
