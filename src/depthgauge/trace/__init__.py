"""Modules of PyTorch as targets: what they are, where they come from, what flows in them."""
