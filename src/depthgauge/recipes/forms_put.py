"""The forms of a plan put into a copy: norms, then numbers, each branch by its own form."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from depthgauge.recipes.attention_put import put_logits, put_scored
from depthgauge.recipes.curves import changes
from depthgauge.recipes.norms_put import exchange, put_final, put_norms, shared_form
from depthgauge.recipes.numbers_put import (
    put_around,
    put_biases,
    put_coefficients,
    put_inlet,
    put_outlets,
    put_shifts,
)
from depthgauge.recipes.work import Work

__all__ = ["put_forms"]


def put_forms(work: Work) -> None:
    """Each branch brought to its form, then what the plan asks of layers, heads and activations."""
    plan = work.plan
    normless = plan.forms and all(f.norms is not None and not f.norms for f in plan.forms)
    if (normless and not plan.inside) or plan.curves:
        for path in work.found.norms:
            work.replace(path, nn.Identity, "norms out")
    if plan.everywhere is not None:
        for norm in work.found.every:
            if norm.kind != plan.everywhere:
                exchange(work, norm, plan.everywhere)
    kept = put_final(work) if plan.final is not None else set()
    for k, (branch, form) in enumerate(zip(work.found.branches, plan.forms, strict=False)):
        if plan.curves and work.found.bends.reader[k] >= 0:  # which takes the sum's factor
            form = replace(form, skip=None, factor=None)
        form = shared_form(work, branch, form)
        inside = "in" not in branch.norm_at  # what is put around later comes first
        if inside and form.inlet is not None:
            put_inlet(work, branch, form, form.inlet)
        if plan.everywhere is None:
            put_norms(work, branch, form, kept)
        if not inside and form.inlet is not None:
            put_inlet(work, branch, form, form.inlet)
        put_coefficients(work, branch, form)
        if form.scored is not None:
            put_scored(work, branch, form, form.scored)
        elif form.logits is not None:
            put_logits(work, branch, form.logits)
        if form.shifts:
            put_shifts(work, branch)
        if form.biased:
            put_biases(work, branch)
    for row in plan.around:
        put_around(work, row)
    if plan.outlet is not None:
        put_outlets(work, plan.outlet)
    if plan.curves:
        _curves(work)
    for put in work.later:  # behind all that is put around the last sum
        put()
    for module in work.model.modules():
        _slowed(module)
    work.changes += [f"{number} {what}" for what, number in work.done.items()]


def _curves(work: Work) -> None:
    """Activations transformed, each in the module that it is."""
    asked = changes(work.found.bends.rows, work.plan.curves, work.modules)
    for path, change, curve in asked:
        if isinstance(change, str):
            work.left.append(change)
        else:
            work.wrap(path, change, "activations transformed", curve)


def _slowed(module: nn.Module) -> None:
    """PyTorch's encoder has a faster way without gradients, which passes what was put around its
    layers by: this copy does not take it."""
    if isinstance(module, nn.TransformerEncoder):
        module.enable_nested_tensor = module.use_nested_tensor = False
    elif isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0
