"""The user's code found: a file executed or a module imported, a dotted name looked up in it, and
what it raises on the way in one sentence.

The user's code prints to standard error while it runs here: standard output is for documents.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from depthgauge.errors import DepthgaugeError, SpecificationError, TargetError, nearest

if TYPE_CHECKING:
    pass

__all__ = ["FILE", "callables_of", "described", "files_of", "looked_up", "raised", "short"]

#: The first ".py" that ends the text or stands before a colon: C:\nets\model.py:build has two.
FILE: Final = re.compile(r"(.+?\.py)(?::(.*))?")
_DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@contextmanager
def looked_up(text: str) -> Iterator[tuple[Any, Any, str, ModuleType]]:
    """What the text names, what that is an attribute of, its name and its module; while it runs,
    imports look where the text looked."""
    file = FILE.fullmatch(text)
    if file:
        source, attribute = file.groups()
    elif ":" in text:
        source, _, attribute = text.rpartition(":")
    else:
        source, attribute = text, None
    if file:
        path = _existing(source, text)
        folder = os.path.dirname(path)
    else:
        _module_name(source, attribute, text)
        folder = os.getcwd()
    with _at_home(folder):
        module = _executed(path, text) if file else _imported(source, folder, text)
        if not attribute:
            raise SpecificationError(f"'{text}' names no callable; {callables_of(module)}")
        value, owner = _attribute(module, source, attribute, text)
        yield value, owner, attribute, module


@contextmanager
def _at_home(folder: str) -> Iterator[None]:
    """Imports look into ``folder`` first, and what is printed goes to standard error."""
    _forget_namesakes(folder)
    importlib.invalidate_caches()
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _forget_namesakes(folder: str) -> None:
    """Forget imported modules of other folders that ``folder`` has by the same name.

    Otherwise the second of old/model.py and new/model.py would be made of the first one's
    parts. What is installed stays, and so does whatever already refers to such a module.
    """
    for name, module in list(sys.modules.items()):
        known = getattr(module, "__dict__", {})
        place = known.get("__file__") or next(iter(known.get("__path__") or ()), None)
        if not isinstance(place, str) or re.search(r"[/\\](site|dist)-packages[/\\]", place):
            continue
        if "." in name or name.startswith("__") or name in (*sys.stdlib_module_names, "depthgauge"):
            continue
        here = os.path.join(folder, name)
        stem = os.path.realpath(re.sub(r"([/\\]__init__)?\.py$", "", place))
        if stem != os.path.realpath(here) and (os.path.isdir(here) or os.path.isfile(here + ".py")):
            for each in [each for each in sys.modules if f"{each}.".startswith(f"{name}.")]:
                del sys.modules[each]


def _existing(path: str, text: str) -> str:
    """The real path of the file, as Python takes it for a script."""
    real = os.path.realpath(os.path.expanduser(path))
    if os.path.isdir(real):
        raise SpecificationError(f"'{text}' is a directory; give a file, such as model.py:build")
    if not os.path.exists(real):
        folder, name = os.path.split(real)
        there = os.listdir(folder) if os.path.isdir(folder) else []
        stems = [each.removesuffix(".py") for each in there if each.endswith(".py")]
        near = nearest(name.removesuffix(".py"), stems).replace("'?)", ".py'?)")
        raise SpecificationError(f"'{text}': no such file{near}")
    return real


def _module_name(source: str, attribute: str | None, text: str) -> None:
    dotted = _DOTTED.fullmatch(source)
    if dotted and attribute is not None:
        return
    if os.path.isdir(os.path.expanduser(source)):
        raise SpecificationError(f"'{text}' is a directory; give a file, such as model.py:build")
    if os.path.isfile(source + ".py"):
        meant = f"; is '{source}.py:{attribute or 'build'}' meant?"
    elif dotted:
        meant = "; name a callable after a colon"
    else:
        meant = ""
    raise SpecificationError(
        f"'{text}' is neither package.module:callable nor file.py:callable{meant}"
    )


def _executed(path: str, text: str) -> ModuleType:
    """The module of a file, new at each call, registered under a name that is the path's own."""
    stem = re.sub(r"\W", "_", os.path.basename(path).removesuffix(".py"))
    name = f"depthgauge_target_{stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecificationError(f"'{text}' cannot be read: {reason}") from error
    before = sys.modules.get(name)
    sys.modules[name] = module
    done = False
    try:
        # Not by the loader: it would write into the user's folder, and could read what is stale.
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
        done = True
    except (Exception, SystemExit) as error:
        raise raised(f"'{text}', when it is imported,", error, {path}) from error
    finally:
        if not done:
            sys.modules.pop(name, None)
            if before is not None:
                sys.modules[name] = before
    return module


def _imported(name: str, folder: str, text: str) -> ModuleType:
    missing, cause, files = name, None, set[str]()
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None:
            files = {spec.origin} if spec.origin else files
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        # Is it the target that is missing, or something that it imports?
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if not absent or not f"{name}.".startswith(f"{absent}."):
            raise raised(f"'{text}', when it is imported,", error, files) from error
        missing, cause = absent, error
    parent = missing.rpartition(".")[0]
    where = getattr(sys.modules.get(parent), "__path__", ()) if parent else [folder]
    near = nearest(missing, [f"{parent}.{m.name}".lstrip(".") for m in pkgutil.iter_modules(where)])
    raise SpecificationError(
        f"'{text}': no module named '{missing}' in the current directory or installed{near}"
    ) from cause


def _attribute(module: ModuleType, source: str, dotted: str, text: str) -> tuple[Any, Any]:
    """What the dotted name leads to, and what it is an attribute of."""
    if not _DOTTED.fullmatch(dotted):
        raise SpecificationError(
            f"'{text}' ends with '{dotted}', expected the name of a callable alone; give arguments "
            f"with --arg KEY=VALUE"
        )
    owner: Any = None
    value: Any = module
    said = source
    for name in dotted.split("."):
        owner = value
        try:
            value = getattr(owner, name)
        except AttributeError as error:
            known = [each for each in dir(owner) if not each.startswith("_")]
            raise SpecificationError(
                f"'{said}' has no '{name}'{nearest(name, known)}; {callables_of(owner)}"
            ) from error
        except (Exception, SystemExit) as error:
            raise raised(f"'{text}', when it is looked up,", error, files_of(module)) from error
        said = f"{said}.{name}" if said != source else f"{source}:{name}"
    return value, owner


def callables_of(owner: object, most: int = 8) -> str:
    """``its callables are build, Net``: what is defined there, else what is imported there."""
    values = {
        name: getattr(owner, name, None)
        for name in getattr(owner, "__dict__", {})
        if not name.startswith("_")
    }
    names = [name for name, value in values.items() if callable(value)]
    if isinstance(owner, ModuleType):
        from torch import nn

        home, made = owner.__name__, (nn.Module, functools.partial)
        own = [
            name
            for name in names
            if isinstance(values[name], made) or getattr(values[name], "__module__", home) == home
        ]
        names = own or names
    if not names:
        return "it has no callables"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    verb = "callable is" if len(names) == 1 else "callables are"
    return f"its {verb} {', '.join(names[:most])}{more}"


def raised(
    what: str, error: BaseException, files: set[str], todo: str = "--debug shows the traceback"
) -> DepthgaugeError:
    """The sentence for an exception of the user's code; ``todo``: what to do about it."""
    place = _place(error, files)
    at = f" at {place}" if place else ""
    if isinstance(error, SyntaxError) and error.filename and os.path.isfile(error.filename):
        return TargetError(
            f"{what} meets invalid Python at {_shown(error.filename)}:{error.lineno}: {error.msg}"
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        return TargetError(
            f"{what} imports '{error.name}'{at}, which is not found; install it, or start where "
            f"it can be imported"
        )
    message = " ".join(str(error).split())
    said = f": {short(message)}" if message else ""
    if isinstance(error, ImportError) and "no known parent package" in message:
        todo = "give a file of a package as package.module:callable"
    done = f"; {todo}" if todo else ""
    return TargetError(f"{what} raised {type(error).__name__}{at}{said}{done}")


def _place(error: BaseException, files: set[str]) -> str:
    """``model.py:12``: the deepest frame of the user's file, else of anybody's but ours."""
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    ours = (_PACKAGE, importlib.__file__, importlib.util.__file__)
    others = [frame for frame in frames if not frame[0].startswith((*ours, "<"))]
    theirs = [frame for frame in others if frame[0] in files] or others
    return f"{_shown(theirs[-1][0])}:{theirs[-1][1]}" if theirs else ""


def files_of(module: ModuleType | None, value: object = None) -> set[str]:
    """The files that are the user's: of the module, and of a callable that it imported."""
    files = {getattr(module, "__file__", None) or ""}
    with suppress(TypeError, ValueError, OSError):  # no function and no class
        files.add(inspect.getsourcefile(inspect.unwrap(value)) or "")  # type: ignore[arg-type]
    return files


def _shown(path: str) -> str:
    """The path as seen from the current directory, if it is inside."""
    return path.removeprefix(os.path.join(os.getcwd(), ""))


def short(text: str, most: int = 160) -> str:
    """The text, cut where it is long."""
    return text if len(text) <= most else text[: most - 1] + "…"


def described(value: object) -> str:
    """What a value is, for a sentence: ``a tuple (Linear, Tensor)``."""
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return f"a tuple ({', '.join(type(each).__name__ for each in value)})"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a value of type {type(value).__name__}"
