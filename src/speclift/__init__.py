"""speclift decides whether speculative decoding pays for a self-hosted LLM.

The public names are the verbs and the values they take and return; importing the package stays cheap because
they are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speclift.core.results import Verdict
    from speclift.pipeline.ask import Ask
    from speclift.pipeline.verbs import compare, decide

__version__ = "0.1.0"

__all__ = ["Ask", "Verdict", "__version__", "compare", "decide"]

_HOMES = {
    "Ask": "speclift.pipeline.ask",
    "Verdict": "speclift.core.results",
    "compare": "speclift.pipeline.verbs",
    "decide": "speclift.pipeline.verbs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'speclift' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
