"""Every model of the zoo: what was expected and found, and what tracing and analysis cost.

The models of one file run in a process of their own, one after the other; when that ends early, the
next one goes on with the model after. A pass alone and ``measure`` run by turns.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness import median, publish, table

ROUNDS = 3
PARTS = (
    "plain",
    "oddities",
    "hub",
    "x_transformers_models",
    "further",
    "further_hub",
    "blind",
    "blind_hub",
)
SUMMARY = ["models", "number", "exact in branches and norms", "exact in all but m", "exact in all"]
SUMMARY += ["with limits", "crashed", "tracing, median ms", "analysis, median ms", "ratio, median"]
LINE = ["file", "model", "expected", "found", "placement", "skip", "states", "values"]
LINE += ["plain ms", "tracing ms", "analysis ms", "measure to plain"]
#: Seconds after which a model is given up.
PATIENCE = 120.0


@dataclass
class Row:
    """One model's line; ``crash`` holds the end of a traceback."""

    part: str
    name: str
    expected: str
    found: str = ""
    placement: str = ""
    skip: str = ""
    states: int = 0
    values: int = 0
    plain: list[float] = field(default_factory=list)  # seconds, as all that follow
    tracing: list[float] = field(default_factory=list)
    analysis: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)  # in branches and norm flags
    differs_else: list[str] = field(default_factory=list)
    limits: str = ""
    reasons: str = ""
    crash: str = ""

    @property
    def exact(self) -> bool:
        return not self.differs and not self.crash

    @property
    def exact_but_for_m(self) -> bool:
        return self.exact and all(" m " in f" {d}" for d in self.differs_else)

    @property
    def exact_in_all(self) -> bool:
        return self.exact and not self.differs_else


# ------------------------------------------------------------------------------ one model


class Watch:
    """Seconds of the recorded pass alone, and how many values it traced."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.values = 0

    @contextmanager
    def on(self) -> Iterator[None]:
        from depthgauge.trace import measuring

        module: Any = measuring  # its own name of the function is taken for a while
        run = module.run

        @functools.wraps(run)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            passed = run(*arguments, **keywords)
            self.seconds = time.perf_counter() - start
            self.values = len(passed.graph.values)
            return passed

        module.run = timed
        try:
            yield
        finally:
            module.run = run


def one(part: str, index: int) -> Row:
    """The line of one model."""
    import torch

    from benchmarks.modules import plain, side_by_side
    from benchmarks.zoo.compare import ALWAYS, WHERE_GIVEN, differences
    from depthgauge import Profile, measure

    model = importlib.import_module(f"benchmarks.zoo.{part}").MODELS[index]
    expected = "; ".join(_stream(s.branches, s.norm_at) for s in model.streams)
    row = Row(part, model.name, expected, limits=model.limits)
    watch = Watch()
    profiles: list[Profile] = []

    def measured() -> None:
        start = time.perf_counter()
        profiles[:] = [measure(module, batch)]
        row.tracing.append(watch.seconds)
        row.analysis.append(time.perf_counter() - start - watch.seconds)

    try:
        torch.manual_seed(0)
        module, batch = model.build()
        module.train(model.training)
        with watch.on():
            jobs: dict[str, Callable[[], object]] = {
                "plain": functools.partial(plain, module, batch),
                "whole": measured,
            }
            seconds = side_by_side(jobs, ROUNDS, 1)
    except Exception:
        row.crash = " / ".join(
            line.strip() for line in traceback.format_exc().strip().splitlines()[-3:]
        )
        return row
    profile = profiles[0]
    row.plain, row.whole = seconds["plain"], seconds["whole"]
    row.analysis = row.analysis[1:]
    row.tracing = [a - b for a, b in zip(row.tracing[1:], row.plain, strict=True)]
    row.values = watch.values
    row.found = "; ".join(_stream(s["branches"], s["norm_at"]) for s in profile.streams)
    row.placement = "; ".join(s["placement"] for s in profile.streams)
    row.skip = "; ".join(s["skip"] for s in profile.streams)
    row.states = sum(s["states"] for s in profile.streams)
    row.differs = differences(model, profile, ("branches", "norm_at"))
    rest = [name for name in (*ALWAYS, *WHERE_GIVEN) if name not in ("branches", "norm_at")]
    row.differs_else = [d for d in differences(model, profile, rest) if d not in row.differs]
    row.reasons = _reasons(profile)
    return row


def _stream(branches: int, norm_at: Any) -> str:
    return " ".join([str(branches), *norm_at])


def _reasons(profile: Any) -> str:
    """What the answer itself says about what it may not have seen."""
    said = [
        f"local test {d['local_merge']}, path counting {d['path_counting']}: {d['reason']}"
        for d in profile.disagreements
    ]
    for word in ("opaque", "fallback", "not_called"):
        entries = profile.coverage.get(word, ())
        kinds = dict.fromkeys(reason for _, reason in entries)
        said += [f"{word}: {reason}" for reason in list(kinds)[:2]]
    return "; ".join(said)


# ------------------------------------------------------------------------------ processes


def serve(pipe: Connection, part: str, first: int, last: int) -> None:
    """The lines of the models ``first`` to ``last`` of a file, one by one into the pipe."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    if part.endswith("hub"):
        logger = importlib.import_module("transformers").logging
        logger.set_verbosity_error()
    importlib.import_module(f"benchmarks.zoo.{part}")
    gc.collect()
    gc.freeze()  # what was imported is not looked through before every pass
    for index in range(first, last):
        pipe.send(one(part, index))


def rows_of(part: str, names: list[str], wanted: str) -> list[Row]:
    """A line for every model of a file, also where the process ends or hangs."""
    context = multiprocessing.get_context("spawn")
    rows: list[Row] = []
    chosen = [i for i, name in enumerate(names) if wanted in name]
    while len(rows) < len(chosen):
        at = chosen[len(rows)]
        end = at + 1 if wanted else len(names)
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, part, at, end), daemon=True)
        process.start()
        there.close()
        try:
            for index in range(at, end):
                if not here.poll(PATIENCE):
                    raise TimeoutError(f"no answer in {PATIENCE:.0f} s")
                rows.append(here.recv())
                print(f"{part} {index + 1} of {len(names)}: {names[index]}", file=sys.stderr)
        except (EOFError, TimeoutError) as error:
            process.terminate()
            process.join()
            why = str(error) or f"the process ended with {process.exitcode}"
            rows.append(Row(part, names[chosen[len(rows)]], "", crash=why))
        process.join()
    return rows


# --------------------------------------------------------------------------------- report


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS, help="files of the zoo")
    parser.add_argument("--only", default="", help="models with this in their name")
    chosen = parser.parse_args()
    rows = []
    for part in chosen.parts:
        models = importlib.import_module(f"benchmarks.zoo.{part}").MODELS
        rows += rows_of(part, [model.name for model in models], chosen.only)
    parts = report(rows)
    if chosen.only or tuple(chosen.parts) != PARTS:
        print("\n\n".join(parts))  # not the whole zoo: nothing is kept
        return 0
    publish("zoo", "The zoo: streams expected and found", parts, ROUNDS)
    return 0


def report(rows: list[Row]) -> list[str]:
    parts = [
        "Each stream's branches and where they have norms, streams apart by semicolons. A plain "
        "pass is forward and backward from a random cotangent, with the gradients of all "
        "parameters. Tracing is the recorded and read pass less a plain one, analysis all that "
        "`measure` does after it, with every instrument. One torch thread; the models of one file "
        "run in one process.",
        table(
            SUMMARY,
            [
                _summary(part, [r for r in rows if r.part == part])
                for part in dict.fromkeys(row.part for row in rows)
            ]
            + [_summary("all", rows)],
        ),
    ]
    if crashed := [row for row in rows if row.crash]:
        found = [[row.part, row.name, _cell(row.crash)] for row in crashed]
        parts += ["Crashed:", table(["file", "model", "the traceback's end"], found)]
    first = [row for row in rows if row.differs]
    later = [row for row in rows if row.differs_else and not row.differs]
    for words, some in (
        (f"Not exact in branches and norms ({len(first)})", first),
        (f"Exact in these but not in all ({len(later)})", later),
    ):
        if some:
            head = ["file", "model", "differs in", "limits", "the profile says"]
            found = [
                [
                    row.part,
                    row.name,
                    "; ".join((*row.differs, *row.differs_else)),
                    "yes" if row.limits else "no",
                    _cell(row.reasons) or "-",
                ]
                for row in some
            ]
            parts += [
                f"{words}, with what the profile's coverage and disagreements say:",
                table(head, found),
            ]
    parts += ["All:", table(LINE, [_line(row) for row in rows])]
    return parts


def _summary(part: str, rows: list[Row]) -> list[object]:
    timed = [row for row in rows if row.plain]
    middle = [
        f"{1e3 * median([median(getattr(row, name)) for row in timed]):.1f}" if timed else "-"
        for name in ("tracing", "analysis")
    ]
    ratios = [_ratio(row) for row in timed]
    return [
        part,
        len(rows),
        sum(row.exact for row in rows),
        sum(row.exact_but_for_m for row in rows),
        sum(row.exact_in_all for row in rows),
        sum(bool(row.limits) for row in rows),
        sum(bool(row.crash) for row in rows),
        *middle,
        f"{median(ratios):.1f} [{min(ratios):.1f}, {max(ratios):.1f}]" if timed else "-",
    ]


def _line(row: Row) -> list[object]:
    if row.crash:
        return [row.part, row.name, row.expected, "crashed", *["-"] * 8]
    times = [f"{1e3 * median(v):.1f}" for v in (row.plain, row.tracing, row.analysis)]
    middle = [row.part, row.name, row.expected, row.found, row.placement, row.skip]
    return [*middle, row.states, row.values, *times, f"{_ratio(row):.1f}"]


def _ratio(row: Row) -> float:
    return median([a / b for a, b in zip(row.whole, row.plain, strict=True)])


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
