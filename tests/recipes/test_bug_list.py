"""Bugs that were met in published code, each with a right and a broken build.

``BUGS`` are built here. ``ELSEWHERE`` are built, right and broken, in a recipe's own tests, which
are named with the words that they ask for. ``UNSEEN`` leave nothing in a network that could be
measured, each with the reason. Together they are the table of docs/recipes.md, row by row.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import Audit, audit
from depthgauge.recipes.clipping import Units, clip, units_of
from depthgauge.recipes.registry import recipe_named
from depthgauge.recipes.wrappers import norm_of
from depthgauge.trace.layout import layout
from tests.recipes.contract import said
from tests.recipes.models import encoder, mlp, plain

ROOT = Path(__file__).parents[2]
WIDTH = 16
MLP = "W2(relu(W1({}, out=4*n)))"


def _equation(text: str, recipe: str, depth: int = 6, **options: Any) -> Audit:
    model = Network(text, depth, WIDTH, **options).module(seed=0)
    return audit(model, torch.randn(4, WIDTH), recipe)


# ------------------------------------------------------------------------- weights and biases


def biases_scaled(right: bool, recipe: str = "deepnorm") -> Audit:
    """A filter for names that begin with a layer's takes its bias as well."""
    model, batch = encoder() if recipe == "deepnorm" else mlp()
    applied = apply(model, batch, recipe).model
    paths = {
        w.bias: factor for w, factor in recipe_named(recipe).plan(layout(applied, batch)).scales
    }
    with torch.no_grad():
        for path, p in applied.named_parameters():
            if path in paths and not right:
                p.mul_(paths[path])
    return audit(applied, batch, recipe)


def biases_scaled_up(right: bool) -> Audit:
    return biases_scaled(right, "sub-ln")


def read_as_in_out(right: bool) -> Audit:
    """A sampler for weights of (in, out) is given PyTorch's, which are (out, in)."""
    model, batch = plain(nn.ReLU)
    with torch.no_grad():
        for layer in model:  # type: ignore[attr-defined]
            if isinstance(layer, nn.Linear):
                fan_in = layer.weight.shape[1 if right else 0]
                layer.weight.normal_(0, math.sqrt(2 / fan_in))
                layer.bias.zero_()
    return audit(model, batch, "he")


class ScaleNorm(nn.Module):
    def __init__(self, width: int, g: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(g))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * (self.scale / torch.norm(x, dim=-1, keepdim=True).clamp(min=1e-5))
        return out


class Normed(nn.Module):
    """A pre-norm branch."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.relu = norm, nn.ReLU()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.relu(self.up(self.norm(x))))
        return out


def _normed(norm: Callable[[], nn.Module], blocks: int = 4) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    body = [Normed(norm()) for _ in range(blocks)]
    model = nn.Sequential(nn.Linear(8, WIDTH), *body, norm(), nn.Linear(WIDTH, 3))
    return model, torch.randn(8, 8)


def scalenorm_at_one(right: bool) -> Audit:
    model, batch = _normed(lambda: ScaleNorm(WIDTH, math.sqrt(WIDTH) if right else 1.0))
    return audit(model, batch, "prenorm")


# ----------------------------------------------------------------------- what a loader loses


class Scaled(nn.Module):
    """LayerScale, its gains called gamma; as a class fills them that is told no number."""

    def __init__(self, eps: float = 1.0) -> None:
        super().__init__()
        self.branch = Normed(nn.LayerNorm(WIDTH))
        self.gamma = nn.Parameter(torch.full((WIDTH,), eps))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.branch
        out: Tensor = x + self.gamma * inner.down(inner.relu(inner.up(inner.norm(x))))
        return out


def gains_renamed(right: bool) -> Audit:
    """A loader renames what is called gamma and drops what then fits no parameter."""
    torch.manual_seed(0)
    saved = nn.Sequential(*(Scaled(0.1) for _ in range(4))).state_dict()
    if not right:
        saved = {name.replace("gamma", "weight"): value for name, value in saved.items()}
    loaded = nn.Sequential(*(Scaled() for _ in range(4)))
    loaded.load_state_dict(saved, strict=False)
    return audit(loaded, torch.randn(4, WIDTH), "layerscale")


class DepthScaled(nn.Module):
    """LayerNorm Scaling, its factor in a buffer that is not saved."""

    scale: Tensor

    def __init__(self, l: int) -> None:
        super().__init__()
        self.branch = Normed(nn.LayerNorm(WIDTH))
        self.register_buffer("scale", torch.tensor(1 / math.sqrt(l)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.branch
        out: Tensor = x + inner.down(inner.relu(inner.up(self.scale * inner.norm(x))))
        return out


def _depth_scaled() -> nn.Module:
    torch.manual_seed(0)
    body = (DepthScaled(l) for l in range(1, 5))
    return nn.Sequential(*body, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))


def factor_lost_on_meta(right: bool) -> Audit:
    """Made on the meta device, then given memory: what is not saved is whatever lay there."""
    model, saved = _depth_scaled(), _depth_scaled().state_dict()
    if not right:
        with torch.device("meta"):
            model = _depth_scaled()
        model = model.to_empty(device="cpu")
        for buffer in model.buffers():
            buffer.zero_()  # as fresh memory is; what it is by chance is not for a test
    model.load_state_dict(saved)
    return audit(model, torch.randn(4, WIDTH), "layernorm-scaling")


@dataclasses.dataclass
class Unannotated:
    width: int = WIDTH
    norm = "layernorm"  # no field, for it has no annotation


@dataclasses.dataclass
class Annotated:
    width: int = WIDTH
    norm: str = "layernorm"


def option_without_annotation(right: bool) -> Audit:
    """A copy by fields forgets what is none, and with it which norm was chosen."""
    config: Any = Annotated() if right else Unannotated()
    config.norm = "derf"
    copied = type(config)(**dataclasses.asdict(config))
    model, batch = _normed(lambda: norm_of(copied.norm, WIDTH, -1))
    return audit(model, batch, "derf")


# --------------------------------------------------------------------------- where norms stand


def residual_of_the_normed(right: bool) -> Audit:
    text = (
        f"h + {MLP.format('layernorm(h)')}"
        if right
        else f"u = layernorm(h); h = u + {MLP.format('u')}"
    )
    return _equation(text, "prenorm")


def second_norm_after_the_sum(right: bool) -> Audit:
    branch = MLP.format("layernorm(h)")
    return _equation(
        f"h + layernorm({branch})" if right else f"layernorm(h + {branch})", "sandwich"
    )


def final_norm_of_post_norm(right: bool) -> Audit:
    """nn.Transformer gives each of its stacks one, whatever the layers are."""
    model, batch = encoder(final=not right)
    return audit(model, batch, "postnorm")


def logarithm_not_squared(right: bool) -> Audit:
    factor = "1/(sqrt(l)*log(l+1))" if right else "1/sqrt(l*log(l+1))"
    return _equation(f"h + ({factor})*{MLP.format('h')}", "stable-resnet")


# ------------------------------------------------------------------- a path, a group, a gradient


class Generating(nn.Module):
    """A model that scores targets where it is given them, and generates where it is not."""

    def __init__(self, body: nn.Module, head: nn.Module, number: float, forgets: bool) -> None:
        super().__init__()
        self.body, self.head, self.number, self.forgets = body, head, number, forgets

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        h = self.body(x)
        if targets is not None:
            return F.cross_entropy(self.head(self.number * h), targets)
        out: Tensor = self.head(h if self.forgets else self.number * h)
        return out


def generation_without_the_multiplier(right: bool, scored: bool = False) -> Audit:
    model, batch = mlp()
    made = apply(model, batch, "completep").model
    (*body, last) = made.children()
    bare, number = last.get_submodule("module"), 256 / 24
    paths = Generating(nn.Sequential(*body), bare, number, forgets=not right)
    given = {"x": batch, "targets": torch.zeros(32, dtype=torch.long)} if scored else batch
    return audit(paths, given, "completep")


def test_the_other_path_of_that_model_is_right() -> None:
    found = generation_without_the_multiplier(right=False, scored=True)
    assert found.holds, said(found)


def scalars_at_the_full_rate(right: bool) -> Audit:
    model, batch = mlp()
    applied = apply(model, batch, "fixup")
    groups: Any = applied.groups(0.1) if right else applied.model.parameters()
    return audit(applied.model, batch, "fixup", torch.optim.SGD(groups, 0.1))


def _clipped(how: Callable[[Tensor, Tensor, Units], Tensor], *without: str) -> Audit:
    model, batch = mlp()
    applied = apply(model, batch, "nfnet").model

    def clips(model: nn.Module) -> None:
        for p, units in units_of(model, without).items():
            assert p.grad is not None
            p.grad.copy_(how(p.grad, p.detach(), units))

    return audit(applied, batch, "nfnet", clip=clips)


def classifier_clipped(right: bool) -> Audit:
    return _clipped(clip, *(("7",) if right else ()))


def clipped_over_inputs(right: bool) -> Audit:
    def how(g: Tensor, p: Tensor, units: Units) -> Tensor:
        return clip(g, p, units if right or p.dim() < 2 else Units(1 - units.axis))

    return _clipped(how, "7")


def clipped_by_tensors(right: bool) -> Audit:
    def how(g: Tensor, p: Tensor, units: Units) -> Tensor:
        return clip(g, p, units) if right else clip(g.flatten(), p.flatten()).reshape_as(g)

    return _clipped(how, "7")


# ------------------------------------------------------------------------------------- the list


class Bug(NamedTuple):
    """``build(right)`` gives the audit of a right or a broken build; ``words`` name the mistake."""

    build: Callable[[bool], Audit]
    words: str


class Other(NamedTuple):
    """A test of another file, and what it asks the audit to say."""

    file: str
    test: str
    words: str


BUGS: Mapping[str, Bug] = {
    "biases scaled by a filter of names": Bug(
        biases_scaled, r"6 biases scaled as their weights are: a filter by names such as 'fc1'"
    ),
    "biases scaled up by a filter of names": Bug(biases_scaled_up, "12 biases scaled as their"),
    "LayerScale renamed and dropped at load": Bug(
        gains_renamed, "0 of 4 branches .*has gain.1.: the gains begin at 1"
    ),
    "factor lost on the meta device": Bug(
        factor_lost_on_meta, "takes 0 of its input, expected 1: the factor is zero, a buffer that"
    ),
    "AGC clips the classifier": Bug(
        classifier_clipped, "0 of 2 .*'7.weight' is clipped: the classifier is to be left out"
    ),
    "AGC over the wrong axis": Bug(
        clipped_over_inputs, "is clipped over the wrong axis: its outputs lie on axis 0"
    ),
    "AGC by whole tensors": Bug(clipped_by_tensors, "is clipped as one tensor, not unit by unit"),
    "weights read as (in, out)": Bug(
        read_as_in_out, r"4 of 4 weights: .*: of the fan out, or of a weight that was read as"
    ),
    "generation forgets the head's multiplier": Bug(
        generation_without_the_multiplier, "0 of 1 heads .*on the path that this batch takes it is"
    ),
    "ScaleNorm begins at 1": Bug(
        scalenorm_at_one, r"5 of 5 gains of ScaleNorm: 1, expected sqrt\(d\).*here it is a length"
    ),
    "residual of the normed state": Bug(
        residual_of_the_normed, "the residual is taken from the normed x"
    ),
    "final norm behind a post-norm stack": Bug(
        final_norm_of_post_norm, "1 norms after the last branch of a stream; '0.norm' stands behind"
    ),
    "logarithm not squared": Bug(logarithm_not_squared, "the logarithm is squared: its sum diverg"),
    "option without an annotation": Bug(
        option_without_annotation, "5 norms of another kind: derf takes their place"
    ),
    "sandwich's second norm after the sum": Bug(
        second_norm_after_the_sum, "the second norm stands after the sum, not at the branch's end"
    ),
    "Fixup's scalars at the full rate": Bug(
        scalars_at_the_full_rate, "scalars learn at 0.1 of the rate"
    ),
}

_DEEPNORM, _FIXUP = "test_deepnorm.py", "test_fixup.py"
_GAIN, _SUM = "test_a_wrong_gain_is_named", "test_a_wrong_sum_is_named"
ELSEWHERE: Mapping[str, Other] = {
    "alpha on the branch": Other(_DEEPNORM, _SUM, "alpha multiplies the branch, and belongs on"),
    "DeepNorm without its norm": Other(_DEEPNORM, _SUM, "the norm after the sum is missing"),
    "encoder's constant inverted": Other(
        _DEEPNORM, "test_the_inverted_constant_of_an_encoder_is_named", "1.15 = 1/.87 where .87"
    ),
    "values of a fused matrix missed": Other(
        _DEEPNORM, _GAIN, "the values in a fused matrix were missed"
    ),
    "sign of beta's exponent": Other(_DEEPNORM, _GAIN, "wrong sign in its exponent"),
    "one alpha at any depth": Other(_DEEPNORM, _SUM, "2.8284, the number of 32 layers"),
    "alpha and beta swapped": Other(_DEEPNORM, _GAIN, "alpha, where beta belongs"),
    "classifier's bias among the scalars": Other(
        _FIXUP,
        "test_a_filter_by_name_that_catches_the_classifiers_bias_is_named",
        "learn at the full rate; '0.bias' does not",
    ),
    "cross-attention counts an encoder": Other(
        _FIXUP, "test_the_wrong_count_in_cross_attention_is_named", "the branches of 'encoder.lay"
    ),
    "1/sqrt(2N) never applied": Other(
        "test_recipes.py", "test_a_wrong_depth_scale_is_named", "the depth scale was never applied"
    ),
    "delta-orthogonal times the root of the gain": Other(
        "test_delta_orthogonal.py", "test_faults", "multiplied by the root of the gain"
    ),
    "delta-orthogonal cut out of a larger matrix": Other(
        "test_delta_orthogonal.py", "test_faults", "1 of 4 kernels: singular values from"
    ),
    "sqrt(2) on values that were not stacked": Other(
        "test_t_fixup.py", "test_wrong_weights_are_named", "too large: Xavier was of the part"
    ),
    "norm computed, then overwritten": Other(
        "test_stable_resnet.py", "test_a_norm_that_is_overwritten_is_named", "whose result nothing"
    ),
    "scalar bias on the identity path": Other(
        _FIXUP, "test_a_bias_on_the_identity_path_is_named", "is added to the skip too"
    ),
    "final norm left in Fixup": Other(
        _FIXUP, "test_a_final_norm_that_was_left_is_named", "1 norms: Fixup takes their place"
    ),
    "shortcut counted in m": Other(
        _FIXUP,
        "test_a_shortcut_that_is_counted_where_it_stands_is_named",
        "the shortcut was counted",
    ),
    "layers counted for branches": Other(
        "test_recipes.py", "test_a_mistake_is_named", "layers, not the"
    ),
}

UNSEEN: Mapping[str, str] = {
    "which way tau favours": "it is a sentence of a documentation, and no number",
    "two recipes at two rates": "it lies between two runs, and an audit sees one network; compare "
    "gives all recipes one rate",
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_named_and_the_right_build_is_clean(name: str) -> None:
    build, words = BUGS[name]
    right, wrong = build(True), build(False)
    assert right.holds, said(right)
    assert not wrong.holds
    assert re.search(words, said(wrong)), said(wrong)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_its_own_test_builds_it(name: str) -> None:
    file, test, words = ELSEWHERE[name]
    text = (ROOT / "tests/recipes" / file).read_text()
    functions = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert test in functions
    assert words in text


def test_the_page_has_every_bug_once() -> None:
    page = (ROOT / "docs/recipes.md").read_text()
    table = page.partition("<!-- bugs -->")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", table, re.M)
    rows = rows[2:]  # without the head and the line under it
    names = [name for name, *_ in rows]
    assert len(names) == len(set(names))
    assert set(names) == {*BUGS, *ELSEWHERE, *UNSEEN}
    for name, where, words in rows:
        if name in UNSEEN:
            assert (where, words) == ("none", f"not seen: {UNSEEN[name]}")
