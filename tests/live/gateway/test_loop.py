"""What carries the gateway, and what it has to load for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from speclift.live.gateway.loop import loop_name, run_on_fastest_loop


async def loop_module() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_uvloop_carries_it_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")
    assert loop_name() == run_on_fastest_loop(loop_module()) == "uvloop"


def test_pythons_own_loop_does_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_name() == run_on_fastest_loop(loop_module()) == "asyncio"


@pytest.mark.slow
def test_a_gateway_without_a_policy_does_without_scipys_distributions() -> None:
    """scipy.stats alone would be 50 MB more."""
    code = "import sys, speclift.verbs.gateway; print([n for n in ('scipy.stats',) if n in sys.modules])"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"
