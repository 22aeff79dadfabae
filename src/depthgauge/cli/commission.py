"""``depthgauge commission``: every gate in order, and the record that they leave."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthgauge.cli.code import diverted, varied
from depthgauge.cli.options import (
    Debug,
    Json,
    Quiet,
    as_json,
    initialisers,
    named,
    option,
    rate,
    say,
    screen,
    several,
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
from depthgauge.trace.targets import arguments_of, is_code

if TYPE_CHECKING:
    from depthgauge.study.commission.run import Commission

__all__ = ["commission"]


def commission(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A file.toml, an equation in quotes, path/file.py:callable or module:callable.",
        ),
    ],
    directory: Annotated[
        str, option("-o", "DIR", "Where the record is written: record.json and curves.npz.")
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an interrupted commission stopped.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the record of another specification there."),
    ] = False,
    stop_early: Annotated[
        bool,
        typer.Option("--exitfirst", help="Run no gate behind the first that fails."),
    ] = False,
    depths: Annotated[
        str | None,
        option("--depths", "LIST", "12,48,96; of a callable layers=12,48,96 [up to its depth]."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        option("--vary", "CHANGE", "A change of the ablation [a usual set]; repeatable."),
    ] = None,
    corridor: Annotated[
        str | None, option("--corridor", "FILE", "A name or a file of bounds [commission].")
    ] = None,
    rival: Annotated[str | None, option("--rival", "NAME", "fixup or orthogonal.")] = None,
    shallow: Annotated[
        str | None, option("--shallow", "N", "Blocks of the shallow control [8].")
    ] = None,
    optimizer: Annotated[
        str | None,
        option("--optimizer", "NAME", "sgd, momentum, nesterov, adam, adamw [sgd]."),
    ] = None,
    lr: Annotated[
        str | None, option("--lr", "RATE", "Learning rate [the file's, else the optimizer's own].")
    ] = None,
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
    arg: Args = None,
    input: Inputs = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Commission a network: the gates in order, each with its question, its bounds and what it
    leaves open, written as a record that goes stale when the network changes.

    The exit status is 0 when every gate passes (or warns), 1 when one fails or was not measured:
    in this version always 1, since it has no training runs. depthgauge verify tells whether a
    record holds, depthgauge.require whether a gate fails.
    """
    numpy_alone()
    from depthgauge.report.progress import progress
    from depthgauge.study.commission.run import commission as run
    from depthgauge.study.specification import parse_seed

    one = depths.strip() if depths else ""
    over = ("depth", (int(one),)) if one.isdecimal() else several("--depths", depths)
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
        "depths": None if over is None else over[1],
        "axis": None if over is None else over[0],
        "corridor": corridor,
        "rival": rival,
        "shallow": whole("--shallow", shallow),
        "vary": tuple(vary) if vary else None,
        "optimizer": optimizer,
        "lr": rate("--lr", lr),
    }
    ranging = over if is_code(target) else None
    with diverted(), varied(target, ranging), progress("commissioning", quiet=quiet) as step:

        def gate(name: str, done: int, of: int) -> None:
            step.now(name)
            step(done, of)

        found = run(
            target,
            directory,
            resume=resume,
            overwrite=overwrite,
            stop_early=stop_early,
            progress=gate,
            command=["depthgauge", *sys.argv[1:]],
            seed=None if seed is None else parse_seed(seed),
            arguments=arguments_of(arg) if arg else None,
            input=input or None,
            **given,
        )
    _show(found, json, quiet)
    return 0 if found.state in ("pass", "warn") else 1


def _show(found: Commission, json: bool, quiet: bool) -> None:
    from depthgauge.report.commission_screen import commission_line, print_commission

    if json:
        say(as_json(found.to_dict()))
    elif quiet:
        say(commission_line(found) + "\n")
    else:
        screen(lambda console: print_commission(found, console))
