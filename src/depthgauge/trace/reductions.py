"""What is read off one tensor and kept: numbers.

On the CPU at once, or for small tensors as soon as there are many of one shape: of these a call
costs more than the numbers in it. On another device the numbers stay there, to be fetched together.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from depthgauge.instruments import correlation, rivers

__all__ = ["SAMPLE", "Numbers", "Together", "numbers", "of_branch", "sample"]

#: Elements that quantiles and derivatives are taken over, at most.
SAMPLE: Final = 2**13
_QUANTILES: Final = list(rivers.QUANTILES)
_FEW: Final = 2**14
#: From how many numbers on quantiles are selected, and by which bits: exponent and three more.
_MANY, _SHIFT = 2**12, 20
#: Elements of a small tensor, bytes of a batch of them, rows of it and shapes, at most.
_SMALL, _BYTES, _ROWS, _SHAPES = 2**15, 2**21, 64, 4

Numbers = Sequence[float] | Tensor


def numbers(x: Tensor, names: Sequence[str], axis: int | None = None) -> Numbers:
    """The statistics of one tensor: a list, or on another device a tensor that stays there.

    ``axis``: of the examples, None where there is none; correlations are NaN then.

    NumPy's kernels, on the tensor's own memory, take a third of PyTorch's time here. Quantiles are
    those of at most ``SAMPLE`` elements, spread evenly.
    """
    flat = rivers.wide(x.detach()).reshape(-1)
    if flat.device.type != "cpu":
        return _on_device(x, names, axis)
    a = flat.numpy()
    out: list[float] = []
    top = math.nan
    ordered: dict[str, float] = {}
    low = 1e-30 if a.itemsize == 4 else 1e-290  # below it squares lose digits
    for name in names:
        if name == "rms":
            square = float(a.dot(a)) / a.size
            out.append(math.sqrt(square) if low < square < math.inf else _rms(flat, a))
        elif name == "max":
            top = _largest(a)
            out.append(top)
        elif name == "nonfinite":
            top = _largest(a) if top != top else top
            out.append(0.0 if math.isfinite(top) else rivers.nonfinite(flat[None])[0])
        elif name == "mean":
            # NumPy adds in pairs too; of many numbers PyTorch does it faster.
            total = np.add.reduce(a) if a.size <= _FEW else flat.sum().item()
            mean = float(total) / a.size
            out.append(mean if math.isfinite(mean) else rivers.mean(flat[None])[0])
        elif name in correlation.STATISTICS:
            out.append(_between(name, x, axis))
        elif name == "row":
            out.append(float(_longest_row(x)))
        else:
            ordered = ordered or _quantiles(sample(x, flat))
            out.append(ordered[name])
    return out


class Together:
    """The statistics of small tensors, taken of a batch of copies at once; each lands in ``table``
    when its batch is full, or at the end."""

    def __init__(self, names: Sequence[str], table: MutableMapping[int, Numbers]) -> None:
        self._names, self._table = names, table
        self._plain = bool(names) and {*names} <= {"rms", "mean", "max", "nonfinite"}
        self._batches: dict[tuple[torch.Size, torch.dtype], _Batch] = {}

    def add(self, key: int, x: Tensor) -> bool:
        """Copy ``x`` as it is now, unless it is large or a statistic is none of many rows at once;
        ``table[key]`` is empty until its batch is reduced."""
        if not self._plain or x.numel() > _SMALL or not x.is_cpu or type(x) is not Tensor:
            return False
        batch = self._batches.get((x.shape, x.dtype)) or self._batch(x)
        keys = batch.keys
        batch.rows[len(keys)].copy_(x.detach() if x.requires_grad else x)
        keys.append(key)
        self._table[key] = ()
        if len(keys) == len(batch.rows):
            self._reduce(batch)
        return True

    def _batch(self, x: Tensor) -> _Batch:
        if len(self._batches) == _SHAPES:
            self.end()
        return self._batches.setdefault((x.shape, x.dtype), _Batch(x))

    def end(self) -> None:
        """Reduce what is left, and let the copies go."""
        for batch in self._batches.values():
            if batch.keys:
                self._reduce(batch)
        self._batches.clear()

    def _reduce(self, batch: _Batch) -> None:
        x = batch.memory[: len(batch.keys)]
        found: dict[str, list[float]] = {}
        if "max" in self._names or "nonfinite" in self._names:
            a = x.numpy()
            top = np.maximum(np.maximum.reduce(a, axis=1), -np.minimum.reduce(a, axis=1))
            found["max"] = top.tolist()
        for name in self._names:
            if name == "rms":
                found[name] = rivers.rms(x)
            elif name == "mean":
                found[name] = [
                    mean if math.isfinite(mean) else rivers.mean(x[i, None])[0]
                    for i, mean in enumerate(x.mean(1).tolist())
                ]
            elif name == "nonfinite":
                found[name] = [
                    0.0 if math.isfinite(top) else rivers.nonfinite(x[i, None])[0]
                    for i, top in enumerate(found["max"])
                ]
        rows = zip(*(found[name] for name in self._names), strict=True)
        self._table.update(zip(batch.keys, rows, strict=True))
        batch.keys.clear()


class _Batch:
    """Room for copies of tensors like ``x``, in a precision in which statistics may be taken."""

    def __init__(self, x: Tensor) -> None:
        kind = rivers.wide(x[:0] if x.dim() else x).dtype
        count = max(1, min(_ROWS, _BYTES // (x.numel() * kind.itemsize)))
        with torch.inference_mode(False):  # whatever the model has switched on here
            self.memory = torch.empty((count, x.numel()), dtype=kind, device="cpu")
            self.rows = self.memory.view(count, *x.shape).unbind()
        self.keys: list[int] = []


def _between(name: str, x: Tensor, axis: int | None) -> float:
    """The mean cosine between examples, or between the positions of each."""
    if axis is None or not x.shape[axis]:
        return math.nan
    x = rivers.wide(x.detach()).movedim(axis, 0)[None]
    found = correlation.of_examples(x) if name == "correlation" else correlation.of_tokens(x)
    return found[0]


def _longest_row(x: Tensor) -> Tensor:
    """The largest Euclidean norm of a row, over the last axis."""
    lengths: Tensor = torch.linalg.vector_norm(rivers.wide(x.detach()), dim=-1)
    return lengths.amax()


def _largest(a: Any) -> float:
    """The largest magnitude, by the ufuncs themselves: the methods cost as much again."""
    return max(float(np.maximum.reduce(a)), -float(np.minimum.reduce(a)))


#: Where magnitudes are put in order. Arrays made and freed between tensors that stay would leave
#: holes that no tensor fits into.
class _Scratch(threading.local):
    def __init__(self) -> None:
        self.ordered = np.empty(SAMPLE, np.float32)
        self.bins = np.empty(SAMPLE, np.int64)


_SCRATCH: Final = _Scratch()


def _quantiles(x: Tensor) -> dict[str, float]:
    a = x.numpy()
    ordered = _SCRATCH.ordered[: a.size] if a.dtype == np.float32 else np.empty_like(a)
    np.abs(a, out=ordered)
    places = rivers.places(a.size, rivers.QUANTILES.values())
    if a.size >= _MANY and a.dtype == np.float32:
        found = _selected(ordered, places)
    else:
        ordered.sort()
        found = ordered[places].tolist()
    return dict(zip(rivers.QUANTILES, found, strict=True))


def _selected(a: Any, places: Sequence[int]) -> list[float]:
    """The elements that would stand at ``places`` if magnitudes ``a`` were sorted, NaN last.

    Bits of floats from 0 on have the order of the numbers, so the first of them say in which of
    some 2000 bins an element stands, and only the bins that hold a place are sorted: a third to a
    half of the time of a sort.
    """
    bins = _SCRATCH.bins[: a.size]
    np.right_shift(a.view(np.uint32), _SHIFT, out=bins)
    ends = np.bincount(bins).cumsum()
    found: list[float] = []
    last, part = -1, a
    for place, at in zip(places, ends.searchsorted(places, "right").tolist(), strict=True):
        if at != last:
            last, part = at, a[bins == at]
            if part.min() != part.max():  # all zeros, as behind a ReLU, are in order
                part.sort()
        found.append(float(part[place - int(ends[at]) + part.size]))
    return found


def _rms(flat: Tensor, a: Any) -> float:
    """Where squares have left the range: again, in a wider one or divided by the largest."""
    if a.itemsize == 4:
        wide = a.astype("float64")
        square = float(wide.dot(wide)) / a.size
        return math.sqrt(square)
    return rivers.rms(flat[None])[0] if a.any() else 0.0


def sample(x: Tensor, flat: Tensor) -> Tensor:
    """At most ``SAMPLE`` elements of ``flat``, spread evenly and over all columns of ``x``."""
    if flat.numel() <= SAMPLE:
        return flat
    stride = -(-flat.numel() // SAMPLE)
    while math.gcd(stride, x.shape[-1]) > 1:
        stride += 1
    return flat[::stride]


def _on_device(whole: Tensor, names: Sequence[str], axis: int | None = None) -> Tensor:
    x = rivers.wide(whole.detach()).reshape(-1)
    single: dict[str, Callable[[Tensor], Tensor]] = {
        "rms": lambda x: torch.linalg.vector_norm(x, dtype=torch.float64) / math.sqrt(x.numel()),
        "mean": lambda x: x.mean(dtype=torch.float64),
        "max": lambda x: x.abs().amax().double(),
        "nonfinite": lambda x: 1 - x.isfinite().double().mean(),
    }
    ordered: Tensor | None = None
    out = []
    for name in names:
        if name in single:
            out.append(single[name](x))
        elif name in correlation.STATISTICS:
            out.append(x.new_tensor(_between(name, whole, axis), dtype=torch.float64))
        elif name == "row":
            out.append(_longest_row(whole).double())
        else:
            if ordered is None:
                ordered = rivers.quantiles(sample(x, x)[None])[:, 0].double()
            out.append(ordered[_QUANTILES.index(name)])
    return torch.stack(out)


def of_branch(branch: Tensor, stream: Tensor, added: float, own: float) -> Numbers:
    """RMS of the branch, its ratio to the stream's RMS, and the cosine between the two, each with
    the factor that the sum gives it."""
    found = _unscaled(branch, stream)
    if added == 1 and own == 1:
        return found
    sign = math.copysign(1.0, added * own)
    factors = [abs(added), abs(added / own) if own else math.inf, sign]
    if isinstance(found, Tensor):
        return found * found.new_tensor(factors)
    return [x * f for x, f in zip(found, factors, strict=True)]


def _unscaled(branch: Tensor, stream: Tensor) -> Numbers:
    if branch.shape != stream.shape:
        try:
            branch, stream = torch.broadcast_tensors(  # type: ignore[no-untyped-call]
                branch, stream
            )
        except RuntimeError:  # scattered into the stream, not added to all of it
            return [math.nan] * 3
    b = rivers.wide(branch.detach()).reshape(1, -1)
    s = rivers.wide(stream.detach()).reshape(1, -1)
    if b.dtype != s.dtype:
        b, s = b.double(), s.double()
    if b.device.type != "cpu":
        b64, s64 = b[0].double(), s[0].double()
        root = math.sqrt(b64.numel())
        over, under = torch.linalg.vector_norm(b64), torch.linalg.vector_norm(s64)
        return torch.stack([over / root, over / under, b64.dot(s64) / over / under])
    x, y = b[0].numpy(), s[0].numpy()
    upper, lower = float(x.dot(x)) / x.size, float(y.dot(y)) / x.size
    low = 1e-30 if x.itemsize == 4 else 1e-290
    if low < upper < math.inf and low < lower < math.inf:
        upper, lower = math.sqrt(upper), math.sqrt(lower)
        cosine = float(x.dot(y)) / x.size / (upper * lower)
        return [upper, upper / lower, cosine]
    ((upper,), (lower,)) = (numbers(t, ("rms",)) for t in (b, s))
    ratio = upper / lower if lower else math.nan if not upper else math.inf
    cosine = math.nan
    if 0 < upper < math.inf and 0 < lower < math.inf:
        cosine = ((b.double() / upper) * (s.double() / lower)).mean().item()
    return [upper, ratio, cosine]
