"""``depthgauge audit``: does this module follow the recipe that it claims?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from depthgauge.cli.code import built, diverted
from depthgauge.cli.options import Debug, Json, Output, Quiet, as_json, output, say, screen, whole
from depthgauge.errors import SpecificationError
from depthgauge.trace.targets import is_code

if TYPE_CHECKING:
    from rich.console import Console

    from depthgauge.recipes.audit import Audit

__all__ = ["audit"]


def audit(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="path/file.py:callable or module:callable.")
    ],
    recipe: Annotated[
        str,
        typer.Option("--recipe", metavar="NAME", help="fixup, gpt2.", show_default=False),
    ],
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="KEY=VALUE", help="An argument of the callable; repeatable."),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="SPEC", help='"float 8x3x32x32"; repeatable.'),
    ] = None,
    seed: Annotated[
        str | None, typer.Option("--seed", metavar="N", help="Of the construction [0].")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    output_path: Output = None,
    debug: Debug = False,
) -> int:
    """Hold a module to a recipe: counts, standard deviations, zeros, scalars.

    All from measurement: L, m and the last weights from one pass, the rest from the weights. The
    exit status is 0 when the recipe holds and 1 when it does not.
    """
    from depthgauge.recipes.audit import audit as held_to
    from depthgauge.recipes.registry import recipe_named
    from depthgauge.trace.targets import arguments_of

    rules = recipe_named(recipe)
    if not is_code(target):
        raise SpecificationError(
            f"the target is '{target}', expected Python code that builds a module, such as "
            f"model.py:build; an equation has no weights of its own to audit"
        )
    number = whole("--seed", seed) or 0
    with output(output_path) as write, diverted():
        module, batch, _ = built(target, arguments_of(arg or ()), input or (), number)
        found = held_to(module, batch, rules)
        document = as_json({"target": target, **found.to_dict()}) if json or output_path else ""
        write(document)
    if json:
        say(document)
    elif quiet:
        say(_line(found) + "\n")
    else:
        screen(lambda console: _show(found, console))
    return 0 if found.holds else 1


def _line(found: Audit) -> str:
    broken = sum(not finding.holds for finding in found.findings)
    if found.holds:
        return f"audit: {found.recipe} holds"
    return f"audit: {found.recipe} does not hold ({broken} of {len(found.findings)} parts)"


def _show(found: Audit, console: Console) -> None:
    from depthgauge.report.tables import paragraph, plain

    layers = " and ".join(map(str, found.layers)) or "no"
    paragraph(console, f"{found.branches} residual branches of {layers} weight layers")
    plain(console)
    for finding in found.findings:
        paragraph(
            console, f"{'PASS' if finding.holds else 'FAIL'}  {finding.said}", indent="      "
        )
    plain(console)
    plain(console, _line(found), "green" if found.holds else "bold red")
