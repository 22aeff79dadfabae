"""Tiny models of the transformers library at random initialisation.

Each expectation was read off the class's source. The batches are dictionaries of keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.zoo import PLAIN, Model, Stream

__all__ = ["MODELS"]

Batch = dict[str, torch.Tensor]

_IDS: dict[str, Any] = dict(vocab_size=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
# The settings that most configurations share. A decoder and an encoder of two or three layers.
_LLM: dict[str, Any] = dict(
    **_IDS,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    use_cache=False,
)
_LLM8 = _LLM | dict(head_dim=8)
_BERT: dict[str, Any] = dict(
    **_IDS,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=32,
)


def _tokens() -> Batch:
    return {"input_ids": torch.randint(4, 64, (2, 10))}


def _labelled() -> Batch:
    ids = torch.randint(4, 64, (2, 10))
    return {"input_ids": ids, "labels": ids.clone()}


def _classed() -> Batch:
    return {"input_ids": torch.randint(4, 64, (2, 10)), "labels": torch.tensor([0, 1])}


def _pairs() -> Batch:
    return {
        "input_ids": torch.randint(4, 64, (2, 12)),
        "decoder_input_ids": torch.randint(4, 64, (2, 8)),
    }


def _image() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _image_classed() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}


def _image_text() -> Batch:
    return _image() | _tokens()


def _audio() -> Batch:
    return {"input_values": torch.randn(2, 800)}


def _mel() -> Batch:
    return {
        "input_features": torch.randn(2, 8, 16),
        "decoder_input_ids": torch.randint(4, 64, (2, 8)),
    }


def _hub(name: str, batch: Callable[[], Batch] = _tokens, **settings: Any) -> Callable[[], Any]:
    """A builder of the class ``name`` from its own configuration class."""

    def build() -> tuple[nn.Module, Batch]:
        cls: Any = getattr(import_module("transformers"), name)
        return cls(cls.config_class(**settings)), batch()

    return build


def _pre(branches: int, *also: str, **more: Any) -> Stream:
    return Stream(branches, ("in", *also), **more)


def _post(branches: int, *also: str, **more: Any) -> Stream:
    return Stream(branches, (*also, "stream"), **more)


_TWO = (2,) * 6  # value and output projection; up and down projection; three layers
_PAIR = (_pre(4, segments=1), _pre(6, segments=1))  # encoder and decoder, two layers each
_PAIR_POST = (_post(4, segments=1), _post(6, segments=1))

_GPT: dict[str, Any] = dict(**_IDS, n_embd=32, n_layer=3, n_head=4, n_positions=32, use_cache=False)
_OPT: dict[str, Any] = dict(
    **_IDS,
    hidden_size=32,
    ffn_dim=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=32,
    word_embed_proj_dim=32,
    use_cache=False,
)
_BLOOM: dict[str, Any] = dict(**_IDS, hidden_size=32, n_layer=3, n_head=4, use_cache=False)
_FALCON: dict[str, Any] = dict(
    **_IDS, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, use_cache=False
)
_STABLE = _LLM | dict(partial_rotary_factor=0.5)

_DECODERS = (
    Model("gpt2", _hub("GPT2LMHeadModel", **_GPT), (_pre(6, m=_TWO, segments=1),)),
    Model("openai-gpt", _hub("OpenAIGPTLMHeadModel", **_GPT), (_post(6, m=_TWO, segments=1),)),
    Model(
        "gpt-neo",
        _hub(
            "GPTNeoForCausalLM",
            **_IDS,
            hidden_size=32,
            num_layers=2,
            attention_types=[[["global", "local"], 1]],
            num_heads=4,
            window_size=4,
            max_position_embeddings=32,
            use_cache=False,
        ),
        (_pre(4),),
    ),
    Model("gpt-bigcode", _hub("GPTBigCodeForCausalLM", **_GPT), (_pre(6),)),
    Model("ctrl", _hub("CTRLLMHeadModel", **_GPT, dff=48), (_pre(6),)),
    Model("llama", _hub("LlamaForCausalLM", **_LLM), (_pre(6, m=_TWO, segments=1),)),
    Model("llama-body", _hub("LlamaModel", **_LLM), (_pre(6, m=_TWO, segments=1),)),
    Model("llama-eval", _hub("LlamaForCausalLM", **_LLM), (_pre(6, m=_TWO),), training=False),
    Model("mistral", _hub("MistralForCausalLM", **_LLM), (_pre(6),)),
    Model("qwen2", _hub("Qwen2ForCausalLM", _labelled, **_LLM), (_pre(6),)),
    Model("qwen3", _hub("Qwen3ForCausalLM", **_LLM8), (_pre(6, "inner"),)),
    Model("gemma2", _hub("Gemma2ForCausalLM", **_LLM8), (_pre(6, "out"),)),
    Model("gemma3", _hub("Gemma3ForCausalLM", **_LLM8), (_pre(6, "inner", "out"),)),
    Model("phi3", _hub("Phi3ForCausalLM", **_LLM), (_pre(6),)),
    Model("olmo2", _hub("Olmo2ForCausalLM", **_LLM), (Stream(6, ("inner", "out")),)),
    Model("gpt-neox", _hub("GPTNeoXForCausalLM", **_BERT, use_cache=False), (_pre(6, parallel=3),)),
    Model(
        "gpt-neox-serial",
        _hub("GPTNeoXForCausalLM", **_BERT, use_cache=False, use_parallel_residual=False),
        (_pre(6),),
    ),
    Model("opt", _hub("OPTForCausalLM", **_OPT), (_pre(6, m=_TWO),)),
    Model(
        "opt-post",
        _hub("OPTForCausalLM", **_OPT, do_layer_norm_before=False),
        (_post(6, m=_TWO),),
    ),
    Model("bloom", _hub("BloomForCausalLM", **_BLOOM), (_pre(6),)),
    Model(  # the skip starts behind the norm that the branch reads: a norm on the stream
        "bloom-normed-skip",
        _hub("BloomForCausalLM", **_BLOOM, apply_residual_connection_post_layernorm=True),
        (_post(6),),
    ),
    Model("falcon", _hub("FalconForCausalLM", **_FALCON), (_pre(6, parallel=3),)),
    Model(
        "falcon-new",
        _hub("FalconForCausalLM", **_FALCON, new_decoder_architecture=True, num_kv_heads=2),
        (_pre(6, parallel=3),),
    ),
    Model(
        "falcon-serial",
        _hub("FalconForCausalLM", **_FALCON, parallel_attn=False, alibi=True),
        (_pre(6),),
    ),
    Model("cohere", _hub("CohereForCausalLM", **_LLM), (_pre(6, parallel=3),)),
    Model("granite", _hub("GraniteForCausalLM", **_LLM, residual_multiplier=0.22), (_pre(6),)),
    Model("gptj", _hub("GPTJForCausalLM", **_GPT, rotary_dim=4), (_pre(6, parallel=3),)),
    Model("codegen", _hub("CodeGenForCausalLM", **_GPT, rotary_dim=4), (_pre(6, parallel=3),)),
    Model("phi", _hub("PhiForCausalLM", **_STABLE), (_pre(6, parallel=3),)),
    Model("stablelm", _hub("StableLmForCausalLM", **_STABLE), (_pre(6),)),
    Model(
        "stablelm-parallel",
        _hub("StableLmForCausalLM", **_STABLE, use_parallel_residual=True),
        (_pre(6, parallel=3),),
    ),
    Model("starcoder2", _hub("Starcoder2ForCausalLM", **_LLM), (_pre(6),)),
    Model(
        "mpt",
        _hub("MptForCausalLM", vocab_size=64, d_model=32, n_heads=4, n_layers=3, use_cache=False),
        (_pre(6),),
    ),
    Model("nemotron", _hub("NemotronForCausalLM", **_LLM), (_pre(6),)),
    Model("glm", _hub("GlmForCausalLM", **_LLM8), (_pre(6),)),
    Model("glm4", _hub("Glm4ForCausalLM", **_LLM8), (_pre(6, "out"),)),
    Model("smollm3", _hub("SmolLM3ForCausalLM", **_LLM), (_pre(6),)),
)

_MOE = _LLM | dict(num_experts_per_tok=2)
_SPARSE_AND_STATE = (
    Model("mixtral", _hub("MixtralForCausalLM", **_MOE, num_local_experts=4), (_pre(6),)),
    Model(  # routed and shared experts make one feed-forward branch
        "qwen2-moe",
        _hub(
            "Qwen2MoeForCausalLM",
            **_MOE,
            num_experts=4,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
        ),
        (_pre(6),),
    ),
    Model(
        "mamba",  # inner: the skip D * x around the scan
        _hub(
            "MambaForCausalLM",
            _labelled,
            **_IDS,
            hidden_size=32,
            state_size=4,
            num_hidden_layers=3,
            use_cache=False,
        ),
        (_pre(3, inner=3),),
    ),
    Model(
        "mamba2",
        _hub(
            "Mamba2ForCausalLM",
            **_IDS,
            hidden_size=32,
            state_size=4,
            num_hidden_layers=3,
            num_heads=8,
            head_dim=8,
            n_groups=2,
            chunk_size=4,
            use_cache=False,
        ),
        (_pre(3, "inner", inner=3),),
    ),
    Model(
        "rwkv",
        _hub(
            "RwkvForCausalLM",
            **_IDS,
            hidden_size=32,
            attention_hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=3,
            context_length=32,
            use_cache=False,
        ),
        (_pre(6),),
    ),
    Model(
        "recurrent-gemma",
        _hub(
            "RecurrentGemmaForCausalLM",
            **_LLM8,
            lru_width=32,
            attention_window_size=8,
            block_types=["recurrent", "recurrent", "attention"],
        ),
        (_pre(6),),
    ),
    Model(
        "jamba",  # two of three layers are Mamba layers, each with its skip D * x
        _hub(
            "JambaForCausalLM",
            **_MOE,
            num_experts=4,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=4,
            mamba_dt_rank=4,
        ),
        (_pre(6, "inner", inner=2),),
    ),
    Model(
        "xlstm",
        _hub(
            "xLSTMForCausalLM",
            **_IDS,
            hidden_size=32,
            num_hidden_layers=3,
            num_blocks=3,
            num_heads=4,
            chunk_size=5,
            mode="train",
            return_last_states=True,
            use_cache=False,
        ),
        (_pre(6, "inner"),),
    ),
)

_SMALL_TEXT = _BERT | dict(max_position_embeddings=40)
_TEXT_ENCODERS = (
    Model("bert", _hub("BertModel", **_BERT), (_post(6, m=_TWO, segments=1),)),
    Model(
        "bert-classifier",
        _hub("BertForSequenceClassification", _classed, **_BERT),
        (_post(6, m=_TWO, segments=1),),
    ),
    Model("roberta", _hub("RobertaForMaskedLM", **_SMALL_TEXT), (_post(6, m=_TWO),)),
    Model(
        "modernbert",
        _hub("ModernBertForMaskedLM", **_BERT, cls_token_id=1, sep_token_id=2),
        (_pre(6),),
    ),
    Model(
        "deberta-v2",
        _hub(
            "DebertaV2Model",
            **_BERT,
            relative_attention=True,
            position_biased_input=False,
            pos_att_type=["p2c", "c2p"],
        ),
        (_post(6),),
    ),
    Model("albert", _hub("AlbertModel", **_BERT, embedding_size=16), (_post(6, m=_TWO),)),
    Model("electra", _hub("ElectraModel", **_BERT, embedding_size=16), (_post(6, m=_TWO),)),
    Model(
        "distilbert",
        _hub("DistilBertModel", **_IDS, dim=32, hidden_dim=48, n_layers=3, n_heads=4),
        (_post(6, m=_TWO),),
    ),
    Model(  # the Fourier transform has no weight layer
        "fnet", _hub("FNetModel", **_BERT), (_post(6, m=(0, 2, 0, 2, 0, 2)),)
    ),
    Model("mpnet", _hub("MPNetModel", **_SMALL_TEXT), (_post(6),)),
    Model("convbert", _hub("ConvBertModel", **_BERT, embedding_size=32, head_ratio=2), (_post(6),)),
    Model("squeezebert", _hub("SqueezeBertModel", **_BERT, embedding_size=32), (_post(6, m=_TWO),)),
    Model("megatron-bert", _hub("MegatronBertModel", **_BERT), (_pre(6, m=_TWO),)),
    Model(
        "xlnet",
        _hub("XLNetModel", **_IDS, d_model=32, n_layer=3, n_head=4, d_inner=48),
        (_post(6),),
    ),
)

_T5: dict[str, Any] = dict(
    vocab_size=64,
    d_model=32,
    d_kv=8,
    d_ff=48,
    num_layers=2,
    num_heads=4,
    decoder_start_token_id=0,
    use_cache=False,
)
_BART: dict[str, Any] = dict(
    **_IDS,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_position_embeddings=32,
    decoder_start_token_id=2,
    forced_eos_token_id=None,
    use_cache=False,
)
_PAIRED = (
    Model(
        "t5",
        _hub("T5ForConditionalGeneration", _pairs, **_T5),
        (_pre(4, m=(2,) * 4), _pre(6, m=_TWO)),
    ),
    Model("umt5", _hub("UMT5Model", _pairs, **_T5), _PAIR),
    Model("bart", _hub("BartForConditionalGeneration", _pairs, **_BART), _PAIR_POST),
    Model("pegasus", _hub("PegasusModel", _pairs, **_BART), _PAIR),
    Model("mbart", _hub("MBartModel", _pairs, **_BART), _PAIR),
)

_VIT: dict[str, Any] = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    image_size=32,
    patch_size=8,
)
_SWIN: dict[str, Any] = dict(
    image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
)
_CONV: dict[str, Any] = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2])
_STAGES: dict[str, Any] = dict(num_encoder_blocks=2, hidden_sizes=[16, 32], depths=[1, 2])
_LEVELS: dict[str, Any] = dict(num_attention_heads=[2, 4], mlp_ratios=[2, 2])
_IMAGES = (
    Model("vit", _hub("ViTModel", _image, **_VIT), (_pre(6, m=_TWO, segments=1),)),
    Model(
        "vit-classifier",
        _hub("ViTForImageClassification", _image_classed, **_VIT),
        (_pre(6, m=_TWO, segments=1),),
    ),
    Model("deit", _hub("DeiTModel", _image, **_VIT), (_pre(6, m=_TWO),)),
    Model(
        "beit",
        _hub("BeitModel", _image, **_VIT, use_relative_position_bias=True),
        (_pre(6, m=_TWO),),
    ),
    Model("dinov2", _hub("Dinov2Model", _image, **_VIT), (_pre(6, m=_TWO),)),
    Model("vit-mae-encoder", _hub("ViTMAEModel", _image, **_VIT), (_pre(6),)),
    Model(  # the decoder starts at a projection of the encoded patches and at mask tokens
        "vit-mae",
        _hub(
            "ViTMAEForPreTraining",
            _image,
            **_VIT,
            decoder_hidden_size=16,
            decoder_intermediate_size=32,
            decoder_num_hidden_layers=2,
            decoder_num_attention_heads=2,
        ),
        (_pre(6), _pre(4)),
    ),
    Model("swin", _hub("SwinModel", _image, **_SWIN), (_pre(8, m=(2,) * 8, segments=2),)),
    Model(  # the cosine attention norms queries and keys
        "swinv2", _hub("Swinv2Model", _image, **_SWIN), (Stream(8, ("inner", "out"), segments=2),)
    ),
    Model(
        "resnet",
        _hub("ResNetModel", _image, **_CONV, layer_type="basic"),
        (Stream(4, ("inner", "out"), "mixed", projected=1, m=(2,) * 4, segments=1),),
    ),
    Model(
        "resnet-bottleneck",
        _hub(
            "ResNetForImageClassification",
            _image_classed,
            embedding_size=8,
            hidden_sizes=[16, 32],
            depths=[1, 2],
            layer_type="bottleneck",
        ),
        (Stream(3, ("inner", "out"), "mixed", projected=2, m=(3,) * 3, segments=1),),
    ),
    Model(
        "resnet-all-projected",
        _hub("ResNetModel", _image, embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1]),
        (Stream(2, ("inner", "out"), "projected", projected=2, m=(3,) * 2, segments=1),),
    ),
    Model(
        "regnet-x",
        _hub("RegNetModel", _image, **_CONV, groups_width=4, layer_type="x"),
        (Stream(4, ("inner", "out"), "mixed", projected=2, m=(3,) * 4, segments=1),),
    ),
    Model(
        "regnet-y",  # a squeeze-and-excitation gate inside the branch
        _hub("RegNetModel", _image, **_CONV, groups_width=4, layer_type="y"),
        (Stream(4, ("inner", "out"), "mixed", projected=2, segments=1),),
    ),
    Model(
        "bit",  # a stage's first skip starts behind the norm; the kernels are standardised too
        _hub("BitModel", _image, **_CONV, num_groups=2),
        (_pre(4, "inner", skip="mixed", projected=2, m=(3,) * 4, segments=1),),
    ),
    Model(
        "convnext",
        _hub("ConvNextModel", _image, num_stages=2, hidden_sizes=[8, 16], depths=[1, 2]),
        (Stream(3, ("inner",), m=(3,) * 3, segments=2),),
    ),
    Model(
        "convnextv2",
        _hub("ConvNextV2Model", _image, num_stages=2, hidden_sizes=[8, 16], depths=[1, 2]),
        (Stream(3, ("inner",), m=(3,) * 3, segments=2),),
    ),
    Model("mobilenet-v1", _hub("MobileNetV1Model", _image, depth_multiplier=0.25), (PLAIN,)),
    Model(  # ten of sixteen blocks keep their width and size, in five runs
        "mobilenet-v2",
        _hub("MobileNetV2Model", _image),
        (Stream(10, ("inner", "out"), m=(3,) * 10, segments=5),),
    ),
    Model(  # the first block of a stage has no skip
        "efficientnet",
        _hub(
            "EfficientNetModel",
            _image,
            width_coefficient=0.1,
            depth_coefficient=1.0,
            in_channels=[32, 160],
            out_channels=[160, 240],
            kernel_sizes=[3, 3],
            strides=[1, 2],
            num_block_repeats=[2, 3],
            expand_ratios=[1, 6],
            hidden_dim=128,
        ),
        (Stream(3, ("inner", "out"), segments=2),),
    ),
    Model(  # inner: the pooled tensor less the tensor itself
        "poolformer",
        _hub(
            "PoolFormerModel",
            _image,
            **_STAGES,
            patch_sizes=[7, 3],
            strides=[4, 2],
            padding=[2, 1],
        ),
        (_pre(6, inner=3, segments=2),),
    ),
    Model(  # keys and values read a strided convolution with a norm behind it
        "segformer",
        _hub(
            "SegformerModel",
            _image,
            **_STAGES,
            **_LEVELS,
            sr_ratios=[2, 1],
            patch_sizes=[7, 3],
            strides=[4, 2],
        ),
        (_pre(6, "inner", segments=2),),
    ),
    Model(
        "pvt",
        _hub(
            "PvtModel",
            _image,
            **_STAGES,
            **_LEVELS,
            image_size=32,
            sequence_reduction_ratios=[2, 1],
            patch_sizes=[4, 2],
            strides=[4, 2],
        ),
        (_pre(6, "inner", segments=2),),
    ),
    Model(
        "cvt",  # depthwise convolutions with batch norms before queries, keys and values
        _hub(
            "CvtModel",
            _image,
            patch_sizes=[7, 3],
            patch_stride=[4, 2],
            patch_padding=[2, 1],
            embed_dim=[16, 32],
            num_heads=[1, 2],
            depth=[1, 2],
            mlp_ratio=[2.0, 2.0],
            attention_drop_rate=[0.0, 0.0],
            drop_rate=[0.0, 0.0],
            drop_path_rate=[0.0, 0.0],
            qkv_bias=[True, True],
            cls_token=[False, True],
            qkv_projection_method=["dw_bn", "dw_bn"],
            kernel_qkv=[3, 3],
            padding_kv=[1, 1],
            stride_kv=[2, 2],
            padding_q=[1, 1],
            stride_q=[1, 1],
        ),
        (_pre(6, "inner", segments=2),),
    ),
    Model(
        "levit",  # the subsampling attentions have no skip
        _hub(
            "LevitModel",
            _image,
            image_size=32,
            hidden_sizes=[16, 24, 32],
            num_attention_heads=[2, 2, 2],
            depths=[2, 1, 1],
            key_dim=[4, 4, 4],
        ),
        (Stream(10, ("inner", "out"), m=(2,) * 10, segments=3),),
    ),
)

_WAV: dict[str, Any] = dict(
    **_BERT,
    conv_dim=[8, 8],
    conv_stride=[5, 4],
    conv_kernel=[10, 4],
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=2,
    apply_spec_augment=False,
    layerdrop=0.0,
)
_TEXT_TOWER = _BERT | dict(max_position_embeddings=32)
_TWO_TOWERS: dict[str, Any] = dict(
    text_config=_TEXT_TOWER, vision_config=_VIT | dict(num_hidden_layers=2), projection_dim=16
)


def _latents() -> Batch:
    return {"inputs": torch.randn(2, 10, 32)}


def _series() -> Batch:
    return {"past_values": torch.randn(2, 32, 2)}


def _forecast() -> Batch:
    return {
        "past_values": torch.randn(2, 12),
        "past_time_features": torch.randn(2, 12, 1),
        "past_observed_mask": torch.ones(2, 12),
        "future_values": torch.randn(2, 4),
        "future_time_features": torch.randn(2, 4, 1),
    }


def _video() -> Batch:
    return {"pixel_values": torch.randn(2, 2, 3, 32, 32)}


_SOUND_AND_OTHERS = (
    Model(  # first branch: the convolution that stands for the positions
        "wav2vec2", _hub("Wav2Vec2Model", _audio, **_WAV), (_post(7, m=(1, *_TWO), segments=1),)
    ),
    Model(
        "wav2vec2-stable",
        _hub("Wav2Vec2Model", _audio, **_WAV, do_stable_layer_norm=True),
        (_pre(7, m=(1, *_TWO), segments=1),),
    ),
    Model("hubert", _hub("HubertModel", _audio, **_WAV), (_post(7, m=(1, *_TWO), segments=1),)),
    Model(  # macaron: half a feed-forward, attention, convolution, half a feed-forward, norm
        "wav2vec2-conformer",
        _hub("Wav2Vec2ConformerModel", _audio, **_WAV, conv_depthwise_kernel_size=5),
        (_pre(12, "inner", "stream"),),
    ),
    Model(
        "whisper",
        _hub(
            "WhisperModel",
            _mel,
            **_BART,
            num_mel_bins=8,
            max_source_positions=8,
            max_target_positions=16,
        ),
        _PAIR,
    ),
    Model("clip", _hub("CLIPModel", _image_text, **_TWO_TOWERS), (_pre(4), _pre(6))),
    Model(  # the image tower ends in an attention pool with one more feed-forward branch
        "siglip",
        _hub("SiglipModel", _image_text, **_TWO_TOWERS),
        (_pre(5, segments=2), _pre(6, segments=1)),
    ),
    Model(  # one cross-attention layer, then two tied layers, run twice
        "perceiver",
        _hub(
            "PerceiverModel",
            _latents,
            num_latents=6,
            d_latents=32,
            d_model=32,
            num_blocks=2,
            num_self_attends_per_block=2,
            num_self_attention_heads=4,
            num_cross_attention_heads=4,
        ),
        (_pre(10, m=(2,) * 10, segments=1),),
    ),
    Model(
        "patchtst",
        _hub(
            "PatchTSTModel",
            _series,
            num_input_channels=2,
            context_length=32,
            patch_length=8,
            patch_stride=8,
            d_model=32,
            ffn_dim=48,
            num_hidden_layers=3,
        ),
        (_pre(6, m=_TWO, segments=1),),
    ),
    Model(
        "patchtst-post",
        _hub(
            "PatchTSTModel",
            _series,
            num_input_channels=2,
            context_length=32,
            patch_length=8,
            patch_stride=8,
            d_model=32,
            ffn_dim=48,
            num_hidden_layers=3,
            pre_norm=False,
            norm_type="layernorm",
            channel_attention=True,
        ),
        (_post(9, m=(2,) * 9, segments=1),),
    ),
    Model(
        "patchtsmixer",
        _hub("PatchTSMixerModel", _series, num_input_channels=2, d_model=16, num_layers=3),
        (_pre(6),),
    ),
    Model(
        "time-series-transformer",
        _hub(
            "TimeSeriesTransformerModel",
            _forecast,
            prediction_length=4,
            context_length=8,
            lags_sequence=[1, 2, 4],
            num_time_features=1,
            d_model=32,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            use_cache=False,
        ),
        _PAIR_POST,
    ),
    Model(  # the attention over time leaves the class token out
        "timesformer",
        _hub("TimesformerModel", _video, **_VIT | dict(num_hidden_layers=2), num_frames=2),
        (_pre(6),),
    ),
    Model(
        "mobilebert",  # a whole bottleneck layer is one branch, with three merges inside
        _hub(
            "MobileBertModel",
            **_BERT,
            embedding_size=16,
            intra_bottleneck_size=16,
            use_bottleneck_attention=True,
            num_feedforward_networks=2,
            normalization_type="layer_norm",
        ),
        (_post(3, "inner", inner=9),),
    ),
    Model(  # a scaled skip behind a norm on the stream
        "minimax",
        _hub(
            "MiniMaxForCausalLM",
            **_MOE,
            num_local_experts=4,
            layer_types=["full_attention"] * 3,
            full_attn_alpha_factor=3.5,
            mlp_alpha_factor=3.5,
        ),
        (_post(6, skip="scaled"),),
    ),
    Model(  # attention and a Mamba-2 mixer in one merge; inner: the skip D * x
        "falcon-h1",
        _hub(
            "FalconH1ForCausalLM",
            **_LLM,
            mamba_d_ssm=32,
            mamba_n_heads=4,
            mamba_d_state=4,
            mamba_chunk_size=4,
        ),
        (_pre(9, parallel=3, inner=3),),
    ),
    Model(  # norms on the latent keys, values and queries
        "deepseek-v3",
        _hub(
            "DeepseekV3ForCausalLM",
            **_MOE | dict(num_key_value_heads=4),
            moe_intermediate_size=16,
            n_routed_experts=4,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            kv_lora_rank=8,
            q_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=8,
        ),
        (_pre(6, "inner"),),
    ),
)

MODELS: tuple[Model, ...] = (
    *_DECODERS,
    *_SPARSE_AND_STATE,
    *_TEXT_ENCODERS,
    *_PAIRED,
    *_IMAGES,
    *_SOUND_AND_OTHERS,
)
