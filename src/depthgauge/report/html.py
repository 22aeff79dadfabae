"""A report as one self-contained HTML page: it opens without a network and asks for nothing.

Every text is escaped where it is written, the numbers of the figures stand in the page as JSON in
which no ``<`` is left, and the page's own policy lets nothing run but the two scripts that it came
with, known by their hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Final, assert_never

from depthgauge.extras import load
from depthgauge.report.drawing import (
    CURVE_COLUMNS,
    EFFECT_COLUMNS,
    EffectFigure,
    Figure,
    Style,
)
from depthgauge.report.figure_data import data_of
from depthgauge.report.page import (
    Badge,
    Formula,
    Lines,
    Paragraph,
    Part,
    Report,
    Section,
    State,
    Table,
    state_words,
)

__all__ = ["to_html"]

_WRAPPED: Final = re.compile(
    r"(?P<licence>/\*\*.*?\*/)\n\(\n function\(root, factory\).*?, \(\) => \{\n"
    r"(?P<body>\"use strict\";.*\nwindow\.Plotly = Plotly;)\nreturn Plotly;\n\}\)\);\s*",
    re.DOTALL,
)

_ASSETS: Final = files("depthgauge.report") / "assets"

#: Strokes and gaps of a line of width 2 by the number of its dash; ``page.js`` has plotly's names.
_DASHES: Final = ("", "6 4", "2 3", "8 3 2 3", "12 4", "12 3 3 3")
#: The last colour is the ink.
_COLOURS: Final = 7
#: Of a figure, what fits on a printed page below a heading and a legend.
_PAGE: Final = 820
#: Figures whose title is not that of their section.
_TITLED: Final = ("spectrum", "growth")
_INK: Final = 6
#: Marks by number, in a square of 12; ``page.js`` has plotly's names.
_MARKS: Final = (
    "M6 2a4 4 0 1 0 .01 0z",
    "M2 2h8v8h-8z",
    "M6 1l5 5-5 5-5-5z",
    "M6 1l5 9h-10z",
    "M1 2h10l-5 9z",
    "M4 1h4v3h3v4h-3v3h-4v-3h-3v-4h3z",
    "M6 1l1.5 3.5 3.5.3-2.7 2.3.9 3.6-3.2-2-3.2 2 .9-3.6L1 4.8l3.5-.3z",
)


def to_html(report: Report) -> str:
    """The page. Raises MissingExtra where plotly, whose script draws the figures, is missing."""
    plotly = _plotly()
    ours = (_ASSETS / "page.js").read_text(encoding="utf-8")
    style = (_ASSETS / "page.css").read_text(encoding="utf-8")
    hashes = " ".join(map(_hash, (plotly, ours)))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    )
    title = escape(report.title if len(report.title) <= 120 else report.title[:119] + "…")
    links = "".join(
        f'<li><a href="#{section.anchor}">{escape(section.heading)}</a></li>'
        for section in report.sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(state_words(report.state))}: {title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the verdict</a>
<header>
<p class="kind">depthgauge report</p>
<h1>{title}</h1>
</header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main id="main" tabindex="-1">
<noscript><p>The figures need the script of this page; their tables do not.</p></noscript>
{"".join(map(_section, report.sections))}
</main>
<footer><p>One file; nothing in it is loaded from elsewhere.</p></footer>
<script type="text/plain" id="plotly">{plotly}</script>
<script>{ours}</script>
</body>
</html>
"""


def _plotly() -> str:
    load("plotly", "report", "the HTML report")
    offline = load("plotly.offline", "report", "the HTML report")
    script = unwrapped(offline.get_plotlyjs())
    assert "</script" not in script.lower(), "plotly's script would end its own element"
    return script


def unwrapped(script: str) -> str:
    """Plotly's script without the function around all of it, which serves other loaders.

    A browser reads what stands in a function that is passed on twice, first to find its end: of
    five megabytes that is a third of a second. A script of another form stays as it is.
    """
    match = _WRAPPED.fullmatch(script)
    return f"{match['licence']}\n{match['body']}\n" if match else script


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _section(section: Section) -> str:
    anchor = section.anchor
    body = "\n".join(map(_part, section.parts))
    return (
        f'<section id="{anchor}" aria-labelledby="h-{anchor}">\n'
        f'<h2 id="h-{anchor}">{escape(section.heading)}</h2>\n{body}\n</section>\n'
    )


def _part(part: Part) -> str:
    match part:
        case Badge(state, label):
            return f"<h3>{_badge(state)} {escape(label)}</h3>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Lines(text):
            return f'<pre tabindex="0">{escape(text)}</pre>'
        case Formula(text, mathml):
            return (
                f'<div class="formula" tabindex="0" role="group" aria-label="Equation">{mathml}'
                f"</div>\n<details><summary>As text</summary><pre>{escape(text)}</pre></details>"
            )
        case Table():
            return _table(part)
        case Figure() | EffectFigure():
            return _figure(part)
    assert_never(part)


def _badge(state: State) -> str:
    return f'<span class="badge {state}">{escape(state_words(state))}</span>'


def _table(table: Table) -> str:
    if not table.rows:
        return f"<p>{escape(table.title)}: none.</p>"
    head = "".join(
        f'<th scope="col"{" class=n" if table.is_number(i) else ""}>{escape(name)}</th>'
        for i, name in enumerate(table.columns)
    )
    rows = "".join(f"<tr>{''.join(_cells(table, row))}</tr>\n" for row in table.rows)
    title = escape(table.title)
    # What scrolls sideways must be reached by the keyboard, and then needs a name.
    shown = (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{title}"><table{_kind(table)}>'
        f"<caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>"
        f"</div>"
    )
    if not table.folded:
        return shown
    summary = f"{title} ({len(table.rows)} rows)"
    return f'<details class="long"><summary>{summary}</summary>\n{shown}\n</details>'


def _kind(table: Table) -> str:
    """A name, a word and a sentence stand above one another where the screen is narrow."""
    sentences = any(len(row[-1]) > 30 for row in table.rows)
    return ' class="stacked"' if len(table.columns) == 3 and sentences else ""


def _cells(table: Table, row: tuple[str, ...]) -> Iterable[str]:
    for i, cell in enumerate(row):
        if i == 0:
            yield f'<th scope="row">{escape(cell)}</th>'
        elif state := _STATES.get(cell):
            yield f"<td>{_badge(state)}</td>"
        else:
            kind = " class=n" if table.is_number(i) else _width(cell)
            yield f"<td{kind}>{escape(cell)}</td>"


def _width(cell: str) -> str:
    """Sentences get room and short cells stay on one line, also where the screen is narrow."""
    return " class=text" if len(cell) > 30 else " class=short" if len(cell) < 24 else ""


_STATES: Final[dict[str, State]] = {
    state_words(state): state for state in ("pass", "warn", "fail", "not_measured")
}


# ------------------------------------------------------------------------------- figures


def _figure(figure: Figure | EffectFigure) -> str:
    anchor, title = figure.anchor, escape(figure.title)
    # The figure of a section is called what the section is.
    heading = (
        ""
        if isinstance(figure, Figure) and anchor not in _TITLED
        else f'<div class="title">{title}</div>'
    )
    return f"""<figure id="figure-{anchor}" aria-label="{title}">
{heading}
{_legend(figure)}
<div class="{_plot(figure)}" id="plot-{anchor}" role="img" aria-label="{escape(figure.summary())}"
 style="height:{_height(figure)}px"></div>
<script type="application/json" class="data">{data_of(figure)}</script>
<figcaption>{escape(figure.caption)}</figcaption>
<details><summary>The numbers of this figure</summary>
{_numbers(figure)}
</details>
</figure>"""


def _legend(figure: Figure | EffectFigure) -> str:
    """A button for every configuration and every depth (every quantity): pressed means shown."""
    marks = isinstance(figure, EffectFigure)
    names = [
        _button("name", i, _swatch(style, mark=marks), name)
        for i, (name, style) in enumerate(figure.names().items())
    ]
    depths = {} if isinstance(figure, EffectFigure) else figure.depths()
    if len(depths) > 1:
        names += [
            _button("depth", i, _swatch(Style(_INK, style.dash)), f"depth {depth}")
            for i, (depth, style) in enumerate(depths.items())
        ]
    return (
        f'<div class="legend" role="group" aria-label="Shown in {escape(figure.title)}">'
        f"{''.join(names)}"
        f'<button type="button" class="all">Show all</button>'
        f'<button type="button" class="none">Hide all</button></div>'
    )


def _button(kind: str, number: int, swatch: str, label: str) -> str:
    return (
        f'<button type="button" aria-pressed="true" data-{kind}="{number}">{swatch}'
        f"<span>{escape(label)}</span></button>"
    )


def _plot(figure: Figure | EffectFigure) -> str:
    return "plot tall" if _height(figure) > _PAGE else "plot"


def _height(figure: Figure | EffectFigure) -> int:
    if isinstance(figure, EffectFigure):
        return 90 + max(30, 8 * len(figure.names())) * len(figure.changes())
    return 60 + 250 * len(figure.panels)


def _swatch(style: Style, mark: bool = False) -> str:
    colour = f'class="c{style.colour % _COLOURS}"'
    if mark:
        path = _MARKS[style.dash % len(_MARKS)]
        return f'<svg width="12" height="12" aria-hidden="true"><path {colour} d="{path}"/></svg>'
    dash = _DASHES[style.dash % len(_DASHES)]
    return (
        f'<svg width="34" height="12" aria-hidden="true"><line {colour} x1="0" y1="6" x2="34" '
        f'y2="6" stroke-dasharray="{dash}"/></svg>'
    )


def _numbers(figure: Figure | EffectFigure) -> str:
    if isinstance(figure, EffectFigure):
        rows = tuple(effect.row() for effect in figure.effects)
        return _table(_wide(figure.title, EFFECT_COLUMNS, rows))
    return "\n".join(
        _table(
            _wide(
                f"{panel.label}, {panel.unit}",
                CURVE_COLUMNS,
                tuple(line.row() for line in panel.lines),
            )
        )
        for panel in figure.panels
    )


def _wide(title: str, columns: dict[str, bool], rows: tuple[tuple[str, ...], ...]) -> Table:
    return Table(title, tuple(columns), rows, tuple(columns.values()))
