"""A forward that was put on a module itself, and what becomes of it in a copy: a function is not
copied, so that one which holds the module runs the original's layers."""

from __future__ import annotations

from collections.abc import Collection
from types import FunctionType, MethodType
from typing import Any

from torch import nn

__all__ = ["holds", "restored"]


def restored(module: nn.Module, copied: nn.Module) -> None:
    """Of a method of the module that was compiled and put in its place, give the copy its own."""
    inside = getattr(vars(module).get("forward"), "_torchdynamo_orig_callable", None)
    while isinstance(inside, FunctionType) and _of_compiler(inside):
        inside = getattr(inside, "__wrapped__", None)
    if isinstance(inside, MethodType) and inside.__self__ is module:
        copied.forward = MethodType(inside.__func__, copied)


def _of_compiler(function: FunctionType) -> bool:
    return str(function.__globals__.get("__name__")).startswith("torch._dynamo")


def holds(function: Any, modules: Collection[nn.Module]) -> bool:
    """Whether a function holds one of these modules: as its own, in a closure, as a default, or in
    a function that it holds."""
    todo, seen = [function], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, nn.Module):
            if one in modules:
                return True
        elif isinstance(one, MethodType):
            todo += [one.__self__, one.__func__]
        elif isinstance(one, FunctionType):
            for cell in one.__closure__ or ():
                try:
                    todo.append(cell.cell_contents)
                except ValueError:  # not filled yet
                    continue
            todo += [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
            todo.append(getattr(one, "__wrapped__", None))
    return False
