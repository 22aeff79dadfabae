"""``measure``: a network in, a Profile out. Both rivers at every block, for any number of seeds."""

from __future__ import annotations

import dataclasses
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import lru_cache, partial
from threading import Lock
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from depthgauge._version import __version__
from depthgauge.arguments import (
    INSTRUMENTS,
    PARTS,
    aims_of,
    alone,
    batch_of,
    chosen,
    device_of,
    dtype_name,
    dtype_of,
    effort_of,
    memory_of,
    network_of,
    networks_of,
    seeds_of,
)
from depthgauge.equation.nodes import Block, Init, Scalar
from depthgauge.equation.text import to_text
from depthgauge.errors import SpecificationError, expect_callable
from depthgauge.instruments.correlation import same
from depthgauge.instruments.gates import Gates
from depthgauge.instruments.rivers import River
from depthgauge.instruments.subject import Effort, Subject
from depthgauge.network.activations import Gate
from depthgauge.network.draws import DrawOrder
from depthgauge.network.norms import width_axis
from depthgauge.network.spec import Network
from depthgauge.network.stream import (
    MEMORY,
    Ensemble,
    elements_of,
    signature,
    stream,
)
from depthgauge.network.threads import inside, passes
from depthgauge.probing import deepened
from depthgauge.profile import Column, Profile
from depthgauge.sites import ALIKE, QUANTITIES, Site
from depthgauge.subjects import parts_of, subject_of

Progress = Callable[[int, int], None]

#: Elements of the states in one batched pass, at most: more do not stay in a core's cache.
BATCHED_ELEMENTS: Final = 2**17

#: Multiplications of one product from which it is worth sharing among PyTorch's threads.
SHARED_PRODUCT: Final = 2**22

#: Elements of the states in one pass from which passes run in threads.
THREADED_ELEMENTS: Final = 2**15


def measure(
    target: str | Block | Network | nn.Module,
    batch: Any = None,
    loss: Callable[..., Any] | None = None,
    *,
    depth: int | None = None,
    width: int | None = None,
    init: Mapping[str, str | Init] | str | None = None,
    scalars: Mapping[str, str | float | Scalar] | None = None,
    tokens: int | None = None,
    size: int | None = None,
    draws: DrawOrder | None = None,
    seed: int | Iterable[int] = 0,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    instruments: str | Iterable[str] = "fast",
    memory: int = MEMORY,
    directions: Tensor | None = None,
    labels: Tensor | None = None,
    effort: Effort | None = None,
    include: str | None = None,
    exclude: str | None = None,
    batch_axis: int | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Measure both rivers through a network: an equation, or any ``nn.Module``.

    **A module.** ``batch`` is a tensor, a tuple of arguments or a dict of keyword arguments. The
    residual stream is found, nothing is configured; states, branches and activations are read in
    one forward pass, gradients in one backward pass, and the model is left exactly as it was, also
    when it raises. ``loss(output)`` or ``loss(output, batch)`` gives the number whose gradient goes
    back; else a loss among the outputs; else a random cotangent of RMS 1 at the output, drawn from
    ``seed``. ``include`` and ``exclude`` are regular expressions on module names, searched in a
    site's path. ``batch_axis``: of the batch, along which it counts examples; by default what the
    pass says, where attention or a recurrent layer takes ``(positions, examples, width)``, else
    the first. The model runs as it is: in its own mode, precision and place.

    **An equation.** A Gaussian batch (or the tensor given) goes down through the depth, a gradient
    of RMS 1 comes back; every state, gradient and activation is turned into a few numbers where it
    is seen. What each quantity averages over is said in ``depthgauge.sites.QUANTITIES``.

    ``target``: an equation (text or tree) or a ``Network``; ``depth``, ``width``, ``init``,
    ``scalars``, ``tokens``, ``size`` and ``draws`` are the Network's, and replace those of a
    Network given.
    ``batch``: how many examples, or a tensor ``(batch, *state)``. ``seed``: one integer, or
    several: then the Profile has a seed axis and all of them run as one batched pass.
    ``instruments``: a preset, or names of instruments and quantities. ``memory``: bytes that
    weights and intermediate results may take; past it blocks are drawn and run again.
    ``progress(done, total)`` is called after every block.

    **Instruments that run the network again** (presets balanced and thorough): ``effort`` says how
    much they may do. ``directions``, ``(n,)`` or ``(k, n)``, and ``labels``, one for each example
    or each of its positions, are what the directional instrument follows; giving them chooses it.
    An equation's Jacobians are taken in float64, those of a module in its own precision.

    Raises EquationError, NetworkError or SpecificationError for what cannot be measured, ModelError
    with the module's path when a model raises. Overflow and NaN are results:
    ``Profile.first_nonfinite``.
    """
    sizes = {
        "depth": depth,
        "width": width,
        "init": init,
        "scalars": scalars,
        "tokens": tokens,
        "size": size,
        "draws": draws,
    }
    if isinstance(target, nn.Module):
        given = {**sizes, "dtype": dtype, "device": device}
        _refuse_batch(batch, given)
        from depthgauge.trace.measuring import measure_module

        return measure_module(
            target,
            batch,
            loss,
            seed=seed,
            instruments=instruments,
            directions=directions,
            labels=labels,
            effort=effort,
            include=include,
            exclude=exclude,
            batch_axis=batch_axis,
        )
    expect_callable("progress", progress, "a function of (done, total)")
    others = {"loss": loss, "include": include, "exclude": exclude, "batch_axis": batch_axis}
    for name, value in others.items():
        if value is not None:
            raise SpecificationError(
                f"{name} was given with an equation; it is for an nn.Module, so leave it out or "
                f"measure network.module(seed)"
            )
    network = network_of(
        target,
        sizes,
    )
    return measure_all(
        [network],
        128 if batch is None else batch,
        seed=seed,
        dtype="float32" if dtype is None else dtype,
        device="cpu" if device is None else device,
        instruments=instruments,
        directions=directions,
        labels=labels,
        effort=effort,
        memory=memory,
        progress=progress,
    )[0]


def measure_all(
    networks: Sequence[str | Block | Network],
    batch: int | Tensor = 128,
    *,
    seed: int | Iterable[int] = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    instruments: str | Iterable[str] = "fast",
    directions: Tensor | None = None,
    labels: Tensor | None = None,
    effort: Effort | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> list[Profile]:
    """Measure several networks under the same seeds; those whose trees have one shape run together.

    Scales, initialisers and seeds do not change a tree's shape, so a sweep over them is one batched
    pass. The profiles come in the order of ``networks``, each an equation or a Network. Arguments
    as in ``measure``.
    """
    networks = networks_of(networks)
    seeds, seed_axis = seeds_of(seed)
    run = _Run(
        seeds=seeds,
        seed_axis=seed_axis,
        batch=batch_of(batch, networks),
        dtype=dtype_of(dtype),
        device=device_of(device),
        quantities=chosen(instruments, directions, labels),
        memory=memory_of(memory),
    )
    effort, aims = effort_of(effort), aims_of(directions, labels)
    groups: dict[object, list[int]] = {}
    for i, network in enumerate(networks):
        # A scalar that differs between members is a tensor, which in half precision rounds.
        alone = i if run.dtype.itemsize < 4 else None
        groups.setdefault((signature(network), alone), []).append(i)
    counter = _Counter(sum(2 * network.depth for network in networks) * len(seeds), progress)
    profiles: dict[int, Profile] = {}
    for group in groups.values():
        members = [(networks[i], s) for i in group for s in seeds]
        columns = _measure_members(members, run, counter)
        for place, i in enumerate(group):
            wanted = slice(place * len(seeds), (place + 1) * len(seeds))
            profile = _profile(networks[i], run, columns, wanted)
            profiles[i] = deepened(profile, _groups(networks[i], run, aims), run.quantities, effort)
    return [profiles[i] for i in range(len(networks))]


def _refuse_batch(batch: Any, given: Mapping[str, object]) -> None:
    """What an equation takes and a module does not."""
    if named := [name for name, value in given.items() if value is not None]:
        raise SpecificationError(
            f"{named[0]} was given with a module, which has its own; build or convert the model as "
            f"it is to be measured"
        )
    if batch is None or isinstance(batch, int | str):
        raise SpecificationError(
            f"batch is {batch!r}, expected the data for a module: a tensor, a tuple of arguments "
            f"or a dict of keyword arguments"
        )


class _Counter:
    """Block passes that are behind, over all members, counted from several threads."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress, self._done = total, progress, 0
        self._lock = Lock()
        self.stop = False

    def add(self, passes: int) -> None:
        if self.stop:
            raise CancelledError("another thread of this measurement has failed")
        if self._progress is not None:
            with self._lock:
                self._done += passes
                self._progress(self._done, self._total)


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
        return [PARTS[name][1] for name in self.quantities if PARTS[name][0] == part]


class _Watcher:
    """Feeds what streams past to the instruments."""

    def __init__(self, network: Network, run: _Run, members: int, counter: _Counter) -> None:
        depth, per_block = network.depth, len(network.layers.activations)
        self._places = {name: i for i, name in enumerate(network.layers.activations)}
        self.rivers = {
            part: River(run.statistics(part), depth + 1, members) for part in ("state", "gradient")
        }
        self.gates = Gates(
            run.statistics("gate"), depth * per_block, members, width_axis(network.layout)
        )
        self._counter, self._members, self._done = counter, members, 0
        self._depth, self.lost = depth, np.zeros(members, bool)

    def progress(self, done: int, total: int) -> None:
        self._counter.add((done - self._done) * self._members)
        self._done = done

    def state(self, block: int, h: Tensor) -> None:
        self.rivers["state"].see(block, h)
        if block == self._depth:
            self.lost = h.reshape(self._members, -1).isnan().any(1).cpu().numpy()

    def forget_lost_gradients(self) -> None:
        """Make the gradient river of a member NaN where its last state has a NaN.

        Autograd gives numbers there too: comparisons with NaN open and close gates at will.
        """
        for statistic, values in self.rivers["gradient"].values.items():
            values[:, self.lost] = 1.0 if statistic == "nonfinite" else np.nan

    def gradient(self, block: int, g: Tensor) -> None:
        self.rivers["gradient"].see(block, g)

    def gate(self, block: int, name: str, rule: Gate, z: Tensor, y: Tensor) -> None:
        self.gates.see((block - 1) * len(self._places) + self._places[name], rule, z, y)


def _measure_members(
    members: Sequence[tuple[Network, int]], run: _Run, counter: _Counter
) -> dict[str, Column]:
    """Members of one shape: as many in a batched pass as stay in the processor's cache, and the
    passes shared among threads, each with its members' draws, products and statistics.

    PyTorch's own threads would share each product instead, and wait for one another in between;
    that is for products so large that it pays.
    """
    network, elements = members[0][0], elements_of(members[0][0], run.batch)
    cores = torch.get_num_threads() if run.device.type == "cpu" else 1
    if cores > 1 and min(elements, BATCHED_ELEMENTS) * len(members) < cores * THREADED_ELEMENTS:
        cores = 1  # so small that threads would wait for the interpreter
    at_once = max(1, min(BATCHED_ELEMENTS // elements, math.ceil(len(members) / cores)))
    parts = [members[i : i + at_once] for i in range(0, len(members), at_once)]
    sites = _sites_of(network, run)  # looks at a pass of its own, so not in a thread
    large = elements * at_once * network.width >= SHARED_PRODUCT and len(parts) < cores
    if large or inside() or run.device.type != "cpu":
        found = [_measure_ensemble(part, run, counter, sites) for part in parts]
    else:
        cores = min(cores, len(parts))
        share = dataclasses.replace(run, memory=run.memory // cores)
        with passes(cores) as submit:
            tasks = [partial(_measure_ensemble, part, share, counter, sites) for part in parts]
            futures = [submit(task) for task in tasks]
            try:
                found = [future.result() for future in futures]
            except BaseException:  # an interrupt too: the others end at their next block
                counter.stop = True
                raise
    return {
        name: Column(column.rows, np.concatenate([part[name].values for part in found], axis=1))
        for name, column in found[0].items()
    }


def _measure_ensemble(
    members: Sequence[tuple[Network, int]], run: _Run, counter: _Counter, sites: Sequence[Site]
) -> dict[str, Column]:
    networks, seeds = zip(*members, strict=True)
    watcher = _Watcher(networks[0], run, len(members), counter)
    stream(
        Ensemble(networks, seeds),
        watcher,
        batch=run.batch,
        dtype=run.dtype,
        device=run.device,
        memory=run.memory,
    )
    watcher.forget_lost_gradients()
    rows = {
        role: tuple(site.index for site in sites if site.role == role)
        for role in ("state", "activation")
    }
    columns = {}
    for name in run.quantities:
        part, statistic = PARTS[name]
        if part not in ("state", "gradient", "gate"):
            continue
        source = watcher.gates if part == "gate" else watcher.rivers[part]
        columns[name] = Column(
            rows["activation" if part == "gate" else "state"], source.values[statistic]
        )
    return columns


def _groups(
    network: Network, run: _Run, aims: tuple[Tensor | None, Tensor | None]
) -> Iterator[list[Subject] | str]:
    """The network under each seed, for the instruments that run it again."""
    sites = _sites_of(network, run)
    rows, branches = (
        tuple(site.index for site in sites if site.role == role) for role in ("state", "branch")
    )
    for seed in run.seeds:
        found = subject_of(network, seed, run.batch, rows, run.device, *aims, branches)
        yield found if isinstance(found, str) else [found]


def _sites_of(network: Network, run: _Run) -> tuple[Site, ...]:
    """With branches where a block has several, whose own shares are asked for; that of a single one
    stands at the state that it makes."""
    asked = any("branch" in QUANTITIES[q].roles for q in run.quantities if PARTS[q][0] == "updates")
    parts = parts_of(network) if asked and network.count.branches > 1 else ()
    return _sites(network.depth, network.layers.activations, tuple(part.path for part in parts))


@lru_cache(8)
def _sites(depth: int, activations: tuple[str, ...], branches: tuple[str, ...]) -> tuple[Site, ...]:
    """Input, then each block's activations, its branches and the state it gives."""
    sites = [Site(0, 0, "input", "state")]
    for block in range(1, depth + 1):
        path = f"blocks.{block - 1}"
        for name in activations:
            sites.append(Site(len(sites), block, f"{path}.{name}", "activation"))
        for name in branches:
            sites.append(Site(len(sites), block, f"{path}.{name}", "branch"))
        sites.append(Site(len(sites), block, path, "state"))
    return tuple(sites)


def _profile(network: Network, run: _Run, found: Mapping[str, Column], wanted: slice) -> Profile:
    columns = {name: Column(c.rows, c.values[:, wanted]) for name, c in found.items()}
    not_measured = {
        name: "not among the instruments asked for"
        for name in QUANTITIES
        if name not in run.quantities
    }
    for name in INSTRUMENTS["branches"]:
        if name in run.quantities:
            not_measured[name] = (
                "the blocks of an equation run as one program; measure(network.module(seed), "
                "batch) looks at every addition"
            )
    if not network.layers.activations:
        for name in INSTRUMENTS["gates"]:
            columns.pop(name, None)
            not_measured[name] = "the equation has no activation"
    examples = run.batch if isinstance(run.batch, int) else len(run.batch)
    positions = network.state_shape[0] if network.layout == "tokens" else 0
    for name, why in alone(examples, positions).items():
        if columns.pop(name, None) is not None:
            not_measured[name] = why
    return Profile(
        target=to_text(network.block),
        equation=to_text(network.block),
        depth=network.depth,
        width=network.width,
        branches=network.branches,
        streams=(stream_document(network),),
        dtype=dtype_name(run.dtype),
        batch=examples,
        seeds=run.seeds,
        seed_axis=run.seed_axis,
        sites=_sites_of(network, run),
        columns=columns,
        settings={
            "init": {name: to_text(init) for name, init in network.chosen.items()},
            "draws": network.draws,
            "state": list(network.state_shape),
            "input": "standard normal" if isinstance(run.batch, int) else "given",
            **({"examples": ALIKE} if not isinstance(run.batch, int) and same(run.batch) else {}),
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
        "m": list(found.m) * network.depth,
        "segments": 1,
        "states": network.depth + 1,
    }
