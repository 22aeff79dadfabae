"""Weight normalisation with data-dependent initialisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from tests.recipes.contract import broken, on_module, said, scaled
from tests.recipes.models import convolutions, gpt2, mlp, plain, resnet, transformer


def outputs(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """What each normalised layer makes, channels last."""
    found: dict[str, Tensor] = {}

    def hook(name: str) -> Any:
        def keep(module: nn.Module, given: Any, out: Tensor) -> None:
            found[name] = (out.movedim(1, -1) if out.dim() == 4 else out).detach()

        return keep

    for name, module in model.named_modules():
        if hasattr(module, "parametrizations"):
            module.register_forward_hook(hook(name))
    model.eval()
    model(**batch) if isinstance(batch, dict) else model(batch)
    return found


def transposed() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(6, 6, 1))
    return nn.Sequential(*layers), torch.randn(8, 3, 6, 6)


@pytest.mark.parametrize(
    ("build", "layers", "small"), [(mlp, 14, 6), (plain, 5, 0), (transposed, 3, 0), (gpt2, 12, 6)]
)
def test_on_modules_against_hooks(build: Any, layers: int, small: int) -> None:
    applied, batch = on_module("weight-norm", build)
    found = outputs(applied.model, batch)
    assert len(found) == layers
    sizes = []
    for made in found.values():
        rows = made.flatten(0, -2)
        size = 0.1 if float(rows.std()) < 0.5 else 1.0
        sizes.append(size)
        assert float(rows.mean(0).abs().max()) < 1e-3
        assert rows.std(0, correction=0).tolist() == pytest.approx([size] * rows.shape[1], rel=1e-3)
    assert sizes.count(0.1) == small
    for name, p in applied.model.named_parameters():
        if name.endswith("original1") and p.numel() > 150:
            assert float(p.detach().std()) == pytest.approx(0.05, rel=0.25)


def test_biases_are_put_in_and_shortcuts_take_part() -> None:
    applied, _ = on_module("weight-norm", resnet)
    assert "6 layers with a bias put in" in applied.changes
    assert applied.changes[-1] == "lengths and biases of 9 layers set on the batch"


def test_what_the_network_computes_is_that_of_the_formula() -> None:
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(5, 7)), torch.randn(40, 5) + 2
    applied = apply(model, batch, "weight-norm").model
    v = applied.get_parameter("0.parametrizations.weight.original1").detach()
    t = batch @ (v / v.norm(dim=1, keepdim=True)).T
    g = 1 / t.std(0, correction=0)
    expected = t * g - t.mean(0) * g
    assert torch.allclose(applied(batch), expected, atol=1e-5)


def test_faults() -> None:
    for plant, words in (
        (scaled("1.up.parametrizations.weight.original0", 1.3),
         r"channel 0 of '1.up' has mean .* and standard deviation 1.3, expected 0 and 1"),
        (scaled("3.down.parametrizations.weight.original0", 10),
         "6 of 14 layers.*'3.down' .* standard deviation 1, expected 0 and 0.1"),
        (scaled("original1", 2), "14 of 14 directions: std 0.1"),
        (scaled("2.up.bias", -1), "channel . of '2.up' has mean"),
    ):  # fmt: skip
        applied, batch = on_module("weight-norm", mlp)
        broken(applied.model, batch, "weight-norm", plant, words)


def test_over_the_wrong_axis_or_not_at_all() -> None:
    model, batch = plain()
    assert "0 of 5 weights that are lengths times directions: '0.weight' is its own" in said(
        audit(model, batch, "weight-norm")
    )
    model, batch = transposed()
    for layer in (0, 2, 3):  # dim 0 of the transposed one are its inputs
        parametrizations.weight_norm(model.get_submodule(str(layer)))
    words = said(audit(model, batch, "weight-norm"))
    assert (
        "2 of 3 weights with a length for each output: those of "
        "'2.parametrizations.weight.original1' stand along its inputs" in words
    )
    assert "0 of 3 layers of mean 0 and the standard" in words
    with pytest.raises(NetworkError, match="has lengths for its inputs, expected one for each"):
        apply(model, batch, "weight-norm")


def test_outputs_that_do_not_vary_are_left_and_said() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Threshold(1e9, 0.0), nn.Linear(4, 4))
    batch = torch.randn(16, 4)
    applied = apply(model, batch, "weight-norm")
    assert applied.changes[-1].endswith("1 have outputs that do not vary ('2'), left at length 1")
    found = audit(applied.model, batch, "weight-norm")
    assert found.holds, said(found)
    assert "(1 with outputs that do not vary)" in found.findings[-1].said


def test_what_it_does_not_cover() -> None:
    with pytest.raises(NetworkError, match="cannot be put into an equation: an equation has no"):
        rewritten(Network("h + W(h)", 2, 8), "weight-norm")
    for build, words in (
        (convolutions, "'8.weight' is a transposed convolution of 8 groups"),
        (transformer, "in_proj_weight' is no weight of a module of its own"),
    ):
        model, batch = build()
        with pytest.raises(NetworkError, match=words):
            apply(model, batch, "weight-norm")


def test_another_parametrisation_is_in_the_way() -> None:
    model, batch = plain()
    parametrizations.spectral_norm(model.get_submodule("2"))
    assert "0 of 5 weights that are lengths" in said(audit(model, batch, "weight-norm"))
    with pytest.raises(NetworkError, match="the weight of '2' is parametrised already"):
        apply(model, batch, "weight-norm")


def test_on_the_module_of_an_equation() -> None:
    network = Network("h + W2(relu(W1(h, out=2*n)))", 3, 16)
    on_module("weight-norm", lambda: (network.module(), torch.randn(64, 16)))


def test_a_layer_with_one_output_has_one_length() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    batch = torch.randn(32, 8)
    applied = apply(model, batch, "weight-norm").model
    assert audit(applied, batch, "weight-norm").holds
    with torch.no_grad():
        applied.get_parameter("2.parametrizations.weight.original0").mul_(3)
    assert not audit(applied, batch, "weight-norm").holds
