"""Tools of the neighbourhood on one small GPT, each beside a plain pass in a process of its own.

Each package goes into a virtual environment of its own that shares nothing with this project's. One
that cannot be installed is listed without a number. ``--venvs FOLDER`` keeps the environments and
takes those that are there.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from benchmarks.harness import PAUSE, median, publish, ratio, table

ROUNDS, CASE = 5, "gpt"
#: Counted calls of a turn; one where a call takes longer than a second.
CALLS = 3
#: Seconds that an installation may take.
INSTALLING = 300

Pass = Callable[[], object]
Prepare = Callable[[Any, Any], Pass]


# ------------------------------------------------------------------------------- the tools


def base(model: Any, batch: Any) -> Pass:
    from depthgauge import measure

    return functools.partial(measure, model, batch, instruments="rivers,branches")


def full(model: Any, batch: Any) -> Pass:
    from depthgauge import measure

    return functools.partial(measure, model, batch)


def lean(model: Any, batch: Any) -> Pass:
    from benchmarks import modules

    return functools.partial(modules.lean, model, batch, modules.CASES[CASE].blocks(model))


def every_module(model: Any, batch: Any) -> Pass:
    """As tensor-tracker does it: hooks on every module, a number for each output and gradient."""
    from benchmarks.modules import plain

    def run() -> list[tuple[str, str, float]]:
        seen: list[tuple[str, str, float]] = []

        def forward(name: str, module: Any, inputs: Any, output: Any) -> None:
            seen.append((name, "forward", float(output.detach().std())))

        def backward(name: str, module: Any, inputs: Any, outputs: Any) -> None:
            seen.extend((name, "backward", float(g.std())) for g in outputs if g is not None)

        handles = []
        for name, module in model.named_modules():
            if not isinstance(module, importlib.import_module("torch").nn.ModuleList):
                handles.append(module.register_forward_hook(functools.partial(forward, name)))
                handles.append(
                    module.register_full_backward_hook(functools.partial(backward, name))
                )
        plain(model, batch)
        for handle in handles:
            handle.remove()
        return seen

    return run


def mup(model: Any, batch: Any) -> Pass:
    """One step at one width with a learning rate of 0: l1 of every module's output."""
    check = importlib.import_module("mup.coord_check").get_coord_data
    data = [(batch, batch.flatten())]  # each token is its own target

    def run() -> object:
        return check(
            {128: lambda: model},
            data,
            optimizer="sgd",
            lr=0.0,
            mup=False,
            nsteps=1,
            cuda=False,
            flatten_output=True,
            show_progress=False,
        )

    return run


def torch_audit(model: Any, batch: Any) -> Pass:
    """Every phase audited in every step, with the validators that it loads itself."""
    torch: Any = importlib.import_module("torch")
    auditor = importlib.import_module("torch_audit").Auditor
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def run() -> object:
        with auditor(model, optimizer=optimizer, every_n_steps=1) as audit:
            output = audit.forward(batch)
            audit.backward((output * torch.randn_like(output)).sum())
            audit.optimizer_step()
        model.zero_grad(set_to_none=True)
        return audit

    return run


def wandb_watch(model: Any, batch: Any) -> Pass:
    """Histograms of all gradients and parameters in every step, written to a file offline."""
    from benchmarks.modules import plain

    os.environ |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    wandb = importlib.import_module("wandb")
    folder = tempfile.mkdtemp()
    run = wandb.init(mode="offline", dir=folder, project="benchmark")
    run.watch(model, log="all", log_freq=1)

    def step() -> None:
        plain(model, batch)
        run.log({"step": 0})

    return step


def torchlens(model: Any, batch: Any) -> Pass:
    """Every operation's output kept, and its gradient."""
    lens = importlib.import_module("torchlens")
    torch: Any = importlib.import_module("torch")

    def run() -> object:
        trace = lens.trace(model, batch, capture=lens.options.CaptureOptions(save_grads="all"))
        output = trace[trace.output_layers[0]].out
        trace.log_backward((output * torch.randn_like(output)).sum())
        model.zero_grad(set_to_none=True)
        return trace

    return run


@dataclass(frozen=True)
class Tool:
    title: str
    reads: str
    prepare: Prepare
    package: str = ""


TOOLS: dict[str, Tool] = {
    "lean": Tool("lean hooks by hand", "state RMS and max, gradient RMS of every block", lean),
    "base": Tool(
        "depthgauge, rivers and branches",
        "streams found; RMS, mean, max, non-finite of states and gradients; every branch's RMS",
        base,
    ),
    "full": Tool(
        "depthgauge, every instrument", "that, quantiles, and the derivatives of activations", full
    ),
    "modules": Tool(
        "hooks on every module by hand (as tensor-tracker)",
        "standard deviation of every module's output and of its gradient",
        every_module,
    ),
    "mup": Tool("mup coordinate check", "l1 of every module's output, one step", mup, "mup"),
    "audit": Tool(
        "torch-audit", "findings of its rules in every phase", torch_audit, "torch-audit"
    ),
    "wandb": Tool(
        "wandb.watch, offline", "histograms of parameters and their gradients", wandb_watch, "wandb"
    ),
    "torchlens": Tool(
        "torchlens", "every operation's output and gradient, kept", torchlens, "torchlens"
    ),
}


# ------------------------------------------------------------------------------- processes


def serve(name: str) -> None:
    """Answer every line of standard input with the seconds of a plain pass and the tool's."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a tool prints is no answer

    def answer(content: object) -> None:
        print(json.dumps(content), file=answers, flush=True)

    try:
        from benchmarks import modules

        model, batch = modules.built(CASE)
        untouched, _ = modules.built(CASE)  # the tool may leave hooks on its own
        plain = functools.partial(modules.plain, untouched, batch)
        job = TOOLS[name].prepare(model, batch)
        job()
        start = time.perf_counter()
        job()
        calls = CALLS if time.perf_counter() - start < 1 else 1
        package = TOOLS[name].package
        answer({"version": version(package) if package else ""})
        for _ in sys.stdin:
            found = modules.side_by_side({"plain": plain, "tool": job}, 1, calls)
            answer({kind: seconds[0] for kind, seconds in found.items()})
    except Exception as error:
        said = str(error).strip().splitlines()
        answer({"error": f"{type(error).__name__}: {said[0] if said else 'no message'}"})


class Worker:
    """A tool in a process of its own, with the interpreter that has it."""

    def __init__(self, name: str, interpreter: Path) -> None:
        command = [str(interpreter), "-m", "benchmarks.bench_neighbours", "--serve", name]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in: IO[str] = self._process.stdin
        self._out: IO[str] = self._process.stdout
        self.seconds: dict[str, list[float]] = {"plain": [], "tool": []}
        self.error = ""
        self.version = str(self._answer().get("version", ""))

    def turn(self) -> None:
        if self.error:
            return
        time.sleep(PAUSE)
        with contextlib.suppress(BrokenPipeError):
            print(file=self._in, flush=True)
        found = self._answer()
        for kind, values in self.seconds.items():
            if kind in found:
                values.append(found[kind])

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._in.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _answer(self) -> dict[str, Any]:
        line = self._out.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
        self.error = str(found.get("error", ""))
        return found


def installed(tool: Tool, folder: Path) -> Path | None:
    """The interpreter of an environment that has the tool, or None where it cannot be had."""
    if not tool.package:
        return Path(sys.executable)
    interpreter = folder / tool.package / "bin" / "python"
    if interpreter.exists():
        return interpreter
    wanted = [f"torch=={version('torch')}", "numpy", tool.package]
    command = [str(interpreter), "-m", "pip", "install", "--quiet", *wanted]
    print(f"installing {tool.package}", file=sys.stderr)
    try:
        venv.create(folder / tool.package, with_pip=True)
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALLING)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError):
        return None
    return interpreter


# ---------------------------------------------------------------------------------- report


def main(arguments: Sequence[str] | None = None) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=TOOLS, help=argparse.SUPPRESS)
    parser.add_argument("--venvs", type=Path, help="where the environments are kept")
    chosen = parser.parse_args(arguments)
    if chosen.serve:
        serve(chosen.serve)
        return 0
    with contextlib.ExitStack() as stack:
        folder = chosen.venvs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers: dict[str, Worker] = {}
        for name, tool in TOOLS.items():
            if (interpreter := installed(tool, folder)) is not None:
                workers[name] = Worker(name, interpreter)
        for _ in range(ROUNDS):
            for worker in workers.values():
                worker.turn()
        for worker in workers.values():
            worker.close()
    report(workers)
    return 0


def report(workers: dict[str, Worker]) -> None:
    rows = []
    for name, tool in TOOLS.items():
        worker = workers.get(name)
        title = f"{tool.title} {worker.version}".strip() if worker else tool.title
        if worker is None or worker.error:
            why = f"failed: {worker.error}" if worker else "not installed here"
            rows.append([title, tool.reads, "-", "-", why.replace("|", "/")])
            continue
        plain, own = worker.seconds["plain"], worker.seconds["tool"]
        times = [f"{1e3 * median(plain):.1f}", f"{1e3 * median(own):.1f}"]
        rows.append([title, tool.reads, *times, ratio(own, plain)])
    from benchmarks.modules import CASES

    publish(
        "neighbours",
        "Neighbours",
        [
            f"On one model: {CASES[CASE].title}; float32, one torch thread. Each tool has a "
            f"process and, where it is a package, an environment of its own, in which it and a "
            f"plain pass (forward, backward from a random cotangent, gradients of all parameters) "
            f"run by turns; the ratio is to that plain pass. Putting hooks on and taking them off "
            f"is counted, but for wandb.watch, which stays on.",
            table(["tool", "reads", "plain ms", "ms", "ratio"], rows),
        ],
        ROUNDS,
    )


if __name__ == "__main__":
    sys.exit(main())
