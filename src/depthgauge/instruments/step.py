"""One step of an optimiser, taken on copies of the parameters: what each would become.

    sgd        w - lr g
    momentum   v = 0.9 v + g, w - lr v: heavy ball; v is 0 before, so the first step is SGD's
    nesterov   the same with w - lr (g + 0.9 v): at the first step 1.9 times SGD's
    adam       w - lr g / (|g| + eps) at the first step, nearly lr sign(g)  (arXiv 1412.6980)
    adamw      the same after w (1 - 0.01 lr): decay apart from the gradient (arXiv 1711.05101)

PyTorch's Adam takes no sparse gradients: for a named one, that of a sparse embedding is made dense.

The arithmetic is PyTorch's own optimiser, in the precision of the parameters, so that an update
below half a unit in the last place of a weight is the zero that training would make of it.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from depthgauge.errors import SpecificationError, nearest
from depthgauge.trace.backward import dense

__all__ = ["OPTIMIZERS", "Factory", "Step", "check", "foreign", "moved", "stepped", "twin_of"]

#: Makes an optimiser of the parameters that it is given.
Factory: TypeAlias = Callable[[list[nn.Parameter]], Optimizer]


def _nesterov(parameters: list[nn.Parameter], lr: float) -> Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True)


#: By name: the default learning rate, and how PyTorch's optimiser of that name is made.
OPTIMIZERS: Final[Mapping[str, tuple[float, Callable[[list[nn.Parameter], float], Optimizer]]]] = {
    "sgd": (0.1, lambda parameters, lr: torch.optim.SGD(parameters, lr=lr)),
    "momentum": (0.1, lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)),
    "nesterov": (0.1, lambda parameters, lr: _nesterov(parameters, lr)),
    "adam": (1e-3, lambda parameters, lr: torch.optim.Adam(parameters, lr=lr)),
    "adamw": (1e-3, lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr)),
}
_LARGEST: Final = torch.finfo(torch.float32).max
#: Of an optimiser, what would act on the user's objects if a copy carried it.
_HOOKS: Final = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


@dataclass(frozen=True)
class Step:
    """Which step is taken.

    ``optimizer``: a name of ``OPTIMIZERS``, the optimiser of a training run (a copy of it steps,
    with its state and its rates), or a function that makes one of the parameters that it is given.
    ``lr``: of a named one; None for its default. Raises SpecificationError.
    """

    optimizer: str | Optimizer | Factory = "sgd"
    lr: float | None = None

    def __post_init__(self) -> None:
        chosen, lr = self.optimizer, self.lr
        if isinstance(chosen, str) and chosen not in OPTIMIZERS:
            raise SpecificationError(
                f"optimizer is '{chosen}', expected one of {', '.join(OPTIMIZERS)}, a "
                f"torch.optim.Optimizer or a function of the parameters that makes one"
                f"{nearest(chosen, OPTIMIZERS)}"
            )
        if not isinstance(chosen, str | Optimizer) and not callable(chosen):
            raise SpecificationError(
                f"optimizer is of type {type(chosen).__name__}, expected one of "
                f"{', '.join(OPTIMIZERS)}, a torch.optim.Optimizer or a function of the "
                f"parameters that makes one"
            )
        if lr is not None and not isinstance(chosen, str):
            raise SpecificationError(
                "lr stands beside an optimizer that has its own; leave it out, or name the "
                "optimizer"
            )
        number = isinstance(lr, int | float) and not isinstance(lr, bool)
        if lr is not None and not (number and 0 <= lr < float("inf")):
            raise SpecificationError(f"lr is {lr!r}, expected a finite number of at least 0")
        if lr is not None and lr > _LARGEST:
            raise SpecificationError(f"lr is {lr!r}, which float32 cannot hold; give a smaller one")

    @property
    def rate(self) -> float:
        """The learning rate of a named optimiser; NaN of one that has its own."""
        if self.lr is not None or not isinstance(self.optimizer, str):
            return math.nan if self.lr is None else self.lr
        return OPTIMIZERS[self.optimizer][0]

    def made(self, parameters: list[nn.Parameter]) -> Optimizer:
        """A new optimiser of these parameters, where none was given."""
        assert not isinstance(self.optimizer, Optimizer)
        if isinstance(self.optimizer, str):
            default, make = OPTIMIZERS[self.optimizer]
            return make(parameters, default if self.lr is None else self.lr)
        made = self.optimizer(parameters)
        if not isinstance(made, Optimizer):
            raise SpecificationError(
                f"the function given as optimizer returned {type(made).__name__}, expected a "
                f"torch.optim.Optimizer of the parameters that it was given"
            )
        return made


@dataclass(frozen=True)
class Stepped:
    """New values of the parameters that the optimiser moves, by name; why others stay; its name
    and its learning rates, each once; whose sparse gradients were made dense; how many parameters
    it holds that are none of these."""

    values: dict[str, Tensor]
    stay: dict[str, str]
    optimizer: str
    lr: list[float]
    dense: list[str] = field(default_factory=list)
    foreign: int = 0


def check(step: Step, parameters: Mapping[str, nn.Parameter]) -> str:
    """``""``, or why the optimiser given cannot step these parameters."""
    if not isinstance(step.optimizer, Optimizer):
        return ""
    own = {id(p) for p in parameters.values()}
    bound = [p for group in step.optimizer.param_groups for p in group["params"]]
    if any(id(p) in own for p in bound):  # others may be a loss's
        return ""
    return (
        f"the optimizer given holds {len(bound)} parameters and none of this model's; make it of "
        f"model.parameters() of the very model that is measured, or give a function such as "
        f"lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
    )


def foreign(step: Step, parameters: Mapping[str, nn.Parameter]) -> int:
    """How many parameters the optimiser given holds that are none of these: they do not move."""
    return _foreign(step.optimizer, parameters) if isinstance(step.optimizer, Optimizer) else 0


def _foreign(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> int:
    own = {id(p) for p in parameters.values()}
    return sum(id(p) not in own for group in optimizer.param_groups for p in group["params"])


def stepped(
    step: Step, parameters: Mapping[str, nn.Parameter], gradients: Mapping[str, Tensor | None]
) -> Stepped:
    """What one step makes of the parameters; neither they nor the user's optimiser are touched.

    Raises SpecificationError where the optimiser belongs to another model or needs more than one
    gradient.
    """
    if why := check(step, parameters):
        raise SpecificationError(why)
    copies = _copies(parameters)
    sparse = [name for name, g in gradients.items() if g is not None and g.layout != torch.strided]
    made_dense = sparse if step.optimizer in ("adam", "adamw") else []
    for name, copied in copies.items():
        g = gradients.get(name)
        copied.grad = dense(g) if g is not None and name in made_dense else g
    if isinstance(step.optimizer, Optimizer):
        twins = {id(p): copies[name] for name, p in parameters.items()}
        optimizer = twin_of(step.optimizer, twins)
    else:
        optimizer = step.made([p for p in copies.values() if p.requires_grad])
        made = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(p) in made for p in copies.values()):
            raise SpecificationError(
                "the optimizer that the function made holds none of the parameters that it was "
                "given; make it of those, such as lambda parameters: torch.optim.SGD(parameters)"
            )
    name_of = {id(copied): name for name, copied in copies.items()}
    groups = optimizer.param_groups
    rates = {
        name_of.get(id(p), ""): float(g["lr"]) for g in groups for p in g["params"] if "lr" in g
    }
    held = {name_of.get(id(p), "") for group in groups for p in group["params"]}
    try:
        with torch.random.fork_rng(devices=[]):
            # Not optimizer.step: a scheduler puts a function there that steps the user's own.
            type(optimizer).step(optimizer)
    except Exception as error:
        line = str(error).strip().partition("\n")[0]
        named = f" (that of '{sparse[0]}' is sparse)" if sparse else ""
        raise SpecificationError(
            f"the step of {type(optimizer).__name__} raised {type(error).__name__}: {line}{named}; "
            f"give an optimizer whose step() takes these gradients and needs no closure"
        ) from error
    stay = {name: _why_not(p, gradients.get(name), name in held) for name, p in parameters.items()}
    values = {name: copies[name].detach() for name, why in stay.items() if not why}
    return Stepped(
        values,
        {name: why for name, why in stay.items() if why},
        step.optimizer if isinstance(step.optimizer, str) else type(optimizer).__name__,
        sorted(set(rates.values())),
        made_dense,
        _foreign(optimizer, copies),
    )


def _why_not(parameter: nn.Parameter, gradient: Tensor | None, held: bool) -> str:
    """``""``, or why an optimiser leaves a parameter as it is."""
    if not parameter.requires_grad:
        return "frozen: it requires no gradient"
    if gradient is None:
        return "no gradient reaches it"
    return "" if held else "the optimizer does not hold it"


def _copies(parameters: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Copies that share memory with one another where the parameters do."""
    storages: dict[int, torch.UntypedStorage] = {}
    found = {}
    for name, p in parameters.items():
        values = p.detach()
        if type(values) is Tensor and values.layout == torch.strided and values.numel():
            storage = values.untyped_storage()
            if (key := storage.data_ptr()) not in storages:
                storages[key] = storage.clone()  # type: ignore[no-untyped-call]
            place = (values.storage_offset(), values.size(), values.stride())
            values = torch.empty(0, dtype=p.dtype, device=p.device).set_(storages[key], *place)
        else:
            values = values.clone()
        found[name] = nn.Parameter(values, requires_grad=p.requires_grad)
    return found


def twin_of(optimizer: Optimizer, twins: dict[int, nn.Parameter]) -> Optimizer:
    """The same optimiser with a copy of its state, bound to each parameter's twin."""
    memo: dict[int, Any] = dict(twins)
    table = {k: v for k, v in vars(optimizer).items() if k != "step" and k not in _HOOKS}
    twin = object.__new__(type(optimizer))
    try:
        twin.__dict__.update(copy.deepcopy(table, memo))
    except Exception as error:
        raise SpecificationError(
            f"the optimizer given ({type(optimizer).__name__}) cannot be copied: {error}; give a "
            f"function of the parameters that makes one"
        ) from error
    for name in _HOOKS:
        setattr(twin, name, OrderedDict())
    return twin


@contextmanager
def moved(changes: Sequence[tuple[nn.Parameter, Tensor]]) -> Iterator[None]:
    """The parameters hold new values while the block lasts, and then their own again, bit for bit.

    Written in place, behind autograd's back: tied parameters, views of them and losses that read
    them see the step, and no version counter moves.
    """
    before = [(p, p.detach().clone()) for p, _ in changes]
    try:
        for p, values in changes:
            _write(p, values)
        yield
    finally:
        for p, values in before:
            _write(p, values)


def _write(parameter: nn.Parameter, values: Tensor) -> None:
    if parameter.is_inference():
        with torch.inference_mode(), torch.no_grad():
            parameter.copy_(values)
    else:
        parameter.data.copy_(values)
