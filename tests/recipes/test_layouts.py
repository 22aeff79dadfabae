"""Recipes for residual networks on weights that are not square, grouped or transposed."""

from __future__ import annotations

import math

import pytest

from depthgauge.trace.layout import layout
from tests.recipes.contract import on_module
from tests.recipes.models import grouped

RECIPES = (
    "he",
    "inv-sqrt2",
    "inv-sqrtL",
    "stable-resnet",
    "fixup",
    "skipinit",
    "rezero",
    "zero-gamma",
    "nfnet",
    "layerscale",
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_grouped_and_transposed_weights(recipe: str) -> None:
    applied, batch = on_module(recipe, grouped)
    first, last = layout(applied.model, batch).branches[0].weights
    assert (first.fan_in, last.fan_in) == (2 * 9, 24 * 9)
    if recipe in ("he", "inv-sqrtL", "skipinit"):
        for weight in (first, last):
            std = float(applied.model.get_parameter(weight.path).detach().std())
            assert std == pytest.approx(math.sqrt(2 / weight.fan_in), rel=0.1)
