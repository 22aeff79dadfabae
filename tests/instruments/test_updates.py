"""One optimiser step against a copy of the model that is really stepped."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import depthgauge as dg
from depthgauge.errors import ModelError, SpecificationError
from depthgauge.instruments.step import OPTIMIZERS, Step, moved
from depthgauge.instruments.subject import Branch, Effort, Found, Subject
from depthgauge.instruments.updates import UPDATES, updates
from depthgauge.jsonable import jsonable
from depthgauge.network.chain import Chain, Kept
from depthgauge.network.draws import COTANGENT, draws
from depthgauge.network.spec import Network
from depthgauge.study.scaling import NAMES, of_network, scaling
from depthgauge.subjects import subject_of
from depthgauge.trace.again import chain
from depthgauge.trace.analysis import analyse
from depthgauge.trace.readings import Readings
from depthgauge.trace.running import run


def exact(got: Any, wanted: Any) -> bool:
    return bool(np.allclose(got, wanted, rtol=1e-10, atol=1e-13))


class Block(nn.Module):
    def __init__(self, width: int, hidden: int = 0) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden or width)
        self.down = nn.Linear(hidden or width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.tanh(self.up(x)))
        return out


class Stack(nn.Module):
    """Residual blocks, and ``states`` the slow way."""

    def __init__(self, *blocks: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = head or nn.Identity()

    def states(self, x: Tensor) -> list[Tensor]:
        found = [x]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.states(x)[-1])
        return out


def subject(
    model: nn.Module,
    batch: Any,
    loss: Callable[..., Any] | None,
    branches: Sequence[Branch] = (),
) -> Subject:
    """A Stack by its own states, any other module by its stream."""
    if type(model) is Stack:
        assert loss is not None
        run_again, count = _stacked(model, batch, loss), len(model.blocks) + 1
    else:
        readings = Readings(("rms",), ("rms",), (), False)
        before = run(model, batch, loss, readings)
        places = analyse(before.graph, readings, dict(before.held.parameters)).tracks[0].states
        count = len(places)

        def run_again() -> AbstractContextManager[Chain]:
            return chain(model, batch, loss, places, before)

    return Subject(
        model,
        batch,
        loss,
        range(count),
        lambda model=None, batch=None: run_again(),
        branches=branches,
    )


def _stacked(
    model: Stack, batch: Tensor, loss: Callable[..., Any]
) -> Callable[[], AbstractContextManager[Chain]]:
    @contextmanager
    def again() -> Iterator[Chain]:
        states = model.states(batch.clone().requires_grad_())
        kept = [Kept(get_gradient_edge(h), h.detach(), 0) for h in states]
        output = model.head(states[-1])
        yield Chain(kept, lambda: loss(output), [output.detach()])

    return again


def blocks_as_branches(model: Stack) -> list[Branch]:
    return [
        Branch(
            None, f"blocks.{k}", tuple(f"blocks.{k}.{n}" for n, _ in b.named_parameters()), k + 1
        )
        for k, b in enumerate(model.blocks)
    ]


LABELS = torch.tensor([0, 2, 1, 0, 2])


def cross_entropy(output: Tensor) -> Tensor:
    return F.cross_entropy(output, LABELS)


@pytest.fixture
def model() -> Stack:
    torch.manual_seed(0)
    return Stack(*(Block(6) for _ in range(4)), head=nn.Linear(6, 3)).double()


@pytest.fixture
def batch() -> Tensor:
    return torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def slow(
    model: nn.Module, batch: Tensor, loss: Callable[[Tensor], Tensor], make: Any, only: Any = None
) -> nn.Module:
    """A copy that has been stepped; ``only`` restores every parameter that it does not name."""
    stepped = copy.deepcopy(model)
    optimizer = make(stepped.parameters())
    loss(stepped(batch)).backward()
    optimizer.step()
    if only is not None:
        with torch.no_grad():
            for (name, p), old in zip(stepped.named_parameters(), model.parameters(), strict=True):
                if name not in only:
                    p.copy_(old)
    return stepped


def rms(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def column(found: Found, name: str) -> list[float]:
    return found.columns[name][1]


# ------------------------------------------------------------------------- against real steps


def sgd(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


def test_functional_updates_are_those_of_a_copy_that_is_stepped(
    model: Stack, batch: Tensor
) -> None:
    found = updates(subject(model, batch, cross_entropy), Effort(step=Step("sgd", 0.3)))
    for lr, agrees in ((0.3, True), (0.29, False)):
        after = slow(model, batch, cross_entropy, sgd(lr))
        assert isinstance(after, Stack)
        wanted = [
            rms(b - a) / rms(a)
            for a, b in zip(model.states(batch), after.states(batch), strict=True)
        ]
        got = column(found, "functional_update")
        assert exact(got, wanted) is agrees
        output = rms(after(batch) - model(batch)) / rms(model(batch))
        assert math.isclose(found.notes["updates"]["output"], output, rel_tol=1e-10) is agrees
    losses = found.notes["updates"]["loss"]
    assert losses["before"] == pytest.approx(cross_entropy(model(batch)).item(), rel=1e-12)
    assert losses["after"] < losses["before"]


MAKES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_update_to_weight_of_every_tensor(model: Stack, batch: Tensor, name: str) -> None:
    found = updates(subject(model, batch, cross_entropy), Effort(step=Step(name, 0.02)))
    got = {w["path"]: w["ratio"] for w in found.notes["updates"]["weights"]}
    for other, make in MAKES.items():
        after = dict(slow(model, batch, cross_entropy, make).named_parameters())
        wanted = {n: rms(after[n] - p) / rms(p) for n, p in model.named_parameters()}
        assert got.keys() == wanted.keys()
        alike = exact(list(got.values()), list(wanted.values()))
        # The first step of SGD and of momentum is one.
        same = {name, other} <= {"sgd", "momentum"} or name == other
        assert alike is same


def test_the_share_of_a_branch_is_that_of_a_copy_of_which_it_alone_is_stepped(
    model: Stack, batch: Tensor
) -> None:
    branches = blocks_as_branches(model)
    found = updates(subject(model, batch, cross_entropy, branches), Effort(step=Step("sgd", 0.3)))
    last = model.states(batch)[-1]
    changes = []
    for k, branch in enumerate(branches):
        after = slow(model, batch, cross_entropy, sgd(0.3), branch.parameters)
        assert isinstance(after, Stack)
        changes.append(after.states(batch)[-1] - last)
        assert rms(changes[-1]) / rms(last) == pytest.approx(
            column(found, "branch_update")[k], rel=1e-10
        )
        pair = model.blocks[k].parameters(), after.blocks[k].parameters()
        own = list(zip(*pair, strict=True))
        change = math.sqrt(sum((q - p).square().sum().item() for p, q in own))
        weight = math.sqrt(sum(p.square().sum().item() for p, _ in own))
        assert column(found, "update_to_weight")[k] == pytest.approx(change / weight, rel=1e-10)
    assert found.columns["branch_update"][0] == [1, 2, 3, 4]
    note = found.notes["updates"]["branches"]
    norms = [rms(change) for change in changes]
    assert note["norm_of_sum"] == pytest.approx(rms(torch.stack(changes).sum(0)), rel=1e-10)
    assert note["sum_of_norms"] == pytest.approx(sum(norms), rel=1e-10)
    assert note["root_sum_square"] == pytest.approx(math.hypot(*norms), rel=1e-10)
    assert note["alignment"] == pytest.approx(note["norm_of_sum"] / sum(norms), rel=1e-10)
    names = {name for branch in branches for name in branch.parameters}
    whole = slow(model, batch, cross_entropy, sgd(0.3), names)
    assert isinstance(whole, Stack)
    together = rms(whole.states(batch)[-1] - last)
    assert note["together"] == pytest.approx(together, rel=1e-10)
    assert abs(note["together"] / note["norm_of_sum"] - 1) > 1e-4  # branches act on one another
    small = updates(subject(model, batch, cross_entropy, branches), Effort(step=Step("sgd", 1e-6)))
    little = small.notes["updates"]["branches"]
    assert little["together"] / little["norm_of_sum"] == pytest.approx(1, abs=1e-6)


def test_linear_regression_moves_by_its_kernel() -> None:
    """``y = X W^T``, loss ``|y - t|^2 / 2``: ``dy = -lr X X^T (y - t)``."""
    torch.manual_seed(0)
    x, t = torch.randn(7, 4).double(), torch.randn(7, 3).double()
    model = nn.Sequential(nn.Linear(4, 3, bias=False)).double()

    def loss(y: Tensor) -> Tensor:
        return (y - t).square().sum() / 2

    found = updates(subject(model, x, loss), Effort(step=Step("sgd", 0.05)))
    y = model(x).detach()
    kernel = 0.05 * (x @ x.T) @ (y - t)
    assert found.notes["updates"]["output"] == pytest.approx(rms(kernel) / rms(y), rel=1e-12)
    transposed = 0.05 * x @ (x.T @ x) @ torch.ones(4, 3).double()
    assert found.notes["updates"]["output"] != pytest.approx(rms(transposed) / rms(y), rel=1e-3)


# -------------------------------------------------------------------------------- alignment


class Into(nn.Module):
    """Adds ``W x0`` to the coordinates from ``first`` on, with x0 ones: all branches are alike."""

    def __init__(self, width: int, first: int, count: int) -> None:
        super().__init__()
        self.w = nn.Linear(width, count, bias=False)
        self.first, self.count, self.width = first, count, width
        nn.init.constant_(self.w.weight, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        added = self.w(torch.ones(len(x), self.width, dtype=x.dtype))
        return x + F.pad(added, (self.first, self.width - self.first - self.count))


@pytest.mark.parametrize(
    ("apart", "alignment", "against"), [(False, 1.0, math.sqrt(4)), (True, 1 / math.sqrt(4), 1.0)]
)
def test_identical_branches_align_and_orthogonal_ones_do_not(
    apart: bool, alignment: float, against: float
) -> None:
    width, count = 8, 4
    places = [2 * k if apart else 0 for k in range(count)]
    model = Stack(*(Into(width, first, 2) for first in places)).double()
    batch = torch.randn(3, width).double()
    found = updates(subject(model, batch, lambda y: y.sum(), blocks_as_branches(model)), Effort())
    note = found.notes["updates"]["branches"]
    assert note["alignment"] == pytest.approx(alignment, rel=1e-12)
    assert note["norm_of_sum_to_root_sum_square"] == pytest.approx(against, rel=1e-12)
    rows, values = found.columns["update_alignment"]
    assert rows == [count]
    assert values == pytest.approx([alignment], rel=1e-12)


# ---------------------------------------------------------------------- everything as before


def digest(*things: Any) -> str:
    """A hash of every number and name in them."""
    found = hashlib.sha256()

    def add(thing: Any) -> None:
        if isinstance(thing, Tensor):
            found.update(str((thing.dtype, tuple(thing.shape), thing.requires_grad)).encode())
            found.update(
                thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
            add(thing.grad if thing.is_leaf else None)
        elif isinstance(thing, dict):
            for key, value in thing.items():
                add(id(key) if isinstance(key, Tensor) else str(key))
                add(value)
        elif isinstance(thing, list | tuple):
            for value in thing:
                add(value)
        else:
            found.update(repr(thing).encode())

    add(list(things))
    return found.hexdigest()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return digest(
        list(model.parameters()),
        [p._version for p in model.parameters()],
        [p.data_ptr() for p in model.parameters()],
        list(model.buffers()),
        [m.training for m in model.modules()],
        dict(optimizer.state),
        groups,
        torch.get_rng_state(),
        np.random.get_state()[1],  # type: ignore[index]
    )


@pytest.fixture
def trained() -> tuple[nn.Sequential, torch.optim.Optimizer, Tensor, Any]:
    """A model with buffers, dropout and a frozen part in the middle of a run with a scheduler."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(6), Block(6), nn.Dropout(0.3), Block(6), nn.Linear(6, 3))
    model.get_parameter("1.up.bias").requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    batch = torch.randn(5, 6)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(model(batch)).backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer, batch, scheduler


def test_the_next_step_of_a_run_with_its_optimiser(trained: Any) -> None:
    model, optimizer, batch, _ = trained
    model.eval()  # no dropout, so that the copy draws the same
    before = everything(model, optimizer)
    found = updates(subject(model, batch, cross_entropy), Effort(step=Step(optimizer)))
    assert everything(model, optimizer) == before
    note = found.notes["updates"]
    assert (note["optimizer"], note["lr"]) == ("Adam", pytest.approx(1e-3))
    twin, own = copy.deepcopy((model, optimizer))
    fresh = copy.deepcopy(model)
    for stepped, its in ((twin, own), (fresh, torch.optim.Adam(fresh.parameters(), lr=1e-3))):
        its.zero_grad()
        cross_entropy(stepped(batch)).backward()
        type(its).step(its)
    got = {w["path"]: w["ratio"] for w in note["weights"]}
    for stepped, agrees in ((twin, True), (fresh, False)):  # its moments count
        after = dict(stepped.named_parameters())
        both = [(p.double(), after[n].double()) for n, p in model.named_parameters() if n in got]
        wanted = [rms(q - p) / rms(p) for p, q in both]
        assert np.allclose(list(got.values()), wanted, rtol=1e-4) is agrees
    assert note["not_moved"] == {"1.up.bias": "frozen: it requires no gradient"}


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_all_is_put_back_also_after_an_exception(trained: Any, fails: int) -> None:
    model, optimizer, batch, _ = trained
    model.train()
    calls = 0

    def loss(output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == fails + 1:
            raise ValueError("no more")
        return cross_entropy(output)

    branches = [Branch(None, "1", ("1.up.weight", "1.down.weight"), 1)]
    ready = subject(model, batch, cross_entropy, branches)
    before = everything(model, optimizer)

    @contextmanager
    def again() -> Iterator[Chain]:
        with ready.chain() as states:
            total = states.total
            states.total = lambda: loss_of(total())
            yield states

    def loss_of(value: Tensor) -> Tensor:
        loss(torch.zeros(5, 3))
        return value

    failing = Subject(
        model, batch, cross_entropy, ready.rows, lambda model=None, batch=None: again(),
        branches=branches,
    )  # fmt: skip
    if fails < 2:  # the gradient's pass, the pass of the whole step
        with pytest.raises(ValueError, match="no more"):
            updates(failing, Effort(step=Step(optimizer)))
    else:
        updates(failing, Effort(step=Step(optimizer)))
    assert everything(model, optimizer) == before


def test_the_loss_and_views_see_the_step() -> None:
    """A loss that reads the weights, two parameters in one storage, a weight in two places."""
    torch.manual_seed(0)
    flat = torch.randn(2, 4, 4).double()
    a, b = nn.Linear(4, 4, bias=False).double(), nn.Linear(4, 4, bias=False).double()
    a.weight, b.weight = nn.Parameter(flat[0]), nn.Parameter(flat[1])
    view = flat.view(-1)
    model = nn.Sequential(a, b, a)
    x = torch.randn(3, 4).double()

    def loss(y: Tensor) -> Tensor:
        return y.square().mean() + a.weight.square().sum() + view.sum()

    kept = flat.clone()
    found = updates(subject(model, x, loss), Effort(step=Step("sgd", 0.01)))
    assert torch.equal(flat, kept)
    y = model(x)
    ga, gb = torch.autograd.grad(loss(y), [a.weight, b.weight])
    with moved([(a.weight, a.weight - 0.01 * ga), (b.weight, b.weight - 0.01 * gb)]):
        wanted, after = float(loss(model(x)).detach()), rms(model(x) - y) / rms(y)
        assert not torch.equal(view, kept.view(-1))
    assert found.notes["updates"]["loss"]["after"] == pytest.approx(wanted, rel=1e-12)
    assert found.notes["updates"]["output"] == pytest.approx(after, rel=1e-10)
    assert [w["path"] for w in found.notes["updates"]["weights"]] == ["0.weight", "1.weight"]


def test_parameters_that_share_memory_step_as_they_would() -> None:
    """Two parameters over one tensor: a real optimiser moves it twice."""
    torch.manual_seed(0)
    weight = torch.randn(4, 4).double()
    a, b = nn.Linear(4, 4, bias=False).double(), nn.Linear(4, 4, bias=False).double()
    a.weight, b.weight = nn.Parameter(weight), nn.Parameter(weight)
    model, x = nn.Sequential(a, nn.Tanh(), b), torch.randn(3, 4).double()
    found = updates(subject(model, x, torch.sum), Effort(step=Step("sgd", 0.01)))
    y = model(x)
    gradients = torch.autograd.grad(y.sum(), [a.weight, b.weight])
    with moved([(a.weight, weight - 0.01 * (gradients[0] + gradients[1]))]):
        wanted = rms(model(x) - y) / rms(y)
    assert found.notes["updates"]["output"] == pytest.approx(wanted, rel=1e-10)


def test_a_reentrant_checkpoint_has_gradients_too(batch: Tensor) -> None:
    class Checked(nn.Module):
        def __init__(self, block: Block) -> None:
            super().__init__()
            self.up, self.down = block.up, block.down

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + checkpoint(self._branch, x, use_reentrant=True)
            return out

        def _branch(self, x: Tensor) -> Tensor:
            out: Tensor = self.down(torch.tanh(self.up(x)))
            return out

    torch.manual_seed(0)
    blocks, head = [Block(6).double(), Block(6).double()], nn.Linear(6, 3).double()
    model = nn.Sequential(*map(Checked, blocks), head)
    kept = [p.detach().clone() for p in model.parameters()]
    plain = updates(subject(nn.Sequential(*blocks, head), batch, cross_entropy), Effort())
    found = updates(subject(model, batch, cross_entropy), Effort())
    assert found.notes["updates"]["output"] == pytest.approx(
        plain.notes["updates"]["output"], rel=1e-12
    )
    assert all(torch.equal(p, k) for p, k in zip(model.parameters(), kept, strict=True))
    assert all(p.grad is None for p in model.parameters())


# ------------------------------------------------------------------------- what is said instead


def test_shared_branches_have_shares_and_no_alignment(batch: Tensor) -> None:
    torch.manual_seed(0)
    block = Block(6)
    model = Stack(block, block, head=nn.Linear(6, 3)).double()
    names = tuple(f"blocks.0.{n}" for n, _ in block.named_parameters())
    branches = [Branch(None, "blocks.0", names, k) for k in (1, 2)]
    found = updates(subject(model, batch, cross_entropy, branches), Effort())
    first, second = column(found, "branch_update")
    assert first == second > 0
    assert "branches share parameters" in found.missing["update_alignment"]
    assert "alignment" not in found.notes["updates"]["branches"]


def test_a_weight_of_zeros_has_no_ratio(model: Stack, batch: Tensor) -> None:
    nn.init.zeros_(model.get_parameter("blocks.1.down.weight"))
    found = updates(subject(model, batch, cross_entropy), Effort())
    weights = {w["path"]: w for w in found.notes["updates"]["weights"]}
    zero, other = weights["blocks.1.down.weight"], weights["blocks.0.down.weight"]
    assert zero["update_rms"] > 0
    assert zero["ratio"] == math.inf
    assert "every element of the weight is zero" in zero["ratio_reason"]
    assert "ratio_reason" not in other
    json.dumps(jsonable(found.notes), allow_nan=False)


def test_who_does_not_move_and_why(model: Stack, batch: Tensor) -> None:
    model.register_parameter("unused", nn.Parameter(torch.ones(2).double()))
    model.get_parameter("blocks.0.up.weight").requires_grad_(False)
    left_out = model.get_parameter("blocks.2.down.bias")
    held = [p for p in model.parameters() if p is not left_out]
    step = Step(torch.optim.SGD(held, lr=0.1, weight_decay=0.1))
    assert updates(subject(model, batch, cross_entropy), Effort(step=step)).notes["updates"][
        "not_moved"
    ] == {
        "unused": "no gradient reaches it",
        "blocks.0.up.weight": "frozen: it requires no gradient",
        "blocks.2.down.bias": "the optimizer does not hold it",
    }


def test_a_gradient_that_is_not_a_number_is_a_finding(model: Stack, batch: Tensor) -> None:
    def loss(y: Tensor) -> Tensor:
        return cross_entropy(y) * math.nan

    found = updates(subject(model, batch, loss), Effort())
    assert not found.columns
    assert set(found.missing) == set(UPDATES)
    assert found.missing["functional_update"] == (
        "the gradient of 'blocks.0.up.weight' and 17 more of 18 parameters is not finite"
    )
    assert "not_finite" in found.notes["updates"]


def test_a_module_without_parameters(batch: Tensor) -> None:
    found = updates(subject(nn.Sequential(nn.Tanh(), nn.Tanh()), batch, None), Effort())
    assert found.missing == dict.fromkeys(UPDATES, "the model has no parameters")


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda m: Step(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)),
         "holds 2 parameters and none of this model's; make it of model.parameters()"),
        (lambda m: Step(torch.optim.LBFGS(m.parameters())), "the step of LBFGS raised TypeError"),
        (lambda m: Step(lambda p: "sgd"), "returned str, expected a torch.optim.Optimizer"),  # type: ignore[arg-type, return-value]
        (lambda m: Step("sdg"), "optimizer is 'sdg', expected one of sgd, momentum"),
        (lambda m: Step(3), "optimizer is of type int"),  # type: ignore[arg-type]
        (lambda m: Step("sgd", -1.0), "lr is -1.0, expected a finite number of at least 0"),
        (lambda m: Step("sgd", math.nan), "lr is nan"),
        (lambda m: Step(torch.optim.SGD(m.parameters(), lr=0.1), 0.1), "lr stands beside"),
    ],
)  # fmt: skip
def test_wrong_use(model: Stack, batch: Tensor, step: Any, says: str) -> None:
    with pytest.raises(SpecificationError) as error:
        updates(subject(model, batch, cross_entropy), Effort(step=step(model)))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_wrong_effort() -> None:
    with pytest.raises(SpecificationError, match="step is 'sgd', expected depthgauge"):
        Effort(step="sgd")  # type: ignore[arg-type]
    with pytest.raises(SpecificationError, match="branches is 0"):
        Effort(branches=0)


def test_a_function_makes_the_optimiser(model: Stack, batch: Tensor) -> None:
    ready = subject(model, batch, cross_entropy)
    made = updates(ready, Effort(step=Step(lambda p: torch.optim.SGD(p, lr=0.3))))
    assert made.columns == updates(ready, Effort(step=Step("sgd", 0.3))).columns
    assert made.columns != updates(ready, Effort(step=Step("sgd", 0.2))).columns


def test_some_of_many_branches(model: Stack, batch: Tensor) -> None:
    ready = subject(model, batch, cross_entropy, blocks_as_branches(model))
    found = updates(ready, Effort(branches=2))
    assert found.columns["branch_update"][0] == [1, 4]
    assert found.columns["update_to_weight"][0] == [1, 2, 3, 4]
    note = found.notes["updates"]["branches"]
    assert (note["measured"], note["of"]) == (2, 4)
    every = updates(ready, Effort()).notes["updates"]["branches"]
    assert note["together"] == every["together"]  # all branches, however few are moved alone
    assert note["sum_of_norms"] < 0.75 * every["sum_of_norms"]
    late = updates(ready, Effort(budget=1e-9))
    assert late.columns["functional_update"] == found.columns["functional_update"]
    assert "branch_update" not in late.columns
    assert "after 0 of 4 branches" in late.missing["update_alignment"]


def test_a_model_that_raises_says_so(batch: Tensor) -> None:
    class Brittle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Linear(6, 6).double()
            self.kept = self.w.weight.detach().clone()

        def forward(self, x: Tensor) -> Tensor:
            if not torch.equal(self.w.weight, self.kept):
                raise ValueError("stepped")
            out: Tensor = self.w(x)
            return out

    model = Brittle()
    with pytest.raises(ModelError, match="stepped"):
        updates(subject(model, batch, torch.sum), Effort())
    assert torch.equal(model.w.weight, model.kept)


# ------------------------------------------------------------------------------ in a profile


def test_an_equation_as_its_module_stepped_by_hand() -> None:
    network = Network("h + W2(relu(W1(h)))/sqrt(L)", 5, 8, init={"default": "he"})
    ready = subject_of(network, 3, 4, tuple(range(6)), torch.device("cpu"))
    assert isinstance(ready, Subject)
    found = updates(ready, Effort(step=Step("sgd", 1e-3)))
    model = ready.model
    with ready.chain() as states:
        gradients = torch.autograd.grad(states.total(), list(model.parameters()))
        before = [state.value for state in states.states]
    after = copy.deepcopy(model)
    with torch.no_grad():
        for p, g in zip(after.parameters(), gradients, strict=True):
            p.sub_(1e-3 * g)
    with ready.chain(after) as states:
        wanted = [rms(s.value - h) / rms(h) for s, h in zip(states.states, before, strict=True)]
    assert exact(column(found, "functional_update"), wanted)
    assert len(column(found, "branch_update")) == 5


@pytest.mark.parametrize(
    ("equation", "count"),
    [
        ("h = h + attention(layernorm(h), heads=4); h = h + W2(gelu(W1(layernorm(h))))", 2),
        ("h = layernorm(h + attention(h, heads=4)); h = layernorm(h + W2(gelu(W1(h))))", 2),
        ("h = h + W1(h); h = h + W2(relu(W3(h)))", 2),
        ("h + W1(h) + W2(relu(W3(h)))", 2),
        ("h + scalar(0.3)*W1(h) + gain(0.1)*W2(relu(W3(h))) + W4(tanh(h))/sqrt(L)", 3),
        ("h = h + conv3(relu(batchnorm(h, gain=1))) + conv1(h)", 2),
        # One a block, beside what is none of its own.
        ("h = tanh(W1(h)); h = h + W2(h)", 1),
        ("h = layernorm(h + W2(relu(W1(h))), gain=1, bias=True)", 1),
    ],
)
def test_branches_of_an_equation_are_those_of_its_module(equation: str, count: int) -> None:
    network = Network(equation, 4, 16, size=4 if "conv" in equation else None)
    x = torch.randn(4, *network.state_shape, dtype=torch.float64)
    effort = Effort(step=Step("sgd", 1e-2))
    seeds = (0, 3)
    both = dg.measure(network, x, instruments="updates", effort=effort, seed=seeds)
    for k, seed in enumerate(seeds):
        found = dg.measure(network, x, instruments="updates", effort=effort, seed=seed)
        numbers = draws("keyed", seed).source(COTANGENT, "cotangent").normal(x.numel())
        g = torch.from_numpy(numbers).reshape(x.shape).double()
        g = g / g.square().mean().sqrt()  # the same loss
        module = network.module(seed, torch.float64)
        wanted = dg.measure(
            module, x, lambda y, g=g: (y * g).sum(), instruments="updates", effort=effort
        )
        shares, others = (
            p.settings["instruments"]["updates"]["branches"]  # type: ignore[index]
            for p in (found, wanted)
        )
        each, by_module = ([one["branch_update"] for one in s["each"]] for s in (shares, others))
        assert len(each) == found.branches == 4 * count
        assert each == pytest.approx(by_module, rel=1e-9)
        assert [one["path"] for one in shares["each"]] == [one["path"] for one in others["each"]]
        for name in ("together", "norm_of_sum", "update_to_weight", "alignment"):
            assert shares[name] == pytest.approx(others[name], rel=1e-9), name
        assert found["branch_update"] == pytest.approx(each)
        for name in ("branch_update", "update_to_weight", "update_alignment"):
            assert both[name][k] == pytest.approx(found[name]), name
    if count > 1:
        at = [(site.role, site.path) for site in found.sites_of("branch_update")]
        assert at == [("branch", one["path"]) for one in shares["each"]]
    json.dumps(both.to_dict(), allow_nan=False)


class Lossy(nn.Module):
    """Returns its loss: by name, alone, or beside another of float32."""

    def __init__(self, form: str, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form = form
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to(dtype)

    def forward(self, x: Tensor) -> Any:
        y = self.layers(x)
        loss = y.square().mean()
        forms = {"named": {"loss": loss, "y": y}, "alone": loss, "two": (loss, 2 * loss.float())}
        return forms[self.form]


@pytest.mark.parametrize(("form", "times"), [("named", 1), ("alone", 1), ("two", 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_loss_that_a_model_returns_keeps_its_precision(
    form: str, times: int, dtype: torch.dtype
) -> None:
    model, x = Lossy(form, dtype), torch.randn(5, 4, dtype=dtype)
    lr = 1e-9 if dtype == torch.float64 else 0.5
    found = dg.measure(model, x, instruments="updates", effort=Effort(step=Step("sgd", lr)))
    note = found.settings["instruments"]["updates"]["loss"]  # type: ignore[index]
    whole: Tensor = model.layers(x).square().mean()
    if dtype == torch.bfloat16:
        assert note["before"] == times * whole.item()
        return
    each = torch.autograd.grad(whole, list(model.parameters()))
    squares = sum(g.square().sum().item() for g in each)
    assert note["before"] == pytest.approx(times * whole.item(), rel=1e-7 if times > 1 else 1e-15)
    # The loss of float64 falls by lr g (times g); the other, of float32, sees nothing.
    assert note["before"] - note["after"] == pytest.approx(lr * times * squares, rel=1e-5)


def test_exponents_of_several_branches_a_block() -> None:
    network = Network("h = h + W1(h)/sqrt(L); h = h + W2(relu(W3(h)))/sqrt(L)", 2, 8)
    found = scaling(of_network(network, 4), (2, 4, 8), (0, 1))
    assert set(found.exponents) == set(NAMES)
    assert not found.missing


def test_branches_that_cannot_be_told_apart_have_no_shares() -> None:
    found = dg.measure(
        "x = h; h = h + W1(h); h = x + W(h)", depth=2, width=4, batch=2, instruments="updates"
    )
    assert found.branches == 4
    assert "parameters are known" in found.why_not("branch_update")
    assert {site.role for site in found.sites} == {"state"}


def test_measure_has_them_for_modules_and_equations(model: Stack, batch: Tensor) -> None:
    profile = dg.measure(model, batch, cross_entropy, instruments=["branches", "updates"])
    assert {site.role for site in profile.sites_of("branch_update")} == {"branch"}
    alone = dg.measure(model, batch, cross_entropy, instruments="updates")
    assert {site.role for site in alone.sites_of("branch_update")} == {"branch"}
    for name in UPDATES:
        assert exact(profile[name], alone[name])
    made = dg.measure(
        "h + W2(relu(W1(h)))/sqrt(L)", depth=4, width=8, batch=4, instruments="updates"
    )
    assert all(name in made for name in UPDATES)
    json.dumps(made.to_dict(), allow_nan=False)
    none = dg.measure("W(tanh(h))", depth=4, width=8, batch=4, instruments="updates")
    assert "functional_update" in none
    assert "no residual branch" in none.why_not("branch_update")
