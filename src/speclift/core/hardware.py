"""A device that a model runs on: memory, bandwidth and arithmetic of one GPU, or of a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.errors import UsageError
from speclift.core.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    name: str
    title: str
    # What the label says, in decimal gigabytes: the number articles reckon with.
    nominal_bytes: Bytes
    # What programs are offered; driver and firmware keep the rest.
    memory_bytes: Bytes
    bandwidth_bytes_s: float
    # Dense multiply-adds count as two; 8 and 4 bits are 0 where the hardware has no such units.
    flops_16: float
    flops_8: float = 0.0
    flops_4: float = 0.0
    # One direction between two devices of a group, and the time one exchange takes whatever its size.
    link_bytes_s: float = 32e9
    link_latency_s: float = 20e-6
    is_cpu: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if min(self.memory_bytes, self.bandwidth_bytes_s, self.flops_16) <= 0:
            raise UsageError(f"device {self.name} needs memory, bandwidth and arithmetic above 0")

    def flops(self, math_bits: int) -> float:
        """At this precision, or at the next wider one the hardware has units for."""
        for bits, rate in ((4, self.flops_4), (8, self.flops_8), (16, self.flops_16)):
            if math_bits <= bits and rate > 0:
                return rate
        return self.flops_16
