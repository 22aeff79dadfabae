"""ResiDual: a post-norm stream, and the sum of its branches beside it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthgauge import measure
from depthgauge.errors import NetworkError
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.residual import Beside
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_module, said
from tests.recipes.models import (
    WIDTH,
    PostBlock,
    bert,
    encoder,
    gpt2,
    mlp,
    neox,
    postnorm,
    resnet,
    t5,
    transformer,
)


class Written(nn.Module):
    """ResiDual as its authors write it, with faults to choose from."""

    def __init__(self, fault: str = "", s: float = 1.0, layers: int = 4) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks = nn.ModuleList(PostBlock() for _ in range(layers))
        self.final, self.fault, self.s = nn.LayerNorm(WIDTH), fault, s
        self.cut = False  # whether no gradient passes through branches

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        r: Any = self.s * x if self.fault != "zero" else 0.0
        for k, block in enumerate(self.blocks):
            assert isinstance(block, PostBlock)
            f = block.down(torch.relu(block.up(r if self.fault == "reads" and k else x)))
            f = f.detach() if self.cut else f
            if not (self.fault == "missed" and k == 2):
                r = r + (0.5 if self.fault == "half" and k == 1 else 1.0) * self.s * f
            x = block.norm(x + f)
        if self.fault == "alone":
            last: Tensor = self.head(x)
            return last
        second = r if self.fault == "bare" else self.final(r)
        out: Tensor = self.head((0.5 if self.fault == "first" else 1.0) * x + second)
        return out


def written(fault: str = "", s: float = 1.0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Written(fault, s), torch.randn(16, 8)


@pytest.mark.parametrize("s", [1.0, 0.05])
def test_one_that_is_written_by_hand_holds(s: float) -> None:
    model, batch = written(s=s)
    found = layout(model, batch)
    assert found.L == 4
    assert [branch.norm_at for branch in found.branches] == [("stream",)] * 4
    (second,) = found.second
    assert (second.branches, second.added) == (4, 4)
    assert second.scale == pytest.approx(s)
    fallback = measure(model, batch, instruments="rivers").coverage["fallback"]
    assert "the sum of 4 of its 4 branches" in str(fallback)
    assert audit(model, batch, "residual").holds
    again = apply(model, batch, "residual")
    assert again.changes == ("the sum of the branches is there already",)
    torch.testing.assert_close(again.model(batch), model(batch))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("missed", "3 of 4 branches in that sum: that of 'blocks.2.down' is not in it"),
        (
            "half",
            "3 of 4 branches in that sum: that of 'blocks.1.down' is not in it, or by another",
        ),
        ("zero", "0 of 1 such sums that begin with what the stream begins with: x_0 is not in it"),
        ("bare", "0 of 1 such sums with one norm, in front of the joint sum: it grows with depth"),
        ("first", "0 of 1 joint sums that hold the stream as it is: it is multiplied by 0.5"),
        ("alone", "0 of 1 streams with the sum of their branches beside them"),
        ("reads", "streams with the sum of their branches beside them"),
    ],
)
def test_what_is_written_wrong_is_named(fault: str, words: str) -> None:
    model, batch = written(fault)
    found = audit(model, batch, "residual")
    assert not found.holds
    assert words in said(found)


def test_a_post_norm_network_has_no_second_stream() -> None:
    for build in (postnorm, encoder, mlp, gpt2, transformer):
        assert layout(*build()).second == ()


BUILDS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "post-norm": postnorm,
    "pre-norm": mlp,
    "PyTorch's encoder": encoder,
    "PyTorch's encoder, pre-norm": lambda: encoder(pre=True, final=True),
    "PyTorch's encoder and decoder": transformer,
    "BERT": bert,
    "T5": t5,
    "parallel branches": neox,
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_on_modules(build: Callable[[], tuple[nn.Module, Any]]) -> None:
    applied, batch = on_module("residual", build)
    found = layout(applied.model, batch)
    assert len(found.second) == len(found.streams)
    assert all(second.scale == 1 and not second.missing for second in found.second)


def reference(model: nn.Module, batch: Tensor) -> Tensor:
    """The same by hand, from the modules of what was put in."""
    stem, *blocks, head = model.children()
    x = r = stem(batch)
    after: nn.Module | None = None
    for block in blocks:
        assert isinstance(block, PostBlock)
        f = block.down(torch.relu(block.up(x)))
        norm = block.norm
        assert isinstance(norm, Beside)
        x, r = norm.module(x + f), r + f
        after = norm.after if isinstance(norm.after, nn.Module) else None
    assert after is not None
    out: Tensor = head(x + after(r))
    return out


def test_what_is_put_in_computes_it_and_its_gradients() -> None:
    torch.manual_seed(1)
    model, batch = postnorm()
    made = apply(model.double(), batch.double(), "residual").model
    parameters = list(made.parameters())
    out, expected = made(batch.double()), reference(made, batch.double())
    torch.testing.assert_close(out, expected)
    weights = torch.randn_like(out)
    for a, b in zip(
        torch.autograd.grad((out * weights).sum(), parameters),
        torch.autograd.grad((expected * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(copy.deepcopy(made)(batch.double()), out)
    torch.testing.assert_close(made(batch.double()), out)  # nothing is left of the pass before


def test_a_pass_that_breaks_off_leaves_nothing_behind() -> None:
    made, batch = apply(*postnorm(), "residual").model, postnorm()[1]
    expected = made(batch)
    head = made.get_submodule("4").register_forward_pre_hook(_stop)
    with pytest.raises(RuntimeError, match="here"):
        made(batch)
    head.remove()
    torch.testing.assert_close(made(batch), expected)


def _stop(module: nn.Module, given: Any) -> None:
    raise RuntimeError("here")


def test_the_gradient_past_all_branches_falls_as_the_root_of_depth() -> None:
    """That of post-norm falls as 2^(-L/2): each norm divides the sum of two unit sizes."""

    def gradient(layers: int, fault: str) -> float:
        torch.manual_seed(0)
        model = Written(fault, layers=layers).double()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith(("up.weight", "down.weight")):
                    nn.init.normal_(p, 0, (2 / p.shape[1]) ** 0.5 if "up" in name else 96**-0.5)
        x = torch.randn(256, 8).double().requires_grad_()
        model.cut = True
        out = model(x)
        (found,) = torch.autograd.grad((out * torch.randn_like(out)).sum(), [x])
        return float(found.norm())

    assert gradient(128, "") / gradient(32, "") == pytest.approx((32 / 128) ** 0.5, rel=0.1)
    rate = math.log2(gradient(34, "alone") / gradient(4, "alone")) / 30
    assert rate == pytest.approx(-0.5, abs=0.02)  # by branch, over thirty of them


@pytest.mark.parametrize("build", [gpt2, resnet])
def test_where_norms_are_no_modules_behind_the_sums_it_is_refused(
    build: Callable[[], tuple[nn.Module, Any]],
) -> None:
    with pytest.raises(NetworkError, match="there are not as many norms that are modules"):
        apply(*build(), "residual")


def _norm(model: nn.Module, path: str) -> Beside:
    found = model.get_submodule(path)
    assert isinstance(found, Beside)
    return found


def test_faults_in_what_was_put_in() -> None:
    def lost(model: nn.Module) -> None:  # one norm keeps nothing: its branch is in no sum
        parent = model.get_submodule("3")
        parent.norm = Zeroed(_norm(model, "3.norm"))

    def unjoined(model: nn.Module) -> None:
        _norm(model, "6.norm").after = nn.Identity()

    for plant, words in (
        (lost, "5 of 6 branches in that sum: that of '3.down' is not in it"),
        (unjoined, "0 of 1 such sums with one norm"),
    ):
        applied, batch = on_module("residual", postnorm)
        broken(applied.model, batch, "residual", plant, words)


class Zeroed(nn.Module):
    """What the norm behind keeps is taken out again."""

    def __init__(self, beside: Beside) -> None:
        super().__init__()
        self.beside = beside

    def forward(self, z: Tensor) -> Tensor:
        memory = self.beside.memory
        before = memory.total
        x: Tensor = self.beside.module(z)
        memory.total, memory.state = before, x
        return x
