"""The guard lets a run through that was commissioned, and no other."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import depthgauge as dg
from depthgauge.errors import (
    ModelError,
    NotCommissionedError,
    RecordError,
    SpecificationError,
    TargetError,
)
from depthgauge.record.folder import write
from tests.record import factory

SPECIFICATION = """
[block]
equation = "h + W2(gelu(W1(rmsnorm(h))))/sqrt(L)"
[init]
default = "lecun"
[network]
depth = 6
width = 32
[run]
batch = 16
seed = [0, 1]
lr = 0.1
[commission]
depths = [3]
vary = ["norm=none"]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("guard")
    file = folder / "block.toml"
    file.write_text(SPECIFICATION)
    dg.commission(file, folder / "record")
    return folder / "record", file


def test_what_was_commissioned_runs(made: tuple[Path, Path]) -> None:
    record, file = made
    dg.require(record)
    dg.require(record, str(file))
    dg.require(record, dg.read_specification(file))
    dg.assert_commissioned(record, str(file))


def test_the_module_of_a_commissioned_seed_runs_and_another_does_not(
    made: tuple[Path, Path],
) -> None:
    record, file = made
    network = dg.read_specification(file).network
    dg.require(record, network.module(1))
    assert objections_to(record, network.module(2)) == [WEIGHTS]
    assert objections_to(record, nn.Linear(8, 8)) == [
        "stale: the module holds no blocks that an equation built", WEIGHTS,
    ]  # fmt: skip


WEIGHTS = (
    "stale: the module's weights are not those of the seeds that were commissioned (0, 1); ask "
    "before the first step, and build it under one of them"
)


def objections_to(record: Path, module: nn.Module, **given: Any) -> list[str]:
    with pytest.raises(NotCommissionedError) as caught:
        dg.require(record, module, **given)
    with pytest.raises(AssertionError) as failed:
        dg.assert_commissioned(record, module, **given)
    assert str(failed.value).startswith(str(caught.value).splitlines()[0])
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"depth": 4}, ["depth 6 -> 4"]),
        ({"width": 16}, ["width 32 -> 16"]),
        ({"depth": 7, "width": 16}, ["depth 6 -> 7", "width 32 -> 16"]),
        ({"equation": "h + W2(gelu(W1(rmsnorm(h), out=2*n)))/sqrt(L)"}, [
            "layer W1 of block 1 [32, 32] -> [64, 32]", "layer W2 of block 1 [32, 32] -> [32, 64]",
        ]),
        ({"equation": "h + W2(gelu(rmsnorm(h)))/sqrt(L)"}, [
            "layer W1 of block 1 [32, 32] -> none"]),
    ],
)  # fmt: skip
def test_what_a_module_is_comes_before_its_weights(
    made: tuple[Path, Path], changes: dict[str, Any], said: list[str]
) -> None:
    record, file = made
    network = replace(dg.read_specification(file).network, **changes)
    assert objections_to(record, network.module(0)) == [*(f"stale: {x}" for x in said), WEIGHTS]


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        ("h + W2(relu(W1(rmsnorm(h))))/sqrt(L)", "gelu(W.* -> '.*relu(W"),
        ("h + W2(gelu(W1(rmsnorm(h))))/L", "0.408.* -> '.*0.1666"),
        ("h + W2(gelu(W1(h)))/sqrt(L)", "(rmsnorm(h)).* -> '.*gelu(W1?(h))"),
    ],
)
def test_the_weights_of_a_seed_in_another_equation(
    made: tuple[Path, Path], equation: str, words: str
) -> None:
    """An activation, a factor and a norm have no weights: only a run shows them."""
    record, file = made
    network = replace(dg.read_specification(file).network, equation=equation)
    (said,) = objections_to(record, network.module(0))
    pattern = words.replace("(", r"\(").replace(")", r"\)").replace("0.", r"0\.")
    assert re.fullmatch(f"stale: equation changed: '.*{pattern}.*'", said)
    assert "  " not in said  # statements in one line


def recorded(record: Path, specification: dg.Specification) -> Path:
    """A record of the specification that passes, without the gates being measured."""
    write(record, factory.record(subject=dg.subject_of(specification)), factory.arrays())
    return record


OPTIONS = "h + W2(leaky_relu(W1(rmsnorm(h)), slope=0.01))/sqrt(L)"


@pytest.mark.parametrize(
    ("equation", "bias"),
    [
        (OPTIONS.replace("0.01", "0.9"), 0.0),
        (OPTIONS.replace("0.01", "0.0101"), 0.0),
        (OPTIONS.replace("rmsnorm(h)", "rmsnorm(h, eps=0.5)"), 0.0),
        (OPTIONS.replace("W1(rmsnorm(h))", "W1(rmsnorm(h), bias=True)"), 3.0),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_options_and_biases_show_in_the_output(
    tmp_path: Path, equation: str, bias: float, training: bool
) -> None:
    """The equation of a run does not have them, and they are no weights."""
    network = dg.Network(OPTIONS, depth=6, width=16)
    record = recorded(tmp_path / "record", dg.Specification(network, 8, seed=(0, 1)))
    for seed in (0, 1):
        dg.require(record, network.module(seed).train(training))
    module = replace(network, equation=equation).module(1).train(training)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.fill_(bias)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    (said,) = objections_to(record, module)
    assert re.fullmatch(
        r"stale: its output differs from what was commissioned by [0-9.e+-]+ per cent though "
        r"equation and weights read alike \(an option such as eps or slope, or a bias, differs, or "
        r"what is done before and behind its blocks\)",
        said,
    )
    assert all(torch.equal(before[name], t) for name, t in module.state_dict().items())


@pytest.mark.parametrize(
    ("equation", "given"),
    [
        ("h + W2(relu(W1(h, bias=True)))/sqrt(L)", {}),
        ("h + W2(relu(W1(h, bias=True)))/sqrt(L)", {"init": {"W1.bias": "normal(0.1)"}}),
        ("h + W2(relu(W1(h, bias=True)))/sqrt(L)", {"init": "torch"}),
        ("h + attention(h, heads=2, bias=True)/sqrt(L)", {"init": "torch", "tokens": 4}),
        ("h + W1(relu(conv3(h, bias=True)))/sqrt(L)", {"init": "torch", "size": 4}),
    ],
)
def test_biases_that_are_drawn_are_those_of_the_seed(
    tmp_path: Path, equation: str, given: dict[str, Any]
) -> None:
    network = dg.Network(equation, depth=3, width=8, **given)
    record = recorded(tmp_path / "record", dg.Specification(network, 4, seed=(0, 1)))
    dg.require(record, network.module(1))
    module = network.module(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.add_(1.0)
    (said,) = objections_to(record, module)
    output = "stale: its output differs from what was commissioned by "
    assert said == WEIGHTS if given else said.startswith(output)


def test_an_output_that_is_drawn_at_random_is_compared_under_the_same_draws(
    tmp_path: Path,
) -> None:
    """Dropout, running statistics, and a precision in which a rounding is large."""
    equation = "h + dropout(W2(relu(W1(batchnorm(h)))), p=0.5)/sqrt(L)"
    for dtype in ("float32", "bfloat16"):
        network = dg.Network(equation, depth=6, width=16)
        record = recorded(tmp_path / dtype, dg.Specification(network, 8, seed=3, dtype=dtype))
        kind = getattr(torch, dtype)
        for training in (True, False):
            inner = network.module(3, dtype=kind).train(training)
            dg.require(record, inner)
            dg.require(record, nn.Sequential(nn.Identity(), inner))  # whose own mode is another
        moved = replace(network, equation=equation.replace("batchnorm(h)", "batchnorm(h, eps=9)"))
        (said,) = objections_to(record, moved.module(3, dtype=kind))
        assert said.startswith("stale: its output differs")


def test_a_commissioned_network_inside_another_module(made: tuple[Path, Path]) -> None:
    record, file = made
    network = dg.read_specification(file).network
    dg.require(record, nn.Sequential(nn.Linear(7, 32), network.module(0), nn.Linear(32, 2)).eval())
    for dtype in (torch.float64, torch.bfloat16):  # the same weights, rounded or not
        name = str(dtype).removeprefix("torch.")
        for seed, more in ((0, []), (2, [WEIGHTS])):
            said = objections_to(record, network.module(seed).to(dtype))
            assert said == [f"stale: dtype float32 -> {name}", *more]


class Around(nn.Module):
    """A network that is called otherwise than it was commissioned."""

    def __init__(self, net: nn.Module, how: str, stem: int = 0) -> None:
        super().__init__()
        self.net, self.how = net, how
        self.stem = nn.Linear(stem, 32) if stem else nn.Identity()
        self.head = nn.Linear(32, 2) if stem else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.stem(x)
        blocks = list(self.net.blocks)  # type: ignore[arg-type]
        match self.how:
            case "scaled":
                h = self.net(10 * h)
            case "halved":
                h = self.net(h) / 2
            case "twice":
                h = self.net(self.net(h))
            case "dropped":
                for block in blocks[:-1]:
                    h = block(h, h)
            case "swapped":
                for i in (0, 2, 1, 3, 4, 5):
                    h = blocks[i](h, h)
            case "between":
                for block in blocks:
                    h = 1.1 * block(h, h)
            case "by hand":
                for block in blocks:
                    h = block(h, h)
            case "as it is":
                h = self.net(h)
        return self.head(h)  # type: ignore[no-any-return]


RUN = ", and in what was commissioned each runs once: 1 to 6"

#: How a network is called, what is said of it alone, and of it between layers of its own.
AROUND = (
    ("as it is", "", ""),
    ("by hand", "", ""),
    ("scaled", "its output differs from what was commissioned by ", ""),  # as a stem may
    ("halved", "equation changed|its output differs from what was commissioned by ", ""),
    ("twice", f"its blocks run 1 to 6, 1 to 6{RUN}", f"its blocks run 1 to 6, 1 to 6{RUN}"),
    ("dropped", f"its blocks run 1 to 5{RUN}", f"its blocks run 1 to 5{RUN}"),
    ("swapped", f"its blocks run 1, 3, 2, 4 to 6{RUN}", f"its blocks run 1, 3, 2, 4 to 6{RUN}"),
    ("between", "equation changed", "the state that leaves its last block differs from what was "),
)


@pytest.mark.parametrize(("how", "alone", "between"), AROUND)
def test_a_module_that_calls_the_network_otherwise(
    made: tuple[Path, Path], how: str, alone: str, between: str
) -> None:
    record, file = made
    net = dg.read_specification(file).network.module(0)
    for module, batch, said in (
        (Around(net, how), None, alone),
        (Around(net, how), torch.randn(3, 32), alone),
        (Around(net, how, stem=7), torch.randn(3, 7), between),
        (nn.Sequential(Around(net, how, stem=7), nn.Softmax(-1)), torch.randn(3, 7), between),
        (Around(net, how, stem=7), None, ""),  # the network in it is what was commissioned
    ):
        if not said:
            dg.require(record, module, batch=batch)
            continue
        (line,) = objections_to(record, module, batch=batch)
        assert re.match(f"stale: ({said})", line), line
    with pytest.raises(ModelError, match="the module does not run on the batch given: RuntimeErr"):
        dg.require(record, Around(net, how, stem=7), batch=torch.randn(3, 8))


class Written(nn.Module):
    """The block of the specification as a person writes it."""

    by: Any = 6**0.5

    def __init__(self, width: int, act: nn.Module, turned: bool) -> None:
        super().__init__()
        if turned:  # declared in another order than they run
            self.down = nn.Linear(width, width, bias=False)
        self.norm = nn.RMSNorm(width, eps=1e-8, elementwise_affine=False)
        self.up, self.act = nn.Linear(width, width, bias=False), act
        if not turned:
            self.down = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(self.norm(x)))) / self.by  # type: ignore[no-any-return]


class Model(nn.Module):
    """Blocks in an attribute each, or in a list; with a stem and a head, or without."""

    def __init__(self, how: str, depth: int = 6, width: int = 32, act: Any = nn.GELU) -> None:
        super().__init__()
        if "stem" in how:
            self.stem = nn.Linear(7, width)
        made = [Written(width, act(), "turned" in how) for _ in range(depth)]
        if "apart" in how:
            for number, block in enumerate(made):
                self.add_module(f"block_{'abcdefghi'[number]}", block)
        else:
            self.encoder = nn.ModuleDict({"layer": nn.ModuleList(made)})
        if "stem" in how:
            self.head = nn.Linear(width, 2)
        self.made = [made]  # no modules of its own

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x) if hasattr(self, "stem") else x
        for block in self.made[0]:
            x = block(x)
        return self.head(x) if hasattr(self, "head") else x

    def as_in(self, network: Any) -> Model:
        with torch.no_grad():
            for mine, block in zip(self.made[0], network.blocks, strict=True):
                mine.up.weight.copy_(block.W1.weight)
                mine.down.weight.copy_(block.W2.weight)
        return self


@pytest.mark.parametrize("how", ["list", "apart", "list turned", "apart turned"])
@pytest.mark.parametrize("stem", ["", " stem"])
def test_blocks_that_are_called_otherwise_are_recognised(
    made: tuple[Path, Path], how: str, stem: str
) -> None:
    record, file = made
    network = dg.read_specification(file).network
    for batch in (None, torch.randn(3, 7 if stem else 32)):
        dg.require(record, Model(how + stem).as_in(network.module(1)), batch=batch)
        other = Model(how + stem).as_in(network.module(2))
        assert objections_to(record, other, batch=batch) == [WEIGHTS]
        relu = Model(how + stem, act=nn.ReLU).as_in(network.module(1))
        (said,) = objections_to(record, relu, batch=batch)
        assert re.match(r"stale: equation changed: '.*gelu\(.*' -> '.*relu\(.*'", said)
        leaky = Model(how + stem, act=lambda: nn.GELU("tanh")).as_in(network.module(1))
        (said,) = objections_to(record, leaky, batch=batch)
        assert re.search(r"output differs from .* by 0\.0[0-9]+ per cent|equation changed", said)
    double = Model(how + stem).as_in(network.module(1)).double()
    assert objections_to(record, double) == ["stale: dtype float32 -> float64"]
    if how == "list":
        assert objections_to(record, Model(how + stem, depth=4)) == ["stale: depth 6 -> 4", WEIGHTS]
        assert objections_to(record, Model(how + stem, width=16)) == [
            "stale: width 32 -> 16", WEIGHTS,
        ]  # fmt: skip


def test_a_scale_may_be_rounded_otherwise(made: tuple[Path, Path]) -> None:
    """It is compared as a number that float32 can tell from another, and the output is too."""
    record, file = made
    network = dg.read_specification(file).network

    def scaled(by: Any) -> nn.Module:
        module = Model("list").as_in(network.module(1))
        for block in module.made[0]:
            block.by = by
        return module

    for by in (math.nextafter(6**0.5, 3.0), 1 / 6**-0.5, torch.tensor(6.0).sqrt()):
        dg.require(record, scaled(by))
    (said,) = objections_to(record, scaled(6**0.5 * (1 + 1e-5)))
    assert re.match(r"stale: equation changed: '.*0\.4082.*' -> '.*0\.4082.*'", said)
    (said,) = objections_to(record, scaled(-(6**0.5)))
    assert said.startswith("stale: equation changed")


def test_layers_of_one_name_among_others_are_hashed_as_they_are_drawn(tmp_path: Path) -> None:
    """W.1 and W.2 stand in one module, and attention between them in the equation."""
    network = dg.Network("h + W(attention(W(h), heads=2))/sqrt(L)", depth=2, width=8, tokens=3)
    record = recorded(tmp_path / "record", dg.Specification(network, 4, seed=(0, 1)))
    dg.require(record, network.module(1))
    assert objections_to(record, network.module(2)) == [WEIGHTS]


class Block(nn.Module):
    def __init__(self, width: int, act: nn.Module) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, 16), act, nn.Linear(16, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * self.down(self.act(self.up(x)))  # type: ignore[no-any-return]


def build(layers: int = 3, width: int = 8, act: type[nn.Module] = nn.Tanh) -> Any:
    return nn.Sequential(*[Block(width, act()) for _ in range(layers)]), torch.randn(4, width)


def test_a_module_that_code_builds(tmp_path: Path) -> None:
    dg.commission(build, tmp_path / "record", seed=[0, 1], vary=["layers=2"])

    def seeded(**given: Any) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        found: tuple[nn.Module, Tensor] = build(**given)
        return found

    def objections(module: nn.Module, **given: Any) -> list[str]:
        every = objections_to(tmp_path / "record", module, **given)
        return [line for line in every if not line.startswith("the gate '")]

    module, batch = seeded()
    assert objections(module) == objections(module, batch=batch) == []
    module, batch = seeded(layers=5)
    (first, *_, last) = objections(module)
    assert first == "stale: *.up.weight '3 x [16, 8]' -> '5 x [16, 8]'"
    assert last == WEIGHTS
    assert objections(module, batch=batch) == ["stale: depth 3 -> 5", WEIGHTS]
    module, batch = seeded(width=6)
    assert objections(module, batch=batch) == ["stale: width 8 -> 6", WEIGHTS]
    module, batch = seeded(act=nn.GELU)  # the same weights, another function
    assert objections(module) == []
    (said,) = objections(module, batch=batch)
    assert re.match(r"stale: equation changed: '.*tanh\(.*' -> '.*gelu\(.*'", said)


class Attending(nn.Module):
    """A block of attention whose options have no weights."""

    def __init__(self, heads: int, causal: bool, dropout: float, eps: float) -> None:
        super().__init__()
        self.norm, self.heads, self.causal = nn.LayerNorm(8, eps=eps), heads, causal
        self.qkv, self.out, self.drop = nn.Linear(8, 24), nn.Linear(8, 8), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        b, t, n = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (y.reshape(b, t, self.heads, -1).transpose(1, 2) for y in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        y = y.transpose(1, 2).reshape(b, t, n)
        return x + self.drop(self.out(y))  # type: ignore[no-any-return]


def attending(
    heads: int = 2, causal: bool = True, dropout: float = 0.0, eps: float = 1e-5, depth: int = 3
) -> tuple[nn.Module, Tensor]:
    blocks = [Attending(heads, causal, dropout, eps) for _ in range(depth)]
    return nn.Sequential(*blocks), torch.randn(4, 5, 8)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_options_of_code_show_in_the_size_of_its_state(tmp_path: Path, dropout: float) -> None:
    arguments = {"dropout": dropout} if dropout else None
    dg.commission(attending, tmp_path / "record", seed=[0, 1], vary=[], arguments=arguments)

    def objections(**given: Any) -> list[str]:
        torch.manual_seed(1)
        module, batch = attending(**given)
        torch.manual_seed(7)  # what the user draws in between
        modes = [part.training for part in module.modules()]
        every = objections_to(tmp_path / "record", module, batch=batch)
        assert modes == [part.training for part in module.modules()]
        return [line for line in every if not line.startswith("the gate '")]

    assert objections(dropout=dropout) == []
    if dropout:  # what is drawn at random cannot be held against a curve
        assert objections(dropout=dropout, heads=4) == []
        return
    for given in ({"heads": 4}, {"causal": False}, {"eps": 1e-2}):
        (said,) = objections(**given)
        assert re.match(
            r"stale: the RMS of the state at block 1 is [\d.]+, and was [\d.]+ under seed 1 on the "
            r"same batch, though equation and weights read alike \(heads, a mask, eps or", said
        ), said  # fmt: skip
    assert objections(dropout=0.2) == [
        "stale: the module draws at random (dropout), and what was commissioned does not",
    ]  # fmt: skip
    torch.manual_seed(1)
    module, _ = attending(heads=4)
    every = objections_to(tmp_path / "record", module, batch=torch.randn(2, 5, 8))
    assert all("RMS" not in line for line in every)  # another batch has no curve


def deep(eps: float = 1e-5) -> tuple[nn.Module, Tensor]:
    module, batch = attending(depth=12, eps=eps)
    return module, 30 * batch  # a stream far larger than its branches


def test_one_block_that_attends_otherwise_is_refused_and_rounding_is_not(tmp_path: Path) -> None:
    """The last of twelve, whose heads hardly show in the size of the stream."""
    dg.commission(deep, tmp_path / "record", seed=[0, 1], vary=["eps=1e-3"])

    def objections(change: Any = lambda module: module, threads: int = 1) -> list[str]:
        torch.manual_seed(1)
        module, batch = deep()
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            every = objections_to(tmp_path / "record", change(module), batch=batch)
        finally:
            torch.set_num_threads(before)
        return [line for line in every if not line.startswith("the gate '")]

    def last(**given: Any) -> Any:
        def changed(module: Any) -> nn.Module:
            for name, value in given.items():
                setattr(module[-1], name, value)
            return module  # type: ignore[no-any-return]

        return changed

    (said,) = objections(last(heads=4))
    assert re.match(r"stale: the \w+ .*at block 12 is .*though equation and weights read", said)
    (said,) = objections(last(heads=1))
    assert "at block 12" in said
    (said,) = objections(last(causal=False))
    assert "at block 12" in said
    for threads in (1, 3):
        assert objections(threads=threads) == []
    assert objections(lambda module: torch.compile(module, backend="eager")) == []
    torch.manual_seed(1)
    module, batch = deep()
    fused = module(batch)
    with sdpa_kernel(SDPBackend.MATH):  # its sums are taken in another order
        assert not torch.equal(fused, module(batch))
        assert objections() == []


class Normed(nn.Module):
    """A block with buffers, under one name of its parts or another."""

    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__()
        self.names = names
        self.add_module(names[0], nn.BatchNorm1d(8))
        self.add_module(names[1], nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        norm, linear = (self.get_submodule(name) for name in self.names)
        return x + linear(norm(x)).tanh()  # type: ignore[no-any-return]


class Stack(nn.Module):
    def __init__(self, name: str, *names: str, turns: int = 1) -> None:
        super().__init__()
        self.turns = turns
        self.add_module(name, nn.ModuleList(Normed((names[0], names[1])) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        (blocks,) = self.children()
        for _ in range(self.turns):
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x)
        return x


def normed() -> Any:
    return Stack("blocks", "norm", "up"), torch.randn(6, 8)


def test_what_code_built_is_recognised_inside_another_and_by_other_names(tmp_path: Path) -> None:
    dg.commission(normed, tmp_path / "record", seed=[0, 1], vary=[])

    def objections(module: nn.Module, **given: Any) -> list[str]:
        every = objections_to(tmp_path / "record", module, **given)
        return [line for line in every if not line.startswith("the gate '")]

    def seeded(seed: int, *names: str, turns: int = 1) -> nn.Module:
        torch.manual_seed(seed)
        return Stack(*(names or ("blocks", "norm", "up")), turns=turns)

    batch = torch.randn(6, 8)
    wrapped = nn.Sequential(nn.Linear(3, 8), seeded(1), nn.Linear(8, 2))
    for module in (seeded(1), seeded(0, "layers", "bn", "fc"), wrapped):
        assert objections(module) == []
        assert objections(module.double()) == ["stale: dtype float32 -> float64"]
        assert objections(module.bfloat16()) == [
            "stale: dtype float32 -> bfloat16, in which its weights cannot be compared",
        ]  # fmt: skip
    assert objections(seeded(0, "layers", "bn", "fc"), batch=batch) == []
    for module in (seeded(2), seeded(2, "layers", "bn", "fc")):
        assert objections(module) == [WEIGHTS]
        assert objections(module, batch=batch) == [WEIGHTS]
    moved = seeded(0, "layers", "bn", "fc")
    moved.get_buffer("layers.2.bn.running_mean").add_(1.0)
    assert objections(moved) == [WEIGHTS]
    assert objections(seeded(0, turns=2)) == []  # without a batch nothing is run
    (said,) = objections(seeded(0, turns=2), batch=batch)
    assert said == "stale: depth 3 -> 6"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("depth = 6", "depth = 7", "stale: depth 6 -> 7"),
        ("gelu", "relu", "stale: equation"),
        ("seed = [0, 1]", 'seed = [0, 1]\ndtype = "bfloat16"', "stale: dtype float32 -> bfloat16"),
    ],
)
def test_what_changed_since_is_refused_with_the_reason(
    made: tuple[Path, Path], tmp_path: Path, before: str, after: str, words: str
) -> None:
    file = tmp_path / "block.toml"
    file.write_text(SPECIFICATION.replace(before, after))
    with pytest.raises(NotCommissionedError, match=words):
        dg.require(made[0], str(file))
    with pytest.raises(AssertionError, match=words):
        dg.assert_commissioned(made[0], str(file))


def test_a_gate_that_fails_is_named(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(depth=48, width=8, batch=16, depths=[4], vary=["norm=rmsnorm"])
    dg.commission("h + W2(relu(W1(h)))", tmp_path / "record", **options)
    with pytest.raises(NotCommissionedError) as caught:
        dg.require(tmp_path / "record")
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'record'} does not allow this run:\n")
    assert "  - the gate 'rivers' fails: gradient_ratio" in text


def test_what_was_not_measured_has_to_be_allowed(made: tuple[Path, Path]) -> None:
    with pytest.raises(NotCommissionedError, match="'training boundary' was not measured"):
        dg.require(made[0], unmeasured=())
    with pytest.raises(SpecificationError, match="unmeasured names 'trainig'"):
        dg.require(made[0], unmeasured=("trainig",))


def test_what_cannot_be_held_against_a_record(made: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="type int cannot be held against a record"):
        dg.require(made[0], 3)  # type: ignore[arg-type]
    empty = dg.read_specification(made[1]).network.module(0).to("meta")
    with pytest.raises(
        TargetError, match=r"no numbers yet, 'blocks\.0\.W1\.weight' is on the device"
    ):
        dg.require(made[0], empty)
    with pytest.raises(RecordError):
        dg.require(tmp_path / "none")
    shutil.copytree(made[0], tmp_path / "newer")
    document = tmp_path / "newer" / "record.json"
    document.write_text(document.read_text().replace('"schema": 1', '"schema": 2'))
    for target in (None, made[1]):
        with pytest.raises(NotCommissionedError, match=r"- newer: record\.json: schema: "):
            dg.require(tmp_path / "newer", target)  # type: ignore[arg-type]
