"""A head that shares its table with the embedding multiplies the stream by d^-1/2 in front of it: a
number of the head, not of the last sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.wrappers import Left, Times
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_module, said
from tests.recipes.models import neox, t5


def tied_t5() -> tuple[nn.Module, Any]:
    return t5(tie_word_embeddings=True)


class Halved(nn.Module):
    """A block whose own forward pass ends with its sum times a half."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, *given: Any, **options: Any) -> Tensor:
        made: Tensor = self.layers(x)
        return 0.5 * (x + made)


def halve_last(model: nn.Module) -> None:
    """The last sum of the decoder times a half where it is made."""
    layer = model.get_submodule("decoder.block.1.layer")
    assert isinstance(layer, nn.ModuleList)
    layer[-1] = Halved(layer[-1].get_submodule("DenseReluDense"))


def halve_all(model: nn.Module) -> None:
    """Every sum of the decoder's feed-forward layers times a half, the last one too."""
    for k in range(2):
        layer = model.get_submodule(f"decoder.block.{k}.layer")
        assert isinstance(layer, nn.ModuleList)
        layer[-1] = Left(layer[-1], Times(0.5))


@pytest.mark.parametrize("recipe", ["fixup", "rezero", "t-fixup"])
def test_the_number_of_a_tied_head_is_not_of_the_last_sum(recipe: str) -> None:
    applied, batch = on_module(recipe, tied_t5)
    untied, _ = on_module(recipe, t5)
    assert applied.changes == untied.changes
    seen: list[tuple[Tensor, Tensor]] = []
    stack = applied.model.get_submodule("decoder")
    handles = [
        stack.register_forward_hook(lambda m, x, y: seen.append((y[0], y[0]))),
        applied.model.get_submodule("lm_head").register_forward_hook(
            lambda m, x, y: seen.append((seen[-1][0], x[0]))
        ),
    ]
    applied.model(**batch)
    for handle in handles:
        handle.remove()
    end, read = seen[-1]
    torch.testing.assert_close(read, end * 32**-0.5)  # what the model has is kept


@pytest.mark.parametrize("recipe", ["fixup", "rezero", "t-fixup"])
@pytest.mark.parametrize(
    ("plant", "words"),
    [(halve_last, "1 of 10 sums: 0.5 h"), (halve_all, "2 of 10 sums: 0.5 h")],
)
def test_a_sum_that_is_scaled_is_found_beside_it(
    recipe: str, plant: Callable[[nn.Module], None], words: str
) -> None:
    applied, batch = on_module(recipe, tied_t5)
    broken(applied.model, batch, recipe, plant, words)


class Scaled(nn.Module):
    """All in one forward pass: branches, and a number in front of the head."""

    def __init__(self, number: float, sums: float = 1.0) -> None:
        super().__init__()
        self.number, self.sums = number, sums
        self.stem, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.up = nn.ModuleList(nn.Linear(16, 24) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(24, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = self.sums * (x + down(torch.relu(up(x))))
        out: Tensor = self.head(self.number * x)
        return out


def factors(model: nn.Module) -> str:
    found = audit(model, torch.randn(16, 8), "rezero")
    return next(f.said for f in found.findings if f.part == "factors of skip and branch")


def test_where_all_is_one_pass_the_sums_tell_whose_it_is() -> None:
    torch.manual_seed(0)
    assert factors(Scaled(0.25)) == "4 of 4 sums: 1 h + 1 F"
    assert factors(Scaled(1.0, 1 / math.sqrt(2))).startswith("4 of 4 sums: 0.7071 h + 0.7071 F, ")
    assert factors(Scaled(0.25, 0.5)).startswith("4 of 4 sums: 0.5 h")


def test_a_number_that_the_model_returns_is_no_heads() -> None:
    torch.manual_seed(0)
    model = Scaled(1.0)
    model.head = nn.Identity()  # type: ignore[assignment]
    model.number = 0.25
    assert factors(model).startswith("1 of 4 sums: 0.25 h + 0.25 F")


def test_halves_are_put_right_where_they_stand_behind_a_block() -> None:
    model, batch = tied_t5()
    halve_all(model)
    applied = apply(model, batch, "rezero")
    found = audit(applied.model, batch, "rezero")
    assert found.holds, said(found)


def test_parallel_branches_share_the_place_of_their_sum() -> None:
    assert [branch.place for branch in layout(*neox()).branches] == [0, 0, 1, 1, 2, 2]
