"""The block equation: a tree, and what can be read from it without a tensor."""

from depthgauge.equation.latex import to_latex
from depthgauge.equation.nodes import Block
from depthgauge.equation.parse import parse, parse_init, parse_scalar
from depthgauge.equation.scalars import evaluate
from depthgauge.equation.text import to_text

__all__ = ["Block", "evaluate", "parse", "parse_init", "parse_scalar", "to_latex", "to_text"]
