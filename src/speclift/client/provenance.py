"""The machine a study runs on, read once at its start. Its GPUs are known by the driver's library, its CPU by the
system; what is absent is no error.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from speclift.core.document import Json
from speclift.core.hardware import Device
from speclift.core.units import Bytes

_NVML = ("libnvidia-ml.so.1", "nvml.dll")
_NAME_BYTES = 96
# One core streams about this much; two channels of DDR4-3200 are full at the second figure. AVX2 multiplies and
# adds eight 32-bit numbers twice per cycle; 2.5 GHz is a server core under load. Rough on purpose: docs/plan.md.
_CORE_BYTES_S, _MEMORY_BYTES_S, _CORE_FLOPS = 10e9, 50e9, 80e9


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpu:
    name: str
    memory_bytes: Bytes


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def found_gpus() -> tuple[FoundGpu, ...]:
    """Empty without an NVIDIA driver, and where the driver does not answer."""
    library = _library()
    if library is None or library.nvmlInit_v2() != 0:
        return ()
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return ()
        return tuple(gpu for index in range(count.value) if (gpu := _gpu(library, index)) is not None)
    finally:
        library.nvmlShutdown()


def _library() -> ctypes.CDLL | None:
    for name in _NVML:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _gpu(library: ctypes.CDLL, index: int) -> FoundGpu | None:
    handle, memory = ctypes.c_void_p(), _Memory()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    asked = (
        library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)),
        library.nvmlDeviceGetName(handle, name, _NAME_BYTES),
        library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)),
    )
    if any(asked):
        return None
    return FoundGpu(name=name.value.decode(errors="replace"), memory_bytes=int(memory.total))


def cpu_device() -> Device:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    memory = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return Device(
        name="cpu",
        title=f"this machine's CPU, {cores} cores" if cores > 1 else "this machine's CPU, 1 core",
        nominal_bytes=memory,
        memory_bytes=memory,
        bandwidth_bytes_s=min(cores * _CORE_BYTES_S, _MEMORY_BYTES_S),
        flops_16=cores * _CORE_FLOPS,
        is_cpu=True,
        source="assumed per core: 10 GB/s up to 50 GB/s, 80 GFLOPS",
    )


def host_facts() -> dict[str, Json]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "gpus": _gpus(),
        "governor": _governor(),
        "load_average": list(os.getloadavg()),
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _governor() -> str | None:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return path.read_text().strip() if path.exists() else None


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    fields = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    try:
        result = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ["unknown: nvidia-smi failed"]
    return [line.strip() for line in result.stdout.splitlines() if line.strip()]
