"""The fixup-first-step suite: what one step does to networks of 16, 64 and 256 residual branches.

``h = k h + a F(h)`` with m He-initialised ReLU layers in ``F``, W_j times ``s_j``; a linear
classifier, cross-entropy over random labels. A branch of scales a, s_j changes the logits, per unit
of learning rate and at infinite width, by

    sgd    sum_j (a prod_(i != j) s_i)^2  r^(L - 1)        r = k^2 + 2 (a prod_i s_i)^2
    sign   sum_j  a prod_(i != j) s_i     r^((L - 1) / 2)

times what no depth changes: the layer that moves is left out of the product, which enters twice
where the step is the gradient and once where it is the gradient's sign (Adam's first step).
Branches pull one way, so L of them add L times this. Fixup (Zhang, Dauphin and Ma, arXiv
1901.09321) sets ``s_m = 0`` and ``s_j = L^(-1/(2m - 2))``: r = 1, the product of m - 1 of them is
L^(-1/2), a branch spends eta/L, and L aligned branches spend eta, at any depth. So under SGD only.

The last layer's scale as a multiplier or as an initialisation: the same function at the start, and
another update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from depthgauge.measurement import Progress
from depthgauge.network.spec import Network
from depthgauge.recipes.fixup import fixup_scale
from depthgauge.study.claims import Claim, SuiteResult, by_name, quoted
from depthgauge.study.first_step import DIRECTIONS, Head, Shares, first_step
from depthgauge.study.scaling import exponent

WIDTH, BATCH, CLASSES, LR = 64, 32, 10, 0.1
DEPTHS: Final = (16, 64, 256)
SEEDS: Final = tuple(range(8))
LAYERS: Final = (2, 3)

#: How far a fitted exponent may lie from the law's at the same depths.
TOLERANCE = 0.1


#: What the numbers of each kind of step are; ``sgd_`` or ``sign_`` stands before their names.
COLUMNS: Final = {
    "updates": "RMS over examples and logits of the change by all branches together, per unit "
    "learning rate, to first order; geometric mean over seeds, at each depth",
    "update": "the same at the largest depth",
    "totals": "the change of the logits after a whole step of every weight, over lr",
    "exponent": "of updates as a power of L, mean over seeds",
    "interval": "half of its 95 per cent interval, Student's t over seeds",
    "law": "the exponent of the closed form at the same depths, at infinite width",
    "budget_exponent": "of one branch's own share, the mean over branches",
    "alignment": "norm of the sum of the shares over the sum of their norms, at the largest depth",
    "alignments": "the same at each depth",
    "coherence_exponent": "of the norm of the sum over the root of the sum of squares: 1/2 where "
    "branches pull one way, 0 where they are orthogonal",
    "growth": "where the update is no power of L: the factor of one more branch",
    "growth_law": "the closed form's",
}

LEGEND: Final = {
    "": f"A row is a scheme, its branches of m weight layers. Numbers are means over n = "
    f"{len(SEEDS)} seeds, exponents of {DEPTHS[0]}, {DEPTHS[1]} and {DEPTHS[2]} branches with half "
    f"of their 95 per cent interval over the seeds (Student's t) behind +-; schemes whose step "
    f"grows by a factor a branch (he, 1/sqrt(2)) stop at {DEPTHS[1]}.",
    "sgd_exponent": "p, where one step of SGD in all branches changes the logits like L^p, L the "
    "number of branches: at 0 as much at every depth. 'x3 each': it is no power of L, one more "
    "branch multiplies it by 3",
    "sgd_law": "p of the closed form at infinite width and the same depths; -: there is none",
    "sgd_budget_exponent": "the exponent of one branch's own share, mean over branches: at -1 each "
    "spends one L-th",
    "sgd_alignment": f"length of the sum of the branches' shares over the sum of their lengths, at "
    f"the largest depth: 1 if all pull one way, about {DEPTHS[-1] ** -0.5:.2f} if they were "
    f"{DEPTHS[-1]} directions at random",
    "sign_exponent": "p of a step along the sign of the gradient, as Adam's first one is",
    "sign_law": "the closed form's p for that step",
}

#: (L, m) and Fixup's scale as it is quoted.
SCALES: Final = (
    (54, 2, "0.136083"),
    (27, 2, "0.192450"),
    (16, 3, "0.500000"),
    (33, 3, "0.417226"),
    (50, 3, "0.376060"),
    (30, 4, "0.567300"),
    (10_000, 2, "0.010000"),
)


@dataclass(frozen=True)
class Law:
    """``k``, ``a``, the scale of each inner weight and of the last one, as functions of L and m.

    Written out again, apart from the texts that build the network: either checks the other.
    """

    skip: float = 1.0
    multiplier: Callable[[float], float] = lambda L: 1.0
    inner: Callable[[float, int], float] = lambda L, m: 1.0
    last: Callable[[float, int], float] = lambda L, m: 1.0

    def __call__(self, L: float, m: int, direction: str) -> float:
        """The change by all L branches, up to a factor without L."""
        a, inner, last = self.multiplier(L), self.inner(L, m), self.last(L, m)
        r = self.skip**2 + 2 * (a * inner ** (m - 1) * last) ** 2
        others = [a * inner ** (m - 2) * last] * (m - 1) + [a * inner ** (m - 1)]
        power = 2 if direction == "sgd" else 1
        total = math.fsum(x**power for x in others)
        change: float = L * total * r ** (power * (L - 1) / 2)
        return change


@dataclass(frozen=True)
class Scheme:
    """One way to build a deep network.

    ``equation`` holds ``{F}`` for the branch; ``inner`` and ``last`` are what He's standard
    deviation is multiplied by, as texts in L, where ``{m}`` is the number of layers. ``law``: what
    its update should follow, or bounds for its exponent; ``grows``: by a factor a branch, not by a
    power of depth.
    """

    name: str
    equation: str
    inner: str = "1"
    last: str = "1"
    law: Law | Mapping[str, tuple[float, float]] | None = None
    head: Head | None = None
    init: str = ""
    unit_variance: bool = False
    grows: bool = False

    def network(self, depth: int, m: int) -> Network:
        words = {f"W{j}": self.init or _he(self.inner, m) for j in range(1, m)}
        words[f"W{m}"] = self.init or _he(self.last, m)
        equation = self.equation.replace("{F}", branch(m)).replace("{F_norm}", branch(m, True))
        return Network(equation, depth, WIDTH, init=words)


def _he(scale: str, m: int) -> str:
    if scale == "0":
        return "zeros"
    return f"he(gain=sqrt(2)*{scale.replace('{m}', str(m))})"


def branch(m: int, norm: bool = False) -> str:
    """``W2(relu(W1(h)))`` with m layers."""
    text = "W1(rmsnorm(h))" if norm else "W1(h)"
    for j in range(2, m + 1):
        text = f"W{j}(relu({text}))"
    return text


def _power(p: float) -> Callable[[float, int], float]:
    return lambda L, m: L**p


SCHEMES: tuple[Scheme, ...] = (
    Scheme("he", "h + {F}", law=Law(), grows=True),
    Scheme("1/sqrt(2)", "(h + {F})/sqrt(2)", law=Law(0.5**0.5, lambda L: 0.5**0.5), grows=True),
    Scheme(
        "lsuv",
        "h + {F}",
        law={"sgd": (1.5, 3.0), "sign": (1.0, 2.0)},
        init="orthogonal",
        unit_variance=True,
    ),
    Scheme("multiplier 1/sqrt(L)", "h + {F}/sqrt(L)", law=Law(multiplier=lambda L: L**-0.5)),
    Scheme("last init 1/sqrt(L)", "h + {F}", last="1/sqrt(L)", law=Law(last=_power(-0.5))),
    Scheme("multiplier 1/L", "h + {F}/L", law=Law(multiplier=lambda L: 1 / L)),
    Scheme("last init 1/L", "h + {F}", last="1/L", law=Law(last=_power(-1))),
    Scheme(
        "every init L^(-1/2m)",
        "h + {F}",
        inner="L**(-1/(2*{m}))",
        last="L**(-1/(2*{m}))",
        law=Law(inner=lambda L, m: L ** (-0.5 / m), last=lambda L, m: L ** (-0.5 / m)),
    ),
    Scheme("zero last layer", "h + {F}", last="0", law=Law(last=lambda L, m: 0.0)),
    Scheme("rezero", "h + scalar(0)*{F}", law={"sgd": (0.5, 1.0), "sign": (0.5, 1.0)}),
    Scheme(
        "fixup",
        "h + {F}",
        inner="L**(-1/(2*{m} - 2))",
        last="0",
        law=Law(inner=lambda L, m: fixup_scale(int(L), m), last=lambda L, m: 0.0),
    ),
    Scheme(
        "fixup, C = 0",
        "h + {F}",
        inner="L**(-1/(2*{m} - 2))",
        last="0",
        head=Head(CLASSES, zero=True),
    ),
    Scheme(
        "pre-norm",
        "h + {F_norm}",
        law={"sgd": (0.0, 0.5), "sign": (0.5, 0.75)},
        head=Head(CLASSES, norm=True),
    ),
    Scheme(
        "pre-norm, 1/sqrt(L)",
        "h + {F_norm}/sqrt(L)",
        law={"sgd": (-TOLERANCE, TOLERANCE), "sign": (0.5 - TOLERANCE, 0.5 + TOLERANCE)},
        head=Head(CLASSES, norm=True),
    ),
)


def run(progress: Progress | None = None) -> SuiteResult:
    """Take one step of every scheme at every depth."""
    tasks = [(scheme, m) for m in LAYERS for scheme in SCHEMES]
    found, claims = [], []
    for done, (scheme, m) in enumerate(tasks, 1):
        row = _row(scheme, m)
        found.append(row)
        claims += _claims(scheme, m, row)
        if progress is not None:
            progress(done, len(tasks))
    rows = by_name(found)
    return SuiteResult(
        suite="fixup-first-step",
        about=(
            "How far one step moves the logits of networks with 16, 64 and 256 residual branches, "
            "and as which power of the number of branches."
        ),
        configurations=tuple(found),
        claims=(*claims, *_fixup_claims(rows), *_scale_claims()),
        lessons=(_flat(rows), _alike_and_not(rows), _sign(rows)),
        settings={
            "width": WIDTH,
            "batch": BATCH,
            "classes": CLASSES,
            "depths": list(DEPTHS),
            "seeds": len(SEEDS),
            "lr": LR,
            "columns": dict(COLUMNS),
        },
        legend=LEGEND,
    )


def _name(scheme: str, m: int) -> str:
    return f"{scheme}, m={m}"


def _measured(scheme: Scheme, m: int) -> tuple[tuple[int, ...], list[dict[str, Shares]]]:
    """The depths, and what a step does at each; where it grows by a factor, no depth of 256."""
    depths = DEPTHS[:2] if scheme.grows else DEPTHS
    dtype = torch.float64 if scheme.grows else torch.float32
    return depths, [
        first_step(
            scheme.network(depth, m),
            SEEDS,
            batch=BATCH,
            lr=LR,
            head=scheme.head,
            unit_variance=scheme.unit_variance,
            dtype=dtype,
        )
        for depth in depths
    ]


def _row(scheme: Scheme, m: int) -> dict[str, Any]:
    depths, each = _measured(scheme, m)
    row: dict[str, Any] = {"name": _name(scheme.name, m), "m": m, "depths": list(depths)}
    row["equation"] = str(scheme.network(depths[0], m).equation)
    for direction in DIRECTIONS:
        shares = [at[direction] for at in each]
        row |= _columns(direction, scheme, m, depths, shares)
    return row


def _columns(
    direction: str, scheme: Scheme, m: int, depths: Sequence[int], shares: Sequence[Shares]
) -> dict[str, Any]:
    """The numbers of one kind of step, ``sgd_exponent`` and so on."""
    sums = np.array([s.norm_of_sum for s in shares])  # (D, S)
    found: dict[str, Any] = {
        f"{direction}_updates": _means(sums),
        f"{direction}_totals": _means([s.total for s in shares]),
        f"{direction}_update": _means(sums)[-1],
    }
    keys = ("exponent", "interval", "law", "budget_exponent", "alignment")
    if not sums.all():
        words = dict.fromkeys((f"{direction}_{key}" for key in keys), None)
        return found | words | {f"{direction}_exponent_reason": "no update"}
    norms = np.array([s.sum_of_norms for s in shares])
    found[f"{direction}_alignment"] = float((sums[-1] / norms[-1]).mean())
    found[f"{direction}_alignments"] = (sums / norms).mean(1).tolist()
    against = sums / np.array([s.root_sum_square for s in shares])
    found[f"{direction}_coherence_exponent"] = exponent(depths, against).slope
    law = [scheme.law(L, m, direction) for L in depths] if isinstance(scheme.law, Law) else None
    if scheme.grows:
        assert law is not None
        found[f"{direction}_growth"] = _growth(depths, _means(sums))
        found[f"{direction}_growth_law"] = _growth(depths, law)
        words = dict.fromkeys((f"{direction}_{key}" for key in keys[:-1]), None)
        factor = f"x{found[f'{direction}_growth']:.2f} each"
        return found | words | {f"{direction}_exponent_reason": factor}
    fitted, budget = exponent(depths, sums), exponent(depths, norms)
    return found | {
        f"{direction}_exponent": fitted.slope,
        f"{direction}_interval": (fitted.high - fitted.low) / 2,
        f"{direction}_law": exponent(depths, law).slope if law else None,
        f"{direction}_budget_exponent": budget.slope - 1,  # of one branch of L
    }


def _means(values: Any) -> list[float]:
    """Geometric means over seeds."""
    with np.errstate(all="ignore"):
        means: list[float] = np.exp(np.log(np.asarray(values)).mean(1)).tolist()
    return means


def _growth(depths: Sequence[int], values: Sequence[float]) -> float:
    """The factor that one more branch multiplies the update by."""
    return float((values[-1] / values[0]) ** (1 / (depths[-1] - depths[0])))


# ----------------------------------------------------------------------------------- claims


def _claims(scheme: Scheme, m: int, row: Mapping[str, Any]) -> list[Claim]:
    found = []
    for direction in DIRECTIONS:
        about = f"{row['name']}, {direction}"
        if scheme.law is None:
            update = row[f"{direction}_update"]
            found.append(Claim(f"{about}: update of the branches at step 1", update, max=1e-12))
        elif isinstance(scheme.law, Law) and scheme.grows:
            ratio = row[f"{direction}_growth"] / row[f"{direction}_growth_law"]
            found.append(Claim(f"{about}: growth a branch over the law's", ratio, 0.95, 1.05))
        elif isinstance(scheme.law, Law):
            apart = row[f"{direction}_exponent"] - row[f"{direction}_law"]
            found.append(Claim(f"{about}: exponent less the law's", apart, -TOLERANCE, TOLERANCE))
        else:
            low, high = scheme.law[direction]
            found.append(Claim(f"{about}: exponent", row[f"{direction}_exponent"], low, high))
    return found


def _fixup_claims(rows: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    """Flat, and why: a budget of eta / L a branch, and branches that pull one way."""
    found = []
    for m in LAYERS:
        row, about = rows[_name("fixup", m)], f"{_name('fixup', m)}, sgd"
        found += [
            Claim(f"{about}: exponent", row["sgd_exponent"], -TOLERANCE, TOLERANCE),
            Claim(
                f"{about}: exponent of one branch, eta / L",
                row["sgd_budget_exponent"],
                -1 - TOLERANCE,
                -1 + TOLERANCE,
            ),
            Claim(f"{about}: alignment, 1 is one direction", row["sgd_alignment"], min=0.8),
            Claim(
                f"{about}: exponent of sum / root sum of squares",
                row["sgd_coherence_exponent"],
                0.5 - TOLERANCE,
                0.5 + TOLERANCE,
            ),
        ]
    return found


def _scale_claims() -> list[Claim]:
    return [
        quoted(f"fixup's scale at L = {L}, m = {m}", fixup_scale(L, m), text)
        for L, m, text in SCALES
    ]


# ---------------------------------------------------------------------------------- lessons


def _flat(rows: Mapping[str, Mapping[str, Any]]) -> str:
    row = rows[_name("fixup", 2)]
    first, last = row["sgd_updates"][0], row["sgd_updates"][-1]
    return (
        f"Fixup moves the logits by {first:.3g} per unit of learning rate at {DEPTHS[0]} branches "
        f"and by {last:.3g} at {DEPTHS[-1]}: one branch spends a share like "
        f"L^{row['sgd_budget_exponent']:.2f}, and all pull one way (norm of the sum over sum of "
        f"the norms {row['sgd_alignment']:.2f})."
    )


def _alike_and_not(rows: Mapping[str, Mapping[str, Any]]) -> str:
    outside, inside = (
        rows[_name(f"{where} 1/sqrt(L)", 2)]["sgd_exponent"]
        for where in ("multiplier", "last init")
    )
    return (
        f"1/sqrt(L) as a multiplier and in the last layer's initialisation is the same function "
        f"before the step; the step grows like L^{outside:.2f} in one and L^{inside:.2f} in the "
        f"other: a step in a weight that was made small is as large as any."
    )


def _sign(rows: Mapping[str, Mapping[str, Any]]) -> str:
    fixup, whole = (rows[_name(x, 2)]["sign_exponent"] for x in ("fixup", "multiplier 1/L"))
    return (
        f"Under sign steps, as Adam's first is one, Fixup grows like L^{fixup:.2f}: its argument "
        f"is SGD's. Of these schemes only a multiplier of 1/L is flat, L^{whole:.2f}."
    )
