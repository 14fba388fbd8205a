"""speclift decides whether speculative decoding pays for a self-hosted LLM.

The public names are the verbs and the values they take and return; importing the package stays cheap because
they are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speclift.bench.ask import Ask, PlanAsk, ReplayAsk
    from speclift.bench.observer import Observer
    from speclift.core.errors import SpecliftError
    from speclift.core.results import Verdict
    from speclift.verbs.compare import compare
    from speclift.verbs.decide import decide, tune
    from speclift.verbs.export import export
    from speclift.verbs.lint import lint
    from speclift.verbs.measure import measure
    from speclift.verbs.plan import plan
    from speclift.verbs.replay import replay
    from speclift.verbs.user_command import from_line
    from speclift.verbs.verify import verify

__version__ = "0.2.0"

__all__ = [
    "Ask",
    "Observer",
    "PlanAsk",
    "ReplayAsk",
    "SpecliftError",
    "Verdict",
    "__version__",
    "compare",
    "decide",
    "export",
    "from_line",
    "lint",
    "measure",
    "plan",
    "replay",
    "tune",
    "verify",
]

_HOMES = {
    "Ask": "speclift.bench.ask",
    "Observer": "speclift.bench.observer",
    "PlanAsk": "speclift.bench.ask",
    "ReplayAsk": "speclift.bench.ask",
    "SpecliftError": "speclift.core.errors",
    "Verdict": "speclift.core.results",
    "compare": "speclift.verbs.compare",
    "decide": "speclift.verbs.decide",
    "export": "speclift.verbs.export",
    "from_line": "speclift.verbs.user_command",
    "lint": "speclift.verbs.lint",
    "measure": "speclift.verbs.measure",
    "plan": "speclift.verbs.plan",
    "replay": "speclift.verbs.replay",
    "tune": "speclift.verbs.decide",
    "verify": "speclift.verbs.verify",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'speclift' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
