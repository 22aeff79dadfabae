"""What stiffness costs, and whether it tells networks that train from those that do not.

The networks: residual MLPs with no norm, pre-, post- and sandwich norm, by chance over activation,
initialisation, branch scale, depth and width, trained with SGD and momentum 0.9 at three learning
rates. Trained: held-out accuracy over 0.8. The predictors are taken before training.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import depthgauge as dg
from benchmarks.harness import publish, table
from depthgauge.instruments.stiffness import curvature

NETWORKS, RATES, STEPS, ROUNDS = 70, (0.03, 0.1, 0.3), 80, 5
CLASSES, FEATURES = 10, 32
NORMS = {
    "none": "h + a * W2({act}(W1(h)))",
    "pre": "h + a * W2({act}(W1(rmsnorm(h))))",
    "post": "layernorm(h + a * W2({act}(W1(h))))",
    "sandwich": "h + a * rmsnorm(W2({act}(W1(rmsnorm(h)))))",
}
SCALES = ("1", "0.3", "1/sqrt(L)", "1/L", "scalar(0)")


class Classifier(nn.Module):
    def __init__(self, blocks: nn.Module, width: int) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(FEATURES, width), blocks
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.blocks(self.first(x)))
        return made


def drawn(seed: int) -> tuple[nn.Module, str]:
    """A network by chance, and what it is."""
    pick = random.Random(seed)
    norm, scale = pick.choice(list(NORMS)), pick.choice(SCALES)
    act, init = pick.choice(("relu", "tanh", "gelu")), pick.choice(("he", "lecun", "xavier"))
    depth, width = pick.choice((8, 16, 32, 64)), pick.choice((32, 64))
    equation = NORMS[norm].format(act=act).replace("a *", f"{scale} *")
    torch.manual_seed(seed)
    network = dg.Network(equation, depth=depth, width=width, init=init)
    return Classifier(network.module(seed), width), f"{equation}, {init}, {depth} x {width}"


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noisy prototypes, bent once, so that a linear model does not do."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 4, FEATURES, generator=generator)
    labels = torch.randint(0, CLASSES, (2000,), generator=generator)
    which = torch.randint(0, 4, (2000,), generator=generator)
    x = centres[labels, which] + 0.5 * torch.randn(2000, FEATURES, generator=generator)
    return x, labels


def accuracy(model: nn.Module, lr: float, x: Tensor, y: Tensor) -> float:
    """On 500 held out, after training in place."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        at = torch.randint(0, 1500, (128,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[at]), y[at])
        if not math.isfinite(loss.item()):
            return 0.0
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        return float((model(x[1500:]).argmax(1) == y[1500:]).float().mean())


def auroc(scores: Sequence[float], trained: Sequence[bool]) -> float:
    """The chance that one that trained scores above one that did not; ties are one half."""
    yes = [s for s, t in zip(scores, trained, strict=True) if t]
    no = [s for s, t in zip(scores, trained, strict=True) if not t]
    return statistics.mean((a > b) + 0.5 * (a == b) for a in yes for b in no) if yes and no else 0.5


def rated(ratio: float) -> float:
    """In decades under the limit, the higher the better."""
    return -math.log10(max(ratio, 1e-30)) if math.isfinite(ratio) else -99.0


def separation() -> str:
    x, y = data()
    some, labels = x[:128], y[:128]
    rows: list[dict[str, float]] = []
    for seed in range(NETWORKS):
        model, _ = drawn(seed)
        state = {k: v.clone() for k, v in model.state_dict().items()}
        profile = dg.measure(model, some, lambda out: F.cross_entropy(out, labels))
        found = profile.summary()
        for lr in RATES:
            stiff = curvature(
                model,
                some,
                lambda out: F.cross_entropy(out, labels),
                lr=lr,
                optimizer="momentum",
                steps=3,
            )
            model.load_state_dict(state)
            good = accuracy(model, lr, x, y) > 0.8
            model.load_state_dict(state)
            ratio = abs(math.log10(max(float(found["gradient_ratio"][0]), 1e-30)))
            rows.append(
                {
                    "gradient ratio of the stream": -ratio,
                    "forward drift": -math.log10(max(float(found["forward_drift"][0]), 1.0)),
                    "gradient norm": -math.log10(max(stiff["step 0"]["gradient_norm"], 1e-30)),
                    "lr x curvature / limit, step 0": rated(stiff["step 0"]["ratio"]),
                    "lr x curvature / limit, larger of step 0 and after 3": rated(stiff["ratio"]),
                    "lr alone": -math.log10(lr),
                    "trained": float(good),
                }
            )
    trained = [row["trained"] > 0 for row in rows]
    names = [name for name in rows[0] if name != "trained"]
    parts = [list(range(len(rows)))]
    parts += [list(range(i, len(rows), len(RATES))) for i in range(len(RATES))]
    scored = [
        [name]
        + [f"{auroc([rows[i][name] for i in at], [trained[i] for i in at]):.2f}" for at in parts]
        for name in names
    ]
    top = [row["lr x curvature / limit, larger of step 0 and after 3"] for row in rows]
    by_margin = []
    bands = {"over 0.3": (0.3, 999.0), "within 0.3": (-0.3, 0.3), "under -0.3": (-999.0, -0.3)}
    for word, (low, high) in bands.items():
        of = [t for m, t in zip(top, trained, strict=True) if low < m <= high]
        by_margin.append([word, len(of), f"{100 * statistics.mean(of):.0f}" if of else "-"])
    return "\n\n".join(
        [
            f"{NETWORKS} networks with a skip, {len(RATES)} learning rates: {len(rows)} runs of "
            f"{STEPS} steps, of which {100 * statistics.mean(trained):.0f} per cent trained.",
            table(["AUROC for trained", "all", *(f"lr {lr:g}" for lr in RATES)], scored),
            table(["margin in decades", "runs", "per cent trained"], by_margin),
        ]
    )


def seconds(call: Callable[[], object]) -> list[float]:
    call()
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def cost() -> str:
    """Against one forward and backward pass of the same network."""
    torch.set_num_threads(1)
    rows = []
    for depth, width in ((12, 64), (96, 64)):
        network = dg.Network("h + W2(relu(W1(rmsnorm(h))))", depth=depth, width=width)
        model, batch = network.module(0), torch.randn(128, width)

        def loss(out: Tensor) -> Tensor:
            return out.square().mean()

        def bare(model: nn.Module = model, batch: Tensor = batch) -> None:
            torch.autograd.grad(loss(model(batch)), list(model.parameters()))

        plain = seconds(bare)
        for optimizer in ("momentum", "adam"):
            lr = {"momentum": 0.1, "adam": 1e-3}[optimizer]

            def look(
                model: nn.Module = model,
                batch: Tensor = batch,
                lr: float = lr,
                optimizer: str = optimizer,
            ) -> dict[str, object]:
                return curvature(model, batch, loss, lr=lr, optimizer=optimizer)

            taken, found = seconds(look), look()
            rows.append(
                [
                    f"{depth} x {width}",
                    optimizer,
                    f"{statistics.median(taken):.2f} [{min(taken):.2f}, {max(taken):.2f}]",
                    f"{statistics.median(taken) / statistics.median(plain):.0f}",
                    found["converged"],
                ]
            )
    head = ["blocks x width", "optimizer", "seconds", "of one pass", "converged"]
    return table(head, rows)


def main() -> int:
    publish("stiffness", "Stiffness", [cost(), separation()], ROUNDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
