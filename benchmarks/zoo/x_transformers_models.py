"""Tiny variants of the x-transformers library.

Each expectation was read off ``AttentionLayers`` and its residual classes. Three blocks of
attention and feed-forward make six branches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.zoo import Model, Stream

__all__ = ["MODELS"]

Batch = tuple[torch.Tensor, ...]

_SIZE: dict[str, Any] = dict(dim=32, depth=3, heads=4, attn_dim_head=8, verbose=False)


def _library() -> Any:
    with warnings.catch_warnings():  # its import scripts a function, which torch now discourages
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module("x_transformers")


def _ids() -> torch.Tensor:
    return torch.randint(0, 64, (2, 10))


def _language(layers: str = "Decoder", **settings: Any) -> Callable[[], tuple[nn.Module, Batch]]:
    """Token embedding, attention layers, logits."""

    def build() -> tuple[nn.Module, Batch]:
        library = _library()
        stack = getattr(library, layers)(**_SIZE | settings)
        return library.TransformerWrapper(num_tokens=64, max_seq_len=16, attn_layers=stack), (
            _ids(),
        )

    return build


def _looped() -> tuple[nn.Module, Batch]:
    library = _library()
    net = library.TransformerWrapper(
        num_tokens=64,
        max_seq_len=16,
        attn_layers=library.Decoder(**_SIZE | {"depth": 2}, pre_and_post_norm=True),
        looped=True,
        max_looped_steps=2,
    )
    return net, (_ids(),)


def _vision() -> tuple[nn.Module, Batch]:
    library = _library()
    net = library.ViTransformerWrapper(
        image_size=32,
        patch_size=8,
        num_classes=10,
        num_register_tokens=2,
        attn_layers=library.Encoder(**_SIZE),
    )
    return net, (torch.randn(2, 3, 32, 32),)


def _continuous() -> tuple[nn.Module, Batch]:
    library = _library()
    net = library.ContinuousTransformerWrapper(
        max_seq_len=16,
        dim_in=5,
        dim_out=3,
        num_memory_tokens=2,
        attn_layers=library.Encoder(**_SIZE),
    )
    return net, (torch.randn(2, 10, 5),)


def _pair() -> tuple[nn.Module, Batch]:
    library = _library()
    sizes = {
        f"{part}_{name}": value
        for part in ("enc", "dec")
        for name, value in dict(
            num_tokens=64, max_seq_len=16, depth=2, heads=4, attn_dim_head=8
        ).items()
    }
    return library.XTransformer(dim=32, **sizes), (_ids(), _ids())


_TWO = (2,) * 6
_PRE = Stream(6, ("in",), m=_TWO, segments=1)

MODELS: tuple[Model, ...] = (
    Model("xt-pre", _language(), (_PRE,)),
    Model("xt-encoder-relative-bias", _language("Encoder", rel_pos_bias=True), (_PRE,)),
    Model("xt-post", _language(pre_norm=False), (Stream(6, ("stream",), m=_TWO, segments=1),)),
    Model("xt-sandwich-norm", _language(sandwich_norm=True), (Stream(6, ("in", "out"), m=_TWO),)),
    Model(
        "xt-pre-and-post",
        _language(pre_and_post_norm=True),
        (Stream(6, ("in", "stream"), m=_TWO),),
    ),
    Model(
        "xt-rmsnorm-rotary-swiglu",
        _language(use_rmsnorm=True, rotary_pos_emb=True, ff_glu=True, ff_swish=True),
        (_PRE,),
    ),
    Model("xt-simple-rmsnorm", _language(use_simple_rmsnorm=True), (_PRE,)),
    Model("xt-scalenorm", _language(use_scalenorm=True), (_PRE,)),
    Model("xt-qk-norm", _language(attn_qk_norm=True), (Stream(6, ("in", "inner"), m=_TWO),)),
    Model("xt-qk-rmsnorm", _language(attn_qk_rmsnorm=True), (Stream(6, ("in", "inner"), m=_TWO),)),
    Model(
        "xt-feed-forward-norm",
        _language(ff_post_act_ln=True),
        (Stream(6, ("in", "inner"), m=_TWO),),
    ),
    Model("xt-layerscale", _language(use_layerscale=True, layerscale_init_value=1e-5), (_PRE,)),
    Model("xt-zero-init", _language(zero_init_branch_output=True), (_PRE,)),
    Model("xt-dynamic-tanh", _language(use_dynamic_tanh=True), (_PRE,)),
    Model("xt-derf", _language(use_derf=True), (_PRE,)),
    Model(  # the skip is a learned, data-dependent mixture of the four parallel streams
        "xt-hyper-connections",
        _language(num_residual_streams=4),
        (Stream(6, ("in",), "gated"),),
    ),
    Model(  # half a feed-forward, attention, half a feed-forward
        "xt-macaron", _language(macaron=True), (Stream(9, ("in",), m=(2,) * 9),)
    ),
    Model("xt-gate-residual", _language(gate_residual=True), (Stream(6, ("in",), "gated"),)),
    Model(
        "xt-scale-residual",
        _language(scale_residual=True),
        (Stream(6, ("in",), "per-channel", m=_TWO),),
    ),
    Model(
        "xt-scale-residual-constant",
        _language(pre_norm=False, scale_residual_constant=2.0),
        (Stream(6, ("stream",), "scaled", m=_TWO),),
    ),
    Model("xt-branch-scale", _language(depth_scale_residual=0.5), (_PRE,)),
    Model("xt-shift-tokens", _language(shift_tokens=1), (_PRE,)),
    Model("xt-tied-layers", _language(weight_tie_layers=True), (_PRE,)),
    Model("xt-only-attention", _language(only_attn=True), (Stream(3, ("in",), m=(2,) * 3),)),
    Model(  # two attentions, a block of both, two feed-forwards
        "xt-sandwich-order", _language(sandwich_coef=2), (_PRE,)
    ),
    Model(  # two blocks, run twice
        "xt-looped", _looped, (Stream(8, ("in", "stream"), m=(2,) * 8),)
    ),
    Model("xt-vit", _vision, (_PRE,)),
    Model("xt-continuous", _continuous, (_PRE,)),
    Model(
        "xt-encoder-decoder",
        _pair,
        (Stream(4, ("in",), m=(2,) * 4), Stream(6, ("in",), m=_TWO)),
    ),
)
