"""Paths of modules."""

from __future__ import annotations

import pytest

from depthgauge.trace.graph import common_path


@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        ([], ""),
        (["h.0"], "h.0"),
        (["h.0", "h.0"], "h.0"),
        (["h.0", "h.1"], "h"),
        (["h.1", "h.10"], "h"),  # words are compared, not letters
        (["a.b.c", "a.b", "a.b-c"], "a"),
        (["a.b", "a.b.c.d", "a.b.c"], "a.b"),
        (["", "h.0"], ""),
        (["h.0", ""], ""),
        (["h.0", "g.0", "h.0"], ""),
    ],
)
def test_common_path(paths: list[str], wanted: str) -> None:
    assert common_path(paths) == wanted
    assert common_path(iter(paths[::-1])) == wanted
