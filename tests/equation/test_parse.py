"""The parser: what it accepts, and that every mistake is one sentence with a caret."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depthgauge.equation import Block, parse, parse_init, parse_scalar, to_text
from depthgauge.equation.functions import ACTIVATIONS, INITS, NORMS
from depthgauge.equation.nodes import (
    Add,
    Arithmetic,
    Call,
    Constant,
    Define,
    Function,
    Init,
    Let,
    Linear,
    Local,
    Number,
    Opaque,
    Product,
    Scale,
    State,
    Symbol,
    Update,
    Value,
)
from depthgauge.errors import EquationError
from tests.equation.trees import blocks

h, L = State(), Symbol("L")
ROOT = Arithmetic("/", Number(1.0), Function("sqrt", (L,)))


def value(text: str) -> Value:
    (update,) = parse(text).statements
    assert isinstance(update, Update)
    return update.value


def test_one_equation_has_one_tree() -> None:
    branch = Linear("W1", h)
    tree = Add(h, Scale(ROOT, branch))
    assert value("h = h + 1/sqrt(L) * W1(h)") == tree
    assert value("h + W1(h)/sqrt(L)") == tree
    assert value("h = h + W1(h) * (1/sqrt(L))") == tree
    assert value("h = (h +  # the stream\n  W1(h)/sqrt(L)\n)\n") == tree
    assert value("h - h") == Add(h, Scale(Number(-1.0), h))
    assert value("1 - h") == Add(Constant(Number(1.0)), Scale(Number(-1.0), h))
    assert value("h*h/2") == Scale(Arithmetic("/", Number(1.0), Number(2.0)), Product(h, h))


def test_scalars_beside_the_equation_become_lets_in_front() -> None:
    equation = "h = h + a*W(h) + b"
    block = parse(equation, {"a": "1/sqrt(L)", "b": "-2*a"})
    assert block.statements[:2] == (
        Let("a", ROOT),
        Let("b", Arithmetic("*", Number(-2.0), Symbol("a"))),
    )
    assert parse(to_text(block)) == block
    assert parse("a*h", {"a": -0.5}).statements[0] == Let("a", Number(-0.5))
    assert parse("a*h", {"a": ROOT}).statements[0] == Let("a", ROOT)


def test_names_are_scalars_values_or_definitions() -> None:
    block = parse("u = 2*h; a = 2; F(x, a) = x*a + u; u = h; h = a*F(u, h)")
    assert block.statements == (
        Let("u", Scale(Number(2.0), h)),
        Let("a", Number(2.0)),
        Define("F", ("x", "a"), Add(Product(Local("x"), Local("a")), Local("u"))),
        Let("u", h),
        Update(Scale(Symbol("a"), Call("F", (Local("u"), h)))),
    )


def test_every_function_has_all_its_options_in_the_order_of_its_table() -> None:
    for name, table in {**ACTIVATIONS, **NORMS}.items():
        tree = value(f"{name}(h)")
        assert tree.options == tuple(table.items())  # type: ignore[union-attr]
    for name, table in INITS.items():
        assert parse_init(name) == Init(name, tuple(table.items()))
    tree = value('rmsnorm(h, gain=True, eps_at="outside")')
    assert tree.options == (  # type: ignore[union-attr]
        ("axis", None), ("eps", Number(1e-6)), ("eps_at", "outside"), ("gain", Number(1.0)),
        ("bias", False),
    )  # fmt: skip


def test_initialisers() -> None:
    gain = Function("sqrt", (Number(2.0),))
    assert parse_init(" kaiming ('fan_out') ") == Init("he", (("mode", "fan_out"), ("gain", gain)))
    assert parse_init("normal(a/L)", names=["a"]).option("std") == Arithmetic("/", Symbol("a"), L)
    inside = Init("constant", (("value", Symbol("a")),))
    assert parse("a = 2; h = W(h, init='constant(a)')").statements[1] == Update(
        Linear("W", h, init=inside)
    )


def test_a_weight_with_the_same_options_is_tied() -> None:
    assert value("W1(h, bias=True) + W1(h0, bias=True)")
    assert value("W(h) + W(h, bias=True) + conv3(h) + conv1(h)")  # without a name: many layers


def test_an_opaque_operation_has_a_name_values_and_m() -> None:
    assert value("opaque('encoder')") == Opaque("encoder", (), Number(0.0))
    assert value('opaque("a b", h, 2*h, m=3)') == Opaque(
        "a b", (h, Scale(Number(2.0), h)), Number(3.0)
    )
    assert value(f"opaque('{'x' * 80}', h)") == Opaque("x" * 80, (h,))
    assert value(r"opaque('\'\"\\', h)") == Opaque("'\"\\", (h,))


@pytest.mark.parametrize(
    "chain", ["relu(" * 60 + "h" + ")" * 60, "-" * 60 + "h", "+".join("h" * 61)]
)
def test_sixty_operations_may_nest_and_no_more(chain: str) -> None:
    assert parse(to_text(parse(chain))) == parse(chain)
    for more in (f"relu({chain})", f"h - ({chain})", "-" * 60 + chain, "-" * 3_000 + "h"):
        with pytest.raises(EquationError, match="nested deeper than 60"):
            parse(more)


def test_a_scalar_nests_as_deep_by_itself_as_in_an_equation() -> None:
    scalar = "-" * 60 + "L"
    assert parse(to_text(parse("a*h", {"a": scalar}))) == parse(f"a = {scalar}; a*h")
    with pytest.raises(EquationError, match="nested deeper than 60"):
        parse_scalar(f"-{scalar}")
    assert str(parse_scalar("-0")) == "Number(value=0.0)"  # there is no negative zero


HAS = "is not part of the language, which has numbers, names, + - * / ** and calls"
NAMED = 'its name in quotes first, as in opaque("scan", h, m=2)'
PRINTABLE = "is 1 to 80 printable characters"
WHOLE = "is a whole number of weight layers, as in m=2"
DEEP = (
    "the expression is nested deeper than 60 operations: "
    "bind a part of it to a name (u = ...) before"
)
MISTAKES = [
    ("__import__('os').system('x')", f"an attribute (a name after a dot) {HAS}",
     "__import__('os').system('x')", 17),
    ("h = h.weight", f"an attribute (a name after a dot) {HAS}", "h = h.weight", 6),
    ("h = h[0]", f"an index in square brackets {HAS}", "h = h[0]", 4),
    ("h = h if L else h0", f"a condition ('if' and 'else') {HAS}", "h = h if L else h0", 4),
    ("h = h + (lambda: h)", f"a lambda {HAS}", "h = h + (lambda: h)", 9),
    ("h = [x for x in h]", f"a comprehension {HAS}", "h = [x for x in h]", 4),
    ("h = h < 2", f"a comparison {HAS}", "h = h < 2", 4),
    ("h = f'{h}'", f"a formatted string {HAS}", "h = f'{h}'", 4),
    ("h = (u := h)", f"an assignment with ':=' {HAS}", "h = (u := h)", 5),
    ("h = relu(*h)", f"a '*' in front of an argument {HAS}", "h = relu(*h)", 9),
    ("h = h ^ 2", "the operator '^' is not part of the language: write ** for a power",
     "h = h ^ 2", 6),
    ("h = W2(relu(W1(h))", "this '(' is never closed", "h = W2(relu(W1(h))", 6),
    ("h = relu(h))", "this ')' closes nothing: remove it or open it before", "h = relu(h))", 11),
    ("h = relu(h]", "the '(' is closed by ']'", "h = relu(h]", 8),
    ("h = h + a", "unknown name 'a': declare it as a scalar (a=...) or bind it before",
     "h = h + a", 8),
    ("gate = h; h = h + gatte", "unknown name 'gatte' (did you mean 'gate'?): declare it "
     "as a scalar (gatte=...) or bind it before", "gate = h; h = h + gatte", 18),
    ("é = h  # é\nh = é + rellu(é)", "unknown function 'rellu' (did you mean 'relu'?)",
     "h = é + rellu(é)", 8),
    ("h = F(h)", "unknown function 'F': define it before (F(x) = ...)", "h = F(h)", 4),
    ("F(x) = F(x); h = F(h)", "the definition of 'F' cannot call 'F' itself",
     "F(x) = F(x); h = F(h)", 7),
    ("F(x) = x; h = F(h, h)", "F takes 1 value, not 2", "F(x) = x; h = F(h, h)", 19),
    ("h = L(h)", "'L' is not a function: write L * (...) for a product", "h = L(h)", 4),
    ("F(x) = x; F = h; h = h", "'F' is a definition already: use another name",
     "F(x) = x; F = h; h = h", 10),
    ("h = h + relu", "'relu' is a function: write relu(...)", "h = h + relu", 8),
    ("h = h / h", "a value cannot be divided by a value: write x * y for a gate, rmsnorm(x) to "
     "normalise", "h = h / h", 6),
    ("h = (h) ** 2", "values have no '**', only scalars have powers: write x * x for a square of a "
     "value", "h = (h) ** 2", 8),
    ("h = 2h", "'2h' is not a number: write 2*h for a product", "h = 2h", 4),
    ("h = 1e999*h", "this number is too large: the largest is about 1.8e308", "h = 1e999*h", 4),
    ("h = h +\n  W(h)", "the expression ends with '+': finish it, or put the parts that stand on "
     "several lines in parentheses", "h = h +", 6),
    ("h += W(h)", "the language has no '+=': write h = h + ...", "h += W(h)", 2),
    ("h W(h)", "cannot be read as an equation: invalid syntax", "h W(h)", 2),
    ("L = 2; h = h", "'L' cannot be assigned: the language means something else by it",
     "L = 2; h = h", 0),
    ("h = 2 + L", "the state h takes a value such as h, and this is a scalar", "h = 2 + L", 4),
    ("h = relu(h, slope=1)", "relu has no option 'slope': it takes none",
     "h = relu(h, slope=1)", 12),
    ("h = elu(h, alpha='x')", "a string cannot stand here: strings stand only in options",
     "h = elu(h, alpha='x')", 17),
    ("h = W1(h, bias=1)", "the option bias of W1 takes True or False", "h = W1(h, bias=1)", 15),
    ("h = W1(h) + W1(h, bias=True)", "the weight 'W1' stands before with other options: one name "
     "is one tied weight, so give both the same options or another name",
     "h = W1(h) + W1(h, bias=True)", 12),
    ("h = W1(h, init='he(gian=2)')", "the initialiser he has no option 'gian': it takes mode, gain",
     "h = W1(h, init='he(gian=2)')", 19),
    ("h = W1(h, init='hee')", "unknown initialiser 'hee' (did you mean 'he'?)",
     "h = W1(h, init='hee')", 16),
    ("h = conv4(h)", "conv4 is not known: kernels are odd, as in conv3(h)", "h = conv4(h)", 4),
    ("h = dropout(h, 1)", "the option p of dropout is in [0, 1)", "h = dropout(h, 1)", 15),
    ("h = rmsnorm(h, axis='width+width')", "the option axis of rmsnorm names an axis twice: keep "
     "one",
     "h = rmsnorm(h, axis='width+width')", 20),
    ("h = opaque()", f"opaque takes {NAMED}", "h = opaque()", 4),
    ("h = opaque(h, 'scan')", f"opaque takes {NAMED}", "h = opaque(h, 'scan')", 11),
    ("h = opaque(name='scan')", f"opaque takes {NAMED}", "h = opaque(name='scan')", 4),
    ("h = opaque('', h)", f"the name of opaque {PRINTABLE}", "h = opaque('', h)", 11),
    ("h = opaque('a\tb', h)", f"the name of opaque {PRINTABLE}", "h = opaque('a\tb', h)", 11),
    (f"opaque('{'x' * 81}', h)", f"the name of opaque {PRINTABLE}", None, 7),
    ("h = opaque('a', 2)", "opaque takes a value such as h, and this is a scalar",
     "h = opaque('a', 2)", 16),
    ("h = opaque('a', n=2)", "opaque has no option 'n': it takes m", "h = opaque('a', n=2)", 16),
    ("h = opaque('a', h, m=-1)", f"the option m of opaque {WHOLE}", "h = opaque('a', h, m=-1)", 21),
    ("h = opaque('a', h, m=.5)", f"the option m of opaque {WHOLE}", "h = opaque('a', h, m=.5)", 21),
    ("h = opaque('a', h, m=L)", f"the option m of opaque {WHOLE}", "h = opaque('a', h, m=L)", 21),
    ("h = h + opaque", "'opaque' is a function: write opaque(...)", "h = h + opaque", 8),
    ("opaque = h", "'opaque' cannot be assigned: the language means something else by it",
     "opaque = h", 0),
    (r"h = opaque('\d', h)", "the language has no use for a backslash: remove it",
     r"h = opaque('\d', h)", 12),
    (r"h = opaque('\', h)", "the string that ' opens is never closed", r"h = opaque('\', h)", 11),
    (r"h = h \ h0", "the language has no use for a backslash: remove it", r"h = h \ h0", 6),
    ("h = \x00", "the language has no use for a character U+0000: remove it", "h = \x00", 4),
    ("h = " + "-" * 50 + "(" * 9 + "+" * 99 + "h" + ")" * 9, DEEP, None, 4),
    ("h = " + "(" * 61 + "h" + ")" * 61, DEEP, None, 64),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message", "line", "column"), MISTAKES)
def test_a_mistake_is_a_sentence_and_a_caret(
    text: str, message: str, line: str | None, column: int
) -> None:
    with pytest.raises(EquationError) as caught:
        parse(text)
    assert caught.value.message == message
    if line is None:  # longer than the width of a message
        assert caught.value.position == column
    else:
        assert str(caught.value) == f"{message}\n  {line}\n  {' ' * column}^"


@pytest.mark.parametrize(
    ("text", "scalars", "message"),
    [
        ("  # nothing\n", {}, "the equation never assigns h: write h = ... as one statement"),
        (" \n", {}, "the equation is empty: write at least h = ..."),
        ("u = relu(h)", {}, "the equation never assigns h: write h = ... as one statement"),
        ("h" * 10_000, {}, "the equation is 10,000 characters long and the limit is 4,000: bind "
         "what it repeats to a name (u = ...) or define it (F(x) = ...)"),
        ("h=h+W(h);" * 440, {}, "the equation, written out, is 6,158 characters long and the limit "
         "is 4,000: bind what it repeats to a name (u = ...) or define it (F(x) = ...)"),
        ("h", {"a": 1}, "the scalar 'a' is given beside the equation, which never uses it: remove "
         "one or use the other"),
        ("a*h", {"a": "1/sqrt(M)"}, "the scalar 'a': unknown name 'M': declare it as a scalar "
         "(M=...) or bind it before"),
        ("a*h", {"a": "h"}, "the scalar 'a': this place takes a scalar such as 1/sqrt(L), and this "
         "is a value (computed from the state or learned)"),
        ("a*h", {"a": float("nan")}, "the scalar 'a': nan is neither a finite number nor text such "
         "as '1/sqrt(L)'"),
        ("a*h", {"a": ""}, "the scalar 'a': a scalar was expected and the text is empty"),
        ("a*h", {"a": "1; 2"}, "the scalar 'a': one scalar was expected, not two"),
        ("h", {"h": 1}, "the scalar 'h' cannot be assigned: the language means something else by "
         "it"),
        ("h", {"a b": 1}, "the scalar 'a b' is not a name: use letters, digits and '_'"),
        ("a = 2; a*h", {"a": 1}, "the scalar 'a' is given beside the equation and assigned here"),
    ],
)  # fmt: skip
def test_a_mistake_without_a_single_place(
    text: str, scalars: dict[str, str | float], message: str
) -> None:
    with pytest.raises(EquationError) as caught:
        parse(text, scalars)
    assert caught.value.message == message


def parses(text: str) -> Block | None:
    """The block, or None after an EquationError; anything else is the failure looked for."""
    for read in (parse_scalar, parse_init):
        with contextlib.suppress(EquationError):
            assert read(to_text(read(text))) == read(text)
    try:
        block = parse(text)
    except EquationError as mistake:
        place = mistake.position
    else:
        assert parse(to_text(block)) == block
        assert to_text(parse(to_text(block))) == to_text(block)
        return block
    assert place is None or 0 <= place <= len(text)
    return None


@settings(max_examples=500)
@given(st.one_of(st.text(), st.text(alphabet="hLW1aé(),=;+-*/ \n\t#'\"\\.0e[]{}:_\x00\ud800")))
def test_any_text_is_an_equation_or_an_equation_error(text: str) -> None:
    parses(text)


# fmt: off
_WORDS = st.sampled_from([
    "(", ")", ",", "=", ";", "+", "-", "*", "/", "**", "'he'", '"', "#", "\n", ".", "2", "1e999",
    "h", "h0", "L", "W", "W1", "conv3", "relu(", "rmsnorm(", "F(", "x", "a", "u", "init=", "out=",
    "bias=", "True", "None", "lambda", " if ", " else ", ":", "[", "]", "{", "}", "@", "é", "\x00",
    "\\", "==", "not ", "await ", "0x1for",
])
# fmt: on


@settings(max_examples=500)
@given(blocks(), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), _WORDS), max_size=3))
def test_a_spoilt_equation_is_an_equation_or_an_equation_error(
    block: Block, edits: list[tuple[float, int, str]]
) -> None:
    text = to_text(block)
    for where, removed, word in edits:
        at = int(where * len(text))
        text = text[:at] + word + text[at + removed :]
    assert parses(text) or edits or len(text) > 4_000


def test_definitions_that_explode_are_refused_at_once() -> None:
    chain = "F0(x) = silu(x)" + "".join(f"; F{k}(x) = F{k - 1}(F{k - 1}(x))" for k in range(1, 40))
    with pytest.raises(EquationError, match=r"operations.*once its definitions are written out"):
        parse(chain + "; h = h + W(F39(h))")
    deep = "F0(x) = " + "silu(" * 50 + "x" + ")" * 50
    deep += "".join(f"; F{k}(x) = F{k - 1}(silu(x))" for k in range(1, 110))
    with pytest.raises(EquationError, match="inside one another"):
        parse(deep + "; h = h + W(F109(h))")
    parse("; ".join(chain.split("; ")[:6]) + "; h = h + W(F5(h))")


def test_scalars_beside_the_equation_are_a_table() -> None:
    with pytest.raises(EquationError, match="scalars is 'a=1': give a table"):
        parse("h + a*W(h)", "a=1")  # type: ignore[arg-type]


def test_a_scalar_is_bound_once() -> None:
    with pytest.raises(EquationError, match="the scalar 'a' is bound before"):
        parse("a = 0.1; u = a*W(h); a = 10; h = h + a*u")
    parse("u = W(h); u = relu(u); h = h + u")
