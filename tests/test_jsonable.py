"""No number that is not finite ever leaves as JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from depthgauge.jsonable import finite, jsonable

NAN, INF = math.nan, math.inf


def test_jsonable_reduces_everything() -> None:
    assert [finite(x) for x in (1, NAN, INF, -INF, 2.5)] == [1.0, None, None, None, 2.5]
    value = {
        "a": np.float32(1.5),
        "b": np.array([1, 2]),
        3: (True, None, "x"),
        "c": -INF,
        "d": [[1.0, NAN], [INF, NAN]],
        "e": {"f_reason": "the optimiser was off", "f": NAN},
        "g": frozenset({"y", "x"}),
        "h": np.dtype("float32"),
        "i": [{"j": INF}],
    }
    out = jsonable(value)
    assert out == {
        "a": 1.5,
        "b": [1, 2],
        "3": [True, None, "x"],
        "c": None,
        "c_reason": "minus infinity",
        "d": [[1.0, None], [None, None]],
        "d_reason": "not a number at 2 of 4, overflow to inf at 1 of 4",
        "e": {"f": None, "f_reason": "the optimiser was off"},
        "g": ["x", "y"],
        "h": "float32",
        "i": [{"j": None, "j_reason": "overflow to inf"}],
    }
    with pytest.raises(ValueError, match="not JSON compliant"):
        json.dumps(value["c"], allow_nan=False)
