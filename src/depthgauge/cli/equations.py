"""A target that is an equation or a specification's file, with the options that go with it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from depthgauge.errors import SpecificationError

if TYPE_CHECKING:
    from depthgauge.study.specification import Changes, Specification

__all__ = ["belong", "given", "specification_of", "unreadable"]


def belong(target: str, code: bool, options: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Refuse an option that is for the other kind of target."""
    wrong = [name for name, value in (options if code else others).items() if value]
    if wrong and code:
        raise SpecificationError(
            f"{wrong[0]} is for an equation, and '{target}' is Python code; give the callable its "
            f"sizes with --arg KEY=VALUE and its data with --input"
        )
    if wrong:
        raise SpecificationError(
            f"{wrong[0]} is for Python code (path/file.py:callable), and the target is an equation "
            f"or a specification; leave it out"
        )


def unreadable(target: str) -> str:
    """``""``, or why such a target is neither an equation nor a specification."""
    if target.endswith(".toml"):
        return ""
    if re.search(r"[./\\]", target) and os.path.exists(target):
        return (
            f"'{target}' is a file or directory; give an equation, a specification.toml or "
            f"path/file.py:callable"
        )
    return ""


def given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def specification_of(target: str, changes: Changes) -> Specification:
    from depthgauge.network.spec import Network
    from depthgauge.study.specification import Specification, parse_seed, read_specification

    if target.endswith(".toml"):
        return read_specification(target, changes)
    run = dict(changes.run)
    if "seed" in run:
        run["seed"] = parse_seed(run["seed"])
    network = Network(target, scalars=changes.scalars, init=changes.init, **changes.network)
    return Specification(network, **run)
