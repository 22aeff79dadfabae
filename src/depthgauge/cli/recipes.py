"""``depthgauge recipes``: what there is, by what it needs; one explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthgauge.cli.options import Debug, Json, as_json, say, screen

if TYPE_CHECKING:
    from rich.console import Console

    from depthgauge.recipes.rules import Recipe

__all__ = ["recipes"]


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The one to explain.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """List the recipes by what they need, or explain one: its rule, its traps, its reference."""
    from depthgauge.recipes.registry import RECIPES, recipe_named

    chosen = list(RECIPES.values()) if name is None else [recipe_named(name)]
    if json:
        say(as_json({"recipes": [_document(recipe) for recipe in chosen]}))
    elif name is None:
        screen(_list)
    else:
        from depthgauge.report.recipe_screen import print_recipe

        screen(lambda console: print_recipe(chosen[0], console))
    return 0


def _document(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "title": recipe.title,
        "tier": recipe.tier,
        "needs": recipe.needs,
        "rule": list(recipe.rule),
        "traps": list(recipe.traps),
        "unconfirmed": [{"line": line, "why": why} for line, why in recipe.unconfirmed],
        "judgement": recipe.judgement,
        "reference": recipe.reference,
    }


def _list(console: Console) -> None:
    from depthgauge.recipes.registry import GROUPS
    from depthgauge.report.tables import Column, plain, print_table

    width = max(len(recipe.name) for group in GROUPS.values() for recipe in group)
    for words, group in GROUPS.items():
        plain(console, words, "bold")
        print_table(
            console,
            [
                Column("recipe", [recipe.name.ljust(width) for recipe in group], right=False),
                Column("needs", [recipe.needs for recipe in group], right=False, wraps=True),
            ],
        )
        plain(console)
    plain(console, "depthgauge recipes NAME explains one")
