"""What a page of a record costs: to make, to keep, and to open in Chromium.

Opened: from the address to the first figure on the screen; first by a browser that has just begun
and has seen no such page, then again by the same one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import median, publish, table
from depthgauge.report.contents import report_of
from depthgauge.report.html import to_html
from tests.report.browser import Page, chromium, opened
from tests.report.records import record

ROUNDS = 5
DEPTHS = {"12, 48, 96": (12, 48, 96), "2,500, 5,000, 10,000": (2500, 5000, 10_000)}
FIGURE = "document.querySelector('#plot-rivers')"


def made(depths: tuple[int, ...], file: Path) -> float:
    """Seconds from the record to the page."""
    document, arrays = record(depths)
    began = time.perf_counter()
    file.write_text(to_html(report_of(document, arrays)), encoding="utf-8")
    return time.perf_counter() - began


def shown(page: Page, file: Path) -> float:
    """Seconds from the address to the first figure."""
    began = time.perf_counter()
    page.open(file.as_uri())
    page.value(f"{FIGURE}.scrollIntoView({{behavior: 'instant'}})")
    page.until(f"{FIGURE}.data && {FIGURE}.querySelector('.main-svg')")
    return time.perf_counter() - began


def said(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} [{min(seconds):.2f}, {max(seconds):.2f}]"


def main() -> int:
    if not chromium():
        print("there is no Chromium on PATH", file=sys.stderr)
        return 1
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, depths in DEPTHS.items():
            file = Path(folder) / f"{len(rows)}.html"
            making = [made(depths, file) for _ in range(ROUNDS)]
            first, again = [], []
            for _ in range(ROUNDS):
                with opened() as page:
                    page.screen(1200, 1000)
                    first.append(shown(page, file))
                    again.append(shown(page, file))
            size = f"{file.stat().st_size / 1e6:.2f}"
            rows.append([name, size, said(making), said(first), said(again)])
    head = ["depths", "megabytes", "to make, s", "to open, s", "to open again, s"]
    about = "Five configurations at each depth, nineteen quantities, three seeds."
    publish("report", "The page of a record", [about, table(head, rows)], ROUNDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
