"""The transport suite: the published table, an independent script, and claims that can fail."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import numpy_reference
from depthgauge.errors import ClaimError
from depthgauge.network.spec import Network
from depthgauge.study import transport
from depthgauge.study.claims import Assertion, SuiteResult, by_name

#: The order of summation may differ, the draws may not.
AGREEMENT = 1e-9

QUANTITIES = ("forward_end_rms", "forward_drift", "gradient_ratio", "live_derivative_fraction")
TABLE = {
    "tanh_xavier_plain": (
        0.019848827295451947,
        61.393748120912335,
        0.025007457420017528,
        0.9991849263509115,
    ),
    "relu_he_plain": (
        0.43924782492815007,
        11.457023208133503,
        0.5705062789890037,
        0.5036481221516927,
    ),
    "relu_residual_unscaled": (
        151975966265235.7,
        153979966418752.66,
        201497545358183.4,
        0.5018526713053385,
    ),
    "relu_residual_scaled": (
        1.5574578569855875,
        1.5779949580891144,
        1.6297724035135437,
        0.5007069905598959,
    ),
    "relu_prenorm_scaled": (
        1.3735854346542284,
        1.3916979394769429,
        1.4525298663115516,
        0.5003013610839844,
    ),
    "relu_he_plain_shallow": (
        0.8639809354485174,
        1.3308712359078898,
        0.9350438456377238,
        0.48602294921875,
    ),
}


@pytest.fixture(scope="module")
def result() -> SuiteResult:
    return transport.run()


def row(result: SuiteResult, name: str) -> Any:
    return by_name(result.configurations)[name]


# ------------------------------------------------------------------------------- figures


def test_configurations_are_those_of_the_table_in_its_order(result: SuiteResult) -> None:
    assert [c["name"] for c in result.configurations] == list(TABLE)
    assert [c["depth"] for c in result.configurations] == [96] * 5 + [8]


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_figure_agrees_with_the_table(result: SuiteResult, name: str, quantity: str) -> None:
    expected = TABLE[name][QUANTITIES.index(quantity)]
    assert row(result, name)[quantity] == pytest.approx(expected, rel=AGREEMENT, abs=0)


@pytest.mark.parametrize("reference", numpy_reference.CONFIGURATIONS, ids=lambda c: c.name)
def test_curves_agree_with_the_numpy_script(
    result: SuiteResult, reference: numpy_reference.Configuration
) -> None:
    found, expected = row(result, reference.name), numpy_reference.run(reference)
    assert found["curves"]["block"] == expected["curves"]["block"]
    for river in ("state_rms", "gradient_rms"):
        np.testing.assert_allclose(
            found["curves"][river], expected["curves"][river], rtol=AGREEMENT, atol=0
        )
    for quantity in QUANTITIES:
        assert found[quantity] == pytest.approx(expected[quantity], rel=AGREEMENT, abs=0)


def test_the_table_rejects_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SEED", 8)
    other = row(transport.run(), "relu_he_plain")
    assert other["forward_end_rms"] != pytest.approx(TABLE["relu_he_plain"][0], rel=1e-3)


# -------------------------------------------------------------------------- configurations


@pytest.mark.parametrize("configuration", transport.CONFIGURATIONS, ids=lambda c: c.name)
def test_fields_say_what_the_equation_says(configuration: transport.Configuration) -> None:
    # The fields describe the equation in words; built again from the words, it is the same network.
    inner = "rmsnorm(h, eps=1e-8)" if configuration.norm else "h"
    branch = f"W2({configuration.activation}(W1({inner})))"
    again = f"h + {configuration.branch_scale} * {branch}" if configuration.skip else branch
    count = configuration.network.count
    assert configuration.skip == (configuration.branch_scale is not None) == bool(count.branches)
    assert ("in" in count.norm_at) == (configuration.norm is not None)
    assert _numbers(Network(again, configuration.depth, 64)) == _numbers(configuration.network)


def _numbers(network: Network) -> tuple[object, ...]:
    """What runs: the value of the branch's scale (1 where there is none), and the layers."""
    slots, _ = network.program.coefficients(1)
    names = [layer.name for layer in network.layers.weights]
    return [slot for slot in slots if slot != 1.0], names, network.branches


def test_scales_are_numbers(result: SuiteResult) -> None:
    assert [c["branch_scale"] for c in result.configurations] == [
        None,
        None,
        1.0,
        pytest.approx(1 / math.sqrt(96)),
        pytest.approx(1 / math.sqrt(96)),
        None,
    ]


# ---------------------------------------------------------------------------------- claims


def test_every_claim_holds(result: SuiteResult) -> None:
    assert len(result.claims) == 7
    assert result.passed
    assert result.check() is result


@pytest.mark.parametrize("claim", transport.CLAIMS, ids=lambda c: c.name)
def test_a_claim_with_another_bound_fails(
    monkeypatch: pytest.MonkeyPatch, claim: Assertion
) -> None:
    # The bound is moved past the value that the table has.
    value = TABLE[claim.configuration][QUANTITIES.index(claim.quantity)]
    if claim.max is None:
        moved = dataclasses.replace(claim, min=2 * value)
    else:
        moved = dataclasses.replace(claim, min=None, max=value / 2)
    claims = tuple(moved if c is claim else c for c in transport.CLAIMS)
    monkeypatch.setattr(transport, "CLAIMS", claims)
    _fails(transport.run(), {claim.name})


def test_both_ends_of_a_claim_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = [c for c in transport.CLAIMS if c.min is not None and c.max is not None]
    assert [(c.min, c.max) for c in ratios] == [(0.5, 2.0)] * 2
    raised = tuple(dataclasses.replace(c, min=1.99) if c in ratios else c for c in transport.CLAIMS)
    monkeypatch.setattr(transport, "CLAIMS", raised)
    _fails(transport.run(), {c.name for c in ratios})


#: A network with a mistake, and the claims that have to see it.
MISTAKES: list[tuple[str, dict[str, Any], set[str]]] = [
    (
        "relu_residual_unscaled",
        {"equation": "h + W2(relu(W1(h)))/sqrt(L)"},
        {"unscaled: forward drift", "unscaled: gradient ratio"},
    ),
    (
        "relu_prenorm_scaled",
        {"equation": "h + W2(relu(W1(rmsnorm(h))))"},  # no scale
        {"pre-norm, scaled: forward drift", "pre-norm, scaled: gradient ratio"},
    ),
    (
        "relu_he_plain_shallow",
        {"init": {"W1": "lecun", "W2": "lecun"}},  # half of the second moment goes in each block
        {"shallow control: forward drift", "shallow control: gradient ratio"},
    ),
    ("relu_he_plain_shallow", {"depth": 96}, {"shallow control: forward drift"}),
    ("tanh_xavier_plain", {"init": {"W1": "he", "W2": "he"}}, {"plain tanh: end RMS"}),
]


def _words(part: object) -> str:
    """Sets have no order, and the name of a test has one."""
    return str(sorted(part) if isinstance(part, set) else part)[:40]


@pytest.mark.parametrize(("name", "change", "broken"), MISTAKES, ids=_words)
def test_a_broken_network_fails_its_claims(
    monkeypatch: pytest.MonkeyPatch, name: str, change: dict[str, Any], broken: set[str]
) -> None:
    configurations = tuple(
        dataclasses.replace(c, **change) if c.name == name else c for c in transport.CONFIGURATIONS
    )
    monkeypatch.setattr(transport, "CONFIGURATIONS", configurations)
    _fails(transport.run(), broken)


def test_every_claim_has_a_network_that_breaks_it() -> None:
    assert {claim.name for claim in transport.CLAIMS} == set().union(*(m[2] for m in MISTAKES))


def _fails(result: SuiteResult, broken: set[str]) -> None:
    assert {claim.name for claim in result.claims if not claim.holds} == broken
    assert not result.passed
    with pytest.raises(ClaimError, match="suite transport") as error:
        result.check()
    assert error.value.result is result
    assert all(name in str(error.value) for name in broken)
    document = result.to_dict()
    assert document["checks"] == "FAIL"
    assert {c["name"] for c in document["claims"] if not c["holds"]} == broken


# --------------------------------------------------------------------------------- lessons


def test_lessons_carry_the_measured_numbers(result: SuiteResult) -> None:
    assert result.lessons == (
        "tanh_xavier_plain: 0.999 of the derivatives are live and the state has lost 98 per cent "
        "of its magnitude after 96 blocks; no single health number is enough.",
        "relu_he_plain: the gradient ratio 0.57 looks fine and the state wanders over a range that "
        "is 11-fold; a ratio of two ends does not show the way between them.",
    )


def _lesson_one(live: float, start: float, end: float) -> str:
    return transport._gates_and_state(
        {
            "name": "x",
            "depth": 4,
            "live_derivative_fraction": live,
            "curves": {"state_rms": [start, end]},
        }
    )


def _lesson_two(ratio: float, drift: float) -> str:
    return transport._back_and_forth({"name": "x", "gradient_ratio": ratio, "forward_drift": drift})


@pytest.mark.parametrize(
    ("lesson", "words", "agree"),
    [
        (lambda: _lesson_one(0.95, 2.0, 0.5), "lost 75 per cent", False),
        (lambda: _lesson_one(0.95, 2.0, 1.9), "lost 5 per cent", True),
        (lambda: _lesson_one(0.05, 2.0, 0.5), "0.050 of the derivatives", True),
        (lambda: _lesson_one(0.95, 2.0, 8.0), "come to 4 times", False),
        (lambda: _lesson_two(0.9, 4.0), "0.90 looks fine and the state wanders", False),
        (lambda: _lesson_two(0.9, 1.4), "stays within a range that is 1.4-fold", True),
        (lambda: _lesson_two(9.0, 40.0), "9.00 is out of 0.5 to 2", True),
    ],
)
def test_morals_follow_from_the_numbers(lesson: Callable[[], str], words: str, agree: bool) -> None:
    said = lesson()
    assert words in said
    assert ("here the two agree" in said) == agree


# -------------------------------------------------------------------------------- document


def test_document(result: SuiteResult) -> None:
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert list(document) == [
        "suite",
        "about",
        "checks",
        "configurations",
        "claims",
        "lessons",
        "settings",
    ]
    assert document["checks"] == "PASS"
    for configuration in document["configurations"]:
        assert list(configuration) == [
            "name",
            "depth",
            "activation",
            "norm",
            "skip",
            "branch_scale",
            "forward_end_rms",
            "forward_drift",
            "gradient_ratio",
            "live_derivative_fraction",
            "curves",
            "equation",
        ]
        assert list(configuration["curves"]) == ["block", "state_rms", "gradient_rms"]
        assert all(len(c) == configuration["depth"] + 1 for c in configuration["curves"].values())
        assert configuration["curves"]["gradient_rms"][-1] == pytest.approx(1, rel=1e-12)
    assert document["settings"]["draws"] == "sequential-pcg64"
    assert document["settings"]["init"]["relu_he_plain"] == {"W1": "he", "W2": "lecun"}
    assert {k: document["settings"][k] for k in ("width", "batch", "seed", "dtype")} == {
        "width": 64,
        "batch": 128,
        "seed": 7,
        "dtype": "float64",
    }


def test_progress_goes_from_nothing_to_all() -> None:
    seen: list[tuple[int, int]] = []
    transport.run(lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert {total for _, total in seen} == {2 * (5 * 96 + 8)}
    assert done[-1] == 2 * (5 * 96 + 8)


def test_two_runs_are_bit_identical(result: SuiteResult) -> None:
    assert transport.run() == result
