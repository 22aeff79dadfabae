"""One block module that runs several times, as ALBERT's: it is changed once, and what a recipe asks
of one of its passes alone stands outside of it, or is said to be left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rules import Plan, Recipe
from depthgauge.trace.counted import Layout
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_module, said
from tests.recipes.models import WIDTH, Block, PostBlock

_Build = Callable[[], tuple[nn.Module, Any]]


class Repeated(nn.Module):
    """A block four times, between a stem and a head."""

    def __init__(self, block: nn.Module, read: str = "head") -> None:
        super().__init__()
        self.stem, self.block, self.read = nn.Linear(8, WIDTH), block, read
        self.head = nn.Linear(3 * WIDTH if read == "three" else WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(4):
            x = self.block(x)
        x = torch.cat((x, x * x, x.abs()), -1) if self.read == "three" else x
        out: Tensor = self.head(x)
        return out


class Bare(Block):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.relu(self.up(x)))
        return out


def repeated(block: type[nn.Module], read: str = "head") -> _Build:
    def build() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        return Repeated(block(), read), torch.randn(32, 8)

    return build


def albert() -> tuple[nn.Module, Any]:
    from transformers import AlbertConfig, AlbertForMaskedLM

    sizes: dict[str, Any] = {"vocab_size": 64, "embedding_size": 16, "hidden_size": 32}
    sizes |= {"num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    model = AlbertForMaskedLM(AlbertConfig(**sizes, max_position_embeddings=32)).eval()
    return model, {"input_ids": torch.randint(64, (2, 16))}


BUILDS: dict[str, _Build] = {
    "pre-norm": repeated(Block),
    "post-norm": repeated(PostBlock),
    "no norm": repeated(Bare),
    "ALBERT": albert,
}


@pytest.mark.parametrize("recipe", ["prenorm", "sandwich", "sub-ln"])
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_the_final_norm_stands_behind_the_last_pass_alone(recipe: str, build: _Build) -> None:
    applied, batch = on_module(recipe, build)
    assert "1 final layernorm put in" in applied.changes

    def plant(model: nn.Module) -> None:
        heads = [m for m in model.modules() if hasattr(m, "before") and hasattr(m, "module")]
        heads[-1].before = nn.Identity()

    broken(applied.model, batch, recipe, plant, "0 of 1 streams with a final norm")


def test_it_computes_what_pre_norm_with_one_block_computes() -> None:
    applied, batch = on_module("prenorm", repeated(PostBlock))
    get = applied.model.get_submodule
    x = get("stem")(batch)
    for _ in range(4):
        x = x + get("block.down")(torch.relu(get("block.up.module")(get("block.up.before")(x))))
    expected = get("head.module")(nn.functional.layer_norm(x, (WIDTH,)))
    torch.testing.assert_close(applied.model(batch), expected)


@pytest.mark.parametrize("recipe", ["prenorm", "sandwich", "sub-ln"])
def test_where_no_layer_of_its_width_reads_the_end_it_is_said(recipe: str) -> None:
    model, batch = repeated(Block, "three")()
    applied = apply(model, batch, recipe)
    assert applied.left[0] == (
        "'block' returns other sums than the end of 'block', and what reads it is no linear layer "
        "of its width: no final norm there"
    )
    assert said(audit(applied.model, batch, recipe)) == " | ".join(applied.left[1:])
    assert "0 of 1 streams with a final norm" in applied.left[1]


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_one_block_cannot_be_pre_norm_and_post_norm(build: _Build) -> None:
    model, batch = build()
    applied = apply(model, batch, "mix-ln")
    assert (
        "runs in several branches, to which the recipe gives norms at different"
        in (applied.left[0])
    )
    found = audit(applied.model, batch, "mix-ln")
    assert not found.holds
    assert said(found) == applied.left[-1]
    assert "post-norm behind the first quarter of the layers" in said(found)


ONE = "and holds one number, where the recipe gives them different ones (branch inputs scaled): "
REPEATED = {name: build for name, build in BUILDS.items() if name != "ALBERT"}


@pytest.mark.parametrize("recipe", ["layernorm-scaling", "nfnet"])
@pytest.mark.parametrize("build", REPEATED.values(), ids=REPEATED)
def test_one_block_holds_one_number_that_of_its_first_pass(recipe: str, build: _Build) -> None:
    """The first pass asks for 1, which puts nothing in: nor does a later one."""
    model, batch = build()
    applied = apply(model, batch, recipe)
    assert not any("inputs scaled" in change for change in applied.changes)
    assert [branch.inlet for branch in layout(applied.model, batch).branches] == [1] * 4
    first, last = applied.left
    assert f"runs in several branches {ONE}it has that of the first" in first
    found = audit(applied.model, batch, recipe)
    assert said(found) == last
    assert last.startswith("1 of 4 branches whose input is scaled as it is to be: 'block.down")
    assert last.endswith("it runs 4 times in a pass with the one number, where the recipe has 4")


class Told(nn.Module):
    """One block four times, told in each pass by what to scale what its norm gives."""

    def __init__(self, numbers: tuple[float, ...]) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(8, WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.last, self.head, self.numbers = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3), numbers

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number in self.numbers:
            x = x + self.down(torch.relu(self.up(number * self.norm(x))))
        out: Tensor = self.head(self.last(x))
        return out


def test_a_number_that_the_pass_is_told_is_each_its_own() -> None:
    batch = torch.randn(32, 8)
    held = audit(Told((1, 2**-0.5, 3**-0.5, 0.5)), batch, "layernorm-scaling")
    assert held.holds, said(held)
    others = audit(Told((1, 1 / 2, 1 / 3, 1 / 4)), batch, "layernorm-scaling")
    assert said(others).endswith("expected 0.7071: 1/l instead of its root")


def test_what_is_said_of_the_changed_copy_is_said_to_be_of_it() -> None:
    """A recipe whose second look fails: the sentence is not about the model that was given."""
    looks: list[Layout] = []

    def plan(layout: Layout) -> Plan:
        looks.append(layout)
        if len(looks) > 1:
            raise NetworkError("no residual branch was found")
        return Plan()

    made = Recipe("made", "Made", "", (), (), "", plan)
    words = "Made was put into a copy of the network, and .* no residual branch was found"
    with pytest.raises(NetworkError, match=words):
        apply(*repeated(Block)(), made)
