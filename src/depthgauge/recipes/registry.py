"""The recipes by name."""

from __future__ import annotations

from typing import Final

from depthgauge.errors import SpecificationError, nearest
from depthgauge.recipes.delta_orthogonal import DELTA_ORTHOGONAL
from depthgauge.recipes.fixup import FIXUP
from depthgauge.recipes.gpt2 import GPT2
from depthgauge.recipes.he import HE
from depthgauge.recipes.lecun import LECUN
from depthgauge.recipes.lsuv import LSUV
from depthgauge.recipes.orthogonal import ORTHOGONAL
from depthgauge.recipes.rezero import REZERO
from depthgauge.recipes.rules import Recipe
from depthgauge.recipes.sigma_reparam import SIGMA_REPARAM
from depthgauge.recipes.weight_norm import WEIGHT_NORM
from depthgauge.recipes.xavier import XAVIER

__all__ = ["RECIPES", "recipe_named"]

RECIPES: Final[dict[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        XAVIER,
        HE,
        LECUN,
        ORTHOGONAL,
        DELTA_ORTHOGONAL,
        LSUV,
        WEIGHT_NORM,
        FIXUP,
        REZERO,
        GPT2,
        SIGMA_REPARAM,
    )
}


def recipe_named(name: str) -> Recipe:
    """The recipe of this name. Raises SpecificationError."""
    if name not in RECIPES:
        raise SpecificationError(
            f"recipe is '{name}', expected one of {', '.join(RECIPES)}{nearest(name, RECIPES)}"
        )
    return RECIPES[name]
