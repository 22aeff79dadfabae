"""How large Jacobians of parts of the depth are, on average.

Index legend: states ``h_0 ... h_D`` of a chain; ``J_(k->D) = dh_D/dh_k`` of one example, its rows
and columns over all numbers of that example's state; ``n_D`` how many the last one has.

    apjn_k   |J_(k->D)|_F^2 / n_D, mean over examples: the averaged partial Jacobian norm
             (Doshi, He and Gromov, arXiv 2111.12143)

``|J|_F^2 = E |J^T u|^2`` for random signs u (Hutchinson, Commun. Stat. 19, 1990); the standard
error is over probes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthgauge.instruments.subject import Effort, Found, Subject
from depthgauge.network.chain import Chain, batched_vjp
from depthgauge.network.linear import linear
from depthgauge.sites import FloatArray

__all__ = ["APJN", "apjn", "end", "unfit"]

APJN = ("apjn", "apjn_standard_error")
#: Numbers that the gradients of all states at once may take.
_AT_ONCE = 2**25


def unfit(chain: Chain) -> str:
    """``""``, or why Jacobians at these states say nothing: they are in a precision too narrow, or
    not finite, and the Jacobians not the same at every state. Autograd gives numbers there too:
    comparisons with NaN open and close gates at will."""
    if chain.dtype not in (torch.float32, torch.float64):
        kind = str(chain.dtype).removeprefix("torch.")
        return f"Jacobians are taken in float32 or wider, and the states are {kind}"
    each = [state.value.isfinite().all().to(chain.device) for state in chain.states]
    finite = torch.stack(each).tolist()
    if all(finite) or linear(chain.states[0].edge, chain.states[-1].edge):
        return ""
    first = finite.index(False)
    return f"the states are not finite from state {first} on ({chain.states[first].path})"


# --------------------------------------------------------------------------------- sizes


def apjn(subject: Subject, effort: Effort) -> Found:
    """``apjn`` and its standard error at every state; at the last one it is 1."""
    found = Found()
    with subject.chain() as whole:
        chain = whole.until(effort.until)
        if why := unfit(chain):
            found.missing = dict.fromkeys(APJN, why)
            return found
        each = sizes(chain, effort)
    exact = len(each) < effort.probes
    for row, values in zip(subject.rows, each.T, strict=False):
        found.put("apjn", row, float(values.mean()))
        if exact or effort.probes > 1:
            error = 0.0 if exact else values.std(ddof=1) / math.sqrt(effort.probes)
            found.put("apjn_standard_error", row, float(error))
    if effort.probes < 2:
        found.missing["apjn_standard_error"] = "one probe has no spread; ask for at least 2"
    found.notes["jacobian"] = {
        "probes": "every direction, so exact" if exact else effort.probes,
        "examples": chain.states[-1].examples,
        **end(chain, effort),
    }
    return found


def end(chain: Chain, effort: Effort) -> dict[str, Any]:
    """For the notes: the state that Jacobians lead to, and why it is not the one asked for."""
    if effort.until is None or effort.until <= len(chain):
        return {"until": len(chain)}
    why = f"{effort.until} was asked for, and the last state is {len(chain)}"
    return {"until": len(chain), "until_note": why}


def sizes(chain: Chain, effort: Effort) -> FloatArray:
    """``|J_(k->D)^T u|^2 / n_D`` summed over examples and divided by their number, for every probe
    and state: ``(P, D + 1)``. With more probes than numbers at the output, one row: exact."""
    last, top = len(chain), chain.states[-1]
    count = top.value.numel()
    if effort.probes > count:
        probes = torch.eye(count, dtype=chain.dtype).reshape(count, *top.shape).to(chain.device)
    else:
        generator = torch.Generator("cpu").manual_seed(effort.seed)
        signs = torch.randint(0, 2, (effort.probes, *top.shape), generator=generator)
        probes = (2 * signs - 1).to(chain.device, chain.dtype)
    out = np.full((len(probes), last + 1), float(effort.probes <= count) or 1 / count)
    numbers = sum(state.value.numel() for state in chain.states)
    at_once = max(1, _AT_ONCE // numbers)
    if numbers <= _AT_ONCE:
        for start in range(0, len(probes), at_once):
            effort.check(0, last)
            part = probes[start : start + at_once]
            for k, g in enumerate(_all(chain, part)):
                out[start : start + at_once, k] = _squares(g) / count
    else:
        g = probes
        for k in range(last, 0, -1):
            effort.check(last - k, last)
            g = chain.pull(k, k - 1, g)
            out[:, k - 1] = _squares(g) / count
    return out.sum(0, keepdims=True) if effort.probes > count else out


def _all(chain: Chain, probes: Tensor) -> list[Tensor]:
    """What probes at the last state become at every earlier one, in one batched pass."""
    edges = [state.edge for state in chain.states]
    found = batched_vjp(edges[-1:], edges[:-1], probes)
    return [probes.new_zeros(len(probes), 1) if g is None else g for g in found]


def _squares(g: Tensor) -> FloatArray:
    norms = torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64)
    squares: FloatArray = norms.square().cpu().numpy()
    return squares
