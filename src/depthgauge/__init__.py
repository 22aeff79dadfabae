"""depthgauge: commission a deep network before the long run.

The public names are imported when they are first used, so that ``import depthgauge`` and
``depthgauge --help`` do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from depthgauge._version import __version__

if TYPE_CHECKING:
    from depthgauge.equation.nodes import Block
    from depthgauge.equation.parse import parse
    from depthgauge.equation.text import to_text
    from depthgauge.measurement import measure, measure_all
    from depthgauge.network.spec import Network
    from depthgauge.profile import Profile

#: Public names and where they live.
_HOMES = {
    "Block": "depthgauge.equation.nodes",
    "Network": "depthgauge.network.spec",
    "Profile": "depthgauge.profile",
    "measure": "depthgauge.measurement",
    "measure_all": "depthgauge.measurement",
    "parse": "depthgauge.equation.parse",
    "to_text": "depthgauge.equation.text",
}

__all__ = [
    "Block",
    "Network",
    "Profile",
    "__version__",
    "measure",
    "measure_all",
    "parse",
    "to_text",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'depthgauge' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
