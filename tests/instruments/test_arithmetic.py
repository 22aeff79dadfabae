"""Each arithmetic against the same network written out by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.errors import NetworkError, SpecificationError
from depthgauge.instruments.arithmetic import ARITHMETICS, Arithmetic, arithmetic_named, own
from depthgauge.instruments.formats import FORMATS, cast
from depthgauge.trace.inventory import inventory


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 9), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(torch.tanh(self.a(x)))
        return out


def two() -> tuple[Two, Tensor]:
    torch.manual_seed(0)
    return Two(), torch.randn(4, 6)


def ran(arithmetic: Arithmetic, model: nn.Module, batch: Any) -> tuple[Any, list[str]]:
    made, given = arithmetic.prepared(model, inventory(model), batch)
    with arithmetic.around(made) as said:
        out = made(given)
    return out, said


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float16"])
def test_a_cast_is_of_every_parameter(name: str) -> None:
    model, x = two()
    dtype = FORMATS[name].dtype
    assert dtype is not None
    out, said = ran(arithmetic_named(name), model, x)
    a, b = model.a, model.b
    wanted = F.linear(
        torch.tanh(F.linear(x.to(dtype), a.weight.to(dtype), a.bias.to(dtype))),
        b.weight.to(dtype),
        b.bias.to(dtype),
    )
    assert out.dtype == dtype
    assert torch.equal(out, wanted)
    assert said == []
    assert torch.equal(out.float(), model(x)) == (name == "float32")
    assert model.a.weight.dtype == torch.float32


def test_own_is_the_model_itself() -> None:
    model, x = two()
    made, given = own(inventory(model), x).prepared(model, inventory(model), x)
    assert made is model
    assert given is x
    assert own(inventory(model.bfloat16()), x).format.name == "bfloat16"
    assert own(inventory(nn.ReLU()), x.half()).format.name == "float16"
    assert own(inventory(nn.ReLU()), torch.ones(2, dtype=torch.long)).format.name == "float32"


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_autocast_is_pytorchs(name: str) -> None:
    model, x = two()
    out, _ = ran(arithmetic_named(f"autocast-{name}"), model, x)
    with torch.autocast("cpu", dtype=FORMATS[name].dtype):
        assert torch.equal(out, model(x))
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_autocast_of_a_float64_model_is_that_of_its_float32_copy(name: str) -> None:
    model, x = two()
    wide = copy.deepcopy(model).double()
    out, _ = ran(arithmetic_named(f"autocast-{name}"), wide, x.double())
    with torch.autocast("cpu", dtype=FORMATS[name].dtype):
        assert torch.equal(out, model(x))
        assert wide(x.double()).dtype == torch.float64  # which autocast itself leaves alone
    assert next(wide.parameters()).dtype == torch.float64


@pytest.mark.parametrize("name", ["float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("scaling", ["plain", "amax"])
def test_float8_rounds_the_factors_of_products(name: str, scaling: str) -> None:
    model, x = two()
    largest = FORMATS[name].largest

    def rounded(t: Tensor) -> Tensor:
        scale = largest / t.abs().max() if scaling == "amax" else torch.ones(())
        return cast(t * scale, name) / scale

    out, said = ran(arithmetic_named(name, scaling), model, x)
    h = torch.tanh(F.linear(rounded(x), rounded(model.a.weight), model.a.bias))
    assert torch.equal(out, F.linear(rounded(h), rounded(model.b.weight), model.b.bias))
    assert not torch.equal(out, model(x))
    assert said == []
    out.sum().backward()  # straight through
    assert model.a.weight.grad is not None
    assert model.a.weight.grad.isfinite().all()


@pytest.mark.parametrize("name", ["float8_e4m3"])
def test_float8_reaches_every_way_to_write_a_product(name: str) -> None:
    _, x = two()
    w = torch.randn(6, 3)
    wanted = cast(x, name) @ cast(w, name)
    bias = torch.full((3,), 0.3)  # no factor: kept as it is
    with arithmetic_named(name).around(nn.Identity()):
        ways = [
            x @ w,
            torch.matmul(x, other=w),
            torch.einsum("bi,ij->bj", x, w),
            F.linear(x, weight=w.T),
            torch.bmm(x[None], w[None])[0],
            torch.addmm(bias, x, w) - bias,
        ]
    for way in ways:
        assert torch.allclose(way, wanted, atol=1e-6)
        assert not torch.allclose(way, x @ w, atol=1e-3)


def test_what_float8_cannot_open_is_named() -> None:
    torch.manual_seed(0)
    _, said = ran(arithmetic_named("float8_e5m2"), nn.GRU(6, 3), torch.randn(4, 6))
    assert said == ["gru in the model itself ran in the model's own precision"]


class Casts(nn.Module):
    """Casts down and up by itself, makes tensors of its own, draws."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), 1 / 3))
        self.loose = torch.tensor([0.1, 0.2, 0.3])  # no buffer: a cast of the model leaves it

    def forward(self, x: Tensor) -> Tensor:
        square = x.float().pow(2).mean(-1, keepdim=True).to(torch.float32)
        y = (x * torch.rsqrt(square + 1e-6)).to(self.w.dtype)
        room = torch.zeros(3)
        room[1:] = y[0, 1:]
        y = y * self.w + torch.linspace(0, 1, 3, dtype=torch.float32) + room
        return F.softmax(y @ torch.outer(self.loose, y.half()[0]), -1, dtype=torch.float32)


def by_hand(model: Casts, x: Tensor) -> Tensor:
    x, w, loose = x.double(), model.w.double(), model.loose.double()
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    room = y[0].clone()
    room[0] = 0
    y = y * w + torch.tensor([0, 0.5, 1], dtype=torch.float64) + room
    return F.softmax(y @ torch.outer(loose, y[0]), -1)


def test_the_reference_is_float64_throughout() -> None:
    torch.manual_seed(0)
    model, x = Casts(), torch.randn(2, 3)
    out, _ = ran(arithmetic_named("float64"), model, x)
    assert out.dtype == torch.float64
    assert torch.allclose(out, by_hand(model, x), rtol=1e-14, atol=0)
    made, given = arithmetic_named("float64").prepared(model, inventory(model), x)
    with pytest.raises(RuntimeError, match=r"same dtype|expected m"):
        made(given)  # without the mode the double copy does not even run


class Numbers(nn.Module):
    """Reads numbers off its tensors, which is no cast."""

    def forward(self, x: Tensor) -> Tensor:
        return x / float(x.square().mean()) + int(x.shape[0]) + x.half().sum().item()


def test_a_number_read_off_a_tensor_is_a_number() -> None:
    x = torch.rand(4, 3)
    out, _ = ran(arithmetic_named("float64"), Numbers(), x)
    wide = x.double()
    assert torch.allclose(out, wide / wide.square().mean() + 4 + wide.sum(), rtol=1e-14, atol=0)


class Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(x, 0.3, training=True) + torch.rand_like(x) + torch.rand(x.shape)
        y = y + torch.empty_like(x).normal_() + torch.bernoulli(torch.full_like(x, 0.4))
        return y


def test_the_reference_draws_what_float32_draws() -> None:
    x = torch.ones(50)
    torch.manual_seed(3)
    wanted = Draws()(x)
    torch.manual_seed(3)
    out, _ = ran(arithmetic_named("float64"), Draws(), x)
    assert torch.allclose(out.float(), wanted, rtol=1e-6)
    torch.manual_seed(3)
    assert not torch.allclose(Draws()(x.double()).float(), wanted, rtol=1e-2)


class Distances(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(x, x) + torch.cumsum(x, 0)[:, :1]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_function_without_half_precision_is_named_and_emulated(name: str) -> None:
    dtype = FORMATS[name].dtype
    assert dtype is not None
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    with pytest.raises(NotImplementedError):
        Distances()(x.to(dtype))
    out, said = ran(arithmetic_named(name), Distances(), x)
    low = x.to(dtype)
    wanted = torch.cdist(low.float(), low.float()).to(dtype) + torch.cumsum(low, 0)[:, :1]
    assert torch.equal(out, wanted)
    assert said == [
        f"cdist in the model itself has no {name} here: it was computed in float32 and rounded to "
        f"{name}"
    ]


def test_an_error_of_the_models_own_is_not_emulated() -> None:
    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.ones(6, 6)  # float32, whatever x is

    with pytest.raises(RuntimeError, match="same dtype"):
        ran(arithmetic_named("bfloat16"), Mixed(), torch.randn(4, 6))


def test_ties_stay_ties_and_what_cannot_be_copied_is_said() -> None:
    model = Two()
    model.b = nn.Linear(6, 9)
    model.b.weight = model.a.weight
    made, _ = arithmetic_named("bfloat16").prepared(model, inventory(model), torch.ones(1, 6))
    assert made.get_parameter("b.weight") is made.get_parameter("a.weight")

    class Alone(nn.Linear):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("cannot pickle a socket")

    alone = Alone(2, 2)
    with pytest.raises(NetworkError, match=r"Alone cannot be copied \(TypeError: cannot pickle"):
        arithmetic_named("float16").prepared(alone, inventory(alone), torch.ones(1, 2))
    arithmetic_named("autocast-bfloat16").prepared(alone, inventory(alone), torch.ones(1, 2))
    with pytest.raises(TypeError):
        copy.deepcopy(alone)


def test_refusals() -> None:
    model, x = two()
    with pytest.raises(NetworkError, match="tf32 is arithmetic of CUDA devices"):
        arithmetic_named("tf32").prepared(model, inventory(model), x)
    half = model.half()
    with pytest.raises(NetworkError, match=r"parameter 'a\.weight' is float16, but float8_e4m3"):
        arithmetic_named("float8_e4m3").prepared(half, inventory(half), x)
    with pytest.raises(SpecificationError, match="'bfloat16'"):
        arithmetic_named("bflot16")
    with pytest.raises(SpecificationError, match="scaling is 'amx', expected one of plain, amax"):
        arithmetic_named("float8_e4m3", "amx")
    with pytest.raises(SpecificationError, match="bfloat16 has no scale"):
        arithmetic_named("bfloat16", "amax")
    assert "float16" in ARITHMETICS
