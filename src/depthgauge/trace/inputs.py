"""An input described in words: ``float 8x3x32x32``, ``input_ids=int 4x128 <50257``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from depthgauge.errors import SpecificationError, nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["input_of"]

#: More elements of one input than anybody draws; a typing slip.
LARGEST_INPUT: Final = 1_000_000_000
#: The words of an input and the dtypes of PyTorch.
WORDS: Final[dict[str, str]] = {
    "float": "float32",
    "int": "int64",
    "bool": "bool",
    "float64": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int64": "int64",
    "int32": "int32",
}
_INPUT: Final = re.compile(
    r"\s*(?:([^=<]*?)\s*=)?\s*([^\W\d]\w*)?\s*([^<]*?)\s*(?:<\s*(.*?))?\s*", re.DOTALL
)
_SIZES: Final = re.compile(r"[+-]?[0-9]{1,18}(\s*[x×]\s*[+-]?[0-9]{1,18})*")


def input_of(
    texts: str | Sequence[str], seed: int = 0, device: str | torch.device = "cpu"
) -> Tensor | tuple[Tensor, ...] | dict[str, Tensor]:
    """The input that the texts describe: ``[NAME=]TYPE SIZES [<BOUND]``.

        float 8x3x32x32               standard normal, float32
        int 4x128 <50257              uniform on {0, …, 50256}, int64
        input_ids=int 4x128 <50257    by name

    One text is a tensor, several are a tuple in their order; named ones are a dict. TYPE is float,
    int, bool or a dtype's own name. All floats are drawn in float32 and then converted, on the CPU
    and then moved, so that a seed means the same numbers in every precision and on every device.
    One generator serves all texts in their order; the global one is not touched.

    Raises SpecificationError for a text that cannot be read, a size below 1, more than 10⁹
    elements, an int without a bound, a complex type, and names for some of the inputs only.
    """
    from depthgauge.arguments import device_of
    from depthgauge.network.spec import whole_number

    given = [texts] if isinstance(texts, str) else list(texts)
    if not given:
        raise SpecificationError("input is empty, expected TYPE SIZES, such as 'float 8x3x32x32'")
    number = whole_number(seed)
    if number is None or not 0 <= number < 2**64:
        raise SpecificationError(f"seed is {seed!r}, expected a whole number of at least 0")
    drawings = [_drawing(text) for text in given]
    names = [name for name, _ in drawings if name is not None]
    if names and len(names) < len(given):
        raise SpecificationError(
            f"input names {', '.join(names)} and leaves others without a name; name all or none"
        )
    for name in names:
        if names.count(name) > 1:
            raise SpecificationError(f"input gives '{name}' twice; give it once")
    place = device_of(device)

    import torch

    generator = torch.Generator("cpu").manual_seed(number)
    drawn = tuple(draw(generator).to(place) for _, draw in drawings)
    if names:
        return dict(zip(names, drawn, strict=True))
    return drawn[0] if len(drawn) == 1 else drawn


def _drawing(text: str) -> tuple[str | None, Callable[[torch.Generator], Tensor]]:
    """The name in a text, if any, and how its tensor is drawn."""
    import torch

    said = f"input is '{text}'"
    match = _INPUT.fullmatch(text)
    assert match is not None  # every part may be missing
    name, word, sizes, bound = match.groups()
    if name is not None and not name.isidentifier():
        raise SpecificationError(f"{said}, whose name '{name}' is no name of an argument")
    if word is None:
        raise SpecificationError(f"{said}, expected TYPE SIZES, such as 'float 8x3x32x32'")
    if word.startswith("complex"):
        raise SpecificationError(
            f"{said}, but complex numbers are not measured; give float, int or bool"
        )
    if word not in WORDS:
        raise SpecificationError(
            f"{said} of the type '{word}', expected one of {', '.join(WORDS)}{nearest(word, WORDS)}"
        )
    if not _SIZES.fullmatch(sizes):
        raise SpecificationError(f"{said} with the sizes '{sizes}', expected such as 8x3x32x32")
    shape = [int(size) for size in re.split("[x×]", sizes)]
    if min(shape) < 1:
        raise SpecificationError(f"{said}, which has the size {min(shape)}; a size is at least 1")
    if math.prod(shape) > LARGEST_INPUT:
        raise SpecificationError(
            f"{said}, which has {math.prod(shape):,} elements, more than {LARGEST_INPUT:,}; give "
            f"smaller sizes"
        )
    dtype: torch.dtype = getattr(torch, WORDS[word])
    integer = word.startswith("int")
    if integer and bound is None:
        raise SpecificationError(
            f"{said}, which needs a bound; write '{text.strip()} <50257' for numbers from 0 to "
            f"50256"
        )
    if not integer and bound is not None:
        raise SpecificationError(f"{said}, but only an int has a bound; leave '<{bound}' out")
    cpu = torch.device("cpu")  # the user's code may have set another, and another dtype
    if word == "bool":
        return name, lambda g: torch.randint(2, shape, generator=g, dtype=dtype, device=cpu)
    if bound is None:
        return name, lambda g: torch.randn(shape, generator=g, dtype=torch.float32, device=cpu).to(
            dtype
        )
    most = torch.iinfo(dtype).max
    if not re.fullmatch("[0-9]{1,19}", bound) or not 1 <= int(bound) <= most:
        raise SpecificationError(
            f"{said} with the bound '<{bound}', expected a whole number from 1 to {most}"
        )
    high = int(bound)
    return name, lambda g: torch.randint(high, shape, generator=g, dtype=dtype, device=cpu)
