"""Corridors as files: those of the package, a user's own, and mistakes in them."""

from __future__ import annotations

import math
import re
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from depthgauge.errors import SpecificationError
from depthgauge.study.bound import Bound
from depthgauge.study.corridor import Corridor
from depthgauge.study.corridors import CorridorFile, Entry, NamedCorridor, corridor_named, names
from depthgauge.summaries import SUMMARIES
from tests.factories import profile

ROOT = Path(__file__).parents[2]

MINE = """
name = "mine"
about = "Deep ones\\nare held tighter."

[bounds.gradient_ratio]
min = 0.1
max = 10
reason = "no gradient"
source = "a guess"

[bounds.state_max]
max = 100

[[when]]
depth = { min = 200 }
[when.bounds.gradient_ratio]
max = 5.0

[[when]]
depth = { min = 300, max = 400 }
dtype = "float16"
[when.bounds.gradient_ratio]
max = 2.0
[when.bounds.headroom_float16_bits]
min = 1.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def written(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_the_default_holds_the_five_gates() -> None:
    corridor = corridor_named("default").at(96, "float32")
    assert {name: (bound.min, bound.max) for name, bound in corridor.bounds} == {
        "gradient_ratio": (0.1, 10.0),
        "participation_share": (0.1, None),
        "stiffness": (None, 1.0),
        "functional_update": (1e-4, 3.0),
        "nonfinite_fraction": (None, 0.0),
    }
    assert corridor.name == "default"
    half = dict(corridor_named("default").at(96, "float16").bounds)
    assert half.pop("headroom_float16_bits").min == 0.0
    assert Corridor(tuple(half.items()), "default") == corridor


def test_every_bound_of_the_package_says_why_and_whence() -> None:
    assert names() == ("commission", "default", "transport")
    for name in names():
        corridor = corridor_named(name)
        assert corridor.name == name
        assert len(corridor.about) > 100
        for entry in corridor.entries:
            assert entry.name in SUMMARIES
            assert len(entry.bound.reason) > 30, entry
            assert len(entry.bound.source) > 30, entry
            known = r"measured on 240 random MLP configurations|IEEE|definition .* was not measured"
            assert re.search(known, entry.bound.source)


def test_transport_is_the_default_without_what_needs_a_loss() -> None:
    for dtype in ("float32", "float16"):
        whole = dict(corridor_named("default").at(96, dtype).bounds)
        part = dict(corridor_named("transport").at(96, dtype).bounds)
        assert set(whole) - set(part) == {"stiffness", "functional_update"}
        for name, bound in part.items():
            assert (bound.min, bound.max) == (whole[name].min, whole[name].max)
            assert (bound.warn, bound.reason) == (whole[name].warn, whole[name].reason)


def test_a_base_comes_before_the_bounds_of_the_file(file: Any) -> None:
    own = 'base = "default"\n[bounds.gradient_ratio]\nmax = 2.0\n'
    found = dict(corridor_named(file(own)).at(96, "float32").bounds)
    base = dict(corridor_named("default").at(96, "float32").bounds)
    assert found.pop("gradient_ratio").max == 2.0
    del base["gradient_ratio"]
    assert found == base
    for wrong in ("defualt", "mine.toml"):
        with pytest.raises(SpecificationError, match=f"base is '{wrong}', expected one of"):
            corridor_named(file(f'base = "{wrong}"\n[bounds.state_max]\nmax = 2.0\n'))


def test_the_files_are_in_the_package() -> None:
    for name in names():
        folder = resources.files("depthgauge.study").joinpath("corridors")
        assert folder.joinpath(f"{name}.toml").is_file()


def test_a_file_of_ones_own(file: Any) -> None:
    path = file(MINE)
    found = corridor_named(path)
    assert found == corridor_named(str(path))
    assert (found.name, found.about) == ("mine", "Deep ones are held tighter.")
    first = found.at(96, "float32")
    assert first.to_dict() == {
        "gradient_ratio": {
            "min": 0.1, "max": 10.0, "warn": 0.1, "reason": "no gradient", "source": "a guess"
        },
        "state_max": {"max": 100.0, "warn": 0.1},
    }  # fmt: skip
    for depth, dtype, most in (
        (199, "float16", 10), (200, "float32", 5), (300, "float32", 5), (300, "float16", 2),
        (400, "float16", 2), (401, "float16", 5),
    ):  # fmt: skip
        held = dict(found.at(depth, dtype).bounds)
        assert held["gradient_ratio"].max == most
        assert ("headroom_float16_bits" in held) == (most == 2)
    assert [entry.where for entry in found.entries] == [
        "", "", "depth 200 and more", *["depth 300 to 400, float16"] * 2
    ]  # fmt: skip


def test_a_file_without_a_name_has_that_of_the_file(file: Any) -> None:
    assert corridor_named(file("[bounds.state_max]\nmax = 3")).name == "mine"


def test_a_named_corridor_judges() -> None:
    made = profile((1.0, 2.0, 4.0), (30.0, 1.5, 1.0), extra={"nonfinite_fraction": [0, 0, 0]})
    verdict = corridor_named("default").at(made.depth, made.dtype).judge(made)
    assert verdict.state == "fail"
    assert verdict.reason == "gradient_ratio: 30 is 0.477 decades outside max 10"
    assert verdict.to_dict()["name"] == "default"
    states = {judgement.name: judgement.state for judgement in verdict.judgements}
    assert states["stiffness"] == states["participation_share"] == "not_measured"


def test_bounds_of_ones_own_go_before_bound_by_bound(file: Any) -> None:
    named, own = corridor_named(file(MINE)), Corridor.of(
        gradient_ratio={"max": 3}, forward_drift={"max": 9}
    )  # fmt: skip
    for depth, dtype in ((1, "float32"), (350, "float16")):
        mixed = dict(named.under(own).at(depth, dtype).bounds)
        assert mixed["gradient_ratio"] == Bound(max=3)
        assert mixed["state_max"] == Bound(max=100)
        assert mixed["forward_drift"] == Bound(max=9)
        assert ("headroom_float16_bits" in mixed) == (dtype == "float16")
    assert named.under(own).name == "mine, with bounds of its own"
    assert named.under(None) == named


def test_limits_over_depth(file: Any) -> None:
    named, depths = corridor_named(file(MINE)), np.array([1, 199, 200, 299, 300, 400, 401])
    low, high = named.limits("gradient_ratio", depths, "float16")
    assert high.tolist() == [10, 10, 5, 5, 2, 2, 5]
    assert low.tolist() == [0.1, 0.1, *[-math.inf] * 5]
    assert named.limits("gradient_ratio", depths, "float32")[1].tolist() == [10, 10, *[5] * 5]
    assert named.limits("stiffness", depths, "float32")[1].tolist() == [math.inf] * 7
    for i, depth in enumerate(depths.tolist()):
        assert dict(named.at(depth, "float16").bounds)["gradient_ratio"].max == high[i]


def test_a_corridor_holds_everywhere_under_a_name() -> None:
    corridor = Corridor.of(state_max={"max": 3})
    named = NamedCorridor.of(corridor)
    assert named.entries == (Entry("state_max", Bound(max=3)),)
    assert named.at(1, "float32") == named.at(10_000, "float16") == corridor


BOUND = "[bounds.gradient_ratio]\nmax = 10\n"
WHEN = BOUND + "[[when]]\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ": no summary is bounded; write [bounds.gradient_ratio]"),
        ("name = 3\n" + BOUND, ": name is 3, expected text in quotes"),
        ("[bound.gradient_ratio]\nmax = 1", ": bound is not a key (did you mean 'bounds'?)"),
        ("bounds = 3", ": bounds is 3, expected tables such as [bounds.gradient_ratio]"),
        (
            "[bounds.gradient_ratoi]\nmax = 1",
            ": bounds.gradient_ratoi: 'gradient_ratoi' cannot be bounded (did you mean 'gradient_",
        ),
        ("[bounds.gradient_ratio]\nmx = 1", ": bounds.gradient_ratio: 'mx' is not part of the bou"),
        ("[bounds.gradient_ratio]\nmax = 0", "max of gradient_ratio is 0; give a positive number"),
        ("[bounds.gradient_ratio]\nmin = 3\nmax = 2", "min 3 is larger than max 2"),
        ("[when]\ndepth = 3\n" + BOUND, ": when is one table; write [[when]]"),
        (WHEN, ": when 1 says neither depth nor dtype"),
        (WHEN + "depth = { min = 3 }", ": when 1 bounds no summary; write [when.bounds.gradient"),
        (WHEN + "dpeth = { min = 3 }", ": when 1.dpeth is not a key (did you mean 'depth'?)"),
        (WHEN + "depth = 3\nbounds.state_max.max = 3", ": when 1.depth is 3, expected { min = 200"),
        (WHEN + "depth = { least = 3 }\nbounds.state_max.max = 3", ": when 1.depth.least is not a"),
        (WHEN + "depth = { min = 0 }\nbounds.state_max.max = 3", ": when 1.depth.min is 0, expect"),
        (
            WHEN + "depth = { min = 9, max = 3 }\nbounds.state_max.max = 3",
            ": when 1.depth is from 9 to 3; swap them",
        ),
        (
            WHEN + "dtype = 'flaot16'\nbounds.state_max.max = 3",
            ": when 1.dtype is 'flaot16', expected one of float64",
        ),
        (WHEN + "dtype = 'float16'\nbounds = 3", ": when 1.bounds is 3, expected tables such as ["),
        (
            WHEN + "dtype = 'float16'\nbounds.state_mxa.max = 3",
            ": when 1.bounds.state_mxa: 'state_mxa' cannot be bounded (did you mean 'state_max'?)",
        ),
        ("max = = 3", " is not valid TOML"),
    ],
)
def test_a_mistake_is_one_sentence_with_file_and_key(file: Any, text: str, sentence: str) -> None:
    path = file(text)
    with pytest.raises(SpecificationError) as error:
        corridor_named(path)
    said = str(error.value)
    assert said.startswith(str(path))
    assert sentence in said
    assert "\n" not in said
    assert len(said) - len(str(path)) < 360


def test_a_name_that_no_corridor_has(tmp_path: Path) -> None:
    with pytest.raises(SpecificationError) as error:
        corridor_named("defualt")
    assert str(error.value) == (
        "corridor is 'defualt', expected one of commission, default, transport (did you mean "
        "'default'?), or a file such as mine.toml"
    )
    with pytest.raises(SpecificationError, match=r"absent\.toml cannot be read: no such file"):
        corridor_named(tmp_path / "absent.toml")


def test_a_file_that_a_specification_names_is_beside_it_or_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    given = CorridorFile("sub/mine.toml", "mine.toml")
    with pytest.raises(SpecificationError) as caught:
        corridor_named(given)
    assert str(caught.value) == (
        "sub/mine.toml cannot be read: no such file, beside the specification that names it, and "
        f"none at mine.toml from the current directory ({tmp_path}) either"
    )
    with pytest.raises(
        SpecificationError, match=r"^mine\.toml cannot be read: no such file or dir"
    ):
        corridor_named(CorridorFile("mine.toml", "mine.toml"))  # one place, said once
    (tmp_path / "mine.toml").write_text("[bounds.state_max]\nmax = 1")
    assert corridor_named(given).origin == "mine.toml"
    (tmp_path / "sub" / "mine.toml").write_text("[bounds.state_max]\nmax = 2")
    found = corridor_named(given)
    assert (found.origin, found.entries[0].bound.max) == ("sub/mine.toml", 2)
    (tmp_path / "sub" / "mine.toml").write_text("[bounds.dead_fraction]\nmin = 3")
    with pytest.raises(SpecificationError) as caught:
        corridor_named(given)
    assert str(caught.value) == (
        "sub/mine.toml: bounds.dead_fraction: min of dead_fraction is 3, which no value can meet; "
        "it is from 0 to 1"
    )


# ----------------------------------------------------------------------- the page


def rows(corridor: NamedCorridor) -> list[str]:
    """The table of a corridor as Markdown."""

    def cell(x: float | None) -> str:
        return "" if x is None else f"{x:g}"

    found = []
    for entry in corridor.entries:
        bound = entry.bound
        cells = (f"`{entry.name}`", entry.where, cell(bound.min), cell(bound.max), cell(bound.warn))
        found.append(f"| {' | '.join((*cells, bound.reason, bound.source))} |")
    return found


@pytest.mark.parametrize("name", names())
def test_the_page_holds_the_table_of_the_file(name: str) -> None:
    page = (ROOT / "docs" / "corridors.md").read_text()
    section = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
    corridor = corridor_named(name)
    table = [line for line in section.splitlines() if line.startswith("| `")]
    assert table == rows(corridor)
    assert corridor.about in " ".join(section.split())


def test_the_page_lists_what_can_be_bounded() -> None:
    page = (ROOT / "docs" / "corridors.md").read_text()
    section = page.partition("## What can be bounded\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` ", section, re.M) == list(SUMMARIES)
