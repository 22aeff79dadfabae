"""Python code as a target: where a module, its batch and its loss come from.

    package.module:callable      imported, with the current directory first on the path
    path/file.py:callable        executed, with the file's folder first on the path

The callable may be dotted (``model.py:Factory.make``). What it returns is a module,
``(module, batch)`` or ``(module, batch, loss)``; a module that stands there ready made is taken as
it is. Nothing is imported before it is used, torch neither.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from depthgauge.errors import DepthgaugeError, SpecificationError, TargetError, nearest
from depthgauge.trace.lookup import (
    FILE,
    callables_of,
    described,
    files_of,
    looked_up,
    raised,
    short,
)

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "Target",
    "arguments_of",
    "called",
    "deep",
    "defaults",
    "is_code",
    "load",
    "made_by",
    "whole_numbers",
]

#: No equation has a colon. What follows it is judged by load, which knows better words.
_MODULE: Final = re.compile(r"[^\s()=]+:(?![/\\])\S*")
EXPECTED: Final = "a module, (module, batch) or (module, batch, loss)"
#: What is in the name of an argument that says how deep a network is.
_DEEP: Final = re.compile("layer|depth|block|deep|stage", re.IGNORECASE)
#: An annotation that is a whole number, or one or None; no list of them.
_INT: Final = re.compile(r"(?:^|\|\s*|Optional\[)\s*int\b")
#: Words that Python reads as true text, whatever they say.
_SPELLED: Final = {"true": "True", "false": "False", "none": "None", "null": "None"}


@dataclass(frozen=True, eq=False)
class Target:
    """A module and what its maker gave beside it.

    ``batch`` is a tensor, a tuple or list of arguments, or a dict of keyword arguments; ``loss``
    is a callable of the module's output; either is None when it was not given. ``name`` is the
    text as given.
    """

    module: nn.Module
    batch: Any | None
    loss: Any | None
    name: str


def is_code(text: str) -> bool:
    """Whether ``text`` is meant as Python code, not as an equation; nothing is looked up."""
    return bool(FILE.fullmatch(text) or _MODULE.fullmatch(text))


def arguments_of(texts: Iterable[str], what: str = "--arg") -> dict[str, object]:
    """``KEY=VALUE`` by key: a VALUE is a Python literal, else it is text. ``what`` they are in the
    sentence of an error.

    Raises SpecificationError for a text without '=', a key that is no identifier, a key given
    twice, and ``true``, ``false``, ``none``, ``null``: as text each of them would count as true.
    """
    found: dict[str, object] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key.isidentifier():
            raise SpecificationError(f"{what} is '{text}', expected KEY=VALUE, such as depth=3")
        if key in found:
            raise SpecificationError(f"{what} gives '{key}' twice; give it once")
        if value in _SPELLED:
            raise SpecificationError(
                f"{what} is '{text}', which Python would read as text; write "
                f"{key}={_SPELLED[value]}, or {key}=\"'{value}'\" for the text"
            )
        found[key] = _literal(value)
    return found


def _literal(text: str) -> object:
    try:
        with warnings.catch_warnings():  # about a backslash, say
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def load(text: str, arguments: Mapping[str, object] = {}) -> Target:
    """The module that ``text`` names, made by its callable from ``arguments``.

    Raises SpecificationError when the text or the arguments lead nowhere, TargetError when what
    they lead to cannot be run or is no module. A KeyboardInterrupt passes.
    """
    with looked_up(text) as (value, owner, attribute, module):
        result = _made(value, owner, attribute, arguments, text, module)
    return _target(result, text)


def called(builder: Callable[..., Any], arguments: Mapping[str, object], name: str) -> Target:
    """The module that a function in hand makes, under the same rules; an error of ours passes."""
    if why := _misfit(builder, None, name, arguments):
        raise SpecificationError(f"'{name}' {why}")
    try:
        result = builder(**arguments)
    except DepthgaugeError:
        raise
    except (Exception, SystemExit) as error:
        files = files_of(inspect.getmodule(builder), builder)
        raise raised(f"'{name}'", error, files, todo="") from error
    return _target(result, name)


def defaults(
    target: str | Callable[..., Any], arguments: Mapping[str, object] = {}
) -> dict[str, object]:
    """The arguments of a callable that have a default, with it; errors as of ``load``, also where
    it does not take the ``arguments``."""
    from torch import nn

    if isinstance(target, str):
        with looked_up(target) as (value, owner, attribute, _):
            if isinstance(value, nn.Module) or not callable(value):
                return {}
            why = _misfit(value, owner, attribute, arguments)
            name, builder = target, value
    else:
        name, builder = getattr(target, "__name__", type(target).__name__), target
        why = _misfit(target, None, name, arguments)
    if why:
        raise SpecificationError(f"'{name}' {why}")
    try:
        parameters = inspect.signature(builder).parameters.values()
    except (ValueError, TypeError):  # written in C
        return {}
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    empty = inspect.Parameter.empty
    return {p.name: p.default for p in parameters if p.kind in kinds and p.default is not empty}


def whole_numbers(text: str) -> list[str]:
    """The arguments of a callable that are whole numbers by their default or annotation; those
    whose name is of a depth come first, also without either. Errors as of ``load``."""
    with looked_up(text) as (value, _, _, _):
        try:
            parameters = inspect.signature(value).parameters.values()
        except (ValueError, TypeError):  # no callable, or written in C
            return []
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    found = [p for p in parameters if p.kind in kinds and _whole(p)]
    return [p.name for p in sorted(found, key=lambda p: not deep(p.name))]


def deep(name: str) -> bool:
    """Whether an argument's name is that of a depth: ``layers``, ``n_layer``, ``depth_``."""
    return bool(_DEEP.search(name))


def _whole(p: inspect.Parameter) -> bool:
    empty = inspect.Parameter.empty
    if p.default is not empty and p.default is not None:
        return type(p.default) is int
    if p.annotation is not empty:
        return p.annotation is int or bool(_INT.search(str(p.annotation)))
    return deep(p.name)


def made_by(text: str, beside: str, given: object, wanted: type) -> Any:
    """What the callable that ``text`` names makes of ``given``, an instance of ``wanted``; a name
    without a colon is one of the file or module that ``beside`` names.

    Raises as ``load`` does, TargetError for what is no such instance.
    """
    if ":" not in text and is_code(beside):
        text = f"{beside.rpartition(':')[0]}:{text}"
    with looked_up(text) as (value, owner, _, module):
        if not callable(value):
            raise TargetError(
                f"'{text}' is {described(value)}, expected a callable; {callables_of(owner)}"
            )
        try:
            made = value(given)
        except (Exception, SystemExit) as error:
            raise raised(f"'{text}'", error, files_of(module, value)) from error
    if not isinstance(made, wanted):
        why = "; is its return missing?" if made is None else ""
        raise TargetError(f"'{text}' gives {described(made)}, expected an {wanted.__name__}{why}")
    return made


def _made(
    value: Any,
    owner: Any,
    attribute: str,
    arguments: Mapping[str, object],
    text: str,
    module: ModuleType,
) -> Any:
    from torch import nn

    if isinstance(value, nn.Module):
        if arguments:
            raise SpecificationError(
                f"'{text}' is a module already made, which takes no arguments; leave out "
                f"{', '.join(arguments)}"
            )
        return value
    if not callable(value):
        raise TargetError(
            f"'{text}' is {described(value)}, expected a callable that returns a module; "
            f"{callables_of(owner)}"
        )
    if why := _misfit(value, owner, attribute, arguments):
        raise SpecificationError(f"'{text}' {why}")
    try:
        return value(**arguments)
    except (Exception, SystemExit) as error:
        raise raised(f"'{text}'", error, files_of(module, value)) from error


def _misfit(
    value: Callable[..., Any], owner: object, attribute: str, arguments: Mapping[str, object]
) -> str:
    """``""``, or why the callable cannot be called with these arguments."""
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):  # written in C: the call itself will tell
        return ""
    empty = inspect.Parameter.empty
    parameters = list(signature.parameters.values())
    bare = signature.replace(
        parameters=[each.replace(annotation=empty) for each in parameters], return_annotation=empty
    )
    shown = f"its signature is {short(attribute.rpartition('.')[2] + str(bare))}"
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in arguments:
            if name not in named:
                return f"takes no argument '{name}'{nearest(name, named)}; {shown}"
    needed = [p for p in parameters if p.default is empty and p.kind is not p.VAR_KEYWORD]
    needed = [p for p in needed if p.kind is not p.VAR_POSITIONAL]
    missing = [p.name for p in needed if p.kind is p.POSITIONAL_ONLY or p.name not in arguments]
    if not missing:
        return ""
    if inspect.isclass(owner) and missing[0] == parameters[0].name == "self":
        return (
            f"is a method of {owner.__name__}, a class that is not instantiated; make it a "
            f"staticmethod, or write a function that calls it"
        )
    if needed[0].kind is inspect.Parameter.POSITIONAL_ONLY:
        return f"takes '{missing[0]}' by position only; write a function that gives it; {shown}"
    words = ", ".join(f"'{name}'" for name in missing)
    plural = "s" if len(missing) > 1 else ""
    return f"needs the argument{plural} {words}; give --arg {missing[0]}=VALUE; {shown}"


def _target(result: Any, text: str) -> Target:
    from torch import Tensor, nn

    parts = result if isinstance(result, tuple) else (result,)
    module, batch, loss = (*parts, None, None, None)[:3]
    if isinstance(module, type):
        raise TargetError(
            f"'{text}' gives the class {module.__name__}, which is not instantiated; give "
            f"{module.__name__}()"
        )
    if not isinstance(module, nn.Module) or len(parts) > 3:
        why = "; is its return missing?" if result is None else ""
        raise TargetError(f"'{text}' gives {described(result)}, expected {EXPECTED}{why}")
    if isinstance(batch, Mapping):
        batch = dict(batch)
        if not all(isinstance(key, str) for key in batch):
            raise TargetError(f"'{text}' gives a batch whose keys are not all names of arguments")
    elif not (batch is None or isinstance(batch, Tensor | tuple | list)):
        raise TargetError(
            f"'{text}' gives a batch that is {described(batch)}, expected a tensor, a tuple or "
            f"list of arguments or a dict of keyword arguments; put a single argument into a tuple"
        )
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        raise TargetError(
            f"'{text}' gives a loss that is the class {loss.__name__}, which is not instantiated; "
            f"give {loss.__name__}()"
        )
    if loss is not None and not callable(loss):
        raise TargetError(
            f"'{text}' gives a loss that is {described(loss)}, expected a callable of the module's "
            f"output"
        )
    return Target(module, batch, loss, text)
