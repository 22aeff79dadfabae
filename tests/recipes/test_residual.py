"""ResiDual: a post-norm stream, and the sum of its branches beside it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge import measure
from depthgauge.errors import NetworkError
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.guess import guess
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
    preactivation,
    resnet,
    t5,
    transformer,
)
from tests.recipes.test_shared_blocks import BUILDS as SHARED


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


class Called(PostBlock):
    """The norm of the sum as a function."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.layer_norm(x + self.down(self.relu(self.up(x))), (WIDTH,))
        return out


def called(layers: int = 3, block: type[nn.Module] = Called) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    blocks = [block() for _ in range(layers)]
    return nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.Linear(WIDTH, 3)), torch.randn(32, 8)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (gpt2, "^no norms stand behind the sum after 'transformer.h.0.attn', and ResiDual is put"),
        (
            called,
            "^the norm behind the sum after '1.down' is no module of its own, and",
        ),
        (resnet, "^the skip beside '2.b' has weights of its own, and ResiDual adds up what all"),
        (preactivation, "^the skip beside '1.convs' has weights of its own"),
        (lambda: called(1, PostBlock), "^'1' has one sum alone, beside which there is nothing to"),
    ],
)
def test_it_is_refused_for_the_reason_that_there_is(
    build: Callable[[], tuple[nn.Module, Any]], words: str
) -> None:
    with pytest.raises(NetworkError, match=words):
        apply(*build(), "residual")


@pytest.mark.parametrize("build", SHARED.values(), ids=SHARED)
def test_a_norm_that_runs_several_times_cannot_keep_a_sum(
    build: Callable[[], tuple[nn.Module, Any]],
) -> None:
    with pytest.raises(
        NetworkError, match=r"^the norm behind the sum after '[\w.]+' runs 4 times in a pass"
    ):
        apply(*build(), "residual")


# --------------------------------------------------------------------------------- images


class Turned(nn.Module):
    """A layer norm over the channels of images, by PyTorch's over the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return out


class Channels(nn.Module):
    """The same written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        x = centred / torch.sqrt(centred.square().mean(1, keepdim=True) + 1e-5)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Image(nn.Module):
    def __init__(self, written: bool, post: bool) -> None:
        super().__init__()
        self.post, self.norm = post, Channels(8) if written else Turned(8)
        self.a, self.b = nn.Conv2d(8, 16, 3, 1, 1), nn.Conv2d(16, 8, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.post else self.norm(x)
        total: Tensor = x + self.b(torch.relu(self.a(y)))
        return self.norm(total) if self.post else total


def images(written: bool, post: bool) -> Callable[[], tuple[nn.Module, Any]]:
    def build() -> tuple[nn.Module, Any]:
        torch.manual_seed(0)
        blocks = [Image(written, post) for _ in range(3)]
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
        return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *blocks, *head), torch.randn(4, 3, 6, 6)

    return build


@pytest.mark.parametrize("post", [True, False])
@pytest.mark.parametrize("written", [True, False])
def test_on_convolutions_with_layer_norms_over_channels(written: bool, post: bool) -> None:
    applied, batch = on_module("residual", images(written, post))
    model = applied.model
    (second,) = layout(model, batch).second
    assert (second.branches, second.added, second.scale) == (3, 3, 1)

    def over_channels(x: Tensor) -> Tensor:  # gains are 1 and offsets 0
        return F.layer_norm(x.movedim(1, -1), (8,)).movedim(-1, 1)

    x = r = model.get_submodule("0")(batch)
    for k in range(1, 4):
        block = model.get_submodule(f"{k}" if post else f"{k}.module")
        assert isinstance(block, Image)
        f = block.b(torch.relu(block.a(x)))
        x, r = over_channels(x + f), r + f
    end = model.get_submodule("6")((x + over_channels(r)).mean((2, 3)))
    torch.testing.assert_close(model(batch), end, atol=1e-4, rtol=1e-4)

    def plant(module: nn.Module) -> None:
        last = [m for m in module.modules() if isinstance(m, Beside) and m.after is not None]
        last[-1].after = nn.Identity()

    broken(model, batch, "residual", plant, "0 of 1 such sums with one norm")


@pytest.mark.parametrize("written", [True, False])
def test_a_norm_over_channels_is_exchanged_by_one_over_channels(written: bool) -> None:
    """Its channels are the eight that are second, not the six places of a row."""
    found = layout(*images(written, post=True)())
    assert {n.width for b in found.branches for n in b.norms} == {8}
    assert {n.axis for b in found.branches for n in b.norms} == {-3 if written else -1}
    assert {n.kind for b in found.branches for n in b.norms} == {"layernorm"}
    applied, _ = on_module("prenorm-rmsnorm", images(written, post=False))
    assert "3 norms replaced by rmsnorm" in applied.changes


# ----------------------------------------------------------------------- beside post-norm


@pytest.mark.parametrize("recipe", ["postnorm", "postnorm-layernorm", "deepnorm", "admin"])
def test_the_second_stream_speaks_against_recipes_of_one(recipe: str) -> None:
    words = (
        "1 second streams beside the one with norms: the sum of 4 branches, which no norm touches "
        "on the way, joins the stream at its end: ResiDual"
    )
    model, batch = written()
    assert words in said(audit(model, batch, recipe))
    assert words not in said(audit(*written("alone"), recipe))
    assert words in apply(model, batch, recipe).left


def test_a_post_norm_network_is_post_norm_and_one_with_two_streams_is_not() -> None:
    assert audit(*written("alone"), "postnorm").holds
    assert not audit(*written(), "postnorm").holds
    for build, name in ((lambda: written("alone"), "postnorm-layernorm"), (written, "residual")):
        found = guess(*build())
        assert found.named is not None
        assert found.named.name == name
    against = next(c for c in found.candidates if c.recipe.name == "postnorm")
    assert [f.part for f in against.findings if not f.holds] == [
        "second streams beside the one with norms"
    ]


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
