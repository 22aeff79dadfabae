"""A record as a commission writes it, made from formulas: no network is run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

#: What a hostile or careless module may be called.
EVIL = "</script><script>alert(1)</script> \x1b[31m|`*@a #1 $x$ <b> & %{y} \u202etxt"

EQUATION = "a = 1/sqrt(L); h = h + a * W2(gelu(W1(rmsnorm(h), out=4*n)))"
CONFIGURATIONS = ("baseline", "norm=none", "activation=relu", "scale*2")
#: By configuration: decades that state and gradient grow, over all blocks, divided by sqrt(depth).
_GROWTH = {"baseline": 0.02, "norm=none": 0.35, "activation=relu": 0.03, "scale*2": 0.08}

Arrays = dict[str, npt.NDArray[Any]]
Document = dict[str, Any]


def record(
    depths: Sequence[int] = (12, 48, 96),
    seeds: Sequence[int] = (0, 1, 2),
    evil: str = EVIL,
    quantities: Sequence[str] | None = None,
) -> tuple[Document, Arrays]:
    """The document of ``record.json`` and the arrays of ``curves.npz``.

    Five configurations, the last called ``evil``; gates in all four states; the gradient of
    ``norm=none`` overflows in one seed at the deepest.
    """
    arrays: Arrays = {}
    curves: list[Document] = []
    for configuration in (*CONFIGURATIONS, evil):
        for depth in depths:
            for quantity, values in _curves(configuration, depth, seeds, quantities).items():
                key = f"c{len(curves):04}"
                blocks = np.arange(depth + 1)[-len(values) :]
                arrays |= {f"{key}_blocks": blocks, f"{key}_values": values}
                curves.append(
                    {
                        "gate": "rivers",
                        "configuration": configuration,
                        "depth": depth,
                        "quantity": quantity,
                        "blocks": f"{key}_blocks",
                        "values": f"{key}_values",
                        "seeds": list(seeds),
                    }
                )
    document: Document = {
        "format": "depthgauge-record",
        "schema": 1,
        "subject": _subject(depths, seeds, evil),
        "corridor": _corridor(),
        "gates": _gates(len(curves), evil, depths),
        "verdict": {
            "state": "fail",
            "reason": "saturated_fraction: 0.9 is above max 0.5 by 0.255 decades",
            "weakest": "local gates",
            "score": -0.255,
        },
        "notes": ["matched training runs were not made: not run is not pass"],
        "curves": curves,
        "provenance": _provenance(),
        "files": {"curves.npz": "sha256:" + "c" * 64},
        "fingerprint": "sha256:" + "f" * 64,
    }
    return document, arrays


def _curves(
    configuration: str, depth: int, seeds: Sequence[int], quantities: Sequence[str] | None
) -> Arrays:
    """Shape (B, K) each."""
    growth = _GROWTH.get(configuration, 0.015) * math.sqrt(depth)
    random = np.random.default_rng([depth, len(configuration)])
    block = np.arange(depth + 1)[:, None]
    wander = random.normal(0, 0.02, (depth + 1, len(seeds))).cumsum(axis=0) / math.sqrt(depth)
    share = np.broadcast_to(block / depth, wander.shape)
    state = 10 ** (growth * share + wander)
    gradient = 1e-3 * 10 ** (growth * (1 - share) - wander)
    if configuration == "norm=none" and depth == max(depth, 96):
        gradient[: depth // 3, 0] = np.inf
    spectrum = {
        f"log_singular_values[{rank}]": (1 - rank) / 5 * (1 - share) + np.log(gradient)
        for rank in (1, 4, 8, 12, 16)
    }
    found = {
        "state_rms": state,
        "gradient_rms": gradient,
        "branch_to_stream": (0.4 / np.sqrt(block + 1) * 10**wander)[1:],
        "branch_stream_cosine": (0.05 * np.sin(block / 5) + wander)[1:],
        "live_derivative_fraction": np.clip(0.98 - 0.3 * share + wander, 0, 1)[1:],
        "saturated_fraction": np.clip(0.01 + 0.2 * share + wander, 0, 1)[1:],
        "dead_fraction": np.zeros((depth, len(seeds))),
        **spectrum,
        "effective_rank_participation": 64 * 10 ** (-growth / 4 * (1 - share) + wander),
        "correlation": np.clip(0.02 + 0.4 * share + wander, 0, 1),
        "headroom_float16_bits": 16 - np.log2(state * 5),
        "headroom_bfloat16_bits": 128 - np.log2(state * 5),
        "underflow_headroom_bits": np.log2(gradient) + 14,
        "functional_update": 0.3 * 10 ** (growth * share + wander),
        "state_max": state * 5,
    }
    return {name: found[name] for name in (found if quantities is None else quantities)}


def _subject(depths: Sequence[int], seeds: Sequence[int], evil: str) -> Document:
    return {
        "target": "spec.toml",
        "kind": "equation",
        "equation": EQUATION,
        "equation_hash": f"sha256:{hashlib.sha256(EQUATION.encode()).hexdigest()}",
        "latex": "",
        "scalars": {"a": "1/sqrt(L)"},
        "init": {"W1": "he", "W2": "lecun"},
        "depths": list(depths),
        "depth": max(depths),
        "width": 64,
        "tokens": None,
        "tokens_reason": "the state has no axis of tokens",
        "size": None,
        "size_reason": "the state is no image",
        "branches": max(depths),
        "m": [2] * max(depths),
        "placement": "pre",
        "draws": "keyed",
        "batch": 128,
        "dtype": "float32",
        "device": "cpu",
        "seeds": list(seeds),
        "arguments": {"name": evil},
        "source": None,
        "source_reason": "an equation has no module of its own",
        "weights": {str(seed): f"sha256:{seed}" + "a" * 63 for seed in seeds},
        "data": "sha256:" + "d" * 64,
    }


def _corridor() -> Document:
    return {
        "name": "default",
        "bounds": {
            "gradient_ratio": {
                "min": 0.1,
                "max": 10.0,
                "warn": 0.1,
                "reason": "within a decade 97 per cent of 240 networks trained",
                "source": "docs/corridor.md",
            },
            "saturated_fraction": {"max": 0.5, "warn": 0.1, "reason": "", "source": ""},
        },
    }


def judgement(name: str, state: str, value: float | None, **more: Any) -> Document:
    found: Document = {
        "name": name,
        "state": state,
        "n": 0 if value is None else 3,
        "value": value,
        "median": value,
        "low": value,
        "high": value,
        "margin": more.get("margin"),
        "bound": more.get("bound", {"min": 0.1, "max": 10.0, "warn": 0.1}),
        "reason": more.get("reason", ""),
    }
    for key in ("value", "median", "low", "high", "margin"):
        if found[key] is None:
            found[f"{key}_reason"] = "not measured"
    return found


def _gates(curves: int, evil: str, depths: Sequence[int]) -> list[Document]:
    def gate(name: str, question: str, state: str, **more: Any) -> Document:
        return {
            "name": name,
            "question": question,
            "state": state,
            "reason": "",
            "judgements": [],
            "leaves_open": "",
            "notes": [],
            "tables": [],
            "curves": [],
            **more,
        }

    failing = {"bound": {"max": 0.5, "warn": 0.1}, "margin": -0.255}
    reason = "0.9 is above max 0.5 by 0.255 decades"
    return [
        gate(
            "rivers",
            "Do both rivers survive the depth?",
            "pass",
            judgements=[judgement("gradient_ratio", "pass", 1.45, margin=0.84)],
            leaves_open="whether the network learns",
            curves=list(range(curves)),
        ),
        gate(
            "local gates",
            "Do the activations pass a derivative?",
            "fail",
            reason=f"saturated_fraction: {reason}",
            judgements=[judgement("saturated_fraction", "fail", 0.9, reason=reason, **failing)],
        ),
        gate(
            "ablation",
            "Which single change brings the failing bound back inside?",
            "warn",
            reason="forward_drift: 2.9 is inside max 3 by 0.0147 decades",
            notes=[f"{evil} was left as it is"],
            tables=[_ablation(evil)],
        ),
        gate(
            "depth sweep",
            "How do the numbers grow, and where does a bound break?",
            "pass",
            tables=[_laws(depths)],
        ),
        gate(
            "training boundary",
            "Does a small matched run learn?",
            "not_measured",
            reason="matched runs are not part of this commission",
            leaves_open="everything about learning",
        ),
    ]


def _ablation(evil: str) -> Document:
    changes = ("norm=none", "activation=relu", "scale*2", "scale/2", "dtype=bfloat16", evil)
    quantities = ("forward_drift", "gradient_ratio", "saturated_fraction")
    rows = []
    for i, change in enumerate(changes):
        for j, quantity in enumerate(quantities):
            effect = round((2.0 - 0.35 * i) * (-1) ** j / (j + 1), 4)
            unit = "difference" if quantity == "saturated_fraction" else "decades"
            rows.append([change, quantity, unit, 3, effect, effect - 0.1, effect + 0.15])
    rows.append(["init=orthogonal", "gradient_ratio", "decades", 0, None, None, None])
    return {
        "kind": "ablation",
        "title": "One change at a time",
        "columns": ["change", "quantity", "unit", "n", "median", "min", "max"],
        "rows": rows,
        "rows_reason": "the gradient overflowed to inf",
    }


def _laws(depths: Sequence[int]) -> Document:
    return {
        "kind": "laws",
        "title": "Growth over depth",
        "columns": ["quantity", "law", "exponent", "low", "high", "breaks at depth", "n"],
        "rows": [
            ["forward_drift", "power", 0.31, 0.24, 0.38, 740, len(depths)],
            ["gradient_ratio", "constant", None, None, None, None, len(depths)],
        ],
        "rows_reason": "a constant has no exponent and breaks no bound",
    }


def _provenance() -> Document:
    return {
        "depthgauge": "0.1.0",
        "torch": "2.13.0",
        "numpy": "2.4.6",
        "python": "3.11.2",
        "platform": "Linux x86_64",
        "command": ["depthgauge", "commission", "spec.toml", "-o", "record"],
        "git": None,
        "git_reason": "the target stands in no repository",
        "started": "2026-01-02T03:04:05Z",
        "finished": "2026-01-02T03:04:59Z",
        "wall_seconds": {"rivers": 3.5, "ablation": 41.25},
    }
