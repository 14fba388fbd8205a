"""speclift decides whether speculative decoding pays for a self-hosted LLM.

The public names are the verbs and the values they take and return; importing the package stays cheap because
they are loaded on first use.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speclift.core.results import Verdict
    from speclift.pipeline.ask import Ask
    from speclift.pipeline.lint import lint
    from speclift.pipeline.plan import PlanAsk, plan
    from speclift.pipeline.replay import replay
    from speclift.pipeline.verbs import compare, decide, measure, tune
    from speclift.pipeline.verify import verify

__version__ = "0.1.0"

__all__ = [
    "Ask",
    "PlanAsk",
    "Verdict",
    "__version__",
    "compare",
    "decide",
    "lint",
    "measure",
    "plan",
    "replay",
    "tune",
    "verify",
]

_HOMES = {
    "Ask": "speclift.pipeline.ask",
    "PlanAsk": "speclift.pipeline.plan",
    "Verdict": "speclift.core.results",
    "compare": "speclift.pipeline.verbs",
    "decide": "speclift.pipeline.verbs",
    "lint": "speclift.pipeline.lint",
    "measure": "speclift.pipeline.verbs",
    "plan": "speclift.pipeline.plan",
    "replay": "speclift.pipeline.replay",
    "tune": "speclift.pipeline.verbs",
    "verify": "speclift.pipeline.verify",
}


class _Front(ModuleType):
    """Python sets a package's attribute when a part of it is imported; speclift.decide stays the verb all the same."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'speclift' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
