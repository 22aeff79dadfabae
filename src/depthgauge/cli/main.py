"""The command ``depthgauge``: parse, call, print; errors become one sentence and an exit status.

    0    in the corridor, or all claims hold
    1    out of the corridor or not judged by it, a claim does not hold, a record is stale
    2    wrong use
    3    the tool failed, or a record is broken
    130  interrupted

Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from depthgauge._version import __version__
from depthgauge.cli.ablate import ablate
from depthgauge.cli.audit import audit
from depthgauge.cli.commission import commission
from depthgauge.cli.compare import compare
from depthgauge.cli.measure import measure
from depthgauge.cli.options import Debug, say
from depthgauge.cli.recipes import recipes
from depthgauge.cli.report import report
from depthgauge.cli.suite import suite
from depthgauge.cli.sweep import sweep
from depthgauge.cli.verify import diff, verify
from depthgauge.errors import ClaimError, DepthgaugeError

__all__ = ["app", "main"]

PROGRAM = "depthgauge"
INTERRUPTED = 130

# Help as plain text: rich would take longer to import than everything else together.
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command("suite")(suite)
app.command("measure")(measure)
app.command("sweep")(sweep)
app.command("recipes")(recipes)
app.command("audit")(audit)
app.command("compare")(compare)
app.command("ablate")(ablate)
app.command("commission")(commission)
app.command("verify")(verify)
app.command("diff")(diff)
app.command("report")(report)


def _version(asked: bool) -> None:
    if asked:
        say(f"{PROGRAM} {__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Commission a deep network before the long run: both rivers through its depth.

    Begin with 'depthgauge suite', or measure a block of your own:

    \b
    depthgauge measure "h + W2(relu(W1(rmsnorm(h))))/sqrt(L)" --depth 96
    """
    if context.invoked_subcommand is None:
        say(context.get_help() + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit status; every error is turned into words here."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = typer.main.get_command(app)
    status: int
    try:
        status = command.main(args=given, prog_name=PROGRAM, standalone_mode=False) or 0
        if status != INTERRUPTED:  # typer makes one of a KeyboardInterrupt
            return status
        sentence = "interrupted"
    except (KeyboardInterrupt, typer.Abort):
        status, sentence = INTERRUPTED, "interrupted"
    except Exception as error:
        status, sentence = _said(error)
        if "--debug" in given:
            traceback.print_exception(error)
    if sys.stderr is not None:  # closed by the caller
        print(f"{PROGRAM}: {sentence}", file=sys.stderr)
    return status


def _said(error: Exception) -> tuple[int, str]:
    """The exit status of an error and its sentence."""
    if isinstance(error, DepthgaugeError):
        return 1 if isinstance(error, ClaimError) else 2, str(error)
    if hasattr(error, "format_message"):  # what the command line's parser raises
        context = getattr(error, "ctx", None)
        path = context.command_path if context else PROGRAM
        sentence = " ".join(error.format_message().split()).rstrip(".")
        return 2, f"{sentence}; see {path} --help"
    if _out_of_memory(error):
        what = " ".join(str(error).split()) or "it needs more than there is"
        return 2, f"not enough memory: {what}; give a smaller width, batch or depth, or fewer seeds"
    sentence = " ".join(f"{type(error).__name__}: {error}".split())
    return 3, f"the tool failed with {sentence}; --debug shows where"


def _out_of_memory(error: Exception) -> bool:
    """NumPy raises MemoryError, torch a kind of RuntimeError."""
    words = "OutOfMemoryError", "can't allocate memory"
    return isinstance(error, MemoryError) or any(w in f"{type(error)} {error}" for w in words)


if __name__ == "__main__":
    sys.exit(main())
