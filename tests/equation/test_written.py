"""What names stand for: an equation written out is the same function of the state."""

from __future__ import annotations

import pytest

from depthgauge.equation.nodes import Block, Local, State, rewrite
from depthgauge.equation.parse import parse
from depthgauge.equation.text import to_text
from depthgauge.equation.written import state_name, with_scalars, without_inits, written_out


def shown(text: str, scalars: dict[str, str] | None = None) -> list[str]:
    return [to_text(value) for value in written_out(parse(text, scalars))]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("u = rmsnorm(h); h = h + W2(relu(W1(u)))", "h + W2(relu(W1(rmsnorm(h))))"),
        ("a = 2/L; h = h + a * W(h)", "h + 2/L * W(h)"),
        ("a = 2; b = a/L; h = h + b * W(h)", "h + 2/L * W(h)"),
        ("F(x) = W(tanh(x)); h = h + F(h)", "h + W(tanh(h))"),
        ("F(x) = W(x); G(x) = F(tanh(x)); h = h + G(h)", "h + W(tanh(h))"),
        ("F(x) = x + h; u = F(W(h)); h = u", "W(h) + h"),
    ],
)
def test_names_say_what_they_stand_for(one: str, other: str) -> None:
    assert shown(one) == shown(other)


def test_a_scalar_given_beside_the_equation_is_put_in() -> None:
    assert shown("h + a * W(h)", {"a": "1/sqrt(L)"}) == shown("h + 1/sqrt(L) * W(h)")


def test_a_name_keeps_the_state_that_it_read() -> None:
    kept = written_out(parse("u = W1(h); h = W2(h); h = h + u"))
    late = written_out(parse("h = W2(h); u = W1(h); h = h + u"))
    assert kept != late
    first, second = (Local(state_name(k)) for k in (0, 1))
    assert to_text(kept[1]) == "h.1 + W1(h.0)"
    assert to_text(late[1]) == "h.1 + W1(h.1)"
    for tree in kept:
        rewrite(tree, lambda node: pytest.fail("a bare h") if isinstance(node, State) else node)
    assert first != second


def test_a_definition_reads_the_state_where_it_is_called() -> None:
    assert shown("F(x) = x + h; h = W1(h); h = F(W2(h))")[1] == "W2(h.1) + h.1"


def test_scalars_alone_leave_names_of_values() -> None:
    block = with_scalars(parse("a = 3; u = W(h); h = h + a * u"))
    assert to_text(block) == "u = W(h); h = h + 3 * u"


def test_initialisers_are_taken_out_of_every_kind_of_layer() -> None:
    text = 'h + attention(W(h, init="he"), init="zeros")'
    bare = without_inits(parse(text))
    assert isinstance(bare, Block)
    assert to_text(bare) == "h = h + attention(W(h))"
    assert "init" in to_text(parse(text))
