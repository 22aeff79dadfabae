"""The monitor sees what measure sees, leaves the run alone, and logs where the run logs."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import depthgauge as dg
from depthgauge.errors import SpecificationError, TargetError
from depthgauge.integrations.monitor import Monitor, numbers_of
from depthgauge.integrations.sinks import sink_of


def model(width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(width, width), nn.Tanh())))


def trained(steps: int, monitor: Monitor | None, net: nn.Module, dropout: bool = False) -> Tensor:
    """The weights after a few steps; the random numbers of the run are drawn in it."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        x = torch.randn(16, 8)
        loss = F.mse_loss(F.dropout(net(x), 0.5, dropout), x)
        optimizer.zero_grad()
        loss.backward()
        if monitor is not None:
            monitor(step)  # between backward and step, where gradients stand
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_a_run_that_is_looked_at_ends_with_the_same_weights():
    net = model()
    monitor = Monitor(net, torch.randn(4, 8), every=3)
    assert torch.equal(trained(10, monitor, net, True), trained(10, None, model(), True))
    assert list(monitor.looks) == [0, 3, 6, 9]


def test_what_is_logged_is_what_measure_finds():
    net, batch, seen = model(), torch.randn(4, 8), {}
    monitor = Monitor(net, batch, every=1, log=lambda numbers, step: seen.update({step: numbers}))
    monitor(5)
    summary = dg.measure(net, batch).summary()
    for name in ("forward_drift", "gradient_ratio", "dead_fraction", "nonfinite_fraction"):
        # Without quantiles small tensors are reduced together: the last digits differ.
        assert seen[5][f"depthgauge/{name}"] == pytest.approx(float(summary[name][0]), rel=1e-6)
    assert seen[5]["depthgauge/overhead"] > 0


def test_weights_that_blow_up_are_seen_and_reported():
    net, batch = model(), torch.randn(4, 8)
    breaches: list[object] = []
    corridor = {"gradient_ratio": {"min": 0.01, "max": 100}}
    monitor = Monitor(net, batch, every=1, corridor=corridor, on_breach=breaches.append)
    assert monitor(0) is not None
    assert not breaches
    assert monitor.looks[0]["margin/gradient_ratio"] > 0
    with torch.no_grad():
        net[0].get_parameter("weight").mul_(1e9)
    look = monitor(1)
    assert breaches == [look]
    assert look is not None
    assert look.numbers["margin/gradient_ratio"] < 0
    with torch.no_grad():
        net[0].get_parameter("weight").fill_(math.nan)
    assert (look := monitor(2)) is not None
    assert math.isnan(look.numbers["gradient_ratio"])


def test_a_breach_may_stop_the_run():
    class Stop(Exception):
        pass

    def stop(look):
        raise Stop

    monitor = Monitor(
        model(), torch.randn(4, 8), corridor={"gradient_ratio": {"min": 1e6}}, on_breach=stop
    )
    with pytest.raises(Stop):
        monitor(0)


def test_a_model_that_raises_does_not_end_the_run():
    monitor = Monitor(model(), torch.randn(4, 7), every=1)
    with pytest.warns(UserWarning, match="could not look at step 0: the forward pass of '0'"):
        assert monitor(0) is None
    assert monitor(1) is None  # said once
    assert sorted(monitor.failures) == [0, 1]
    assert not monitor.looks


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every is 0, expected a whole number of steps, at least 1"),
        ({"every": 1.5}, "every is 1.5"),
        ({"log": 3}, "log is of type int, expected a function"),
        ({"on_breach": print}, "without a corridor"),
        ({"corridor": {"drift": {"max": 1}}}, "'drift' cannot be bounded"),
        ({"corridor": "transprot"}, "did you mean 'transport'"),
        ({"corridor": 3}, "corridor is of type int"),
    ],
)
def test_bad_input_is_one_sentence(options, words):
    with pytest.raises(SpecificationError, match=words) as caught:
        Monitor(model(), torch.randn(4, 8), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("step", ["x", 1.5, None])
def test_a_step_is_a_whole_number_of_any_kind(step):
    monitor = Monitor(model(), torch.randn(4, 8), every=10)
    for call in (monitor, monitor.look):
        with pytest.raises(TargetError, match=r"^a step is .*, expected a whole number") as caught:
            call(step)
        assert "\n" not in str(caught.value)
    for whole in (10, np.int64(20), torch.tensor(30)):
        assert monitor(whole) is not None
    assert [*monitor.looks] == [10, 20, 30]


# ----------------------------------------------------------------------------------- where it goes


def test_several_logs_get_the_same():
    first, second = {}, {}
    log = [lambda n, s: first.update(n), lambda n, s: second.update(n)]
    Monitor(model(), torch.randn(4, 8), log=log)(0)
    assert first == second
    assert "depthgauge/forward_drift" in first


def test_mlflow_gets_finite_numbers_and_how_many_were_not():
    calls = []
    mlflow = types.SimpleNamespace(log_metrics=lambda metrics, step: calls.append((metrics, step)))
    sink_of(mlflow)({"a": 1.0, "b": math.nan}, 7)
    assert calls == [({"a": 1.0, "depthgauge/not_finite": 1.0}, 7)]


MLFLOW = """
import json, math, sys
import mlflow, torch
from torch import nn
import depthgauge as dg

net = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(8, 8), nn.Tanh())))
mlflow.set_experiment("test")
with mlflow.start_run() as run:
    monitor = dg.Monitor(net, torch.randn(4, 8), every=2, log=mlflow)
    for step in range(3):
        monitor(step)
    with torch.no_grad():
        net[0].weight.fill_(math.nan)
    monitor.look(4)
client, kept = mlflow.MlflowClient(), {}
for name in ("forward_drift", "not_finite"):
    history = client.get_metric_history(run.info.run_id, f"depthgauge/{name}")
    kept[name] = [[metric.step, metric.value] for metric in history]
print(json.dumps([kept, monitor.looks[0]["forward_drift"]]))
"""


@pytest.mark.skipif(not importlib.util.find_spec("mlflow"), reason="mlflow is not installed")
def test_mlflow_itself(tmp_path):
    """In a process of its own: importing mlflow is what another test says nobody does."""
    settings = {"MLFLOW_TRACKING_URI": tmp_path.as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", MLFLOW],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    kept, drift = json.loads(ran.stdout.splitlines()[-1])
    assert kept["forward_drift"] == [[0, drift], [2, drift]]
    assert [step for step, lost in kept["not_finite"] if lost] == [4]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        monitor = Monitor(model(), torch.randn(4, 8), log=writer, every=2)
        for step in range(4):
            monitor(step)
    found = events.EventAccumulator(str(tmp_path)).Reload()
    drift = found.Scalars("depthgauge/forward_drift")
    assert [event.step for event in drift] == [0, 2]
    assert drift[0].value == pytest.approx(monitor.looks[0]["forward_drift"], rel=1e-6)


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setattr(sys, "exit", sys.exit)  # it puts one of its own there, and leaves it
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    with wandb.init(project="test", dir=str(tmp_path), settings=wandb.Settings()) as run:
        Monitor(model(), torch.randn(4, 8), log=run)(0)
        run.log({}, step=1)  # a step is kept when the next begins
        assert run.summary["depthgauge/forward_drift"] > 1
    assert list(tmp_path.rglob("*.wandb"))


def test_nothing_is_imported_for_a_log_that_is_not_there():
    assert "mlflow" not in sys.modules
    assert sink_of(None)({"a": 1.0}, 0) is None


def test_numbers_are_those_of_the_summary():
    profile = dg.measure(model(), torch.randn(4, 8), instruments="rivers")
    found = numbers_of(profile)
    assert found["forward_drift"] == float(profile.summary()["forward_drift"][0])
    assert "correlation_last" not in found


def test_the_page_of_the_monitor_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    exec(compile(code, "monitor.md", "exec"), {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["0", "10", "20"]


def test_a_corridor_by_its_name() -> None:
    look = Monitor(model(), torch.randn(4, 8), every=1, corridor="transport")(0)
    assert look is not None
    assert look.verdict is not None
    assert look.verdict.state in ("pass", "warn", "fail")
