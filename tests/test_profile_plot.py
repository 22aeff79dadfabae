"""The figure of a profile: lines, bands and marked gaps."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

from depthgauge.errors import MissingExtra, UsageError
from tests.factories import profile

NAN, INF = math.nan, math.inf


@pytest.fixture
def pyplot(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    yield plt
    plt.close("all")


def test_plot_draws_both_rivers(pyplot: Any) -> None:
    ax = profile([[1, 1, 4], [2, 4, 9]], [[3, 2, 1], [1, 1, 1]]).plot()
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("block", "RMS", "log")
    state, gradient = ax.get_lines()
    assert state.get_ydata().tolist() == [1.0, 4.0]
    assert gradient.get_ydata().tolist() == [2.0, 1.0]
    assert len(ax.collections) == 2
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["state RMS, n=3", "gradient RMS, n=3"]
    ax.figure.canvas.draw()


def test_plot_of_one_seed_on_given_axes(pyplot: Any) -> None:
    given = pyplot.subplots()[1]
    made = profile([[1, 1], [2, 4]])
    assert made.plot(given, seed=1) is given
    assert given.get_lines()[0].get_ydata().tolist() == [1.0, 4.0]
    assert not given.collections
    with pytest.raises(UsageError, match="seed 5 is a place on the seed axis"):
        made.plot(given, seed=5)


def test_plot_marks_the_gaps_where_they_begin(pyplot: Any) -> None:
    ax = profile((1.0, 0.0, INF, NAN), (NAN, NAN, 1.0, 1.0)).plot()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [
        "state RMS",
        "state not finite from block 2 on",
        "state zero from block 1 on",
        "gradient RMS",
        "gradient not finite from block 1 back",
    ]
    np.testing.assert_equal(ax.get_lines()[0].get_ydata(), [1.0, NAN, NAN, NAN])
    ax.figure.canvas.draw()
    some = profile([[1, 1], [2, NAN]]).plot()
    assert some.get_lines()[0].get_ydata().tolist() == [1.0, 2.0]
    assert some.get_legend().get_texts()[1].get_text().endswith("on in 1 of 2 seeds")


def test_plot_without_matplotlib_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtra, match=r"Profile.plot needs matplotlib.*depthgauge\[plot\]"):
        profile().plot()
