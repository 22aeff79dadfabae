"""The recipes by name."""

from __future__ import annotations

from typing import Final

from depthgauge.errors import SpecificationError, nearest
from depthgauge.recipes.admin import ADMIN, ADMIN_CONSTANT
from depthgauge.recipes.deepnorm import DEEPNORM
from depthgauge.recipes.deepscalelm import DEEPSCALELM
from depthgauge.recipes.derf import DERF
from depthgauge.recipes.dyt import DYT
from depthgauge.recipes.fixup import FIXUP
from depthgauge.recipes.gpt2 import GPT2
from depthgauge.recipes.he import HE
from depthgauge.recipes.layernorm_scaling import LAYERNORM_SCALING
from depthgauge.recipes.mix_ln import MIX_LN
from depthgauge.recipes.placements import PLACEMENTS
from depthgauge.recipes.rezero import REZERO
from depthgauge.recipes.rules import Recipe
from depthgauge.recipes.smallinit import SMALLINIT
from depthgauge.recipes.sub_ln import SUB_LN
from depthgauge.recipes.t_fixup import T_FIXUP

__all__ = ["RECIPES", "recipe_named"]

RECIPES: Final[dict[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        HE,
        FIXUP,
        REZERO,
        *PLACEMENTS,
        DEEPNORM,
        DEEPSCALELM,
        ADMIN,
        ADMIN_CONSTANT,
        DYT,
        DERF,
        GPT2,
        T_FIXUP,
        SMALLINIT,
        SUB_LN,
        LAYERNORM_SCALING,
        MIX_LN,
    )
}


def recipe_named(name: str) -> Recipe:
    """The recipe of this name. Raises SpecificationError."""
    if name not in RECIPES:
        raise SpecificationError(
            f"recipe is '{name}', expected one of {', '.join(RECIPES)}{nearest(name, RECIPES)}"
        )
    return RECIPES[name]
