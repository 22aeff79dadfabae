"""Instruments: one quantity a file; each turns a tensor into a few numbers where it is seen."""
