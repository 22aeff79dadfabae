"""Products of the Hessian against the dense one of torch.func, both ways of taking them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from depthgauge.errors import NetworkError
from depthgauge.instruments.hessian import _differences, duplicate, flat, hessian, trainable
from depthgauge.instruments.subject import Run
from depthgauge.network.chain import Chain, twice_differentiable


def runner(loss: Callable[[Tensor], Tensor], batch: Tensor) -> Run:
    """The smallest ``Run``: no states, the loss alone."""

    @contextmanager
    def run(model: nn.Module | None = None, data: Any = None) -> Iterator[Chain]:
        assert model is not None
        with twice_differentiable(), torch.enable_grad():
            output = model(batch if data is None else data)
        yield Chain([], lambda: loss(output))

    return lambda model=None, batch=None: run(model, batch)


def dense(model: nn.Module, batch: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """``(N, N)``, trainable parameters in the model's order, in float64."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]

    def of(vector: Tensor) -> Tensor:
        pieces = vector.split([p.numel() for _, p in named])
        values = {n: x.reshape(p.shape) for x, (n, p) in zip(pieces, named, strict=True)}
        return loss(torch.func.functional_call(model, values, (batch,)))

    with twice_differentiable():
        found = torch.autograd.functional.hessian(of, flat([p for _, p in named]))
    assert isinstance(found, Tensor)
    return found


def targets(output: Tensor) -> Tensor:
    labels = torch.arange(output.shape[:-1].numel()) % output.shape[-1]
    return F.cross_entropy(output.flatten(0, -2), labels)


def mlp(seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.GELU(), nn.Linear(7, 3))
    return model.double(), torch.randn(9, 5, dtype=torch.float64)


def attention() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(4, 2, 6, 0.0, F.gelu, batch_first=True, norm_first=True)
    return layer.double(), torch.randn(2, 3, 4, dtype=torch.float64)


class Hand(torch.autograd.Function):
    """x^3 / 3, whose backward is right once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        cube: Tensor = x**3 / 3
        return cube

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        back: Tensor = g * x**2
        return back


class Once(Hand):
    """The same, and says that it is differentiable once."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        back: Tensor = g * x**2
        return back


class Silent(Hand):
    """The same, and loses its second derivative without a word."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        back: Tensor = g * x.detach() ** 2
        return back


class Cube(nn.Module):
    def __init__(self, function: type[Hand]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(4, 5), nn.Linear(5, 3), function

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.function.apply(self.first(x)))
        return made


def by_hand(function: type[Hand]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(2)
    return Cube(function).double(), torch.randn(6, 4, dtype=torch.float64)


def products(model: nn.Module, batch: Tensor) -> tuple[Tensor, str, str]:
    """The whole matrix by products, and how they were taken."""
    with hessian(runner(targets, batch), model, batch) as h:
        rows = [h.times(v) for v in torch.eye(h.gradient.numel(), dtype=h.gradient.dtype)]
        return torch.stack(rows), h.product, h.reason


@pytest.mark.parametrize("make", [mlp, attention])
def test_products_are_those_of_the_dense_hessian(
    make: Callable[[], tuple[nn.Module, Tensor]],
) -> None:
    model, batch = make()
    found, product, _ = products(model, batch)
    wanted = dense(model, batch, targets)
    assert product == "double backward"
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(found, 1.01 * wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [mlp, attention])
def test_finite_differences_are_double_backward(
    make: Callable[[], tuple[nn.Module, Tensor]],
) -> None:
    model, batch = make()
    wanted = dense(model, batch, targets)
    run = runner(targets, batch)
    found = _differences(run, duplicate(model), batch, "asked")
    rows = torch.stack([found.times(3 * v) / 3 for v in torch.eye(len(wanted)).double()])
    error = (rows - wanted).abs().max() / wanted.abs().max()
    assert error < 1e-7
    assert found.step is not None
    assert 1e-6 < found.step < 1e-3
    rough = _differences(run, duplicate(model).float(), batch.float(), "asked")
    rows = torch.stack([rough.times(v) for v in torch.eye(len(wanted))]).double()
    error = (rows - wanted).abs().max() / wanted.abs().max()
    assert 1e-7 < error < 3e-3


def test_a_function_written_by_hand_is_believed_when_it_is_right() -> None:
    model, batch = by_hand(Hand)
    found, product, _ = products(model, batch)
    assert product == "double backward"
    plain, _ = by_hand(Hand)
    assert torch.allclose(found, dense_of_cube(plain, batch), rtol=1e-10, atol=1e-12)


def dense_of_cube(model: nn.Module, batch: Tensor) -> Tensor:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = model.get_submodule("first"), model.get_submodule("last")

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.last(self.first(x) ** 3 / 3)
            return made

    return dense(Plain(), batch, targets)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (Once, "marked as once differentiable"),
        (Silent, "second derivative of Silent, written by hand"),
    ],
)
def test_without_a_double_backward_gradients_are_subtracted(
    function: type[Hand], reason: str
) -> None:
    model, batch = by_hand(function)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found, product, why = products(model, batch)
    assert product == "finite difference"
    assert reason in why
    assert torch.allclose(found, dense_of_cube(model, batch), rtol=1e-6, atol=1e-8)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_silent_function_alone_would_be_wrong() -> None:
    model, batch = by_hand(Silent)
    rows = []
    for v in torch.eye(sum(p.numel() for p in model.parameters())).double():
        first = torch.autograd.grad(targets(model(batch)), trainable(model), create_graph=True)
        along = torch.cat([g.flatten() for g in first]) @ v
        rows.append(flat(torch.autograd.grad(along, trainable(model), materialize_grads=True)))
    wanted = dense_of_cube(model, batch)
    assert float((torch.stack(rows) - wanted).abs().max()) > 0.01 * float(wanted.abs().max())


def test_a_float32_model_is_copied_to_float64_for_it() -> None:
    model, batch = by_hand(Once)
    wanted = dense_of_cube(model, batch)
    model, batch = model.float(), batch.float()
    found, product, _ = products(model, batch)
    assert product == "finite difference"
    assert found.dtype == torch.float64
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert all(p.dtype == torch.float32 for p in model.parameters())


class Only(nn.Module):
    """Runs in float32 alone, as a fused kernel may."""

    def __init__(self) -> None:
        super().__init__()
        self.cube = Cube(Once)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("kernel wants float32")
        made: Tensor = self.cube(x)
        return made


def test_a_model_of_float32_alone_is_differenced_in_it() -> None:
    torch.manual_seed(2)
    model, batch = Only(), torch.randn(6, 4)
    found, product, why = products(model, batch)
    assert product == "finite difference"
    assert "in float32, since it does not run in float64: kernel wants float32" in why
    wanted = dense_of_cube(duplicate(model.cube).double(), batch.double())
    assert float((found.double() - wanted).abs().max() / wanted.abs().max()) < 1e-2


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()[0]

        def forward(self, x: Tensor) -> Tensor:
            lifted = x + 0 * x.requires_grad_()
            made: Tensor = checkpoint(self.inner, lifted, use_reentrant=reentrant)
            return made

    model, batch = Checked(), mlp()[1]
    found, product, _ = products(model, batch)
    wanted = dense(model.inner, batch, targets)
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-7)
    assert (product == "finite difference") is reentrant


def test_a_loss_that_is_linear_in_the_weights_has_no_curvature() -> None:
    model, batch = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    with hessian(runner(lambda out: out.sum(), batch), model, batch) as h:
        assert float(h.times(torch.ones(8, dtype=torch.float64)).abs().max()) == 0
        assert float(h.gradient.abs().max()) > 0


def test_parameters_that_are_frozen_or_not_used_are_no_part_of_it() -> None:
    model, batch = mlp()
    model.register_module("spare", nn.Linear(2, 2).double())
    run_model = model

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = run_model

        def forward(self, x: Tensor) -> Tensor:
            for name, layer in self.inner.named_children():
                x = x if name == "spare" else layer(x)
            return x

    part = Part()
    part.inner.get_parameter("0.weight").requires_grad_(False)
    found, _, _ = products(part, batch)
    assert len(found) == sum(p.numel() for p in part.parameters()) - 35
    assert float(found[-6:].abs().max()) == 0  # the spare layer
    assert torch.allclose(found, dense(part, batch, targets), rtol=1e-10, atol=1e-12)


def test_a_model_that_cannot_be_copied_says_so() -> None:
    class Uncopied(Cube):
        def __deepcopy__(self, memo: object) -> Uncopied:
            raise TypeError("holds a socket")

    torch.manual_seed(2)
    model, batch = Uncopied(Once), torch.randn(6, 4)
    with (
        pytest.raises(NetworkError, match=r"cannot be copied \(TypeError: holds a socket\)"),
        hessian(runner(targets, batch), model, batch),
    ):
        pass
    model.function = Hand  # then double backward stands, unchecked
    with hessian(runner(targets, batch), model, batch) as h:
        assert h.product == "double backward"
        assert "of Hand, written by hand, was not checked: the model cannot be copied" in h.reason


def test_a_loss_of_no_parameter_is_refused() -> None:
    model, batch = mlp()
    with (
        pytest.raises(NetworkError, match="does not depend on a trainable parameter"),
        hessian(runner(lambda out: out.detach().sum(), batch), model, batch),
    ):
        pass
