"""Small networks run in one thread of PyTorch's, others in those that there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depthgauge as dg
from depthgauge.network.threads import alone, passes
from depthgauge.study.cases import case_of
from depthgauge.study.commission import run as running
from depthgauge.study.commission.run import GATES, commission
from depthgauge.study.small import unshared

EQUATION = "h + W2(gelu(W1(rmsnorm(h), out=4*n)))/sqrt(L)"
SMALL: dict[str, Any] = dict(depth=3, width=8, batch=4, seed=[0, 1], depths=[2], vary=["scale*2"])


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("equation", "sizes", "threads"),
    [
        (EQUATION, dict(width=64, batch=64), 1),
        (EQUATION, dict(width=512, batch=64), 3),
        (EQUATION, dict(width=64, batch=512), 3),
        ("h + W(attention(h))", dict(width=64, batch=8, tokens=16), 1),
        ("h + W(attention(h))", dict(width=64, batch=8, tokens=1024), 3),
        ("h + conv3(relu(h))", dict(width=8, batch=8, size=8), 1),
        ("h + conv3(relu(h))", dict(width=64, batch=8, size=16), 3),
    ],
)
def test_the_largest_product_decides(equation: str, sizes: dict[str, Any], threads: int) -> None:
    with unshared(case_of(equation, depth=2, **sizes)):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize(("width", "threads"), [(32, 1), (1024, 3)])
def test_of_code(width: int, threads: int) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.up(x)  # type: ignore[no-any-return]

    def build() -> tuple[nn.Module, Tensor]:
        return nn.Sequential(Block(), Block()), torch.randn(16, width)

    state = torch.get_rng_state()
    with unshared(case_of(build)):
        assert torch.get_num_threads() == threads
    assert torch.equal(state, torch.get_rng_state())


def test_the_number_of_threads_is_put_back() -> None:
    """After an error, inside one another, and beside passes in other threads."""
    with pytest.raises(KeyboardInterrupt), alone():
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 3
    with alone():
        with alone(), passes(1) as submit:
            assert submit(torch.get_num_threads).result() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def test_a_commission_is_the_same_whatever_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that was interrupted and went on with another number of them."""
    asked: list[int] = []

    def seen(question: Any, plan: Any, bench: Any) -> Any:
        asked.append(torch.get_num_threads())
        if stop and question.name == "directions":
            raise KeyboardInterrupt
        return question.run(plan, bench)

    monkeypatch.setattr(running, "_answered", seen)
    stop = True
    with pytest.raises(KeyboardInterrupt):
        commission(EQUATION, tmp_path / "three", **SMALL)
    assert torch.get_num_threads() == 3
    stop = False
    torch.set_num_threads(2)
    commission(EQUATION, tmp_path / "three", resume=True, **SMALL)
    torch.set_num_threads(1)
    commission(EQUATION, tmp_path / "one", **SMALL)
    assert set(asked) == {1}
    assert len(asked) == 2 * len(GATES) + 1
    one, three = (dg.read_record(tmp_path / name) for name in ("one", "three"))
    assert one.record.fingerprint == three.record.fingerprint


def test_a_large_one_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def seen(question: Any, plan: Any, bench: Any) -> Any:
        assert torch.get_num_threads() == 3
        raise Seen

    monkeypatch.setattr(running, "_answered", seen)
    with pytest.raises(Seen):
        commission(EQUATION, tmp_path / "record", **{**SMALL, "width": 1024})
