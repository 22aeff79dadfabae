"""Threads of NumPy, whose number can be told before it is imported and not after."""

from __future__ import annotations

import os
import sys

__all__ = ["numpy_alone"]


def numpy_alone() -> None:
    """One thread for NumPy's OpenBLAS, unless OPENBLAS_NUM_THREADS says another number.

    What is decomposed beside a network are matrices of a few hundred rows at most, and threads that
    wait for one another over these cost as much processor time again as the whole commission.
    """
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
