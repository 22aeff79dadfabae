"""A module held against the subject of a record: first what it is, then its weights.

Of a network that was commissioned as an equation everything is known, so that the module is run
beside one that is built anew; of one that code built its layers are, and with a batch its blocks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from depthgauge.errors import TargetError
from depthgauge.record.changes import Change, between, subject_changes
from depthgauge.record.parts import Subject
from depthgauge.trace.graph import LISTED, numberless

if TYPE_CHECKING:
    from torch import nn

    from depthgauge.record.folder import Stored

from depthgauge.record.beside import modules_above
from depthgauge.record.equations import of_equation
from depthgauge.record.states import SEEN, state_changes

__all__ = ["layers_of", "module_changes"]

#: Layers that are named one by one.
_MOST: Final = 3


def layers_of(module: nn.Module) -> dict[str, str]:
    """Shapes of the weights, those whose paths differ in numbers alone counted together:
    ``{"blocks.*.up.weight": "12 x [256, 64]"}``."""
    counted: dict[str, Counter[str]] = {}
    for path, parameter in module.named_parameters():
        counted.setdefault(numberless(path), Counter())[str(list(parameter.shape))] += 1
    return {
        pattern: ", ".join(f"{n} x {shape}" for shape, n in shapes.items())
        for pattern, shapes in counted.items()
    }


def module_changes(
    stored: Subject, module: nn.Module, batch: Any = None, kept: Stored | None = None
) -> list[Change]:
    """What of the module is not what was commissioned: depth, width, layers, precision, equation,
    output, and last the weights, which must be those of a seed of the record.

    ``batch``: what the module takes. Of one that code built it lets its blocks be read; without one
    its layers are held against those of the record. ``kept``: the record with its curves; on the
    batch of a seed whose weights the module has, its state is held against them. Of one in which
    the network of an equation stands beside layers of its own the batch shows whether each block
    runs once, in order. Raises ModelError where the module cannot be run on the batch, TargetError
    where it has no numbers.
    """
    empty = [path for path, parameter in module.named_parameters() if parameter.is_meta]
    if empty:
        raise TargetError(
            f"the module has no numbers yet, '{empty[0]}' is on the device meta; ask when its "
            f"weights are there"
        )
    if stored.kind == "equation":
        found, known = of_equation(stored, module, batch)
    else:
        found, known = _of_code(stored, module, batch, kept)
    if not known:
        words = (
            f"the module's weights are not those of the seeds that were commissioned "
            f"({', '.join(stored.weights)}); ask before the first step, and build it under one of "
            f"them"
        )
        found.append(Change("weights", dict(stored.weights), None, words))
    return found


def _of_code(
    stored: Subject, module: nn.Module, batch: Any, kept: Stored | None
) -> tuple[list[Change], bool]:
    """What is another, and whether the weights are those of a seed."""
    from depthgauge.record.subject import module_hash

    found, seen = list[Change](), None
    if batch is not None:
        from depthgauge.trace.measuring import measure_module

        seen = measure_module(module, batch, instruments=[*SEEN])
        shown = {"equation": seen.equation, "depth": seen.depth, "width": seen.width}
        today = stored.model_copy(update={**shown, "dtype": seen.dtype, "branches": seen.branches})
        found += subject_changes(stored, today)
    at, names = _as_layered(stored, module)
    if not found and stored.layers and at is None:
        every = list(between(stored.layers, layers_of(module)))
        found += every[:_MOST]
        if (more := len(every) - _MOST) > 0:
            found.append(Change("layers", None, None, f"and {more} more layers like these"))
    dtype, known = _precision(stored, module if at is None else at, names)
    if dtype is not None and "dtype" not in {change.what for change in found}:
        found.append(dtype)
    if seen is not None and kept is not None and not found:
        own = module_hash(module if at is None else at, names)
        found += state_changes(kept, module, own, seen, batch)
    return found, known


def _precision(
    stored: Subject, module: nn.Module, names: Mapping[str, str]
) -> tuple[Change | None, bool]:
    """Another precision of the weights, and whether they are those of a seed in it: in a narrower
    one they cannot be told."""
    import torch

    from depthgauge.record.subject import module_hash

    weights = stored.weights.values()
    if module_hash(module, names) in weights:
        return None, True
    every = {x.dtype for x in module.parameters() if x.is_floating_point()}
    wanted = getattr(torch, stored.dtype, None)
    if len(every) != 1 or wanted is None or wanted in every:
        return None, False
    (own,) = every
    (change,) = between(stored.dtype, str(own).removeprefix("torch."), "dtype")
    if module_hash(module, names, stored.dtype) in weights:
        return change, True
    if torch.finfo(own).bits < torch.finfo(wanted).bits:
        words = f"{change}, in which its weights cannot be compared"
        return replace(change, sentence=words), True
    return None, False


def _as_layered(stored: Subject, module: nn.Module) -> tuple[nn.Module | None, Mapping[str, str]]:
    """The outermost module in it whose layers are those of the record, and the names that the
    record has for its tensors; layers of the same shapes in the same order may be called otherwise.
    """
    count = sum(int(n) for text in stored.layers.values() for n in re.findall(r"(\d+) x ", text))
    held = Counter(
        above for path, _ in module.named_parameters() for above in ("", *modules_above(path))
    )
    renamed: tuple[nn.Module | None, Mapping[str, str]] = None, {}
    for path, part in module.named_modules() if count else ():
        if held[path] != count:
            continue
        layers = layers_of(part)
        if layers == stored.layers:
            return part, {}
        if renamed[0] is None and (names := _names(stored.layers, layers, part)):
            renamed = part, names
    return renamed


def _names(wanted: Mapping[str, str], own: Mapping[str, str], module: nn.Module) -> dict[str, str]:
    """The path that each tensor of a module has by other patterns of the same shapes and numbers,
    or none where they do not fit."""
    if list(wanted.values()) != list(own.values()):
        return {}
    if any(a.count("*") != b.count("*") for a, b in zip(wanted, own, strict=True)):
        return {}
    patterns, found, above = dict(zip(own, wanted, strict=True)), {}, dict[str, str]()
    for path, _ in module.named_parameters():
        texts = patterns[numberless(path)].split("*")
        numbers = [*LISTED.findall(path), ""]
        found[path] = "".join(a + b for a, b in zip(texts, numbers, strict=True))
        mine, theirs = modules_above(path), modules_above(found[path])
        if len(mine) == len(theirs):
            above |= zip(mine, theirs, strict=True)
        elif mine and theirs:
            above[mine[-1]] = theirs[-1]
    for path, _ in module.named_buffers():
        stem, _, name = path.rpartition(".")
        if stem in above:
            found[path] = f"{above[stem]}.{name}"
    return found
