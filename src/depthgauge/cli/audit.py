"""``depthgauge audit``: does this module follow the recipe that it claims? Or which one?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthgauge.cli.code import built, diverted
from depthgauge.cli.options import (
    Debug,
    Json,
    Output,
    Quiet,
    as_json,
    initialisers,
    option,
    output,
    positive,
    say,
    screen,
    whole,
)
from depthgauge.errors import SpecificationError
from depthgauge.trace.targets import is_code

if TYPE_CHECKING:
    from torch import nn

    from depthgauge.recipes.audit import Audit
    from depthgauge.recipes.guess import Guess

__all__ = ["audit"]


def audit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="path/file.py:callable, module:callable or an equation."
        ),
    ],
    recipe: Annotated[
        str | None, option("--recipe", "NAME", "Of 'depthgauge recipes' [which one is guessed].")
    ] = None,
    arg: Annotated[
        list[str] | None, option("--arg", "KEY=VALUE", "Of the callable; repeatable.")
    ] = None,
    input: Annotated[
        list[str] | None, option("--input", "SPEC", '"float 8x3x32x32"; repeatable.')
    ] = None,
    depth: Annotated[str | None, option("--depth", "N", "Blocks of an equation [96].")] = None,
    width: Annotated[str | None, option("--width", "N", "Its width [64].")] = None,
    init: Annotated[
        list[str] | None, option("--init", "[NAME=]SPEC", "Its weights [lecun]; repeatable.")
    ] = None,
    seed: Annotated[str | None, option("--seed", "N", "Of the construction [0].")] = None,
    optimizer: Annotated[
        str | None,
        option("--optimizer", "CALLABLE", "Beside the target's: gives the module's optimizer."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    output_path: Output = None,
    debug: Debug = False,
) -> int:
    """Hold a module to a recipe: counts, standard deviations, zeros, factors, norms, scalars.

    All from measurement: L, m and the last weights from one pass, factors from the block equation,
    the rest from the weights and from three steps on a copy. The exit status is 0 when the recipe
    holds and 1 when it does not. Without --recipe the recipe is named that the numbers agree with,
    with what speaks for it and against others; the status is then 1 when none does. With
    --optimizer a callable of the module gives its optimizer, whose groups are held to the recipe's.
    """
    from torch.optim import Optimizer

    from depthgauge.recipes.audit import audit as held_to
    from depthgauge.recipes.guess import guess
    from depthgauge.recipes.registry import recipe_named
    from depthgauge.report.audit_screen import audit_line, good, print_audit
    from depthgauge.trace.targets import arguments_of, made_by

    rules = recipe_named(recipe) if recipe is not None else None
    if optimizer is not None and rules is None:
        raise SpecificationError(
            f"--optimizer is '{optimizer}', whose groups are held to those of a recipe; give "
            f"--recipe too"
        )
    number = whole("--seed", seed) or 0
    with output(output_path) as write, diverted():
        if is_code(target):
            _refused(depth=depth, width=width, init=init)
            module, batch, loss = built(target, arguments_of(arg or ()), input or (), number)
        else:
            module, batch = _of_equation(target, depth, width, init or (), number)
            loss = None
        found: Audit | Guess
        if rules is None:
            found = guess(module, batch)
        else:
            made = None if optimizer is None else made_by(optimizer, target, module, Optimizer)
            found = held_to(module, batch, rules, made, loss)
        document = as_json({"target": target, **found.to_dict()}) if json or output_path else ""
        write(document)
    if json:
        say(document)
    elif quiet:
        say(audit_line(found) + "\n")
    else:
        screen(lambda console: print_audit(found, console))
    return 0 if good(found) else 1


def _refused(**options: object) -> None:
    for name, value in options.items():
        if value:
            raise SpecificationError(
                f"--{name} is for an equation; give the callable its sizes with --arg KEY=VALUE"
            )


def _of_equation(
    text: str, depth: str | None, width: str | None, init: Sequence[str], seed: int
) -> tuple[nn.Module, Any]:
    import torch

    from depthgauge.network.spec import Network

    network = Network(
        text,
        positive("--depth", depth, 96),
        positive("--width", width, 64),
        init=initialisers(init),
    )
    generator = torch.Generator().manual_seed(seed)
    return network.module(seed), torch.randn(32, *network.state_shape, generator=generator)
