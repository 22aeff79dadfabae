"""A block equation becomes a network: layers, initialisers, draws, PyTorch, streaming."""
