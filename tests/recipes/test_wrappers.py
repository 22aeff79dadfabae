"""Modules around modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from depthgauge.recipes.wrappers import Entered, PerChannel, Scaled, Shifted, Standardised, Times


def test_a_wrapper_answers_for_what_it_holds() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    wrapped = Scaled(Shifted(attention), 0.5)
    assert wrapped.batch_first is True
    assert wrapped.scale.item() == 0.5
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        _ = wrapped.absent
    x = torch.randn(2, 3, 8)
    assert torch.equal(wrapped(x, x, x)[0], 0.5 * attention(x, x, x)[0])


def test_a_wrapper_is_copied_with_what_it_holds() -> None:
    layer = nn.Linear(6, 4)
    parametrize.register_parametrization(layer, "weight", Standardised(4, 1.5))
    wrapped = PerChannel(Entered(layer, Times(2.0)), 0.1, 4)
    copied = copy.deepcopy(wrapped)
    names = [name for name, _ in wrapped.named_parameters()]
    assert [name for name, _ in copied.named_parameters()] == names
    x = torch.randn(3, 6)
    assert torch.equal(copied(x), wrapped(x))
    with torch.no_grad():
        copied.gain.zero_()
    assert bool(wrapped(x).any())
