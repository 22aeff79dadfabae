"""What the documentation says is run: README blocks, commands, the page of public names."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import depthgauge as dg

#: What Python knows of: a library may have told C's environment of a terminal 80 columns wide.
ENVIRONMENT = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


def test_the_python_of_the_readme_runs_and_says_what_its_comments_say() -> None:
    model, code = blocks(README, "python")
    assert "def build(" in model
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    assert "1 residual branch, m = 2, pre-norm, identity skip" in done.stdout
    assert "(16, 97)" in done.stdout
    assert "margin" in done.stdout


def test_the_commands_of_the_readme_run(tmp_path: Path) -> None:
    (toml,) = blocks(README, "toml")
    (tmp_path / "spec.toml").write_text(toml)
    (tmp_path / "my_model.py").write_text(blocks(README, "python")[0])
    commands = [line for line in README.splitlines() if line.startswith("depthgauge ")]
    assert len(commands) == 13
    for command in commands:
        if "package.module" in command:  # stands for a package of the reader's
            continue
        arguments = shlex.split(command)[1:]
        program = [sys.executable, "-m", "depthgauge", *arguments]
        done = subprocess.run(
            program, cwd=tmp_path, capture_output=True, text=True, check=False, env=ENVIRONMENT
        )
        assert done.returncode == 0, done.stderr
        words = ("blocks", '"sites"', "reference: ", "audit: ", "step ~ L^", "strongest")
        assert any(word in done.stdout for word in words)


def test_the_equation_of_the_readme_is_what_its_model_gives(tmp_path: Path) -> None:
    (tmp_path / "my_model.py").write_text(blocks(README, "python")[0])
    command = next(line for line in README.splitlines() if "--arg layers=24" in line)
    done = subprocess.run(
        [sys.executable, "-m", "depthgauge", *shlex.split(command)[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    (shown,) = (block for block in blocks(README, "") if block.startswith("24 x"))
    assert done.stdout.startswith(shown)


def test_the_table_of_the_readme_is_what_the_suite_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "depthgauge", "suite"],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    shown = [block for block in blocks(README, "") if block.startswith("configuration")]
    assert len(shown) == 1
    assert shown[0] in done.stdout


def test_the_page_of_public_names_is_complete() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    listed = {
        name
        for cell in re.findall(r"^\| (`.*?) \|", page, re.M)
        for name in re.findall(r"`(\w+)`", cell)
    }
    assert listed == set(dg.__all__)
    for name in dg.__all__:
        assert getattr(dg, name) is not None


LANGUAGE = (ROOT / "docs" / "language.md").read_text()


@pytest.mark.parametrize("line", blocks(LANGUAGE, "")[0].splitlines())
def test_the_examples_of_the_language_parse(line: str) -> None:
    block = dg.parse(line, {"a": "1/sqrt(L)"} if "a *" in line else None)
    assert dg.count(block).branches >= 1


def test_the_language_page_names_every_word() -> None:
    from depthgauge.equation.functions import ACTIVATIONS, INITS, NORMS, SCALAR_FUNCTIONS, SYMBOLS

    words = set(re.findall(r"\w+", LANGUAGE))
    uniform = {name for name in INITS if name.endswith("_uniform")}
    for word in {*ACTIVATIONS, *NORMS, *SCALAR_FUNCTIONS, *SYMBOLS, *INITS} - uniform:
        assert word in words, word


UPDATES = (ROOT / "docs" / "updates.md").read_text()


@pytest.mark.parametrize(
    ("name", "examples"), [("updates", 2), ("directions", 1), ("ablation", 1), ("sweep", 1)]
)
def test_the_python_of_a_page_prints_what_the_page_shows(name: str, examples: int) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    code, shown = blocks(page, "python"), re.findall(r"```\n\n```\n(.*?)```", page, re.S)
    assert len(code) == len(shown) == examples
    for program, output in zip(code, shown, strict=True):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env=ENVIRONMENT,
        )
        assert done.stdout == output


def test_the_updates_page_names_every_quantity_and_optimiser() -> None:
    from depthgauge.instruments.step import OPTIMIZERS
    from depthgauge.instruments.updates import UPDATES as QUANTITIES

    for name in (*QUANTITIES, *OPTIMIZERS):
        assert f"`{name}`" in UPDATES, name
    for name, (rate, _) in OPTIMIZERS.items():
        written = {1e-3: "1e-3"}.get(rate, f"{rate:g}")
        assert f"`{name}` ({written}" in UPDATES


def test_the_directions_page_names_every_quantity_and_preset() -> None:
    from depthgauge.arguments import INSTRUMENTS, PRESETS
    from depthgauge.sites import VECTORS

    page = (ROOT / "docs" / "directions.md").read_text()
    chosen = ("correlation", "jacobian", "directions", "blocks", "spectrum")
    quantities = [quantity for name in chosen for quantity in INSTRUMENTS[name]]
    for name in (*quantities, *VECTORS, *PRESETS):
        assert f"`{name}`" in page, name


def test_the_python_of_the_ablation_page_prints_what_it_shows() -> None:
    test_the_python_of_a_page_prints_what_the_page_shows("ablation", 1)


def test_the_ablation_page_names_every_factor_and_change_that_is_read() -> None:
    from depthgauge.network.spec import Network
    from depthgauge.study.changes import Change, applied
    from depthgauge.study.factors import FACTORS
    from depthgauge.study.specification import Specification

    page = (ROOT / "docs" / "ablation.md").read_text()
    (factors,) = re.findall(r"`depthgauge.study.factors`\): ([\w, \n]+)\.", page)
    assert re.split(r",\s+", factors) == list(FACTORS)
    table = re.findall(r"^\| (`.*?) \|", page, re.M)
    written = [text for cell in table for text in re.findall(r"`(\w[^`]*)`", cell)]
    base = Specification(Network("h + W2(gelu(W1(rmsnorm(h))))/L", 3, 8))
    images = Specification(Network("h + conv3(gelu(h))", 3, 8))
    for text in (text for text in written if "..." not in text and "KEY" not in text):
        change = Change.of(text if re.search("[=*/]", text) else f"placement={text}")
        applied(images if change.factor == "size" else base, change)
    assert len(written) > 15


def test_the_short_run_of_the_recipes_page_runs() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    (code,) = (block for block in blocks(page, "python") if "mixup" in block)
    given = """
import torch
from torch import nn

model = nn.Sequential()
model.add_module("stem", nn.Conv2d(3, 8, 3))
model.add_module("pool", nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
model.add_module("fc", nn.Linear(8, 10))
images, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
"""
    shown = """
rows = model.stem.weight.grad.flatten(1).norm(dim=1)
print(0 < mixed.share < 1, (rows < 0.02).all().item(), bool(model.fc.weight.grad.norm() > 0.02))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", given + code + shown],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    assert done.stdout == "True True True\n"


def test_the_record_page_names_every_key_and_its_python_runs(tmp_path: Path) -> None:
    from depthgauge.record.document import Record
    from depthgauge.record.folder import write
    from depthgauge.record.parts import Subject
    from tests.record import factory

    page = (ROOT / "docs" / "record.md").read_text()
    for name, field in Record.model_fields.items():
        assert f"`{field.alias or name}`" in page, name
    for name in ("equation", "init", "arguments", "source", "weights", "data"):
        assert name in Subject.model_fields
        assert f"`{name}`" in page
    (code,) = blocks(page, "python")
    (toml,) = blocks(README, "toml")
    (tmp_path / "spec.toml").write_text(toml)
    subject = dg.subject_of(dg.read_specification(tmp_path / "spec.toml"))
    for name in ("DIR", "OTHER"):
        write(tmp_path / name, factory.record(subject=subject), factory.arrays())
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code + "print(found.state, found.reasons)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    assert done.stdout == "valid ()\n"
