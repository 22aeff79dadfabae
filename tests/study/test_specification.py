"""Specifications: what a file says, and one sentence for everything that it cannot mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from depthgauge.equation.text import to_text
from depthgauge.errors import SpecificationError
from depthgauge.network.spec import Network
from depthgauge.study.corridor import Corridor
from depthgauge.study.sections import Document
from depthgauge.study.specification import (
    Changes,
    Specification,
    parse_seed,
    read_specification,
)

EQUATION = "h + a * W2(gelu(W1(rmsnorm(h), out=4*n)))"
BLOCK = f'[block]\nequation = "{EQUATION}"\na = "1/sqrt(L)"\n'
DESIGN = f"""
{BLOCK}
[init]
W1 = "he"
W2 = "lecun"
[network]
depth = 96
width = 64
[run]
batch = 128
seed = [0, 1, 2]
dtype = "float32"
[corridor]
forward_drift = {{ max = 3.0 }}
gradient_ratio = {{ min = 0.5, max = 2.0 }}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def write(text: str | bytes) -> str:
        Path("spec.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return "spec.toml"

    return write


def message(path: str, changes: Changes | None = None) -> str:
    with pytest.raises(SpecificationError) as caught:
        read_specification(path, changes)
    return str(caught.value)


# --------------------------------------------------------------------- what a file says


def test_the_design_example(file: Any) -> None:
    found = read_specification(file(DESIGN))
    expected = Specification(
        Network(EQUATION, 96, 64, {"W1": "he", "W2": "lecun"}, scalars={"a": "1/sqrt(L)"}),
        batch=128,
        seed=(0, 1, 2),
        dtype="float32",
        corridor=Corridor.of(forward_drift={"max": 3}, gradient_ratio={"min": 0.5, "max": 2}),
    )
    assert found == expected
    assert found.network.branches == 96


def test_only_the_equation_is_needed(file: Any) -> None:
    found = read_specification(Path(file("[block]\nequation = 'h + W(h)'")))
    assert found == Specification(Network("h + W(h)", scalars={}, init={}))
    assert found.corridor is None
    assert (found.batch, found.seed, found.device, found.instruments) == (128, 0, "cpu", "fast")


def test_every_key(file: Any) -> None:
    found = read_specification(
        file(
            """
            [block]
            equation = '''
            u = layernorm(h)   # two statements
            h = h + b * attention(u)
            '''
            a = 2
            b = "a / 4"
            [init]
            attention.o = "zeros"
            "attention.q" = "normal(0.5)"
            default = "xavier"
            [network]
            depth = 3
            width = 16
            tokens = 4
            draws = "sequential-pcg64"
            [run]
            batch = 5
            seed = "0..3"
            dtype = "float64"
            device = "cuda:7"
            instruments = ["rivers", "dead_fraction"]
            [corridor]
            """
        )
    )
    network = found.network
    assert to_text(network.block).startswith("a = 2; b = a/4; u = layernorm(h); ")
    assert (network.depth, network.width, network.tokens, network.draws) == (
        3,
        16,
        4,
        "sequential-pcg64",
    )
    assert {name: to_text(init) for name, init in network.inits.items()} == {
        "attention.o": "zeros",
        "attention.q": "normal(std=0.5)",
        "default": "xavier",
    }
    assert (found.batch, found.seed, found.dtype) == (5, (0, 1, 2, 3), "float64")
    assert (found.device, found.instruments) == ("cuda:7", ("rivers", "dead_fraction"))
    assert found.corridor == Corridor.of()


def test_a_size_and_one_seed_and_a_byte_order_mark(file: Any) -> None:
    text = "[block]\nequation = 'h + conv3(h)'\n[network]\nsize = 4\n[run]\nseed = 7\n"
    found = read_specification(file(b"\xef\xbb\xbf" + text.encode()))
    assert (found.network.size, found.seed) == (4, 7)
    assert read_specification(file(text.replace("7", "'7'"))).seed == 7
    assert read_specification(file(text.replace("7", "[7]"))).seed == (7,)


def test_changes_go_before_the_file(file: Any) -> None:
    changes = Changes(
        scalars={"a": "0.5"}, init={"W2": "zeros"}, network={"depth": 2}, run={"seed": "0,4"}
    )
    found = read_specification(file(DESIGN), changes)
    assert (found.network.depth, found.network.width, found.seed) == (2, 64, (0, 4))
    assert found.network.inits.keys() == {"W1", "W2"}
    assert to_text(found.network.inits["W2"]) == "zeros"
    assert to_text(found.network.block).startswith("a = 0.5; ")
    # a file may leave to the command what it does not say
    incomplete = file(BLOCK.replace('a = "1/sqrt(L)"', ""))
    assert "spec.toml: block.equation: " in message(incomplete)
    assert read_specification(incomplete, Changes(scalars={"a": "1"})).network.depth == 96


@pytest.mark.parametrize(
    ("text", "seed"),
    [
        ("7", 7),
        (" 07 ", 7),
        ("0..3", (0, 1, 2, 3)),
        ("5..5", (5,)),
        ("0,3,5", (0, 3, 5)),
        ("9, 0..2", (9, 0, 1, 2)),
    ],
)
def test_seeds(text: str, seed: int | tuple[int, ...]) -> None:
    assert parse_seed(text) == seed


@pytest.mark.parametrize("text", ["", "-1", "1.5", "a", "1..", "..2", "1,,2", "1...2", "3..1"])
def test_what_is_no_seed(text: str) -> None:
    with pytest.raises(SpecificationError, match=r"^seed is '.*', (expected|but 1 is below 3)"):
        parse_seed(text)


# ---------------------------------------------------------------------- what it cannot mean


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        # the file
        ("", 'is empty; write [block] and equation = "..." under it'),
        ("# only a comment", 'is empty; write [block] and equation = "..." under it'),
        (b"[block]\nequation = '\xff'", "is not UTF-8 text: byte 21 cannot be read; save it as"),
        ("[block]\nequation 3", "is not valid TOML: Expected '=' after a key in a key/value pair"),
        ("[block]\nequation 3", "(at line 2, column 10)"),
        ("a = " + "[" * 100000, "is nested too deep to be a specification"),
        # sections
        ("[run]\nseed = 1", ": the section [block] is missing; write [block] and equation = "),
        ("equation = 'h'", ": the section [block] is missing"),
        ("block = 'h'", ": block is 'h', expected a section, [block], with keys under it"),
        (
            BLOCK + "[corridr]\n",
            ": 'corridr' is not a section (did you mean 'corridor'?); the sections are block, "
            "init, network, run, corridor",
        ),
        ("run = 3\n" + BLOCK, ": run is 3, expected a section, [run], with keys under it"),
        ("corridor = []\n" + BLOCK, ": corridor is [], expected a section, [corridor]"),
        # block
        ("[block]\nequaton = 'h'", ": block.equation is missing; is block.equaton meant to be it?"),
        ("[block]\na = 'h'", ': block.equation is missing; write equation = "..."'),
        ("[block]\nequation = 3", ": block.equation is 3, expected text in quotes"),
        (
            BLOCK + "b = [1]",
            ': block.b is [1], expected a number or text such as "1/sqrt(L)"',
        ),
        (BLOCK + "b = true", ": block.b is true, expected a number or text"),
        (BLOCK + "b = 1", ": block.equation: the scalar 'b' is given beside the equation, which"),
        (BLOCK + "b = '1/'", ": block.b: "),
        (BLOCK + "b = inf", ": block.equation: the scalar 'b': inf is neither a finite number"),
        ("[block]\nequation = 'h + F(h)'", ": block.equation: unknown function 'F'"),
        # init
        (BLOCK + "[init]\nW1 = 'hee'", ": init.W1: "),
        (
            BLOCK + "[init]\nW1 = 2",
            ': init.W1 is 2, expected text that names an initialiser, such as "he"',
        ),
        (BLOCK + "[init]\nW3 = 'he'", ": init names 'W3', but the block has W1, W2, default"),
        # network
        (
            BLOCK + "[network]\ndetph = 3",
            ": network.detph is not a key (did you mean 'depth'?); [network] has depth, width, "
            "tokens, size, draws",
        ),
        (
            BLOCK + "[network]\ndepth = 0",
            ": network.depth is 0, expected a whole number from 1 to 10000000",
        ),
        (
            BLOCK + "[network]\nwidth = 6.5",
            ": network.width is 6.5, expected a whole number from 1 to 1000000",
        ),
        (BLOCK + "[network]\nwidth = true", ": network.width is true, expected a whole number"),
        (BLOCK + "[network]\nwidth = '64'", ": network.width is '64', expected a whole number"),
        (
            BLOCK + "[network]\ndraws = 'key'",
            ": network.draws is 'key', expected one of 'keyed', 'sequential-pcg64'",
        ),
        (BLOCK + "[network]\nsize = 8", ": size is given, but the equation has no conv"),
        # run
        (BLOCK + "[run]\nbach = 8", ": run.bach is not a key (did you mean 'batch'?); [run] has"),
        (
            BLOCK + "[run]\nbatch = 0",
            ": run.batch is 0, expected a whole number of examples, at least 1",
        ),
        (
            BLOCK + "[run]\nseed = 1.5",
            ": run.seed is 1.5, expected a whole number of at least 0, a list of them, or a range "
            'such as "0..15"',
        ),
        (BLOCK + "[run]\nseed = [1, 'x']", ": run.seed is "),
        (BLOCK + "[run]\nseed = []", ": run.seed is "),
        (BLOCK + "[run]\nseed = -1", ": run.seed is -1, expected a whole number of at least 0"),
        (BLOCK + "[run]\nseed = [1, 1]", ": run.seed is (1, 1), which names a seed twice"),
        (BLOCK + "[run]\nseed = '1-2'", ": run.seed is '1-2', expected a whole number of at"),
        (BLOCK + "[run]\ndtype = 32", ": run.dtype is 32, expected text in quotes"),
        (
            BLOCK + "[run]\ndtype = 'float23'",
            ": run.dtype is 'float23', expected one of float64, float32, bfloat16, float16 (did "
            "you mean 'float32'?",
        ),
        (BLOCK + "[run]\ninstruments = 'rivrs'", ": run.instruments names 'rivrs', expected one"),
        (BLOCK + "[run]\ninstruments = [3]", ": run.instruments is "),
        # corridor
        (
            BLOCK + "[corridor]\nforward_drfit = { max = 3 }",
            ": corridor.forward_drfit: 'forward_drfit' cannot be bounded (did you mean 'forward_d",
        ),
        (
            BLOCK + "[corridor]\nforward_drift = { maxi = 3 }",
            ": corridor.forward_drift: 'maxi' is not part of the bound of forward_drift (did you",
        ),
        (
            BLOCK + "[corridor]\nforward_drift = 3",
            ": corridor.forward_drift: the bound of forward_drift is 3; give a table such as",
        ),
    ],
)
def test_one_sentence_names_file_key_and_what_came(
    file: Any, text: str | bytes, sentence: str
) -> None:
    said = message(file(text))
    assert said.startswith("spec.toml")
    assert sentence in said
    first, *caret = said.splitlines()
    assert len(caret) in (0, 2)
    assert "pydantic" not in said
    assert len(first) < 400


def test_an_equations_caret_lines_are_kept(file: Any) -> None:
    assert message(file("[block]\nequation = 'h + W2(rel(W1(h)))'")) == (
        "spec.toml: block.equation: unknown function 'rel' (did you mean 'relu'?)\n"
        "  h + W2(rel(W1(h)))\n"
        "         ^"
    )


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert message("no.toml") == "no.toml cannot be read: no such file or directory"
    Path("folder.toml").mkdir()
    assert message("folder.toml") == "folder.toml is a directory, expected a TOML file"
    assert message("folder.toml/x.toml") == (
        "folder.toml/x.toml cannot be read: no such file or directory"
    )


def test_long_values_are_cut(file: Any) -> None:
    said = message(file(BLOCK + f"[network]\ndepth = '{'9' * 500}'"))
    assert f"network.depth is '{'9' * 56}..., expected a whole number" in said


def test_the_option_is_told_from_the_file(file: Any) -> None:
    said = message(file(DESIGN), Changes(network={"depth": 0}))
    assert said.startswith("spec.toml with the options given: depth is 0, expected a whole number")


def test_every_key_says_what_it_may_hold() -> None:
    for name, field in Document.model_fields.items():
        model = field.annotation
        for key, inner in getattr(model, "model_fields", {}).items():
            assert inner.description, f"{name}.{key}"
