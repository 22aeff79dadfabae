"""``depthgauge measure``: both rivers through one network, and the verdict of its corridor."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthgauge.cli.options import (
    Debug,
    Json,
    Output,
    Quiet,
    as_json,
    initialisers,
    named,
    output,
    say,
    screen,
    whole,
)
from depthgauge.errors import SpecificationError, TargetError, UsageError

if TYPE_CHECKING:
    from depthgauge.profile import Profile
    from depthgauge.study.specification import Changes, Specification

__all__ = ["measure"]

#: model.py:build, package.module:build
_CODE = re.compile(r"[\w./\\~-]+\.py(:\w*)?|[^\W\d][\w.]*:[^\W\d]\w*")


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


def measure(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="An equation in quotes, or a file.toml.")
    ],
    depth: Annotated[str | None, _option("--depth", "N", "Blocks [96].")] = None,
    width: Annotated[str | None, _option("--width", "N", "Width of the state [64].")] = None,
    batch: Annotated[str | None, _option("--batch", "N", "Examples [128].")] = None,
    seed: Annotated[str | None, _option("--seed", "SEEDS", "7, 0..15 or 0,3,5 [0].")] = None,
    init: Annotated[
        list[str] | None,
        _option("--init", "[NAME=]SPEC", "he, W1=he, attention.o=zeros [lecun]; repeatable."),
    ] = None,
    scalar: Annotated[
        list[str] | None, _option("--scalar", "NAME=EXPR", "a=1/sqrt(L); repeatable.")
    ] = None,
    dtype: Annotated[
        str | None, _option("--dtype", "NAME", "float64, float32, bfloat16, float16 [float32].")
    ] = None,
    device: Annotated[str | None, _option("--device", "NAME", "cpu, cuda:0 [cpu].")] = None,
    tokens: Annotated[str | None, _option("--tokens", "N", "Tokens, with attention [32].")] = None,
    size: Annotated[str | None, _option("--size", "N", "Height and width, with conv [8].")] = None,
    draws: Annotated[
        str | None, _option("--draws", "ORDER", "keyed or sequential-pcg64 [keyed].")
    ] = None,
    instruments: Annotated[
        str | None,
        _option("--instruments", "NAMES", "rivers,quantiles,gates, or quantities [fast: all]."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    output_path: Output = None,
    debug: Debug = False,
) -> int:
    """Measure state and gradient at every block of a network.

    An option replaces what a file.toml says. The exit status is 1 when the file declares a corridor
    and the network is outside it (or could not be judged by it), else 0: overflow is a result.
    """
    if why := _not_yet(target):
        raise TargetError(why)
    network = {
        "depth": whole("--depth", depth),
        "width": whole("--width", width),
        "tokens": whole("--tokens", tokens),
        "size": whole("--size", size),
        "draws": draws,
    }
    run = {
        "batch": whole("--batch", batch),
        "seed": seed,
        "dtype": dtype,
        "device": device,
        "instruments": instruments,
    }
    scalars, inits = named("--scalar", scalar or ()), initialisers(init or ())

    from depthgauge.report.terminal import print_profile, profile_line
    from depthgauge.study.specification import Changes

    specification = _specification(target, Changes(scalars, inits, _given(network), _given(run)))
    with output(output_path) as write:
        profile = _measured(target, specification, quiet, from_file=device is None)
        corridor = specification.corridor
        verdict = corridor.judge(profile) if corridor is not None else None
        document = as_json(profile.to_dict(verdict)) if json or output_path else ""
        write(document)
    if json:
        say(document)
    elif quiet:
        say(profile_line(profile, verdict) + "\n")
    else:
        screen(lambda console: print_profile(profile, verdict, console))
    return 0 if verdict is None or verdict.state in ("pass", "warn") else 1


def _not_yet(target: str) -> str:
    """``""``, or why this version cannot measure such a target."""
    if target.endswith(".toml"):
        return ""
    if _CODE.fullmatch(target):
        return (
            f"'{target}' names Python code; this version measures equations and TOML "
            f"specifications, so write its block as an equation, such as 'h + W2(relu(W1(h)))'"
        )
    if re.search(r"[./\\]", target) and os.path.exists(target):
        return f"'{target}' is a file or directory; give an equation or a specification.toml"
    return ""


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _specification(target: str, changes: Changes) -> Specification:
    from depthgauge.network.spec import Network
    from depthgauge.study.specification import Specification, parse_seed, read_specification

    if target.endswith(".toml"):
        return read_specification(target, changes)
    run = dict(changes.run)
    if "seed" in run:
        run["seed"] = parse_seed(run["seed"])
    network = Network(target, scalars=changes.scalars, init=changes.init, **changes.network)
    return Specification(network, **run)


def _measured(target: str, specification: Specification, quiet: bool, from_file: bool) -> Profile:
    from depthgauge.report.progress import progress

    try:
        with progress("measuring", quiet=quiet) as step:
            return specification.measure(step)
    except UsageError as error:
        # A device that this machine lacks, or what is wrong at one block only.
        if not target.endswith(".toml"):
            raise
        key = "run." if isinstance(error, SpecificationError) and from_file else ""
        raise SpecificationError(f"{target}: {key}{error}") from None
