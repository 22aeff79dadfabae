"""How stiff a problem an optimiser can take: its stability limit on a quadratic, by name.

On a quadratic with curvature ``lam`` (an eigenvalue of the Hessian H, or for Adam of
``P^-1/2 H P^-1/2``) the iterates stay bounded while ``lr * lam < limit``:

    sgd        2
    momentum   2 (1 + mu)                          heavy ball, v = mu v + g, w - lr v
    nesterov   2 (1 + mu) / (1 + 2 mu)             v = mu v + g, w - lr (g + mu v)
    adam       2 (1 + beta1) / (1 - beta1)         P held fixed; 38 for beta1 = 0.9
    adamw      (2 - lr wd) (1 + beta1) / (1 - beta1)

The first three: Cohen et al., arXiv 2103.00065; Adam: Cohen et al., arXiv 2207.14484. That of AdamW
is the same calculation with the decay on the weights alone: the smallest ``lr lam`` at which -1 is
an eigenvalue of one step of ``m' = beta1 m + (1 - beta1) lam w``, ``w' = (1 - lr wd) w - lr m'``.

**Weight decay** of sgd, momentum, nesterov and adam is a part of the gradient: it adds ``wd`` to
every eigenvalue of H. That of adamw is none of the loss and lowers the limit instead.

**P** is ``sqrt(v_hat) + eps`` as the next step would use it, ``v_hat`` with its bias corrected: at
step 0 from one gradient, so ``|g| + eps``. A parameter whose ``v_hat`` is exactly 0 has not moved
and does not move, and is left out. The bias correction of the mean, gone after some 1/(1 - beta1)
steps, is left out too.

**Groups** that differ, and parameters that the optimiser leaves alone: with ``S = diag(lr_i /
limit_i)``, 0 where nothing moves, W the decay and ``M = S^1/2 P^-1/2 (H + W) P^-1/2 S^1/2`` the
iterates stay bounded while the largest eigenvalue of M is below 1. At the limit every step turns
the sign of ``w``, which for one parameter is ``lr_i ((H + W) w)_i = limit_i P_i w_i``, whatever the
others' rates and momenta are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from depthgauge.errors import SpecificationError, nearest

__all__ = ["FORMULAS", "Rule", "Rules", "rule_of", "rules_of"]

#: By name: the limit in words.
FORMULAS: Final = {
    "sgd": "2",
    "momentum": "2 (1 + momentum)",
    "nesterov": "2 (1 + momentum) / (1 + 2 momentum)",
    "adam": "2 (1 + beta1) / (1 - beta1)",
    "adamw": "(2 - lr weight_decay) (1 + beta1) / (1 - beta1)",
}


@dataclass(frozen=True)
class Rule:
    """An optimiser with its numbers, of which it uses those that it has. ``momentum`` is that of
    momentum and nesterov; sgd has none. Raises SpecificationError."""

    name: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in FORMULAS:
            raise SpecificationError(
                f"optimizer is {self.name!r}, expected one of {', '.join(FORMULAS)}"
                f"{nearest(str(self.name), FORMULAS)}"
            )
        for name, value, below in (
            ("lr", self.lr, float("inf")),
            ("momentum", self.momentum, 1.0),
            *(("betas", beta, 1.0) for beta in self.betas),
            ("eps", self.eps, float("inf")),
            ("weight_decay", self.weight_decay, float("inf")),
        ):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and 0 <= value < below):
                end = "" if below > 1 else " and below 1"
                raise SpecificationError(
                    f"{name} is {value!r}, expected a finite number of at least 0{end}"
                )

    @property
    def adaptive(self) -> bool:
        return self.name in ("adam", "adamw")

    @property
    def limit(self) -> float:
        """Of ``lr * curvature``."""
        mu, beta = self.momentum, self.betas[0]
        return {
            "sgd": 2.0,
            "momentum": 2 * (1 + mu),
            "nesterov": 2 * (1 + mu) / (1 + 2 * mu),
            "adam": 2 * (1 + beta) / (1 - beta),
            "adamw": (2 - self.lr * self.weight_decay) * (1 + beta) / (1 - beta),
        }[self.name]

    @property
    def coupled(self) -> float:
        """What weight decay adds to every eigenvalue of the Hessian."""
        return 0.0 if self.name == "adamw" else self.weight_decay

    def made(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """PyTorch's optimiser of this name."""
        return self.kind([{"params": list(parameters), **self.options}])

    @property
    def kind(self) -> Callable[[list[dict[str, Any]]], Optimizer]:
        """PyTorch's class, which makes an optimiser of groups."""
        if self.adaptive:
            return torch.optim.AdamW if self.name == "adamw" else torch.optim.Adam
        return torch.optim.SGD

    @property
    def options(self) -> dict[str, Any]:
        """What a group of that class is given."""
        lr, decay = self.lr, self.weight_decay
        if self.adaptive:
            return {"lr": lr, "betas": self.betas, "eps": self.eps, "weight_decay": decay}
        momentum = 0.0 if self.name == "sgd" else self.momentum
        nesterov = self.name == "nesterov" and self.momentum > 0
        return {"lr": lr, "momentum": momentum, "weight_decay": decay, "nesterov": nesterov}

    def preconditioner(self, p: Tensor, g: Tensor, state: Mapping[str, Any]) -> Tensor:
        """``P^-1/2`` of the next step of one parameter, 0 where ``v_hat`` is; ``state``: what the
        optimiser holds of the steps before, nothing at step 0."""
        beta = self.betas[1]
        before = state.get("exp_avg_sq", torch.zeros_like(p))
        steps = int(state.get("step", 0)) + 1
        square = (g + self.coupled * p.detach()).square()
        v_hat = before.lerp(square, 1 - beta) / (1 - beta**steps)
        return torch.where(v_hat > 0, (v_hat.sqrt() + self.eps).rsqrt(), 0.0)


@dataclass(frozen=True)
class Rules:
    """The rule of each trainable parameter, in the model's order; None for one that the optimiser
    leaves as it is."""

    each: tuple[Rule | None, ...]

    @classmethod
    def same(cls, rule: Rule, count: int) -> Rules:
        return cls((rule,) * count)

    @property
    def one(self) -> Rule | None:
        """The rule of all parameters, None where they differ."""
        return self.each[0] if len(set(self.each)) == 1 else None

    @property
    def groups(self) -> dict[Rule, list[int]]:
        """The places of the parameters that move, by rule."""
        found: dict[Rule, list[int]] = {}
        for place, rule in enumerate(self.each):
            if rule is not None:
                found.setdefault(rule, []).append(place)
        return found

    @property
    def adaptive(self) -> bool:
        return any(rule.adaptive for rule in self.groups)

    def made(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        """PyTorch's optimiser with a group for each rule."""
        groups = self.groups
        first = next(iter(groups))
        return first.kind(
            [
                {"params": [parameters[place] for place in places], **rule.options}
                for rule, places in groups.items()
            ]
        )


def rules_of(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Rules:
    """The rules of one of PyTorch's optimisers for these parameters, the model's own.

    Raises SpecificationError for one whose limit is not known.
    """
    of: dict[int, Rule] = {}
    for group in optimizer.param_groups:
        rule = _rule_of(type(optimizer), group)
        of |= {id(p): rule for p in group["params"]}
    return Rules(tuple(of.get(id(p)) for p in parameters))


def rule_of(optimizer: Optimizer) -> Rule:
    """The rule of an optimiser of one group. Raises SpecificationError."""
    (group,) = optimizer.param_groups
    return _rule_of(type(optimizer), group)


def _rule_of(kind: type[Optimizer], group: Mapping[str, Any]) -> Rule:
    decay, lr = float(group.get("weight_decay", 0.0)), float(group["lr"])
    if group.get("maximize") or group.get("amsgrad") or group.get("dampening"):
        word = next(w for w in ("maximize", "amsgrad", "dampening") if group.get(w))
        raise SpecificationError(f"the stability limit of {kind.__name__} with {word} is not known")
    if kind is torch.optim.SGD:
        momentum = float(group["momentum"])
        name = "nesterov" if group["nesterov"] else "momentum" if momentum else "sgd"
        return Rule(name, lr, momentum, weight_decay=decay)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = kind is torch.optim.AdamW or group.get("decoupled_weight_decay", False)
        name = "adamw" if decoupled else "adam"
        betas = (float(group["betas"][0]), float(group["betas"][1]))
        return Rule(name, lr, 0.0, betas, float(group["eps"]), decay)
    raise SpecificationError(
        f"the stability limit of {kind.__name__} is not known; known are those of SGD with and "
        f"without (Nesterov's) momentum, Adam and AdamW"
    )
