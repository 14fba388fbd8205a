"""What the journeys start from: studies that were recorded, and pages and lines that somebody pastes."""

from __future__ import annotations

import io
import sys

import pytest

from recorded import RECORDED, Typed


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Puts text on standard input."""

    def put(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "replace"))))

    return put


@pytest.fixture(scope="session")
def page() -> str:
    """What a vLLM server showed at /metrics."""
    return (RECORDED / "vllm-0.32.0-metrics.txt").read_text(encoding="utf-8")
