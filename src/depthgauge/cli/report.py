"""``depthgauge report``: a record as one page, as Markdown, or on the screen."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from depthgauge.cli.options import Debug, Quiet, output, say, screen
from depthgauge.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from depthgauge.report.page import Report

__all__ = ["report"]

FORMATS: Final = ("html", "markdown", "text")
PAGE: Final = "report.html"


def report(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A directory that a commission wrote.")
    ],
    output_path: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="Write to this file; for html DIR/report.html unless given.",
            show_default=False,
        ),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="html, markdown or text.")
    ] = "html",
    summary: Annotated[
        bool,
        typer.Option(
            "--summary",
            help="Add the report as Markdown to the summary of this step of GitHub Actions.",
        ),
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Show a record: verdict, equation, curves over depth, ablation, laws, provenance.

    The HTML page is one file that needs no network. The exit status is 0 whatever the verdict.
    """
    from depthgauge.record.folder import read
    from depthgauge.report.contents import report_of
    from depthgauge.report.page_screen import report_line

    if format_ not in FORMATS:
        raise SpecificationError(
            f"--format is '{format_}', expected one of {', '.join(FORMATS)}"
            f"{nearest(format_, FORMATS)}"
        )
    held = read(directory)
    made = report_of(held.record.to_dict(), held.arrays)
    if summary:
        from depthgauge.report.markdown import add_to_summary, to_markdown

        add_to_summary(to_markdown(made))
    if format_ == "html" and output_path is None and not summary:
        output_path = os.path.join(directory, PAGE)
    with output(output_path) as write:
        if output_path is not None:
            write(_written(made, format_))
    if quiet:
        say(report_line(made) + "\n")
    elif output_path is not None:
        say(f"{report_line(made)}\nwritten to {output_path}\n")
    elif summary:
        say(report_line(made) + "\n")
    elif format_ == "text":
        from depthgauge.report.page_screen import print_report

        screen(lambda console: print_report(made, console))
    else:
        say(_written(made, format_))
    return 0


def _written(made: Report, format_: str) -> str:
    """The report as the text of a file."""
    if format_ == "html":
        from depthgauge.report.html import to_html

        return to_html(made)
    if format_ == "markdown":
        from depthgauge.report.markdown import to_markdown

        return to_markdown(made)
    return _text(made)


def _text(made: Report) -> str:
    import io

    from rich.console import Console

    from depthgauge.report.page_screen import print_report
    from depthgauge.report.tables import WIDTH

    drawn = io.StringIO()
    print_report(made, Console(file=drawn, width=WIDTH, highlight=False, markup=False, emoji=False))
    return drawn.getvalue()
