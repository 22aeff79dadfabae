"""The recipes by name."""

from __future__ import annotations

from typing import Final

from depthgauge.errors import SpecificationError, expect, nearest
from depthgauge.recipes.admin import ADMIN, ADMIN_CONSTANT
from depthgauge.recipes.admin_profile import ADMIN_PROFILE
from depthgauge.recipes.completep import COMPLETEP
from depthgauge.recipes.deepnorm import DEEPNORM
from depthgauge.recipes.deepscalelm import DEEPSCALELM
from depthgauge.recipes.delta_orthogonal import DELTA_ORTHOGONAL
from depthgauge.recipes.depth_mup import DEPTH_MUP
from depthgauge.recipes.derf import DERF
from depthgauge.recipes.dks import DKS
from depthgauge.recipes.dt_fixup import DT_FIXUP
from depthgauge.recipes.dyt import DYT
from depthgauge.recipes.fixup import FIXUP
from depthgauge.recipes.gpt2 import GPT2
from depthgauge.recipes.gradinit import GRADINIT
from depthgauge.recipes.he import HE
from depthgauge.recipes.inv_sqrt2 import INV_SQRT2
from depthgauge.recipes.inv_sqrt_l import INV_SQRT_L, INV_SQRT_L_INIT
from depthgauge.recipes.layernorm_scaling import LAYERNORM_SCALING
from depthgauge.recipes.layerscale import LAYERSCALE
from depthgauge.recipes.lecun import LECUN
from depthgauge.recipes.lsuv import LSUV
from depthgauge.recipes.metainit import METAINIT
from depthgauge.recipes.mix_ln import MIX_LN
from depthgauge.recipes.mup import MUP
from depthgauge.recipes.nfnet import NFNET
from depthgauge.recipes.orthogonal import ORTHOGONAL
from depthgauge.recipes.placements import PLACEMENTS
from depthgauge.recipes.qk_norm import QK_NORM, QK_NORM_LAYERNORM, QK_NORM_RMSNORM
from depthgauge.recipes.residual import RESIDUAL
from depthgauge.recipes.rezero import REZERO
from depthgauge.recipes.rules import Recipe
from depthgauge.recipes.sigma_reparam import SIGMA_REPARAM
from depthgauge.recipes.skipinit import SKIPINIT
from depthgauge.recipes.smallinit import SMALLINIT
from depthgauge.recipes.stable_resnet import STABLE_RESNET
from depthgauge.recipes.sub_ln import SUB_LN
from depthgauge.recipes.t_fixup import T_FIXUP
from depthgauge.recipes.tat import TAT
from depthgauge.recipes.u_mup import U_MUP
from depthgauge.recipes.unit_scaling import UNIT_SCALING
from depthgauge.recipes.weight_norm import WEIGHT_NORM
from depthgauge.recipes.xavier import XAVIER
from depthgauge.recipes.zero_gamma import ZERO_GAMMA

__all__ = ["GROUPS", "RECIPES", "recipe_named", "recipe_of"]

#: By what they need of a network.
GROUPS: Final[dict[str, tuple[Recipe, ...]]] = {
    "weight layers of any network": (
        XAVIER,
        HE,
        LECUN,
        ORTHOGONAL,
        DELTA_ORTHOGONAL,
        LSUV,
        WEIGHT_NORM,
        SIGMA_REPARAM,
        METAINIT,
        GRADINIT,
    ),
    "residual branches, which a number or their weights make small": (
        INV_SQRT2,
        INV_SQRT_L,
        INV_SQRT_L_INIT,
        STABLE_RESNET,
        FIXUP,
        SKIPINIT,
        REZERO,
        NFNET,
    ),
    "residual branches and norms": (
        *PLACEMENTS,
        ZERO_GAMMA,
        LAYERSCALE,
        DEEPNORM,
        ADMIN,
        ADMIN_CONSTANT,
        ADMIN_PROFILE,
        SUB_LN,
        LAYERNORM_SCALING,
        MIX_LN,
        RESIDUAL,
        DYT,
        DERF,
    ),
    "a Transformer": (
        GPT2,
        T_FIXUP,
        DT_FIXUP,
        DEEPSCALELM,
        SMALLINIT,
        QK_NORM,
        QK_NORM_LAYERNORM,
        QK_NORM_RMSNORM,
    ),
    "activations in series, which their constants shape for one depth": (DKS, TAT),
    "a base width or depth at which the rates were found": (MUP, DEPTH_MUP, COMPLETEP),
    "numbers of size 1, in the forward pass in place of the weights": (UNIT_SCALING, U_MUP),
}
RECIPES: Final[dict[str, Recipe]] = {
    recipe.name: recipe for group in GROUPS.values() for recipe in group
}


def recipe_of(recipe: str | Recipe) -> Recipe:
    """The recipe that was given, by its name or as one. Raises SpecificationError for a name that
    no recipe has, TargetError for what is neither."""
    expect("recipe", recipe, (str, Recipe), "the name of a recipe, such as 'fixup', or a Recipe")
    return recipe_named(recipe) if isinstance(recipe, str) else recipe


def recipe_named(name: str) -> Recipe:
    """The recipe of this name. Raises SpecificationError, TargetError for what is no name."""
    expect("recipe", name, str, "the name of a recipe, such as 'fixup'")
    if name not in RECIPES:
        raise SpecificationError(
            f"recipe is '{name}', expected one of {', '.join(RECIPES)}{nearest(name, RECIPES)}"
        )
    return RECIPES[name]
