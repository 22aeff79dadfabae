"""``depthgauge sweep``: one network at several depths, how it grows and where it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depthgauge.cli.code import built, diverted, varied
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
    several,
    whole,
)
from depthgauge.cli.work import Work
from depthgauge.errors import SpecificationError, TargetError
from depthgauge.trace.targets import is_code

if TYPE_CHECKING:
    from depthgauge.report.progress import Steps
    from depthgauge.study.specification import Specification
    from depthgauge.study.swept import Sweep

__all__ = ["sweep"]


def sweep(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="An equation in quotes, a file.toml, path/file.py:callable or module:callable.",
        ),
    ],
    depths: Annotated[
        str | None, option("--depths", "[NAME=]N,N", "12,48,96, layers=4,16 [12,48,96].")
    ] = None,
    corridor: InCorridor = None,
    width: Annotated[str | None, option("--width", "N", "Width of the state [64].")] = None,
    batch: Annotated[str | None, option("--batch", "N", "Examples [128].")] = None,
    seed: Annotated[str | None, option("--seed", "SEEDS", "0..4 or 0,3,5 [0..2].")] = None,
    init: Annotated[
        list[str] | None,
        option("--init", "[NAME=]SPEC", "he, W1=he, attention.o=zeros [lecun]; repeatable."),
    ] = None,
    scalar: Annotated[
        list[str] | None, option("--scalar", "NAME=EXPR", "a=1/sqrt(L); repeatable.")
    ] = None,
    dtype: Annotated[
        str | None, option("--dtype", "NAME", "float64, float32, bfloat16, float16 [float32].")
    ] = None,
    device: Annotated[str | None, option("--device", "NAME", "cpu, cuda:0 [cpu].")] = None,
    tokens: Annotated[str | None, option("--tokens", "N", "Tokens, with attention [32].")] = None,
    size: Annotated[str | None, option("--size", "N", "Height and width, with conv [8].")] = None,
    instruments: Annotated[
        str | None, option("--instruments", "NAMES", "[fast and those the corridor asks for].")
    ] = None,
    probes: Annotated[
        str | None, option("--probes", "N", "Random vectors an average is taken over [8].")
    ] = None,
    examples: Annotated[
        str | None, option("--examples", "N", "Examples whose spectrum is taken [2].")
    ] = None,
    budget: Annotated[
        str | None,
        option("--budget", "SECONDS", "Of the instruments, each time they run [no end]."),
    ] = None,
    optimizer: Annotated[
        str | None, option("--optimizer", "NAME", "sgd, momentum, nesterov, adam, adamw [sgd].")
    ] = None,
    lr: Annotated[
        str | None, option("--lr", "RATE", "Its learning rate [0.1; adam, adamw 0.001].")
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
    """Measure a network at several depths: how each number grows, where each bound breaks.

    Says whether the depths discriminated: what passes everywhere has shown nothing yet. The
    corridor is default, or for an equation, which has no loss, transport. With --depths
    layers=4,8,16 a callable is built at each; of a callable the spectrum and the stiffness, which
    default bounds, cost most of it: a small Transformer of 12, 24 and 48 layers takes minutes, and
    --budget SECONDS bounds it. The exit status is 1 when some depth is outside the
    corridor or could not be judged by it.
    """
    code = is_code(target) and not target.endswith(".toml")
    over = several("--depths", depths) or ("depth", (12, 48, 96))
    options = {
        "--width": width, "--batch": batch, "--init": init, "--scalar": scalar, "--tokens": tokens,
        "--size": size,
    }  # fmt: skip
    belong(target, code, options, {"--arg": arg, "--input": input})
    work = Work(probes, examples, None, None, budget, optimizer, lr, None, None, None)
    with output(output_path) as write:
        if code:
            run = _of_code(target, over, seed, arg or (), input or (), (dtype, device))
        elif why := unreadable(target):
            raise TargetError(why)
        elif over[0] != "depth":
            raise SpecificationError(
                f"--depths varies '{over[0]}', but an equation has a depth; write --depths 12,48,96"
            )
        else:
            from depthgauge.study.specification import Changes

            network = {
                "depth": over[1][-1],
                "width": whole("--width", width),
                "tokens": whole("--tokens", tokens),
                "size": whole("--size", size),
            }
            ran = {
                "batch": whole("--batch", batch),
                "seed": seed or (None if target.endswith(".toml") else "0..2"),
                "dtype": dtype,
                "device": device,
            }
            changes = Changes(
                named("--scalar", scalar or ()),
                initialisers(init or ()),
                given(network),
                given(ran),
            )
            run = _of_equation(specification_of(target, changes), over[1])
        found = _swept(run, corridor, instruments, work, quiet)
        document = as_json(found.to_dict()) if json or output_path else ""
        write(document)
    _show(found, document, json, quiet)
    return 0 if found.state in ("pass", "warn") else 1


def _swept(
    run: Callable[..., Sweep],
    corridor: str | None,
    instruments: str | None,
    work: Work,
    quiet: bool,
) -> Sweep:
    from depthgauge.report.progress import progress

    with diverted(), progress("sweeping", quiet=quiet) as step:
        return run(corridor=corridor, instruments=instruments, work=work, progress=step)


def _of_equation(specification: Specification, depths: tuple[int, ...]) -> Callable[..., Sweep]:
    def run(work: Work, progress: Steps, **more: Any) -> Sweep:
        from depthgauge.study.sweep import sweep

        seed = specification.seed
        effort = work.effort(seed if isinstance(seed, int) else seed[0])
        return sweep(specification, depths, effort=effort, progress=progress, **more)

    return run


def _of_code(
    target: str,
    over: tuple[str, tuple[int, ...]],
    seed: str | None,
    arg: list[str] | tuple[str, ...],
    inputs: list[str] | tuple[str, ...],
    where: tuple[str | None, str | None],
) -> Callable[..., Sweep]:
    name, depths = over

    def run(work: Work, progress: Steps, **more: Any) -> Sweep:
        from depthgauge.study.specification import parse_seed
        from depthgauge.study.sweep import sweep
        from depthgauge.trace.targets import arguments_of

        arguments = arguments_of(arg)
        if name in arguments:
            raise SpecificationError(f"--arg gives '{name}', which --depths varies; leave it out")

        def build(depth: int, seed: int) -> Any:
            progress.now(f"{name} {depth}, seed {seed}")
            with varied(target, over):
                return built(target, {**arguments, name: depth}, inputs, seed, *where)

        build.__name__ = target
        given = parse_seed(seed or "0..2")
        seeds = (given,) if isinstance(given, int) else given
        effort = work.effort(seeds[0])
        return sweep(build, depths, seed=seeds, effort=effort, progress=progress, **more)

    return run


def _show(found: Sweep, document: str, json: bool, quiet: bool) -> None:
    from depthgauge.report.sweep_screen import print_sweep, sweep_line

    if json:
        say(document)
    elif quiet:
        say(sweep_line(found) + "\n")
    else:
        screen(lambda console: print_sweep(found, console))
