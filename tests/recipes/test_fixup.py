"""Fixup: what its authors and others got wrong, and the Transformer."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import Applied, apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.fixup import fixup_scale
from depthgauge.study.reference import resnet as reference
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, parameter, said, scaled
from tests.recipes.models import gpt2, mlp, preactivation, resnet, t5, transformer


@pytest.mark.parametrize(
    ("branches", "m", "printed"),
    [
        (54, 2, "0.136083"),
        (16, 3, "0.500000"),
        (30, 4, "0.567300"),
        (30, 2, "0.182574"),
        (12, 4, "0.660901"),
    ],
)
def test_golden_numbers(branches: int, m: int, printed: str) -> None:
    assert f"{fixup_scale(branches, m):.6f}" == printed


def test_on_equations() -> None:
    changed, model, batch = on_equation("fixup", "h + W2(relu(W1(layernorm(h), out=2*n)))")
    assert str(changed.block).count("scalar(0)") == 4
    assert str(changed.block).count("scalar(1)") == 1
    assert torch.equal(model(batch), batch)
    on_equation("fixup", "h + conv1(relu(conv3(relu(conv1(h)))))", width=8, size=4)


@pytest.mark.parametrize(
    ("skip", "factor", "words"),
    [
        ("1/sqrt(2) * ", "1/sqrt(2) * ", "the sum is scaled too"),
        ("1/sqrt(2) * ", "", "the shortcut is scaled, which keeps what it has"),
        ("", "1/sqrt(L) * ", "the depth is counted twice"),
    ],
)
def test_sums_that_are_scaled_are_named(skip: str, factor: str, words: str) -> None:
    text = "{}h + {}(scalar(1) * W2(relu(W1(h + scalar(0)) + scalar(0)) + scalar(0)))"
    sides = {"W1": 'he(mode="fan_out", gain=sqrt(2)/sqrt(L))', "W2": "zeros"}
    right = Network(text.format("", ""), 6, 16, init=sides).module(seed=0)
    batch = torch.randn(4, 16)
    assert audit(right, batch, "fixup").holds
    wrong = Network(text.format(skip, factor), 6, 16, init=sides).module(seed=0)
    assert words in said(audit(wrong, batch, "fixup"))


class Leaky(nn.Module):
    """The first scalar bias is added to the identity path too: where the branch takes it from, once
    more, or behind the sum."""

    def __init__(self, leaks: bool | str) -> None:
        super().__init__()
        self.up, self.down, self.relu = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU()
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(4))
        self.scale, self.leaks = nn.Parameter(torch.ones(())), leaks

    def forward(self, x: Tensor) -> Tensor:
        entered = x + self.biases[0]
        out = self.down(self.relu(self.up(entered) + self.biases[1]) + self.biases[2])
        out = self.scale * out + self.biases[3]
        if self.leaks == "again":
            entered = x + self.biases[0]
        total: Tensor = out + (entered if self.leaks in (True, "again") else x)
        return total + self.biases[0] if self.leaks == "behind" else total


@pytest.mark.parametrize("leaks", [True, "again", "behind", False])
def test_a_bias_on_the_identity_path_is_named(leaks: bool | str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Leaky(leaks) for _ in range(4)), nn.Linear(8, 3))
    words = said(audit(model, torch.randn(4, 8), "fixup"))
    assert ("4 branches whose first scalar bias is added to the skip too" in words) is bool(leaks)
    assert "scalar bias in front" not in words


def filled(path: str, value: float) -> Callable[[nn.Module], None]:
    def plant(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter(path).fill_(value)

    return plant


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("2.up.bias", 0.3, r"1 of 24 scalar biases: size up to 0.3, expected zero \('2.up.bias'\)"),
        ("1.relu.bias", 0.3, "1 of 24 scalar biases"),
        ("6.down.module.bias", -0.3, "1 of 24 scalar biases"),
        ("3.down.bias", 0.3, "1 of 24 scalar biases"),
        ("2.down.scale", 3.0, "1 of 6 scalar multipliers: 3, expected one"),
        ("2.down.scale", -1.0, "1 of 6 scalar multipliers: -1, expected one"),
        ("7.bias", 5.0, "1 of 1 biases of the head: std up to 5, expected zero"),
    ],
)
def test_a_number_that_begins_elsewhere_is_named(path: str, value: float, words: str) -> None:
    model, batch = mlp()
    broken(apply(model, batch, "fixup").model, batch, "fixup", filled(path, value), words)


@pytest.mark.parametrize("leaks", [True, False])
@pytest.mark.parametrize("number", range(4))
def test_numbers_of_a_module_of_its_own_are_set_right(leaks: bool, number: int) -> None:
    torch.manual_seed(0)
    model, batch = (
        nn.Sequential(*(Leaky(leaks) for _ in range(4)), nn.Linear(8, 3)),
        torch.randn(4, 8),
    )
    words = "1 of 16 scalar biases: size up to 2"
    assert "of 16 scalar biases" not in said(audit(model, batch, "fixup"))
    filled(f"1.biases.{number}", 2.0)(model)
    filled("2.scale", 2.0)(model)
    found = said(audit(model, batch, "fixup"))
    assert words in found
    assert "1 of 4 scalar multipliers: 2, expected one" in found
    applied = apply(model, batch, "fixup")
    assert float(applied.model.get_parameter("2.scale").detach()) == 1
    words = said(audit(applied.model, batch, "fixup"))
    assert "scalar biases: " not in words
    assert "scalar multipliers: " not in words


def test_other_numbers_are_no_scalars_of_branches() -> None:
    """One output's bias, and a learned temperature behind the head."""

    class Tempered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = mlp()[0][:-1], nn.Linear(24, 1)  # type: ignore[index]
            self.temperature = nn.Parameter(torch.full((), 2.6))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.temperature * self.head(self.body(x))
            return out

    applied = apply(Tempered(), mlp()[1], "fixup")
    assert audit(applied.model, mlp()[1], "fixup").holds
    assert float(applied.model.get_parameter("temperature").detach()) == pytest.approx(2.6)


def test_a_final_norm_that_was_left_is_named() -> None:
    model, batch = gpt2(activation_function="relu")
    left = apply(model, batch, "fixup").model
    assert audit(left, batch, "fixup").holds
    left.transformer.ln_f = nn.LayerNorm(32)  # type: ignore[union-attr]
    assert "1 norms: Fixup takes their place" in said(audit(left, batch, "fixup"))


@pytest.fixture(scope="module")
def pair() -> tuple[Applied, tuple[Tensor, Tensor]]:
    model, batch = transformer(6, 6)
    return apply(model, batch, "fixup", seed=2), batch


def test_a_transformer_has_thirty_branches(pair: tuple[Applied, tuple[Tensor, Tensor]]) -> None:
    applied, batch = pair
    assert len(applied.left) == 12 + 1
    assert all("is called as a function" in line for line in applied.left[:12])
    found = audit(applied.model, batch, "fixup")
    assert applied.left[12] == said(found)
    assert (found.branches, found.layers) == (30, (2, 4))
    wrong = [finding.said for finding in found.findings if not finding.holds]
    assert wrong == ["0 of 12 activations of branches with a scalar bias in front"]
    counted = layout(applied.model, batch)
    assert counted.streams == {"encoder.layers": 12, "decoder.layers": 18}


def test_the_wrong_count_in_cross_attention_is_named(
    pair: tuple[Applied, tuple[Tensor, Tensor]],
) -> None:
    applied, batch = pair
    copied = apply(*transformer(6, 6), "fixup", seed=2).model
    with torch.no_grad():
        for name, p in copied.named_parameters():
            if "multihead_attn" in name and name.endswith("in_proj_weight"):
                p.mul_(12 ** (-1 / 6) / 30 ** (-1 / 6))
    words = r"18 of 66 inner weights .*: L = 12: the branches of 'encoder.layers' alone"
    found = said(audit(copied, batch, "fixup"))
    assert re.search(words, found), found
    assert "inner weights" not in said(audit(applied.model, batch, "fixup"))


def test_keys_and_values_of_another_stream_are_layers_of_the_branch() -> None:
    """T5, whose table of distances is looked up and is no layer."""
    applied, batch = on_module("fixup", lambda: t5(tie_word_embeddings=False))
    found = layout(applied.model, batch)
    crossing = [b for b in found.branches if "EncDecAttention" in b.path]
    assert [[w.role for w in b.weights] for b in crossing] == [
        ["query", "key", "value", "output"]
    ] * 2
    assert [[w.first for w in b.weights] for b in crossing] == [[True, False, False, False]] * 2
    tables = [w.path for b in found.branches for w in b.weights if w.table]
    assert len(set(tables)) == 2
    assert not [path for path in applied.scalars if path.endswith("SelfAttention.bias")]
    assert sum("EncDecAttention" in path for path in applied.scalars) == 2 * (3 + 2)

    def plant(model: nn.Module) -> None:
        attention = model.get_submodule("decoder.block.1.layer.1.EncDecAttention")
        for name in "kv":
            setattr(attention, name, attention.get_submodule(name).module)

    broken(applied.model, batch, "fixup", plant, "24 of 26 weight layers of branches with a scalar")
    applied, batch = on_module("fixup", lambda: t5(tie_word_embeddings=False))
    words = "2 of 22 inner weights .*: L = 4: the branches of .encoder.block. alone"
    unscaled = scaled("EncDecAttention.k.module.weight", 4 ** (-1 / 6) / 10 ** (-1 / 6))
    broken(applied.model, batch, "fixup", unscaled, words)


def test_a_filter_by_name_that_catches_the_classifiers_bias_is_named() -> None:
    applied = apply(*mlp(), "fixup")
    batch = mlp()[1]
    assert audit(applied.model, batch, "fixup", torch.optim.SGD(applied.groups(0.1))).holds
    slow = [p for name, p in applied.model.named_parameters() if "bias" in name or "scale" in name]
    rest = [p for p in applied.model.parameters() if not any(p is q for q in slow)]
    optimizer = torch.optim.SGD([{"params": rest, "lr": 0.1}, {"params": slow, "lr": 0.01}])
    words = said(audit(applied.model, batch, "fixup", optimizer))
    assert "other parameters learn at the full rate; '0.bias' does not" in words


@pytest.mark.parametrize("strided", [True, False])
def test_strided_blocks_are_read_too(strided: bool) -> None:
    if strided:
        model, batch = resnet()
        applied = apply(model, batch, "fixup")

        def plant(changed: nn.Module) -> None:
            changed.get_submodule("2.k").register_forward_hook(lambda m, x, out: out / 3)

        broken(applied.model, batch, "fixup", plant, "1 of 3 sums: 1 h . 0.3333 F, expected 1 h")
    else:
        model, batch = reference(20)
        found = audit(apply(model, batch, "fixup").model, batch, "fixup")
        assert "activations" in said(found)
        assert "sums" not in said(found)


@pytest.mark.parametrize(("width", "two"), [(4, True), (512, False)])
def test_counts_that_chance_does_not_tell_apart_are_both_named(width: int, two: bool) -> None:
    """Inner weights drawn as if L were 8, of 16: few numbers fit L = 7 or 9 as well."""
    network = Network(
        "h + scalar(1) * W2(relu(W1(h + scalar(0)) + scalar(0)) + scalar(0)) + scalar(0)",
        16,
        width,
        init={"W1": 'he(mode="fan_out", gain=sqrt(2)/sqrt(8))', "W2": "zeros"},
    )
    words = said(audit(network.module(seed=1), torch.randn(2, width), "fixup"))
    assert "16 of 16 inner weights" in words
    assert two or ": L = 8: counted in a part of the network" in words
    assert (", or L = " in words) is two
    assert words.count(", or ") <= 1


class Official(nn.Module):
    """The authors' block: layers and what stands between them, each scalar a parameter of its own,
    the last activation behind the sum. Without ``scalars`` the plain block; ``lacking`` one."""

    def __init__(
        self, sizes: tuple[int, ...], stride: int, pool: bool, scalars: bool, lacking: str = ""
    ) -> None:
        super().__init__()
        kernels = (3, 3) if len(sizes) == 3 else (1, 3, 1)
        strided = len(sizes) - 3  # the first layer of a basic block, the second of a bottleneck
        self.layers = nn.ModuleList(
            nn.Conv2d(a, b, k, stride if i == strided else 1, k // 2, bias=False)
            for i, (a, b, k) in enumerate(zip(sizes, sizes[1:], kernels, strict=False))
        )
        self.relus = nn.ModuleList(nn.ReLU() for _ in kernels)
        shape = (sizes[0], sizes[-1], 1, stride)
        changes, self.pool = sizes[0] != sizes[-1], pool
        layer = nn.AvgPool2d(1, stride) if pool else nn.Conv2d(*shape, bias=False)
        self.shortcut = layer if changes else None
        names = [f"{side}{i}" for i, _ in enumerate(kernels) for side in ("front", "behind")]
        kept = [name for name in names if scalars and name != lacking]
        self.biases = nn.ParameterDict({name: nn.Parameter(torch.zeros(1)) for name in kept})
        self.scale = nn.Parameter(torch.ones(1)) if scalars else None

    def shifted(self, x: Tensor, name: str) -> Tensor:
        return x + self.biases[name] if name in self.biases else x

    def forward(self, x: Tensor) -> Tensor:
        out = entered = self.shifted(x, "front0")
        for i, layer in enumerate(self.layers):
            last = i == len(self.layers) - 1
            out = layer(self.shifted(out, f"front{i}") if i else out)
            out = out * self.scale if last and self.scale is not None else out
            out = self.shifted(out, f"behind{i}")
            out = out if last else self.relus[i](out)
        skip = x
        if self.shortcut is not None and self.pool:
            half = self.shortcut(x)
            skip = torch.cat((half, torch.zeros_like(half)), 1)
        elif self.shortcut is not None:
            skip = self.shortcut(entered)
        total: Tensor = self.relus[-1](out + skip)
        return total


def official(
    kind: str, scalars: bool, lacking: str = "", blocks: int = 2
) -> tuple[nn.Module, Tensor]:
    """Three stages of so many blocks, with the paper's numbers."""
    torch.manual_seed(0)
    made, entering, m = list[nn.Module](), 4, 3 if kind == "bottleneck" else 2
    for stage, width in enumerate((4, 8, 16)):
        for k in range(blocks):
            sizes = (entering, width, width, 4 * width) if m == 3 else (entering, width, width)
            gone = lacking if (stage, k) == (1, 0) else ""
            made.append(Official(sizes, 1 + (stage > 0 and not k), kind == "pool", scalars, gone))
            entering = sizes[-1]
    for block in made:
        for layer in block.layers:  # type: ignore[union-attr]
            fan = layer.weight[:, 0].numel()
            nn.init.normal_(layer.weight, std=(2 / fan) ** 0.5 * fixup_scale(len(made), m))
        nn.init.zeros_(layer.weight)
        if isinstance(short := block.shortcut, nn.Conv2d):
            nn.init.kaiming_normal_(short.weight, mode="fan_out")
    head = nn.Linear(entering, 5)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.ReLU(), nn.Sequential(*made), *ends)
    return model, torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("kind", ["basic", "pool", "bottleneck"])
def test_the_authors_own_resnet_holds_and_is_what_is_applied(kind: str, blocks: int) -> None:
    """The activation behind a sum is the stream's, also in front of a transition, and where every
    block but the first is one."""
    model, batch = official(kind, scalars=True, blocks=blocks)
    found = audit(model, batch, "fixup")
    assert found.holds, said(found)
    plain, _ = official(kind, scalars=False, blocks=blocks)
    applied = apply(plain, batch, "fixup")
    assert len(layout(applied.model, batch).scalars) == len(layout(model, batch).scalars)
    assert audit(applied.model, batch, "fixup").holds


@pytest.mark.parametrize(
    ("kind", "lacking", "words"),
    [
        ("basic", "front0", "11 of 12 weight layers"),
        ("basic", "behind0", "5 of 6 activations"),
        ("pool", "behind0", "5 of 6 activations"),
        ("pool", "front1", "11 of 12 weight layers"),
        ("bottleneck", "behind0", "11 of 12 activations"),
        ("bottleneck", "behind1", "11 of 12 activations"),
        ("bottleneck", "front2", "17 of 18 weight layers"),
    ],
)
def test_a_scalar_that_the_authors_own_block_lacks_is_named(
    kind: str, lacking: str, words: str
) -> None:
    model, batch = official(kind, scalars=True, lacking=lacking)
    wrong = [f.said for f in audit(model, batch, "fixup").findings if not f.holds]
    assert wrong == [f"{words} of branches with a scalar bias in front"]


@pytest.mark.parametrize(
    ("kind", "lacking"), [("basic", "behind1"), ("pool", "behind1"), ("bottleneck", "behind2")]
)
def test_the_scalar_at_a_branch_s_end_stands_in_front_of_the_activation_behind_the_sum(
    kind: str, lacking: str
) -> None:
    model, batch = official(kind, scalars=True, lacking=lacking)
    assert said(audit(model, batch, "fixup")) == (
        "5 of 6 activations behind a sum with a scalar bias in front: the one at the branch's end, "
        "behind its last layer and its multiplier"
    )


class Ended(nn.Module):
    """The last bias at the branch's end, on the sum, or nowhere; an activation behind it or not."""

    def __init__(self, end: str, bent: bool) -> None:
        super().__init__()
        self.up, self.down, self.relu = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU()
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(4))
        self.scale, self.end, self.bent = nn.Parameter(torch.ones(())), end, bent

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.up(x + self.biases[0]) + self.biases[1]) + self.biases[2]
        out = self.down(out)
        out = self.scale * (out + self.biases[3] if self.end == "layer" else out)
        total: Tensor = x + (out + self.biases[3] if self.end == "branch" else out)
        total = total + self.biases[3] if self.end == "sum" else total
        return torch.relu(total) if self.bent else total


@pytest.mark.parametrize("bent", [True, False])
@pytest.mark.parametrize("end", ["layer", "branch", "sum", ""])
def test_it_is_asked_for_where_an_activation_follows_the_sum(end: str, bent: bool) -> None:
    """A number in front of each layer and activation: where the next branch follows, its first."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Ended(end, bent) for _ in range(4)), nn.Linear(8, 3))
    words = said(audit(model, torch.randn(4, 8), "fixup"))
    assert ("activations behind a sum" in words) is (bent and not end)
    assert ("0 of 4 activations behind a sum" in words) is (bent and not end)


@pytest.mark.parametrize("stages", [(2, 2), (1, 1, 1)])
def test_an_activation_in_front_of_a_transition_is_the_branch_s_where_no_sum_is_activated(
    stages: tuple[int, ...],
) -> None:
    """But for the first block's, which begins behind it: no sum is in front."""
    branches = layout(*preactivation(stages)).branches
    assert sum(branch.projected for branch in branches) == len(stages)
    assert [len(branch.activations) for branch in branches] == [1] + [2] * (sum(stages) - 1)


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
@pytest.mark.parametrize("factor", [6 ** (-1 / 2), 0.1, 10.0])
def test_the_shortcuts_weights_have_no_factor_of_the_depth(kind: str, factor: float) -> None:
    model, batch = official(kind, scalars=True)
    applied = apply(model, batch, "fixup").model
    shortcuts = {w.path for b in layout(model, batch).branches for w in b.across}
    for one in (model, applied):

        def plant(model: nn.Module) -> None:
            with torch.no_grad():
                for path in shortcuts:
                    model.get_parameter(path).mul_(factor)

        broken(one, batch, "fixup", plant, r"\d of \d weights of shortcuts: std")


def test_vector_biases_of_branches_begin_at_zero() -> None:
    model, batch = mlp()
    assert "12 of 12 vector biases of branches: std up to" in said(audit(model, batch, "fixup"))
    applied = apply(model, batch, "fixup")
    assert applied.left == ()
    assert "12 vector biases of branches: zero, as Fixup has none" in applied.changes
    assert not any(p.any() for p in parameter(applied.model, "module.bias") if p.numel() > 1)

    def kept(model: nn.Module) -> None:
        bias = max(parameter(model, "2.up.module.bias"), key=Tensor.numel)
        nn.init.uniform_(bias, -0.2, 0.2)

    broken(applied.model, batch, "fixup", kept, "1 of 12 vector biases of branches: std up to")


def _inner_words(model: nn.Module, batch: Tensor) -> str:
    findings = audit(model, batch, "fixup").findings
    return next(f.said for f in findings if f.part == "inner weights of branches")


@pytest.mark.parametrize("depth", [4, 8, 24])
@pytest.mark.parametrize(
    ("init", "words"),
    [
        ("lecun", "LeCun's or Xavier's: the depth scale was never applied"),
        ("xavier", "LeCun's or Xavier's: the depth scale was never applied"),
        ("torch", "PyTorch's default: the depth scale was never applied"),
        ('he(mode="fan_out")', ": the depth scale was never applied$"),
        (
            'he(mode="fan_out", gain=sqrt(2)*3**(-1/2))',
            "L = 3: counted in a part of the network$",
        ),
    ],
)
def test_usual_weights_are_no_count(depth: int, init: str, words: str) -> None:
    """LeCun's are He's over sqrt(2), and PyTorch's He's over sqrt(6), at every depth."""
    model = Network("h + W2(relu(W1(h)))", depth, 64, init=init).module(seed=0)
    found = _inner_words(model, torch.randn(4, 64))
    assert re.search(words, found), found
    assert (": L = " in found or ", or L = " in found) is ("3**" in init)


def staged(stages: int, each: int, scale: float | None) -> tuple[nn.Module, Tensor]:
    """Blocks of two layers in lists of ``each``; without a scale LeCun's weights."""
    torch.manual_seed(0)
    lists = [nn.Sequential(*(Ended("branch", False) for _ in range(each))) for _ in range(stages)]
    model = nn.Sequential(*lists, nn.Linear(8, 3))
    for part in model.modules():
        if isinstance(part, Ended):
            std = 8**-0.5 if scale is None else (2 / 8) ** 0.5 * scale
            nn.init.normal_(part.up.weight, std=std)
    return model, torch.randn(4, 8)


@pytest.mark.parametrize("scale", [None, fixup_scale(2, 2)])
def test_where_parts_have_two_branches_that_count_is_named_too(scale: float | None) -> None:
    """And LeCun's weights, of which no number tells it."""
    found = _inner_words(*staged(8, 2, scale))
    assert "L = 2: counted in a part of the network, or LeCun's" in found
    assert "L = 2" not in _inner_words(*staged(4, 4, scale))
    assert "LeCun's" in _inner_words(*staged(4, 4, scale))


def counting_shortcuts(kind: str, stages: tuple[int, ...], which: str) -> tuple[nn.Module, Tensor]:
    """Blocks whose m counts the shortcut: those that have one, one of them, all, or none."""
    torch.manual_seed(0)
    made, entering, m = list[Official](), 8, 3 if kind == "bottleneck" else 2
    for stage, number in enumerate(stages):
        width = 8 * 2**stage
        for k in range(number):
            sizes = (entering, width, width, 4 * width) if m == 3 else (entering, width, width)
            made.append(Official(sizes, 1 + (stage > 0 and not k), False, True))
            entering = sizes[-1]
    crossed = [block for block in made if block.shortcut is not None]
    wrong = {"none": [], "crossed": crossed, "last": crossed[-1:], "all": made}[which]
    for block in made:
        scale = fixup_scale(len(made), m + any(block is one for one in wrong))
        for layer in block.layers:
            fan = layer.weight[:, 0].numel()  # type: ignore[index]
            nn.init.normal_(layer.weight, std=(2 / fan) ** 0.5 * scale)  # type: ignore[arg-type]
        nn.init.zeros_(block.layers[-1].weight)  # type: ignore[arg-type]
        if isinstance(block.shortcut, nn.Conv2d):
            nn.init.kaiming_normal_(block.shortcut.weight, mode="fan_out")
    head = nn.Linear(entering, 5)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.Sequential(*made), *ends)
    return model, torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("kind", "stages"), [("basic", (3, 3, 3)), ("bottleneck", (3, 4, 6, 3)), ("basic", (2, 2, 2))]
)
def test_a_shortcut_that_is_counted_where_it_stands_is_named(
    kind: str, stages: tuple[int, ...]
) -> None:
    words = f": m = {4 if kind == 'bottleneck' else 3}: the shortcut was counted"
    assert audit(*counting_shortcuts(kind, stages, "none"), "fixup").holds
    own = said(audit(*counting_shortcuts(kind, stages, "crossed"), "fixup"))
    assert words in own
    assert "L = " not in own.partition(words)[2]
    assert words not in said(audit(*counting_shortcuts(kind, stages, "last"), "fixup"))
    every = said(audit(*counting_shortcuts(kind, stages, "all"), "fixup"))
    assert words.removeprefix(":") in every


@pytest.mark.parametrize(("branches", "layers"), [(True, 2), (54, True), (54, 2.0), (5.5, 2)])
def test_counts_are_whole_numbers(branches: int, layers: int) -> None:
    with pytest.raises(NetworkError, match="expected a whole number of at least 1"):
        fixup_scale(branches, layers)
