"""The recorder follows modules by ``Module.__call__``, which is PyTorch's own again afterwards."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from depthgauge import measure
from depthgauge.errors import ModelError
from depthgauge.trace.inventory import inventory
from depthgauge.trace.recorder import Recorder

OWN = nn.Module.__call__


def mlp(depth: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth)))


def paths(recorder: Recorder) -> list[str]:
    return [call.path for call in recorder.graph.calls[1:]]


def test_calls_are_recorded_while_it_lasts_and_not_afterwards():
    model, x = mlp(), torch.randn(2, 4)
    with Recorder(inventory(model)) as recorder:
        model(x)
        assert nn.Module.__call__ is not OWN
    assert nn.Module.__call__ is OWN
    assert paths(recorder) == ["", "0", "1", "2"]
    model(x)
    assert len(recorder.graph.calls) == 5


def test_one_recorder_inside_another_records_for_both():
    model, x = mlp(2), torch.randn(2, 4)
    with Recorder(inventory(model)) as outer:
        with Recorder(inventory(model)) as inner:
            model(x)
        model[0](x)
    assert paths(inner) == ["", "0", "1"]
    assert paths(outer) == ["", "0", "1", "0"]
    assert nn.Module.__call__ is OWN


def test_the_call_is_pytorchs_own_after_an_exception():
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("on purpose")

    with pytest.raises(ModelError, match="'1' \\(Raises\\)"):
        measure(nn.Sequential(nn.Linear(4, 4), Raises()), torch.randn(2, 4))
    assert nn.Module.__call__ is OWN


def test_the_users_own_hooks_still_run():
    model, seen = mlp(2), []
    model[0].register_forward_pre_hook(lambda m, args: seen.append("before"))
    model[1].register_forward_hook(lambda m, args, out: seen.append("after"))
    measure(model, torch.randn(2, 4), instruments="rivers")
    assert seen == ["before", "after"]


def test_two_threads_record_their_own_models():
    """Whoever ends first leaves the other's recording alone."""
    found: dict[str, list[str]] = {}
    both, one_ended = threading.Barrier(2), threading.Event()

    def job(name: str, depth: int, last: bool) -> None:
        model = mlp(depth)
        with Recorder(inventory(model)) as recorder:
            both.wait(10)
            model(torch.randn(2, 4))
            if last:
                assert one_ended.wait(10)
                model(torch.randn(2, 4))
        found[name] = paths(recorder)
        one_ended.set()

    threads = [threading.Thread(target=job, args=a) for a in (("a", 1, False), ("b", 2, True))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == {"a": ["", "0"], "b": ["", "0", "1"] * 2}
    assert nn.Module.__call__ is OWN
