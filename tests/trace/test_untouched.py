"""After ``measure`` a model is exactly as it was: its tensors, attributes, hooks and surroundings.

A *photograph* holds all that could change, by what it is called; two of them are compared. Each
scene has a partner: the same model run plainly does change what the scene is about.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.utils import parametrizations
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from depthgauge.errors import ModelError
from depthgauge.measurement import measure

WIDTH = 6

# ---------------------------------------------------------------------------- photographs


class Same:
    """Equal to another that holds the very same object, which it keeps alive."""

    def __init__(self, held: object) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.held is other.held

    __hash__ = None  # type: ignore[assignment]


def data_of(tensor: Tensor) -> object:
    if tensor.is_meta:
        return tensor.dtype, tuple(tensor.shape)
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def content(value: Any) -> object:
    """What a value holds, all the way down; the object itself where nothing is known of it."""
    if isinstance(value, Tensor):
        return Same(value), data_of(value)
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return type(value), [content(item) for item in value]
    if isinstance(value, dict):
        return type(value), [(key, content(item)) for key, item in value.items()]
    if isinstance(value, set):
        return sorted(map(repr, value))
    if isinstance(value, int | float | str | bytes | None):
        return value
    return Same(value)


def surroundings() -> dict[str, object]:
    """What is global and can be changed by a pass."""
    hooks = {name: getattr(module_hooks, name) for name in dir(module_hooks)}
    return {
        "torch random": data_of(torch.get_rng_state()),
        "NumPy random": content(np.random.get_state()),
        "Python random": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        "anomaly mode": torch.is_anomaly_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "scripts optimised": torch._C._get_graph_executor_optimize(),
        "NumPy errors": np.geterr(),
        "garbage collection": gc.isenabled(),
        "function modes": content(_get_current_function_mode_stack()),
        "dispatch modes": content(_get_current_dispatch_mode_stack()),
        "module hooks": content({n: h for n, h in hooks.items() if n.startswith("_global_")}),
    }


def photograph(model: nn.Module, batch: Any = ()) -> dict[str, object]:
    """All that a pass could change, each under a name that says what it is."""
    found = surroundings()
    for path, module in model.named_modules():
        found[f"attributes of '{path}'"] = list(module.__dict__)
        for name, value in module.__dict__.items():
            found[f"'{path}' {name}"] = (Same(value), content(value))
    tensors: dict[str, Any] = {f"parameter '{name}'": p for name, p in model.named_parameters()}
    tensors |= {f"buffer '{name}'": b for name, b in model.named_buffers()}
    tensors |= {f"batch '{name}'": t for name, t in leaves(batch)}
    for name, tensor in tensors.items():
        found[name] = (Same(tensor), data_of(tensor))
        found[f"place of {name}"] = tensor.data_ptr()
        found[f"requires_grad of {name}"] = tensor.requires_grad
        found[f"attributes of {name}"] = content(tensor.__dict__)
        found[f"hooks of {name}"] = content(
            [tensor._backward_hooks, tensor._post_accumulate_grad_hooks]
        )
        if not name.startswith("buffer"):  # a buffer is put back by writing to it
            found[f"version of {name}"] = tensor._version
        if tensor.is_leaf:
            found[f"gradient of {name}"] = content(tensor.grad)
    return found


def leaves(batch: Any) -> Iterator[tuple[str, Tensor]]:
    items = batch.items() if isinstance(batch, dict) else enumerate(batch)
    if isinstance(batch, Tensor):
        yield "", batch
        return
    for name, item in items:
        if isinstance(item, Tensor):
            yield str(name), item


def changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """The names of what differs, comes or goes."""
    return [
        name
        for name in dict.fromkeys((*before, *after))
        if (name in before) != (name in after) or before.get(name) != after.get(name)
    ]


# ---------------------------------------------------------------------------------- models


class Block(nn.Module):
    """A residual block with a norm and dropout, which counts its calls."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm(WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = x + self.drop(torch.relu(self.layer(self.norm(x))))
        return x


class Stack(nn.Module):
    """A stem, blocks, and whatever a scene puts at the end."""

    def __init__(self, *ends: nn.Module, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(norm), Block(norm)])
        self.ends = nn.ModuleList(ends)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in (*self.blocks, *self.ends):
            x = block(x)
        return x


class InPlace(Stack):
    """Writes over its own input before anything else."""

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        x += 1
        x[0] = 0
        return super().forward(x)


class Raises(nn.Module):
    """A child that changes state and then fails."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.add_(0.5)
        np.random.rand()
        raise ValueError("no luck\nand a second line")


class BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        random.random()
        raise ValueError("no way back")


class RaisesBackward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return BadBackward.apply(x)  # type: ignore[no-any-return]


class Checkpointed(Stack):
    """Its blocks run in a checkpoint, and again in the backward pass."""

    def __init__(self, reentrant: bool, *ends: nn.Module, **options: Any) -> None:
        super().__init__(*ends, **options)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for end in self.ends:
            x = end(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class Randoms(Stack):
    """Draws from every global generator."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * np.random.rand() + random.random() * torch.randn(WIDTH)


class Buffers(Stack):
    """Writes to one buffer, replaces another, fills a third and registers a fourth."""

    written: Tensor
    replaced: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("written", torch.zeros(3))
        self.register_buffer("replaced", torch.zeros(2, 2))
        self.register_buffer("empty", None)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        self.written[1] += 0.5
        self.replaced = self.replaced + 1
        self.empty = x.detach()
        self.register_buffer("new", torch.ones(2))
        return x


class Average(Stack):
    """Follows the batch by a moving average of what carries no gradient."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


class Gone(Stack):
    """Takes away a buffer that is not in the state dict and registers another such."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("late", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        del self.late
        self.register_buffer("new", torch.ones(2), persistent=False)
        return x


class Attributes(Stack):
    """Keeps a counter, a cached tensor, a new attribute and loses one."""

    def __init__(self) -> None:
        super().__init__()
        self.counter, self.cache, self.old, self.pair = 0, torch.zeros(2), "old", (1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        self.counter += 1
        self.cache, self.fresh, self.pair = x, x.detach(), (3, 4)
        del self.old
        return x


class Listing(Stack):
    """Keeps what it saw in a list: the object stays, what it holds does not."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = [0.5]

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        self.seen.append(float(x.detach().mean()))
        return x


class Table(Stack):
    """Keeps keys and values under its layer's name, as a cache of a decoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.table: dict[str, Any] = {"steps": [1]}

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        self.table["last"] = x
        self.table["steps"].append(2)
        return x


class Overwritten(Stack):
    """Writes into a tensor that is a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = torch.zeros(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        self.memory += 0.5
        return x


class Modes(Stack):
    """Changes its own mode and freezes parameters."""

    def forward(self, x: Tensor) -> Tensor:
        self.blocks[0].eval()
        self.blocks[1].requires_grad_(False)
        return super().forward(x)


class Hooked(Stack):
    """Registers a hook on its child in its first pass."""

    def forward(self, x: Tensor) -> Tensor:
        self.stem.register_forward_pre_hook(lambda module, args: None)
        return super().forward(x)


class Decided(nn.Module):
    """Takes its scale from the first batch, as activation normalisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(1 / (x.std(0) + 1e-6))
            self.ready = True
        return x * self.scale


class Codebook(nn.Module):
    """A frozen table of two axes that follows the batch by a moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(4, WIDTH), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.detach(), self.codes).argmin(1)
        with torch.no_grad():
            self.codes[nearest] = 0.9 * self.codes[nearest] + 0.1 * x
        return x + self.codes[nearest]


def embedded() -> tuple[nn.Module, Tensor]:
    """An embedding that renormalises its own rows as they are looked up."""
    table = nn.Embedding(9, WIDTH, max_norm=0.5)
    return nn.Sequential(table, nn.Linear(WIDTH, WIDTH)), torch.arange(8).reshape(2, 4)


def spectral() -> nn.Module:
    """Power iteration on each call moves the two vectors of the parametrisation."""
    model = Stack()
    parametrizations.spectral_norm(model.stem)
    parametrizations.weight_norm(model.blocks[0].get_submodule("layer"))
    return model


def tied() -> tuple[nn.Module, Tensor]:
    table = nn.Embedding(9, WIDTH)
    head = nn.Linear(WIDTH, 9, bias=False)
    head.weight = table.weight
    return nn.Sequential(table, nn.Dropout(0.5), head), torch.arange(8).reshape(2, 4)


class Keywords(Stack):
    def forward(self, x: Tensor, mask: Tensor, scale: float) -> Tensor:  # type: ignore[override]
        mask[0] = False
        return super().forward(x.mul_(scale)) * mask[:, None]


def fails(output: Tensor) -> Tensor:
    torch.randn(3)
    raise ZeroDivisionError("a loss of sense")


# ---------------------------------------------------------------------------------- scenes


@dataclass(frozen=True)
class Scene:
    """``touches`` is what the same model changes when it is run plainly."""

    name: str
    build: Callable[[], Any]
    touches: tuple[str, ...]
    error: str = ""
    training: bool = True
    loss: Callable[..., Any] | None = None
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    writes: bool = False  # to parameters, so that their version counts on

    def make(self) -> tuple[nn.Module, Any]:
        """The model with some gradients there and some not, and its batch."""
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        made = self.build()
        model, batch = made if isinstance(made, tuple) else (made, torch.randn(5, WIDTH))
        for i, p in enumerate(model.parameters()):
            if i % 2:
                p.grad = torch.randn_like(p)
        return model.train(self.training), batch


def dictionary() -> tuple[nn.Module, dict[str, Any]]:
    x = torch.randn(5, WIDTH, requires_grad=True)
    return Keywords(), {"x": x, "mask": torch.ones(5, dtype=torch.bool), "scale": 2.0}


#: Batch norm's kernel writes to its statistics without counting their version on.

NORM = "buffer 'blocks.0.norm.running_mean'", "buffer 'blocks.0.norm.num_batches_tracked'"
CHANGES = "'blocks.1' calls", "torch random"
GRADIENTS = ("gradient of parameter 'stem.weight'", "gradient of parameter 'stem.bias'")

SCENES = [
    Scene("train", Stack, (*GRADIENTS, *CHANGES)),
    Scene("eval", Stack, (*GRADIENTS, "'blocks.0' calls"), training=False),
    Scene("batch norm", lambda: Stack(norm=nn.BatchNorm1d), (*NORM, *CHANGES)),
    Scene(
        "batch norm in eval",
        lambda: Stack(norm=nn.BatchNorm1d),
        GRADIENTS,
        training=False,
    ),
    Scene("writes over its input", InPlace, ("batch ''", "version of batch ''")),
    Scene(
        "raises deep inside",
        lambda: Stack(nn.Sequential(nn.Identity(), Raises())),
        (*CHANGES, "buffer 'ends.0.1.mean'", "'ends.0.1' calls", "NumPy random"),
        error=r"^the forward pass of 'ends\.0\.1' \(Raises\) raised ValueError: no luck$",
    ),
    Scene(
        "batch norm before it raises",
        lambda: Stack(Raises(), norm=nn.BatchNorm1d),
        (*NORM, *CHANGES),
        error=r"^the forward pass of 'ends\.0' \(Raises\) raised ValueError: no luck$",
    ),
    Scene(
        "raises going back",
        lambda: Stack(RaisesBackward()),
        (*CHANGES, "Python random"),
        error=r"^the backward pass raised ValueError: no way back$",
    ),
    Scene(
        "the loss raises",
        Stack,
        CHANGES,
        error=r"^the loss raised ZeroDivisionError: a loss of sense$",
        loss=fails,
    ),
    Scene("re-entrant checkpoint", lambda: Checkpointed(True), (*CHANGES, *GRADIENTS)),
    Scene("checkpoint", lambda: Checkpointed(False), (*CHANGES, *GRADIENTS)),
    Scene(
        "batch norm in a re-entrant checkpoint",
        lambda: Checkpointed(True, norm=nn.BatchNorm1d),
        (*NORM, *GRADIENTS),
    ),
    Scene(
        "batch norm in a checkpoint",
        lambda: Checkpointed(False, norm=nn.BatchNorm1d),
        (*NORM, *GRADIENTS),
    ),
    Scene(
        "re-entrant checkpoint that raises going back",
        lambda: Checkpointed(True, RaisesBackward()),
        ("Python random", "gradient of parameter 'blocks.0.layer.weight'"),
        error=r"^the backward pass raised ValueError: no way back$",
    ),
    Scene("all generators", Randoms, ("torch random", "NumPy random", "Python random")),
    Scene(
        "buffers",
        Buffers,
        ("buffer 'written'", "buffer 'replaced'", "buffer 'empty'", "buffer 'new'", "'' _buffers"),
    ),
    Scene(
        "a moving average",
        Average,
        ("buffer 'mean'",),
    ),
    Scene(
        "a buffer gone",
        Gone,
        ("buffer 'late'", "buffer 'new'", "'' _non_persistent_buffers_set"),
    ),
    Scene("attributes", Attributes, ("'' counter", "'' cache", "'' old", "'' fresh", "'' pair")),
    Scene(
        "a list",
        Listing,
        ("'' seen",),
    ),
    Scene(
        "a dict",
        Table,
        ("'' table",),
    ),
    Scene(
        "a tensor attribute",
        Overwritten,
        ("'' memory",),
    ),
    Scene(
        "modes",
        Modes,
        ("'blocks.0' training", "requires_grad of parameter 'blocks.1.layer.weight'"),
    ),
    Scene(
        "a hook registered",
        Hooked,
        ("'stem' _forward_pre_hooks",),
    ),
    Scene(
        "decides its scale",
        lambda: Stack(Decided()),
        ("parameter 'ends.0.scale'", "'ends.0' ready"),
        writes=True,
    ),
    Scene(
        "a frozen table",
        lambda: Stack(Codebook()),
        ("parameter 'ends.0.codes'",),
        writes=True,
    ),
    Scene(
        "an embedding with max_norm",
        embedded,
        ("parameter '0.weight'",),
        writes=True,
    ),
    Scene("spectral norm", spectral, ("buffer 'stem.parametrizations.weight.0._u'",)),
    Scene("tied embeddings", tied, ("gradient of parameter '0.weight'", "torch random")),
    Scene(
        "keywords",
        dictionary,
        ("batch 'x'", "batch 'mask'", "gradient of batch 'x'"),
    ),
    Scene("under no_grad", Stack, CHANGES, around=torch.no_grad),
    Scene("under inference_mode", Stack, CHANGES, around=torch.inference_mode),
    Scene(
        "under autocast",
        Stack,
        (*CHANGES, *GRADIENTS),
        around=lambda: torch.autocast("cpu", torch.bfloat16),
    ),
]


def params(scenes: list[Scene]) -> list[Any]:
    return [pytest.param(scene, id=scene.name) for scene in scenes]


@pytest.mark.parametrize("scene", params(SCENES))
def test_a_model_is_exactly_as_it_was(scene: Scene) -> None:
    model, batch = scene.make()
    before = photograph(model, batch)
    with scene.around():
        around = surroundings()
        if scene.error:
            with pytest.raises(ModelError, match=scene.error):
                measure(model, batch, scene.loss)
        else:
            profile = measure(model, batch, scene.loss)
            assert np.isfinite(profile["state_rms"]).all()
            assert np.isfinite(profile["gradient_rms"]).all()
        assert changes(around, surroundings()) == []
    changed = changes(before, photograph(model, batch))
    if scene.writes:
        changed = [name for name in changed if not name.startswith("version of parameter")]
    assert changed == []


@pytest.mark.parametrize("scene", params(SCENES))
def test_a_plain_pass_changes_what_the_scene_is_about(scene: Scene) -> None:
    model, batch = scene.make()
    before = photograph(model, batch)
    given = (
        {"x": batch["x"].mul(1)} | {k: batch[k] for k in ("mask", "scale")}
        if isinstance(batch, dict)
        else batch
    )
    with contextlib.suppress(ValueError, ZeroDivisionError), scene.around():
        output = model(**given) if isinstance(given, dict) else model(given)
        total = scene.loss(output) if scene.loss else output.square().sum()
        if total.requires_grad:
            total.backward()
    if isinstance(batch, dict):
        with torch.no_grad():
            batch["x"].mul_(2)  # a leaf: autograd does not let the model write over it
    changed = changes(before, photograph(model, batch))
    assert set(scene.touches) <= set(changed), changed


@pytest.mark.parametrize("scene", params([s for s in SCENES if not s.error]))
def test_twice_gives_the_same_numbers(scene: Scene) -> None:
    """Nothing that a first measurement leaves behind reaches a second one."""
    model, batch = scene.make()
    with scene.around():
        first, second = measure(model, batch), measure(model, batch)
    for name in first.columns:
        assert np.array_equal(first[name], second[name], equal_nan=True), name


# ---------------------------------------------------------------------------- one by one


def test_a_hook_after_accumulation_does_not_fire() -> None:
    """Optimisers that step inside the backward pass hang on it."""
    for build in (Stack, lambda: Checkpointed(False)):
        assert _fired(build) == 0


def test_a_hook_after_accumulation_does_not_fire_in_a_reentrant_checkpoint() -> None:
    assert _fired(lambda: Checkpointed(True)) == 0


def _fired(build: Callable[[], nn.Module]) -> int:
    """How often the hooks fired in ``measure``; a plain backward pass fires each once."""
    torch.manual_seed(0)
    model, batch = build(), torch.randn(5, WIDTH)
    fired: list[Tensor] = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: fired.append(p))
    before = photograph(model, batch)
    measure(model, batch)
    assert changes(before, photograph(model, batch)) == []
    count = len(fired)
    fired.clear()
    model(batch).sum().backward()
    assert len(fired) == len(list(model.parameters()))
    return count


def test_an_optimiser_in_a_hook_does_not_step() -> None:
    torch.manual_seed(0)
    model, batch = Stack(), torch.randn(5, WIDTH)
    weight = model.stem.weight
    weight.register_post_accumulate_grad_hook(lambda p: do(p.data.sub_(p.grad)))
    before = data_of(weight)
    measure(model, batch)
    assert data_of(weight) == before
    model(batch).sum().backward()
    assert data_of(weight) != before


@pytest.mark.parametrize(
    "reentrant",
    [
        False,
        pytest.param(True),
    ],
)
def test_gradients_of_a_loss_with_parameters_are_not_written(reentrant: bool) -> None:
    torch.manual_seed(0)
    model, batch = Checkpointed(reentrant), torch.randn(5, WIDTH)
    scale = nn.Parameter(torch.ones(WIDTH))
    plain = Checkpointed(reentrant)
    plain(batch).mul(scale).sum().backward()
    assert scale.grad is not None
    scale.grad = None
    measure(model, batch, lambda y: (y * scale).sum())
    assert scale.grad is None


def test_a_tensor_outside_of_all_modules_gets_no_gradient() -> None:
    torch.manual_seed(0)
    free = torch.ones(WIDTH, requires_grad=True)

    class Uses(Stack):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * free

    model, batch = Uses(), torch.randn(5, WIDTH)
    measure(model, batch)
    assert free.grad is None
    assert free.__dict__ == {}
    model(batch).sum().backward()
    assert free.grad is not None


def test_hooks_of_the_user_stay_and_fire_once() -> None:
    torch.manual_seed(0)
    model, batch = Stack(), torch.randn(5, WIDTH)
    fired: list[str] = []
    model.stem.register_forward_hook(lambda module, args, out: fired.append("forward"))
    model.stem.register_forward_pre_hook(lambda module, args: fired.append("before"))
    model.stem.register_full_backward_hook(lambda module, gi, go: fired.append("backward"))
    handle = module_hooks.register_module_forward_hook(
        lambda module, args, out: fired.append("global") if module is model else None
    )
    try:
        before = photograph(model, batch)
        measure(model, batch)
        assert changes(before, photograph(model, batch)) == []
    finally:
        handle.remove()
    assert fired == ["before", "forward", "global", "backward"]


def test_garbage_collection_that_was_off_stays_off() -> None:
    model, batch = SCENES[0].make()
    gc.disable()
    try:
        measure(model, batch)
        assert not gc.isenabled()
    finally:
        gc.enable()
    measure(model, batch)
    assert gc.isenabled()


def test_an_interrupt_leaves_nothing_behind() -> None:
    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyboardInterrupt

    torch.manual_seed(0)
    model, batch = Stack(Interrupted()), torch.randn(5, WIDTH)
    before = photograph(model, batch)
    with pytest.raises(KeyboardInterrupt):
        measure(model, batch)
    assert changes(before, photograph(model, batch)) == []


def test_a_refused_model_is_left_alone() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, 3), nn.Linear(3, 3, dtype=torch.complex64))
    batch = torch.randn(5, WIDTH)
    before = photograph(model, batch)
    with pytest.raises(ValueError, match=r"parameter '1\.weight' is complex"):
        measure(model, batch)
    assert changes(before, photograph(model, batch)) == []


def test_a_buffer_made_in_inference_mode() -> None:
    """A table of positions that was first needed while generating."""
    torch.manual_seed(0)
    model, batch = Stack(), torch.randn(5, WIDTH)
    expected = measure(model, batch)
    with torch.inference_mode():
        model.register_buffer("table", torch.arange(4.0))
    found = measure(model, batch)
    assert np.array_equal(found["gradient_rms"], expected["gradient_rms"])
    assert torch.equal(model.get_buffer("table"), torch.arange(4.0))


def test_a_copy_and_the_state_dict_are_those_from_before() -> None:
    model, batch = SCENES[0].make()
    held = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    twin = copy.deepcopy(model)
    measure(model, batch)
    assert list(model.state_dict()) == list(held)
    assert all(torch.equal(tensor, held[n]) for n, tensor in model.state_dict().items())
    torch.manual_seed(9)
    expected = twin(batch)
    torch.manual_seed(9)
    assert torch.equal(copy.deepcopy(model)(batch), expected)


# ------------------------------------------------------------- the photograph can be wrong


def do(*values: object) -> None:
    """Nothing: all was done when the arguments were made."""


@contextlib.contextmanager
def left(change: Callable[[], Any]) -> Iterator[None]:
    undo = change()
    try:
        yield
    finally:
        if callable(undo):
            undo()


def written(model: Any, batch: Tensor) -> None:
    with torch.no_grad():
        model.stem.weight[0, 0] = torch.nextafter(model.stem.weight[0, 0], torch.tensor(9.0))


def norm(model: Any) -> Any:
    return model.blocks[0].norm


def replace(owner: Any, name: str) -> None:
    setattr(owner, name, copy.deepcopy(getattr(owner, name)))


def entered(manager: Any) -> Callable[[], None]:
    manager.__enter__()
    return lambda: manager.__exit__(None, None, None)


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {})


def frozen(model: Any, batch: Tensor) -> None:
    model.stem.bias.requires_grad_(False)


def collection(model: Any, batch: Tensor) -> Callable[[], None]:
    gc.disable()
    return gc.enable


#: What is done, how, and the beginning of what the photograph calls it ("" where it sees nothing).
DISTURBANCES: list[tuple[str, Callable[[Any, Tensor], Any], str]] = [
    ("one bit of a weight", written, "parameter 'stem.weight'"),
    ("a write of nothing", lambda m, b: do(m.stem.bias.data.add_(0)), ""),
    ("a version", lambda m, b: do(m.stem.bias.detach().add_(0)), "version of parameter 'stem.b"),
    ("an equal parameter", lambda m, b: replace(m.stem, "bias"), "parameter 'stem.bias'"),
    (
        "other memory",
        lambda m, b: setattr(m.stem.bias, "data", m.stem.bias.data.clone()),
        "place of parameter 'stem.bias'",
    ),
    ("statistics", lambda m, b: do(norm(m).running_var.add_(1e-6)), "buffer 'blocks.0.norm.runn"),
    ("a count", lambda m, b: do(norm(m).num_batches_tracked.add_(1)), "buffer 'blocks.0.norm.num"),
    (
        "a gradient that was none",
        lambda m, b: setattr(m.stem.weight, "grad", torch.zeros(WIDTH, WIDTH)),
        "gradient of parameter 'stem.weight'",
    ),
    ("a gradient", lambda m, b: do(m.stem.bias.grad.add_(1e-6)), "gradient of parameter 'stem.b"),
    ("an equal gradient", lambda m, b: replace(m.stem.bias, "grad"), "gradient of parameter 'ste"),
    ("no gradient", lambda m, b: setattr(m.stem.bias, "grad", None), "gradient of parameter 'stem"),
    ("frozen", frozen, "requires_grad of parameter 'stem.bias'"),
    ("a mode", lambda m, b: do(m.blocks[1].drop.eval()), "'blocks.1.drop' training"),
    ("a hook", lambda m, b: do(m.stem.register_forward_hook(print)), "'stem' _forward_hooks"),
    ("a pre-hook", lambda m, b: do(m.stem.register_forward_pre_hook(print)), "'stem' _forward_pre"),
    (
        "a backward hook",
        lambda m, b: do(m.stem.register_full_backward_hook(print)),
        "'stem' _backward_hooks",
    ),
    (
        "a tensor hook",
        lambda m, b: do(m.stem.bias.register_hook(print)),
        "hooks of parameter 'stem",
    ),
    (
        "a hook after accumulation",
        lambda m, b: do(m.stem.bias.register_post_accumulate_grad_hook(print)),
        "hooks of parameter 'stem.bias'",
    ),
    (
        "a global hook",
        lambda m, b: module_hooks.register_module_forward_hook(lambda *a: None).remove,
        "module hooks",
    ),
    ("a counter", lambda m, b: setattr(m.blocks[0], "calls", 1), "'blocks.0' calls"),
    ("a new attribute", lambda m, b: setattr(m, "left", 1), "attributes of ''"),
    ("a list", lambda m, b: m.seen.append(1), "'' seen"),
    ("an equal list", lambda m, b: setattr(m, "seen", list(m.seen)), "'' seen"),
    ("a cached tensor", lambda m, b: do(m.cache.add_(1)), "'' cache"),
    ("a mark on a parameter", lambda m, b: setattr(m.stem.bias, "left", 1), "attributes of param"),
    ("a mark on the batch", lambda m, b: setattr(b, "left", 1), "attributes of batch ''"),
    ("the batch", lambda m, b: do(b.add_(1)), "batch ''"),
    ("the batch's flag", lambda m, b: do(b.requires_grad_(True)), "requires_grad of batch ''"),
    ("torch random", lambda m, b: do(torch.rand(1)), "torch random"),
    ("NumPy random", lambda m, b: do(np.random.rand()), "NumPy random"),
    ("Python random", lambda m, b: do(random.random()), "Python random"),
    ("grad mode", lambda m, b: entered(torch.no_grad()), "grad mode"),
    ("inference mode", lambda m, b: entered(torch.inference_mode()), "inference mode"),
    ("autocast", lambda m, b: entered(torch.autocast("cpu", torch.bfloat16)), "autocast"),
    ("collection", collection, "garbage collection"),
    ("a function mode", lambda m, b: entered(Mode()), "function modes"),
    ("NumPy errors", lambda m, b: entered(np.errstate(all="ignore")), "NumPy errors"),
]


@pytest.mark.parametrize(
    ("change", "name"), [d[1:] for d in DISTURBANCES], ids=[d[0] for d in DISTURBANCES]
)
def test_the_photograph_sees(change: Callable[[Any, Tensor], Any], name: str) -> None:
    torch.manual_seed(0)
    model, batch = Stack(norm=nn.BatchNorm1d), torch.randn(5, WIDTH)
    model.seen, model.cache = [0.5], torch.zeros(2)  # type: ignore[assignment]
    model.stem.bias.grad = torch.ones(WIDTH)
    before = photograph(model, batch)
    assert changes(before, photograph(model, batch)) == []
    with left(lambda: change(model, batch)):
        changed = changes(before, photograph(model, batch))
    assert any(each.startswith(name) for each in changed) if name else changed == [], changed


def test_the_photograph_sees_what_the_tool_would_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the part that puts things back, the scenes fail."""
    monkeypatch.setattr("depthgauge.trace.running.untouched", lambda held: contextlib.nullcontext())
    torch.manual_seed(0)
    model, batch = Stack(norm=nn.BatchNorm1d), torch.randn(5, WIDTH)
    before = photograph(model, batch)
    measure(model, batch)
    changed = changes(before, photograph(model, batch))
    assert {*NORM, *CHANGES} <= set(changed)
