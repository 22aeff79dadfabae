"""``depthgauge ablate``: one causal factor at a time from a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthgauge.cli.code import diverted
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
    say,
    screen,
    whole,
)
from depthgauge.cli.sizes import (
    Args,
    Batch,
    Depth,
    Device,
    Draws,
    Inits,
    Inputs,
    Scalars,
    Size,
    Tokens,
    Width,
)
from depthgauge.cli.threads import numpy_alone
from depthgauge.trace.targets import arguments_of

if TYPE_CHECKING:
    from depthgauge.study.ablation import Ablation

__all__ = ["ablate"]


def ablate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="An equation in quotes, a file.toml, path/file.py:callable or module:callable.",
        ),
    ],
    vary: Annotated[
        list[str] | None,
        option(
            "--vary",
            "CHANGE",
            'norm=none, placement=post, "scale*2", activation=relu, init=orthogonal, depth=12, '
            "dtype=bfloat16; of a callable its arguments, width=128 [a usual set]; repeatable.",
        ),
    ] = None,
    corridor: Annotated[
        str | None, option("--corridor", "FILE", "A name or a file of bounds [default].")
    ] = None,
    comparison: Annotated[
        bool, typer.Option("--comparison", help="Take changes of several factors at once too.")
    ] = False,
    depth: Depth = None,
    width: Width = None,
    batch: Batch = None,
    seed: Annotated[str | None, option("--seed", "SEEDS", "0..4 or 0,3,5 [0..2].")] = None,
    init: Inits = None,
    scalar: Scalars = None,
    dtype: Annotated[
        str | None,
        option("--dtype", "NAME", "float64, float32, bfloat16, float16 [float32]."),
    ] = None,
    device: Device = None,
    tokens: Tokens = None,
    size: Size = None,
    draws: Draws = None,
    instruments: Annotated[
        str | None,
        option(
            "--instruments", "NAMES", "fast, balanced, thorough, or names of instruments [fast]."
        ),
    ] = None,
    arg: Args = None,
    input: Inputs = None,
    json: Json = False,
    quiet: Quiet = False,
    output_path: Output = None,
    debug: Debug = False,
) -> int:
    """Change one thing at a time, with weights, data and seeds held: what does each change do?

    On top stands which single change brings a failing bound back inside. Without --vary the norm is
    moved and taken away, the branches' scale halved and doubled, the activation another, and the
    weights orthogonal.

    The exit status is 0 when the baseline is inside its corridor, 1 when it is not (or could not be
    judged by it).
    """
    numpy_alone()
    from depthgauge.report.progress import progress
    from depthgauge.study.ablation import ablate as run
    from depthgauge.study.specification import parse_seed

    given: dict[str, Any] = {
        "depth": whole("--depth", depth),
        "width": whole("--width", width),
        "batch": whole("--batch", batch),
        "tokens": whole("--tokens", tokens),
        "size": whole("--size", size),
        "draws": draws,
        "dtype": dtype,
        "device": device,
        "scalars": named("--scalar", scalar or ()) or None,
        "init": initialisers(init or ()) or None,
    }
    with output(output_path) as write, diverted(), progress("varying", quiet=quiet) as step:
        found = run(
            target,
            vary or None,
            corridor=corridor,
            comparison=comparison,
            instruments=instruments,
            seed=None if seed is None else parse_seed(seed),
            arguments=arguments_of(arg) if arg else None,
            input=input or None,
            progress=step,
            **given,
        )
        document = as_json(found.to_dict()) if json or output_path else ""
        write(document)
    _show(found, document, json, quiet)
    return 0 if found.held else 1


def _show(found: Ablation, document: str, json: bool, quiet: bool) -> None:
    from depthgauge.report.ablation_screen import ablation_line, print_ablation

    if json:
        say(document)
    elif quiet:
        say(ablation_line(found) + "\n")
    else:
        screen(lambda console: print_ablation(found, console))
