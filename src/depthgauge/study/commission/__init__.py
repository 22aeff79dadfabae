"""Commissioning: the gates of a deep network, in order, with the evidence of each."""
