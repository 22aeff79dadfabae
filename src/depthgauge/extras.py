"""Optional packages: imported where they are used, never before."""

from __future__ import annotations

import importlib
from typing import Any

from depthgauge.errors import MissingExtra

__all__ = ["load"]


def load(module: str, extra: str, purpose: str) -> Any:
    """The module, or the error that says which extra of depthgauge installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(module.partition(".")[0], extra, purpose) from error
