"""Recipes side by side: what is known of each comes out, and what is not covered is said."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from depthgauge.errors import EquationError, NetworkError, SpecificationError
from depthgauge.measurement import measure
from depthgauge.network.spec import Network
from depthgauge.recipes.rewritten import rewritten
from depthgauge.report.compare_screen import print_comparison
from depthgauge.study import compare as study
from depthgauge.study.compare import PLAIN, QUANTITIES, Comparison, compare
from depthgauge.trace.counted import Layout
from depthgauge.trace.layout import layout
from tests.recipes.models import DEPTH, encoder, gpt2, mlp, resnet


@pytest.fixture(scope="module")
def found() -> Comparison:
    recipes = ["he", "fixup", "rezero", "gpt2"]
    return compare("h + W2(relu(W1(h)))", recipes, depth=16, width=16, batch=16, seed=(0, 1))


def test_the_known_numbers(found: Comparison) -> None:
    rows = {row.name: row for row in found.rows}
    assert list(rows) == [PLAIN, "he", "fixup", "rezero", "gpt2"]
    assert found.depths == (2, 4, 8, 16)
    for name in ("fixup", "rezero"):  # the identity
        quantities = rows[name].quantities
        assert quantities["forward_drift"] == pytest.approx([1, 1])
        assert quantities["gradient_ratio"] == pytest.approx([1, 1])
        assert quantities["effective_rank"] == pytest.approx([16, 16], rel=1e-4)
        assert quantities["branch_to_stream"] == [0, 0]
    assert min(rows["he"].quantities["forward_end_rms"]) > 50
    assert rows["he"].quantities["headroom_float16_bits"][0] < 10
    assert rows["fixup"].parameters - rows[PLAIN].parameters == 16 * 5
    assert rows["rezero"].parameters - rows[PLAIN].parameters == 16
    assert rows["rezero"].weight_update_exponent is None
    assert rows["rezero"].reasons["weight_update_exponent"] == (
        "nothing of it moves at the first step"
    )
    fixup = rows["fixup"].weight_update_exponent
    assert fixup is not None
    assert fixup.slope == pytest.approx(0, abs=0.25)
    assert rows["he"].steep or rows["he"].update_exponent.slope > 2  # type: ignore[union-attr]
    assert "is a rule of pre-norm" in rows["gpt2"].refused
    assert all(len(row.step_time) == 5 for row in found.rows if not row.refused)
    assert rows[PLAIN].step_time == (1, 1, 1, 1, 1)
    assert rows["fixup"].groups == ("80 scalars at 0.1 of the rate",)


def test_what_a_recipe_asks_for_and_did_not_get_is_said(found: Comparison) -> None:
    half = "h = h + W2(relu(W1(layernorm(h)))); h = h + W4(relu(W3(h)))"
    rows = compare(half, ["gpt2"], depth=4, width=8, batch=8, seed=0).rows
    assert rows[1].left == ("4 branches without a norm in front: it is a rule of pre-norm",)
    assert {row.name: row for row in found.rows}["fixup"].left == ()


def test_the_document(found: Comparison) -> None:
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["target"] == "h = h + W2(relu(W1(h)))"
    first = document["recipes"][0]
    assert first["forward_end_rms"]["n"] == 2
    assert first["forward_end_rms"]["min"] <= first["forward_end_rms"]["value"]
    assert [row["depth"] for row in first["updates"]] == [2, 4, 8, 16]
    assert {row["n"] for row in first["updates"]} == {6}
    assert document["sizes"] == {"width": 16, "batch": 16}
    rezero = document["recipes"][3]
    assert rezero["weight_update_exponent"] is None
    assert "nothing of it moves" in rezero["weight_update_exponent_reason"]
    assert set(document["quantities"]) < set(first)


def test_a_recipe_that_does_not_cover_the_network_has_a_row_that_says_so() -> None:
    network = Network("W(relu(h))", 4, 8)
    plain = compare(network, ["fixup", "he"], batch=4, seed=0, depths=(4,))
    assert "no residual branch was found" in plain.rows[1].refused
    assert plain.to_dict()["recipes"][1]["refused"] == plain.rows[1].refused
    assert not plain.rows[2].refused
    assert "two" in plain.rows[2].reasons["update_exponent"]
    with pytest.raises(SpecificationError, match="recipe is 'hee'"):
        compare("h + W(h)", ["hee"], depth=2, width=8)


def test_a_depth_that_a_recipe_does_not_cover_is_left_out() -> None:
    found = compare("W(relu(h))", ["he"], depth=4, width=8, batch=4, seed=0)
    assert list(found.rows[0].updates) == [1, 2, 4]
    assert list(found.rows[1].updates) == [2, 4]
    assert "no weight layer was found" in found.rows[1].reasons["updates at depth 1"]


def test_a_depth_at_which_a_formula_is_no_number_is_left_out() -> None:
    """``sqrt(1 - 2/L)`` of one branch; two have a number, 0."""
    equation = "h + W2(gelu(W1(layernorm(h), out=4*n)))"
    sizes: dict[str, Any] = {"width": 8, "batch": 4, "seed": 0}
    row = compare(equation, ["deepscalelm"], depth=4, **sizes).rows[1]
    assert list(row.updates) == [2, 4]
    words = "sqrt(1 - 2/L) with L = 1 is not a real number: sqrt takes a number >= 0"
    why = f"DeepScaleLM (DSLM) cannot be put into a network of 1 block: {words}"
    assert row.reasons == {**row.reasons, "updates at depth 1": why}
    he, refused = compare(equation, ["he", "deepscalelm"], depth=1, **sizes).rows[1:]
    assert (he.refused, refused.refused) == ("", why)
    with pytest.raises(EquationError, match="with L = 1 is not a real number"):
        compare("sqrt(1 - 2/L)*h + W2(relu(W1(h)))", ["he"], depth=1, **sizes)
    with pytest.raises(NetworkError, match="cannot be put into a network of 1 block"):
        rewritten(Network(equation, 1, 8), "deepscalelm")


def test_a_structure_is_traced_once_for_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a seed has the numbers that it has alone."""
    traced: list[int] = []

    def counted(model: nn.Module, batch: Any) -> Layout:
        traced.append(1)
        return layout(model, batch)

    monkeypatch.setattr(study, "layout", counted)
    recipes = ["he", "lsuv", "prenorm"]  # one that looks at the batch of each seed

    def of(*seeds: int) -> Comparison:
        sizes: dict[str, Any] = {"depth": 4, "width": 8, "batch": 8, "depths": (2, 4)}
        return compare("h + W2(relu(W1(h)))", recipes, seed=seeds, **sizes)

    both = of(0, 1)
    assert len(traced) == len(recipes) * 2
    alone = of(1)
    for one, other in zip(both.rows, alone.rows, strict=True):
        assert {name: values[1:] for name, values in one.quantities.items()} == other.quantities
        for depth, updates in one.updates.items():
            assert set(updates) == set(other.updates[depth])
    # Another network of the same recipe is traced by itself.
    assert len(traced) == len(recipes) * 4


def test_where_no_recipe_covers_the_network_there_is_nothing_to_compare() -> None:
    with pytest.raises(NetworkError, match="no recipe covers this network: no residual branch"):
        compare("W(relu(h))", ["fixup", "rezero"], depth=2, width=8, batch=4, seed=0)


def test_pre_norm_has_a_norm_in_front_of_the_head() -> None:
    """The step of the suite, 0.34, not that of a head that reads a stream which grows."""
    found = compare("h + W2(relu(W1(h)))", ["prenorm"], depth=32, width=32, seed=0, init="he")
    fitted = found.rows[1].weight_update_exponent
    assert fitted is not None
    assert 0 < fitted.slope < 0.7


def test_the_rank_under_a_norm_over_the_batch_is_of_one_example_too() -> None:
    recipes = ["prenorm-batchnorm", "prenorm-layernorm"]
    equation, width = "h + W2(relu(W1(h)))", 8
    found = compare(equation, recipes, depth=4, width=width, batch=16, seed=0, depths=(4,))
    for row in found.rows:
        (rank,) = row.quantities["effective_rank"]
        assert 1 <= rank <= width
    for row, recipe in zip(found.rows[1:], recipes, strict=True):
        model = rewritten(Network(equation, 4, width), recipe).network.module(0)
        batch = torch.randn(16, width, generator=torch.Generator().manual_seed(0))
        whole = measure(model, batch, instruments=["effective_rank_participation"])
        usual, rank = whole["effective_rank_participation"][0], row.quantities["effective_rank"][0]
        if recipe.endswith("batchnorm"):  # of the batch as one state of 128 numbers
            assert usual > 2 * width
        else:
            assert usual == pytest.approx(rank)


def test_both_sides_of_a_format() -> None:
    found = compare("(h + W2(relu(W1(h))))/sqrt(2)", ["he"], depth=64, width=16, batch=8, seed=0)
    given, he = found.rows
    under = "underflow_headroom_bits"
    assert given.quantities[under][0] < he.quantities[under][0] - 5
    assert given.quantities["headroom_float16_bits"][0] > 10


def test_a_head_that_begins_at_zero_is_said() -> None:
    found = compare(lambda depth, seed: mlp(), ["fixup"], depth=DEPTH, seed=0, depths=(DEPTH,))
    row = found.rows[1]
    assert "gradient_ratio" not in row.quantities
    words = "no gradient enters the stream: the head begins at zero"
    assert row.reasons["gradient_ratio"] == words
    # Zeros underflow nowhere: an infinite head-room would say nothing.
    assert row.reasons["underflow_headroom_bits"] == words
    assert found.to_dict()["recipes"][1]["underflow_headroom_bits"]["value_reason"] == words
    assert "overflow" not in json.dumps(found.to_dict()["recipes"])


@pytest.mark.parametrize(
    ("build", "recipe"),
    [(lambda: gpt2(n_layer=2), "rezero"), (resnet, "zero-gamma"), (encoder, "deepnorm")],
)
def test_of_a_module_every_column_has_a_number_or_a_reason(
    build: Callable[[], tuple[nn.Module, Any]], recipe: str
) -> None:
    found = compare(lambda depth, seed: build(), [recipe], depth=3, seed=0, depths=(3,))
    for row in found.rows:
        assert not row.refused
        assert {*row.quantities, *row.reasons} >= set(QUANTITIES)
        assert all(math.isfinite(v) for values in row.quantities.values() for v in values)
        assert len(row.updates[3]) == len(row.weight_updates[3]) == 6
    (rank,) = found.rows[0].quantities["effective_rank"]
    whole = measure(*build(), instruments=["effective_rank_participation"])
    usual = whole["effective_rank_participation"][0]
    if build is resnet:  # batch norm, under which that is of the whole batch
        assert rank < usual / 2
    else:
        assert rank == pytest.approx(usual, rel=1e-3)
    file = io.StringIO()
    print_comparison(found, Console(width=200, file=file))
    screen = " ".join(file.getvalue().split())
    assert " step weights time parameters " in screen
    assert "a module's own head stays in front of it" in screen
    assert "an exponent needs two" not in screen
    first = found.rows[0].updates[3]
    assert f"({min(first):.3g} to {max(first):.3g})" in screen


def test_modules_are_compared_too() -> None:
    found = compare(lambda depth, seed: mlp(), ["rezero"], depth=DEPTH, seed=0, depths=(DEPTH,))
    row = found.rows[1]
    assert row.changes == (f"{DEPTH} norms out", f"{DEPTH} multipliers scalar(0)")
    assert row.quantities["branch_to_stream"] == [0]
    assert row.left == ()


def test_what_the_network_itself_raises_is_raised() -> None:
    def broken(depth: int, seed: int) -> tuple[nn.Module, torch.Tensor]:
        raise NetworkError("no such depth")

    with pytest.raises(NetworkError, match="no such depth"):
        compare(broken, ["he"], depth=2)
    with pytest.raises(SpecificationError, match="give the depth to build it at"):
        compare(broken, ["he"])


def test_an_update_that_grows_by_a_factor_is_told_by_it() -> None:
    found = compare(
        "h + W2(relu(W1(h)))", [], depth=96, width=8, init="he", batch=8, seed=0, depths=(24, 96)
    )
    row = found.rows[0]
    assert row.steep
    assert 2 < row.growth < 4
    assert math.isfinite(found.to_dict()["recipes"][0]["update_growth_per_block"])
