"""What goes into a model and what comes out of it: tensors inside tuples, lists and dicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from torch import Tensor, nn

from depthgauge.errors import TargetError

#: Containers inside containers, at most.
DEEPEST: Final = 32

__all__ = ["call", "examples", "mapped", "tensors"]


def tensors(tree: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its path: ``input_ids``, ``0``, ``past.1.key``."""
    if isinstance(tree, Tensor):
        yield path, tree
        return
    if depth > DEEPEST:
        raise TargetError(
            f"'{path.split('.')[0]}' holds containers more than {DEEPEST} deep, or itself; give "
            f"tensors in tuples, lists, dicts or dataclasses"
        )
    for name, item in _items(tree):
        yield from tensors(item, f"{path}.{name}" if path else str(name), depth + 1)


def _items(tree: Any) -> list[tuple[Any, Any]]:
    if isinstance(tree, Mapping):
        return list(tree.items())
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, list | tuple):
        return list(enumerate(tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    return []


def examples(batch: Any, axis: int = 0) -> int:
    """How many examples a batch has: along this axis of the first of its tensors that has it."""
    return next((t.shape[axis] for _, t in tensors(batch) if t.dim() > axis), 1)


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of ``tree`` with its tensors changed; what holds no tensor stays the same object."""
    if isinstance(tree, Tensor):
        return change(tree)
    if not any(True for _ in tensors(tree)):
        return tree
    if isinstance(tree, Mapping):
        changed = {key: mapped(item, change) for key, item in tree.items()}
        return changed if type(tree) is dict else _like(tree, changed)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(item, change) for item in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(item, change) for item in tree)
    fields = {f.name: mapped(getattr(tree, f.name), change) for f in dataclasses.fields(tree)}
    return dataclasses.replace(tree, **fields)


def _like(tree: Any, changed: dict[Any, Any]) -> Any:
    try:
        return type(tree)(changed)
    except Exception:  # a mapping with a constructor of its own: a plain one has the same keys
        return changed


def call(model: nn.Module, batch: Any) -> Any:
    """``model(x)``, ``model(*arguments)`` or ``model(**keywords)``."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple):
        return model(*batch)
    return model(batch)
