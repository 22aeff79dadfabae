"""Nine networks, each named by its own disease and by no other."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
import torch

from depthgauge.measurement import measure
from depthgauge.profile import Profile
from tests.nine import NINE

COLLAPSED: Final = ("default initialisation", "1.5 times He", "He, 48 layers", "He, 300 layers")


def profile(name: str) -> Profile:
    torch.manual_seed(0)
    build, batch = NINE[name]
    return measure(build(), batch())


@pytest.mark.parametrize("name", NINE)
def test_collapse_is_named_as_collapse(name: str) -> None:
    """Half of the units of a ReLU layer are off for the whole batch once all inputs point one way;
    a layer that is really dead is not called collapse."""
    found = profile(name)
    every = [line for line in str(found).splitlines() if line.startswith("collapse")]
    dead = [line for line in found.to_dict()["remarks"] if line not in every]
    assert [line.startswith("dead layer: every unit of '13'") for line in dead] == (
        [True] if name == "one dead layer" else []
    )
    said = [line for line in every if line.startswith("collapse: all examples")]
    assert (len(said) == 1) == (name in COLLAPSED)
    assert (len(every) > len(said)) == (name == "post-norm GPT")  # positions: 0.94 at the end
    end = found["correlation"][-1]
    if name in COLLAPSED:
        assert end > 0.95
        assert found["dead_fraction"].max() > 0.4
        assert "units that are dead are so because the examples are alike" in said[0]
        assert f"mean cosine {end:.3f}" in said[0]
    else:
        assert not end > 0.9


def test_what_else_tells_them_apart() -> None:
    default, exploding = profile("default initialisation"), profile("1.5 times He")
    assert default["gradient_rms"][0] / default["gradient_rms"][-1] < 1e-15
    assert exploding["state_rms"][-1] > 1e7
    saturated = profile("tanh of gain 4")
    assert saturated["saturated_fraction"].max() > 0.3 > saturated["dead_fraction"].max()
    dead = profile("one dead layer")
    assert dead["dead_fraction"].max() == 1
    assert dead["state_rms"][-1] == 0
    assert np.isnan(dead["correlation"][-1])
    good, stream = profile("He, 48 layers"), profile("a stream of 1e5")
    assert 0.3 < good["gradient_rms"][0] / good["gradient_rms"][-1] < 3
    assert stream["state_rms"].min() > 65504


@pytest.mark.parametrize("name", ["a stream of 1e5", "healthy pre-norm GPT"])
def test_float16_cannot_hold_a_stream_of_1e5_that_float32_holds(name: str) -> None:
    torch.manual_seed(0)
    build, batch = NINE[name]
    found = measure(build(), batch(), instruments="precision")
    assert found.dtype == "float32"
    least = found["headroom_float16_bits"].min()
    said = [line for line in found.to_dict()["remarks"] if line.startswith("float16 cannot hold")]
    if name == "healthy pre-norm GPT":
        assert least > 10
        assert not said
    else:
        assert least < -1
        assert len(said) == 1
        assert found["headroom_bfloat16_bits"].min() > 100
