"""What a run of a module shows, read back and drawn as mathematics."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import depthgauge as dg
from depthgauge.equation.folded import folded
from depthgauge.equation.mathml import folded_mathml, to_mathml
from depthgauge.equation.parse import parse
from depthgauge.equation.text import to_text
from depthgauge.errors import EquationError

ATTENTION = "h = h + attention(layernorm(h)); h = h + W(gelu(W(layernorm(h))))"
OPAQUE = 'h = h + opaque("a [b; 2 x [c", rmsnorm(h), m=4)'


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        (ATTENTION, [("", [(1, ATTENTION)])]),
        (f"12 x [{ATTENTION}]", [("", [(12, ATTENTION)])]),
        (
            f"h = W(h); 3 x [{ATTENTION}]; h = W(h); h = relu(h); 2 x [h = h + W(h)]",
            [("", [(1, "h = W(h)"), (3, ATTENTION), (1, "h = W(h); h = relu(h)"),
                   (2, "h = h + W(h)")])],
        ),
        (f"4 x [{OPAQUE}]; {OPAQUE}", [("", [(4, OPAQUE), (1, OPAQUE)])]),
        (
            f"encoder.block: 3 x [h = W(h)]\ndecoder.0: {OPAQUE}",
            [("encoder.block", [(3, "h = W(h)")]), ("decoder.0", [(1, OPAQUE)])],
        ),
    ],
)  # fmt: skip
def test_what_is_folded_is_read_back(
    text: str, streams: list[tuple[str, list[tuple[int, str]]]]
) -> None:
    found = folded(text)
    assert [
        (stream.name, [(part.times, to_text(part.block)) for part in stream.parts])
        for stream in found
    ] == [
        (name, [(times, to_text(parse(part))) for times, part in parts]) for name, parts in streams
    ]
    math = ElementTree.fromstring(folded_mathml(found))
    said = "".join(math.itertext())
    for name, parts in streams:
        assert name in said
        for times, part in parts:
            drawn = ElementTree.fromstring(to_mathml(parse(part)))
            block = "".join(drawn.itertext())
            assert (f"{times}×[{block}]" if times > 1 else block) in said


@pytest.mark.parametrize("text", ["3 x [h = W(h)", "3 x []", "3 x [h = norm(h)]", "no equation"])
def test_what_is_not_the_language_is_refused(text: str) -> None:
    with pytest.raises(EquationError):
        folded(text)


def test_a_name_is_text() -> None:
    (stream,) = folded("<script>&: h = W(h)")
    assert "<script>" not in folded_mathml([stream])
    assert "<script>&" in "".join(ElementTree.fromstring(folded_mathml([stream])).itertext())


def test_a_module_as_it_is_read() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.up(self.norm(x)).tanh()  # type: ignore[no-any-return]

    module = nn.Sequential(*[Block() for _ in range(5)])
    text = dg.measure(module, torch.randn(4, 8), instruments=["state_rms"]).equation
    (stream,) = folded(text)
    assert [part.times for part in stream.parts] == [5]
    assert "5×[h←h+" in "".join(ElementTree.fromstring(folded_mathml([stream])).itertext())
