"""GPT-2's initialisation: residual projections at 1/sqrt(2N) of the others' standard deviation.

    std = 0.02 / sqrt(L)    L residual additions: 2N in a stack of N layers

of the last weight of each branch; 0.02 of every other weight, of embeddings and of the head too;
biases zero (karpathy/nanoGPT, model.py). Radford et al., "Language Models are Unsupervised
Multitask Learners", 2019, are quoted with 1/sqrt(N), N residual layers (huggingface/transformers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from depthgauge.errors import NetworkError
from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.layers import TORCH
from depthgauge.recipes.rules import Count, Form, Plan, Recipe, Rule, Target, scope_of
from depthgauge.recipes.stacks import embeddings
from depthgauge.trace.counted import Layout, Weight

__all__ = ["GPT2"]


def _plan(layout: Layout) -> Plan:
    refuse_plain(layout, "GPT-2's initialisation")
    L = layout.L
    mistakes = (
        ("normal(std=0.02)", "the depth scale was never applied"),
        ("normal(std=0.02/sqrt(L/2))", f"N = {L // 2} layers were counted, not 2N = {L} additions"),
        ("normal(std=0.02/L)", "1/(2N) instead of its root"),
        ("normal(std=0.02/sqrt(2*L))", "the scale was applied for twice the depth"),
    )
    scope, branches = scope_of(layout), layout.branches
    small = "normal(std=0.02/sqrt(L))"
    last = tuple(Target(w, small, scope, mistakes) for b in branches for w in b.weights if w.last)
    inner = (w for b in branches for w in b.weights if not (w.last or w.table))
    tables = embeddings(layout)
    outside = (w for w in layout.outside if w.fan_in and w.path not in layout.tables)
    unit = ("normal(std=1)", "an embedding's default in PyTorch, N(0, 1)")
    bare = [b for b in branches if "in" not in b.norm_at]
    if len(bare) == L:
        raise NetworkError(
            f"no branch has a norm in front ('{bare[0].path}' is the first), and GPT-2's "
            f"initialisation is a rule of pre-norm; put norms in with 'prenorm' first"
        )
    return Plan(
        (
            Rule("residual projections", f"0.02 / sqrt(2N), 2N = {L}", last),
            Rule("other weights of branches", "0.02", _plain(inner, scope, TORCH)),
            Rule("weights outside of branches", "0.02", _plain(outside, scope, TORCH)),
            Rule("embeddings", "0.02", _plain(tables, scope, unit)),
            Rule("biases", "zero", tuple(Target(b, "zeros", scope) for b in layout.biases)),
        ),
        tuple(Form("1", "1", "") for _ in branches),
        (Count("branches without a norm in front", len(bare), 0, "it is a rule of pre-norm"),),
        ends=True,
    )


def _plain(
    weights: Iterable[Weight], scope: Mapping[str, float], *mistakes: tuple[str, str]
) -> tuple[Target, ...]:
    return tuple(Target(w, "normal(std=0.02)", scope, mistakes) for w in dict.fromkeys(weights))


_LAST: Final = "last weight of each branch: normal of standard deviation 0.02 / sqrt(2N)"

GPT2 = Recipe(
    "gpt2",
    "GPT-2's initialisation, 1/sqrt(2N)",
    "residual branches with a norm in front",
    (
        _LAST,
        "every other weight, also of embeddings and of the head: normal of standard deviation "
        "0.02; biases zero",
    ),
    (
        "2N counts residual additions, two a layer, not layers",
        "a second initialisation pass over all modules undoes the scale",
        "together with a recipe that scales the branch by depth it scales twice",
    ),
    "Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3",
    _plan,
    tier=2,
    unconfirmed=(
        (
            _LAST,
            "as karpathy/nanoGPT has it; the paper was not read and is quoted with 1/sqrt(N), N "
            "residual layers, and its released code draws 0.02 everywhere",
        ),
    ),
)
