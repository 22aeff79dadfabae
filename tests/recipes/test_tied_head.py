"""A head that shares its table with the embedding: one that is to be zero gets a weight of its own
and leaves all embeddings their table; the d^-1/2 by which such a head multiplies the stream is a
number of the head, not of the last sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.wrappers import Left, Times
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_module, said
from tests.recipes.models import bart, bert, gpt2, neox, t5


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


def t5_that_drops() -> tuple[nn.Module, Any]:
    model, batch = t5(tie_word_embeddings=True, dropout_rate=0.1)
    return model.train(), batch


def test_the_number_behind_dropout_is_read_once() -> None:
    """In training mode dropout stands between the last sum and the number of the head."""
    applied, batch = on_module("fixup", t5_that_drops)
    last = layout(applied.model, batch).branches[-1]
    assert last.skip == last.factor == last.behind == pytest.approx(32**-0.5)
    broken(applied.model, batch, "fixup", halve_last, "1 of 10 sums: 0.5 h")


# ------------------------------------------------------------------------------ a head of zeros


def tables(model: nn.Module) -> dict[str, Tensor]:
    """What each embedding of tokens looks up, by its path."""
    return {
        path: module.weight
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.num_embeddings == 64
    }


@pytest.mark.parametrize(
    ("build", "head"),
    [
        (bart, "lm_head"),
        (partial(bart, "MBart"), "lm_head"),
        (tied_t5, "lm_head"),
        (gpt2, "lm_head"),
        (bert, "cls.predictions.decoder"),
    ],
    ids=["bart", "mbart", "t5", "gpt2", "bert"],
)
def test_a_head_of_zeros_leaves_all_embeddings_their_table(
    build: Callable[[], tuple[nn.Module, Any]], head: str
) -> None:
    given, batch = build()
    (before,) = {id(table): table for table in tables(given).values()}.values()
    applied = apply(given, batch, "fixup")
    assert audit(applied.model, batch, "fixup").holds, said(audit(applied.model, batch, "fixup"))
    (after,) = {id(table): table for table in tables(applied.model).values()}.values()
    assert torch.equal(after, before), "embeddings share one table, which is as it was"
    own = applied.model.get_parameter(f"{head}.weight")
    assert own is not after
    assert not own.any()


def shared_again(model: nn.Module) -> None:
    """The head's table is the embedding's, as it was given."""
    model.lm_head.weight = model.get_parameter("model.shared.weight")  # type: ignore[union-attr]


def all_zero(model: nn.Module) -> None:
    """The table of embeddings and head is zero."""
    shared_again(model)
    with torch.no_grad():
        model.get_parameter("model.shared.weight").zero_()


def zero_beside(model: nn.Module) -> None:
    """The table of the embeddings is zero, the head's own is too."""
    with torch.no_grad():
        model.get_parameter("model.shared.weight").zero_()


def zero_encoder(model: nn.Module) -> None:
    table = nn.Parameter(torch.zeros(64, 32))
    model.get_submodule("model.encoder.embed_tokens").weight = table


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (shared_again, "1 of 1 weights of the head: 'model.shared.weight' is an embedding's table"),
        (all_zero, "1 of 1 weights of the head: 'model.shared.weight' is an embedding's table"),
        (all_zero, "2 of 2 streams begin with embeddings that are all zero"),
        (zero_beside, "2 of 2 streams begin with embeddings that are all zero"),
        (zero_encoder, "1 of 2 streams begin with embeddings that are all zero"),
    ],
)
def test_embeddings_of_zeros_are_not_a_head_of_zeros(
    plant: Callable[[nn.Module], None], words: str
) -> None:
    model, batch = bart()
    broken(apply(model, batch, "fixup").model, batch, "fixup", plant, words)


class Rows(nn.Module):
    """Its one table is looked up and multiplied by in its own forward pass."""

    def __init__(self, indexed: bool) -> None:
        super().__init__()
        self.indexed, self.table = indexed, nn.Embedding(64, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.table.weight[x] if self.indexed else self.table(x)
        for block in self.blocks:
            h = h + block(h)
        return h @ self.table.weight.T


@pytest.mark.parametrize("indexed", [True, False])
def test_a_table_that_no_layer_holds_is_left_and_named(indexed: bool) -> None:
    torch.manual_seed(0)
    model, batch = Rows(indexed), torch.randint(64, (2, 7))
    applied = apply(model, batch, "fixup")
    assert torch.equal(applied.model.get_parameter("table.weight"), model.table.weight)
    assert not any("weights of the head" in change for change in applied.changes)
    words = "1 of 1 weights of the head: 'table.weight' is an embedding's table as well"
    assert any(left.startswith(words) for left in applied.left)
    assert not audit(applied.model, batch, "fixup").holds
