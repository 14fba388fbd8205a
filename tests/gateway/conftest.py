"""Refused callers are not waited for as long as those on a network."""

from __future__ import annotations

import pytest

from speclift.live.gateway import caller


@pytest.fixture(autouse=True)
def _short_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "LINGER_S", 0.02)
