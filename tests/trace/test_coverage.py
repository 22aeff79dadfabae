"""What a profile says it did not see: modules, gradients, unknown functions, hidden states.

The references are plain passes with hooks that count calls, and ``.grad`` after a backward pass.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.zoo import Model
from benchmarks.zoo.plain import MODELS, DenseLayer, FunctionalMlp, densenet, images, rows
from depthgauge.measurement import measure
from depthgauge.profile import Profile

WIDTH, CLASSES = 8, 3

#: Models of the zoo, each once, by name.
ZOO = {model.name: model for model in MODELS}


class Block(nn.Module):
    """The pre-norm block; ``extra`` is applied between its two layers."""

    def __init__(self, extra: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(self.extra(self.up(self.norm(x))))
        return x


class Stack(nn.Module):
    """A stem, blocks and a head."""

    def __init__(self, depth: int = 3, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def made(kind: Callable[..., Any] = Stack, *args: Any) -> Any:
    torch.manual_seed(0)
    return kind(*args).double()


def data() -> Tensor:
    return torch.randn(5, WIDTH, dtype=torch.float64)


def coverage(profile: Profile) -> dict[str, list[tuple[str, str]]]:
    """The document's coverage as (path, reason) pairs; all six words are always there."""
    found = profile.to_dict()["coverage"]
    assert list(found) == ["expected", "seen", "not_called", "no_gradient", "opaque", "fallback"]
    return {word: [(e["path"], e["reason"]) for e in entries] for word, entries in found.items()}


def paths(entries: list[tuple[str, str]]) -> list[str]:
    return [path for path, _ in entries]


def called(model: nn.Module, batch: Any) -> tuple[Counter[str], set[str]]:
    """How often each module is called in a plain pass, and the parameters without a gradient."""
    model = copy.deepcopy(model)
    calls: Counter[str] = Counter()
    for path, module in model.named_modules():
        module.register_forward_hook(lambda m, args, out, path=path: calls.update([path]))
    outputs = model(*batch) if isinstance(batch, tuple) else model(batch)
    outputs.double().square().sum().backward()
    return calls, {name for name, p in model.named_parameters() if p.grad is None}


# ----------------------------------------------------------------------- expected and seen


@pytest.mark.parametrize("depth", [1, 4])
def test_every_site_is_expected_and_seen(depth: int) -> None:
    """One state at first, then an activation, a branch and a state for each block."""
    found = coverage(measure(made(Stack, depth), data()))
    block = [("relu", "activation"), ("down", "branch"), ("", "state")]
    expected = [("stem", "state")]
    for i in range(depth):
        expected += [(f"blocks.{i}.{name}".rstrip("."), role) for name, role in block]
    assert found["expected"] == expected
    number = {"state": "17 quantities", "activation": "6 quantities", "branch": "3 quantities"}
    assert found["seen"] == [(path, number[role]) for path, role in expected]
    for word in ("not_called", "no_gradient", "opaque", "fallback"):
        assert found[word] == []


@pytest.mark.parametrize(
    ("instruments", "numbers"),
    [
        ("rivers", {"state": 8}),
        ("quantiles", {"state": 8}),
        ("gates", {"activation": 6}),
        ("branches", {"branch": 3}),
        (["gradient_rms", "dead_fraction"], {"state": 1, "activation": 1}),
    ],
    ids=str,
)
def test_seen_counts_what_the_instruments_took(instruments: Any, numbers: dict[str, int]) -> None:
    """Branches are places of their own only where they are looked at."""
    profile = measure(made(), data(), instruments=instruments)
    found = coverage(profile)
    assert len(found["expected"]) == len(profile.sites) == (10 if "branch" in numbers else 7)
    wanted = [(s.path, numbers[s.role]) for s in profile.sites if s.role in numbers]
    assert [(path, int(reason.split()[0])) for path, reason in found["seen"]] == wanted


def test_sites_that_are_left_out_are_not_expected() -> None:
    profile = measure(made(), data(), include=r"blocks\.1")
    assert paths(coverage(profile)["expected"]) == ["blocks.1.relu", "blocks.1.down", "blocks.1"]


def test_a_state_that_no_gradient_reaches_is_seen_with_half_of_its_quantities() -> None:
    class Blind(Stack):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Any:
            return super().forward(x)

    found = coverage(measure(made(Blind), data()))
    roles = dict(found["expected"][-1:]) | dict(found["expected"][:1])
    assert set(roles.values()) == {"state"}
    seen = dict(found["seen"])
    assert {seen[path] for path in roles} == {"9 quantities"}
    reason = "the output does not depend on any tensor that a gradient could reach"
    assert ("stem", reason) in found["no_gradient"]
    assert ("blocks.2", reason) in found["no_gradient"]


@pytest.mark.parametrize("name", ["mlp_functional", "unet_plain", "conv_gru"])
def test_only_the_input_is_called_input(name: str) -> None:
    """A state that the model's own forward function made is none of the batch."""
    torch.manual_seed(0)
    profile = measure(*ZOO[name].build())
    assert [s for s in profile.sites if s.path == "input" and s.block > 0] == []


def test_states_of_a_functional_network_are_those_of_its_layers() -> None:
    """The values are right whatever their places are called."""
    torch.manual_seed(0)
    model, x = FunctionalMlp().double(), rows().double()
    profile = measure(model, x)
    tensors = [x]
    for layer in model.layers:
        tensors.append(torch.tanh(layer(tensors[-1])))
    tensors.append(model.head(tensors[-1]))
    assert profile["state_rms"] == pytest.approx(roots(tensors), rel=1e-10)


# ----------------------------------------------------------------------------- not called


class Unused(Stack):
    """Holds modules that it never calls, and one that it calls only in eval."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.kept = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
        self.table = nn.ModuleDict({"a": nn.Identity()})
        self.extra = nn.ParameterList([nn.Parameter(torch.zeros(2))])
        self.later = nn.LayerNorm(WIDTH)
        self.borrowed = nn.Linear(WIDTH, WIDTH)
        self.alias = self.stem

    def forward(self, x: Tensor) -> Any:
        x = nn.functional.linear(x, self.borrowed.weight)
        return super().forward(x if self.training else self.later(x))


def test_modules_that_were_never_called_are_named() -> None:
    """Lists and dicts of modules are never called; what is in them is, under its first name."""
    never = "was never called in this pass"
    expected = [
        ("spare", f"Sequential {never}"),
        ("spare.0", f"Linear {never}"),
        ("spare.1", f"ReLU {never}"),
        ("kept.0", f"Linear {never}"),
        ("table.a", f"Identity {never}"),
        ("later", f"LayerNorm {never}"),
        ("borrowed", "Linear was not called itself: a function was given its weights"),
    ]
    model, x = made(Unused), data()
    assert coverage(measure(model, x))["not_called"] == expected
    model.eval()
    assert coverage(measure(model, x))["not_called"] == [e for e in expected if e[0] != "later"]


CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@pytest.mark.parametrize("name", ZOO)
def test_calls_and_gradients_are_those_of_a_plain_pass(name: str) -> None:
    model, batch = build(ZOO[name])
    torch.manual_seed(1)
    calls, without = called(model, batch)
    torch.manual_seed(1)
    profile = measure(model, batch, lambda y: y.double().square().sum())
    found = coverage(profile)
    expected = {
        path
        for path, module in model.named_modules()
        if path and not calls[path] and not isinstance(module, CONTAINERS)
    }
    assert set(paths(found["not_called"])) == expected
    names = {name for name, _ in model.named_parameters()}
    assert set(paths(found["no_gradient"])) & names == without


@pytest.mark.parametrize("name", ZOO)
def test_every_site_of_the_zoo_is_seen(name: str) -> None:
    """A site without a number is expected and not seen: the profile has a hole there."""
    found = coverage(measure(*build(ZOO[name])))
    assert paths(found["seen"]) == paths(found["expected"])


def build(model: Model) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    module, batch = model.build()
    return module.train(model.training), batch


# ------------------------------------------------------------------------------ gradients


class Cut(Stack):
    """A head that is not used, a part that is detached, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, CLASSES)
        self.before = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.free = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Any:
        x = self.frozen(self.before(x).detach())
        y = super().forward(x)
        self.other(y.new_zeros(1, WIDTH))
        return y


def test_parameters_that_no_gradient_reaches_are_named_and_frozen_ones_are_not() -> None:
    reason = "no gradient reached this parameter"
    found = coverage(measure(made(Cut), data()))["no_gradient"]
    named = [entry for entry in found if entry[1] == reason]
    assert sorted(paths(named)) == [
        "before.bias",
        "before.weight",
        "free",
        "other.bias",
        "other.weight",
    ]


def test_what_ran_with_gradients_switched_off_is_named() -> None:
    class Half(Stack):
        def forward(self, x: Tensor) -> Any:
            with torch.no_grad():
                x = self.blocks[0](self.stem(x))
            return self.head(self.blocks[2](self.blocks[1](x)))

    found = coverage(measure(made(Half), data()))["no_gradient"]
    off = {path for path, reason in found if reason == "it ran with gradients switched off"}
    assert {"stem", "blocks.0", "blocks.0.up"} <= off
    assert not any(path.startswith(("blocks.1", "blocks.2", "head")) for path in off)


class Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return g @ weight, g.T @ x


class Custom(Block):
    """Its last layer is a function with a gradient of its own."""

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = Weighed.apply(torch.relu(self.up(self.norm(x))), self.down.weight)
        return x + branch


def test_a_custom_function_is_not_said_to_have_no_gradient() -> None:
    profile = measure(made(Stack, 2, Custom), data())
    assert [s.path for s in profile.sites_of("gradient_rms")] == ["stem", "blocks.0", "blocks.1"]
    without = paths(coverage(profile)["no_gradient"])
    assert without == ["blocks.0.down.bias", "blocks.1.down.bias"]  # which nothing uses


# --------------------------------------------------------------------------------- opaque


def solved(x: Tensor) -> Tensor:
    y: Tensor = torch.linalg.solve(2 * torch.eye(len(x), dtype=x.dtype), x)
    return y


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.special.i0e, "special_i0e"),
        (torch.special.erfcx, "special_erfcx"),
        (solved, "linalg_solve"),
    ],
    ids=["i0e", "erfcx", "solve"],
)
def test_unknown_functions_are_named_where_they_run(
    function: Callable[[Tensor], Tensor], name: str
) -> None:
    model = made(Stack, 2, lambda: Block(function))
    profile = measure(model, data())
    sentence = f"the function {name} is not known; it may hold weights"
    found = coverage(profile)["opaque"]
    assert [e for e in found if e[1] == sentence] == [
        ("blocks.0", sentence),
        ("blocks.1", sentence),
    ]
    assert {reason for _, reason in found} <= {sentence, name}
    assert profile.branches == 2
    assert name in str(profile.streams[0]["blocks"][0]["equation"])


def test_known_functions_are_not_opaque() -> None:
    for function in (torch.relu, torch.tanh, nn.functional.gelu, lambda x: x * x):
        assert (
            coverage(measure(made(Stack, 2, lambda f=function: Block(f)), data()))["opaque"] == []
        )


class Meeting(nn.Module):
    """A stream that meets, behind its second block, what ``made`` makes of what the first makes,
    or with ``own`` the state that it has."""

    def __init__(self, made: nn.Module, own: bool, times: int = 1) -> None:
        super().__init__()
        self.stem, self.made, self.own, self.times = nn.Linear(WIDTH, WIDTH), made, own, times
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        first = self.blocks[0](self.stem(x))
        beside, h = self.made(first), self.blocks[1](first)
        for block in self.blocks[2:]:
            for _ in range(self.times):
                h = h + (self.made(h) if self.own else beside)
            h = block(h)
        out: Tensor = h
        return out


ELSEWHERE = "from elsewhere: it was made before the state that a block begins with"


@pytest.mark.parametrize(
    ("beside", "paths"),
    [(lambda: nn.Linear(WIDTH, WIDTH), ["blocks.0", "made"]), (nn.Identity, ["blocks.0"])],
    ids=["a layer's output", "a state"],
)
def test_what_a_block_meets_from_elsewhere_is_listed_once(
    beside: Callable[[], nn.Module], paths: list[str]
) -> None:
    profile = measure(made(Meeting, beside(), False, 2), data())
    assert sorted(set(re.findall(r'opaque\("([^"]*)"\)', profile.equation))) == paths
    assert sorted(coverage(profile)["opaque"]) == [(path, ELSEWHERE) for path in paths]
    own = measure(made(Meeting, beside(), True), data())
    assert "opaque" not in own.equation
    assert coverage(own)["opaque"] == []


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_recurrent_layer_is_opaque(kind: str) -> None:
    model, batch = build(ZOO[kind])
    assert coverage(measure(model, batch))["opaque"] == [("recurrent", kind)]


# ----------------------------------------------------------------------- hidden states


@pytest.mark.parametrize(
    "name",
    [
        "unet_plain",
        "densenet",
        pytest.param("vgg", id="vgg, which has nothing to hide"),
    ],
)
def test_layers_between_states_have_a_fallback(name: str) -> None:
    """Where concatenations lead around layers, states on every path are not all there is: what
    enters the layers is shown instead, and the coverage says so."""
    model, batch = build(ZOO[name])
    profile = measure(model, batch)
    weights = nn.Conv2d | nn.Linear | nn.ConvTranspose2d
    layers = [m for m in model.modules() if isinstance(m, weights)]
    assert len(profile.sites_of("state_rms")) - 1 >= len(layers)
    assert bool(coverage(profile)["fallback"]) == (name != "vgg")


def roots(tensors: list[Tensor]) -> list[float]:
    return [t.square().mean().sqrt().item() for t in tensors]


class Dense(nn.Module):
    """Each layer reads all that was before it, and so does the head."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH * (i + 1), WIDTH) for i in range(depth))
        self.head = nn.Linear(WIDTH * (depth + 1), CLASSES)

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = torch.cat([x, torch.tanh(layer(x))], dim=1)
        return self.head(x)


def test_concatenations_that_layers_read_are_states() -> None:
    """All of them lie on every path, so that nothing is hidden."""
    model, x = made(Dense, 4), data()
    profile = measure(model, x)
    tensors = [x]
    for layer in model.layers:
        tensors.append(torch.cat([tensors[-1], torch.tanh(layer(tensors[-1]))], dim=1))
    tensors.append(model.head(tensors[-1]))
    assert profile["state_rms"] == pytest.approx(roots(tensors), rel=1e-10)
    assert coverage(profile)["fallback"] == []


class Towers(nn.Module):
    """Two stacks beside each other: the input and the output alone lie on every path."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.right = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: Tensor) -> Any:
        y = x
        for layer in self.left:
            x = torch.tanh(layer(x))
        for layer in self.right:
            y = torch.tanh(layer(y))
        return torch.cat([x, y], dim=1)


def towers(depth: int) -> tuple[Profile, list[Tensor]]:
    """The profile, and what enters the layers, then what the model returns."""
    model, x = made(Towers, depth), data()
    entering = [x]
    for side in (model.left, model.right):
        h = x
        for layer in side[:-1]:
            h = torch.tanh(layer(h))
            entering.append(h)
    return measure(model, x), [*entering, model(x)]


@pytest.mark.parametrize("depth", [3, 5])
def test_tensors_that_enter_layers_are_states_where_few_lie_on_every_path(depth: int) -> None:
    profile, tensors = towers(depth)
    assert profile["state_rms"] == pytest.approx(roots(tensors), rel=1e-10)
    (entry,) = coverage(profile)["fallback"]
    assert entry[1].startswith("2 tensors lie on every path; the ")
    assert entry[1].endswith("are taken for states, in the order in which they were made")


def test_the_fallback_counts_what_enters_layers() -> None:
    profile, tensors = towers(4)
    (entry,) = coverage(profile)["fallback"]
    assert f"the {len(tensors) - 1} that enter weight layers" in entry[1]


class LongSkip(Stack):
    """A skip around all blocks: their merges stand inside its branch."""

    def forward(self, x: Tensor) -> Any:
        first = h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h + 0.5 * first)


@pytest.mark.parametrize("depth", [3, 5])
def test_merges_inside_a_long_skip_are_states_with_a_word(depth: int) -> None:
    model, x = made(LongSkip, depth), data()
    profile = measure(model, x)
    tensors = [model.stem(x)]
    for block in model.blocks:
        tensors.append(block(tensors[-1]))
    tensors.append(tensors[-1] + 0.5 * tensors[0])
    assert profile["state_rms"] == pytest.approx(roots(tensors), rel=1e-10)
    (entry,) = coverage(profile)["fallback"]
    assert entry[1] == (
        f"long skips leave 2 states on every path; {depth} merges inside their branches are shown "
        f"as states too"
    )
    assert profile.branches == 1
    assert profile.streams[0]["inner"] == depth


class Beside(Stack):
    """The stream before the middle is put beside it behind the middle, and fused."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.fuse = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        h = self.stem(x)
        kept = h = self.blocks[0](h)
        for block in self.blocks[1:-1]:
            h = block(h)
        return self.head(self.blocks[-1](self.fuse(torch.cat([kept, h], -1))))


def test_a_long_skip_that_is_put_beside_the_stream_is_in_the_equation_and_said() -> None:
    profile = measure(made(Beside, 4), data())
    assert profile.branches == 4
    blocks = [block["equation"] for block in profile.to_dict()["streams"][0]["blocks"]]
    (joined,) = [text for text in blocks if "cat" in text]
    assert 'opaque("cat", opaque("blocks.0"), h)' in joined
    (entry,) = coverage(profile)["fallback"]
    assert entry[1] == (
        "an earlier state is put beside a later one by cat at 1 place, as a long skip that adds "
        "nothing: no branch"
    )
    assert not coverage(measure(made(Stack, 4), data()))["fallback"]


class Crossing(nn.Module):
    """A decoder's blocks read what an encoder without a skip made."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.stem = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        memory, h = torch.tanh(self.encode(x)), self.stem(x)
        for mix in self.mix:
            h = h + mix(h, memory, memory, need_weights=False)[0]
        out: Tensor = h
        return out


def test_an_equation_names_what_attention_reads_beside_the_stream() -> None:
    torch.manual_seed(0)
    profile = measure(Crossing(), torch.randn(2, 3, WIDTH))
    (block,) = profile.to_dict()["streams"][0]["blocks"]
    assert block["times"] == 2
    assert (
        block["equation"]
        == 'h = h + opaque("cross attention", opaque("an earlier tensor"), h, m=4)'
    )
    assert ("", ELSEWHERE) in coverage(profile)["opaque"]


# ------------------------------------------------------------------------- disagreements


class ValueBlock(Block):
    """Adds the first block's hidden values to its own."""

    def forward(self, x: Tensor, first: Tensor | None = None) -> Any:
        hidden = torch.tanh(self.up(self.norm(x)))
        mixed = hidden if first is None else hidden + first
        return x + self.down(mixed), hidden


class SidePath(Stack):
    """The first block's hidden values go past all later blocks."""

    def __init__(self, depth: int, side: bool) -> None:
        super().__init__(depth, ValueBlock)
        self.side = side

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        first = None
        for block in self.blocks:
            x, hidden = block(x, first)
            first = hidden if first is None and self.side else first
        return self.head(x)


@pytest.mark.parametrize("depth", [3, 6])
def test_a_side_path_hides_states_from_one_test_and_both_counts_are_given(depth: int) -> None:
    """Only the last merge lies on every path: the side path leads around all that are before."""
    profile = measure(made(SidePath, depth, True), data())
    (found,) = profile.to_dict()["disagreements"]
    assert (found["local_merge"], found["path_counting"], found["reported"]) == (depth, 1, depth)
    assert found["where"] == [f"blocks.{i}" for i in range(depth - 1)]
    assert found["stream"] == profile.streams[0]["name"]
    assert found["reason"] == ("paths around them keep these merges from lying on every path")
    assert profile.branches == depth
    assert len(profile.sites_of("state_rms")) == depth + 1
    alone = measure(made(SidePath, depth, False), data())
    assert alone.to_dict()["disagreements"] == []
    assert alone.branches == depth


def test_a_concatenation_beside_a_path_without_weights_is_a_disagreement() -> None:
    """The local test finds no sum; path counting finds what each dense layer sets beside."""
    torch.manual_seed(0)
    model = densenet()
    (found,) = measure(model, images()).to_dict()["disagreements"]
    dense = [path for path, m in model.named_modules() if isinstance(m, DenseLayer)]
    assert (found["local_merge"], found["path_counting"], found["reported"]) == (0, len(dense), 0)
    assert found["where"] == dense
    assert found["reason"] == (
        "a weight-free path joins what was computed beside it, in cat, which adds nothing"
    )


@pytest.mark.parametrize(
    "name", [name for name in ZOO if not name.startswith(("unet", "densenet"))]
)
def test_the_two_tests_agree_on_ordinary_models(name: str) -> None:
    model, batch = build(ZOO[name])
    assert measure(model, batch).to_dict()["disagreements"] == []


class Added(nn.Module):
    """A tensor and what no weight layer made of it."""

    def __init__(self, weighed: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8) if weighed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + torch.tanh(self.layer(x)) / 2
        return out


@pytest.mark.parametrize("weighed", [True, False])
def test_a_sum_without_a_weight_layer_is_no_branch_and_is_not_said_to_be_missing(
    weighed: bool,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), *(Added(weighed) for _ in range(3)), nn.Linear(8, 2))
    found = measure(model, torch.randn(5, 4))
    why = "no sum was found that adds to a stream what a weight layer makes of it"
    assert found.branches == (3 if weighed else 0)
    assert found.not_measured.get("branch_rms") == (None if weighed else why)
    assert found.to_dict()["streams"][0].get("fraction_reason") == (None if weighed else why)
