"""Checkpoints, sparse gradients, models of several types, functions without half precision."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import depthgauge as dg
from depthgauge.errors import SpecificationError
from depthgauge.instruments import arithmetic, runs
from depthgauge.instruments.formats import relative_distance
from depthgauge.instruments.precision import PRECISION, precision
from depthgauge.instruments.step import Step
from depthgauge.instruments.subject import Effort, Found
from depthgauge.network.chain import twice_differentiable
from depthgauge.trace import again
from depthgauge.trace.inventory import inventory
from tests.instruments.subjects import subject_of

REENTRANT, NOT, NONE = True, False, None
NAMES = (None, "bfloat16", "float16", "autocast-bfloat16", "float8_e4m3")


def found_in(model: nn.Module, batch: Any, name: str | None = None, loss: Any = None) -> Found:
    return precision(subject_of(model, batch, loss), Effort(arithmetic=name))


def numbers(found: Found) -> dict[str, list[float]]:
    return {name: values for name, (_, values) in found.columns.items()}


def half_square(y: Tensor) -> Tensor:
    return 0.5 * (y.double() ** 2).sum()


# ---------------------------------------------------------------------------- checkpoints


class Block(nn.Module):
    """``h + W2 drop(tanh(W1 h))``, the tanh in float32."""

    def __init__(self, n: int, drop: float = 0.0) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)
        self.drop = drop

    def forward(self, h: Tensor) -> Tensor:
        inner = torch.tanh(self.w1(h).float()).to(h.dtype)
        out: Tensor = h + self.w2(F.dropout(inner, self.drop, training=self.drop > 0))
        return out


class Stack(nn.Module):
    """Blocks, each in a checkpoint of the kind ``use_reentrant``, or in none."""

    def __init__(self, kind: bool | None, drop: float = 0.0, nested: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(6, drop) for _ in range(4))
        self.kind, self.nested = kind, nested

    def forward(self, h: Tensor) -> Tensor:
        for block in self.blocks:
            if self.kind is None:
                h = block(h)
                continue
            run = functools.partial(checkpoint, block, use_reentrant=self.nested)
            inner = block if self.nested is None else run
            h = checkpoint(inner, h, use_reentrant=self.kind)
        return h


@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize("kind", [REENTRANT, NOT])
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_changes_no_number(name: str | None, kind: bool, drop: float) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    plain = found_in(Stack(NONE, drop), x, name, half_square)
    found = found_in(Stack(kind, drop), x, name, half_square)
    assert set(numbers(found)) == set(PRECISION)
    assert numbers(found) == numbers(plain)
    notes = found.notes["precision"]
    assert notes["lost_updates"] == plain.notes["precision"]["lost_updates"]
    assert notes["flushed_parameters"] == plain.notes["precision"]["flushed_parameters"]
    assert notes["notes"] == plain.notes["precision"]["notes"]
    assert len(notes["notes"]) == (name == "float8_e4m3")  # that it is emulated


@pytest.mark.parametrize("name", [None, "float8_e4m3"])
def test_outside_of_the_mode_a_recomputation_has_other_numbers(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure that the test above has to see."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    plain = numbers(found_in(Stack(NONE), x, name))
    monkeypatch.setattr(
        runs, "gradients", lambda total, wanted, keep: torch.autograd.grad(total, wanted)
    )
    assert numbers(found_in(Stack(NONE), x, name)) == plain
    assert numbers(found_in(Stack(NOT), x, name)) != plain


@pytest.mark.parametrize("nested", [REENTRANT, NOT])
@pytest.mark.parametrize("name", [None, "bfloat16", "float8_e4m3"])
def test_a_checkpoint_inside_a_re_entrant_one(name: str | None, nested: bool) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    plain = numbers(found_in(Stack(NONE), x, name))
    assert numbers(found_in(Stack(REENTRANT, nested=nested), x, name)) == plain


class Written(torch.autograd.Function):
    """A product whose backward a model wrote, in products of its own."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(h, w)
        return F.linear(h, w)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        h, w = ctx.saved_tensors
        return gradients[0].float() @ w, gradients[0].T @ h


def test_a_backward_that_a_model_wrote_is_not_rounded_to_float8() -> None:
    """Its float64 run is in float64, whatever it casts to."""

    class Custom(nn.Linear):
        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = h + Written.apply(h, self.weight)
            return out

    torch.manual_seed(0)
    model, x = nn.Sequential(Custom(6, 6), Custom(6, 6)), torch.randn(4, 6)
    exact = precision(subject_of(model, x), Effort(arithmetic="float64"))
    assert max(exact.columns["relative_error_gradient"][1]) == 0
    gradients = [
        found_in(model, x, n).columns["relative_error_gradient"][1] for n in (None, "float8_e4m3")
    ]
    assert gradients[0] == gradients[1]  # the weights and the cotangent as they are
    states = found_in(model, x, "float8_e4m3").columns["relative_error_state"][1]
    assert states[-1] > 1e-3


def test_a_re_entrant_checkpoint_leaves_the_gradients_of_the_user() -> None:
    model, fired = Stack(REENTRANT), []
    x = torch.randn(4, 6)
    held = {n: torch.ones_like(p) for n, p in model.named_parameters() if "0" in n}
    for name, p in model.named_parameters():
        p.grad = held.get(name)
        p.register_post_accumulate_grad_hook(lambda p: fired.append(p))
    found_in(model, x)
    found_in(model, x, "float8_e4m3")
    assert all(p.grad is held.get(name) for name, p in model.named_parameters())
    assert all(bool((g == 1).all()) for g in held.values())
    assert not fired
    model(x.requires_grad_()).sum().backward()
    assert len(fired) == len(list(model.parameters()))


def llama(**checkpoints: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).train()
    if checkpoints:
        with warnings.catch_warnings():  # its name changes in the library's next release
            warnings.simplefilter("ignore", FutureWarning)
            model.gradient_checkpointing_enable(**checkpoints)
    return model, {"input_ids": torch.randint(0, 50, (2, 9))}


@pytest.mark.parametrize("name", [None, "bfloat16"])
def test_gradient_checkpointing_of_the_library(name: str | None) -> None:
    plain = found_in(*llama(), name)
    found = found_in(*llama(gradient_checkpointing_kwargs={"use_reentrant": False}), name)
    assert numbers(found) == numbers(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inside = found_in(*llama(gradient_checkpointing_kwargs={"use_reentrant": True}), name)
    of_states = ("relative_error_state", "headroom_float16_bits", "last_binades_fraction")
    for quantity in of_states:
        assert inside.columns[quantity] == plain.columns[quantity]
    # The states after attention are made inside the checkpoints, where no gradient is.
    rows, values = inside.columns["relative_error_gradient"]
    assert rows == [0, 2, 4, 6]
    assert values == [plain.columns["relative_error_gradient"][1][k] for k in rows]
    (said,) = inside.notes["precision"]["notes"]
    assert said == (
        "no gradient was measured at 3 of 7 states, the first in 'model.layers.0': a re-entrant "
        "checkpoint makes them without one; give it use_reentrant=False"
    )


# -------------------------------------------------------------------------------- sparse


class Words(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(20, 6, sparse=sparse)
        self.blocks = nn.Sequential(*(Block(6) for _ in range(3)))

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.table(ids))
        return out


def words() -> Tensor:
    return torch.randint(0, 20, (4, 5), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("instruments", ["precision", "updates", "stiffness"])
def test_a_sparse_gradient_has_the_numbers_of_a_dense_one(optimizer: str, instruments: str) -> None:
    def document(sparse: bool) -> Any:
        effort = Effort(step=Step(optimizer, 1e-3), arithmetic="float16", probes=2)
        loss = (lambda y: 1e-9 * half_square(y)) if instruments == "precision" else half_square
        found = dg.measure(
            Words(sparse), batch=words(), loss=loss, instruments=instruments, effort=effort
        ).to_dict()
        for note in found["settings"]["instruments"].values():
            note.pop("seconds", None)
        return found

    sparse, dense = document(True), document(False)
    said = sparse["settings"]["instruments"].get("updates", {}).pop("sparse_made_dense", None)
    assert (said == ["table.weight"]) == (optimizer.startswith("adam") and said is not None)
    # A sparse step adds a row as often as its word comes, a dense one its sum: other roundings, and
    # stiffness is a difference of such gradients, no sparse one having a second derivative.
    rel = {"precision": 0, "updates": 1e-4, "stiffness": 1e-3}[instruments]
    for one, other in zip(sparse["sites"], dense["sites"], strict=True):
        assert one.keys() == other.keys()
        numbers = [k for k, v in other.items() if not isinstance(v, str)]
        assert [one[k] for k in numbers] == pytest.approx([other[k] for k in numbers], rel, abs=0)
    assert sparse["not_measured"] == dense["not_measured"]
    if instruments == "precision":
        assert sparse["settings"]["instruments"] == dense["settings"]["instruments"]
        note = sparse["settings"]["instruments"]["precision"]
        assert note["flushed_parameters"]["table.weight"] > 0


def test_an_optimizer_that_takes_no_sparse_gradient() -> None:
    """Training would raise so: what needs the step says it, what does not is measured."""
    model = Words(True)
    adam = Effort(step=Step(torch.optim.Adam(model.parameters())))
    found = precision(subject_of(model, words()), adam)
    assert set(numbers(found)) == set(PRECISION)
    why = found.notes["precision"]["lost_updates"]["not_measured"]
    assert "Adam does not support sparse gradients" in why
    assert "that of 'table.weight' is sparse" in why
    with pytest.raises(SpecificationError, match=r"that of 'table\.weight' is sparse"):
        dg.measure(model, batch=words(), instruments="updates", effort=adam)
    sparse = Effort(step=Step(torch.optim.SparseAdam([model.table.weight])))
    note = precision(subject_of(model, words()), sparse).notes["precision"]["lost_updates"]
    assert note["optimizer"] == "SparseAdam"
    assert note["float32"]["share"] == 0


# ------------------------------------------------------------------- models of several types


class Wide(nn.Module):
    """T5's: the last product of a branch in float32, whatever the rest is in."""

    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.norm, self.wi, self.wo = nn.LayerNorm(n), nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, h: Tensor) -> Tensor:
        u = torch.relu(self.wi(self.norm(h)))
        if u.dtype != self.wo.weight.dtype:
            u = u.to(self.wo.weight.dtype)
        out: Tensor = h + self.wo(u).to(h.dtype)
        return out


class WideNorm(nn.Module):
    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.norm, self.w1, self.w2 = nn.LayerNorm(n), nn.Linear(n, n), nn.Linear(n, n)

    def forward(self, h: Tensor) -> Tensor:
        u = self.norm(h.to(self.norm.weight.dtype)).to(self.w1.weight.dtype)
        out: Tensor = h + self.w2(torch.relu(self.w1(u)))
        return out


def mixed(kind: str, dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    made: dict[str, Callable[[], nn.Module]] = {"wo": Wide, "norm": WideNorm}
    model = nn.Sequential(*(made[kind]() for _ in range(3))).to(dtype)
    for name, module in model.named_modules():
        if name.endswith(kind):
            for p in module.float().parameters():  # which half precision does not hold
                p.data += 0.01 * torch.randn(p.shape)
    return model


@pytest.mark.parametrize("kind", ["wo", "norm"])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_mix_is_compared_as_it_is(kind: str, name: str) -> None:
    dtype = getattr(torch, name)
    model, x = mixed(kind, dtype), torch.randn(4, 8).to(dtype)
    each = []
    for network, start in ((model, x), (copy.deepcopy(model).double(), x.double())):
        states = [start.clone().requires_grad_()]
        for block in network:
            states.append(block(states[-1]))
        each.append((states, torch.autograd.grad(half_square(states[-1]), states)))
    found = found_in(model, x, None, half_square)
    for i, quantity in enumerate(("relative_error_state", "relative_error_gradient")):
        wanted = [relative_distance(a, b) for a, b in zip(each[0][i], each[1][i], strict=True)]
        assert found.columns[quantity][1] == pytest.approx(wanted, rel=1e-10)
        assert max(wanted) > 1e-5
    note = found.notes["precision"]
    assert note["arithmetic"] == f"{name} and float32"
    assert note["format"] == name
    assert numbers(found_in(model, x, name, half_square)) == numbers(found)
    # All in one type is another arithmetic.
    other = found_in(copy.deepcopy(model).to(dtype), x, None, half_square)
    assert other.notes["precision"]["arithmetic"] == name
    assert numbers(other)["relative_error_state"] != numbers(found)["relative_error_state"]
    assert found_in(model, x, "float32").notes["precision"]["arithmetic"] == "float32"


def test_updates_of_a_mix_are_lost_by_each_type() -> None:
    """Norm gains of 1 do not move in bfloat16 under Adam at 1e-3, and do in float32."""
    for kind, frozen in (("norm", []), ("wo", [f"{k}.norm.weight" for k in range(3)])):
        model, x = mixed(kind, torch.bfloat16), torch.randn(4, 8).bfloat16()
        found = precision(subject_of(model, x), Effort(step=Step("adam", 1e-3)))
        note = found.notes["precision"]["lost_updates"]
        assert note["bfloat16 and float32"]["frozen"] == frozen
        assert note["bfloat16"]["frozen"] == [f"{k}.norm.weight" for k in range(3)]


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(Block(6) for _ in range(3))).bfloat16()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(x.to(torch.bfloat16)).float())
        return out


@pytest.mark.parametrize("name", [None, "bfloat16"])
def test_blocks_in_bfloat16_and_a_head_in_float32(name: str | None) -> None:
    found = found_in(Head(), torch.randn(4, 6), name)
    assert not found.missing
    assert 1e-3 < found.columns["relative_error_state"][1][-1] < 1e-2
    assert found.notes["precision"]["arithmetic"] == "bfloat16 and float32"


# ------------------------------------------------------------------------------------ T5


def t5(dtype: torch.dtype, whole: bool) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_heads=2,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    config.decoder_start_token_id = 0
    made = transformers.T5ForConditionalGeneration if whole else transformers.T5EncoderModel
    ids = torch.randint(0, 50, (2, 9))
    return made(config).eval().to(dtype), {"input_ids": ids} | ({"labels": ids} if whole else {})


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_t5_in_half_precision(name: str) -> None:
    """It clamps and casts there as it does not in float64."""
    model, batch = t5(getattr(torch, name), whole=False)
    found = found_in(model, batch)
    assert not found.missing
    with torch.no_grad(), twice_differentiable():  # with the attention that is measured
        low, exact = (
            m(**batch, output_hidden_states=True).hidden_states
            for m in (model, copy.deepcopy(model).double())
        )
    errors = found.columns["relative_error_state"][1]
    assert len(errors) == 7
    for block in (0, 1, 2):  # after the last block the library gives the normed state
        wanted = relative_distance(low[block], exact[block])
        assert errors[2 * block] == pytest.approx(wanted, rel=1e-5)  # its double keeps a float32
    assert (errors[-1] > 3e-3) == (name == "bfloat16")
    said = found.notes["precision"]["notes"]
    assert any("calls isinf in 'encoder.block.0'" in line for line in said) == (name == "float16")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_both_streams_of_t5_in_half_precision(dtype: torch.dtype) -> None:
    model, batch = t5(dtype, whole=True)
    profile = dg.measure(model, batch=batch, instruments="precision")
    wanted = set(PRECISION) & profile.not_measured.keys()
    assert not wanted
    assert len(profile["relative_error_state"]) == 17
    assert np.nanmax(profile["relative_error_gradient"]) < 0.1


def test_without_counterparts_it_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure that the tests above have to see."""
    monkeypatch.setattr(again, "alike", lambda *given: True)
    why = found_in(*t5(torch.float16, whole=False)).missing["relative_error_state"]
    assert "a second pass of the model does not compute what the first did" in why


# ----------------------------------------------------------------------------- emulation


class Fourier(nn.Module):
    """``h + W Re(fft(h))``; ``careful``: the transform in float32, by the model itself."""

    def __init__(self, careful: bool) -> None:
        super().__init__()
        self.w, self.careful = nn.Linear(5, 8), careful

    def forward(self, h: Tensor) -> Tensor:
        x = h.float() if self.careful else h
        out: Tensor = h + self.w((torch.fft.rfft(x, dim=-1) * 3).real.to(h.dtype))
        return out


class Turn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(8, 8, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        q, _ = torch.linalg.qr(self.w.weight)
        return h + torch.tanh(h @ q)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("careful", [True, False])
def test_a_fourier_transform_in_half_precision(name: str, careful: bool) -> None:
    torch.manual_seed(0)
    dtype = getattr(torch, name)
    model, x = Fourier(careful), torch.randn(4, 8)
    if not careful:
        with pytest.raises(RuntimeError, match="Unsupported dtype"):
            copy.deepcopy(model).to(dtype)(x.to(dtype))
    made, given = arithmetic.arithmetic_named(name).prepared(model, inventory(model), x)
    with arithmetic.arithmetic_named(name).around(made) as said:
        out = made(given)
    z = torch.fft.rfft(x.to(dtype).float(), dim=-1).real
    z = z * 3 if careful else (z.to(dtype).float() * 3)  # a careful model rounds once
    assert out.dtype == dtype
    assert torch.equal(out, x.to(dtype) + F.linear(z.to(dtype), *made.parameters()))
    words = f"has no {name} here: it was computed in float32 and rounded to {name}"
    assert said == ([] if careful else [f"fft_rfft in the model itself {words}"])
    found = found_in(nn.Sequential(Block(8), model), x, name)
    assert not found.missing
    assert found.notes["precision"]["notes"] == ([] if careful else [f"fft_rfft in '1' {words}"])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_named_results_are_rounded_too(name: str) -> None:
    torch.manual_seed(0)
    dtype = getattr(torch, name)
    model, x = nn.Sequential(Turn(), Turn()), torch.randn(4, 8)
    found = found_in(model, x, name)
    assert not found.missing
    h, exact = x.to(dtype), x.double()
    for block in model:
        w = block.get_parameter("w.weight").detach()
        q = torch.linalg.qr(w.to(dtype).float()).Q.to(dtype)
        h = h + torch.tanh(h @ q)
        exact = exact + torch.tanh(exact @ torch.linalg.qr(w.double()).Q)
    wanted = relative_distance(h, exact)
    assert found.columns["relative_error_state"][1][-1] == pytest.approx(wanted, rel=1e-10)
    (said,) = found.notes["precision"]["notes"]
    assert said == (
        f"linalg_qr in '0' and 1 more has no {name} here: it was computed in float32 and rounded "
        f"to {name}"
    )


def test_types_that_do_not_match_are_said_with_their_functions() -> None:
    class Scales(Block):
        def forward(self, h: Tensor) -> Tensor:
            return super().forward(h * torch.linspace(1, 2, 6))

    torch.manual_seed(0)
    model = nn.Sequential(Block(6), Scales(6))
    why = found_in(model, torch.randn(4, 6), "bfloat16").missing["relative_error_state"]
    assert "linear was given float32, which mul in '1' made of bfloat16" in why
    assert not found_in(model, torch.randn(4, 6)).missing


def test_a_loss_that_raises_in_one_arithmetic_leaves_the_states() -> None:
    def loss(y: Tensor) -> Tensor:
        if y.dtype == torch.float16:
            raise ValueError("no halves here")
        return half_square(y)

    model, x = Stack(NONE), torch.randn(4, 6)
    found = found_in(model, x, "float16", loss)
    assert len(found.columns["relative_error_state"][0]) == 5
    assert found.missing.keys() == {"relative_error_gradient", "flushed_gradient_fraction"}
    assert "the loss raised ValueError: no halves here" in found.missing["relative_error_gradient"]
    assert not found_in(model, x, "bfloat16", loss).missing


# ----------------------------------------------------------------------- a function, words


def test_a_function_in_place_of_an_arithmetic() -> None:
    model, x = Stack(NONE), torch.randn(4, 6)

    def rewritten(h: Tensor) -> Tensor:
        each = [p.T for p in model.parameters()]
        for w1, w2 in zip(each[::2], each[1::2], strict=True):
            h = torch.tanh(h @ w1) @ w2 + h
        return h

    def wrong(h: Tensor) -> Tensor:
        return 2 * rewritten(h)

    notes = []
    for other in (copy.deepcopy(model), rewritten, wrong, lambda h: model(h)):
        profile = dg.measure(
            model, batch=x, instruments="precision", effort=Effort(arithmetic=other)
        )
        notes.append(profile.settings["instruments"]["parity"])  # type: ignore[index]
    assert [note["against"] for note in notes] == ["Stack", "rewritten", "wrong", "<lambda>"]
    for note in notes[1:]:
        assert "a function has no modules" in note["compared"]
        assert note["unmatched_parameters"] == []
        assert note["parameter_gradient_error"].keys() == dict(model.named_parameters()).keys()
    for note in (notes[0], notes[1], notes[3]):
        assert 0 < max(note["output_error"].values()) < 1e-6
        assert max(note["parameter_gradient_error"].values()) < 1e-6
    assert max(notes[2]["output_error"].values()) == pytest.approx(1, rel=1e-5)
    assert max(notes[2]["parameter_gradient_error"].values()) == pytest.approx(1, rel=1e-5)


def test_what_cannot_be_compared_with_is_refused() -> None:
    with pytest.raises(SpecificationError, match="arithmetic is the class Block, expected a mod"):
        Effort(arithmetic=Block)
    with pytest.raises(SpecificationError, match="a module or function of your own that takes the"):
        Effort(arithmetic=3)  # type: ignore[arg-type]

    def raises(h: Tensor, mask: Tensor) -> Tensor:
        return h * mask

    profile = dg.measure(
        Stack(NONE),
        batch=torch.randn(4, 6),
        instruments="precision",
        effort=Effort(arithmetic=raises),
    )
    assert "raises raised TypeError" in profile.not_measured["relative_error_state"]
    assert "headroom_float16_bits" in profile


def test_zeros_are_no_overflow_and_no_nan() -> None:
    class Zero(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h * 0

    torch.manual_seed(0)
    model = nn.Sequential(Block(6), Zero(), Block(6))
    profile = dg.measure(
        model, batch=torch.randn(4, 6), instruments="precision,branches,correlation,updates"
    )
    sites = profile.to_dict()["sites"]
    reasons = {k: v for site in sites for k, v in site.items() if k.endswith("_reason")}
    assert reasons["headroom_float16_bits_reason"] == "all zero"
    assert reasons["underflow_headroom_bits_reason"] == "all zero"
    for name in ("correlation", "functional_update", "branch_stream_cosine", "branch_to_stream"):
        assert reasons[f"{name}_reason"] == "undefined"
    assert not {"overflow to inf", "not a number"} & set(reasons.values())
    broken = dg.measure(
        nn.Sequential(Block(6), nn.Threshold(math.inf, math.inf)),
        batch=torch.randn(4, 6),
        instruments="fast,precision",
    )
    words = [str(v) for site in broken.to_dict()["sites"] for v in site.values()]
    assert "overflow to inf" in words
    healthy = dg.measure(model[0], batch=torch.randn(4, 6), instruments="fast,precision")
    assert not [k for site in healthy.to_dict()["sites"] for k in site if k.endswith("_reason")]
