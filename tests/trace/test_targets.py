"""Python code as a target: what is loaded, and a sentence for everything that is not."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.errors import SpecificationError, TargetError
from depthgauge.trace.inputs import input_of
from depthgauge.trace.targets import arguments_of, is_code, load

GOOD = """\
import functools
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Sizes:
    width: int = 3
    depth: int = 2


def build(width=3, *, depth=2):
    print("making", width)
    layers = [nn.Linear(width, width) for _ in range(depth)]
    return nn.Sequential(*layers)


def with_batch(width: int = 3):
    return build(width), torch.ones(5, width)


def with_loss():
    return build(), {"input": torch.ones(5, 3)}, lambda y: y.square().mean()


def ready_loss():
    return build(), (torch.ones(5, 3),), nn.MSELoss()


class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.sizes = Sizes(width)
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return self.layer(x)


class Factory:
    @staticmethod
    def make(width=4):
        return Net(width)

    @classmethod
    def other(cls):
        return cls.make(5)

    def method(self):
        return Net()


def anything(**options):
    return Net(**options)


narrow = functools.partial(build, width=2)
made = Net(7)
numbers = [1, 2]
"""

BAD = """\
from typing import NoReturn

import torch
from torch import nn


def needs(width, depth, bias: bool = True):
    return nn.Linear(width, depth, bias)


def one(width):
    return nn.Linear(width, width)


def position(width, /):
    return nn.Linear(width, width)


def deep():
    raise ValueError("width is odd,\\nand must be even")


def raises():
    return deep()


def silent():
    assert False


def inside_torch():
    return nn.Linear(-1, 3)


def leaves() -> NoReturn:
    raise SystemExit(2)


def imports():
    import no_such_package_at_all


def evaluates():
    return eval("1 +")


def nothing():
    nn.Linear(3, 3)


def a_class():
    return nn.ReLU


def a_class_with_batch():
    return nn.ReLU, torch.ones(3)


def a_dict():
    return {"model": nn.ReLU()}


def a_list():
    return [nn.ReLU(), torch.ones(3)]


def turned():
    return torch.ones(3), nn.ReLU()


def four():
    return nn.ReLU(), torch.ones(3), None, 0


def empty():
    return ()


def a_number():
    return nn.ReLU(), 3


def keys():
    return nn.ReLU(), {0: torch.ones(3)}


def a_loss_class():
    return nn.ReLU(), torch.ones(3), nn.MSELoss


def a_loss_number():
    return nn.ReLU(), torch.ones(3), 0.1


class Factory:
    def make(self):
        return nn.ReLU()


class Rate:
    pass


rate = 0.1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, whose modules are forgotten afterwards."""
    before = dict(sys.modules)
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert sys.path == path
    for name in set(sys.modules) - set(before):
        if str(tmp_path) in repr(sys.modules[name]):
            del sys.modules[name]


def write(name: str, text: str) -> Path:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


# ---------------------------------------------------------------------------- what is code


@pytest.mark.parametrize(
    "text",
    [
        "model.py:build",
        "model.py",
        "model.py:",
        "model.py:Factory.make",
        "../my nets/model.py:build",
        "C:\\nets\\model.py:build",
        "package.module:build",
        "package:build",
        "package.module:",
        "package.module:Factory.make",
        "nets/model:build",
        "package.module:build()",
    ],
)
def test_code(text: str) -> None:
    assert is_code(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "h + W2(relu(W1(h)))",
        "u = W(h); h = h + u",
        "h.shape",
        "spec.toml",
        "C:\\specs\\spec.toml",
        "nets/",
        "package.module",
        "https://example.org/model",
    ],
)
def test_no_code(text: str) -> None:
    assert not is_code(text)


# ------------------------------------------------------------------------------ what loads


def test_a_function_of_a_file(here: Path) -> None:
    write("model.py", GOOD)
    target = load("model.py:build")
    assert isinstance(target.module, nn.Sequential)
    assert (target.batch, target.loss, target.name) == (None, None, "model.py:build")


@pytest.mark.parametrize(
    ("name", "arguments", "width"),
    [
        ("build", {}, 3),
        ("build", {"width": 6, "depth": 1}, 6),
        ("anything", {"width": 6}, 6),
        ("narrow", {}, 2),
        ("Net", {}, 3),
        ("Net", {"width": 6}, 6),
        ("made", {}, 7),
        ("made.layer", {}, 7),
        ("Factory.make", {}, 4),
        ("Factory.make", {"width": 6}, 6),
        ("Factory.other", {}, 5),
    ],
)
def test_callables(here: Path, name: str, arguments: dict[str, object], width: int) -> None:
    write("model.py", GOOD)
    module = load(f"model.py:{name}", arguments).module
    assert next(module.parameters()).shape == (width, width)


def test_a_module_that_is_ready_made_is_taken_as_it_is(here: Path) -> None:
    write("ready.py", GOOD)
    target = load("ready:made")
    assert target.module is sys.modules["ready"].made


def test_batches_and_losses(here: Path) -> None:
    write("model.py", GOOD)
    tensor = load("model.py:with_batch", {"width": 2})
    assert isinstance(tensor.batch, torch.Tensor)
    assert tensor.batch.shape == (5, 2)
    assert tensor.loss is None
    keywords = load("model.py:with_loss")
    assert isinstance(keywords.batch, dict)
    assert keywords.loss is not None
    assert keywords.loss(torch.full((2,), 3.0)) == 9
    arguments = load("model.py:ready_loss")
    assert isinstance(arguments.batch, tuple)
    assert isinstance(arguments.loss, nn.MSELoss)


def test_a_module_of_a_package(here: Path) -> None:
    write("nets_a/__init__.py", "")
    write("nets_a/sub/__init__.py", "")
    write("nets_a/sub/model.py", "from ..parts import part\n\ndef build():\n    return part()\n")
    write("nets_a/parts.py", "from torch import nn\npart = nn.ReLU\n")
    assert isinstance(load("nets_a.sub.model:build").module, nn.ReLU)
    assert isinstance(load("nets_a.parts:part").module, nn.ReLU)


def test_an_installed_module() -> None:
    assert isinstance(
        load("torch.nn:Linear", dict(in_features=2, out_features=3)).module, nn.Linear
    )


def test_a_file_imports_what_lies_beside_it(here: Path) -> None:
    write("far/model.py", "import beside_it\n\ndef build():\n    return beside_it.part()\n")
    write("far/beside_it.py", "from torch import nn\npart = nn.ReLU\n")
    assert isinstance(load("far/model.py:build").module, nn.ReLU)


@pytest.mark.parametrize("source", ["{}/model.py:build", "model:build"])
@pytest.mark.parametrize("parts", ["parts_b.py", "parts_b/__init__.py", "parts_b/part.py"])
def test_two_folders_with_parts_of_one_name(
    here: Path, monkeypatch: pytest.MonkeyPatch, source: str, parts: str
) -> None:
    place = "parts_b.part" if parts.endswith("part.py") else "parts_b"
    kinds = {"old": "ReLU", "new": "Tanh"}
    for folder, kind in kinds.items():
        write(
            f"{folder}/model.py", f"from {place} import part\n\ndef build():\n    return part()\n"
        )
        write(f"{folder}/{parts}", f"from torch import nn\npart = nn.{kind}\n")
    for folder in ("old", "new", "old"):
        if source.startswith("model"):
            monkeypatch.chdir(here / folder)
        module = load(source.format(folder)).module
        assert type(module).__name__ == kinds[folder]


def test_a_folder_that_has_a_module_of_an_installed_name_leaves_the_installed_one(
    here: Path,
) -> None:
    write("torch.py", "raise RuntimeError('shadowed')\n")
    write("random.py", "raise RuntimeError('shadowed')\n")
    write("depthgauge/__init__.py", "raise RuntimeError('shadowed')\n")
    write("model.py", "import random\nimport torch\nimport depthgauge\n" + GOOD)
    before = sys.modules["depthgauge"]
    load("model.py:build")
    assert sys.modules["torch"] is torch
    assert sys.modules["depthgauge"] is before


def test_the_current_directory_is_first_on_the_path(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, kind in {"other": "ReLU", ".": "Tanh"}.items():
        write(f"{folder}/first_f.py", f"from torch.nn import {kind} as build\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(here / "other")
        assert isinstance(load("first_f:build").module, nn.Tanh)
        assert sys.path[0] == str(here / "other")


def test_a_file_is_compiled_as_python_would(here: Path) -> None:
    write("model.py", "rate: float = 1\nassert __annotations__ == {'rate': float}\n" + GOOD)
    load("model.py:build")


def test_a_file_is_read_anew_at_each_call(here: Path) -> None:
    write("model.py", "from torch import nn\n\ndef build():\n    return nn.ReLU()\n")
    assert isinstance(load("model.py:build").module, nn.ReLU)
    write("model.py", "from torch import nn\n\ndef build():\n    return nn.Tanh()\n")
    assert isinstance(load("model.py:build").module, nn.Tanh)
    assert [file.name for file in here.iterdir()] == ["model.py"]


def test_a_class_of_a_file_can_be_pickled(here: Path) -> None:
    write("my-model.py", GOOD)
    module = load("my-model.py:Net", {"width": 6}).module
    again = pickle.loads(pickle.dumps(module))
    assert type(again) is type(module)
    assert again.sizes == module.sizes
    assert re.fullmatch("depthgauge_target_my_model_[0-9a-f]{8}", type(module).__module__)


def test_what_fails_is_not_left_behind(here: Path) -> None:
    before = set(sys.modules)
    write("model.py", "x = 1 / 0\n")
    with pytest.raises(TargetError):
        load("model.py:build")
    assert not [name for name in set(sys.modules) - before if name.startswith("depthgauge_target")]


def test_a_file_that_fails_leaves_the_one_before_it(here: Path) -> None:
    write("model.py", GOOD)
    module = load("model.py:Net").module
    write("model.py", "x = 1 / 0\n")
    with pytest.raises(TargetError):
        load("model.py:Net")
    assert type(pickle.loads(pickle.dumps(module))) is type(module)


def test_the_user_prints_to_standard_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("model.py", "print('imported')\n" + GOOD)
    load("model.py:build")
    assert capsys.readouterr() == ("", "imported\nmaking 3\n")


def test_an_interruption_passes(here: Path) -> None:
    write("model.py", "def build():\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load("model.py:build")


def test_the_original_error_is_chained(here: Path) -> None:
    write("model.py", BAD)
    with pytest.raises(TargetError) as caught:
        load("model.py:raises")
    assert isinstance(caught.value.__cause__, ValueError)


def test_torch_is_not_imported_to_tell_code_from_an_equation() -> None:
    code = (
        "import sys; from depthgauge.trace.targets import arguments_of, is_code; "
        "is_code('a.py:b'); arguments_of(['a=1']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -------------------------------------------------------------------------- what does not

LIST = "its callables are needs, one, position, deep, raises, silent, inside_torch, leaves"

#: (target, arguments, the sentence); the file is bad.py.
MISSING: list[tuple[str, dict[str, object], str]] = [
    ("no.py:build", {}, "'no.py:build': no such file"),
    ("bda.py:build", {}, "'bda.py:build': no such file (did you mean 'bad.py'?)"),
    ("nets/bad.py:one", {}, "'nets/bad.py:one': no such file"),
    ("nets.py:build", {}, "'nets.py:build': no such file"),
    (
        "folder.py:build",
        {},
        "'folder.py:build' is a directory; give a file, such as model.py:build",
    ),
    ("folder/", {}, "'folder/' is a directory; give a file, such as model.py:build"),
    ("folder", {}, "'folder' is a directory; give a file, such as model.py:build"),
    ("./folder:build", {}, "'./folder:build' is a directory; give a file, such as model.py:build"),
    (
        "./bad:one",
        {},
        "'./bad:one' is neither package.module:callable nor file.py:callable; is './bad.py:one' "
        "meant?",
    ),
    ("no/bad:one", {}, "'no/bad:one' is neither package.module:callable nor file.py:callable"),
    ("", {}, "'' is neither package.module:callable nor file.py:callable"),
    (
        "torch.nn",
        {},
        "'torch.nn' is neither package.module:callable nor file.py:callable; name a callable after "
        "a colon",
    ),
    (
        "nowhere_c:build",
        {},
        "'nowhere_c:build': no module named 'nowhere_c' in the current directory or installed",
    ),
    (
        "sample_cc:build",
        {},
        "'sample_cc:build': no module named 'sample_cc' in the current directory or installed "
        "(did you mean 'sample_c'?)",
    ),
    (
        "torch.nnn:Linear",
        {},
        "'torch.nnn:Linear': no module named 'torch.nnn' in the current directory or installed "
        "(did you mean 'torch.nn'?)",
    ),
    (
        "sample_c.part:build",
        {},
        "'sample_c.part:build': no module named 'sample_c.part' in the current directory or "
        "installed",
    ),
    ("bad.py", {}, f"'bad.py' names no callable; {LIST} and 16 more"),
    ("bad.py:", {}, f"'bad.py:' names no callable; {LIST} and 16 more"),
    ("sample_c:", {}, "'sample_c:' names no callable; its callable is only"),
    ("constants.py", {}, "'constants.py' names no callable; it has no callables"),
    ("imported.py", {}, "'imported.py' names no callable; its callable is Linear"),
    ("made.py", {}, "'made.py' names no callable; its callable is made"),
    (
        "bad.py:rasies",
        {},
        f"'bad.py' has no 'rasies' (did you mean 'raises'?); {LIST} and 16 more",
    ),
    ("sample_c:xyz", {}, "'sample_c' has no 'xyz'; its callable is only"),
    (
        "bad.py:Factory.mak",
        {},
        "'bad.py:Factory' has no 'mak' (did you mean 'make'?); its callable is make",
    ),
    (
        "bad.py:one()",
        {},
        "'bad.py:one()' ends with 'one()', expected the name of a callable alone; give arguments "
        "with --arg KEY=VALUE",
    ),
    (
        "bad.py:needs",
        {},
        "'bad.py:needs' needs the arguments 'width', 'depth'; give --arg width=VALUE; its "
        "signature is needs(width, depth, bias=True)",
    ),
    (
        "bad.py:needs",
        {"width": 3},
        "'bad.py:needs' needs the argument 'depth'; give --arg depth=VALUE; its signature is "
        "needs(width, depth, bias=True)",
    ),
    (
        "bad.py:needs",
        {"widht": 3},
        "'bad.py:needs' takes no argument 'widht' (did you mean 'width'?); its signature is "
        "needs(width, depth, bias=True)",
    ),
    (
        "bad.py:silent",
        {"width": 3},
        "'bad.py:silent' takes no argument 'width'; its signature is silent()",
    ),
    (
        "bad.py:position",
        {},
        "'bad.py:position' takes 'width' by position only; write a function that gives it; its "
        "signature is position(width, /)",
    ),
    (
        "bad.py:Factory.make",
        {},
        "'bad.py:Factory.make' is a method of Factory, a class that is not instantiated; make it a "
        "staticmethod, or write a function that calls it",
    ),
    (
        "made.py:made",
        {"width": 3},
        "'made.py:made' is a module already made, which takes no arguments; leave out width",
    ),
]

KINDS = "expected a module, (module, batch) or (module, batch, loss)"
#: (name in bad.py, the sentence after the target).
WRONG: list[tuple[str, str]] = [
    (
        "rate",
        f"is a value of type float, expected a callable that returns a module; {LIST} and 16 more",
    ),
    ("nothing", f"gives None, {KINDS}; is its return missing?"),
    ("a_class", "gives the class ReLU, which is not instantiated; give ReLU()"),
    ("a_class_with_batch", "gives the class ReLU, which is not instantiated; give ReLU()"),
    ("a_dict", f"gives a value of type dict, {KINDS}"),
    ("a_list", f"gives a value of type list, {KINDS}"),
    ("turned", f"gives a tuple (Tensor, ReLU), {KINDS}"),
    ("four", f"gives a tuple (ReLU, Tensor, NoneType, int), {KINDS}"),
    ("empty", f"gives a tuple (), {KINDS}"),
    ("Rate", f"gives a value of type Rate, {KINDS}"),
    (
        "a_number",
        "gives a batch that is a value of type int, expected a tensor, a tuple or list of "
        "arguments or a dict of keyword arguments; put a single argument into a tuple",
    ),
    ("keys", "gives a batch whose keys are not all names of arguments"),
    (
        "a_loss_class",
        "gives a loss that is the class MSELoss, which is not instantiated; give MSELoss()",
    ),
    (
        "a_loss_number",
        "gives a loss that is a value of type float, expected a callable of the module's output",
    ),
    (
        "raises",
        "raised ValueError at bad.py:20: width is odd, and must be even; --debug shows the "
        "traceback",
    ),
    ("silent", "raised AssertionError at bad.py:28; --debug shows the traceback"),
    ("leaves", "raised SystemExit at bad.py:36: 2; --debug shows the traceback"),
    (
        "imports",
        "imports 'no_such_package_at_all' at bad.py:40, which is not found; install it, or start "
        "where it can be imported",
    ),
    (
        "evaluates",
        "raised SyntaxError at bad.py:44: invalid syntax (<string>, line 1); --debug shows the "
        "traceback",
    ),
]


@pytest.fixture
def bad(here: Path) -> None:
    write("bad.py", BAD)
    write("sample_c.py", "def only():\n    pass\n")
    write("constants.py", "rate = 1\n")
    write("imported.py", "from torch.nn import Linear\n")
    write("made.py", "from torch.nn import Linear\n\nmade = Linear(1, 1)\n")
    Path("folder.py").mkdir()
    Path("folder").mkdir()


@pytest.mark.usefixtures("bad")
@pytest.mark.parametrize(
    ("text", "arguments", "sentence"), MISSING, ids=[text or "empty" for text, _, _ in MISSING]
)
def test_what_leads_nowhere(text: str, arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(SpecificationError) as caught:
        load(text, arguments)
    assert str(caught.value) == sentence


@pytest.mark.usefixtures("bad")
@pytest.mark.parametrize(("name", "sentence"), WRONG, ids=[name for name, _ in WRONG])
def test_what_is_no_module(name: str, sentence: str) -> None:
    with pytest.raises(TargetError) as caught:
        load(f"bad.py:{name}")
    assert str(caught.value) == f"'bad.py:{name}' {sentence}"


@pytest.mark.usefixtures("bad")
def test_an_error_inside_torch_is_placed_in_the_users_file() -> None:
    with pytest.raises(TargetError) as caught:
        load("bad.py:inside_torch")
    assert str(caught.value).startswith("'bad.py:inside_torch' raised RuntimeError at bad.py:32: ")


def test_an_attribute_that_fails_when_it_is_looked_up(here: Path) -> None:
    write("lazy.py", "def __getattr__(name):\n    raise OSError(name)\n")
    with pytest.raises(TargetError) as caught:
        load("lazy.py:build")
    assert str(caught.value) == (
        "'lazy.py:build', when it is looked up, raised OSError at lazy.py:2: build; --debug shows "
        "the traceback"
    )


def test_a_callable_without_a_signature() -> None:
    with pytest.raises(TargetError) as caught:
        load("builtins:dict")
    assert str(caught.value) == f"'builtins:dict' gives a value of type dict, {KINDS}"


@pytest.mark.usefixtures("bad")
@pytest.mark.parametrize("text", ["bad.py:one", "bad:one"])
def test_the_good_ones_among_the_bad(text: str) -> None:
    assert isinstance(load(text, {"width": 3}).module, nn.Linear)


#: (source of the file, the sentence for "broken.py:build").
BROKEN: list[tuple[str, str]] = [
    ("def build(:\n    pass\n", "meets invalid Python at broken.py:1: invalid syntax"),
    ("x = 1\ny = (\n", "meets invalid Python at broken.py:2: '(' was never closed"),
    ("import bad_beside\n", "meets invalid Python at bad_beside.py:3: invalid syntax"),
    ("x = 1\nx / 0\n", "raised ZeroDivisionError at broken.py:2: division by zero"),
    ("import zero_beside\n", "raised ZeroDivisionError at broken.py:1: division by zero"),
    ("import sys\nsys.exit()\n", "raised SystemExit at broken.py:2"),
    ("raise ValueError('a' * 500)\n", f"raised ValueError at broken.py:1: {'a' * 159}…"),
    (
        "import no_such_package_at_all.part\n",
        "imports 'no_such_package_at_all' at broken.py:1, which is not found; install it, or start "
        "where it can be imported",
    ),
]


@pytest.mark.parametrize(
    ("source", "sentence"), BROKEN, ids=[sentence[:36] for _, sentence in BROKEN]
)
@pytest.mark.parametrize("text", ["broken.py:build", "broken:build"])
def test_files_that_cannot_be_imported(here: Path, text: str, source: str, sentence: str) -> None:
    write("broken.py", source)
    write("bad_beside.py", "x = 1\n\nx x\n")
    write("zero_beside.py", "1 / 0\n")
    with pytest.raises(TargetError) as caught:
        load(text)
    end = "; --debug shows the traceback" if sentence.startswith("raised") else ""
    assert str(caught.value) == f"'{text}', when it is imported, {sentence}{end}"


def test_a_file_of_a_package(here: Path) -> None:
    write("nets_d/__init__.py", "")
    write("nets_d/parts.py", "from torch.nn import ReLU as part\n")
    write("nets_d/model.py", "from .parts import part\n\ndef build():\n    return part()\n")
    with pytest.raises(TargetError) as caught:
        load("nets_d/model.py:build")
    assert str(caught.value) == (
        "'nets_d/model.py:build', when it is imported, raised ImportError at nets_d/model.py:1: "
        "attempted relative import with no known parent package; give a file of a package as "
        "package.module:callable"
    )
    assert isinstance(load("nets_d.model:build").module, nn.ReLU)


def test_a_callable_of_another_file_is_placed_there(here: Path) -> None:
    write("nets_e/__init__.py", "from .model import build\n")
    write("nets_e/model.py", "import torch\n\ndef build():\n    return torch.nn.Linear(2, -1)\n")
    with pytest.raises(TargetError, match=r"raised RuntimeError at nets_e/model\.py:4: "):
        load("nets_e:build")


def test_a_file_outside_is_named_in_full(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("far/model.py", "def build():\n    raise ValueError\n")
    Path("near").mkdir()
    monkeypatch.chdir(here / "near")
    place = re.escape(f"{os.path.realpath(here)}/far/model.py:2;")
    with pytest.raises(TargetError, match=f"raised ValueError at {place}"):
        load("../far/model.py:build")


# ------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=3", 3),
        ("a = 3", 3),
        ("a=-0.5", -0.5),
        ("a=True", True),
        ("a=None", None),
        ("a=(1, 2)", (1, 2)),
        ("a={'b': [1]}", {"b": [1]}),
        ("a=gelu", "gelu"),
        ("a='3'", "3"),
        ("a='true'", "true"),
        ("a=", ""),
        ("a=b=c", "b=c"),
        ("a=1/2", "1/2"),
        (r"a='\d'", r"\d"),
        ("a=__import__('os')", "__import__('os')"),
    ],
)
def test_an_argument(text: str, value: object) -> None:
    found = arguments_of([text])["a"]
    assert (found, type(found)) == (value, type(value))


def test_arguments() -> None:
    assert arguments_of([]) == {}
    assert arguments_of(["width=3", "act=gelu"]) == {"width": 3, "act": "gelu"}


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["a"], "--arg is 'a', expected KEY=VALUE, such as depth=3"),
        (["=3"], "--arg is '=3', expected KEY=VALUE, such as depth=3"),
        (["a-b=3"], "--arg is 'a-b=3', expected KEY=VALUE, such as depth=3"),
        (["2=3"], "--arg is '2=3', expected KEY=VALUE, such as depth=3"),
        (["a=1", "b=1", "a=2"], "--arg gives 'a' twice; give it once"),
        (
            ["bias=false"],
            "--arg is 'bias=false', which Python would read as text; write bias=False, or "
            "bias=\"'false'\" for the text",
        ),
    ],
)
def test_bad_arguments(texts: Sequence[str], sentence: str) -> None:
    with pytest.raises(SpecificationError) as caught:
        arguments_of(texts)
    assert str(caught.value) == sentence


# --------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("float 8x3x4", (8, 3, 4), torch.float32),
        ("float 8", (8,), torch.float32),
        (" float  8 x 3×4 ", (8, 3, 4), torch.float32),
        ("float64 2x3", (2, 3), torch.float64),
        ("float32 2x3", (2, 3), torch.float32),
        ("float16 2x3", (2, 3), torch.float16),
        ("bfloat16 2x3", (2, 3), torch.bfloat16),
        ("bool 2x3", (2, 3), torch.bool),
        ("int 2x3 <5", (2, 3), torch.int64),
        ("int64 2x3<5", (2, 3), torch.int64),
        ("int32 2x3 < 5", (2, 3), torch.int32),
        ("int 2 <9223372036854775807", (2,), torch.int64),
    ],
)
def test_an_input(text: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = input_of(text)
    assert isinstance(x, torch.Tensor)
    assert (tuple(x.shape), x.dtype) == (shape, dtype)


def test_a_float_is_standard_normal() -> None:
    n = 10_000
    x: Any = input_of(f"float {n}")
    # |z| < 4: the mean has the standard error 1/√n, the variance √(2/n).
    assert abs(x.mean()) * n**0.5 < 4
    assert abs(x.var() - 1) * (n / 2) ** 0.5 < 4


def test_an_int_is_uniform_below_its_bound() -> None:
    n, bound = 10_000, 5
    x: Any = input_of(f"int {n} <{bound}")
    counts = torch.bincount(x, minlength=bound)
    assert len(counts) == bound
    # |z| < 4 for each: a count has the variance n p (1 - p).
    deviation = (n / bound * (1 - 1 / bound)) ** 0.5
    assert bool(((counts - n / bound).abs() < 4 * deviation).all())
    assert not bool(input_of("int 10 <1").any())  # type: ignore[union-attr]


def test_a_bool_is_a_fair_coin() -> None:
    n = 10_000
    x: Any = input_of(f"bool {n}")
    assert abs(x.float().mean() - 0.5) * 2 * n**0.5 < 4


def test_a_seed_is_an_input_and_another_seed_another() -> None:
    first: Any = input_of("float 4x3", seed=1)
    assert torch.equal(first, input_of("float 4x3", seed=1))  # type: ignore[arg-type]
    assert not torch.equal(first, input_of("float 4x3", seed=2))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["float64", "float16", "bfloat16"])
def test_every_precision_rounds_the_same_numbers(name: str) -> None:
    x: Any = input_of("float 4x3", seed=1)
    assert torch.equal(input_of(f"{name} 4x3", seed=1), x.to(getattr(torch, name)))  # type: ignore[arg-type]


def test_nothing_global_is_touched_or_used() -> None:
    state = torch.get_rng_state()
    expected: Any = input_of(["float 40x3", "int 4 <9", "bool 4"])
    assert torch.equal(torch.get_rng_state(), state)
    torch.set_default_dtype(torch.float64)
    try:
        again: Any = input_of(["float 40x3", "int 4 <9", "bool 4"])
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(a.dtype == b.dtype and a.equal(b) for a, b in zip(expected, again, strict=True))


def test_several_inputs() -> None:
    pair: Any = input_of(["float 4x3", "float 4x3"])
    assert isinstance(pair, tuple)
    assert not torch.equal(*pair)
    assert torch.equal(pair[0], input_of("float 4x3"))  # type: ignore[arg-type]
    assert isinstance(input_of(["float 4x3"]), torch.Tensor)


def test_named_inputs() -> None:
    one = input_of("input_ids=int 4x5 <9")
    assert isinstance(one, dict)
    assert list(one) == ["input_ids"]
    two: Any = input_of(["ids = int 4x5 <9", "mask=bool 4x5"])
    assert {name: x.dtype for name, x in two.items()} == {"ids": torch.int64, "mask": torch.bool}
    # A name changes no number.
    assert torch.equal(one["input_ids"], two["ids"])


BAD_INPUTS: list[tuple[str | list[str], str]] = [
    ("", "input is '', expected TYPE SIZES, such as 'float 8x3x32x32'"),
    ("3x32", "input is '3x32', expected TYPE SIZES, such as 'float 8x3x32x32'"),
    ([], "input is empty, expected TYPE SIZES, such as 'float 8x3x32x32'"),
    (
        "flaot 3",
        "input is 'flaot 3' of the type 'flaot', expected one of float, int, bool, float64, "
        "float32, float16, bfloat16, int64, int32 (did you mean 'float'?)",
    ),
    (
        "complex64 3",
        "input is 'complex64 3', but complex numbers are not measured; give float, int or bool",
    ),
    (
        "complex 3",
        "input is 'complex 3', but complex numbers are not measured; give float, int or bool",
    ),
    ("float", "input is 'float' with the sizes '', expected such as 8x3x32x32"),
    ("float 3,4", "input is 'float 3,4' with the sizes '3,4', expected such as 8x3x32x32"),
    ("float 3x", "input is 'float 3x' with the sizes '3x', expected such as 8x3x32x32"),
    ("float 3.5", "input is 'float 3.5' with the sizes '3.5', expected such as 8x3x32x32"),
    ("float 3 4", "input is 'float 3 4' with the sizes '3 4', expected such as 8x3x32x32"),
    ("float 0x3", "input is 'float 0x3', which has the size 0; a size is at least 1"),
    ("float 3x-4", "input is 'float 3x-4', which has the size -4; a size is at least 1"),
    (
        "float 100000x10001",
        "input is 'float 100000x10001', which has 1,000,100,000 elements, more than 1,000,000,000; "
        "give smaller sizes",
    ),
    (
        "int 4x128",
        "input is 'int 4x128', which needs a bound; write 'int 4x128 <50257' for numbers from 0 to "
        "50256",
    ),
    ("float 3 <4", "input is 'float 3 <4', but only an int has a bound; leave '<4' out"),
    ("bool 3 <2", "input is 'bool 3 <2', but only an int has a bound; leave '<2' out"),
    (
        "int 3 <",
        "input is 'int 3 <' with the bound '<', expected a whole number from 1 to "
        "9223372036854775807",
    ),
    (
        "int 3 <=5",
        "input is 'int 3 <=5' with the bound '<=5', expected a whole number from 1 to "
        "9223372036854775807",
    ),
    (
        "int 3 <0",
        "input is 'int 3 <0' with the bound '<0', expected a whole number from 1 to "
        "9223372036854775807",
    ),
    (
        "int32 3 <2147483648",
        "input is 'int32 3 <2147483648' with the bound '<2147483648', expected a whole number from "
        "1 to 2147483647",
    ),
    ("a-b=float 3", "input is 'a-b=float 3', whose name 'a-b' is no name of an argument"),
    ("=float 3", "input is '=float 3', whose name '' is no name of an argument"),
    (
        ["a=float 3", "float 3"],
        "input names a and leaves others without a name; name all or none",
    ),
    (["a=float 3", "a=float 4"], "input gives 'a' twice; give it once"),
]


@pytest.mark.parametrize(
    ("texts", "sentence"), BAD_INPUTS, ids=[str(texts) for texts, _ in BAD_INPUTS]
)
def test_bad_inputs(texts: str | list[str], sentence: str) -> None:
    with pytest.raises(SpecificationError) as caught:
        input_of(texts)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, True])
def test_bad_seeds(seed: Any) -> None:
    with pytest.raises(SpecificationError) as caught:
        input_of("float 3", seed=seed)
    assert str(caught.value) == f"seed is {seed!r}, expected a whole number of at least 0"


def test_a_bad_device() -> None:
    with pytest.raises(SpecificationError, match="device is 'gpu', which this PyTorch cannot use"):
        input_of("float 3", device="gpu")
