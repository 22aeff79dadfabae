"""Python code as a target: where a module, its batch and its loss come from.

    package.module:callable      imported, with the current directory first on the path
    path/file.py:callable        executed, with the file's folder first on the path

The callable may be dotted (``model.py:Factory.make``). What it returns is a module,
``(module, batch)`` or ``(module, batch, loss)``; a module that stands there ready made is taken as
it is. The user's code prints to standard error while it runs here: standard output is for
documents. Nothing is imported before it is used, torch neither.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import os
import pkgutil
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from depthgauge.errors import DepthgaugeError, SpecificationError, TargetError, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = [
    "Target",
    "arguments_of",
    "called",
    "defaults",
    "input_of",
    "is_code",
    "load",
    "made_by",
]

#: The first ".py" that ends the text or stands before a colon: C:\nets\model.py:build has two.
_FILE: Final = re.compile(r"(.+?\.py)(?::(.*))?")
#: No equation has a colon. What follows it is judged by load, which knows better words.
_MODULE: Final = re.compile(r"[^\s()=]+:(?![/\\])\S*")
_DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

EXPECTED: Final = "a module, (module, batch) or (module, batch, loss)"

#: Words that Python reads as true text, whatever they say.
_SPELLED: Final = {"true": "True", "false": "False", "none": "None", "null": "None"}

#: More elements of one input than anybody draws; a typing slip.
LARGEST_INPUT: Final = 1_000_000_000

#: The words of an input and the dtypes of PyTorch.
WORDS: Final[dict[str, str]] = {
    "float": "float32",
    "int": "int64",
    "bool": "bool",
    "float64": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int64": "int64",
    "int32": "int32",
}
_INPUT: Final = re.compile(
    r"\s*(?:([^=<]*?)\s*=)?\s*([^\W\d]\w*)?\s*([^<]*?)\s*(?:<\s*(.*?))?\s*", re.DOTALL
)
_SIZES: Final = re.compile(r"[+-]?[0-9]{1,18}(\s*[x×]\s*[+-]?[0-9]{1,18})*")


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
    return bool(_FILE.fullmatch(text) or _MODULE.fullmatch(text))


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


# ------------------------------------------------------------------------------- loading


def load(text: str, arguments: Mapping[str, object] = {}) -> Target:
    """The module that ``text`` names, made by its callable from ``arguments``.

    Raises SpecificationError when the text or the arguments lead nowhere, TargetError when what
    they lead to cannot be run or is no module. A KeyboardInterrupt passes.
    """
    with _looked_up(text) as (value, owner, attribute, module):
        result = _made(value, owner, attribute, arguments, text, module)
    return _target(result, text)


def called(builder: Callable[..., Any], arguments: Mapping[str, object], name: str) -> Target:
    """The module that a function in hand makes, under the same rules; what it raises passes."""
    if why := _misfit(builder, None, name, arguments):
        raise SpecificationError(f"'{name}' {why}")
    return _target(builder(**arguments), name)


def defaults(
    target: str | Callable[..., Any], arguments: Mapping[str, object] = {}
) -> dict[str, object]:
    """The arguments of a callable that have a default, with it; errors as of ``load``, also where
    it does not take the ``arguments``."""
    from torch import nn

    if isinstance(target, str):
        with _looked_up(target) as (value, owner, attribute, _):
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


def made_by(text: str, beside: str, given: object, wanted: type) -> Any:
    """What the callable that ``text`` names makes of ``given``, an instance of ``wanted``; a name
    without a colon is one of the file or module that ``beside`` names.

    Raises as ``load`` does, TargetError for what is no such instance.
    """
    if ":" not in text and is_code(beside):
        text = f"{beside.rpartition(':')[0]}:{text}"
    with _looked_up(text) as (value, owner, _, module):
        if not callable(value):
            raise TargetError(
                f"'{text}' is {_kind(value)}, expected a callable; {_callables(owner)}"
            )
        try:
            made = value(given)
        except (Exception, SystemExit) as error:
            raise _raised(f"'{text}'", error, _files(module, value)) from error
    if not isinstance(made, wanted):
        why = "; is its return missing?" if made is None else ""
        raise TargetError(f"'{text}' gives {_kind(made)}, expected an {wanted.__name__}{why}")
    return made


@contextmanager
def _looked_up(text: str) -> Iterator[tuple[Any, Any, str, ModuleType]]:
    """What the text names, what that is an attribute of, its name and its module; while it runs,
    imports look where the text looked."""
    file = _FILE.fullmatch(text)
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
            raise SpecificationError(f"'{text}' names no callable; {_callables(module)}")
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
        raise _raised(f"'{text}', when it is imported,", error, {path}) from error
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
            raise _raised(f"'{text}', when it is imported,", error, files) from error
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
                f"'{said}' has no '{name}'{nearest(name, known)}; {_callables(owner)}"
            ) from error
        except (Exception, SystemExit) as error:
            raise _raised(f"'{text}', when it is looked up,", error, _files(module)) from error
        said = f"{said}.{name}" if said != source else f"{source}:{name}"
    return value, owner


def _callables(owner: object, most: int = 8) -> str:
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
            f"'{text}' is {_kind(value)}, expected a callable that returns a module; "
            f"{_callables(owner)}"
        )
    if why := _misfit(value, owner, attribute, arguments):
        raise SpecificationError(f"'{text}' {why}")
    try:
        return value(**arguments)
    except (Exception, SystemExit) as error:
        raise _raised(f"'{text}'", error, _files(module, value)) from error


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
    shown = f"its signature is {_short(attribute.rpartition('.')[2] + str(bare))}"
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
        raise TargetError(f"'{text}' gives {_kind(result)}, expected {EXPECTED}{why}")
    if isinstance(batch, Mapping):
        batch = dict(batch)
        if not all(isinstance(key, str) for key in batch):
            raise TargetError(f"'{text}' gives a batch whose keys are not all names of arguments")
    elif not (batch is None or isinstance(batch, Tensor | tuple | list)):
        raise TargetError(
            f"'{text}' gives a batch that is {_kind(batch)}, expected a tensor, a tuple or list of "
            f"arguments or a dict of keyword arguments; put a single argument into a tuple"
        )
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        raise TargetError(
            f"'{text}' gives a loss that is the class {loss.__name__}, which is not instantiated; "
            f"give {loss.__name__}()"
        )
    if loss is not None and not callable(loss):
        raise TargetError(
            f"'{text}' gives a loss that is {_kind(loss)}, expected a callable of the module's "
            f"output"
        )
    return Target(module, batch, loss, text)


# -------------------------------------------------------------------- what the user's code did


def _raised(what: str, error: BaseException, files: set[str]) -> DepthgaugeError:
    """The sentence for an exception of the user's code."""
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
    said = f": {_short(message)}" if message else ""
    todo = "--debug shows the traceback"
    if isinstance(error, ImportError) and "no known parent package" in message:
        todo = "give a file of a package as package.module:callable"
    return TargetError(f"{what} raised {type(error).__name__}{at}{said}; {todo}")


def _place(error: BaseException, files: set[str]) -> str:
    """``model.py:12``: the deepest frame of the user's file, else of anybody's but ours."""
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    ours = (__file__, importlib.__file__, importlib.util.__file__)
    others = [frame for frame in frames if frame[0] not in ours and frame[0][:1] != "<"]
    theirs = [frame for frame in others if frame[0] in files] or others
    return f"{_shown(theirs[-1][0])}:{theirs[-1][1]}" if theirs else ""


def _files(module: ModuleType, value: object = None) -> set[str]:
    """The files that are the user's: of the module, and of a callable that it imported."""
    files = {getattr(module, "__file__", None) or ""}
    with suppress(TypeError, ValueError, OSError):  # no function and no class
        files.add(inspect.getsourcefile(inspect.unwrap(value)) or "")  # type: ignore[arg-type]
    return files


def _shown(path: str) -> str:
    """The path as seen from the current directory, if it is inside."""
    return path.removeprefix(os.path.join(os.getcwd(), ""))


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return f"a tuple ({', '.join(type(each).__name__ for each in value)})"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a value of type {type(value).__name__}"


# -------------------------------------------------------------------------------- inputs


def input_of(
    texts: str | Sequence[str], seed: int = 0, device: str | torch.device = "cpu"
) -> Tensor | tuple[Tensor, ...] | dict[str, Tensor]:
    """The input that the texts describe: ``[NAME=]TYPE SIZES [<BOUND]``.

        float 8x3x32x32               standard normal, float32
        int 4x128 <50257              uniform on {0, …, 50256}, int64
        input_ids=int 4x128 <50257    by name

    One text is a tensor, several are a tuple in their order; named ones are a dict. TYPE is float,
    int, bool or a dtype's own name. All floats are drawn in float32 and then converted, on the CPU
    and then moved, so that a seed means the same numbers in every precision and on every device.
    One generator serves all texts in their order; the global one is not touched.

    Raises SpecificationError for a text that cannot be read, a size below 1, more than 10⁹
    elements, an int without a bound, a complex type, and names for some of the inputs only.
    """
    from depthgauge.arguments import device_of
    from depthgauge.network.spec import whole_number

    given = [texts] if isinstance(texts, str) else list(texts)
    if not given:
        raise SpecificationError("input is empty, expected TYPE SIZES, such as 'float 8x3x32x32'")
    number = whole_number(seed)
    if number is None or not 0 <= number < 2**64:
        raise SpecificationError(f"seed is {seed!r}, expected a whole number of at least 0")
    drawings = [_drawing(text) for text in given]
    names = [name for name, _ in drawings if name is not None]
    if names and len(names) < len(given):
        raise SpecificationError(
            f"input names {', '.join(names)} and leaves others without a name; name all or none"
        )
    for name in names:
        if names.count(name) > 1:
            raise SpecificationError(f"input gives '{name}' twice; give it once")
    place = device_of(device)

    import torch

    generator = torch.Generator("cpu").manual_seed(number)
    drawn = tuple(draw(generator).to(place) for _, draw in drawings)
    if names:
        return dict(zip(names, drawn, strict=True))
    return drawn[0] if len(drawn) == 1 else drawn


def _drawing(text: str) -> tuple[str | None, Callable[[torch.Generator], Tensor]]:
    """The name in a text, if any, and how its tensor is drawn."""
    import torch

    said = f"input is '{text}'"
    match = _INPUT.fullmatch(text)
    assert match is not None  # every part may be missing
    name, word, sizes, bound = match.groups()
    if name is not None and not name.isidentifier():
        raise SpecificationError(f"{said}, whose name '{name}' is no name of an argument")
    if word is None:
        raise SpecificationError(f"{said}, expected TYPE SIZES, such as 'float 8x3x32x32'")
    if word.startswith("complex"):
        raise SpecificationError(
            f"{said}, but complex numbers are not measured; give float, int or bool"
        )
    if word not in WORDS:
        raise SpecificationError(
            f"{said} of the type '{word}', expected one of {', '.join(WORDS)}{nearest(word, WORDS)}"
        )
    if not _SIZES.fullmatch(sizes):
        raise SpecificationError(f"{said} with the sizes '{sizes}', expected such as 8x3x32x32")
    shape = [int(size) for size in re.split("[x×]", sizes)]
    if min(shape) < 1:
        raise SpecificationError(f"{said}, which has the size {min(shape)}; a size is at least 1")
    if math.prod(shape) > LARGEST_INPUT:
        raise SpecificationError(
            f"{said}, which has {math.prod(shape):,} elements, more than {LARGEST_INPUT:,}; give "
            f"smaller sizes"
        )
    dtype: torch.dtype = getattr(torch, WORDS[word])
    integer = word.startswith("int")
    if integer and bound is None:
        raise SpecificationError(
            f"{said}, which needs a bound; write '{text.strip()} <50257' for numbers from 0 to "
            f"50256"
        )
    if not integer and bound is not None:
        raise SpecificationError(f"{said}, but only an int has a bound; leave '<{bound}' out")
    cpu = torch.device("cpu")  # the user's code may have set another, and another dtype
    if word == "bool":
        return name, lambda g: torch.randint(2, shape, generator=g, dtype=dtype, device=cpu)
    if bound is None:
        return name, lambda g: torch.randn(shape, generator=g, dtype=torch.float32, device=cpu).to(
            dtype
        )
    most = torch.iinfo(dtype).max
    if not re.fullmatch("[0-9]{1,19}", bound) or not 1 <= int(bound) <= most:
        raise SpecificationError(
            f"{said} with the bound '<{bound}', expected a whole number from 1 to {most}"
        )
    high = int(bound)
    return name, lambda g: torch.randint(high, shape, generator=g, dtype=dtype, device=cpu)
