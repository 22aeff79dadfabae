"""Zero gamma."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from depthgauge.errors import NetworkError
from depthgauge.network.spec import Network
from depthgauge.recipes.apply import apply
from depthgauge.recipes.audit import audit
from depthgauge.recipes.rewritten import rewritten
from depthgauge.study.reference import resnet as reference
from depthgauge.trace.layout import layout
from tests.recipes.contract import broken, on_equation, on_module, said
from tests.recipes.models import mlp, resnet

CONV = "h + batchnorm(conv3(relu(batchnorm(conv3(h), gain=True, bias=True))), gain=True, bias=True)"


def test_on_equations() -> None:
    changed, model, batch = on_equation("zero-gamma", CONV, width=8, size=4)
    assert str(changed.block).endswith("gain=0, bias=True)")
    assert str(changed.block).count("gain=0") == 1
    assert torch.equal(model(batch), batch)
    on_equation("zero-gamma", "h + layernorm(W2(relu(W1(h))))")


def test_on_modules_and_faults() -> None:
    applied, batch = on_module("zero-gamma", resnet)
    words = "2 of 3 gains of norms begin at 0; '1.k.weight' does not"
    broken(applied.model, batch, "zero-gamma", _restored, words)
    applied, batch = on_module("zero-gamma", lambda: reference(50))
    gains = [p for name, p in applied.model.named_parameters() if name.endswith("norms.2.weight")]
    assert len(gains) == 16
    assert not any(bool(p.any()) for p in gains)
    shortcuts = [p for name, p in applied.model.named_parameters() if "shortcut.1.weight" in name]
    assert all(bool((p == 1).all()) for p in shortcuts)
    model, batch = reference(20)
    inner = apply(model, batch, "zero-gamma").model
    with torch.no_grad():
        for branch in layout(model, batch).branches:
            inner.get_parameter(branch.norms[0].gain).zero_()
    found = said(audit(inner, batch, "zero-gamma"))
    assert "'stages.0.norms.1.weight' has none" in found, "both gains at zero: it stays asleep"


def _restored(model: nn.Module) -> None:
    with torch.no_grad():
        model.get_parameter("1.k.weight").fill_(1)


def test_a_bias_that_is_not_zero_is_found() -> None:
    model, batch = resnet()
    applied = apply(model, batch, "zero-gamma").model
    with torch.no_grad():
        applied.get_parameter("2.k.bias").fill_(0.1)
    assert "2 of 3 branches add exactly zero" in said(audit(applied, batch, "zero-gamma"))


def test_what_it_does_not_cover() -> None:
    with pytest.raises(NetworkError, match="no residual branch was found"):
        rewritten(Network("W(relu(h))", 4, 8), "zero-gamma")
    with pytest.raises(NetworkError, match=r"does not end with a norm, .* or use rezero"):
        apply(*mlp(), "zero-gamma")
