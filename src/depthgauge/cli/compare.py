"""``depthgauge compare``: recipes side by side on one block, depth, width and set of seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthgauge.cli.code import built, diverted, varied
from depthgauge.cli.options import (
    Debug,
    Json,
    Output,
    Quiet,
    as_json,
    initialisers,
    named,
    option,
    output,
    positive,
    say,
    screen,
    several,
    whole,
)
from depthgauge.errors import SpecificationError
from depthgauge.trace.targets import is_code

if TYPE_CHECKING:
    from depthgauge.study.compare import Build, Comparison

__all__ = ["compare"]


def compare(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="An equation in quotes, or path/file.py:callable."),
    ],
    recipes: Annotated[str, option("--recipes", "NAMES", "he,fixup,rezero: see recipes.")],
    depth: Annotated[str | None, option("--depth", "N", "Blocks of an equation [96].")] = None,
    width: Annotated[str | None, option("--width", "N", "Width of the state [64].")] = None,
    batch: Annotated[str | None, option("--batch", "N", "Examples [32].")] = None,
    tokens: Annotated[str | None, option("--tokens", "N", "Tokens, with attention [32].")] = None,
    size: Annotated[str | None, option("--size", "N", "Height and width, with conv [8].")] = None,
    seed: Annotated[str | None, option("--seed", "SEEDS", "0..4 or 0,3,5 [0..2].")] = None,
    init: Annotated[
        list[str] | None,
        option("--init", "[NAME=]SPEC", "Of the network as given [lecun]; repeatable."),
    ] = None,
    scalar: Annotated[
        list[str] | None, option("--scalar", "NAME=EXPR", "a=1/sqrt(L); repeatable.")
    ] = None,
    depths: Annotated[
        str | None,
        option("--depths", "[NAME=]N,N", "Where the first step is taken [an eighth, ..., all]."),
    ] = None,
    arg: Annotated[
        list[str] | None, option("--arg", "KEY=VALUE", "Of the callable; repeatable.")
    ] = None,
    input: Annotated[
        list[str] | None, option("--input", "SPEC", '"float 8x3x32x32"; repeatable.')
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    output_path: Output = None,
    debug: Debug = False,
) -> int:
    """Put recipes side by side: rivers, rank, the first step's growth with depth, head-room, cost.

    Each recipe is put into the equation, or into a copy of the module, and measured on the same
    data under the same seeds. With --depths layers=4,8,16 the callable is built at several depths.
    """
    from depthgauge.recipes.registry import recipe_named
    from depthgauge.report.progress import progress
    from depthgauge.study.compare import compare_built
    from depthgauge.study.specification import parse_seed

    names = [name.strip() for name in recipes.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise SpecificationError(
            f"--recipes is '{recipes}', expected different names between commas, such as he,fixup"
        )
    chosen = [recipe_named(name) for name in names]
    given = parse_seed(seed) if seed is not None else range(3)
    seeds = (given,) if isinstance(given, int) else tuple(given)
    over = several("--depths", depths)
    with output(output_path) as write, diverted(), progress("comparing", quiet=quiet) as step:
        at: tuple[int, ...] | None
        sizes: dict[str, int] = {}
        if is_code(target):
            _refused(depth=depth, width=width, batch=batch, tokens=tokens, size=size)
            build, deep, at = _code(target, arg or (), input or (), over, seeds[0])
        else:
            sizes = {
                "depth": positive("--depth", depth, 96),
                "width": positive("--width", width, 64),
                "batch": positive("--batch", batch, 32),
            }
            build = _equation(target, init or (), scalar or (), sizes, tokens, size)
            deep, at = sizes.pop("depth"), (over[1] if over else None)
        found = compare_built(
            build, chosen, deep, seeds, at, target=target, sizes=sizes, progress=step
        )
        document = as_json(found.to_dict()) if json or output_path else ""
        write(document)
    if json:
        say(document)
    elif quiet:
        say(_line(found) + "\n")
    else:
        from depthgauge.report.compare_screen import print_comparison

        screen(lambda console: print_comparison(found, console))
    return 0


def _refused(**options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise SpecificationError(
                f"--{name} is for an equation; give the callable its sizes with --arg KEY=VALUE"
            )


def _equation(
    text: str,
    init: list[str] | tuple[str, ...],
    scalar: list[str] | tuple[str, ...],
    sizes: Mapping[str, int],
    tokens: str | None,
    size: str | None,
) -> Build:
    from depthgauge.network.spec import Network
    from depthgauge.study.compare import of_network

    network = Network(
        text,
        sizes["depth"],
        sizes["width"],
        init=initialisers(init),
        scalars=named("--scalar", scalar),
        tokens=whole("--tokens", tokens),
        size=whole("--size", size),
    )
    return of_network(network, sizes["batch"])


def _code(
    target: str,
    arg: list[str] | tuple[str, ...],
    inputs: list[str] | tuple[str, ...],
    over: tuple[str, tuple[int, ...]] | None,
    seed: int,
) -> tuple[Build, int, tuple[int, ...]]:
    """How the code builds its module at a depth, the depth measured and those of the step; a
    callable without an argument of depth has one, which is what it builds."""
    from depthgauge.study.compare import of_builder
    from depthgauge.trace.layout import layout
    from depthgauge.trace.targets import arguments_of

    arguments = arguments_of(arg)
    if over is None:
        module, batch, _ = built(target, arguments, inputs, seed)
        depth = max(layout(module, batch).blocks, 1)
        return of_builder(lambda _, s: built(target, arguments, inputs, s)[:2]), depth, (depth,)
    name, depths = over
    if name in arguments:
        raise SpecificationError(f"--arg gives '{name}', which --depths varies; leave it out")

    def made(depth: int, seed: int) -> tuple[Any, Any]:
        with varied(target, over):
            return built(target, {**arguments, name: depth}, inputs, seed)[:2]

    return of_builder(made), depths[-1], depths


def _line(found: Comparison) -> str:
    refused = sum(bool(row.refused) for row in found.rows)
    words = f"compare: {len(found.rows) - 1} recipes at depth {found.depth}"
    return f"{words}, {refused} of them do not cover it" if refused else words
