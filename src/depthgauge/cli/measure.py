"""``depthgauge measure``: both rivers through one network, and the verdict of its corridor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthgauge.cli.code import Code, diverted
from depthgauge.cli.equations import belong, given, specification_of, unreadable
from depthgauge.cli.options import (
    Debug,
    InCorridor,
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
from depthgauge.cli.work import Work, with_exponents
from depthgauge.errors import SpecificationError, TargetError, UsageError
from depthgauge.trace.targets import is_code

if TYPE_CHECKING:
    from depthgauge.instruments.subject import Effort
    from depthgauge.profile import Profile
    from depthgauge.study.corridor import Corridor, Verdict
    from depthgauge.study.corridors import NamedCorridor
    from depthgauge.study.specification import Specification

__all__ = ["measure"]


def measure(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="An equation in quotes, a file.toml, path/file.py:callable or module:callable.",
        ),
    ],
    depth: Depth = None,
    width: Width = None,
    batch: Batch = None,
    seed: Annotated[str | None, option("--seed", "SEEDS", "7, 0..15 or 0,3,5 [0].")] = None,
    init: Inits = None,
    scalar: Scalars = None,
    dtype: Annotated[
        str | None,
        option(
            "--dtype",
            "NAME",
            "float64, float32, bfloat16, float16 [float32]; when compared also "
            "autocast-bfloat16, float8_e4m3 and others.",
        ),
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
    probes: Annotated[
        str | None, option("--probes", "N", "Random vectors an average is taken over [8].")
    ] = None,
    examples: Annotated[
        str | None, option("--examples", "N", "Examples whose spectrum is taken [2].")
    ] = None,
    until: Annotated[
        str | None, option("--until", "N", "The state that Jacobians end at [the last].")
    ] = None,
    rank: Annotated[
        str | None, option("--rank", "N", "Leading directions of a wide state [16].")
    ] = None,
    budget: Annotated[
        str | None, option("--budget", "SECONDS", "No instrument goes on after them [no end].")
    ] = None,
    optimizer: Annotated[
        str | None, option("--optimizer", "NAME", "sgd, momentum, nesterov, adam, adamw [sgd].")
    ] = None,
    lr: Annotated[
        str | None, option("--lr", "RATE", "Its learning rate [0.1; adam, adamw 0.001].")
    ] = None,
    steps: Annotated[
        str | None, option("--steps", "N", "Of it before stiffness is looked at again [3].")
    ] = None,
    branches: Annotated[
        str | None, option("--branches", "N", "Branches whose step is taken alone, at most [32].")
    ] = None,
    against: Annotated[
        str | None,
        option("--against", "float64", "Compare the arithmetic --dtype names with float64."),
    ] = None,
    depths: Annotated[
        str | None,
        option("--depths", "[NAME=]N,N", "How one step's change grows: 4,16,64, layers=4,16."),
    ] = None,
    labels: Annotated[
        str | None, option("--labels", "NAME", "The part of the batch that is its labels.")
    ] = None,
    directions: Annotated[
        str | None, option("--directions", "FILE", "A .npy of (n,) or (k, n) numbers to follow.")
    ] = None,
    batch_axis: Annotated[
        str | None,
        option("--batch-axis", "AXIS", "The axis of a module's batch that counts examples."),
    ] = None,
    arg: Args = None,
    input: Inputs = None,
    include: Annotated[
        str | None, option("--include", "REGEX", "Only sites whose module name has it.")
    ] = None,
    exclude: Annotated[
        str | None, option("--exclude", "REGEX", "No site whose module name has it.")
    ] = None,
    corridor: InCorridor = None,
    json: Json = False,
    quiet: Quiet = False,
    output_path: Output = None,
    debug: Debug = False,
) -> int:
    """Measure state and gradient at every block of a network, or of any PyTorch module.

    The callable returns a module, (module, batch) or (module, batch, loss); its residual stream is
    found and printed as an equation.

    An option replaces what a file.toml says. The exit status is 1 when there is a corridor, that of
    --corridor under the bounds of the file's own, and the network is outside it (or could not be
    judged by it), else 0: overflow is a result.
    """
    code = is_code(target) and not target.endswith(".toml")
    options = {
        "--depth": depth, "--width": width, "--batch": batch, "--init": init, "--scalar": scalar,
        "--tokens": tokens, "--size": size, "--draws": draws,
    }  # fmt: skip
    others = {
        "--arg": arg, "--input": input, "--include": include, "--exclude": exclude,
        "--labels": labels, "--batch-axis": batch_axis,
    }  # fmt: skip
    belong(target, code, options, others)
    work = Work(
        probes, examples, until, rank, budget, optimizer, lr, depths, against, directions, branches,
        steps,
    )  # fmt: skip
    work, dtype = work.compared(dtype, code)
    within = None
    if corridor is not None:
        from depthgauge.study.corridors import corridor_named

        within = corridor_named(corridor)
    if depths is not None and depth is not None:
        raise SpecificationError("--depth and --depths were both given; leave --depth out")
    if code:
        return _module(
            Code(
                target,
                arg or (),
                input or (),
                seed,
                dtype,
                device,
                instruments,
                include,
                exclude,
                labels,
                work,
                whole("--batch-axis", batch_axis),
            ),
            Screen(json, quiet, output_path),
            within,
        )
    if why := unreadable(target):
        raise TargetError(why)
    over = work.over
    if over is not None and over[0] != "depth":
        raise SpecificationError(
            f"--depths varies '{over[0]}', but an equation has a depth; write --depths 4,16,64"
        )
    network = {
        "depth": whole("--depth", depth) if over is None else over[1][-1],
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
        "instruments": work.instruments(instruments),
    }
    scalars, inits = named("--scalar", scalar or ()), initialisers(init or ())

    from depthgauge.arguments import seeds_of
    from depthgauge.study.specification import Changes

    specification = specification_of(target, Changes(scalars, inits, given(network), given(run)))
    seeds = seeds_of(specification.seed)[0]
    with output(output_path) as write:
        effort = work.effort(seeds[0], len(seeds))  # its clock runs from here
        more = work.given(effort)
        profile = _measured(target, specification, quiet, more, from_file=device is None)
        if over is not None:
            profile = _over_depths(profile, specification, over[1], effort)
        verdict = _judged(profile, within, specification.corridor, work)
        document = as_json(profile.to_dict(verdict)) if json or output_path else ""
        write(document)
    _show(profile, verdict, document, Screen(json, quiet, output_path))
    return status(verdict)


@dataclass(frozen=True)
class Screen:
    """Where the result goes, as the options say."""

    json: bool
    quiet: bool
    path: str | None


def _module(code: Code, to: Screen, within: NamedCorridor | None) -> int:
    """Measure the model that the code builds, judge and show it."""
    with output(to.path) as write, diverted():
        profile = code.measured()
        verdict = _judged(profile, within, None, code.work)
        document = as_json(profile.to_dict(verdict)) if to.json or to.path else ""
        write(document)
    _show(profile, verdict, document, to)
    return status(verdict)


def _judged(
    profile: Profile, within: NamedCorridor | None, own: Corridor | None, work: Work
) -> Verdict | None:
    """By the corridor named, for this depth and the arithmetic meant, under the bounds of the
    file's own."""
    if within is not None:
        own = within.under(own).at(profile.depth, work.arithmetic or profile.dtype)
    return None if own is None else own.judge(profile)


def status(verdict: Verdict | None) -> int:
    """0 in the corridor, or where there is none; else 1."""
    return 0 if verdict is None or verdict.state in ("pass", "warn") else 1


def _show(profile: Profile, verdict: Verdict | None, document: str, to: Screen) -> None:
    from depthgauge.report.terminal import print_profile, profile_line

    if to.json:
        say(document)
    elif to.quiet:
        say(profile_line(profile, verdict) + "\n")
    else:
        screen(lambda console: print_profile(profile, verdict, console))


def _over_depths(
    profile: Profile, specification: Specification, depths: Sequence[int], effort: Effort
) -> Profile:
    """The profile with how what one step changes grows with the depth of the equation."""
    from depthgauge.study.scaling import of_network

    batch = specification.batch if isinstance(specification.batch, int) else 32
    build = of_network(specification.network, min(batch, 32))
    return with_exponents(profile, build, depths, profile.seeds, effort)


def _measured(
    target: str,
    specification: Specification,
    quiet: bool,
    more: Mapping[str, Any],
    from_file: bool,
) -> Profile:
    from depthgauge.report.progress import progress

    try:
        with progress("measuring", quiet=quiet) as step:
            return specification.measure(step, **more)
    except UsageError as error:
        # A device that this machine lacks, or what is wrong at one block only.
        if not target.endswith(".toml"):
            raise
        key = "run." if isinstance(error, SpecificationError) and from_file else ""
        raise SpecificationError(f"{target}: {key}{error}") from None
