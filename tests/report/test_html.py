"""The page: self-contained, escaped, with landmarks and text beside every figure, small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depthgauge.errors import MissingExtra
from depthgauge.record.folder import read
from depthgauge.report.contents import report_of
from depthgauge.report.figure_data import data_of, harmless
from depthgauge.report.html import to_html, unwrapped
from depthgauge.report.page import clean
from tests.report.records import EVIL, record

VOID = ("meta", "link", "br", "line", "path", "mspace")


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    parent: Element | None
    children: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str = "") -> list[Element]:
        found = [child for child in self.children if not tag or child.tag == tag]
        return found + [deep for child in self.children for deep in child.all(tag)]

    def whole(self) -> str:
        return self.text + "".join(child.whole() for child in self.children)


class Reader(HTMLParser):
    """A tree of the page; every element must be closed where it was opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.root = self.at = Element("root", {}, None)
        self.feed(page)
        self.close()
        assert self.at is self.root, f"{self.at.tag} stays open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), self.at)
        self.at.children.append(element)
        if tag not in VOID:
            self.at = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.at.children.append(Element(tag, dict(attrs), self.at))

    def handle_endtag(self, tag: str) -> None:
        assert self.at.tag == tag, f"{tag} closes {self.at.tag}"
        assert self.at.parent is not None
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        self.at.text += data


@pytest.fixture(scope="module")
def page() -> str:
    return to_html(report_of(*record()))


@pytest.fixture(scope="module")
def root(page: str) -> Element:
    return Reader(page).root


def test_elements_close_where_they_open() -> None:
    with pytest.raises(AssertionError, match="p closes b"):
        Reader("<p><b>x</p>")
    with pytest.raises(AssertionError, match="stays open"):
        Reader("<p>x")


def test_nothing_in_the_page_is_loaded_from_elsewhere(page: str, root: Element) -> None:
    for element in root.all():
        for name in ("src", "href", "action", "data", "srcset", "xlink:href"):
            value = element.attributes.get(name) or ""
            assert value[:1] in ("", "#") or value == "data:,", (element.tag, name, value)
    style = root.all("style")[0].text
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_lets_nothing_run_but_the_pages_own_scripts(root: Element) -> None:
    scripts = root.all("script")
    kinds = [script.attributes.get("type") for script in scripts]
    assert kinds.count(None) == 1
    assert set(kinds) == {None, "text/plain", "application/json"}
    (policy,) = (m for m in root.all("meta") if "http-equiv" in m.attributes)
    words = policy.attributes["content"] or ""
    allowed = set(re.findall("'(sha256-[^']+)'", words))
    run = {
        "sha256-" + base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
        for script in scripts
        if script.attributes.get("type") != "application/json"
    }
    assert allowed == run
    assert words.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in words
    assert "script-src 'unsafe-inline'" not in words


def test_names_are_text_wherever_they_stand(page: str, root: Element) -> None:
    assert "<script>alert" not in page
    assert "</script><script" not in page
    shown = clean(EVIL)
    assert shown in root.whole()
    labels = [b.all("span")[0].text for b in root.all("button") if b.all("span")]
    assert shown in labels
    assert not any("onerror" in e.attributes for e in root.all())


@pytest.mark.parametrize(
    "name",
    ['" onclick="alert(1)', "<!-- <script>", "]]>", "&lt;b&gt;", "</title>", "'\"><b>", "a\u2028b"],
)
def test_any_name_comes_back_as_it_was(name: str) -> None:
    document, arrays = record(evil=name)
    document["subject"]["equation"] = name
    for gate in document["gates"]:
        gate["name"] = gate["question"] = name
    root = Reader(to_html(report_of(document, arrays))).root
    body = next(e for e in root.all("main"))
    assert not body.all("b")
    assert not [e for e in root.all() if any(a.startswith("on") for a in e.attributes)]
    names = [json.loads(s.text)["names"] for s in body.all("script")]
    assert any(clean(name) in listed for listed in names)
    assert root.all("h1")[0].text == clean(name)


def test_json_in_an_element_cannot_end_it() -> None:
    text = json.dumps(["</script>", "<!--", "&", "\u2028"], ensure_ascii=False)
    assert not set("<>&\u2028") & set(harmless(text))
    assert json.loads(harmless(text)) == json.loads(text)
    assert "<" in text


def test_the_page_has_landmarks_a_language_and_a_way_past_them(root: Element) -> None:
    for tag in ("header", "nav", "main", "footer", "title", "h1"):
        assert len(root.all(tag)) == 1, tag
    assert root.all("html")[0].attributes["lang"] == "en"
    skip = root.all("body")[0].children[0]
    assert (skip.tag, skip.attributes["href"]) == ("a", "#main")
    identities = [e.attributes["id"] for e in root.all() if "id" in e.attributes]
    assert len(identities) == len(set(identities))
    for link in root.all("a"):
        assert (link.attributes["href"] or "")[1:] in identities
    for section in root.all("section"):
        assert section.attributes["aria-labelledby"] in identities
    assert not [e for e in root.all() if int(e.attributes.get("tabindex") or 0) > 0]


def test_headings_go_down_one_by_one(root: Element) -> None:
    levels = [int(e.tag[1]) for e in root.all() if re.fullmatch("h[1-6]", e.tag)]
    assert set(levels) == {1, 2, 3}


def test_tables_say_what_their_rows_and_columns_are(root: Element) -> None:
    tables = root.all("table")
    assert len(tables) > 15
    for table in tables:
        assert table.all("caption")[0].text
        assert {th.attributes["scope"] for th in table.all("thead")[0].all("th")} == {"col"}
        for row in table.all("tbody")[0].all("tr"):
            assert row.children[0].attributes.get("scope") == "row"
        assert table.parent is not None
        assert table.parent.attributes["tabindex"] == "0", "a table that scrolls takes the keyboard"


def test_every_figure_has_words_and_numbers(root: Element) -> None:
    figures = root.all("figure")
    assert len(figures) == 11
    for figure in figures:
        (plot,) = (e for e in figure.all("div") if e.attributes.get("role") == "img")
        assert len(plot.attributes["aria-label"] or "") > 30
        assert figure.all("figcaption")[0].text
        assert figure.all("details")[0].all("table")
        for button in figure.all("button"):
            assert button.attributes["type"] == "button"
        pressed = [b for b in figure.all("button") if "aria-pressed" in b.attributes]
        data = json.loads(figure.all("script")[0].text)
        assert len(pressed) == len(data["names"]) + (
            len(data["depths"]) if len(data.get("depths", ())) > 1 else 0
        )


def test_states_are_words_with_a_mark_not_only_colours(root: Element) -> None:
    badges = [e for e in root.all("span") if "badge" in (e.attributes.get("class") or "")]
    assert {e.text for e in badges} == {"✓ pass", "! warn", "✗ fail", "? not measured"}


def test_a_figure_taller_than_a_page_and_a_table_of_sentences_are_marked() -> None:
    """Those of the example's record: a figure of four panels or more, and the gates."""
    stored = read(Path(__file__).parents[2] / "examples" / "pre-rmsnorm")
    shown = to_html(report_of(stored.record.to_dict(), stored.arrays))
    plots = re.findall(r'class="(plot[a-z ]*)" id="[^"]*" role="img" [^>]*height:(\d+)px', shown)
    assert {kind == "plot tall" for kind, height in plots if int(height) >= 1060} == {True}
    assert {kind == "plot tall" for kind, height in plots if int(height) <= 810} == {False}
    tables = re.findall(r'aria-label="([^"]*)"><table( class="stacked")?>', shown)
    assert [name for name, stacked in tables if stacked] == ["Gates"]
    assert len(tables) > 40


def test_the_equation_is_drawn_by_the_browser_itself(root: Element) -> None:
    (math,) = root.all("math")
    assert math.all("mfrac")
    assert "RMSNorm" in math.whole()


def figures_of(**more: Any) -> dict[str, Any]:
    report = report_of(*record(**more))
    return {figure.anchor: json.loads(data_of(figure)) for figure in report.figures()}


def test_the_numbers_of_a_figure_are_those_of_the_record() -> None:
    document, arrays = record()
    rivers = figures_of()["rivers"]
    state, gradient = rivers["panels"]
    assert (state["log"], state["unit"], rivers["depths"]) == (True, "state units", [12, 48, 96])
    for panel, quantity in ((state, "state_rms"), (gradient, "gradient_rms")):
        curves = [c for c in document["curves"] if c["quantity"] == quantity]
        for line, curve in zip(panel["lines"], curves, strict=True):
            values = arrays[curve["values"]]
            values = np.where(np.isfinite(values), values, np.nan)
            assert rivers["names"][line["name"]] == clean(curve["configuration"])
            assert rivers["depths"][line["depth"]] == curve["depth"]
            assert line["x"] == [0]
            np.testing.assert_allclose(line["low"], np.nanmin(values, axis=1), rtol=6e-4)
            np.testing.assert_allclose(line["high"], np.nanmax(values, axis=1), rtol=6e-4)


def test_a_gap_is_null_and_no_seed_is_no_band() -> None:
    document, arrays = record((4,), (0,), quantities=["state_rms"])
    arrays["c0000_values"][2] = np.nan
    (figure, *_) = report_of(document, arrays).figures()
    line = json.loads(data_of(figure))["panels"][0]["lines"][0]
    assert line["middle"][2] is None
    assert "low" not in line


def test_a_record_of_ten_thousand_blocks_is_a_small_page() -> None:
    page = to_html(report_of(*record((2500, 5000, 10_000))))
    assert len(page.encode()) < 8e6


WRAPPED = """\
/**
* plotly.js
*/
(
 function(root, factory) {
  root.moduleName = factory();
} (typeof self !== "undefined" ? self : this, () => {
"use strict";var Plotly=(()=>{return 1})();
window.Plotly = Plotly;
return Plotly;
}));
"""


def test_plotlys_script_is_taken_out_of_the_function_around_it() -> None:
    assert unwrapped(WRAPPED) == (
        '/**\n* plotly.js\n*/\n"use strict";var Plotly=(()=>{return 1})();\n'
        "window.Plotly = Plotly;\n"
    )
    for other in ("", "var a = 1;", WRAPPED + "b()", WRAPPED.replace("return Plotly;", "")):
        assert unwrapped(other) == other


def test_plotlys_licence_stays(page: str) -> None:
    assert re.search(r"/\*\*\n\* plotly\.js v[0-9.]+\n.*?MIT license\n\*/", page, re.DOTALL)


@pytest.mark.parametrize("module", ["plotly", "plotly.offline"])
def test_without_plotly_the_error_says_what_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    expected = r"the HTML report needs plotly, which .*pip install 'depthgauge\[report\]'"
    with pytest.raises(MissingExtra, match=expected):
        to_html(report_of(*record(quantities=[])))
