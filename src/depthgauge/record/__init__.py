"""The record of a commission: plain files that are written, read, verified and compared.

Nothing in here imports torch but ``subject``, and that only where a model is looked at.
"""
