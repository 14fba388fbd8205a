"""What carries the gateway, and what it has to load for it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_gateway_without_a_policy_does_without_scipys_distributions() -> None:
    """scipy.stats alone would be 50 MB more."""
    code = "import sys, speclift.verbs.gateway; print([n for n in ('scipy.stats',) if n in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"
