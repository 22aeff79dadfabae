"""Today's subject: of specifications and builders, with fingerprints of what is really run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from depthgauge.errors import EquationError, SpecificationError
from depthgauge.network.spec import Network
from depthgauge.record.changes import subject_changes
from depthgauge.record.parts import Subject
from depthgauge.record.subject import (
    builder_subject,
    equation_subject,
    module_hash,
    source_of,
    subject_of,
)
from depthgauge.study.specification import Specification
from depthgauge.trace.targets import load

EQUATION = "h + a * W2(gelu(W1(rmsnorm(h), out=2*n)))"


def specification(equation: str = EQUATION, **changes: Any) -> Specification:
    network = {"depth": 6, "width": 8, "scalars": {"a": "1/sqrt(L)"}, "init": {"W1": "he"}}
    run = {"batch": 4, "seed": (0, 1)}
    for name, value in changes.items():
        (run if name in ("batch", "seed", "dtype", "device") else network)[name] = value
    return Specification(Network(equation, **network), **run)  # type: ignore[arg-type]


def test_what_a_specification_says() -> None:
    found = subject_of(specification(), "spec.toml", depths=[3, 6])
    assert found.equation == ("a = 1/sqrt(L); h = h + a * W2(gelu(W1(rmsnorm(h), out=2*n)))")
    assert found.model_dump(include={"target", "kind", "scalars", "init", "depths", "depth"}) == {
        "target": "spec.toml",
        "kind": "equation",
        "scalars": {"a": "1/sqrt(L)"},
        "init": {"W1": "he", "W2": "lecun"},
        "depths": (3, 6),
        "depth": 6,
    }
    assert (found.branches, found.m, found.placement) == (6, (2,) * 6, "pre")
    assert (found.width, found.tokens, found.size) == (8, None, None)
    assert r"\mathrm{gelu}" in found.latex
    assert list(found.weights) == ["0", "1"]
    assert subject_of(specification()).target == found.equation
    assert subject_of(specification(), "spec.toml", depths=[3, 6]) == found
    tokens = subject_of(specification("h + attention(h)", scalars=None, init=None, tokens=3))
    assert (tokens.tokens, tokens.size) == (3, None)
    images = subject_of(specification("h + conv3(relu(h))", scalars=None, init=None, size=5))
    assert (images.tokens, images.size) == (None, 5)


def test_a_batch_that_is_given_is_the_data() -> None:
    """Under every seed the same one; in the precision of the run."""
    given = torch.ones(4, 8)
    found = subject_of(specification(batch=given))
    assert (found.batch, found.weights) == (4, subject_of(specification()).weights)
    assert found == subject_of(specification(batch=given.double()))
    for other, what in ((given * 2, "data"), (given[:3], "batch"), (4, "data")):
        (change,) = subject_changes(found, subject_of(specification(batch=other)))
        assert change.what == what


@pytest.mark.parametrize(
    ("changes", "weights", "data"),
    [
        ({"scalars": {"a": "1/L"}}, False, False),
        ({"equation": EQUATION.replace("gelu", "relu")}, False, False),
        ({"equation": EQUATION.replace("rmsnorm(h)", "h")}, False, False),
        ({"init": {"W1": "lecun"}}, True, False),
        ({"depth": 7}, True, False),
        ({"batch": 5}, False, True),
        ({"dtype": "bfloat16"}, True, True),
        ({"seed": (2, 3)}, True, True),
        ({"draws": "sequential-pcg64"}, True, True),
    ],
)
def test_fingerprints_change_with_what_they_are_of(changes: Any, weights: bool, data: bool) -> None:
    """An edit of the equation that leaves its weights alone leaves their fingerprint alone."""
    first, other = subject_of(specification()), subject_of(specification(**changes))
    assert (list(first.weights.values()) != list(other.weights.values())) == weights
    assert (first.data != other.data) == data
    assert subject_changes(first, other)
    assert first.weights["0"] != first.weights["1"]


def test_a_weight_is_hashed_as_it_is_run() -> None:
    """Those of the first block change with its own initialiser alone, which a hash must see."""
    first = subject_of(specification(seed=0))
    scaled = subject_of(specification(seed=0, init={"W1": "he", "W2": "normal(std=0.001)"}))
    assert first.weights != scaled.weights
    assert subject_of(specification(seed=0, init={"W1": "he", "W2": "lecun"})) == first


def test_an_equation_takes_the_scalars_of_the_record() -> None:
    stored = subject_of(specification())
    assert equation_subject(stored, EQUATION) == stored
    assert equation_subject(stored, "a = 1/sqrt(L); " + EQUATION) == stored
    other = equation_subject(stored, EQUATION.replace("gelu", "relu"))
    assert [c.what for c in subject_changes(stored, other)] == ["equation"]
    without = equation_subject(stored, "h + W2(gelu(W1(rmsnorm(h), out=2*n)))")
    assert without.equation == "h = h + W2(gelu(W1(rmsnorm(h), out=2*n)))"
    for wrong in ("h + b * W(h)", "h +"):
        with pytest.raises(EquationError):
            equation_subject(stored, wrong)


# -------------------------------------------------------------------------------- builders


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + branch


def build(seed: int, layers: int = 3) -> Any:
    return nn.Sequential(*[Block() for _ in range(layers)]), torch.randn(4, 8)


def of_builder(**changes: Any) -> Subject:
    given: dict[str, Any] = {"seeds": (0, 1), "source": __file__, "arguments": {"layers": 3}}
    return builder_subject("model.py:build", changes.pop("build", build), **{**given, **changes})


def test_what_a_builder_builds() -> None:
    found = of_builder()
    assert found.equation == "3 x [h = h + W(relu(W(layernorm(h))))]"
    assert (found.kind, found.depth, found.width, found.branches) == ("builder", 3, 8, 3)
    assert (found.m, found.batch, found.dtype, found.device) == ((2, 2, 2), 4, "float32", "cpu")
    assert found.arguments == {"layers": 3}
    assert found.source is not None
    assert found.source.hash.startswith("sha256:")
    assert found.weights["0"] != found.weights["1"]
    assert found.batches is not None
    assert sorted(found.batches) == ["0", "1"]
    assert found.batches["0"] != found.batches["1"]
    assert of_builder() == found


def test_the_users_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    of_builder()
    assert torch.equal(torch.rand(3), expected)


def test_what_makes_a_builder_stale() -> None:
    def deeper(seed: int) -> Any:
        return build(seed, 4)

    def scaled(seed: int) -> Any:
        module, batch = build(seed)
        with torch.no_grad():
            module[1].down.weight.mul_(0.5)
        return module, batch

    def fixed(seed: int) -> Any:
        return build(seed)[0], torch.ones(4, 8)

    first = of_builder()
    changed: dict[str, tuple[Any, list[str]]] = {
        "the same": (of_builder(), []),
        "deeper": (of_builder(build=deeper), ["depth"]),
        "scaled": (of_builder(build=scaled), ["weights"]),
        "data": (of_builder(build=fixed), ["data"]),
        "arguments": (of_builder(arguments={"layers": 3, "kind": "x"}), ["arguments.kind"]),
        "source": (of_builder(source=torch.__file__), ["source"]),
        "no source": (of_builder(source=None), ["source"]),
    }
    for name, (today, what) in changed.items():
        assert [change.what for change in subject_changes(first, today)] == what, name


def test_a_builder_that_cannot_be_commissioned() -> None:
    with pytest.raises(SpecificationError, match="gives no batch; return"):
        of_builder(build=lambda seed: build(seed)[0])
    with pytest.raises(SpecificationError, match="was given no seed"):
        of_builder(seeds=())
    found = of_builder(source="/nowhere/at/all.py")
    assert found.source_reason == "the builder's file cannot be read: no such file or directory"


def test_a_module_is_hashed_whole() -> None:
    def made(**changes: Any) -> nn.Sequential:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        for name, value in changes.items():
            module.get_buffer(f"1.{name}").add_(value)
        return module

    first = module_hash(made())
    assert module_hash(made()) == first
    assert module_hash(made(running_mean=1.0)) != first
    assert module_hash(made(num_batches_tracked=1)) != first
    assert module_hash(made().double()) != first
    assert module_hash(nn.Sequential(*made())) == first
    named = nn.ModuleDict({"a": made()[0], "b": made()[1]})
    assert module_hash(named) != first


def test_where_a_builder_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_a_test.py").write_text("def build():\n    return None\n")
    monkeypatch.chdir(tmp_path)
    assert source_of("nets_of_a_test.py:build") == "nets_of_a_test.py"
    assert source_of("nets_of_a_test:build") == str(tmp_path / "nets_of_a_test.py")
    assert str(tmp_path) not in sys.path
    assert source_of(build) == __file__
    assert source_of("no_such_package.at_all:build") is None
    assert source_of(len) is None
    found = of_builder(source=source_of("nets_of_a_test:build")).source
    assert found is not None
    assert found.file == "nets_of_a_test.py"
    with pytest.raises(Exception, match="gives None"):
        load("nets_of_a_test.py:build")
