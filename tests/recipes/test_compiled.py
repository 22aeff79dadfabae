"""Parts of a model in the wrappers of ``torch.compile``: the recipes read what is inside."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.guess import guess
from depthgauge.trace.admission import uncompiled
from tests.recipes.contract import said
from tests.recipes.models import WIDTH, Block


class Inner(nn.Module):
    """A block whose branch is the part that may be wrapped."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.branch = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.branch(self.norm(x))
        return out


class Listed(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def _wrapped(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


def chain() -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(3)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))


def _all_in(model: Any) -> Any:
    model.blocks = nn.ModuleList(map(_wrapped, model.blocks))
    return model


def _branches_in(model: Any) -> nn.Module:
    for block in model.blocks:
        block.branch = _wrapped(block.branch)
    whole: nn.Module = model
    return whole


def _listed(block: type[nn.Module], number: int = 3) -> nn.Module:
    return Listed([block() for _ in range(number)])


def _shared() -> nn.Module:
    return Listed([Block()] * 3)


WRAPPED: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], nn.Module]]] = {
    "a chain": (chain, lambda m: nn.Sequential(*map(_wrapped, m.children()))),
    "a list": (lambda: _listed(Block), _all_in),
    "branches": (lambda: _listed(Inner), _branches_in),
    "all of it": (lambda: _listed(Inner), lambda m: _wrapped(_all_in(_branches_in(m)))),
    "one wrapper thrice": (_shared, lambda m: Listed([_wrapped(m.blocks[0])] * 3)),
}


def _pair(name: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """The plain model, the same weights with wrapped parts, and a batch."""
    torch._dynamo.reset()
    build, wrap = WRAPPED[name]
    torch.manual_seed(0)
    plain = build()
    wrapped = wrap(deepcopy(plain))
    named = (n.replace("_orig_mod.", "") for n in wrapped.state_dict())
    inner = dict(zip(named, wrapped.state_dict().values(), strict=True))
    plain.load_state_dict({n: inner[n] for n in plain.state_dict()})
    return plain, wrapped, torch.randn(16, WIDTH)


@pytest.mark.parametrize("recipe", ["layernorm-scaling", "rezero", "fixup", "gpt2", "he"])
@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_parts_are_read_as_they_are_without(name: str, recipe: str) -> None:
    plain, wrapped, batch = _pair(name)
    kept, modules = list(wrapped.state_dict()), list(wrapped.modules())
    assert audit(wrapped, batch, recipe) == audit(plain, batch, recipe)
    applied, expected = apply(wrapped, batch, recipe), apply(plain, batch, recipe)
    for part in ("changes", "scalars", "left", "asked"):
        assert getattr(applied, part) == getattr(expected, part)
    torch.testing.assert_close(applied.model(batch), expected.model(batch))
    assert audit(applied.model, batch, recipe).holds is (not applied.left)
    assert list(wrapped.state_dict()) == kept, "the model is left as it was"
    assert all(a is b for a, b in zip(wrapped.modules(), modules, strict=True))


def test_a_fault_in_a_wrapped_part_is_found_there() -> None:
    _, wrapped, batch = _pair("a list")
    drawn = apply(wrapped, batch, "he").model
    wrapped.load_state_dict(
        dict(zip(wrapped.state_dict(), drawn.state_dict().values(), strict=True))
    )
    assert audit(wrapped, batch, "he").holds
    named = guess(wrapped, batch).named
    assert named is not None
    assert named.name == "he"
    with torch.no_grad():
        wrapped.get_parameter("blocks.1._orig_mod.down.weight").mul_(2)
    found = audit(wrapped, batch, "he")
    assert "1 of 6 weights: std" in said(found)


def test_a_group_of_the_optimiser_is_found_in_a_wrapped_part() -> None:
    """What the recipe is held to are the parameters themselves, not copies of them."""
    _, wrapped, batch = _pair("a list")
    applied = apply(wrapped, batch, "rezero")
    model: Any = _all_in(applied.model)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    grouped = torch.optim.SGD(applied.groups(0.1, weight_decay=0.1), lr=0.1)
    held = audit(model, batch, "rezero", grouped)
    assert held.holds, said(held)
    assert "weight decay" in said(audit(model, batch, "rezero", plain))


def test_a_model_without_wrappers_is_itself() -> None:
    model = chain()
    assert uncompiled(model) is model
    wrapped = nn.Sequential(model, _wrapped(inner := Block()))
    bare: Any = uncompiled(wrapped)
    assert bare is not wrapped
    assert (bare[0], bare[1]) == (model, inner)


def _compiled(module: nn.Module) -> None:
    module.forward = torch.compile(module.forward, backend="eager")


def _closed(module: nn.Module) -> None:
    forward = module.forward
    module.forward = lambda x: forward(x)


def _bound(module: nn.Module) -> None:
    """A method put on the module is copied with it."""
    module.forward = MethodType(type(module).forward, module)


@pytest.mark.parametrize("recipe", ["fixup", "deepnorm", "layernorm-scaling", "sub-ln"])
@pytest.mark.parametrize("put", [_compiled, _bound])
def test_a_forward_that_is_replaced_on_a_block(
    put: Callable[[nn.Module], None], recipe: str
) -> None:
    """Of a compiled one the copy has its own; one that holds the block would run the original's."""
    torch.manual_seed(0)
    model, batch = chain(), torch.randn(4, WIDTH)
    put(model.get_submodule("1"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    applied = apply(model, batch, recipe).model
    assert audit(applied, batch, recipe).holds
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():  # nothing of the copy is the original's
        for p in model.parameters():
            p.fill_(math.nan)
        assert bool(applied(batch).isfinite().all())
    model = chain()
    _closed(model.get_submodule("1"))
    words = "the forward of '1' was replaced on the module itself by a function that holds the"
    with pytest.raises(NetworkError, match=words):
        apply(model, batch, recipe)
    model = chain()
    _closed(model.get_submodule("1.up"))
    _compiled(model.get_submodule("1.up"))  # what is inside is the closure
    with pytest.raises(NetworkError, match=r"the forward of '1\.up' was replaced"):
        apply(model, batch, recipe)


def test_a_replaced_forward_of_the_model_itself() -> None:
    torch.manual_seed(0)
    model, batch = chain(), torch.randn(4, WIDTH)
    _compiled(model)
    assert audit(apply(model, batch, "fixup").model, batch, "fixup").holds
    _closed(model)
    with pytest.raises(NetworkError, match="the forward of the model was replaced"):
        apply(model, batch, "fixup")


class Listless(nn.Module):
    """A norm that is held where the model does not register it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.hidden = [nn.LayerNorm(WIDTH)]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.up(self.hidden[0](x)).relu())
        return out


@pytest.mark.parametrize("recipe", ["fixup", "deepnorm", "layernorm-scaling"])
def test_a_norm_that_no_module_registers_is_left(recipe: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Listless() for _ in range(3)), nn.Linear(WIDTH, 3))
    applied = apply(model, torch.randn(4, WIDTH), recipe)
    if recipe == "layernorm-scaling":  # whose number goes around the layer behind the norm
        assert not applied.left
    else:
        assert any("the norm in '0.<LayerNorm>' is no module of its own" in s for s in applied.left)
