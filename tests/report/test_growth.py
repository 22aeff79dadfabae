"""The ends of a network over its depths."""

from __future__ import annotations

import numpy as np

from depthgauge.report.curves import Curves
from depthgauge.report.growth import growth
from tests.report.records import record


def test_each_configuration_is_a_line_over_depths() -> None:
    document, arrays = record()
    figure = growth(Curves(document, arrays))
    assert figure is not None
    assert figure.x == "depth"
    state, gradient = figure.panels
    assert [line.name for line in state.lines][:2] == ["baseline", "norm=none"]
    line = state.lines[1]
    ends = [
        arrays[c["values"]][-1]
        for c in document["curves"]
        if c["configuration"] == "norm=none" and c["quantity"] == "state_rms"
    ]
    assert line.x.tolist() == [12, 48, 96]
    assert len({other.style.dash for other in state.lines}) == len(state.lines)
    np.testing.assert_allclose(line.middle, np.median(ends, axis=1))
    np.testing.assert_allclose(line.high, np.max(ends, axis=1))
    rivers = [
        arrays[c["values"]]
        for c in document["curves"]
        if c["configuration"] == "baseline" and c["quantity"] == "gradient_rms"
    ]
    np.testing.assert_allclose(
        gradient.lines[0].middle, [np.median(values[0] / values[-1]) for values in rivers]
    )
    assert "at the last depth from" in figure.summary()


def test_a_seed_that_overflows_leaves_the_others_and_all_of_them_a_gap() -> None:
    document, arrays = record(quantities=["gradient_rms"])
    figure = growth(Curves(document, arrays))
    assert figure is not None
    (panel,) = figure.panels
    assert np.isfinite(panel.lines[1].middle).all(), "two of three seeds are finite"
    for curve in document["curves"]:
        if curve["configuration"] == "baseline" and curve["depth"] == 48:
            arrays[curve["values"]][0] = np.inf
    figure = growth(Curves(document, arrays))
    assert figure is not None
    line = figure.panels[0].lines[0]
    assert np.isnan(line.middle).tolist() == [False, True, False]
    assert line.note == "no finite value at 1 of 3 depths"


def test_one_depth_has_no_growth() -> None:
    assert growth(Curves(*record((96,)))) is None
    assert growth(Curves(*record(quantities=["correlation"]))) is None
