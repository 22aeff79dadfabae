"""Everything a model holds, found in one walk over its modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

__all__ = ["COMPILED", "Inventory", "Renamed", "inventory"]

#: The name of what is inside the wrapper of a compiled module, which is no part of a path.
COMPILED: Final = "_orig_mod"


@dataclass(frozen=True)
class Inventory:
    """Modules, parameters and buffers with their paths, each once, in the model's order."""

    modules: list[tuple[str, nn.Module]]
    parameters: list[tuple[str, nn.Parameter]]
    buffers: list[tuple[str, Tensor]]


class Renamed(nn.Module):
    """A module whose parts go by the names in ``held``."""

    def __init__(self, model: nn.Module, held: Inventory) -> None:
        super().__init__()
        self.model, self.held = model, held

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def inventory(model: nn.Module) -> Inventory:
    """One walk where ``named_parameters`` and its like take one each."""
    if isinstance(model, Renamed):
        return model.held
    modules: list[tuple[str, nn.Module]] = []
    parameters: list[tuple[str, nn.Parameter]] = []
    buffers: list[tuple[str, Tensor]] = []
    seen: set[int] = set()
    todo: list[tuple[str, nn.Module]] = [("", model)]
    while todo:
        path, module = todo.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        modules.append((path, module))
        stem = f"{path}." if path else ""
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                parameters.append((stem + name, parameter))
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                buffers.append((stem + name, buffer))
        if module._modules:
            todo += [
                (path if name == COMPILED else stem + name, child)
                for name, child in reversed(module._modules.items())
                if child is not None
            ]
    return Inventory(modules, parameters, buffers)
