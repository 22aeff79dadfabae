"""The command on Python code: the examples, and what goes wrong in a user's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Command

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

#: File, options, branches of each stream, norm flags of the first, blocks, an equation's beginning.
MODELS = {
    "gpt2": (
        (["--arg", "layers=3"], [6], ["in"], 3),
        "3 x [h = h + attention(layernorm(h)); h = h + W(gelu(W(layernorm(h))))]",
    ),
    "llama": (
        ([], [8], ["in"], 4),
        '4 x [h = h + opaque("attention, rotary, 2 of 4 key heads", rmsnorm(h), m=4);',
    ),
    "bert": (
        ([], [8], ["stream"], 4),
        "4 x [h = layernorm(h + attention(h)); h = layernorm(h + W(gelu(W(h))))]",
    ),
    "t5": (
        ([], [6, 9], ["in"], 7),
        'encoder.block: 3 x [h = h + opaque("attention, masked", rmsnorm(h), m=4);',
    ),
    "resnet": (
        (["--input", "float 4x3x16x16"], [6], ["inner", "out"], 6),
        "2 x [h = relu(h + batchnorm(conv3(relu(batchnorm(conv3(h))))))];",
    ),
    "mamba": (([], [3], ["in"], 3), '3 x [h = h + opaque("MambaMixer", rmsnorm(h), m=5)]'),
    "unet": (
        ([], [3], ["in", "inner"], 5),
        "h = h + conv3(silu(groupnorm(conv3(silu(groupnorm(h))))));",
    ),
}

#: The document's keys, a contract.
KEYS = {
    "target", "equation", "depth", "branches", "streams", "disagreements", "sites", "coverage",
    "findings", "verdict", "overhead",
}  # fmt: skip
STREAM = {
    "name", "branches", "inner", "projected", "parallel", "norm_at", "skip", "m", "segments",
    "states",
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_examples(command: Command, name: str) -> None:
    (options, branches, norm_at, depth), equation = MODELS[name]
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 40
    ran = command("measure", f"{path}:build", *options, "--json")
    assert ran.status == 0, ran.err
    found = ran.document
    assert set(found) >= KEYS
    assert [stream["branches"] for stream in found["streams"]] == branches
    assert found["branches"] == sum(branches)
    assert found["streams"][0]["norm_at"] == norm_at
    assert found["depth"] == depth
    assert found["equation"].startswith(equation)
    assert found["overhead"] > 1
    for stream in found["streams"]:
        assert set(stream) >= STREAM
        assert len(stream["m"]) == stream["branches"]
    states = [site for site in found["sites"] if site["role"] == "state"]
    assert len(states) == sum(stream["states"] for stream in found["streams"])
    for site in states:
        assert site["state_rms"] > 0
        assert site["gradient_rms"] > 0
    added = [site for site in found["sites"] if site["role"] == "branch"]
    assert sum(branches) == len(added)
    for site in added:
        assert site["branch_rms"] > 0
        assert -1 <= site["branch_stream_cosine"] <= 1


def test_the_screen_says_the_equation_first_and_the_overhead_last(command: Command) -> None:
    ran = command("measure", f"{EXAMPLES / 'unet.py'}:build")
    lines = ran.out.splitlines()
    assert lines[0].startswith("h = h + conv3(silu(groupnorm(")
    assert lines[1].startswith("5 blocks, 3 residual branches of 2 weight layers, skip identity")
    assert any(line.startswith("two tests: ") for line in lines)
    assert lines[-1].startswith("measured 5 blocks in ")
    assert lines[-1].endswith(" times the model's own time; no corridor was declared")


def test_quiet_output_and_file(command: Command, tmp_path: Path) -> None:
    target, path = f"{EXAMPLES / 'unet.py'}:build", tmp_path / "profile.json"
    ran = command("measure", target, "--quiet", "-o", path)
    assert ran.out.count("\n") == 1
    assert json.loads(path.read_text())["target"] == target


def test_one_seed_one_answer(command: Command) -> None:
    target = f"{EXAMPLES / 'unet.py'}:build"
    one, two, other = (
        command("measure", target, "--json", "--seed", seed).document["sites"] for seed in (3, 3, 4)
    )
    assert one == two
    assert one != other


def test_precision_converts_model_and_batch(command: Command) -> None:
    target = f"{EXAMPLES / 'unet.py'}:build"
    assert command("measure", target, "--json", "--dtype", "float64").document["dtype"] == "float64"


def test_include_and_exclude(command: Command) -> None:
    target = f"{EXAMPLES / 'unet.py'}:build"
    some = command("measure", target, "--json", "--include", "^up").document["sites"]
    assert {site["path"].split(".")[0] for site in some} == {"up"}
    rest = command("measure", target, "--json", "--exclude", "^up").document["sites"]
    assert "up" not in {site["path"].split(".")[0] for site in rest}


BROKEN = """
import torch
from torch import nn

class Inner(nn.Module):
    def forward(self, x):
        return x @ torch.zeros(3, 3)

class Talks(nn.Linear):
    def forward(self, x):
        print("hello from forward")
        return super().forward(x)

def build():
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Inner())), torch.randn(2, 4)

def talks():
    print("hello from build")
    return Talks(4, 4), torch.randn(2, 4)

def no_batch():
    return nn.Linear(4, 4)

def meta():
    return nn.Linear(4, 4, device="meta"), torch.randn(2, 4)

def backward():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()
        @staticmethod
        def backward(ctx, g):
            raise RuntimeError("no way back")
    class Model(nn.Linear):
        def forward(self, x):
            return Broken.apply(super().forward(x))
    return Model(4, 4), torch.randn(2, 4)
"""

FAILURES = [
    (
        "build",
        [],
        "the forward pass of '1.1' (Inner) raised RuntimeError: mat1 and mat2 shapes cannot be "
        "multiplied (2x4 and 3x3)",
    ),
    (
        "no_batch",
        [],
        "'{target}' gives no batch; return (module, batch) or give --input, such as --input "
        '"float 8x3x32x32"',
    ),
    (
        "meta",
        [],
        "parameter 'weight' is on the meta device, which holds no numbers; call "
        "model.to_empty(device='cpu') and initialise the model before it is measured",
    ),
    ("backward", [], "the backward pass raised RuntimeError: no way back"),
    (
        "no_batch",
        ["--input", "float 2x5"],
        "the forward pass of the model (Linear) raised RuntimeError: mat1 and mat2 shapes cannot "
        "be multiplied (2x5 and 4x4)",
    ),
    (
        "no_batch",
        ["--input", "float 2x4", "--include", "("],
        "include is '(', expected a regular expression on module names (missing ), unterminated "
        "subpattern at position 0)",
    ),
    (
        "no_batch",
        ["--input", "complex 2x4"],
        "input is 'complex 2x4', but complex numbers are not measured; give float, int or bool",
    ),
]


@pytest.mark.parametrize(("name", "options", "sentence"), FAILURES)
@pytest.mark.parametrize("json_too", [False, True], ids=["screen", "json"])
def test_failures_are_one_sentence_and_status_2(
    command: Command,
    tmp_path: Path,
    name: str,
    options: list[str],
    sentence: str,
    json_too: bool,
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    target = f"{tmp_path / 'broken.py'}:{name}"
    out = tmp_path / "out.json"
    ran = command("measure", target, *options, *(["--json"] if json_too else []), "-o", out)
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err == f"depthgauge: {sentence.format(target=target)}\n"
    assert not out.exists()


def test_what_a_model_prints_is_not_the_document(command: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    ran = command("measure", f"{tmp_path / 'broken.py'}:talks", "--json")
    assert ran.document["depth"] == 1
    assert "hello from build" in ran.err
    assert "hello from forward" in ran.err


ALIKE = """
import torch
from torch import nn


def build(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*layers), torch.ones(6, 1) * torch.randn(1, 8)
"""


def test_a_batch_of_one_example_repeated_is_said_and_is_no_collapse(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "one.py").write_text(ALIKE)
    for seed in range(4):
        target = f"{tmp_path / 'one.py'}:build"
        shown = " ".join(command("measure", target, "--arg", f"seed={seed}").out.split())
        assert shown.count("all examples are alike at the input already") == 1
        assert "collapse" not in shown
