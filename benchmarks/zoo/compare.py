"""A profile's streams in the words of the expectations, and what differs."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.zoo import Model, Stream
from depthgauge import Profile

__all__ = ["differences", "found"]

#: What is compared of every stream, and what only where the expectation gives it.
ALWAYS = ("branches", "norm_at", "skip", "inner", "projected", "parallel")
WHERE_GIVEN = ("m", "segments")


def found(profile: Profile) -> tuple[Stream, ...]:
    """The profile's streams, with ``m`` and ``segments``."""
    return tuple(
        Stream(
            branches=stream["branches"],
            norm_at=tuple(stream["norm_at"]),
            skip=stream["skip"],
            inner=stream["inner"],
            projected=stream["projected"],
            parallel=stream["parallel"],
            m=tuple(stream["m"]),
            segments=stream["segments"],
        )
        for stream in profile.streams
    )


def differences(
    model: Model, profile: Profile, only: Iterable[str] = (*ALWAYS, *WHERE_GIVEN)
) -> list[str]:
    """What the profile says that the expectation does not, a sentence each; empty when exact.

    ``only`` leaves out the other fields of ``Stream``. The norms of a stream without branches are
    not compared.
    """
    has, fields = found(profile), tuple(only)
    out = []
    if len(has) != len(model.streams):
        out.append(f"{_streams(has)}, expected {_streams(model.streams)}")
    for k, (got, expected) in enumerate(zip(has, model.streams, strict=False), start=1):
        which = f"stream {k}: " if len(model.streams) > 1 else ""
        for field in fields:
            value, wanted = getattr(got, field), getattr(expected, field)
            if field in WHERE_GIVEN and wanted is None:
                continue
            if field == "norm_at" and not expected.branches:
                continue
            if value != wanted:
                out.append(f"{which}{field} {_said(value)}, expected {_said(wanted)}")
    return out


def _streams(streams: tuple[Stream, ...]) -> str:
    counts = ", ".join(str(stream.branches) for stream in streams)
    return f"{len(streams)} stream{'s' * (len(streams) != 1)} of {counts or 'no'} branches"


def _said(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return str(value)
