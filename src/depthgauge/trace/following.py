"""``Module.__call__`` while somebody follows it: hooks on all modules cost twice as much."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any, Final, Protocol

from torch import nn

from depthgauge.trace.inventory import COMPILED

__all__ = ["Follower", "begin", "end"]


class Follower(Protocol):
    """Is told of every module that runs in its thread."""

    def enter(self, module: nn.Module) -> None:
        """``module`` is about to run."""
        ...

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """``module`` has run."""
        ...


#: Followers at work by thread, and what ``Module.__call__`` was before the first of them.
_FOLLOWING: Final[dict[int, tuple[Follower, ...]]] = {}
_CALL: Final[list[Callable[..., Any]]] = [nn.Module.__call__]
_LOCK: Final = Lock()


def begin(follower: Follower) -> None:
    """Tell ``follower`` of every module that runs in this thread from now on."""
    thread = get_ident()
    with _LOCK:
        if not _FOLLOWING:
            _CALL[0] = nn.Module.__call__
            nn.Module.__call__ = _called  # type: ignore[method-assign]
        _FOLLOWING[thread] = (*_FOLLOWING.get(thread, ()), follower)


def end(follower: Follower) -> None:
    """Tell it no more; after the last one ``Module.__call__`` is what it was."""
    thread = get_ident()
    with _LOCK:
        _FOLLOWING[thread] = tuple(r for r in _FOLLOWING[thread] if r is not follower)
        if not _FOLLOWING[thread]:
            del _FOLLOWING[thread]
        if not _FOLLOWING:
            nn.Module.__call__ = _CALL[0]  # type: ignore[method-assign]


def _called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """``Module.__call__`` while a follower is at work; of a compiled module, whose wrapper calls it
    in a way of its own, followers are told as of any other."""
    followers = _FOLLOWING.get(get_ident())
    if followers is None:  # another thread's model
        return _CALL[0](module, *args, **kwargs)
    told = module
    if COMPILED in module._modules and isinstance(inner := module._modules[COMPILED], nn.Module):
        told = inner
    for follower in followers:
        follower.enter(told)
    output = _CALL[0](module, *args, **kwargs)
    for follower in followers:
        follower.leave(told, args, output)
    return output
