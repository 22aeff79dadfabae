"""depthgauge measure examples/bert.py:build"""

import torch
from transformers import BertConfig, BertModel


def build(layers=4, width=64, heads=4, tokens=32):
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=heads,
        vocab_size=256,
    )
    return BertModel(config), {"input_ids": torch.randint(0, 256, (4, tokens))}
