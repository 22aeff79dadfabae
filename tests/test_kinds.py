"""Arguments of another kind: every public function says what came, what it expected, what to do.

Each case has its partner: the argument of the right kind, which is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import depthgauge as dg
from depthgauge.errors import expect
from depthgauge.recipes.fixup import FIXUP

NETWORK = dg.Network("h + W2(relu(W1(h)))", 2, 8)
MODEL, BATCH = NETWORK.module(0), torch.randn(4, 8)
PROFILE = dg.measure(NETWORK, 4)
EQUATION = "h + W2(relu(W1(h)))"

#: The call, and the argument that it takes.
CALLS: dict[str, tuple[Callable[[Any], object], Any]] = {
    "audit of a module": (lambda x: dg.audit(x, BATCH, "fixup"), MODEL),
    "audit by a recipe": (lambda x: dg.audit(MODEL, BATCH, x), FIXUP),
    "audit with an optimizer": (
        lambda x: dg.audit(MODEL, BATCH, "he", optimizer=x),
        torch.optim.SGD(MODEL.parameters(), lr=0.1),
    ),
    "audit with a clip": (lambda x: dg.audit(MODEL, BATCH, "he", clip=x), lambda model: None),
    "apply to a module": (lambda x: dg.apply(x, BATCH, "he"), MODEL),
    "apply a recipe": (lambda x: dg.apply(MODEL, BATCH, x), "he"),
    "guess of a module": (lambda x: dg.guess(x, BATCH), MODEL),
    "rewritten network": (lambda x: dg.rewritten(x, "fixup"), NETWORK),
    "rewritten by a recipe": (lambda x: dg.rewritten(NETWORK, x), FIXUP),
    "compare a target": (lambda x: dg.compare(x, ["he"], seed=0, depths=[2]), NETWORK),
    "compare recipes": (lambda x: dg.compare(NETWORK, x, seed=0, depths=[2]), ["he", FIXUP]),
    "compare a recipe": (lambda x: dg.compare(NETWORK, [x], seed=0, depths=[2]), "he"),
    "compare depths": (lambda x: dg.compare(NETWORK, ["he"], seed=0, depths=x), (2,)),
    "compare a batch": (lambda x: dg.compare(NETWORK, ["he"], seed=0, depths=[2], batch=x), 4),
    "ablate changes": (lambda x: dg.ablate(NETWORK, x, batch=4, seed=0), "activation=tanh"),
    "ablate a corridor": (
        lambda x: dg.ablate(NETWORK, "activation=tanh", batch=4, seed=0, corridor=x),
        dg.Corridor.of(forward_drift={"max": 9}),
    ),
    "measure with progress": (lambda x: dg.measure(NETWORK, 4, progress=x), lambda done, of: None),
    "measure included": (lambda x: dg.measure(MODEL, BATCH, include=x), "W1"),
    "count a block": (dg.count, dg.parse(EQUATION)),
    "a block as text": (dg.to_text, dg.parse(EQUATION)),
    "a block as LaTeX": (dg.to_latex, dg.parse(EQUATION)),
    "a specification": (dg.Specification, NETWORK),
    "subject of a specification": (dg.subject_of, dg.Specification(NETWORK, batch=4)),
    "bounds of a corridor": (dg.Corridor, (("forward_drift", dg.Bound(max=3)),)),
    "a corridor from a table": (dg.Corridor.of, {"forward_drift": {"max": 3}}),
    "judge a profile": (dg.Corridor.of(forward_drift={"max": 3}).judge, PROFILE),
    "a monitor of a module": (lambda x: dg.Monitor(x, BATCH), MODEL),
}
#: No argument of any of them, but for those that are.
ODD: dict[str, object] = {
    "a whole number": 3,
    "bytes": b"x",
    "a class": nn.Linear,
    "an object": object(),
    "a set": {1},
}


@pytest.mark.parametrize("call", CALLS)
def test_another_kind_is_refused_in_one_sentence(call: str) -> None:
    function, right = CALLS[call]
    function(right)
    for word, odd in ODD.items():
        if (call, word) in _TAKEN:
            continue
        with pytest.raises(dg.DepthgaugeError) as raised:
            function(odd)
        said = str(raised.value)
        assert " expected " in said, (call, word, said)
        assert "\n" not in said, (call, word, said)


#: A class can be called, a whole number is one, and a set is of several.
_TAKEN = {
    ("compare a target", "a class"),
    ("compare depths", "a set"),
    ("audit with a clip", "a class"),
    ("measure with progress", "a class"),
    ("compare a batch", "a whole number"),
}


@pytest.mark.parametrize("function", [dg.verify, dg.read_record, dg.read_specification, dg.require])
def test_a_place_is_text_or_a_path(function: Callable[[Any], object], tmp_path: Path) -> None:
    with pytest.raises(dg.TargetError, match=r"is of type int, expected .*, as text or a Path"):
        function(3)
    for place in (tmp_path / "none", str(tmp_path / "none")):  # taken, and not there
        with pytest.raises(dg.UsageError, match="none"):
            function(place)


def test_a_commission_wants_a_place() -> None:
    with pytest.raises(dg.TargetError, match="directory is None, expected where the record"):
        dg.commission(NETWORK, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: dg.rewritten(EQUATION, "fixup"),  # type: ignore[arg-type]
            "network is of type str, expected a depthgauge.Network; Network(equation, depth, "
            "width) makes one",
        ),
        (
            lambda: dg.rewritten(MODEL, "fixup"),  # type: ignore[arg-type]
            "network is of type EquationNetwork, expected a depthgauge.Network; apply() puts a "
            "recipe into a module",
        ),
        (
            lambda: dg.audit(NETWORK, BATCH, "fixup"),  # type: ignore[arg-type]
            "model is of type Network, expected an nn.Module; of an equation "
            "Network(...).module(seed) is one",
        ),
        (
            lambda: dg.audit(nn.Linear, BATCH, "fixup"),  # type: ignore[arg-type]
            "model is the class Linear, expected an nn.Module; give an instance of it",
        ),
        (
            lambda: dg.audit(MODEL, BATCH, None),  # type: ignore[arg-type]
            "recipe is None, expected the name of a recipe, such as 'fixup', or a Recipe",
        ),
        (
            lambda: dg.compare(NETWORK, "he"),
            "recipes is of type str, expected a list of recipes; give ['he', 'fixup'], of one "
            "['he']",
        ),
    ],
)
def test_the_sentence(call: Callable[[], object], said: str) -> None:
    with pytest.raises(dg.TargetError) as raised:
        call()
    assert str(raised.value) == said


@pytest.mark.parametrize("seed", [None, "a", -1, 1.5, True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(dg.SpecificationError, match="expected a whole number of at least 0"):
        NETWORK.module(seed)
    with pytest.raises(dg.SpecificationError, match="expected a whole number of at least 0"):
        dg.apply(MODEL, BATCH, "he", seed)
    assert NETWORK.module(3) is not None


def test_what_is_of_the_kind_passes() -> None:
    expect("x", 3, int, "a number")
    with pytest.raises(dg.TargetError, match=r"^x is of type str, expected a number$"):
        expect("x", "3", int, "a number")
