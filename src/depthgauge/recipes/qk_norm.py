"""QK-norm: queries and keys normed over the features of each head, values as they are.

    qk-norm             g q/|q| k/|k|             Henry, Dachapally, Pawar and Chen 2010.04245
    qk-norm-layernorm   N(q) N(k) / sqrt(d)       Dehghani et al. 2302.05442
    qk-norm-rmsnorm     the same with RMS norm

``g`` is one learned number for each attention, log2(T^2 - T) at the start for T keys; unit vectors
are not divided by sqrt(d) as well. The norm of a layer keeps the usual 1/sqrt(d).
"""

from __future__ import annotations

from typing import Final

from depthgauge.errors import NetworkError
from depthgauge.recipes.rules import Form, Plan, Recipe
from depthgauge.trace.counted import Layout, Residual

__all__ = ["QK_NORM", "QK_NORM_LAYERNORM", "QK_NORM_RMSNORM", "TEMPERATURE"]

#: Where the learned number begins, for T keys.
TEMPERATURE: Final = "log({T}**2-{T})/log(2)"

_TOO_SMALL = "1/sqrt(d), which unit vectors are not divided by: attention would be nearly uniform"


def _lengths(branch: Residual) -> Form:
    T = branch.keys
    if branch.head and T < 2:
        raise NetworkError(
            f"attention in '{branch.path}' has {T} key, and QK-norm's number log2(T^2 - T) wants "
            f"two at least; give sequences of the length that it is to be trained on"
        )
    text = TEMPERATURE.format(T=T or 2)
    return Form(
        logits="1",
        scored="l2",
        temperature=text,
        logits_mistakes=(("1/sqrt(d)", _TOO_SMALL),),
        temperature_mistakes=(
            (f"log({T or 2}**2-{T or 2})", "the natural logarithm, where it is that to the base 2"),
            (f"log({T or 2}**2)/log(2)", "T^2, where it is T^2 - T"),
            (f"log({T or 2})/log(2)", "log2(T), where it is log2(T^2 - T)"),
            ("sqrt(d)", "sqrt(d)"),
            ("1", "it was never set"),
        ),
    )


def _layers(kind: str) -> Form:
    return Form(
        logits="1/sqrt(d)",
        scored=kind,
        logits_mistakes=(
            ("1", "1/sqrt(d) is missing, which normed queries and keys still need"),
            ("1/d", "1/sqrt(d) stands there twice"),
        ),
    )


_WHERE: Final = "over the features of each head, behind the projection; values as they are"
_RECALLED: Final = "as in Qwen 3 of huggingface/transformers; the paper was not read"


def _recipe(name: str, title: str, kind: str, rule: str, reference: str, trap: str) -> Recipe:
    def plan(layout: Layout) -> Plan:
        if not any(branch.attends for branch in layout.branches):
            raise NetworkError(
                f"no attention was found in a residual branch, and {title} is about its queries "
                f"and keys; give a network with attention"
            )
        made = _lengths if kind == "l2" else lambda _: _layers(kind)
        return Plan(forms=tuple(made(b) if b.attends else Form() for b in layout.branches))

    return Recipe(
        name,
        title,
        "attention",
        (rule, _WHERE),
        (
            trap,
            "a norm over all heads at once is another rule (OLMo 2 has it)",
            "a norm of the values is none of it",
        ),
        reference,
        plan,
        tier=2,
        judgement=(
            "T is the number of keys of the batch, where the paper takes the 97.5th percentile of "
            "the lengths in the data"
            if kind == "l2"
            else "norms stand behind the projections, before rotary phases, as in Qwen 3"
        ),
        unconfirmed=() if kind == "l2" else ((rule, _RECALLED), (_WHERE, _RECALLED)),
    )


QK_NORM = _recipe(
    "qk-norm",
    "QK-norm by length",
    "l2",
    "logits g q/|q| k/|k|, g one learned number, log2(T^2 - T) at the start for T keys, and no "
    "1/sqrt(d)",
    "Henry et al., arXiv 2010.04245; CyndxAI/QKNorm",
    "1/sqrt(d) of unit vectors makes attention nearly uniform",
)
QK_NORM_LAYERNORM = _recipe(
    "qk-norm-layernorm",
    "QK-norm by layer norm",
    "layernorm",
    "logits N(q) N(k) / sqrt(d), each N a layer norm with a gain",
    "Dehghani et al., arXiv 2302.05442",
    "layer norm keeps vectors of length sqrt(d): 1/sqrt(d) stays",
)
QK_NORM_RMSNORM = _recipe(
    "qk-norm-rmsnorm",
    "QK-norm by RMS norm",
    "rmsnorm",
    "logits N(q) N(k) / sqrt(d), each N an RMS norm with a gain",
    "as Dehghani et al., arXiv 2302.05442, with RMS norm (Qwen 3 has it)",
    "RMS norm keeps vectors of length sqrt(d): 1/sqrt(d) stays",
)
