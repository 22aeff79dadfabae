"""Models that are not a plain stack of modules: what is measured, what is refused, in which words.

The reference is slow and obvious: hooks keep copies of what modules return and of the gradients
that reach it, in a plain pass of a copy of the model, and NumPy takes the statistics in float64.
"""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from depthgauge.arguments import quantities_of
from depthgauge.errors import (
    ModelError,
    NetworkError,
    SpecificationError,
    TargetError,
    UsageError,
)
from depthgauge.measurement import measure
from depthgauge.profile import Profile
from depthgauge.sites import QUANTITIES

EXACT = 1e-10  # float64
SINGLE = 1e-4  # float32

WIDTH, DATA, CLASSES = 8, 5, 3

# ---------------------------------------------------------------------------------- models


class Block(nn.Module):
    """The pre-norm block with a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = nn.ReLU()
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(self.act(self.up(self.norm(x))))
        return x


class Stack(nn.Module):
    """A stem, three blocks and a head: states after the stem and after each block."""

    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.stem = nn.Linear(DATA, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(x))


STATES = ("stem", "blocks.0", "blocks.1", "blocks.2")


def data(examples: int = 6) -> Tensor:
    return torch.randn(examples, DATA, dtype=torch.float64)


def made(kind: Callable[..., nn.Module] = Stack, *args: Any, seed: int = 0) -> Any:
    """A model in float64, drawn from a seed."""
    torch.manual_seed(seed)
    return kind(*args).double()


def square(output: Tensor) -> Tensor:
    return output.square().sum()


# ------------------------------------------------------------------------------- reference


def quantile(x: np.ndarray[Any, Any], q: float) -> float:
    ordered = np.sort(np.abs(x))
    return float(ordered[max(math.ceil(q * x.size), 1) - 1])


STATISTICS: dict[str, Callable[[np.ndarray[Any, Any]], float]] = {
    "rms": lambda x: math.sqrt(np.mean(x**2)),
    "mean": lambda x: float(np.mean(x)),
    "max": lambda x: float(np.max(np.abs(x))),
    "q01": lambda x: quantile(x, 0.01),
    "q50": lambda x: quantile(x, 0.5),
    "q99": lambda x: quantile(x, 0.99),
    "q999": lambda x: quantile(x, 0.999),
}


class Rivers(NamedTuple):
    states: list[Tensor]
    gradients: list[Tensor]


def reference(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any], Tensor] | None = square,
    paths: Sequence[str] = STATES,
) -> Rivers:
    """What the modules at ``paths`` return and the gradients there, by hooks on a copy."""
    model = copy.deepcopy(model)
    states: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}

    def keep(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, out: Any) -> None:
            out = out[0] if isinstance(out, tuple) else out
            states.setdefault(path, out.detach().clone())
            if out.requires_grad:
                out.register_hook(lambda g: gradients.__setitem__(path, g.clone()))

        return hook

    for path in paths:
        model.get_submodule(path).register_forward_hook(keep(path))
    output = (
        model(**batch)
        if isinstance(batch, dict)
        else model(*batch)
        if isinstance(batch, tuple)
        else model(batch)
    )
    if loss is not None:
        loss(output).backward()
    return Rivers([states[p] for p in paths], [gradients[p] for p in paths if p in gradients])


def assert_rivers(profile: Profile, expected: Rivers, rel: float = EXACT) -> None:
    """Every statistic of both rivers at every state."""
    for river, tensors in zip(("state", "gradient"), expected, strict=True):
        arrays = [t.double().numpy().ravel() for t in tensors]
        for name, formula in STATISTICS.items():
            found, wanted = profile[f"{river}_{name}"], [formula(a) for a in arrays]
            assert found == pytest.approx(wanted, rel=rel, abs=rel * 1e-2), f"{river}_{name}"


def assert_same(found: Profile, expected: Profile, rel: float = EXACT, paths: bool = True) -> None:
    """The same sites, quantities and numbers."""
    place = [(s.block, s.role, s.path if paths else "") for s in found.sites]
    assert place == [(s.block, s.role, s.path if paths else "") for s in expected.sites]
    assert set(found.columns) == set(expected.columns)
    for name in expected.columns:
        assert found[name] == pytest.approx(expected[name], rel=rel, abs=1e-14, nan_ok=True), name


def paths_of(profile: Profile, name: str = "state_rms") -> list[str]:
    return [site.path for site in profile.sites_of(name)]


def notes_of(profile: Profile) -> list[str]:
    notes = profile.settings["notes"]
    assert isinstance(notes, list)
    return notes


def test_an_ordinary_model_is_that_of_the_reference() -> None:
    """Both rivers, activations and branches: what all other tests compare with."""
    model, x = made(), data()
    profile = measure(model, x, square)
    assert paths_of(profile) == list(STATES)
    assert_rivers(profile, reference(model, x))
    assert set(profile.columns) == set(quantities_of("fast")) - {"token_correlation"}
    inner = ("blocks.0", "blocks.1", "blocks.2")
    z = reference(model, x, paths=[f"{p}.up" for p in inner]).states
    live = [(a > 0).double().mean().item() for a in z]
    assert profile["live_derivative_fraction"] == pytest.approx(live, rel=EXACT)
    assert profile["saturated_fraction"] == pytest.approx([1 - a for a in live], rel=EXACT)
    dead = [(a <= 0).all(0).double().mean().item() for a in z]
    assert profile["dead_fraction"] == pytest.approx(dead, rel=EXACT)
    streams = reference(model, x).states[:-1]
    branches = reference(model, x, paths=[f"{p}.down" for p in inner]).states
    size = [b.norm().item() / math.sqrt(b.numel()) for b in branches]
    assert profile["branch_rms"] == pytest.approx(size, rel=EXACT)
    ratio = [(b.norm() / s.norm()).item() for b, s in zip(branches, streams, strict=True)]
    assert profile["branch_to_stream"] == pytest.approx(ratio, rel=EXACT)
    cosine = [
        (b.flatten() @ s.flatten() / b.norm() / s.norm()).item()
        for b, s in zip(branches, streams, strict=True)
    ]
    assert profile["branch_stream_cosine"] == pytest.approx(cosine, rel=EXACT)
    assert paths_of(profile, "branch_rms") == [f"{p}.down" for p in inner]
    assert paths_of(profile, "dead_fraction") == [f"{p}.act" for p in inner]


def test_the_reference_can_fail() -> None:
    model, x = made(), data()
    other = made(seed=1)
    with pytest.raises(AssertionError):
        assert_rivers(measure(model, x, square), reference(other, x))
    with pytest.raises(AssertionError):
        assert_same(measure(model, x), measure(other, x))


def test_without_a_loss_a_cotangent_of_rms_1_is_drawn_from_the_seed() -> None:
    model, x = made(), data()

    def at_the_output(seed: int) -> Callable[[Any], Tensor]:
        draw = torch.randn(6, CLASSES, generator=torch.Generator().manual_seed(seed))
        draw = draw.double() / draw.double().square().mean().sqrt()
        return lambda y: (y * draw).sum()

    for seed in (0, 5):
        profile = measure(model, x, seed=seed)
        assert_rivers(profile, reference(model, x, at_the_output(seed)), rel=1e-6)
        assert profile.seeds == (seed,)
        said = "standard normal, divided by its RMS, at the output"
        assert profile.settings["cotangent"] == said
    other = measure(model, x, seed=5)["gradient_rms"]
    assert not np.allclose(measure(model, x)["gradient_rms"], other)
    with pytest.raises(SpecificationError) as caught:
        measure(model, x, seed=(0, 1))
    assert str(caught.value) == (
        "seed names several seeds, but a module's weights are what they are; give one, which "
        "draws the cotangent"
    )


# -------------------------------------------------------------------------------- wrappers


def counting() -> tuple[Callable[..., Any], list[int]]:
    """A backend of ``torch.compile`` that counts what it compiles and runs it as it is."""
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    return backend, compiled


def test_a_compiled_model_runs_uncompiled_and_stays_compiled() -> None:
    torch._dynamo.reset()
    model, x = made(), data()
    backend, compiled = counting()
    wrapped: Any = torch.compile(model, backend=backend)
    profile = measure(wrapped, x, square)
    assert_same(profile, measure(model, x, square))
    assert compiled == []
    assert profile.target == "Stack"
    assert notes_of(profile) == [
        "the compiled model ran uncompiled: hooks do not fire in compiled code"
    ]
    assert torch.equal(wrapped(x), model(x))
    assert compiled
    compiled.clear()
    assert_same(measure(wrapped, x, square), profile)
    wrapped(x)
    assert compiled == []  # what was compiled is still there


#: torch warns when an ``OptimizedModule`` runs while there are global hooks, as ours are.
GLOBAL_HOOKS = "ignore:Using `torch.compile:UserWarning"


@pytest.mark.filterwarnings(GLOBAL_HOOKS)
def test_a_compiled_submodule() -> None:
    torch._dynamo.reset()
    model, x = made(), data()
    expected = measure(model, x, square)
    backend, compiled = counting()
    model.blocks[1] = torch.compile(model.blocks[1], backend=backend)
    profile = measure(model, x, square)
    assert_same(profile, expected, paths=False)
    assert compiled == []
    assert notes_of(profile) == [
        "compiled submodules ran uncompiled: hooks do not fire in compiled code"
    ]
    with torch.no_grad():
        model(x)
    assert compiled


def test_a_compiled_submodule_runs_without_a_warning() -> None:
    torch._dynamo.reset()
    model, x = made(), data()
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    assert measure(model, x, square).branches == 3


@pytest.mark.filterwarnings(GLOBAL_HOOKS)
def test_compiled_submodules_were_called_and_those_that_were_not_are_named() -> None:
    torch._dynamo.reset()
    model, x = made(), data()
    model.blocks = nn.ModuleList(
        torch.compile(block, backend="eager")  # type: ignore[misc]
        for block in model.blocks
    )
    model.spare = torch.compile(nn.Linear(3, 3), backend="eager")
    (spare,) = measure(model, x, square).coverage["not_called"]
    assert spare == ("spare", "Linear was never called in this pass")


@pytest.mark.filterwarnings(GLOBAL_HOOKS)
def test_the_wrapper_of_a_compiled_submodule_is_not_in_its_path() -> None:
    torch._dynamo.reset()
    model, x = made(), data()
    expected = measure(model, x, square)
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    assert_same(measure(model, x, square), expected)


@pytest.mark.parametrize("inner", [False, True], ids=["model", "submodule"])
def test_a_module_compiled_in_place(inner: bool) -> None:
    torch._dynamo.reset()
    model, x = made(), data()
    expected = measure(model, x, square)
    backend, compiled = counting()
    (model.blocks[1] if inner else model).compile(backend=backend)
    profile = measure(model, x, square)
    assert_same(profile, expected)
    assert compiled == []
    assert notes_of(profile) == [
        "modules compiled in place ran uncompiled: hooks do not fire in compiled code"
    ]
    with torch.no_grad():
        model(x)
    assert compiled


def test_data_parallel_on_the_cpu() -> None:
    model, x = made(), data()
    profile = measure(nn.DataParallel(model), x, square)
    assert_same(profile, measure(model, x, square))
    assert profile.target == "Stack"
    assert notes_of(profile) == ["the module inside DataParallel was measured, on one device"]


DISTRIBUTED = """\
import sys, warnings
import torch
from torch import distributed, nn
from depthgauge import measure

warnings.simplefilter("error")
distributed.init_process_group(
    "gloo", store=distributed.FileStore(sys.argv[1], 1), rank=0, world_size=1
)
torch.manual_seed(0)
model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(3, 4)
expected = measure(model, x)
wrapped = nn.parallel.DistributedDataParallel(model)
profile = measure(wrapped, x)
assert profile.settings["notes"] == [
    "the module inside DistributedDataParallel was measured, on one device"
]
assert profile.target == "Sequential"
assert profile.sites == expected.sites
for name in expected.columns:
    assert (profile[name] == expected[name]).all(), name
assert all(p.grad is None for p in model.parameters())
wrapped(x).sum().backward()
assert all(p.grad is not None for p in model.parameters())
distributed.destroy_process_group()
print("the same")
"""


def test_distributed_data_parallel(tmp_path: Any) -> None:
    """A group of one process, in a process of its own."""
    command = [sys.executable, "-c", DISTRIBUTED, str(tmp_path / "store")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "the same\n"), ran.stderr


# ----------------------------------------------------------------------------- checkpoints


class Checkpoints(Stack):
    """Each block, or all of them as one, in a checkpoint."""

    def __init__(self, reentrant: bool, whole: bool) -> None:
        super().__init__()
        self.reentrant, self.whole = reentrant, whole

    def body(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.whole:
            return checkpoint(self.body, x, use_reentrant=self.reentrant)  # type: ignore[no-any-return]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


LAST = "the gradient at the last block's output is not read where only the head sees it require one"


@pytest.mark.parametrize(
    "reentrant",
    [False, pytest.param(True)],
    ids=["new", "re-entrant"],
)
def test_checkpointed_blocks_are_those_without_a_checkpoint(reentrant: bool) -> None:
    """What a block returns leaves the checkpoint, so that its gradient is known too."""
    model, x = made(Checkpoints, reentrant, False), data()
    plain = made()
    plain.load_state_dict(model.state_dict())
    profile, expected = measure(model, x, square), measure(plain, x, square)
    assert_same(profile, expected)
    assert profile.branches == 3
    assert_rivers(profile, reference(plain, x))


@pytest.mark.parametrize(
    "reentrant",
    [
        False,
        pytest.param(True),
    ],
    ids=["new", "re-entrant"],
)
def test_what_a_gradient_was_measured_at_is_not_reported_to_have_none(reentrant: bool) -> None:
    profile = measure(made(Checkpoints, reentrant, False), data(), square)
    measured = set(paths_of(profile, "gradient_rms"))
    assert {"stem", "blocks.0", "blocks.1"} <= measured
    assert measured.isdisjoint(dict(profile.coverage["no_gradient"]))


def test_blocks_inside_one_checkpoint() -> None:
    model, x = made(Checkpoints, False, True), data()
    plain = made()
    plain.load_state_dict(model.state_dict())
    assert_same(measure(model, x, square), measure(plain, x, square))


def test_blocks_inside_one_reentrant_checkpoint_have_states_and_no_gradients() -> None:
    """Its first pass has no gradients and its second one is no part of the forward pass."""
    model, x = made(Checkpoints, True, True), data()
    plain = made()
    plain.load_state_dict(model.state_dict())
    profile = measure(model, x, square)
    expected = reference(plain, x)
    root = [STATISTICS["rms"](t.numpy()) for t in expected.states]
    assert profile["state_rms"] == pytest.approx(root, rel=EXACT)
    assert paths_of(profile) == list(STATES)
    gradients = dict(zip(STATES, expected.gradients, strict=True))
    for site, value in zip(profile.sites_of("gradient_rms"), profile["gradient_rms"], strict=True):
        assert value == pytest.approx(STATISTICS["rms"](gradients[site.path].numpy()), rel=EXACT)
    known = set(paths_of(profile, "gradient_rms"))
    assert {"stem", "blocks.2"} <= known
    reported = {entry["path"] for entry in profile.to_dict()["coverage"]["no_gradient"]}
    assert set(STATES) - known <= reported


# -------------------------------------------------------------------------------- autocast


class Autocast(Stack):
    def features(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = super().features(x)
        return x.float()


@pytest.mark.parametrize("inside", [True, False], ids=["in the forward pass", "around the call"])
def test_autocast(inside: bool) -> None:
    torch.manual_seed(0)
    model, x = (Autocast if inside else Stack)(), data().float()
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        profile = measure(model, x, lambda y: square(y.float()))
        expected = reference(model, x, lambda y: square(y.float()))
    assert expected.states[0].dtype == torch.bfloat16
    assert_rivers(profile, expected, SINGLE)
    exact = reference(model.double(), x.double(), paths=STATES) if not inside else None
    if exact is not None:
        root = [STATISTICS["rms"](t.numpy()) for t in exact.states]
        assert profile["state_rms"] == pytest.approx(root, rel=0.02)


# --------------------------------------------------------------------- gradients cut, frozen


@pytest.mark.parametrize("frozen", ["all", "half"])
@pytest.mark.parametrize("words", [False, True], ids=["numbers", "tokens"])
def test_frozen_parameters_change_no_number(frozen: str, words: bool) -> None:
    """Both rivers are measured: a gradient at a state needs no parameter that is trained."""
    model, x = made(), data()
    if words:
        model.stem, x = nn.Embedding(9, WIDTH).double(), torch.randint(9, (6, 4))
    expected = measure(model, x, square)
    rivers = reference(model, x)
    part = model if frozen == "all" else nn.ModuleList([model.stem, *model.blocks[:2]])
    part.requires_grad_(False)
    profile = measure(model, x, square)
    assert_same(profile, expected)
    assert_rivers(profile, rivers)
    assert profile.coverage["no_gradient"] == ()


class Backbone(nn.Module):
    """A part without gradients, then a part with them."""

    def __init__(self, cut: str) -> None:
        super().__init__()
        self.cut = cut
        self.body, self.top = Stack(), Stack()
        self.top.stem = nn.Linear(CLASSES, WIDTH)

    def forward(self, x: Tensor) -> Any:
        if self.cut == "no_grad":
            with torch.no_grad():
                x = self.body(x)
        elif self.cut == "inference_mode":
            with torch.inference_mode():
                x = self.body(x)
            x = x.clone()
        else:
            x = self.body(x).detach()
        return self.top(x)


TOP = tuple(f"top.{path}" for path in STATES)


@pytest.mark.parametrize("cut", ["no_grad", "detach", "inference_mode"])
def test_a_part_without_gradients_stands_beside_one_that_is_measured(cut: str) -> None:
    model, x = made(Backbone, cut), data()
    profile = measure(model, x, square)
    expected = reference(model, x, paths=TOP)
    found = {
        (site.path, name): value
        for name in ("state_rms", "gradient_rms")
        for site, value in zip(profile.sites_of(name), profile[name], strict=True)
    }
    for path, state, gradient in zip(TOP, *expected, strict=True):
        assert found[path, "state_rms"] == pytest.approx(STATISTICS["rms"](state.numpy()))
        assert found[path, "gradient_rms"] == pytest.approx(STATISTICS["rms"](gradient.numpy()))
    assert not any(path.startswith("body") for path in paths_of(profile, "gradient_rms"))
    entries = dict(profile.coverage["no_gradient"])
    assert {name for name in entries if name.startswith("body.")} >= {
        f"body.{name}" for name, _ in model.body.named_parameters()
    }
    assert not any(name.startswith("top.") for name in entries)
    if cut == "no_grad":
        assert entries["body.stem"] == "it ran with gradients switched off"


class Blind(Stack):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Any:
        return super().forward(x)


def test_a_whole_forward_pass_without_gradients_has_states_and_a_reason() -> None:
    model, x = made(Blind), data()
    profile = measure(model, x)
    root = [STATISTICS["rms"](t.numpy()) for t in reference(model, x, None).states]
    assert profile["state_rms"] == pytest.approx(root, rel=EXACT)
    assert paths_of(profile) == list(STATES)
    assert "gradient_rms" not in profile
    reason = "the output does not depend on any tensor that a gradient could reach"
    assert profile.not_measured["gradient_rms"] == reason
    assert profile.settings["cotangent"] == "none"
    document = profile.to_dict()
    assert document["summary"]["gradient_ratio"]["value"] is None
    assert document["summary"]["gradient_ratio"]["value_reason"] == reason
    missing = {entry["path"] for entry in document["coverage"]["no_gradient"]}
    assert {name for name, _ in model.named_parameters()} <= missing


def test_a_stopped_gradient_stays_stopped() -> None:
    """Straight-through rounding: forward the rounded state, backward the identity."""

    class Rounded(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            return x + (x.mul(4).round().div(4) - x).detach() * 1.0

    model, x = made(Stack, Rounded), data()
    profile = measure(model, x, square)
    expected = reference(model, x)
    last = STATISTICS["rms"](expected.gradients[0].numpy())
    assert profile["gradient_rms"][0] == pytest.approx(last, rel=EXACT)


class Scaled(torch.autograd.Function):
    """The identity, whose gradient comes back three times as large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g


class Weighed(torch.autograd.Function):
    """A linear layer written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return g @ weight, g.T @ x


@pytest.mark.parametrize("kind", ["scaled", "weighed"])
def test_a_function_with_a_gradient_of_its_own(kind: str) -> None:
    class Custom(Block):
        def forward(self, x: Tensor) -> Tensor:
            y = self.act(self.up(self.norm(x)))
            if kind == "scaled":
                x = x + self.down(Scaled.apply(y))
            else:
                x = x + Weighed.apply(y, self.down.weight)
            return x

    model, x = made(Stack, Custom), data()
    profile = measure(model, x, square)
    assert paths_of(profile) == list(STATES)
    assert_rivers(profile, reference(model, x))
    assert profile.branches == 3


# --------------------------------------------------------------------------------- refused


class Complex(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.layer = where, nn.Linear(DATA, DATA).double()

    def forward(self, x: Tensor) -> Any:
        y = torch.complex(self.layer(x), x)
        return {"good": y.real, "bad": y} if self.where else y


LAZY = (
    "parameter '0.weight' has no shape yet (a lazy module); run the model once on a batch before "
    "it is measured"
)
META = (
    "parameter '0.weight' is on the meta device, which holds no numbers; call "
    "model.to_empty(device='cpu') and initialise the model before it is measured"
)
TWO_REAL = "depthgauge measures real networks, so give real and imaginary part as two real tensors"


def line(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(DATA, 2, **options))


def with_meta_buffer() -> nn.Module:
    model = line(dtype=torch.float64)
    model.register_buffer("table", torch.ones(2, device="meta"))
    return model


class Nothing(nn.Module):
    def __init__(self, output: Any = None) -> None:
        super().__init__()
        self.output, self.layer = output, nn.Linear(DATA, DATA).double()

    def forward(self, x: Tensor) -> Any:
        self.layer(x)
        return self.output


REFUSED: list[tuple[str, Callable[[], Any], Any, type[Exception], str]] = [
    ("meta parameter", lambda: line(device="meta"), data, NetworkError, META),
    (
        "meta buffer",
        with_meta_buffer,
        data,
        NetworkError,
        "buffer 'table' is on the meta device, which holds no numbers; call "
        "model.to_empty(device='cpu') and initialise the model before it is measured",
    ),
    ("lazy", lambda: nn.Sequential(nn.LazyLinear(3)), data, NetworkError, LAZY),
    ("lazy statistics", lambda: nn.LazyBatchNorm1d(), data, NetworkError, LAZY.replace("0.", "")),
    (
        "complex parameter",
        lambda: line(dtype=torch.complex64),
        data,
        NetworkError,
        "parameter '0.weight' is complex (torch.complex64); depthgauge measures real networks, so "
        "write real and imaginary part as two real tensors",
    ),
    (
        "complex batch",
        line,
        lambda: data().to(torch.complex128),
        NetworkError,
        f"the batch is complex (torch.complex128); {TWO_REAL}",
    ),
    (
        "complex part of a batch",
        line,
        lambda: {"input": data(), "phase": [data().to(torch.complex64)]},
        NetworkError,
        f"the batch's tensor 'phase.0' is complex (torch.complex64); {TWO_REAL}",
    ),
    (
        "complex output",
        lambda: Complex(""),
        data,
        NetworkError,
        "the model's output is complex (torch.complex128); depthgauge measures real networks, so "
        "return its real and imaginary part",
    ),
    (
        "complex part of an output",
        lambda: Complex("bad"),
        data,
        NetworkError,
        "the model's output 'bad' is complex (torch.complex128); depthgauge measures real "
        "networks, so return its real and imaginary part",
    ),
    (
        "meta batch",
        line,
        lambda: torch.ones(2, DATA, device="meta"),
        NetworkError,
        "the batch is on the meta device, which holds no numbers",
    ),
    (
        "empty batch",
        line,
        lambda: torch.ones(0, DATA),
        NetworkError,
        "the batch is empty, of shape (0, 5)",
    ),
    (
        "empty part of a batch",
        line,
        lambda: (torch.ones(3, 0),),
        NetworkError,
        "the batch's tensor '0' is empty, of shape (3, 0)",
    ),
    (
        "no output",
        Nothing,
        data,
        TargetError,
        "the model returned NoneType without a tensor in it; return a tensor, or a tuple, dict or "
        "dataclass of tensors",
    ),
    (
        "an output of numbers",
        lambda: Nothing({"loss": 0.5, "more": ["a"]}),
        data,
        TargetError,
        "the model returned dict without a tensor in it; return a tensor, or a tuple, dict or "
        "dataclass of tensors",
    ),
    (
        "no batch",
        line,
        lambda: None,
        SpecificationError,
        "batch is None, expected the data for a module: a tensor, a tuple of arguments or a dict "
        "of keyword arguments",
    ),
    (
        "a number of examples",
        line,
        lambda: 128,
        SpecificationError,
        "batch is 128, expected the data for a module: a tensor, a tuple of arguments or a dict "
        "of keyword arguments",
    ),
    (
        "too few arguments",
        made,
        lambda: (),
        ModelError,
        "the forward pass of the model (Stack) raised TypeError: Stack.forward() missing 1 "
        "required positional argument: 'x'",
    ),
    (
        "another width",
        made,
        lambda: data()[:, 1:],
        ModelError,
        "the forward pass of 'stem' (Linear) raised RuntimeError: mat1 and mat2 shapes cannot be "
        "multiplied (6x4 and 5x8)",
    ),
    (
        "keys that name no argument",
        made,
        lambda: {1: data()},
        TargetError,
        "the batch has the key 1, expected the names of the model's arguments; give a tensor, a "
        "tuple, or a dict whose keys are strings",
    ),
    (
        "another precision",
        made,
        lambda: data().float(),
        ModelError,
        "the forward pass of 'stem' (Linear) raised RuntimeError: mat1 and mat2 must have the "
        "same dtype, but got Float and Double",
    ),
]


@pytest.mark.parametrize(
    ("build", "batch", "kind", "message"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
def test_refused_with_a_sentence(
    build: Callable[[], Any], batch: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        measure(build(), batch())
    assert type(caught.value) is kind
    assert str(caught.value) == message


OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    (
        "include",
        dict(include="blocks.["),
        "include is 'blocks.[', expected a regular expression on module names (unterminated "
        "character set at position 7)",
    ),
    (
        "exclude",
        dict(exclude="*"),
        "exclude is '*', expected a regular expression on module names (nothing to repeat at "
        "position 0)",
    ),
    (
        "depth",
        dict(depth=3),
        "depth was given with a module, which has its own; build or convert the model as it is to "
        "be measured",
    ),
    (
        "dtype",
        dict(dtype="float32"),
        "dtype was given with a module, which has its own; build or convert the model as it is to "
        "be measured",
    ),
    ("seed", dict(seed=-1), "seed is -1, expected a whole number of at least 0 or several of them"),
    (
        "instruments",
        dict(instruments="rivrs"),
        "instruments names 'rivrs', expected one of fast, balanced, thorough, all, rivers, "
        "quantiles, gates, branches, correlation, jacobian, directions, stiffness, blocks, "
        "spectrum, updates, precision or a quantity (did you mean 'rivers'?)",
    ),
]


@pytest.mark.parametrize(
    ("options", "message"), [row[1:] for row in OPTIONS], ids=[row[0] for row in OPTIONS]
)
def test_options_that_cannot_be_used(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecificationError) as caught:
        measure(made(), data(), **options)
    assert str(caught.value) == message


def test_the_error_names_the_module_and_keeps_the_cause() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("nothing")

    model = made()
    model.blocks[1].act = Fails()
    with pytest.raises(ModelError) as caught:
        measure(model, data())
    assert str(caught.value) == (
        "the forward pass of 'blocks.1.act' (Fails) raised KeyError: 'nothing'"
    )
    assert caught.value.path == "blocks.1.act"
    assert isinstance(caught.value.__cause__, KeyError)


# --------------------------------------------------------------------------- loss and output


@dataclass
class Answer:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | None = None
    name: str = "answer"


class Pair(NamedTuple):
    logits: Tensor
    extra: Tensor


class Returns(Stack):
    """Returns what a function makes of logits and features."""

    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        features = self.features(x)
        return self.make(self.head(features), features)


OUTPUTS: list[tuple[str, Callable[[Tensor, Tensor], Any], Callable[[Any], Tensor], str]] = [
    (
        "loss in a dict",
        lambda y, h: {"logits": y, "loss": square(y), "other_loss": h.sum()},
        lambda out: out["loss"],
        "the gradient of the loss among the outputs",
    ),
    (
        "loss in a dataclass",
        lambda y, h: Answer(y, (h,), loss=square(y)),
        lambda out: out.loss,
        "the gradient of the loss among the outputs",
    ),
    (
        "loss inside of a tuple",
        lambda y, h: (h, {"loss": square(y)[None]}),
        lambda out: out[1]["loss"].sum(),
        "the gradient of the loss among the outputs",
    ),
    ("a scalar", lambda y, h: square(y), lambda out: out, "the gradient of the loss returned"),
    (
        "several losses",
        lambda y, h: {"one": square(y), "two": 2 * y.sum(), "three": h.square().mean()},
        lambda out: sum(out.values()),
        "the gradient of the sum of the 3 losses returned",
    ),
]


class Scores(NamedTuple):
    logits: Tensor
    total: Tensor


ONE = "the gradient of the loss among the outputs ('{}', the only single number with one)"
TUPLES: list[tuple[str, Callable[[Tensor, Tensor], Any], int, str]] = [
    ("first", lambda y, h: (square(y), y), 0, "0"),
    ("last", lambda y, h: (y, square(y)), 1, "1"),
    ("with an axis", lambda y, h: (y, square(y)[None]), 1, "1"),
    ("beside features", lambda y, h: [h, y.softmax(-1), square(y)], 2, "2"),
    ("beside an error rate", lambda y, h: (square(y), y, (y > 0).double().mean()), 0, "0"),
    ("beside a logged loss", lambda y, h: (square(y), y, h.detach().square().mean()), 0, "0"),
    ("in a named tuple", lambda y, h: Scores(y, square(y)), 1, "total"),
]


@pytest.mark.parametrize(
    ("make", "place", "name"), [row[1:] for row in TUPLES], ids=[row[0] for row in TUPLES]
)
def test_the_one_number_in_a_tuple_is_the_loss(
    make: Callable[[Tensor, Tensor], Any], place: int, name: str
) -> None:
    model, x = made(Returns, make), data()
    profile = measure(model, x)
    assert profile.settings["cotangent"] == ONE.format(name)
    assert_rivers(profile, reference(model, x, lambda out: out[place].sum()), rel=1e-6)


NO_LOSSES: list[tuple[str, Callable[[Tensor, Tensor], Any], str]] = [
    ("two of them", lambda y, h: (square(y), y, y.sum()), "1"),
    ("of the features alone", lambda y, h: (y, h.square().mean()), "0"),
    ("of no gradient", lambda y, h: (square(y).detach(), y), "1"),
    ("deeper inside", lambda y, h: (y, [square(y)]), "0"),
    ("in a dict", lambda y, h: {"logits": y, "total": square(y)}, "logits"),
]


@pytest.mark.parametrize(
    ("make", "name"), [row[1:] for row in NO_LOSSES], ids=[row[0] for row in NO_LOSSES]
)
def test_one_number_that_may_be_something_else_is_no_loss(
    make: Callable[[Tensor, Tensor], Any], name: str
) -> None:
    profile = measure(made(Returns, make), data())
    assert profile.settings["cotangent"] == f"standard normal, divided by its RMS, at {name}"


def test_a_temperature_and_one_prediction_are_no_losses() -> None:
    class Scaled(Stack):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Any:
            return self.features(x), self.scale.exp()

    profile = measure(made(Scaled), data())
    assert profile.settings["cotangent"] == "standard normal, divided by its RMS, at 0"
    value = made(Returns, lambda y, h: (h, h.sum(-1, keepdim=True)))
    for batch in (data()[:1], data()):
        said = measure(value, batch).settings["cotangent"]
        assert said == "standard normal, divided by its RMS, at 0"


CUT = "what was computed from detached data is made to require a gradient"


@pytest.mark.parametrize("cut", ["compared", "detached"])
def test_a_loss_without_a_gradient_beside_one_with(cut: str) -> None:
    """An error rate or a logged loss is no second loss."""

    def outputs(y: Tensor, h: Tensor) -> dict[str, Tensor]:
        beside = (y > 0).double().mean() if cut == "compared" else h.detach().square().mean()
        return {"one": square(y), "error": beside}

    model, x = made(Returns, outputs), data()
    profile = measure(model, x)
    assert_rivers(profile, reference(model, x, lambda out: out["one"]), rel=1e-6)
    assert profile.settings["cotangent"] == "the gradient of the loss returned"


def test_a_model_may_ask_whether_its_tensors_require_a_gradient() -> None:
    class Asks(Stack):
        def forward(self, x: Tensor) -> Any:
            y = super().forward(x)
            asked.append((y.detach() * 2).requires_grad)
            return y

    asked: list[bool] = []
    measure(made(Asks), data())
    assert asked == [False]


def test_a_loss_in_a_named_tuple() -> None:
    class Losses(NamedTuple):
        logits: Tensor
        loss: Tensor

    model, x = made(Returns, lambda y, h: Losses(y, square(y))), data()
    profile = measure(model, x)
    assert profile.settings["cotangent"] == "the gradient of the loss among the outputs"
    assert_rivers(profile, reference(model, x, lambda out: out.loss), rel=1e-6)


@pytest.mark.parametrize(
    ("make", "loss", "words"), [row[1:] for row in OUTPUTS], ids=[row[0] for row in OUTPUTS]
)
def test_losses_among_the_outputs(
    make: Callable[[Tensor, Tensor], Any], loss: Callable[[Any], Tensor], words: str
) -> None:
    model, x = made(Returns, make), data()
    profile = measure(model, x)
    assert_rivers(profile, reference(model, x, loss), rel=1e-6)
    assert profile.settings["cotangent"] == words


CONTAINERS: list[tuple[str, Callable[[Tensor, Tensor], Any], str]] = [
    ("tuple", lambda y, h: (y, None, 3), "0"),
    ("named tuple", lambda y, h: Pair(y, h), "logits"),
    ("dict", lambda y, h: {"logits": y, "note": "text"}, "logits"),
    ("list in a dict", lambda y, h: {"all": [y]}, "all.0"),
    ("dataclass", lambda y, h: Answer(y, (h,)), "logits"),
]


@pytest.mark.parametrize(
    ("make", "name"), [row[1:] for row in CONTAINERS], ids=[row[0] for row in CONTAINERS]
)
def test_the_cotangent_is_at_the_first_tensor_of_what_the_model_returns(
    make: Callable[[Tensor, Tensor], Any], name: str
) -> None:
    model, x = made(Returns, make), data()
    profile = measure(model, x)
    said = f"standard normal, divided by its RMS, at {name}"
    assert profile.settings["cotangent"] == said
    bare = made(Returns, lambda y, h: y)
    bare.load_state_dict(model.state_dict())
    assert_same(profile, measure(bare, x))


def alone(output: Tensor, *, power: float = 2.0) -> Tensor:
    return output.pow(power).sum()


def optional(output: Tensor, power: float = 2.0) -> Tensor:
    return output.pow(power).sum()


class SumOfSquares(nn.Module):
    def forward(self, output: Tensor) -> Tensor:
        return output.square().sum()


LOSSES: list[tuple[str, Callable[..., Any]]] = [
    ("of the output", square),
    ("of output and batch", lambda y, x: (y.sum(1) - x.sum(1)).square().sum()),
    ("without a signature", torch.sum),
    ("a module", SumOfSquares()),
    ("a keyword beside", alone),
    ("an optional argument", optional),
]


@pytest.mark.parametrize("loss", [pytest.param(loss, id=name) for name, loss in LOSSES])
def test_a_loss_of_the_user(loss: Callable[..., Any]) -> None:
    model, x = made(), data()
    two = getattr(loss, "__code__", None) is not None and loss.__code__.co_varnames[:2] == (
        "y",
        "x",
    )
    profile = measure(model, x, loss)
    assert_rivers(profile, reference(model, x, lambda y: loss(y, x) if two else loss(y)))
    assert profile.settings["cotangent"] == "the gradient of the loss given"


def test_a_loss_is_given_the_batch_as_it_was_given() -> None:
    model, x = made(), data()
    given: list[Any] = []

    def loss(output: Tensor, batch: Any) -> Tensor:
        given.append(batch)
        return output.sum()

    measure(model, {"x": x}, loss)
    assert list(given[0]) == ["x"]
    assert given[0]["x"] is x


BAD_LOSSES: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "a vector",
        lambda y: y.sum(1),
        TargetError,
        "the loss returned (6,), expected a tensor with one number",
    ),
    (
        "a float",
        lambda y: 0.5,
        TargetError,
        "the loss returned float, expected a tensor with one number",
    ),
    (
        "nothing",
        lambda y: None,
        TargetError,
        "the loss returned NoneType, expected a tensor with one number",
    ),
    (
        "raises",
        lambda y: y["logits"].sum(),
        ModelError,
        "the loss raised IndexError: too many indices for tensor of dimension 2",
    ),
]


@pytest.mark.parametrize(
    ("loss", "kind", "message"), [row[1:] for row in BAD_LOSSES], ids=[row[0] for row in BAD_LOSSES]
)
def test_a_loss_that_is_none(loss: Callable[..., Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        measure(made(), data(), loss)
    assert str(caught.value) == message


def test_a_loss_that_does_not_depend_on_the_output_has_a_reason() -> None:
    model, x = made(), data()
    profile = measure(model, x, lambda y: y.detach().sum())
    assert "gradient_rms" not in profile
    root = [STATISTICS["rms"](t.numpy()) for t in reference(model, x, None).states]
    assert profile["state_rms"] == pytest.approx(root, rel=EXACT)
    assert profile.not_measured["gradient_rms"]


# ---------------------------------------------------------------------------------- batches


class Two(Stack):
    def forward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Any:  # type: ignore[override]
        return super().forward(scale * x + y)


BATCHES: list[tuple[str, Callable[[Tensor, Tensor], Any], dict[str, list[int]]]] = [
    ("tuple", lambda x, y: (x, y, 2.0), {"0": [6, DATA], "1": [6, DATA]}),
    ("dict", lambda x, y: {"y": y, "x": x, "scale": 2.0}, {"y": [6, DATA], "x": [6, DATA]}),
]


@pytest.mark.parametrize(
    ("arrange", "shapes"), [row[1:] for row in BATCHES], ids=[row[0] for row in BATCHES]
)
def test_batches_of_several_tensors(
    arrange: Callable[[Tensor, Tensor], Any], shapes: dict[str, list[int]]
) -> None:
    model, x, y = made(Two), data(), data()
    batch = arrange(x, y)
    profile = measure(model, batch, square)
    assert_rivers(profile, reference(model, batch))
    assert profile.settings["input"] == shapes
    assert profile.batch == 6


def test_a_list_is_a_tuple() -> None:
    model, x, y = made(Two), data(), data()
    assert_same(measure(model, [x, y], square), measure(model, (x, y), square))


def test_integers_alone() -> None:
    model = made()
    model.stem = nn.Embedding(9, WIDTH).double()
    x = torch.randint(9, (4, 6))
    profile = measure(model, x, square)
    assert_rivers(profile, reference(model, x))
    assert profile.batch == 4


def test_a_batch_of_one_example() -> None:
    model, x = made(), data(1)
    profile = measure(model, x, square)
    assert_rivers(profile, reference(model, x))
    assert profile.batch == 1
    assert measure(model, x[0], square)["state_rms"] == pytest.approx(profile["state_rms"])


def test_a_single_number_out_of_a_batch_of_one_is_an_output() -> None:
    """Its gradient is 1 either way; only the words could be wrong."""
    model, x = made(), data(1)
    model.head = nn.Linear(WIDTH, 1).double()
    profile = measure(model, x)
    rivers = reference(model, x, lambda y: y.sum())
    for site, g in zip(STATES, rivers.gradients, strict=True):
        assert site in paths_of(profile, "gradient_rms")
        assert np.isfinite(g.numpy()).all()
    root = [STATISTICS["rms"](g.numpy()) for g in rivers.gradients]
    assert profile["gradient_rms"] == pytest.approx(root, rel=1e-6)


# ------------------------------------------------------------------------ recurrent and tied


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, WIDTH)
        self.recurrent = kind(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.recurrent(self.embedding(x))[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers(kind: type[nn.LSTM] | type[nn.GRU]) -> None:
    model, x = made(Recurrent, kind), torch.randint(9, (4, 6))
    profile = measure(model, x, square)
    paths = ["embedding", "recurrent", "head"]
    assert paths_of(profile) == paths
    assert_rivers(profile, reference(model, x, paths=paths))


class Language(Stack):
    """Embedding and head hold one table."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Embedding(9, WIDTH)  # type: ignore[assignment]
        self.head = nn.Linear(WIDTH, 9, bias=False)
        self.head.weight = self.stem.weight


def test_tied_embeddings() -> None:
    model, x = made(Language), torch.randint(9, (4, 6))
    profile = measure(model, x, square)
    assert paths_of(profile) == list(STATES)
    assert_rivers(profile, reference(model, x))
    assert profile.settings["parameters"] == sum(p.numel() for p in model.parameters())
    assert profile.coverage["no_gradient"] == ()


def test_a_block_that_runs_three_times() -> None:
    model, x = made(), data()
    model.blocks = nn.ModuleList([model.blocks[0]] * 3)
    profile = measure(model, x, square)
    twin = made()
    twin.blocks = nn.ModuleList(copy.deepcopy(model.blocks[0]) for _ in range(3))
    twin.load_state_dict({**model.state_dict()}, strict=False)
    assert_rivers(profile, reference(twin, x))
    assert paths_of(profile) == ["stem", *["blocks.0"] * 3]
    assert profile.depth == 3


# ---------------------------------------------------------------------- modes and randomness


class Dropped(Block):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.down(self.act(self.up(self.norm(x)))))
        return x


def test_dropout_follows_the_models_mode_and_the_global_generator() -> None:
    model, x = made(Stack, Dropped), data()
    torch.manual_seed(1)
    train = measure(model, x, square)
    assert_rivers(train, reference(model, x))  # the generator stands where it stood
    torch.manual_seed(1)
    assert_same(measure(model, x, square), train)
    torch.manual_seed(2)
    other = measure(model, x, square)
    assert not np.allclose(other["state_rms"][1:], train["state_rms"][1:])
    model.eval()
    quiet = measure(model, x, square)
    assert_rivers(quiet, reference(model, x))
    torch.manual_seed(3)
    assert_same(measure(model, x, square), quiet)
    assert not np.allclose(quiet["state_rms"][1:], train["state_rms"][1:])
    assert (train.settings["mode"], quiet.settings["mode"]) == ("train", "eval")


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batch_norm_follows_the_models_mode(training: bool) -> None:
    class Normed(Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)  # type: ignore[assignment]

    model, x = made(Stack, Normed), data()
    model(x)  # statistics that are not the first ones
    model.train(training)
    before = copy.deepcopy(model)
    assert_rivers(measure(model, x, square), reference(before, x))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_modes_around_the_call_change_no_number(mode: Any) -> None:
    model, x = made(), data()
    expected = measure(model, x, square)
    with mode():
        assert_same(measure(model, x, square), expected)
        assert_same(measure(model, x * 1, square), expected)  # a batch that was made inside


def test_weights_made_in_inference_mode_are_refused_in_the_words_of_torch() -> None:
    with torch.inference_mode():
        model = made()
    with pytest.raises(ModelError) as caught:
        measure(model, data(), square)
    assert str(caught.value).startswith(
        "the forward pass of 'stem' (Linear) raised RuntimeError: Inference tensors cannot be "
        "saved for backward"
    )


def test_an_output_of_whole_numbers_has_a_reason_for_every_quantity() -> None:
    class Classes(Stack):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x).argmax(1)

    profile = measure(made(Classes), data())
    assert profile.settings["cotangent"] == "none"
    missing = [name for name in QUANTITIES if name not in profile]
    assert "gradient_rms" in missing
    assert all(profile.why_not(name) for name in missing)
    profile.to_dict()


# ----------------------------------------------------------------------------- odd networks


class NoParameters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) + 0.5 * x


def test_no_parameters() -> None:
    model, x = NoParameters(), data()
    profile = measure(model, x, square)
    assert profile.settings["parameters"] == 0
    y = model(x).requires_grad_(True)
    square(y).backward()
    assert y.grad is not None
    for name, tensor in (("state_rms", y.detach()), ("gradient_rms", y.grad)):
        assert profile[name][-1] == pytest.approx(STATISTICS["rms"](tensor.numpy()), rel=EXACT)
    slope = (1.5 - x.tanh().square()).numpy().ravel()  # the module is one activation
    for name, q in (("derivative_q05", 0.05), ("derivative_q95", 0.95)):
        assert profile[name] == pytest.approx([quantile(slope, q)], rel=EXACT)


def test_the_precision_of_a_model_without_parameters_is_that_of_its_batch() -> None:
    assert measure(NoParameters(), data()).dtype == "float64"


@pytest.mark.parametrize("kind", [nn.Identity, nn.Sequential])
def test_a_model_that_returns_its_input_unchanged(kind: Callable[[], nn.Module]) -> None:
    x = data()
    profile = measure(kind(), x, square)
    assert profile["state_rms"] == pytest.approx([STATISTICS["rms"](x.numpy())], rel=EXACT)
    assert profile["gradient_rms"] == pytest.approx([2 * STATISTICS["rms"](x.numpy())], rel=EXACT)
    assert paths_of(profile) == ["input"]
    assert (profile.depth, profile.branches) == (0, 0)
    profile.to_dict()
    str(profile)


class Refuses(Stack):
    """A model for data, never for what is trained itself."""

    def forward(self, x: Tensor) -> Any:
        if x.requires_grad:
            raise RuntimeError("the input must not require a gradient\nat all")
        return super().forward(x)


def test_a_model_that_refuses_an_input_with_a_gradient_is_measured() -> None:
    model, x = made(Refuses), data()
    profile = measure(model, x, square)
    assert_rivers(profile, reference(model, x))
    (note,) = notes_of(profile)
    assert note.startswith(
        "the gradient at the input was not measured: the input must not require a gradient"
    )


def test_a_note_is_one_line() -> None:
    (note,) = notes_of(measure(made(Refuses), data()))
    assert (
        note == "the gradient at the input was not measured: the input must not require a gradient"
    )


@pytest.mark.parametrize("what", ["generator", "buffer"])
def test_a_refused_pass_changes_nothing_in_the_next_one(what: str) -> None:
    class Late(Stack):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Any:
            self.count += 1
            scale = self.count.item() if what == "buffer" else torch.rand(()).item()
            if x.requires_grad:
                raise RuntimeError("no gradient at the input, please")
            return super().forward(scale * x)

    model, x = made(Late), data()
    torch.manual_seed(5)
    expected = reference(model, x)
    torch.manual_seed(5)
    assert_rivers(measure(model, x, square), expected)


@pytest.mark.parametrize("value", [math.inf, math.nan], ids=["inf", "NaN"])
def test_what_is_not_finite_is_a_result(value: float) -> None:
    model, x = made(), data()
    with torch.no_grad():
        model.blocks[1].down.bias[0] = value
    profile = measure(model, x)
    first = profile.first_nonfinite()
    assert first is not None
    assert (first.path, first.block) == ("blocks.1", 2)
    share = [
        t.isfinite().logical_not().double().mean().item() for t in reference(model, x, None).states
    ]
    assert profile["nonfinite_fraction"] == pytest.approx(share)
    assert share[2] == 1 / WIDTH
    assert profile.to_dict()["summary"]["forward_drift"]["value"] is None


def test_overflow_on_the_way_is_a_result() -> None:
    class Doubling(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 1e200

    model, x = made(Stack, Doubling), data()
    profile = measure(model, x, square)
    first = profile.first_nonfinite()
    assert first is not None
    assert first.path == "blocks.1"
    assert np.isfinite(profile["state_rms"][:2]).all()


@pytest.mark.parametrize(
    ("dtype", "rel"),
    [
        (torch.float64, EXACT),
        (torch.float32, SINGLE),
        (torch.bfloat16, 0.05),
        (torch.float16, 0.01),
    ],
    ids=str,
)
def test_precisions(dtype: torch.dtype, rel: float) -> None:
    """Close to a float64 model of the same weights, and equal to a copy in the same precision."""
    model, x = made().to(dtype), data().to(dtype)
    profile = measure(model, x, lambda y: y.double().square().sum())
    assert profile.dtype == str(dtype).removeprefix("torch.")
    for name, column in profile.columns.items():
        assert np.isfinite(column.values).all(), name
    exact = reference(model.double(), x.double())
    for name, tensors in (("state_rms", exact.states), ("gradient_rms", exact.gradients)):
        root = [STATISTICS["rms"](t.numpy()) for t in tensors]
        assert profile[name] == pytest.approx(root, rel=rel)
    model, x = model.to(dtype), x.to(dtype)
    own = reference(model, x, lambda y: y.double().square().sum())
    assert_rivers(profile, own, min(rel, SINGLE))


class ReluBlock(nn.Module):
    """Sums and activations, each in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.relu = nn.ReLU(in_place)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.two(self.relu(self.one(x)))
        if self.in_place:
            y += x
        else:
            y = y + x
        y = self.relu(y)
        return y


@pytest.mark.parametrize("kind", ["plain", "residual"])
def test_what_is_written_over_reads_as_its_twin(kind: str) -> None:
    def build(in_place: bool) -> nn.Module:
        if kind == "residual":
            return made(Stack, lambda: ReluBlock(in_place))  # type: ignore[no-any-return]
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU(in_place)]
        return nn.Sequential(nn.Linear(DATA, WIDTH), *layers, nn.Linear(WIDTH, CLASSES)).double()

    twin, x = build(False), data()
    model = build(True)
    model.load_state_dict(twin.state_dict())
    profile = measure(model, x, square)
    assert_same(profile, measure(twin, x, square))
    if kind == "residual":
        assert_rivers(profile, reference(twin, x))
    else:
        paths = ["0", "2", "4", "6", "7"]
        assert paths_of(profile)[1:] == paths
        rivers = reference(nn.Sequential(nn.Identity(), twin), x, paths=[f"1.{p}" for p in paths])
        root = [STATISTICS["rms"](t.numpy()) for t in rivers.states]
        assert profile["state_rms"][1:] == pytest.approx(root, rel=EXACT)


# ------------------------------------------------------------------------ include, exclude


def test_include_and_exclude_choose_sites_by_their_paths() -> None:
    model, x = made(), data()
    every = measure(model, x, square)
    some = measure(model, x, square, include=r"^blocks\.[12]", exclude=r"act$")
    wanted = ("blocks.1", "blocks.2", "blocks.1.down", "blocks.2.down")
    kept = [s for s in every.sites if s.path in wanted]
    assert [(s.block, s.path, s.role) for s in some.sites] == [
        (s.block, s.path, s.role) for s in kept
    ]
    assert some["state_rms"] == pytest.approx(every["state_rms"][2:], rel=EXACT)
    assert some["branch_rms"] == pytest.approx(every["branch_rms"][1:], rel=EXACT)
    assert "dead_fraction" not in some
    assert some.equation == every.equation
    for few in (r"^blocks\.[01]$", "nowhere"):
        assert measure(model, x, square, include=few).depth == every.depth == 3


def test_a_pattern_that_leaves_nothing_has_a_reason() -> None:
    profile = measure(made(), data(), include="nowhere")
    assert profile.sites == ()
    assert set(profile.not_measured) == set(QUANTITIES)
    asked = {profile.not_measured[name] for name in quantities_of("fast")}
    assert asked == {"include and exclude leave no site"}
    with pytest.raises(UsageError) as caught:
        _ = profile["state_rms"]
    assert str(caught.value) == (
        "'state_rms' is not in this profile: include and exclude leave no site"
    )
    profile.to_dict()
    str(profile)


def test_instruments_are_chosen_as_for_an_equation() -> None:
    model, x = made(), data()
    every = measure(model, x, square)
    some = measure(model, x, square, instruments=["state_rms", "branches"])
    assert set(some.columns) == {
        "state_rms",
        "branch_rms",
        "branch_to_stream",
        "branch_stream_cosine",
    }
    for name in some.columns:
        assert some[name] == pytest.approx(every[name], rel=EXACT)
    assert some.not_measured["gradient_rms"] == "not among the instruments asked for"


# ------------------------------------------------------------------------------ other devices


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_is_the_cpu() -> None:
    model, x = made(), data()
    expected = measure(model, x, square)
    profile = measure(model.cuda(), x.cuda(), square)
    assert_same(profile, expected, rel=1e-6)
    assert profile.settings["device"] == "cuda:0"
