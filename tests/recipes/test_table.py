"""The page about recipes names every recipe, with the tests that hold it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from depthgauge.recipes.registry import RECIPES

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| `([\w.-]+)` \|.*\| `(tests/\S+\.py)` \|$", (ROOT / "docs/recipes.md").read_text(), re.M
)


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
