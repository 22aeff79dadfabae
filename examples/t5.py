"""depthgauge measure examples/t5.py:build"""

import torch
from transformers import T5Config, T5ForConditionalGeneration


def build(layers=3, width=64, heads=4, tokens=24):
    config = T5Config(
        num_layers=layers,
        d_model=width,
        d_kv=width // heads,
        d_ff=4 * width,
        num_heads=heads,
        vocab_size=256,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    batch = {
        "input_ids": torch.randint(0, 256, (4, tokens)),
        "labels": torch.randint(0, 256, (4, tokens // 2)),
    }
    return model, batch
