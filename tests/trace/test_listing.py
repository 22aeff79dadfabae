"""Depth counts the modules of a list, whatever holds the list and however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge import measure
from depthgauge.trace.graph import Call, Graph, Value
from depthgauge.trace.layout import layout
from depthgauge.trace.listing import listed

WIDTH = 8


class Attending(nn.Module):
    """A block of one sum, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm(h)
        made: Tensor = self.mix(x, x, x, need_weights=False)[0]
        return h + made


class Feeding(nn.Module):
    """A block of one sum, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.down(F.gelu(self.up(self.norm(h))))
        return h + made


class Whole(nn.Module):
    """A Transformer's block: two sums, each in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attending(), Feeding()

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.feed_forward(self.attention(h))
        return out


class Twice(nn.Module):
    """Two sums that read alike."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.a(F.relu(h))
        out: Tensor = h + self.b(F.relu(h))
        return out


class Nested(nn.Module):
    """A block whose two sums are those of a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Attending(), Feeding()])

    def forward(self, h: Tensor) -> Tensor:
        h = self.parts[0](h)
        out: Tensor = self.parts[1](h)
        return out


class Held(nn.Module):
    """Blocks one after another, in what ``how`` says."""

    def __init__(self, blocks: Sequence[nn.Module], how: str) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)
        cut = (3 * len(blocks) + 4) // 5
        match how:
            case "a list":
                self.blocks = nn.ModuleList(blocks)
            case "a sequence":
                self.blocks = nn.Sequential(*blocks)  # type: ignore[assignment]
            case "a dictionary":
                self.blocks = nn.ModuleDict(dict(zip("abcdefghij", blocks, strict=False)))  # type: ignore[assignment]
            case "attributes":
                for k, block in enumerate(blocks):
                    setattr(self, f"layer{k}", block)
            case "two lists":
                self.low, self.high = nn.ModuleList(blocks[:cut]), nn.ModuleList(blocks[cut:])
        self.order = [name for name, module in self.named_modules() if module in blocks]

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for name in self.order:
            h = self.get_submodule(name)(h)
        out: Tensor = self.head(h)
        return out


HOLDERS = ("a list", "a sequence", "a dictionary", "attributes", "two lists")


def depth(model: nn.Module) -> int:
    torch.manual_seed(0)
    found = measure(model, torch.randn(2, 4, 5)).depth
    assert found is not None
    return found


def by_turns(number: int) -> list[nn.Module]:
    return [(Attending, Feeding)[k % 2]() for k in range(number)]


@pytest.mark.parametrize("how", HOLDERS)
@pytest.mark.parametrize("number", [2, 3, 4, 5, 6, 7, 8, 9])
def test_blocks_of_one_sum_by_turns_count_one_by_one(number: int, how: str) -> None:
    assert depth(Held(by_turns(number), how)) == number


@pytest.mark.parametrize("how", HOLDERS)
@pytest.mark.parametrize("block", [Whole, Twice, Nested, Feeding])
@pytest.mark.parametrize("number", [2, 3, 5])
def test_blocks_count_whole_whatever_holds_them(
    number: int, block: Callable[[], nn.Module], how: str
) -> None:
    assert depth(Held([block() for _ in range(number)], how)) == number


@pytest.mark.parametrize("how", HOLDERS)
@pytest.mark.parametrize(
    "kinds", [(Feeding, Whole), (Whole, Feeding, Feeding, Whole), (Twice, Twice, Feeding, Feeding)]
)
def test_blocks_need_not_have_as_many_sums_each(
    kinds: Sequence[Callable[[], nn.Module]], how: str
) -> None:
    assert depth(Held([kind() for kind in kinds], how)) == len(kinds)


@pytest.mark.parametrize("how", HOLDERS[:4])
@pytest.mark.parametrize("block", [Whole, Nested, Feeding, Twice])
def test_the_only_module_of_a_list_is_one_block(block: Callable[[], nn.Module], how: str) -> None:
    assert depth(Held([block()], how)) == 1


def test_recipes_count_the_only_module_of_a_list_as_one_block() -> None:
    assert layout(Held([Twice()], "a list"), torch.randn(2, 4, 5)).blocks == 1


@pytest.mark.parametrize("block", [Whole, Feeding, Twice])
def test_the_one_module_that_runs_again_and_again_is_a_block_each_time(
    block: Callable[[], nn.Module],
) -> None:
    class Looped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.block = nn.Linear(5, WIDTH), block()

        def forward(self, x: Tensor) -> Tensor:
            h: Tensor = self.stem(x)
            for _ in range(3):
                h = self.block(h)
            return h

    assert depth(Looped()) == 3


def test_parts_that_run_by_turns_are_no_blocks() -> None:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.attend, self.feed = nn.Linear(5, WIDTH), Attending(), Feeding()

        def forward(self, x: Tensor) -> Tensor:
            h: Tensor = self.stem(x)
            for _ in range(3):
                h = self.feed(self.attend(h))
            return h

    assert depth(Turns()) == 3


def test_a_block_that_runs_several_times_counts_as_often() -> None:
    class Tied(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([block])

        def forward(self, h: Tensor) -> Tensor:
            for _ in range(4):
                h = self.blocks[0](h)
            return h

    for block in (Feeding(), Whole(), Twice()):
        assert depth(nn.Sequential(nn.Linear(5, WIDTH), Tied(block))) == 4


def test_a_network_that_stands_in_a_sequence_is_no_block() -> None:
    """Its sums repeat, and it makes them itself."""

    class Straight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))

        def forward(self, h: Tensor) -> Tensor:
            for layer in self.layers:
                h = h + layer(F.relu(h))
            return h

    assert depth(nn.Sequential(nn.Linear(5, WIDTH), Straight(), nn.Linear(WIDTH, 3))) == 5


def test_pairs_of_sums_that_the_network_makes_itself_are_blocks() -> None:
    """No module holds two of them: what repeats is a block."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(5, WIDTH)
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
            self.one = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.two = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            h: Tensor = self.stem(x)
            for norm, one, two in zip(self.norms, self.one, self.two, strict=True):
                h = h + one(norm(h))
                h = h + two(torch.tanh(h))
            return h

    assert depth(Pairs()) == 4


def graph_of(paths: Sequence[str]) -> Graph:
    """One sum in each of these modules; modules above them are called where ``:`` ends their
    path: ``h.0:ff`` is in one run of ``h.0``, as often as that stands there in a row."""
    graph = Graph()
    before: list[tuple[str, int]] = []
    for k, path in enumerate(paths):
        parts, at, row = path.split(":"), "", list[tuple[str, int]]()
        for depth, part in enumerate(parts):
            at = f"{at}.{part}" if at else part
            parent = row[-1][1] if row else 0
            goes_on = row == before[:depth] and depth < len(before) and before[depth][0] == at
            if goes_on and depth < len(parts) - 1:
                row.append(before[depth])
                continue
            graph.calls.append(Call(at, parent, "Module"))
            row.append((at, len(graph.calls) - 1))
        before = row
        value = Value(k, "add", "sum", (), row[-1][1], (1,), True, True, True, False, False)
        graph.values.append(value)
    return graph


@pytest.mark.parametrize(
    ("paths", "repeats", "blocks"),
    [
        # Modules of one list, with as many sums each or not.
        (("h.0:a", "h.0:b", "h.1:a", "h.1:b"), True, [1, 1, 2, 2]),
        (("h.2", "h.4"), True, [1, 2]),
        (("1", "2", "3"), True, [1, 2, 3]),
        (("h.1", "h.0"), False, [1, 2]),
        (("h.0:a", "h.0:b", "h.1"), False, [1, 1, 2]),
        (("h.0", "h.1:a", "h.1:b", "h.2", "h.3:a", "h.3:b"), True, [1, 2, 2, 3, 4, 4]),
        # Of lists one after another, or by turns.
        (("low.0", "low.1", "high.0"), True, [1, 2, 3]),
        (("x.0:a", "x.0:b", "h.0:a", "h.0:b"), False, [1, 1, 2, 2]),
        # In a list: whole blocks of two sums; of one sum each nobody knows.
        (("s.0.b.0:a", "s.0.b.0:b", "s.1.b.0:a", "s.1.b.0:b"), True, [1, 1, 2, 2]),
        (("s.0.b.0", "s.0.b.1", "s.1.b.0", "s.1.b.1"), True, []),
        (("s.0.b.0:a", "s.0.b.0:b", "s.1.b.0"), True, []),
        (("layer1.0", "layer2.0"), True, []),
        # Without numbers: in what is not called itself.
        (("h.in", "h.mid", "h.out"), False, [1, 2, 3]),
        (("net:in", "net:mid", "net:out"), False, []),
        # By names that differ in a number.
        (("layer0", "layer1", "layer2"), False, [1, 2, 3]),
        (("layer0", "other1", "layer2"), False, []),
        # The only module of its list.
        (("h.0:a", "h.0:b"), False, [1, 1]),
        (("h.0:a", "h.0:b"), True, [1, 1]),
        (("h.0:a", "h.0:a"), True, []),  # a loop
        (("h.0:part.0", "h.0:part.1"), False, [1, 1]),
        (("h.0:part.0", "h.0:part.1"), True, [1, 2]),
        ((), False, []),
    ],
)
def test_blocks_are_the_modules_of_lists(
    paths: tuple[str, ...], repeats: bool, blocks: list[int]
) -> None:
    every = [True] * len(paths)
    assert listed(graph_of(paths), range(len(paths)), every, repeats) == blocks


@pytest.mark.parametrize(
    ("steps", "blocks"),
    [
        # A plain step, ``-``, in a module of the list, between two of them, and behind the last.
        (("h.0:a", "-h.0:b", "h.1:a", "-h.1:b"), [1, 1, 2, 2]),
        (("s.0.0:a", "s.0.0:b", "-t.0", "s.1.0:a", "s.1.0:b"), [1, 1, 2, 3, 3]),
        (("h.0:a", "h.0:b", "h.1:a", "h.1:b", "-"), [1, 1, 2, 2, 3]),
        # A sum outside of the list, and as many of those as blocks.
        (("h.0:a", "h.0:b", "", "h.1:a", "h.1:b"), [1, 1, 2, 3, 3]),
        (("h.0", "", "h.1", ""), []),
        (("h.0", "-", "h.1", "-"), [1, 2, 3, 4]),
    ],
)
def test_steps_outside_of_a_list_are_blocks_of_their_own(
    steps: tuple[str, ...], blocks: list[int]
) -> None:
    summed = [not step.startswith("-") for step in steps]
    paths = [step.removeprefix("-") for step in steps]
    assert listed(graph_of(paths), range(len(paths)), summed, False) == blocks


class Extra(nn.Module):
    """Blocks in a list, and a sum that the network makes itself behind one of them."""

    def __init__(self, block: Callable[[], nn.Module], behind: int) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(5, WIDTH), nn.ModuleList(block() for _ in range(4))
        self.extra, self.behind = nn.Linear(WIDTH, WIDTH), behind

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.stem(x)
        for k, block in enumerate(self.blocks):
            h = block(h)
            h = h + self.extra(h) if k == self.behind else h
        return h


@pytest.mark.parametrize("behind", range(4))
@pytest.mark.parametrize("block", [Whole, Feeding, Twice])
def test_a_sum_of_the_network_s_own_leaves_the_blocks_whole(
    block: Callable[[], nn.Module], behind: int
) -> None:
    assert depth(Extra(block, behind)) == 5


class Stages(nn.Module):
    """Lists of blocks in a list, with a layer between them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Linear(5, WIDTH)
        self.stages = nn.ModuleList(nn.ModuleList(Whole() for _ in range(n)) for n in sizes)
        self.between = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in sizes[1:])

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.stem(x)
        for k, stage in enumerate(self.stages):
            h = F.relu(self.between[k - 1](h)) if k else h
            for block in stage:  # type: ignore[attr-defined]
                h = block(h)
        return h


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (2, 2, 2), (2, 2, 6), (1, 3, 1)])
def test_blocks_of_stages_and_the_layers_between_them_count_one_by_one(
    sizes: Sequence[int],
) -> None:
    assert depth(Stages(sizes)) == sum(sizes) + len(sizes) - 1


class Reinjected(nn.Module):
    """Each block reads a mixture of the stream and of its first tensor."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(5, WIDTH), nn.ModuleList(block() for _ in range(4))
        self.mixed = nn.ParameterList(nn.Parameter(torch.tensor([0.9, 0.1])) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = first = self.stem(x)
        for block, mixed in zip(self.blocks, self.mixed, strict=True):
            h = block(mixed[0] * h + mixed[1] * first)
        out: Tensor = h
        return out


@pytest.mark.parametrize("block", [Whole, Feeding])
def test_what_is_mixed_with_its_first_tensor_is_the_same_stream(
    block: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(0)
    profile = measure(Reinjected(block), torch.randn(2, 4, 5))
    (stream,) = profile.to_dict()["streams"]
    assert (profile.depth, stream["segments"]) == (4, 1)
    assert [block["times"] for block in stream["blocks"]] == [3, 1]
