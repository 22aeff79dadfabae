"""Today's subject: what a specification or a builder is now, to be commissioned or compared.

Fingerprints are of numbers, not of words: of every weight as it is drawn under each seed, in the
precision of the run, and of the batch. torch is imported where they are taken.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthgauge.equation.latex import to_latex
from depthgauge.equation.nodes import SCALARS, Block, Let
from depthgauge.equation.text import to_text
from depthgauge.errors import SpecificationError, expect
from depthgauge.jsonable import jsonable
from depthgauge.record.blocks import Block as ModuleBlock
from depthgauge.record.blocks import as_drawn
from depthgauge.record.document import equation_hash, hashed
from depthgauge.record.modules import layers_of
from depthgauge.record.parts import Source, Subject
from depthgauge.record.same import inits_in

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from depthgauge.network.spec import Network
    from depthgauge.study.specification import Specification

__all__ = [
    "batch_hash",
    "bias_is_drawn",
    "builder_subject",
    "drawn_hash",
    "equation_subject",
    "module_hash",
    "source_of",
    "subject_of",
]

#: What a builder may return: a module, (module, batch) or (module, batch, loss).
Build = Callable[[int], Any]


def subject_of(
    specification: Specification, target: str = "", depths: Iterable[int] | None = None
) -> Subject:
    """The subject of a specification: its equation under its seeds, weights and batch drawn.

    ``target`` is what the user called it (the equation, without one), ``depths`` those of a sweep;
    without them those that the specification itself asks for, and its own depth with them.
    """
    from depthgauge.arguments import seeds_of
    from depthgauge.study.specification import Specification

    todo = "read_specification(path) reads one, Specification(network) makes one"
    expect("specification", specification, Specification, "a depthgauge.Specification", todo)
    network, batch = specification.network, specification.batch
    seeds, _ = seeds_of(specification.seed)
    if depths is None:
        asked = specification.commission.get("depths") or ()
        depths = sorted({*asked, network.depth}) if asked else ()
    block = network.block
    drawn = {seed: _drawn(network, seed, batch, specification.dtype) for seed in seeds}
    return Subject(
        target=target or to_text(block),
        kind="equation",
        equation=to_text(block),
        equation_hash=equation_hash(to_text(block)),
        latex=to_latex(block),
        scalars=_scalars(block),
        init={name: to_text(init) for name, init in network.chosen.items()},
        depths=tuple(depths),
        depth=network.depth,
        width=network.width,
        tokens=network.state_shape[0] if network.layout == "tokens" else None,
        size=network.state_shape[-1] if network.layout == "images" else None,
        branches=network.branches,
        m=network.count.m * network.depth,
        placement=network.count.placement,
        draws=network.draws,
        batch=batch if isinstance(batch, int) else len(batch),
        dtype=specification.dtype,
        device=specification.device,
        seeds=seeds,
        arguments={"optimizer": specification.optimizer, "lr": specification.step.rate},
        weights={str(seed): weights for seed, (weights, _) in drawn.items()},
        data=hashed("".join(data for _, data in drawn.values()).encode()),
    )


def equation_subject(stored: Subject, equation: str) -> Subject:
    """The stored subject with another equation, whose free scalars are those of before where it
    does not bind them itself; for a comparison of equations alone."""
    from depthgauge.equation.parse import parse
    from depthgauge.errors import EquationError

    scalars: Mapping[str, str] = stored.scalars
    try:
        block = parse(equation)
    except EquationError:
        used = {name: text for name, text in scalars.items() if _uses(equation, name)}
        if not used:
            raise
        block = parse(equation, used)
    text = to_text(block)
    init = dict(stored.init)
    if stored.kind == "equation":  # what an equation says of its layers goes with it
        own = inits_in(parse(stored.equation))
        init = {n: i for n, i in init.items() if n not in own} | inits_in(block)
    return stored.model_copy(
        update={"equation": text, "equation_hash": equation_hash(text), "init": init}
    )


def builder_subject(
    target: str,
    build: Build,
    seeds: Sequence[int],
    *,
    arguments: Mapping[str, object] | None = None,
    source: str | None = None,
    depths: Iterable[int] = (),
) -> Subject:
    """The subject of code that builds a module: ``build(seed)`` gives (module, batch[, loss]).

    Built once under each seed, with PyTorch's generator seeded before; one pass of the first reads
    its stream. ``source``: the file of its module, see ``source_of``.

    Raises SpecificationError where it gives no batch, ModelError where the module cannot be run.
    """
    import torch

    from depthgauge.trace.measuring import measure_module

    weights, data, profile = dict[str, str](), dict[str, str](), None
    layers: dict[str, str] = {}
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            built = build(seed)
        module, batch = (*built, None)[:2] if isinstance(built, tuple) else (built, None)
        if batch is None:
            raise SpecificationError(
                f"'{target}' gives no batch; return (module, batch) or give --input, such as "
                f'--input "float 8x3x32x32"'
            )
        weights[str(seed)], data[str(seed)] = module_hash(module), batch_hash(batch)
        if profile is None:
            layers = layers_of(module)
            profile = measure_module(module, batch, instruments=["state_rms"], name=target)
    if profile is None:
        raise SpecificationError(f"'{target}' was given no seed; name at least one")
    held, why = _source(source)
    return Subject(
        target=target,
        kind="builder",
        equation=profile.equation,
        equation_hash=equation_hash(profile.equation),
        depths=tuple(depths),
        depth=profile.depth,
        width=profile.width,
        branches=profile.branches,
        m=tuple(m for stream in profile.streams for m in stream["m"]),
        placement=", ".join(dict.fromkeys(str(s["placement"]) for s in profile.streams)),
        batch=profile.batch,
        dtype=profile.dtype,
        device=str(profile.settings["device"]),
        seeds=tuple(seeds),
        arguments=jsonable(arguments or {}),
        source=held,
        source_reason=why or None,
        layers=layers,
        weights=weights,
        data=hashed("".join(data.values()).encode()),
        batches=data,
    )


def source_of(target: str | Callable[..., Any]) -> str | None:
    """The file that a builder stands in: of ``path/file.py:callable``, ``module:callable`` or a
    function; None where there is none (a notebook, a built-in)."""
    if not isinstance(target, str):
        try:
            return inspect.getsourcefile(inspect.unwrap(target))
        except TypeError:
            return None
    head = target.rpartition(":")[0] or target
    if head.endswith(".py"):
        return os.path.expanduser(head)
    known = getattr(sys.modules.get(head), "__file__", None)
    if known:
        return str(known)
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(head)
    except (ImportError, ValueError):
        return None
    finally:
        sys.path.remove(os.getcwd())
    return spec.origin if spec else None


# -------------------------------------------------------------------------- fingerprints


def module_hash(module: nn.Module, names: Mapping[str, str] = {}, dtype: str = "") -> str:
    """Of every parameter and buffer of a module: name, precision, shape, numbers. ``names``: those
    that count instead of its own, ``dtype``: the precision that its numbers are taken in."""
    import torch

    kind = getattr(torch, dtype) if dtype else None
    named = [*module.named_parameters(), *module.named_buffers()]
    return _tensors_hash(
        (names.get(name, name), x if kind is None or not x.is_floating_point() else x.to(kind))
        for name, x in named
    )


def drawn_hash(
    module: nn.Module, network: Network, blocks: Sequence[ModuleBlock], dtype: str
) -> str:
    """Of what is drawn in a module that the equation of ``network`` built: that of its weights as
    a subject has it, by block and layer, wherever the ``blocks`` stand in the module; ``dtype``:
    the precision to take them in.

    Biases are among it where they are drawn, which most are not: they begin at 0.
    """
    import torch

    layers = {layer.name: layer for layer in network.layers.weights}
    kind = getattr(torch, dtype)
    named: list[tuple[str, Tensor]] = []
    parameters = dict(module.named_parameters())
    for number, block in enumerate(blocks, 1):
        own = block.weights
        ordered = {name: own[name] for name in (*layers, *own) if name in own}  # as they are drawn
        for name, path in ordered.items():
            parameter, layer = parameters[path].detach(), layers.get(name)
            shape = () if layer is None else layer.shape
            held = parameter.to(kind).reshape(as_drawn(parameter.shape, shape))
            named.append((f"{number}.{name}", held))
            bias = parameters.get(f"{path.removesuffix('weight')}bias")
            if bias is not None and bias_is_drawn(network, name):
                named.append((f"{number}.{name}.bias", bias.detach().to(kind)))
    return _tensors_hash(named)


def bias_is_drawn(network: Network, layer: str) -> bool:
    """Whether the bias of a layer is drawn as its weight is, and does not begin at 0."""
    chosen = network.chosen
    return layer in chosen and (chosen[layer].kind == "torch" or f"{layer}.bias" in chosen)


def _drawn(network: Network, seed: int, batch: int | Tensor, dtype: str) -> tuple[str, str]:
    """The hashes of all weights of a network, and of its batch, drawn or given, under one seed."""
    import torch

    from depthgauge.arguments import dtype_of
    from depthgauge.network.draws import INPUT, draws
    from depthgauge.network.weights import Member, Weights

    kind, source = dtype_of(dtype), draws(network.draws, seed)
    if isinstance(batch, int):
        shape = torch.Size((batch, *network.state_shape))
        numbers = source.source(INPUT, "input").normal(shape.numel())
        batch = torch.from_numpy(numbers).reshape(shape)
    data = _tensors_hash([("input", batch.to(kind))])
    member = Member(source, network.chosen)
    weights = Weights([member], network.layers.weights, kind, torch.device("cpu"))

    def each() -> Iterator[tuple[str, Tensor]]:
        for block in range(1, network.depth + 1):
            _, scope = network.program.coefficients(block)
            for name, tensor in weights.blocks([block], [[scope]])[0].items():
                yield f"{block}.{name}", tensor

    return _tensors_hash(each()), data


def batch_hash(batch: Any) -> str:
    """Of every tensor of a batch: its place, precision, shape, numbers."""
    from depthgauge.trace.batches import tensors

    return _tensors_hash(tensors(batch))


def _tensors_hash(named: Iterable[tuple[str, Tensor]]) -> str:
    import torch

    found = hashlib.sha256()
    for name, tensor in named:
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat: torch.Tensor = tensor.detach().cpu().contiguous().reshape(-1)
        found.update(flat.view(torch.uint8).numpy().data)
    return f"sha256:{found.hexdigest()}"


def _source(file: str | None) -> tuple[Source | None, str]:
    if file is None:
        return None, "the builder stands in no file"
    path = Path(file)
    try:
        found = hashed(path.read_bytes())
    except OSError as error:
        return None, f"the builder's file cannot be read: {(error.strerror or str(error)).lower()}"
    real, here = path.resolve(), Path.cwd().resolve()
    shown = real.relative_to(here).as_posix() if real.is_relative_to(here) else path.name
    return Source(file=shown, hash=found), ""


def _scalars(block: Block) -> dict[str, str]:
    """The free scalars, which stand in front of a block's other statements."""
    return {
        statement.name: to_text(statement.bound)
        for statement in block.statements
        if isinstance(statement, Let) and isinstance(statement.bound, SCALARS)
    }


def _uses(equation: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", equation) is not None
