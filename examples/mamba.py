"""depthgauge measure examples/mamba.py:build"""

import torch
from transformers import MambaConfig, MambaForCausalLM


def build(layers=3, width=32, tokens=12):
    config = MambaConfig(num_hidden_layers=layers, hidden_size=width, vocab_size=256)
    model = MambaForCausalLM(config)
    return model, {"input_ids": torch.randint(0, 256, (2, tokens)), "use_cache": False}
