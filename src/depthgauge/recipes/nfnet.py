"""NF-ResNet (Brock, De and Smith, arXiv 2101.08692): the variance a norm would measure, computed.

    h = h + alpha g F(beta h),   beta = 1/sqrt(v),   alpha = 0.2,   g = 0 at the start, learned

v is the variance of h by the rule, never measured: 1 where a stage begins, plus alpha^2 a block. A
transition (a block whose skip has weights) reads v of the stage before, and v is 1 + alpha^2 after
it. Weights are standardised, row by row, and an activation's gain is one over the standard
deviation of what it makes of N(0, 1):

    w = gamma (w - mean) / (std sqrt(fan_in)),   gamma = 1/sqrt(Var phi(z)),   ReLU: 1.712859
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import torch

from depthgauge.equation.functions import ACTIVATIONS
from depthgauge.equation.nodes import SCALARS
from depthgauge.equation.scalars import evaluate
from depthgauge.errors import NetworkError
from depthgauge.network.activations import gate
from depthgauge.recipes.branches import index_of, reached, refuse_plain
from depthgauge.recipes.rules import Count, Form, Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.counted import Layout, Residual, Weight

__all__ = ["ALPHA", "NFNET", "gains"]

ALPHA = "0.2"
#: Of an activation.
Options: TypeAlias = tuple[tuple[str, Any], ...]


@cache
def gains(kind: str, options: Options = ()) -> tuple[float, float]:
    """One over the standard deviation, and over the root mean square, of ``phi(z)``, z ~ N(0, 1).

    Raises NetworkError for an activation that is not known.
    """
    if kind not in ACTIVATIONS:
        raise NetworkError(
            f"no gain is known of the activation '{kind}', expected one of {', '.join(ACTIVATIONS)}"
        )
    defaults = {
        name: evaluate(value, {}) if isinstance(value, SCALARS) else value
        for name, value in ACTIVATIONS[kind].items()
    }
    z = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    y = gate(kind, defaults | dict(options)).apply(z)
    mean = float(torch.trapezoid(y * density, z))
    square = float(torch.trapezoid(y * y * density, z))
    return 1 / math.sqrt(square - mean * mean), 1 / math.sqrt(square)


def _plan(layout: Layout) -> Plan:
    _refuse(layout)
    heads = {weight.path for weight in layout.heads}
    inner = [w for branch in layout.branches for w in branch.weights if w.fan_in]
    outer = [w for w in layout.outside if w.fan_in and w.path not in heads]
    within = [w for w in inner if w.follows and not w.first]
    gained = [w for w in within if math.isclose(w.front, _gain(w), rel_tol=_SAMPLED)]
    # A number that is another one than the gain stands where the gain is to stand, too.
    numbers = [w.front for w in within if abs(w.front - 1) > _SAMPLED]
    behind = 2 * len(numbers) > len(within)
    counts = [Count("norms", len(layout.norms), 0, "standardised weights take their place")]
    if behind:
        why = next((_other(w) for w in within if w not in gained), "")
        what = "layers behind an activation that its gain multiplies"
        counts.append(Count(what, len(gained), len(within), why))
    laws = _LAW_BEHIND if behind else _LAW
    return Plan(
        (
            Rule("weights of branches", laws, tuple(_target(layout, w, behind) for w in inner)),
            Rule(
                "weights before and beside them",
                laws,
                tuple(_target(layout, w, behind) for w in outer),
            ),
        ),
        tuple(_forms(layout, numbers if behind else ())),
        tuple(counts),
        silent=True,
        wakes={w.path: 1 for branch in reached(layout) for w in branch.weights},
    )


_LAW = "standardised, gamma / sqrt(fan in)"
_LAW_BEHIND = "standardised, 1 / sqrt(fan in), gamma behind the activations"
#: How far a sampled gain, 1.7139589 for ReLU, may lie from the exact one.
_SAMPLED = 1e-3


def _gain(weight: Weight) -> float:
    """That of the activation that it follows."""
    return gains(weight.follows, weight.bend)[0] if weight.follows else 1.0


def _other(weight: Weight) -> str:
    """Words for the number in front of a layer that is not the gain of its activation."""
    where = f"behind '{weight.activation}' in front of '{weight.path}'"
    if abs(weight.front - 1) <= _SAMPLED:
        return f"{where} there is none, expected {_gain(weight):.4f}"
    return f"{where} it is {_not(weight.front, weight.follows, weight.bend)}"


def _not(number: float, kind: str, bend: Options) -> str:
    deviation, size = gains(kind, bend)
    said = f"{number:.4f}, not {deviation:.4f}"
    if math.isclose(number, size, rel_tol=_SAMPLED):
        said += ": that of the root mean square, where standardised weights take the deviation's"
    return said


def _refuse(layout: Layout) -> None:
    refuse_plain(layout, "NF-ResNet")
    for branch, after in zip(layout.branches, (*layout.branches[1:], None), strict=True):
        if branch.attends:
            raise NetworkError(
                f"the branch '{branch.path}' has attention, and NF-ResNet is a rule for layers and "
                f"activations; use rezero or skipinit"
            )
        # What follows the last sum belongs to the head, and a transition bends its skip as well.
        if branch.bent and after is not None and not after.projected:
            raise NetworkError(
                f"an activation stands on the stream after the sum of '{branch.path}', and "
                f"NF-ResNet computes variances of pre-activation blocks, h + F(relu(h)); move it "
                f"into the branch"
            )


# ------------------------------------------------------------------------------- weights


def _target(layout: Layout, weight: Weight, behind: bool) -> Target:
    """``behind``: the gain multiplies what the activation makes, as in the authors' code."""
    deviation, size = gains(weight.follows, weight.bend) if weight.follows else (1.0, 1.0)
    if behind:
        twice = (f"standardised(gain={deviation:.12g})", "the activation's gain counts twice")
        others = (twice, *_PLAIN) if weight.follows else _PLAIN
        return Target(weight, "standardised", scope_of(layout), others, raw="lecun")
    relu = weight.follows == "relu"
    gain = "sqrt(2/(1-1/pi))" if relu else f"{deviation:.12g}"
    wrong = "sqrt(2)" if relu else f"{size:.12g}"
    mistakes = []
    if weight.follows:
        words = (
            f"the gain of the root mean square, {size:.4f}, where standardised weights take that "
            f"of the standard deviation, {deviation:.4f}"
        )
        mistakes += [
            (f"standardised(gain={wrong})", words),
            (f"standardised(gain={deviation**2:.12g})", "the activation's gain counts twice"),
        ]
    mistakes += [("standardised", "the activation's gain is missing"), *_PLAIN]
    init = f"standardised(gain={gain})" if weight.follows else "standardised"
    return Target(weight, init, scope_of(layout), tuple(mistakes), raw="lecun")


_PLAIN = (
    ("torch", "PyTorch's default, and not standardised"),
    ("he", "He's initialisation, not standardised"),
)


# --------------------------------------------------------------------------------- forms


def _forms(layout: Layout, behind: Sequence[float]) -> list[Form]:
    """A form for each branch, with the blocks since the last transition: ``l - 1`` in an equation,
    which has none, and a number where a stage ends. ``behind``: the numbers that stand behind
    activations inside of branches."""
    places = index_of(layout)
    staged = any(branch.projected for branch in layout.branches)
    since, forms = 0, []
    for k, (branch, l) in enumerate(zip(layout.branches, places, strict=True)):
        form = _form(branch, str(since) if staged else f"({l}-1)", k)
        first = {(w.follows, w.bend, w.activation) for w in branch.weights if w.first}
        if behind and len(first) == 1:  # whose gain stands in front of the layers beside beta
            form = _times(form, *first.pop(), sorted(set(behind)))
        forms.append(form)
        since = (0 if branch.projected else since) + 1
    return forms


def _times(form: Form, kind: str, bend: Options, where: str, found: Sequence[float]) -> Form:
    """``where``: the activation that the branch begins with; ``found``: numbers that stand behind
    others."""
    beta = form.inlet or "1"
    gain, size = gains(kind, bend) if kind else (1.0, 1.0)
    mistakes = [(f"{gain:.12g}*({text})", words) for text, words in form.inlet_mistakes]
    mistakes.append((beta, "the activation's gain is missing"))
    if not math.isclose(size, gain, rel_tol=_SAMPLED):
        mistakes.append(
            (f"{size:.12g}*{beta}", f"the activation's gain is {_not(size, kind, bend)}")
        )
    for number in found:
        if math.isclose(number, size, rel_tol=_SAMPLED):
            continue
        if not math.isclose(number, gain, rel_tol=_SAMPLED):
            words = f"the activation's gain is {number:.4f}, not {gain:.4f}"
            mistakes.append((f"{number:.12g}*{beta}", words))
    inlet = f"{gain:.12g}*{beta}"
    entered = f"'{where}' (gain {gain:.4f})" if where else ""
    return replace(form, inlet=inlet, inlet_mistakes=tuple(mistakes), entered=entered)


def _beta(blocks: str) -> str:
    return f"1/sqrt(1+{blocks}*{ALPHA}**2)"


def _form(branch: Residual, blocks: str, before: int) -> Form:
    mistakes = [
        ("1", "beta is missing: the branch reads the state as it is"),
        (_beta(f"({blocks}+1)"), "beta is that of the state after the block"),
        (_beta(str(before)), "v was not set back at the transitions"),
        (f"1/(1+{blocks}*{ALPHA}**2)", "1/v instead of its root"),
        (f"1/sqrt(1+{blocks}*{ALPHA})", "v grows by alpha, not by its square"),
    ]
    if branch.projected:
        own = "a transition has beta of its own stage, not of the one before"
        mistakes.insert(0, ("1", own))
    return Form(
        skip="1",
        factor=ALPHA,
        learned="scalar(0)",
        norms={},
        inlet=_beta(blocks),
        biased=True,
        mistakes=(
            ("1", "1", "alpha is missing"),
            ("1", f"{ALPHA}**2", "alpha was squared"),
            (ALPHA, ALPHA, "alpha scales the skip too"),
        ),
        learned_mistakes=(
            ("", "SkipInit's gain is missing"),
            ("scalar(1)", "SkipInit's gain begins at 1"),
        ),
        inlet_mistakes=tuple(mistakes),
    )


NFNET = Recipe(
    "nfnet",
    "NF-ResNet: scaled weight standardisation and analytic variances",
    "residual branches of pre-activation blocks, without attention; no norm",
    (
        "h + 0.2 g F(beta h), g learned, 0 at the start; beta = 1/sqrt(v)",
        "v = 1 in front of a stage and grows by 0.04 a block; a transition reads the v of the "
        "stage before, after it v is 1.04",
        "weights: each output's row centred, of standard deviation gamma / sqrt(fan in), gamma of "
        "the activation in front of it; in a module at every step, with a learned gain an output",
        "every weight layer of a branch has a bias; no norm",
        "optimiser of NFNet (2102.06171): adaptive gradient clipping, each unit's gradient at most "
        "0.01 of its weight's norm, the classifier left out",
    ),
    (
        "gamma is one over the standard deviation, 1.7129 for ReLU, not the root mean square's "
        "1.4142: standardised weights do not see the mean",
        "standardisation without gamma, or gamma without standardisation, and a deep network dies",
        "v is computed, not measured; running statistics in its place are another method",
        "zero padding makes the true variance smaller than v, most on small maps",
        "beta at a transition is that of the stage before",
        "clipping by whole tensors or over the wrong axis is another method, too",
    ),
    "Brock, De and Smith, arXiv 2101.08692; Brock et al., arXiv 2102.06171",
    _plan,
    judgement="gamma stands in the weights, as in timm, unless it stands behind the activations "
    "already, as in the authors' code; exact values, where theirs are sampled (1.71396 for ReLU). "
    "In an equation beta stands in front of the activation and weights are standardised at the "
    "start alone; in a module beta stands behind the activation: for ReLU the same",
)
