"""Models whose residual streams are known, written down from their definitions.

An expectation is read off the model's source, by a person, before the tool is run on it. The words:

* A *merge* is where an earlier stream tensor is added to something that was computed from it
  through a weight layer, or through an operation that mixes positions (attention, pooling, a
  Fourier transform). The earlier tensor may be scaled, gated, normed, projected, reshaped, dropped
  out, or a slice of the stream: that is the skip's kind.
* ``branches`` counts what is added, over all executions (a tied block that runs six times counts
  six times). Two branches added in one place are one merge, which ``parallel`` counts.
* A merge inside a branch of another merge is ``inner`` and not among ``branches``. Terms of one sum
  of which one is computed from another (Runge-Kutta stages) are one branch with inner merges.
* ``projected`` counts merges whose skip passes a weight layer (the 1 x 1 convolution of a ResNet).
* ``skip`` is the one word that all merges of the stream share (identity, scaled, per-channel,
  gated, normed, projected), ``"mixed"``, or ``"none"``.
* ``norm_at``: which of four places hold a norm in some branch. ``in``: between the stream and the
  branch's first weight layer; ``inner``: between weight layers (also on queries and keys); ``out``:
  between the last weight layer and the sum; ``stream``: on the stream itself, between a merge and
  the place where the next one takes its skip, with no weight layer there. The norm after the
  embedding and the final norm of a pre-norm stack are none of these. Where branch and projection
  both read the normed stream (the first block of a stage of a pre-activation ResNet) it is ``in``:
  two expectations that had called it ``stream`` were changed when this sentence was added.
* A stream begins at its first tensor (an embedding, a stem) and may have several ``segments`` where
  it is broken by layers without a skip. An encoder and a decoder are two streams. The streams are
  in the order in which their first merges run.
* ``m``, where it is given, counts an attention as its values and its output projection, 2 in
  series; a profile's own ``m`` counts 4, queries and keys too, as Fixup does.
* A model without a merge has one stream of 0 branches and skip ``"none"``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

__all__ = ["Model", "Stream"]


@dataclass(frozen=True)
class Stream:
    """What is expected of one stream; ``m`` and ``segments`` are checked only where given."""

    branches: int
    norm_at: tuple[str, ...] = ()
    skip: str = "identity"
    inner: int = 0
    projected: int = 0
    parallel: int = 0
    m: tuple[int, ...] | None = None
    segments: int | None = None


PLAIN = Stream(0, (), "none")


@dataclass(frozen=True)
class Model:
    """``build()`` gives a module and a batch (tensor, tuple or dict); seeded by the caller.

    ``norm_at`` in ``PLAIN`` streams is not checked. ``limits`` is empty where the tool must find
    all of it; else it says what the tool cannot see and where its answer admits it.
    """

    name: str
    build: Callable[[], tuple[nn.Module, Any]]
    streams: tuple[Stream, ...]
    training: bool = True
    limits: str = ""
