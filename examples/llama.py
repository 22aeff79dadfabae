"""depthgauge measure examples/llama.py:build"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build(layers=4, width=64, heads=4, tokens=32):
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=2 * width,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        vocab_size=256,
    )
    model = LlamaForCausalLM(config)
    return model, {"input_ids": torch.randint(0, 256, (4, tokens)), "use_cache": False}
