"""What recipes and their verbs are given that is no such argument: one sentence each, with the
argument's name and what came; what is one is taken."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge import recipes
from depthgauge.errors import DepthgaugeError, NetworkError, UsageError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import Applied, apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.clipping import AdaptivelyClipped, clip_gradients
from depthgauge.recipes.deepnorm import deepnorm
from depthgauge.recipes.guess import guess
from depthgauge.recipes.he import he
from depthgauge.recipes.mix_ln import post_layers
from depthgauge.recipes.registry import RECIPES
from depthgauge.recipes.regularisers import cutout, mixup
from depthgauge.recipes.rewritten import rewritten
from depthgauge.recipes.rules import Recipe
from depthgauge.study.compare import compare
from tests.cli.command import Command
from tests.recipes.models import convolutions, encoder, mlp, resnet
from tests.recipes.test_guess import vanilla

NUMBERS: tuple[Any, ...] = (
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -0.5,
    0,
    True,
    False,
    "x",
    "2",
    [1],
    {},
    1j,
)
TEXTS = ("nosuch(1)", 3, None, True, [1], math.nan)


def factories() -> Iterator[Callable[..., Recipe]]:
    """Every public function of ``recipes`` that makes a recipe of what it is given."""
    for found in pkgutil.iter_modules(recipes.__path__):
        module = importlib.import_module(f"depthgauge.recipes.{found.name}")
        for name in getattr(module, "__all__", ()):
            made = getattr(module, name)
            if inspect.isfunction(made) and made.__module__ == module.__name__:
                hint = inspect.signature(made).return_annotation
                if hint == "Recipe" and made.__name__ not in ("recipe_of", "recipe_named"):
                    yield made


FACTORIES = {made.__name__: made for made in factories()}


def arguments() -> Iterator[tuple[str, str, Any]]:
    """Each factory with an argument and a value that it cannot have."""
    for name, made in FACTORIES.items():
        for parameter in inspect.signature(made).parameters.values():
            kinds = str(parameter.annotation)
            values: tuple[Any, ...] = NUMBERS if "int" in kinds or "float" in kinds else TEXTS
            if "Callable" in kinds or "Loss" in kinds:
                values = (3, "x", True, math.nan)
            if parameter.name == "pretrained":  # any text may be a path
                values = TEXTS[1:]
            if "int" in kinds:
                values = (*values, 1.5)
            if name in ("he", "orthogonal") and parameter.name == "gain":
                values = (*NUMBERS[:8], "nosuch(1)", "0", "-1", "1/0", None, [1])
            for value in values:
                if not (value is None and parameter.default is None):
                    yield name, parameter.name, value


def sentence(error: DepthgaugeError) -> str:
    """The message, which is one line without a full stop."""
    text = str(error)
    assert "\n" not in text.strip(), text
    assert not text.endswith("."), text
    return text


def test_every_factory_is_asked() -> None:
    assert {
        "completep", "deepnorm", "delta_orthogonal", "depth_mup", "dks", "dt_fixup", "gradinit",
        "he", "metainit", "mup", "orthogonal", "placed", "tat", "u_mup", "unit_scaling",
    } == FACTORIES.keys()  # fmt: skip


@pytest.mark.parametrize(("name", "argument", "value"), list(arguments()))
def test_a_recipe_is_not_made_of_what_is_no_such_argument(
    name: str, argument: str, value: Any
) -> None:
    given: dict[str, Any] = {"name": "prenorm"} if name == "placed" else {}
    with pytest.raises(DepthgaugeError) as raised:
        FACTORIES[name](**{**given, argument: value})
    if (argument, value) != ("head", "nosuch(1)"):  # the language's own, with a caret
        said = sentence(raised.value)
        assert said.startswith(f"{argument} is ") or argument == "name", said
        assert "expected" in said


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("completep", {"base_width": 64, "base_depth": 4, "std": 0.1}),
        ("depth_mup", {"base_width": 64, "base_depth": 4, "std": 1}),
        ("mup", {"base_width": 64, "head": "zeros"}),
        ("deepnorm", {"layers": 3}),
        ("delta_orthogonal", {"weight_variance": 1.2}),
        ("dks", {"zeta": 2}),
        ("tat", {"eta": 0.5, "tau": 1}),
        ("dt_fixup", {"mu": 3, "pretrained": "bert"}),
        ("gradinit", {"rate": 0.01, "gamma": 2, "steps": 3, "optimiser": "adam"}),
        ("metainit", {"steps": 3}),
        ("he", {"gain": "sqrt(2/(1+0.1**2))"}),
        ("he", {"gain": 1.5}),
        ("orthogonal", {"gain": "5/3"}),
        ("placed", {"name": "postnorm", "kind": "rmsnorm"}),
        ("u_mup", {"rho": 0.5}),
        ("unit_scaling", {"tau": 2}),
    ],
)
def test_and_is_made_of_what_is_one(name: str, given: dict[str, Any]) -> None:
    assert isinstance(FACTORIES[name](**given), Recipe)


def test_a_gain_as_a_number_is_that_gain() -> None:
    batch = torch.randn(8, 32)
    model = Network("h + W2(relu(W1(h)))", 6, 32, init="he(gain=1.5)").module(0)
    assert audit(model, batch, he(1.5)).holds
    assert not audit(model, batch, he(1.2)).holds


# --------------------------------------------------------------------------------- the verbs


def put(name: str) -> Applied:
    """The recipe in the first of these networks that it covers."""
    builds: tuple[Callable[[], tuple[nn.Module, Any]], ...]
    builds = (mlp, convolutions, resnet, encoder, vanilla)
    for build in builds:
        model, batch = build()
        try:
            return apply(model, batch, name)
        except NetworkError as error:
            why = error
    raise AssertionError(f"{name} was put into none of these networks") from why


BAD_RATES = (math.nan, math.inf, -0.1, 0, True, "x", None, [1])


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_s_groups_take_what_is_no_rate(name: str) -> None:
    applied = put(name)
    for lr in BAD_RATES:
        with pytest.raises(UsageError, match=r"lr is .*expected a finite number above 0"):
            applied.groups(lr)  # type: ignore[arg-type]
    for decay in (value for value in BAD_RATES if value not in (0, None) or value is True):
        with pytest.raises(UsageError, match=r"weight_decay is .*expected a finite number of at"):
            applied.groups(0.1, decay)  # type: ignore[arg-type]
    for eps in (value for value in BAD_RATES if value is not None):
        with pytest.raises(UsageError, match=r"eps is .*expected a finite number above 0"):
            applied.groups(0.1, 0.0, eps)  # type: ignore[arg-type]
    groups = applied.groups(0.1, 0.0, 1e-8)
    torch.optim.AdamW(groups)
    assert sum(len(row["params"]) for row in groups) == len(list(applied.model.parameters()))


def _given(value: Any) -> Any:
    """None is none of these: it means that there is none."""
    return 1 if value is None else value


VERBS: dict[str, Callable[[nn.Module, torch.Tensor, Any], object]] = {
    "recipe of apply": lambda m, x, value: apply(m, x, value),
    "seed of apply": lambda m, x, value: apply(m, x, "he", value),
    "recipe of audit": lambda m, x, value: audit(m, x, value),
    "optimizer of audit": lambda m, x, value: audit(m, x, "he", _given(value)),
    "loss of audit": lambda m, x, value: audit(m, x, "he", loss=_given(value)),
    "clip of audit": lambda m, x, value: audit(m, x, "he", clip=_given(value)),
    "model of audit": lambda m, x, value: audit(value, x, "he"),
    "model of apply": lambda m, x, value: apply(value, x, "he"),
    "model of guess": lambda m, x, value: guess(value, x),
    "recipe of rewritten": lambda m, x, value: rewritten(Network("h + W(h)", 2, 4), value),
    "depth of compare": lambda m, x, value: compare("h + W(h)", ["he"], depth=value or 0, width=4),
    "width of compare": lambda m, x, value: compare("h + W(h)", ["he"], depth=2, width=value or 0),
    "recipes of compare": lambda m, x, value: compare("h + W(h)", value, depth=2, width=4),
    "limit of clip": lambda m, x, value: clip_gradients(m.parameters(), limit=value),
    "eps of clip": lambda m, x, value: clip_gradients(m.parameters(), eps=value),
    "limit of clipped": lambda m, x, value: AdaptivelyClipped(
        torch.optim.SGD(m.parameters(), 0.1), m.parameters(), limit=value
    ),
    "alpha of mixup": lambda m, x, value: mixup(
        x, x, -1 if value == 0 else value, torch.Generator()
    ),
    "side of cutout": lambda m, x, value: cutout(
        torch.randn(2, 3, 8, 8), -1 if value == 0 else value, torch.Generator()
    ),
    "layers of post_layers": lambda m, x, value: post_layers(value),
    "share of post_layers": lambda m, x, value: post_layers(4, -1 if value == 0 else value),
}  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, -1.5, 0, True, "x", None], ids=repr)
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_takes_what_is_no_such_argument(verb: str, value: Any) -> None:
    if verb == "seed of apply" and value == 0 and value is not True:
        value = -2
    model, batch = mlp()
    with pytest.raises(DepthgaugeError) as raised:
        VERBS[verb](model, batch, value)
    sentence(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        ("audit", "h + W(h)", "--recipe", "nosuch"),
        ("audit", "h + W(h)", "--recipe", "he", "--depth", "nan"),
        ("audit", "h + W(h)", "--recipe", "he", "--depth", "0"),
        ("audit", "h + W(h)", "--recipe", "he", "--width", "-1"),
        ("audit", "h + W(h)", "--recipe", "he", "--seed", "x"),
        ("audit", "h + W(h)", "--recipe", "he", "--init", "nosuch(1)"),
        ("compare", "h + W(h)", "--recipes", "he,nosuch"),
        ("compare", "h + W(h)", "--recipes", "he", "--depth", "inf"),
        ("compare", "h + W(h)", "--recipes", ""),
        ("recipes", "nosuch"),
    ],
    ids=" ".join,
)
def test_a_command_ends_with_2(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    done = Command(capsys)(*options)
    assert done.status == 2
    assert done.out == ""
    assert "Traceback" not in done.err


def test_a_recipe_of_arguments_that_are_none_ends_a_command_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (path := tmp_path / "build.py").write_text(
        "import torch\nfrom torch import nn\n"
        "from depthgauge.recipes.completep import completep\n\n\n"
        "def build(std='0.02'):\n"
        "    completep(std=float(std))\n"
        "    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))\n"
        "    return model, torch.randn(2, 4)\n"
    )
    done = Command(capsys)("audit", f"{path}:build", "--recipe", "he", "--arg", "std=nan")
    assert done.status == 2
    assert "std is nan, expected a finite number above 0" in " ".join(done.err.split())
    assert Command(capsys)("audit", f"{path}:build", "--recipe", "he").status == 1


def test_the_number_of_layers_is_for_one_stack() -> None:
    assert deepnorm().name == deepnorm(9).name == "deepnorm"
