"""Options of several commands that say which network, and what it is run on."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from depthgauge.cli.options import option

__all__ = [
    "Args",
    "Batch",
    "Depth",
    "Device",
    "Draws",
    "Inits",
    "Inputs",
    "Scalars",
    "Size",
    "Tokens",
    "Width",
]

Depth: TypeAlias = Annotated[str | None, option("--depth", "N", "Blocks [96].")]
Width: TypeAlias = Annotated[str | None, option("--width", "N", "Width of the state [64].")]
Batch: TypeAlias = Annotated[str | None, option("--batch", "N", "Examples [128].")]
Tokens: TypeAlias = Annotated[str | None, option("--tokens", "N", "Tokens, with attention [32].")]
Size: TypeAlias = Annotated[str | None, option("--size", "N", "Height and width, with conv [8].")]
Draws: TypeAlias = Annotated[
    str | None, option("--draws", "ORDER", "keyed or sequential-pcg64 [keyed].")
]
Device: TypeAlias = Annotated[str | None, option("--device", "NAME", "cpu, cuda:0 [cpu].")]
Inits: TypeAlias = Annotated[
    list[str] | None,
    option("--init", "[NAME=]SPEC", "he, W1=he, attention.o=zeros [lecun]; repeatable."),
]
Scalars: TypeAlias = Annotated[
    list[str] | None, option("--scalar", "NAME=EXPR", "a=1/sqrt(L); repeatable.")
]
Args: TypeAlias = Annotated[
    list[str] | None,
    option("--arg", "KEY=VALUE", "Of the callable: layers=4, name=gpt; repeatable."),
]
Inputs: TypeAlias = Annotated[
    list[str] | None,
    option(
        "--input",
        "SPEC",
        '"float 8x3x32x32", "int 4x128 <50257" or "ids=int 4x128 <50257"; repeatable.',
    ),
]
