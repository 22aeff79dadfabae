"""Log singular values of 96 blocks of width 64 against ``jacrev`` and ``svd``; K cotangents against
K backward passes; the whole spectrum of 10,000 blocks."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import subprocess
import sys
import time
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.harness import by_turns, clocked, median, publish, ratio, table

ROUNDS, WIDTH, DEPTH, PROBES = 9, 64, 96, 16
NETWORKS = {
    "residual, tanh, a = 1/sqrt(L)": "h + W2(tanh(W1(h)))/sqrt(L)",
    "plain tanh": "tanh(W(h))",
}
DEEP = (1_000, 10_000)
#: Digits of the reference's arithmetic: the plain product spans 160 decades.
DIGITS = 260


@lru_cache(4)
def subject(equation: str) -> Any:
    import torch

    import depthgauge as dg
    from depthgauge.subjects import subject_of

    torch.set_num_threads(1)
    network = dg.Network(equation, DEPTH, WIDTH)
    return subject_of(network, 0, 8, tuple(range(DEPTH + 1)), torch.device("cpu"))


def ours(equation: str, examples: int) -> Any:
    from depthgauge.instruments.spectra import spectra
    from depthgauge.instruments.subject import Effort

    with np.errstate(all="ignore"):
        found = spectra(subject(equation), Effort(examples=examples, sites=1))
    return found.vectors["log_singular_values"][0]


def jacrev(equation: str, examples: int) -> Any:
    """One example after the other."""
    import torch

    given = subject(equation)
    logs = [
        torch.linalg.svdvals(torch.func.jacrev(lambda h: given.model(h[None])[0])(x)).log()
        for x in given.batch[:examples]
    ]
    return torch.stack(logs).mean(0).detach().numpy()


def vmapped(equation: str, examples: int) -> Any:
    """All examples at once."""
    import torch

    given = subject(equation)
    each = torch.func.vmap(torch.func.jacrev(lambda h: given.model(h[None])[0]))
    return torch.linalg.svdvals(each(given.batch[:examples])).log().mean(0).detach().numpy()


def batched(equation: str) -> None:
    from depthgauge.instruments.jacobians import apjn
    from depthgauge.instruments.subject import Effort

    apjn(subject(equation), Effort(probes=PROBES))


def one_by_one(equation: str, cotangents: int = PROBES) -> None:
    """A forward pass, then so many backward passes that keep every state's gradient."""
    import torch

    with subject(equation).chain() as chain:
        top = chain.states[-1]
        for _ in range(cotangents):
            u = torch.randint(0, 2, top.shape).to(chain.dtype) * 2 - 1
            found = torch.autograd.grad(
                [top.edge], [s.edge for s in chain.states[:-1]], [u], retain_graph=True
            )
            for g in found:
                g.square().sum().item()


def reference(equation: str) -> list[float]:
    """The product of the blocks' Jacobians and its values, in arithmetic of ``DIGITS`` digits."""
    import mpmath
    import torch

    given, whole = subject(equation), None
    with mpmath.workdps(DIGITS):
        h = given.batch[0]
        for block in given.model.blocks:
            j = torch.func.jacrev(lambda h, block=block: block(h[None])[0])(h).detach()
            factor = mpmath.matrix(j.tolist())
            whole = factor if whole is None else factor * whole
            h = block(h[None])[0].detach()
        values = mpmath.svd_r(whole, compute_uv=False)
        return sorted((float(mpmath.log(v)) for v in values), reverse=True)


def others(equation: str) -> float:
    """Largest error over all 8 examples, each alone, against a QR decomposition at every block."""
    import torch

    from depthgauge.instruments.spectra import spectra
    from depthgauge.instruments.spectrum import GradedProducts
    from depthgauge.instruments.subject import Effort

    given, jacobians = subject(equation), []
    h = given.batch
    for block in given.model.blocks:
        own = torch.func.jacrev(lambda row, block=block: block(row[None])[0])
        jacobians.append(torch.func.vmap(own)(h).detach().numpy())
        h = block(h).detach()
    products = GradedProducts.identity(len(h), WIDTH)
    for jacobian in reversed(jacobians):
        products = products.times(jacobian.swapaxes(1, 2) @ products.u)
    errors = []
    for i, wanted in enumerate(products.log_singular_values()):
        alone = dataclasses.replace(given, few=lambda _, i=i: given.batch[i : i + 1])
        found = spectra(alone, Effort(examples=1, sites=1)).vectors["log_singular_values"][0]
        errors.append(np.abs(found - wanted).max())
    return float(max(errors))


def deep(depth: int) -> dict[str, float]:
    import torch

    import depthgauge as dg

    torch.set_num_threads(2)
    start = time.perf_counter()
    profile = dg.measure(
        "h + W2(relu(W1(h)))/sqrt(L)",
        depth=depth,
        width=WIDTH,
        batch=8,
        instruments="spectrum",
        effort=dg.Effort(examples=1),
    )
    seconds = time.perf_counter() - start
    logs = profile.vectors["log_singular_values"][0][0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    spans = (logs[0] - logs[-1]) / math.log(10)
    return {"seconds": seconds, "peak": peak, "decades": spans, "numbers": len(logs)}


def in_a_process(depth: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.bench_spectrum", str(depth)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    if len(sys.argv) > 1:
        print(json.dumps(deep(int(sys.argv[1]))))
        return 0
    speed, accuracy, probing = [], [], []
    for name, equation in NETWORKS.items():
        for examples in (1, 8):
            jobs = {job.__name__: (job, (equation, examples)) for job in (ours, jacrev, vmapped)}
            found, used = clocked(jobs, ROUNDS)
            speed.append(
                [
                    name,
                    examples,
                    f"{1e3 * median(found['ours']):.1f}",
                    f"{1e3 * median(found['jacrev']):.1f}",
                    ratio(found["ours"], found["jacrev"]),
                    ratio(used["ours"], used["jacrev"]),
                    ratio(found["ours"], found["vmapped"]),
                ]
            )
        wanted = np.array(reference(equation))
        with np.errstate(all="ignore"):
            errors = [np.abs(job(equation, 1) - wanted) for job in (ours, jacrev)]
        right = int((errors[1] < 1e-6).sum())
        decades = (wanted[0] - wanted[-1]) / math.log(10)
        accuracy.append(
            [
                name,
                f"{decades:.1f}",
                f"{errors[0].max():.1e}",
                f"{others(equation):.1e}",
                f"{errors[1].max():.1e}",
                right,
            ]
        )
        found = by_turns(
            {"batched": (batched, (equation,)), "single": (one_by_one, (equation,))}, ROUNDS
        )
        probing.append([name, PROBES, ratio(found["batched"], found["single"])])
    rows = []
    for depth in DEEP:
        runs = [in_a_process(depth) for _ in range(3)]
        seconds = sorted(run["seconds"] for run in runs)
        rows.append(
            [
                f"{depth:,}",
                f"{seconds[1]:.1f} [{seconds[0]:.1f}, {seconds[-1]:.1f}]",
                f"{runs[0]['decades']:.1f}",
                f"{max(run['peak'] for run in runs):.0f}",
            ]
        )
    publish(
        "spectrum",
        "Spectra of long products",
        [
            f"Log singular values of {DEPTH} blocks of width {WIDTH} from end to end, float64, one "
            f"thread: `instruments='spectrum'` against `torch.func.jacrev` and `svdvals`, example "
            f"by example and vmapped over examples. Every time has the forward pass in it and the "
            f"blocks' Jacobians, which neither side is given.",
            table(
                [
                    "network",
                    "examples",
                    "ms",
                    "jacrev + svd ms",
                    "ratio",
                    "of processor time",
                    "to vmapped",
                ],
                speed,
            ),
            f"Largest error of a natural logarithm against the product in arithmetic of {DIGITS} "
            f"digits (mpmath), one example, and of 8 against a QR decomposition at every block; "
            f"how many of svd's {WIDTH} values are right to 1e-6.",
            table(
                ["network", "decades", "depthgauge", "of 8", "jacrev + svd", "right of svd's"],
                accuracy,
            ),
            "Averaged Jacobian norms of every block from all cotangents at once against a backward "
            "pass for each cotangent, 8 examples, with the forward pass.",
            table(["network", "cotangents", "ratio"], probing),
            f"All {WIDTH} logarithms of `h + W2(relu(W1(h)))/sqrt(L)` from end to end and at 11 "
            f"states between, with the weights' drawing and both rivers' pass, two threads, in a "
            f"process of its own (3 rounds).",
            table(["blocks", "seconds", "decades", "peak MB"], rows),
        ],
        ROUNDS,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
