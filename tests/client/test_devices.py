from __future__ import annotations

import ctypes
from typing import Any

import pytest

from speclift.client import provenance as devices


class Driver:
    """NVIDIA's library as its header describes it, with two GPUs."""

    def __init__(self, *, initialises: bool = True, broken: int | None = None) -> None:
        self.initialises = initialises
        self.broken = broken
        self.is_open = False

    def nvmlInit_v2(self) -> int:
        self.is_open = self.initialises
        return 0 if self.initialises else 9

    def nvmlShutdown(self) -> int:
        self.is_open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 15 if index == self.broken else 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: int) -> int:
        name.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total = 143_771 << 20
        return 0


def use(driver: Driver | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> Driver:
        if driver is None:
            raise OSError(f"{name}: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)


def test_the_driver_names_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    use(driver, monkeypatch)
    found = devices.found_gpus()

    assert [gpu.name for gpu in found] == ["NVIDIA H200"] * 2
    assert found[0].memory_bytes == 143_771 << 20
    assert not driver.is_open
