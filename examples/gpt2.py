"""depthgauge measure examples/gpt2.py:build --arg layers=12"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def build(layers=4, width=64, heads=4, tokens=32):
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, n_positions=tokens, vocab_size=256
    )
    model = GPT2LMHeadModel(config)
    ids = torch.randint(0, 256, (4, tokens))
    return model, {"input_ids": ids, "labels": ids, "use_cache": False}
