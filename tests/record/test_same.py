"""One block in other words: what counts as the same, held against what both compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from depthgauge.equation.parse import parse
from depthgauge.equation.text import to_text
from depthgauge.network.spec import Network
from depthgauge.record.difference import difference
from depthgauge.record.document import Subject
from depthgauge.record.folder import read, write
from depthgauge.record.same import OTHER_WORDS, as_written
from depthgauge.record.subject import equation_subject, subject_of
from depthgauge.record.verify import verify
from depthgauge.study.specification import Specification
from tests.record import factory

BLOCK = "a = 1/sqrt(L); h = h + a * W2(relu(W1(rmsnorm(h))))"
GATE = "u = rmsnorm(h, gain=1); h = h + W2(silu(W1(u)) * W3(u))"
SCALARS = "s = scalar(0.5); h = h + s * W1(relu(h)); h = h + s * W2(h)"

SAME = (
    (BLOCK, "b = 1/sqrt(L); h = h + b * W2(relu(W1(rmsnorm(h))))"),
    (BLOCK, "h = h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"),
    (BLOCK, "h = h + L**-0.5 * W2(relu(W1(rmsnorm(h))))"),
    (BLOCK, "F(x) = W2(relu(W1(x))); h = h + F(rmsnorm(h))/sqrt(L)"),
    (BLOCK, "u = rmsnorm(h); v = W2(relu(W1(u))); h = h + v/sqrt(L)"),
    (BLOCK, "h = h + W2(relu(W1(rmsnorm(h))))/sqrt(depth)"),
    (GATE, "v = rmsnorm(h, gain=1); h = h + W2(silu(W1(v)) * W3(v))"),
    (SCALARS, "t = scalar(0.5); h = h + t * W1(relu(h)); h = h + t * W2(h)"),
)
OTHERS = (
    (BLOCK, "h = h + W2(gelu(W1(rmsnorm(h))))/sqrt(L)"),
    (BLOCK, "h = h + W2(relu(W1(h)))/sqrt(L)"),
    (BLOCK, "h = rmsnorm(h + W2(relu(W1(h)))/sqrt(L))"),
    (BLOCK, "h = h + W2(relu(W1(rmsnorm(h, eps=1e-3))))/sqrt(L)"),
    (BLOCK, "h = h + W2(relu(W1(rmsnorm(h))))/L"),
    (BLOCK, "h = h + W2(relu(W1(rmsnorm(h))))/sqrt(L + 1e-6)"),
    (BLOCK, "h = h + W2(relu(W1(rmsnorm(h))))/sqrt(l)"),
    (BLOCK, "h = h + W1(relu(W2(rmsnorm(h))))/sqrt(L)"),  # the layers trade their weights
    (BLOCK, "h = h + V2(relu(W1(rmsnorm(h))))/sqrt(L)".replace("V2", "W5")),
    (BLOCK, "h = h - W2(relu(W1(rmsnorm(h))))/sqrt(L)"),
    (BLOCK, "h = h + W2(relu(W1(rmsnorm(h), bias=True)))/sqrt(L)"),
    (BLOCK, "h = h + W2(relu(W1(rmsnorm(h), out=2*n)))/sqrt(L)"),
    (BLOCK, "h = 2*h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"),
    # What is learned once is not what is learned twice.
    (GATE, "h = h + W2(silu(W1(rmsnorm(h, gain=1))) * W3(rmsnorm(h, gain=1)))"),
    (SCALARS, "h = h + scalar(0.5) * W1(relu(h)); h = h + scalar(0.5) * W2(h)"),
    # Drawn once is not drawn anew.
    ("u = dropout(h, 0.5); h = h + W1(u) * W2(u)",
     "D(x) = dropout(x, 0.5); h = h + W1(D(h)) * W2(D(h))"),
)  # fmt: skip


def subject(equation: str, **given: object) -> Subject:
    network = Network(equation, depth=4, width=8, **given)  # type: ignore[arg-type]
    return subject_of(Specification(network, 4, seed=0))


def output(equation: str) -> torch.Tensor:
    network = Network(equation, depth=4, width=8)
    module = network.module(0, dtype=torch.float64).eval()
    x = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found: torch.Tensor = module(x)
    return found


@pytest.mark.parametrize(("one", "other"), SAME)
def test_names_definitions_and_spellings_do_not_count(one: str, other: str) -> None:
    torch.testing.assert_close(output(one), output(other), rtol=1e-12, atol=1e-12)
    for before, after in ((one, other), (other, one)):
        first, second = subject(before), subject(after)
        assert first.equation != second.equation
        found, note = as_written(first, second)
        assert note == OTHER_WORDS
        words = {"target": second.target}
        assert found == first.model_copy(update=words)
        assert as_written(first, equation_subject(first, after))[1] == OTHER_WORDS


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_what_is_computed_or_learned_otherwise_counts(one: str, other: str) -> None:
    for before, after in ((one, other), (other, one)):
        second = subject(after)
        assert as_written(subject(before), second) == (second, "")


def test_a_spelling_counts_at_every_depth_that_is_meant() -> None:
    """1/sqrt(4) is 1/sqrt(L) of four branches, and of no more."""
    first = subject("h + W2(relu(W1(h)))/sqrt(L)")
    for depth, note in ((4, OTHER_WORDS), (8, "")):
        today = equation_subject(first, "h + W2(relu(W1(h)))/sqrt(4)")
        assert as_written(first, today.model_copy(update={"depth": depth, "branches": depth}))[
            1
        ] == note  # fmt: skip


def test_initialisers_go_with_the_equation_that_names_them() -> None:
    inside = 'h + W2(relu(W1(h, init="he")))'
    first = subject(inside)
    # Moved beside the equation they are the same, and named otherwise in it they are not.
    assert as_written(first, subject("h + W2(relu(W1(h)))", init={"W1": "he"}))[1] == OTHER_WORDS
    for text, init in (
        ('h + W2(relu(W1(h, init="zeros")))', "zeros"),
        ("h + W2(relu(W1(h)))", None),
    ):
        today = equation_subject(first, text)
        assert today.init.get("W1") == init
        assert today.init["W2"] == first.init["W2"]
    assert equation_subject(first, inside).init == first.init


def test_a_record_holds_for_the_same_block_with_a_note(tmp_path: Path) -> None:
    place = tmp_path / "record"
    write(place, factory.record(), factory.arrays())
    text = to_text(parse("h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"))
    found = verify(place, factory.subject(equation=text, scalars={}))
    assert (found.state, found.reasons, found.notes) == ("valid", (), (OTHER_WORDS,))
    assert found.to_dict()["notes"] == [OTHER_WORDS]
    assert str(found).splitlines() == [f"{place}: valid", f"  {OTHER_WORDS}"]
    deeper = factory.subject(equation=text, scalars={}, depth=128, branches=128, m=(2,) * 128)
    assert [str(reason) for reason in verify(place, deeper).reasons] == ["depth 96 -> 128"]


def test_two_records_of_one_block_are_of_one_model(tmp_path: Path) -> None:
    text = to_text(parse("h + W2(relu(W1(rmsnorm(h))))/sqrt(L)"))
    other = factory.record(subject=factory.subject(equation=text, scalars={}))
    for name, record in (("left", factory.record()), ("right", other)):
        write(tmp_path / name, record, factory.arrays())
    found = difference(read(tmp_path / "left"), read(tmp_path / "right"))
    assert found.same_model
    assert found.same_subject
