"""``depthgauge suite``: a built-in suite with its claims."""

from __future__ import annotations

from typing import Annotated

import typer

from depthgauge.cli.options import Debug, Json, Output, Quiet, as_json, output, say, screen

__all__ = ["suite"]


def suite(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="transport, relay, scalar, gates, fixup-counts, fixup-first-step, "
            "fixup-goldilocks.",
        ),
    ] = "transport",
    json: Json = False,
    quiet: Quiet = False,
    output_path: Output = None,
    debug: Debug = False,
) -> int:
    """Run a built-in suite: figures, claims, lessons.

    The settings of a suite are fixed, so that its figures are the same everywhere. The exit status
    is 0 when all claims hold and 1 when one does not.
    """
    from depthgauge.report.progress import progress
    from depthgauge.report.terminal import print_suite, suite_line
    from depthgauge.study.suites import run_suite

    with output(output_path) as write:
        with progress(f"suite {name}", quiet=quiet) as step:
            result = run_suite(name, step)
        document = as_json(result.to_dict()) if json or output_path else ""
        write(document)
    if json:
        say(document)
    elif quiet:
        say(suite_line(result) + "\n")
    else:
        screen(lambda console: print_suite(result, console))
    return 0 if result.passed else 1
