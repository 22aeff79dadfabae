"""The page in Chromium: it draws, answers the pointer and the keyboard, and asks nobody."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depthgauge.report.contents import report_of
from depthgauge.report.html import to_html
from depthgauge.report.page import clean
from tests.report.browser import Page, chromium, opened
from tests.report.records import EVIL, record

pytestmark = pytest.mark.skipif(
    not chromium(), reason="there is no Chromium on PATH to open the page with"
)

RIVERS = "document.querySelector('#plot-rivers')"
DRAWN = f"{RIVERS}.data && {RIVERS}.querySelector('.main-svg')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with opened() as page:
        page.screen(1200, 1000)
        yield page


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(to_html(report_of(*record())), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def page(browser: Page, url: str) -> Iterator[Page]:
    """The report, its first figure drawn; whatever a test did to it, it complained of nothing and
    asked for nothing but itself."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.media(prefers_color_scheme="light")
    browser.pointer("mouseMoved", 1, 1)
    browser.open(url)
    browser.middle("#plot-rivers")
    browser.until(DRAWN)
    yield browser
    assert browser.complaints == []
    assert set(browser.requests) == {url}


def curve_of(configuration: str, depth: int, quantity: str) -> np.ndarray[Any, Any]:
    document, arrays = record()
    (found,) = (
        c for c in document["curves"]
        if (c["configuration"], c["depth"], c["quantity"]) == (configuration, depth, quantity)
    )  # fmt: skip
    return arrays[found["values"]]


def place(page: Page, block: int, value: float, axis: str = "yaxis") -> tuple[float, float]:
    """Where on the screen a value of a river is drawn."""
    x, y = page.value(
        f"(() => {{ const p = {RIVERS}, f = p._fullLayout, b = p.getBoundingClientRect();"
        f"return [b.x + f.xaxis._offset + f.xaxis.c2p({block}),"
        f"b.y + f.{axis}._offset + f.{axis}.c2p({value!r})]; }})()"
    )
    return x, y


def hovered(page: Page) -> str:
    """What the label at the pointer says."""
    return str(
        page.value(
            f"[...{RIVERS}.querySelectorAll('.hovertext')].map(e => e.textContent).join('|')"
        )
    )


def shown(page: Page) -> int:
    """How many lines (not bands) of the rivers are on the screen."""
    return int(
        page.value(
            f"[...{RIVERS}.querySelectorAll('path.js-line')]"
            ".filter(e => getComputedStyle(e).strokeWidth !== '0px').length"
        )
    )


def test_the_pointer_shows_the_value_of_a_curve(page: Page) -> None:
    values = curve_of("norm=none", 96, "state_rms")[60]
    assert hovered(page) == ""
    for x, y in itertools.repeat(place(page, 60, float(np.median(values))), 2):
        page.pointer("mouseMoved", x, y)
        time.sleep(0.1)
    page.until(f"{RIVERS}.querySelector('.hovertext')")
    label = hovered(page)
    assert label.startswith("norm=none, depth 96block 60: ")
    assert float(label.split(": ")[1].split(" ")[0]) == pytest.approx(np.median(values), rel=6e-4)
    low, high = json.loads(label[label.index("[") : label.index("]") + 1])
    assert (low, high) == pytest.approx((values.min(), values.max()), rel=6e-4)
    assert label.endswith("n = 3")
    page.pointer("mouseMoved", 1, 1)
    page.until(f"!{RIVERS}.querySelector('.hovertext')")


def test_a_name_is_text_at_the_pointer_too(page: Page) -> None:
    page.click("#figure-rivers .none")
    page.click('#figure-rivers [data-name="4"]')
    assert shown(page) == 6, "two rivers at three depths"
    value = float(np.median(curve_of(EVIL, 96, "state_rms")[80]))
    page.middle("#plot-rivers")
    for x, y in itertools.repeat(place(page, 80, value), 2):
        page.pointer("mouseMoved", x, y)
        time.sleep(0.1)
    page.until(f"{RIVERS}.querySelector('.hovertext')")
    assert hovered(page).startswith(f"{clean(EVIL)}, depth 96block 80: ")
    assert not page.value("!!document.querySelector('.hoverlayer script, .hoverlayer b')")


def test_a_toggle_hides_a_configuration_and_brings_it_back(page: Page) -> None:
    assert shown(page) == 30
    page.click('#figure-rivers [data-name="1"]')
    assert shown(page) == 24
    pressed = (
        "document.querySelector('#figure-rivers [data-name=\"1\"]').getAttribute('aria-pressed')"
    )
    assert page.value(pressed) == "false"
    names = page.value(f"{RIVERS}.data.filter(t => t.visible).map(t => t.name)")
    assert not any("norm=none" in name for name in names)
    page.click('#figure-rivers [data-depth="2"]')
    assert shown(page) == 16
    page.click('#figure-rivers [data-name="1"]')
    assert shown(page) == 20
    page.click("#figure-rivers .none")
    assert shown(page) == 0
    page.click("#figure-rivers .all")
    assert shown(page) == 30
    assert page.value(pressed) == "true"


def test_the_keyboard_reaches_what_the_pointer_does(page: Page) -> None:
    page.value("document.activeElement.blur(); scrollTo(0, 0)")
    page.key("Tab")
    assert page.value("document.activeElement.className") == "skip"
    assert page.value("document.activeElement.getBoundingClientRect().left") >= 0
    page.key("Enter")
    page.until("location.hash === '#main'")
    page.value("document.querySelector('#figure-rivers [data-name=\"0\"]').focus()")
    page.key(" ")
    assert shown(page) == 24
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.key("Tab")
    assert page.value("document.activeElement.dataset.name") == "1"
    assert page.value(outline) == "solid"
    page.key("Enter")
    assert shown(page) == 18


def test_a_curve_hidden_before_its_figure_is_drawn_stays_hidden(page: Page) -> None:
    page.value("document.querySelector('#figure-step [data-name=\"0\"]').click()")
    assert not page.value("!!document.querySelector('#plot-step').data")
    page.middle("#plot-step")
    page.until("document.querySelector('#plot-step').data")
    visible = page.value("document.querySelector('#plot-step').data.map(t => [t.name, t.visible])")
    assert {name: v for name, v in visible if "baseline" in name} == {
        f"baseline, depth {depth}": False for depth in (12, 48, 96)
    }
    assert any(v for _, v in visible)


def contrast(page: Page, selector: str, property_: str) -> float:
    """WCAG's ratio between a colour and the page's ground, 1 to 21."""

    def luminance(rgb: list[float]) -> float:
        parts = [c / 255 for c in rgb[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    colours = page.value(
        f"[getComputedStyle(document.querySelector({selector!r})).{property_},"
        "getComputedStyle(document.body).backgroundColor].map(c => c.match(/[0-9.]+/g).map(Number))"
    )
    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def test_light_and_dark_are_both_readable_figures_too(page: Page) -> None:
    grounds = set()
    for scheme in ("light", "dark", "light"):
        page.media(prefers_color_scheme=scheme)
        ground = page.value("getComputedStyle(document.body).backgroundColor")
        grounds.add(ground)
        page.until(
            f"getComputedStyle({RIVERS}.querySelector('.annotation-text')).fill"
            " === getComputedStyle(document.body).color"
        )
        for selector, property_ in (
            ("p", "color"), ("#plot-rivers .annotation-text", "fill"),
            ("#plot-rivers .xtick text", "fill"), ("nav a", "color"), ("figcaption", "color"),
            (".badge.fail", "color"), (".badge.warn", "color"), (".badge.pass", "color"),
            (".badge.not_measured", "color"),
        ):  # fmt: skip
            assert contrast(page, selector, property_) >= 4.5, (scheme, selector)
    assert len(grounds) == 2
    assert contrast(page, "body", "backgroundColor") == 1.0


def test_a_phone_needs_no_scrolling_sideways(page: Page) -> None:
    page.screen(390, 844)
    try:
        page.middle("#plot-rivers")
        page.until(f"{RIVERS}._fullLayout.width <= 390")
        assert page.value("document.documentElement.scrollWidth") <= 390
        assert (
            page.value(f"{RIVERS}.querySelector('.main-svg').getBoundingClientRect().right") <= 390
        )
    finally:
        page.screen(1200, 1000)


def test_a_phone_shows_the_gates_without_scrolling(page: Page) -> None:
    """A sentence stands below its gate and state; side by side they would not fit."""
    gates = "document.querySelector('[aria-label=\"Gates\"]')"
    wide = f"{gates}.scrollWidth > {gates}.clientWidth"
    below = (
        f"(() => {{ const [gate, , reason] = [...{gates}.querySelectorAll('tbody tr')]"
        ".find(row => row.lastElementChild.textContent).children;"
        "return reason.getBoundingClientRect().top >= gate.getBoundingClientRect().bottom; })()"
    )
    assert (page.value(wide), page.value(below)) == (False, False)
    page.screen(390, 844)
    try:
        page.until("innerWidth === 390")
        assert (page.value(wide), page.value(below)) == (False, True)
        page.value(f"{gates}.querySelector('table').classList.remove('stacked')")
        assert (page.value(wide), page.value(below)) == (True, False)
    finally:
        page.screen(1200, 1000)


def test_what_leads_to_a_figure_stays_with_it_on_paper(page: Page) -> None:
    """Heading, sentence, legend: a page may not end behind any of them."""
    apart = (
        "[...document.querySelectorAll('section > h2, section > p, .legend, caption, thead')]"
        ".filter(e => e.offsetParent && (e.tagName !== 'P' || e.nextElementSibling?.matches("
        "'figure, .scroll'))).map(e => getComputedStyle(e).breakAfter)"
    )
    assert "auto" in page.value(apart)  # on a screen there is nothing to break
    page.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert set(page.value(apart)) == {"avoid"}
        before = "getComputedStyle(document.querySelector('section:has(#plot-rivers)')).breakBefore"
        assert page.value(before) == "auto"
        page.value("document.querySelector('#plot-rivers').classList.add('tall')")
        assert page.value(before) == "page"  # what no page holds below its heading
    finally:
        page.call("Emulation.setEmulatedMedia", media="")


def test_paper_shows_every_figure_on_white(page: Page) -> None:
    page.media(prefers_color_scheme="dark")
    drawn = "[...document.querySelectorAll('.plot')].filter(e => e.data).length"
    assert page.value(drawn) < 11
    page.value("addEventListener('beforeprint', () => setTimeout(() => 0))")
    found = page.call("Page.printToPDF", printBackground=True)
    assert len(found["data"]) > 50_000
    assert page.value(drawn) == 11
    page.value("dispatchEvent(new Event('beforeprint'))")
    ink = f"getComputedStyle({RIVERS}.querySelector('.annotation-text')).fill"
    assert page.value(ink) == "rgb(22, 24, 29)"
    assert page.value("[...document.querySelectorAll('details.long')].every(e => e.open)")
    page.value("dispatchEvent(new Event('afterprint'))")
    assert page.value(ink) == "rgb(236, 238, 242)"
    assert not page.value("[...document.querySelectorAll('details.long')].some(e => e.open)")


def test_the_equation_is_laid_out_as_mathematics(page: Page) -> None:
    """A fraction has a part above and a part below."""
    above, below = page.value(
        "[...document.querySelector('mfrac').children].map(e => e.getBoundingClientRect().y)"
    )
    assert above < below


def test_a_record_of_ten_thousand_blocks_opens_in_two_seconds(
    browser: Page, tmp_path: Path
) -> None:
    file = tmp_path / "big.html"
    file.write_text(to_html(report_of(*record((2500, 5000, 10_000)))), encoding="utf-8")
    assert file.stat().st_size < 8e6
    seconds = []
    for _ in range(3):  # of a machine with other work the quietest says what the page needs
        began = time.monotonic()
        browser.open(file.as_uri())
        browser.value(f"{RIVERS}.scrollIntoView({{behavior: 'instant'}})")
        browser.until(DRAWN)
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 2, seconds


def test_what_would_be_a_complaint_or_a_request_is_seen(browser: Page, tmp_path: Path) -> None:
    file = tmp_path / "bad.html"
    file.write_text(
        "<img src='http://127.0.0.1:9/x.png'><script>console.error('no'); nothing()</script>"
    )
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(file.as_uri())
    browser.until("document.readyState === 'complete'")
    assert "http://127.0.0.1:9/x.png" in browser.requests
    assert any("nothing is not defined" in said for said in browser.complaints)
    assert "['no']" in browser.complaints
    browser.complaints.clear()
    browser.requests.clear()


def test_the_policy_stops_a_script_that_came_from_elsewhere(browser: Page, tmp_path: Path) -> None:
    page = to_html(report_of(*record(quantities=[])))
    file = tmp_path / "changed.html"
    file.write_text(page.replace("</main>", "<script>window.broken = 1</script></main>"))
    browser.complaints.clear()
    browser.open(file.as_uri())
    assert browser.value("window.broken === undefined")
    assert any("Content Security Policy" in said for said in browser.complaints)
    browser.complaints.clear()
    browser.requests.clear()
