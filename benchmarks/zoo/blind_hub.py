"""A further set of tiny models of the transformers library, chosen before the tool saw them.

Each expectation was read off the class's source and stayed as it was. The batches are dictionaries
of keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.zoo import Model, Stream

__all__ = ["MODELS"]

Batch = dict[str, torch.Tensor]

_IDS: dict[str, Any] = dict(vocab_size=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
_LLM: dict[str, Any] = dict(
    **_IDS,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    use_cache=False,
)
_LLM4 = _LLM | dict(num_key_value_heads=4)
_LATENT: dict[str, Any] = dict(  # keys and values from a latent vector
    **_LLM4,
    kv_lora_rank=8,
    q_lora_rank=8,
    qk_rope_head_dim=4,
    qk_nope_head_dim=4,
    v_head_dim=8,
    head_dim=4,
    n_routed_experts=4,
)
_BERT: dict[str, Any] = dict(
    **_IDS,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=40,
)
_VIT: dict[str, Any] = dict(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    image_size=32,
    patch_size=8,
)
_CLIP_TEXT: dict[str, Any] = dict(**_IDS, hidden_size=32, intermediate_size=48)


def _tokens() -> Batch:
    return {"input_ids": torch.randint(4, 64, (2, 12))}


def _sixteen() -> Batch:
    return {"input_ids": torch.randint(4, 64, (2, 16))}


def _image() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _large_image() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 64, 64)}


def _image_text() -> Batch:
    return _image() | _tokens()


def _image_in_text() -> Batch:
    """Three places of the text stand for the image."""
    batch = _image() | {"input_ids": torch.randint(4, 60, (2, 12))}
    batch["input_ids"][:, :3] = 63
    return batch


def _pointed() -> Batch:
    return _image() | {"input_points": torch.rand(2, 1, 2, 2) * 32}


def _entities() -> Batch:
    return _tokens() | {
        "entity_ids": torch.randint(1, 20, (2, 3)),
        "entity_position_ids": torch.randint(0, 10, (2, 3, 4)),
        "entity_attention_mask": torch.ones(2, 3, dtype=torch.long),
    }


def _audio() -> Batch:
    return {"input_values": torch.randn(2, 800)}


def _wave() -> Batch:
    return {"input_values": torch.randn(2, 1, 64)}


def _past() -> Batch:
    return {
        "past_values": torch.randn(2, 20),
        "past_time_features": torch.randn(2, 20, 1),
        "past_observed_mask": torch.ones(2, 20),
    }


def _series() -> Batch:
    return {
        "past_values": torch.randn(2, 32),
        "past_values_padding": torch.zeros(2, 32),
        "freq": torch.zeros(2, 1, dtype=torch.long),
    }


def _hub(name: str, batch: Callable[[], Batch] = _tokens, **settings: Any) -> Callable[[], Any]:
    """A builder of the class ``name`` from its own configuration class."""

    def build() -> tuple[nn.Module, Batch]:
        cls: Any = getattr(import_module("transformers"), name)
        return cls(cls.config_class(**settings)), batch()

    return build


def _detr() -> tuple[nn.Module, Batch]:
    """DETR around a ResNet of two blocks."""
    library = import_module("transformers")
    backbone = library.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    build = _hub(
        "DetrModel",
        _image,
        use_timm_backbone=False,
        backbone_config=backbone,
        backbone=None,
        use_pretrained_backbone=False,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_queries=5,
    )
    built: tuple[nn.Module, Batch] = build()
    return built


_SIX = (Stream(6, ("stream",)),)

_TEXT = (
    Model(
        "deepseek-v2",
        _hub(
            "DeepseekV2ForCausalLM",
            **_LATENT,
            num_hidden_layers=3,
            moe_intermediate_size=16,
            num_experts_per_tok=2,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
        ),
        (Stream(6, ("in", "inner")),),
    ),
    Model(
        "qwen3-next",
        _hub(
            "Qwen3NextForCausalLM",
            **_LLM,
            num_hidden_layers=3,
            head_dim=8,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            linear_num_value_heads=2,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
        ),
        (Stream(6, ("in", "inner")),),
    ),
    Model(
        "zamba",
        _hub(
            "ZambaForCausalLM",
            **_LLM4,
            num_hidden_layers=4,
            layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
            n_mamba_heads=2,
            mamba_d_state=4,
            use_mamba_kernels=False,
            attention_hidden_size=64,
            attention_head_dim=16,
            mamba_dt_rank=4,
        ),
        (Stream(4, ("in", "inner"), inner=10),),
    ),
    Model(  # per layer two attentions and two feed-forwards, and experts beside the last of them
        "longcat-flash",
        _hub(
            "LongcatFlashForCausalLM",
            **_LATENT,
            num_layers=2,
            ffn_hidden_size=48,
            expert_ffn_hidden_size=16,
            zero_expert_num=2,
            moe_topk=2,
        ),
        (Stream(10, ("in", "inner"), parallel=2),),
    ),
    Model(
        "luke",
        _hub("LukeModel", _entities, **_BERT, entity_vocab_size=20, entity_emb_size=16),
        _SIX,
    ),
    Model("ibert", _hub("IBertModel", **_BERT), _SIX),
    Model(  # two copies of the embedding, one moved by attention, one by the feed-forward
        "reformer",
        _hub(
            "ReformerModel",
            _sixteen,
            vocab_size=64,
            hidden_size=32,
            feed_forward_size=48,
            num_attention_heads=2,
            attention_head_size=16,
            axial_pos_shape=[4, 4],
            axial_pos_embds_dim=[16, 16],
            max_position_embeddings=16,
            attn_layers=["local", "lsh", "local"],
            local_attn_chunk_length=4,
            lsh_attn_chunk_length=4,
            num_buckets=2,
            is_decoder=False,
            use_cache=False,
        ),
        (Stream(3, ("in",)), Stream(3, ("in",))),
    ),
)

_IMAGES = (
    Model(  # image: two layers, the decoder's two updates; prompts: two layers of three branches
        "sam",
        _hub(
            "SamModel",
            _pointed,
            vision_config=dict(
                hidden_size=32,
                output_channels=16,
                num_hidden_layers=2,
                num_attention_heads=4,
                image_size=32,
                patch_size=8,
                window_size=2,
                global_attn_indexes=[1],
                mlp_dim=48,
                num_pos_feats=8,
            ),
            prompt_encoder_config=dict(
                hidden_size=16,
                image_size=32,
                patch_size=8,
                mask_input_channels=4,
                image_embedding_size=4,
            ),
            mask_decoder_config=dict(
                hidden_size=16,
                mlp_dim=24,
                num_hidden_layers=2,
                num_attention_heads=2,
                iou_head_hidden_dim=16,
            ),
        ),
        (Stream(6, ("in", "stream")), Stream(6, ("stream",))),
    ),
    Model(  # backbone and encoder; the decoder, whose first sum starts at zeros
        "detr",
        _detr,
        (Stream(6, ("stream",), "mixed", projected=1), Stream(5, ("stream",))),
    ),
    Model(  # image and group tokens; text
        "groupvit",
        _hub(
            "GroupViTModel",
            _image_text,
            text_config=dict(
                **_CLIP_TEXT,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=16,
            ),
            vision_config=dict(
                **_VIT,
                depths=[1, 1, 1],
                num_hidden_layers=3,
                num_group_tokens=[4, 2, 0],
                num_output_groups=[4, 2, 0],
            ),
            projection_dim=16,
            projection_intermediate_dim=24,
        ),
        (Stream(14, ("in", "stream")), Stream(4, ("in",))),
    ),
    Model(  # two towers, then a stream of cross layers on each
        "bridgetower",
        _hub(
            "BridgeTowerModel",
            _image_text,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            text_config=dict(
                vocab_size=64,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=3,
                num_attention_heads=4,
                max_position_embeddings=20,
            ),
            vision_config=dict(hidden_size=64, num_hidden_layers=3, image_size=32, patch_size=8),
        ),
        (*_SIX, Stream(6, ("in",)), *_SIX, *_SIX),
    ),
    Model(
        "mobilevit-v2",
        _hub(
            "MobileViTV2Model",
            _large_image,
            image_size=64,
            width_multiplier=0.25,
            n_attn_blocks=[1, 1, 1],
        ),
        (Stream(8, ("in", "inner", "out")),),
    ),
    Model(  # image; queries, whose first layer alone asks the image; text
        "blip-2",
        _hub(
            "Blip2Model",
            _image_in_text,
            vision_config=dict(**_VIT, num_hidden_layers=2),
            qformer_config=_BERT | dict(num_hidden_layers=2, encoder_hidden_size=32),
            text_config=dict(
                model_type="opt",
                vocab_size=64,
                hidden_size=32,
                ffn_dim=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=32,
                word_embed_proj_dim=32,
                pad_token_id=1,
                use_cache=False,
            ),
            num_query_tokens=3,
            image_text_hidden_size=16,
            image_token_index=63,
        ),
        (Stream(4, ("in",)), Stream(5, ("stream",)), Stream(4, ("in",))),
    ),
)

_SOUND_AND_SERIES = (
    Model(  # per layer attention, the trend taken off, feed-forward, the trend taken off
        "autoformer-encoder",
        _hub(
            "AutoformerModel",
            _past,
            prediction_length=4,
            context_length=16,
            lags_sequence=[1, 2, 4],
            num_time_features=1,
            d_model=32,
            encoder_layers=2,
            decoder_layers=1,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            moving_average=5,
            use_cache=False,
        ),
        (Stream(8, ("stream",)),),
    ),
    Model(  # first branch: strided positions on a skip that is pooled
        "sew",
        _hub(
            "SEWModel",
            _audio,
            **_BERT,
            conv_dim=[8, 8],
            conv_stride=[5, 4],
            conv_kernel=[10, 4],
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2,
            apply_spec_augment=False,
            layerdrop=0.0,
            squeeze_factor=2,
        ),
        (Stream(7, ("stream",), "mixed"),),
    ),
    Model(
        "timesfm",
        _hub(
            "TimesFmModel",
            _series,
            patch_length=8,
            context_length=32,
            horizon_length=8,
            num_hidden_layers=2,
            hidden_size=32,
            intermediate_size=48,
            head_dim=8,
            num_attention_heads=4,
            freq_size=3,
        ),
        (Stream(5, ("in",), "mixed", projected=1),),
    ),
    Model(  # the decoder alone: no gradient passes the codes
        "encodec",
        _hub(
            "EncodecModel",
            _wave,
            num_filters=4,
            hidden_size=8,
            upsampling_ratios=[4, 2],
            num_lstm_layers=1,
            codebook_size=16,
            codebook_dim=8,
            target_bandwidths=[24.0],
            sampling_rate=800,
            num_residual_layers=1,
        ),
        (Stream(3, (), "mixed", projected=2),),
    ),
)

MODELS: tuple[Model, ...] = (*_TEXT, *_IMAGES, *_SOUND_AND_SERIES)
