"""A recipe in the terminal: its rule, its traps, its reference."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from depthgauge.recipes.rules import Recipe
from depthgauge.report.tables import paragraph, plain

__all__ = ["print_changes", "print_recipe"]


def print_recipe(recipe: Recipe, console: Console) -> None:
    """What it needs, its rule, its traps, what is our own judgement, and the paper."""
    plain(console, f"{recipe.name}: {recipe.title}", "bold")
    paragraph(console, f"needs: {recipe.marked(recipe.needs)}")
    plain(console)
    for head, lines in (("rule", recipe.rule), ("traps", recipe.traps)):
        plain(console, head, "bold")
        for line in lines:
            paragraph(console, recipe.marked(line), indent="  - ")
        plain(console)
    if recipe.judgement:
        paragraph(console, f"our judgement: {recipe.judgement}")
        plain(console)
    paragraph(console, f"reference: {recipe.reference}")


def print_changes(changes: Sequence[str], left: Sequence[str], console: Console) -> None:
    """What a recipe changed, a line for each kind, and what it could not."""
    for line in changes:
        paragraph(console, line, indent="" if line.startswith(("- ", "+ ")) else "  ")
    if not changes:
        plain(console, "nothing was changed")
    for line in left:
        paragraph(console, f"left: {line}", indent="  ")
