"""Further tiny models of the transformers library at random initialisation.

Each expectation was read off the class's source, before the tool was run on it. The batches are
dictionaries of keyword arguments.
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
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    use_cache=False,
)
_LLM8 = _LLM | dict(head_dim=8)
_MOE = _LLM | dict(num_experts_per_tok=2)
_BERT: dict[str, Any] = dict(
    **_IDS,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=40,
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
_UNDROPPED: dict[str, Any] = dict(encoder_layerdrop=0.0, decoder_layerdrop=0.0)
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
_VIT: dict[str, Any] = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    image_size=32,
    patch_size=8,
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


def _tokens() -> Batch:
    return {"input_ids": torch.randint(4, 64, (2, 12))}


def _pairs() -> Batch:
    return {
        "input_ids": torch.randint(4, 64, (2, 12)),
        "decoder_input_ids": torch.randint(4, 64, (2, 8)),
    }


def _image() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _image_text() -> Batch:
    return _image() | _tokens()


def _video() -> Batch:
    return {"pixel_values": torch.randn(2, 2, 3, 32, 32)}


def _audio() -> Batch:
    return {"input_values": torch.randn(2, 800)}


def _spectrum() -> Batch:
    return {"input_values": torch.randn(2, 32, 16)}


def _features() -> Batch:
    return {"input_features": torch.randn(2, 12, 16)}


def _speech() -> Batch:
    return {
        "input_features": torch.randn(2, 32, 8),
        "decoder_input_ids": torch.randint(4, 64, (2, 8)),
    }


def _boxed() -> Batch:
    corners = torch.tensor([1, 2, 5, 7]).expand(2, 12, 4)
    return _tokens() | {"bbox": corners.clone()}


def _seen() -> Batch:
    return _tokens() | {"visual_feats": torch.randn(2, 5, 16), "visual_pos": torch.rand(2, 5, 4)}


def _embedded() -> Batch:
    return _tokens() | {
        "visual_embeds": torch.randn(2, 5, 16),
        "visual_token_type_ids": torch.ones(2, 5, dtype=torch.long),
        "visual_attention_mask": torch.ones(2, 5),
    }


def _played() -> Batch:
    return {
        "states": torch.randn(2, 4, 5),
        "actions": torch.randn(2, 4, 3),
        "rewards": torch.randn(2, 4, 1),
        "returns_to_go": torch.randn(2, 4, 1),
        "timesteps": torch.arange(4).repeat(2, 1),
    }


def _forecast() -> Batch:
    return {
        "past_values": torch.randn(2, 20),
        "past_time_features": torch.randn(2, 20, 1),
        "past_observed_mask": torch.ones(2, 20),
        "future_values": torch.randn(2, 4),
        "future_time_features": torch.randn(2, 4, 1),
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


_TWO = (2,) * 6
_SIX = (_pre(6, m=_TWO, segments=1),)
_SIX_QK = (_pre(6, "inner", m=_TWO, segments=1),)  # norms on queries and keys
_SIX_POST = (_post(6, m=_TWO, segments=1),)
_PAIR = (_pre(4, segments=1), _pre(6, segments=1))  # encoder and decoder, two layers each
_PAIR_POST = (_post(4, segments=1), _post(6, segments=1))

_DECODERS = (
    Model("gemma", _hub("GemmaForCausalLM", **_LLM8), _SIX),
    Model("vaultgemma", _hub("VaultGemmaForCausalLM", **_LLM8), _SIX),
    Model("olmo", _hub("OlmoForCausalLM", **_LLM), _SIX),
    Model("olmo3", _hub("Olmo3ForCausalLM", **_LLM), (Stream(6, ("inner", "out"), segments=1),)),
    Model(
        "cohere2",
        _hub("Cohere2ForCausalLM", **_LLM8),
        (_pre(6, parallel=3, m=_TWO, segments=1),),
    ),
    Model("helium", _hub("HeliumForCausalLM", **_LLM8), _SIX),
    Model("persimmon", _hub("PersimmonForCausalLM", **_BERT, use_cache=False), _SIX_QK),
    Model("biogpt", _hub("BioGptForCausalLM", **_BERT, layerdrop=0.0, use_cache=False), _SIX),
    Model(
        "xglm",
        _hub(
            "XGLMForCausalLM",
            **_IDS,
            d_model=32,
            ffn_dim=48,
            num_layers=3,
            attention_heads=4,
            max_position_embeddings=32,
            layerdrop=0.0,
            use_cache=False,
        ),
        _SIX,
    ),
    Model(
        "imagegpt",
        _hub(
            "ImageGPTForCausalImageModeling",
            vocab_size=64,
            n_positions=32,
            n_embd=32,
            n_layer=3,
            n_head=4,
            use_cache=False,
        ),
        _SIX,
    ),
    Model("arcee", _hub("ArceeForCausalLM", **_LLM8), _SIX),
    Model("apertus", _hub("ApertusForCausalLM", **_LLM), _SIX_QK),
    Model("seed-oss", _hub("SeedOssForCausalLM", **_LLM8), _SIX),
    Model("ernie4.5", _hub("Ernie4_5ForCausalLM", **_LLM8), _SIX),
    Model(
        "exaone4",
        _hub("Exaone4ForCausalLM", **_LLM8, layer_types=["full_attention"] * 3),
        (Stream(6, ("inner", "out"), segments=1),),
    ),
    Model("hunyuan", _hub("HunYuanDenseV1ForCausalLM", **_LLM8), _SIX_QK),
    Model("nanochat", _hub("NanoChatForCausalLM", **_LLM), _SIX_QK),
    Model("bitnet", _hub("BitNetForCausalLM", **_LLM), _SIX_QK),  # before the output layers too
    Model(
        "diffllama", _hub("DiffLlamaForCausalLM", **_LLM), _SIX_QK
    ),  # of the two maps' difference
    Model(
        "doge",  # the skip has a learned factor for each channel
        _hub("DogeForCausalLM", **_LLM),
        (_pre(6, "inner", skip="per-channel", segments=1),),
    ),
    Model(
        "modernbert-decoder", _hub("ModernBertDecoderForCausalLM", **_BERT, use_cache=False), _SIX
    ),
    Model(
        "gpt-neox-japanese",
        _hub(
            "GPTNeoXJapaneseForCausalLM",
            **_IDS,
            hidden_size=32,
            intermediate_multiple_size=2,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=32,
            use_cache=False,
        ),
        _SIX,
    ),
)

_SPARSE_AND_STATE = (
    Model(
        "qwen3-moe",
        _hub("Qwen3MoeForCausalLM", **_MOE, head_dim=8, num_experts=4, moe_intermediate_size=16),
        (_pre(6, "inner", segments=1),),
    ),
    Model("olmoe", _hub("OlmoeForCausalLM", **_MOE, num_experts=4), (_pre(6, "inner"),)),
    Model("granite-moe", _hub("GraniteMoeForCausalLM", **_MOE, num_local_experts=4), (_pre(6),)),
    Model(  # routed and shared experts make one feed-forward branch
        "granite-moe-shared",
        _hub(
            "GraniteMoeSharedForCausalLM", **_MOE, num_local_experts=4, shared_intermediate_size=16
        ),
        (_pre(6),),
    ),
    Model("phi-moe", _hub("PhimoeForCausalLM", **_MOE, num_local_experts=4), (_pre(6),)),
    Model(
        "gpt-oss",
        _hub("GptOssForCausalLM", **_MOE, head_dim=8, num_local_experts=4, sliding_window=4),
        (_pre(6),),
    ),
    Model(
        "dbrx",
        _hub(
            "DbrxForCausalLM",
            vocab_size=64,
            d_model=32,
            n_heads=4,
            n_layers=3,
            max_seq_len=32,
            attn_config=dict(kv_n_heads=2, rope_theta=10000.0, clip_qkv=8.0),
            ffn_config=dict(ffn_hidden_size=16, moe_num_experts=4, moe_top_k=2, hidden_size=32),
            use_cache=False,
        ),
        (_pre(6),),
    ),
    Model(
        "jetmoe",
        _hub(
            "JetMoeForCausalLM",
            **_IDS,
            hidden_size=32,
            intermediate_size=16,
            num_hidden_layers=3,
            num_key_value_heads=2,
            kv_channels=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            use_cache=False,
        ),
        (_pre(6),),
    ),
    Model(  # norms on the two gates and the step; inner: the skip D * x
        "falcon-mamba",
        _hub(
            "FalconMambaForCausalLM",
            **_IDS,
            hidden_size=32,
            state_size=4,
            num_hidden_layers=3,
            use_cache=False,
        ),
        (_pre(3, "inner", inner=3),),
    ),
    Model(  # two Mamba-2 layers around one of attention, a feed-forward in each
        "bamba",
        _hub(
            "BambaForCausalLM",
            **_LLM,
            attn_layer_indices=[1],
            mamba_n_heads=8,
            mamba_d_head=8,
            mamba_n_groups=1,
            mamba_d_state=4,
            mamba_expand=2,
            mamba_chunk_size=4,
        ),
        (_pre(6, "inner", inner=2),),
    ),
    Model(
        "granite-moe-hybrid",
        _hub(
            "GraniteMoeHybridForCausalLM",
            **_MOE,
            num_local_experts=4,
            shared_intermediate_size=16,
            layer_types=["mamba", "attention", "mamba"],
            mamba_n_heads=8,
            mamba_d_head=8,
            mamba_n_groups=1,
            mamba_d_state=4,
            mamba_expand=2,
            mamba_chunk_size=4,
        ),
        (_pre(6, "inner", inner=2),),
    ),
    Model(  # gated short convolutions beside attention with normed queries and keys
        "lfm2",
        _hub(
            "Lfm2ForCausalLM",
            **_LLM,
            conv_L_cache=3,
            layer_types=["conv", "full_attention", "conv"],
        ),
        (_pre(6, "inner"),),
    ),
)

_TEXT_ENCODERS = (
    Model("camembert", _hub("CamembertModel", **_BERT), _SIX_POST),
    Model("rembert", _hub("RemBertModel", **_BERT, input_embedding_size=16), _SIX_POST),
    Model("roformer", _hub("RoFormerModel", **_BERT, embedding_size=16), _SIX_POST),
    Model("data2vec-text", _hub("Data2VecTextModel", **_BERT), _SIX_POST),
    Model("ernie", _hub("ErnieModel", **_BERT), _SIX_POST),
    Model("nomic-bert", _hub("NomicBertModel", **_BERT), _SIX_POST),
    Model("deberta", _hub("DebertaModel", **_BERT), _SIX_POST),
    Model("splinter", _hub("SplinterModel", **_BERT), _SIX_POST),
    Model(
        "markuplm", _hub("MarkupLMModel", **_BERT, max_depth=4, xpath_unit_hidden_size=4), _SIX_POST
    ),
    Model(
        "longformer",
        _hub("LongformerModel", **_BERT | dict(max_position_embeddings=48), attention_window=4),
        (_post(6, segments=1),),
    ),
    Model(
        "big-bird",
        _hub("BigBirdModel", **_BERT, attention_type="original_full"),
        _SIX_POST,
    ),
    Model(
        "nystromformer",
        _hub(
            "NystromformerModel",
            **_BERT,
            num_landmarks=3,
            segment_means_seq_len=12,
            conv_kernel_size=3,
        ),
        _SIX_POST,
        limits="A convolution of the values is added to what attention made of them: the tool may "
        "count an inner merge with a projected skip for each layer.",
    ),
    Model(  # queries, keys and what attention gives are normed
        "yoso", _hub("YosoModel", **_BERT, use_expectation=True), (_post(6, "inner", segments=1),)
    ),
    Model(
        "funnel-base",
        _hub(
            "FunnelBaseModel",
            vocab_size=64,
            block_sizes=[3],
            d_model=32,
            n_head=4,
            d_head=8,
            d_inner=48,
            num_decoder_layers=1,
        ),
        _SIX_POST,
    ),
    Model(
        "xlm",
        _hub(
            "XLMModel",
            vocab_size=64,
            emb_dim=32,
            n_layers=3,
            n_heads=4,
            max_position_embeddings=40,
            n_langs=1,
            use_lang_emb=False,
            bos_index=1,
            eos_index=2,
            pad_index=0,
        ),
        _SIX_POST,
    ),
    Model(  # attention, feed-forward, and a language adapter whose skip starts behind a norm
        "xmod",
        _hub("XmodModel", **_BERT, languages=["en_XX"], default_language="en_XX"),
        (_post(9, m=(2,) * 9, segments=1),),
    ),
    Model("xlm-roberta-xl", _hub("XLMRobertaXLModel", **_BERT), _SIX),
    Model("roberta-prelayernorm", _hub("RobertaPreLayerNormModel", **_BERT), _SIX),
    Model(
        "esm",
        _hub(
            "EsmModel",
            **_BERT,
            mask_token_id=3,
            position_embedding_type="rotary",
            token_dropout=False,
        ),
        _SIX,
    ),
    Model("eurobert", _hub("EuroBertModel", **_LLM), _SIX),
    Model(  # characters, every fourth of them as molecules, characters again
        "canine",
        _hub(
            "CanineModel",
            **_BERT,
            type_vocab_size=2,
            num_hash_functions=4,
            num_hash_buckets=16,
            local_transformer_stride=4,
            downsampling_rate=4,
            upsampling_kernel_size=4,
        ),
        (_post(10),),
    ),
)

_PAIRED = (
    Model("marian", _hub("MarianModel", _pairs, **_BART), _PAIR_POST),
    Model("blenderbot-small", _hub("BlenderbotSmallModel", _pairs, **_BART), _PAIR_POST),
    Model("plbart", _hub("PLBartModel", _pairs, **_BART), _PAIR_POST),
    Model("mvp", _hub("MvpModel", _pairs, **_BART), _PAIR_POST),
    Model("m2m100", _hub("M2M100Model", _pairs, **_BART, **_UNDROPPED), _PAIR),
    Model("blenderbot", _hub("BlenderbotModel", _pairs, **_BART), _PAIR),
    Model(
        "bigbird-pegasus",
        _hub("BigBirdPegasusModel", _pairs, **_BART, attention_type="original_full"),
        _PAIR,
    ),
    Model(
        "led",
        _hub(
            "LEDModel",
            _pairs,
            **{k: v for k, v in _BART.items() if k != "max_position_embeddings"},
            max_encoder_position_embeddings=32,
            max_decoder_position_embeddings=32,
            attention_window=4,
        ),
        _PAIR_POST,
    ),
    Model(  # tokens and global tokens; the last layer's update of the global ones leads nowhere
        "pegasus-x",
        _hub(
            "PegasusXModel",
            _pairs,
            **_BART,
            num_global_tokens=2,
            block_size=4,
            stagger_local_blocks=False,
        ),
        (_pre(4, segments=1), _pre(2, segments=1), _pre(6, segments=1)),
    ),
    Model(
        "prophetnet",
        _hub(
            "ProphetNetModel",
            _pairs,
            **_IDS,
            hidden_size=32,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_encoder_layers=2,
            num_decoder_layers=2,
            num_encoder_attention_heads=4,
            num_decoder_attention_heads=4,
            max_position_embeddings=32,
            ngram=2,
            num_buckets=8,
            relative_max_distance=16,
            decoder_start_token_id=2,
            use_cache=False,
        ),
        _PAIR_POST,
    ),
    Model("mt5", _hub("MT5Model", _pairs, **_T5), _PAIR),
    Model(
        "long-t5",
        _hub("LongT5Model", _pairs, **_T5, local_radius=3, encoder_attention_type="local"),
        _PAIR,
    ),
    Model(
        "switch-transformers",
        _hub(
            "SwitchTransformersModel",
            _pairs,
            **_T5,
            num_decoder_layers=2,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
            num_experts=4,
            expert_capacity=16,
        ),
        _PAIR,
    ),
    Model(
        "nllb-moe",
        _hub(
            "NllbMoeModel",
            _pairs,
            **_BART,
            **_UNDROPPED,
            encoder_sparse_step=2,
            decoder_sparse_step=2,
            num_experts=4,
            expert_capacity=16,
        ),
        _PAIR,
    ),
    Model(
        "speech-to-text",
        _hub(
            "Speech2TextModel",
            _speech,
            **{k: v for k, v in _BART.items() if k != "max_position_embeddings"},
            **_UNDROPPED,
            max_source_positions=32,
            max_target_positions=32,
            num_conv_layers=2,
            conv_kernel_sizes=[3, 3],
            conv_channels=16,
            input_feat_per_channel=8,
            input_channels=1,
        ),
        _PAIR,
    ),
)

_IMAGES = (
    Model("vit-msn", _hub("ViTMSNModel", _image, **_VIT), _SIX),
    Model("dinov2-registers", _hub("Dinov2WithRegistersModel", _image, **_VIT), _SIX),
    Model("dinov3-vit", _hub("DINOv3ViTModel", _image, **_VIT), _SIX),
    Model("ijepa", _hub("IJepaModel", _image, **_VIT), _SIX),
    Model("data2vec-vision", _hub("Data2VecVisionModel", _image, **_VIT), _SIX),
    Model(
        "yolos",
        _hub(
            "YolosModel",
            _image,
            **_VIT | dict(image_size=[32, 32]),
            num_detection_tokens=3,
            use_mid_position_embeddings=False,
        ),
        _SIX,
    ),
    Model(
        "videomae",
        _hub("VideoMAEModel", _video, **_VIT, num_frames=2, tubelet_size=2),
        _SIX,
    ),
    Model(
        "vivit",
        _hub("VivitModel", _video, **_VIT, num_frames=2, tubelet_size=[2, 8, 8]),
        _SIX,
    ),
    Model("blip-vision", _hub("BlipVisionModel", _image, **_VIT), _SIX),
    Model(
        "swin2sr",  # a global skip; inner: two groups with a skip around two blocks of two branches
        _hub(
            "Swin2SRModel",
            _image,
            image_size=32,
            patch_size=1,
            embed_dim=16,
            depths=[2, 2],
            num_heads=[2, 2],
            window_size=4,
        ),
        (Stream(1, ("inner",), inner=10, segments=1),),
    ),
    Model(
        "mobilevit",  # residuals of MobileNet in one stage, Transformers in three
        _hub(
            "MobileViTModel",
            lambda: {"pixel_values": torch.randn(2, 3, 64, 64)},
            image_size=64,
            hidden_sizes=[16, 20, 24],
            neck_hidden_sizes=[8, 10, 12, 16, 20, 24, 32],
            num_attention_heads=2,
        ),
        (_pre(20, "inner", "out", segments=4),),
    ),
    Model(
        "focalnet",
        _hub(
            "FocalNetModel",
            _image,
            image_size=32,
            patch_size=4,
            embed_dim=16,
            hidden_sizes=[16, 32],
            depths=[1, 2],
            focal_levels=[2, 2],
            focal_windows=[3, 3],
        ),
        (_pre(6, segments=2),),
        limits="The contexts are gated terms of one sum and each is computed from the one before: "
        "the tool may count two inner merges for each modulation.",
    ),
    Model(  # keys and values read a strided convolution with a norm behind it
        "glpn",
        _hub(
            "GLPNModel",
            _image,
            num_encoder_blocks=2,
            hidden_sizes=[16, 32],
            depths=[1, 2],
            sr_ratios=[2, 1],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[2, 4],
            mlp_ratios=[2, 2],
            drop_path_rate=0.0,
        ),
        (_pre(6, "inner", segments=2),),
    ),
    Model(
        "pvt-v2",
        _hub(
            "PvtV2Model",
            _image,
            image_size=32,
            num_encoder_blocks=2,
            hidden_sizes=[16, 32],
            depths=[1, 2],
            sr_ratios=[2, 1],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[2, 4],
            mlp_ratios=[2, 2],
        ),
        (_pre(6, "inner", segments=2),),
    ),
    Model(  # between the stages the skip is the normed state, projected and pooled
        "hiera",
        _hub(
            "HieraModel",
            _image,
            image_size=[32, 32],
            patch_size=[7, 7],
            patch_stride=[4, 4],
            patch_padding=[3, 3],
            masked_unit_size=[4, 4],
            masked_unit_attention=[True, False],
            num_query_pool=1,
            embed_dim=16,
            depths=[1, 2],
            num_heads=[2, 4],
            mlp_ratio=2.0,
        ),
        (_pre(6, skip="mixed", projected=1, segments=1),),
    ),
    Model(  # inner: additive attention adds the normed queries; a local layer stands before each
        "swiftformer",
        _hub(
            "SwiftFormerModel",
            _image,
            image_size=32,
            depths=[1, 2],
            embed_dims=[16, 24],
            mlp_ratio=2,
            downsamples=[True, True],
        ),
        (_pre(7, "inner", inner=2, segments=2),),
    ),
    Model(  # in three of six layers two convolutions are added to the normed input
        "textnet",
        _hub(
            "TextNetModel",
            _image,
            stem_num_channels=3,
            stem_out_channels=8,
            conv_layer_kernel_sizes=[[[3, 1], [3, 1]], [[3, 1], [1, 3]], [[3, 1]], [[3, 1]]],
            conv_layer_strides=[[1, 1], [2, 1], [2], [2]],
            hidden_sizes=[8, 8, 12, 16, 20],
        ),
        (Stream(6, ("out",), "normed", parallel=3, m=(1,) * 6, segments=2),),
        limits="In the layers that change the shape two convolutions of one input are summed, one "
        "of them 1 x 1: the tool may see no merge in it, or one with a projected skip.",
    ),
)

_SOUND_AND_OTHERS = (
    Model(  # first branch: the convolution that stands for the positions
        "wavlm", _hub("WavLMModel", _audio, **_WAV), (_post(7, m=(1, *_TWO), segments=1),)
    ),
    Model(
        "unispeech", _hub("UniSpeechModel", _audio, **_WAV), (_post(7, m=(1, *_TWO), segments=1),)
    ),
    Model(
        "unispeech-sat",
        _hub("UniSpeechSatModel", _audio, **_WAV),
        (_post(7, m=(1, *_TWO), segments=1),),
    ),
    Model(  # the positions come from two convolutions, each with a norm behind it
        "data2vec-audio",
        _hub(
            "Data2VecAudioModel",
            _audio,
            **_WAV | dict(num_conv_pos_embeddings=2, conv_pos_kernel_size=3),
        ),
        (_post(7, "inner", "out", m=(2, *_TWO), segments=1),),
    ),
    Model(  # macaron: half a feed-forward, attention, convolution, half a feed-forward, norm
        "wav2vec2-bert",
        _hub(
            "Wav2Vec2BertModel",
            _features,
            **_BERT,
            feature_projection_input_dim=16,
            conv_depthwise_kernel_size=5,
            apply_spec_augment=False,
            layerdrop=0.0,
        ),
        (_pre(12, "inner", "stream", segments=1),),
    ),
    Model(
        "audio-spectrogram",
        _hub(
            "ASTModel",
            _spectrum,
            **{k: v for k, v in _VIT.items() if k != "image_size"},
            frequency_stride=8,
            time_stride=8,
            max_length=32,
            num_mel_bins=16,
        ),
        _SIX,
    ),
    Model(
        "decision-transformer",
        _hub(
            "DecisionTransformerModel",
            _played,
            state_dim=5,
            act_dim=3,
            hidden_size=32,
            max_ep_len=16,
            n_layer=3,
            n_head=4,
            n_positions=32,
            use_cache=False,
        ),
        _SIX,
    ),
    Model(  # a convolution that halves the length stands between the encoder's two layers
        "informer",
        _hub(
            "InformerModel",
            _forecast,
            prediction_length=4,
            context_length=16,
            lags_sequence=[1, 2, 4],
            num_time_features=1,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            **_UNDROPPED,
            use_cache=False,
        ),
        (_post(4, segments=2), _post(6, segments=1)),
    ),
    Model("layoutlm", _hub("LayoutLMModel", _boxed, **_BERT), _SIX_POST),
    Model(  # text and layout share their scores; the last update of the layout leads nowhere
        "lilt",
        _hub("LiltModel", _boxed, **_BERT | dict(hidden_size=48), channel_shrink_ratio=2),
        (_post(6, segments=1), _post(4, segments=1)),
    ),
    Model(
        "visual-bert",
        _hub("VisualBertModel", _embedded, **_BERT, visual_embedding_dim=16),
        _SIX_POST,
    ),
    Model(  # two layers of text, one of regions, then one that crosses: three branches on each
        "lxmert",
        _hub(
            "LxmertModel",
            _seen,
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=4,
            max_position_embeddings=32,
            l_layers=2,
            r_layers=1,
            x_layers=1,
            visual_feat_dim=16,
        ),
        (_post(7, segments=1), _post(5, segments=1)),
    ),
    Model(
        "vilt",
        _hub(
            "ViltModel",
            lambda: _image_text() | {"pixel_mask": torch.ones(2, 32, 32, dtype=torch.long)},
            **_VIT,
            vocab_size=64,
            max_position_embeddings=32,
            max_image_length=-1,
        ),
        _SIX,
    ),
    Model("blip-text", _hub("BlipTextModel", **_BERT, encoder_hidden_size=32), _SIX_POST),
    Model(  # the picture's features stand before the text in the second stream
        "git",
        _hub(
            "GitModel",
            _image_text,
            **_BERT,
            vision_config=_VIT | dict(num_hidden_layers=2),
            use_cache=False,
        ),
        (_pre(4, segments=1), _post(6, segments=1)),
    ),
    Model(
        "alt-clip",
        _hub(
            "AltCLIPModel",
            _image_text,
            text_config=_BERT | dict(project_dim=16),
            vision_config=_VIT | dict(num_hidden_layers=2),
            projection_dim=16,
        ),
        (_pre(4, segments=1), _post(6, segments=1)),
    ),
    Model(
        "chinese-clip",
        _hub(
            "ChineseCLIPModel",
            _image_text,
            text_config=_BERT,
            vision_config=_VIT | dict(num_hidden_layers=2),
            projection_dim=16,
        ),
        (_pre(4, segments=1), _post(6, segments=1)),
    ),
    Model(
        "owl-vit",
        _hub(
            "OwlViTModel",
            lambda: _image_text() | {"attention_mask": torch.ones(2, 12, dtype=torch.long)},
            text_config=_BERT,
            vision_config=_VIT | dict(num_hidden_layers=2),
            projection_dim=16,
        ),
        (_pre(4, segments=1), _pre(6, segments=1)),
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
