"""depthgauge: commission a deep network before the long run.

The public names are imported when they are first used, so that ``import depthgauge`` and
``depthgauge --help`` do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from depthgauge._version import __version__

if TYPE_CHECKING:
    from depthgauge.equation.count import count
    from depthgauge.equation.latex import to_latex
    from depthgauge.equation.nodes import Block
    from depthgauge.equation.parse import parse
    from depthgauge.equation.text import to_text
    from depthgauge.errors import (
        ClaimError,
        DepthgaugeError,
        EquationError,
        MissingExtra,
        ModelError,
        NetworkError,
        NotCommissionedError,
        RecordError,
        SpecificationError,
        TargetError,
        UsageError,
    )
    from depthgauge.instruments.step import Step
    from depthgauge.instruments.subject import Effort
    from depthgauge.integrations.guard import assert_commissioned, require
    from depthgauge.integrations.monitor import Monitor
    from depthgauge.measurement import measure, measure_all
    from depthgauge.network.spec import Network
    from depthgauge.profile import Profile
    from depthgauge.recipes.apply import apply
    from depthgauge.recipes.audit import audit
    from depthgauge.recipes.guess import guess
    from depthgauge.recipes.rewritten import rewritten
    from depthgauge.record.folder import read as read_record
    from depthgauge.record.subject import subject_of
    from depthgauge.record.verify import verify
    from depthgauge.study.ablation import Ablation, ablate
    from depthgauge.study.claims import SuiteResult
    from depthgauge.study.commission.run import Commission, commission
    from depthgauge.study.compare import compare
    from depthgauge.study.corridor import Bound, Corridor, Verdict
    from depthgauge.study.specification import Specification, read_specification
    from depthgauge.study.suites import suite
    from depthgauge.study.sweep import sweep
    from depthgauge.study.swept import Sweep

#: Public names and where they live, with the name there where it is another.
_HOMES = {
    "Ablation": "depthgauge.study.ablation",
    "Block": "depthgauge.equation.nodes",
    "Bound": "depthgauge.study.corridor",
    "ClaimError": "depthgauge.errors",
    "Commission": "depthgauge.study.commission.run",
    "Corridor": "depthgauge.study.corridor",
    "DepthgaugeError": "depthgauge.errors",
    "Effort": "depthgauge.instruments.subject",
    "EquationError": "depthgauge.errors",
    "MissingExtra": "depthgauge.errors",
    "ModelError": "depthgauge.errors",
    "Monitor": "depthgauge.integrations.monitor",
    "Network": "depthgauge.network.spec",
    "NetworkError": "depthgauge.errors",
    "NotCommissionedError": "depthgauge.errors",
    "Profile": "depthgauge.profile",
    "RecordError": "depthgauge.errors",
    "Specification": "depthgauge.study.specification",
    "SpecificationError": "depthgauge.errors",
    "Step": "depthgauge.instruments.step",
    "SuiteResult": "depthgauge.study.claims",
    "Sweep": "depthgauge.study.swept",
    "TargetError": "depthgauge.errors",
    "UsageError": "depthgauge.errors",
    "Verdict": "depthgauge.study.corridor",
    "ablate": "depthgauge.study.ablation",
    "apply": "depthgauge.recipes.apply",
    "assert_commissioned": "depthgauge.integrations.guard",
    "audit": "depthgauge.recipes.audit",
    "commission": "depthgauge.study.commission.run",
    "compare": "depthgauge.study.compare",
    "count": "depthgauge.equation.count",
    "guess": "depthgauge.recipes.guess",
    "measure": "depthgauge.measurement",
    "measure_all": "depthgauge.measurement",
    "parse": "depthgauge.equation.parse",
    "read_record": "depthgauge.record.folder:read",
    "read_specification": "depthgauge.study.specification",
    "require": "depthgauge.integrations.guard",
    "rewritten": "depthgauge.recipes.rewritten",
    "subject_of": "depthgauge.record.subject",
    "suite": "depthgauge.study.suites",
    "sweep": "depthgauge.study.sweep",
    "to_latex": "depthgauge.equation.latex",
    "to_text": "depthgauge.equation.text",
    "verify": "depthgauge.record.verify",
}

__all__ = [
    "Ablation",
    "Block",
    "Bound",
    "ClaimError",
    "Commission",
    "Corridor",
    "DepthgaugeError",
    "Effort",
    "EquationError",
    "MissingExtra",
    "ModelError",
    "Monitor",
    "Network",
    "NetworkError",
    "NotCommissionedError",
    "Profile",
    "RecordError",
    "Specification",
    "SpecificationError",
    "Step",
    "SuiteResult",
    "Sweep",
    "TargetError",
    "UsageError",
    "Verdict",
    "__version__",
    "ablate",
    "apply",
    "assert_commissioned",
    "audit",
    "commission",
    "compare",
    "count",
    "guess",
    "measure",
    "measure_all",
    "parse",
    "read_record",
    "read_specification",
    "require",
    "rewritten",
    "subject_of",
    "suite",
    "sweep",
    "to_latex",
    "to_text",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, _, other = _HOMES[name].partition(":")
        value = getattr(import_module(module), other or name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'depthgauge' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
