"""The page about recipes names every recipe, with the tests that hold it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from depthgauge.recipes.registry import RECIPES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/recipes.md").read_text()
ROWS = re.findall(r"^\| `([\w.-]+)` \|.*\| `(tests/\S+\.py)` \|$", PAGE, re.M)

#: What the fact sheet has from memory and a recipe shows: words of the line, by recipe.
RECALLED = {
    "xavier": ["odd activations of slope 1 at 0"],
    "orthogonal": ["linear layers or tanh"],
    "inv-sqrt2": ["multiplied by 1/sqrt(2)"],
    **{name: ["one norm between the last sum"] for name in RECIPES if name.startswith("prenorm")},
    **{name: ["no norm after the last"] for name in RECIPES if name.startswith("postnorm")},
    "layerscale": ["0.1 up to 18 blocks, at 1e-5 up to 24, at 1e-6"],
    "gpt2": ["0.02 / sqrt(2N)"],
    "deepscalelm": ["beta^2 = 1/N"],
    "qk-norm-layernorm": ["N(q) N(k) / sqrt(d)", "behind the projection"],
    "qk-norm-rmsnorm": ["N(q) N(k) / sqrt(d)", "behind the projection"],
    "depth-mup": ["by gradient descent they do not change"],
}


def test_the_table_has_every_recipe_once_in_order() -> None:
    assert [name for name, _ in ROWS] == list(RECIPES)


@pytest.mark.parametrize(("name", "tests"), ROWS)
def test_its_tests_apply_it_and_plant_a_fault(name: str, tests: str) -> None:
    text = (ROOT / tests).read_text()
    assert f'"{name}"' in text or name.partition("-")[0] in text
    recipe = RECIPES[name]
    applied = "on_module" if recipe.unwritten else "on_equation"
    assert applied in text, f"{tests} does not apply it"
    assert "broken(" in text or "said(audit(" in text, f"{tests} plants no fault"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_what_it_needs_what_it_does_and_where_it_is_from(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.name == name
    for words in (recipe.title, recipe.needs, recipe.reference, *recipe.rule, *recipe.traps):
        assert words
        assert words == words.strip()
    assert recipe.rule
    assert recipe.traps
    assert re.search(r"arXiv|20\d\d|19\d\d", recipe.reference)


def test_what_is_recalled_is_marked_and_nothing_else() -> None:
    found = {name: recipe.unconfirmed for name, recipe in RECIPES.items() if recipe.unconfirmed}
    assert sorted(found) == sorted(RECALLED)
    for name, lines in found.items():
        assert len(lines) == len(RECALLED[name])
        for (line, why), words in zip(lines, RECALLED[name], strict=True):
            assert words in line
            assert why


@pytest.mark.parametrize("name", RECIPES)
def test_a_line_that_is_not_confirmed_is_one_of_the_recipes(name: str) -> None:
    recipe = RECIPES[name]
    shown = [recipe.needs, *recipe.rule, *recipe.traps]
    marked = [line for line in shown if "(not confirmed: " in recipe.marked(line)]
    assert sorted(marked) == sorted(line for line, _ in recipe.unconfirmed)


def test_the_page_lists_what_is_not_confirmed() -> None:
    table = PAGE.partition("<!-- unconfirmed -->\n")[2].partition("\n\n")[0]
    rows = [
        tuple(cell.strip() for cell in row.strip("|").split(" | ")) for row in table.split("\n")
    ]
    found: dict[tuple[str, str], list[str]] = {}
    for name, recipe in RECIPES.items():
        for line, why in recipe.unconfirmed:
            found.setdefault((line, why), []).append(name)
    expected = [(", ".join(f"`{n}`" for n in names), *row) for row, names in found.items()]
    assert rows[2:] == expected
