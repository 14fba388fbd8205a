"""What the user wants from speculation: the bar to clear and the limits to keep."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.errors import UsageError, unknown_name
from speclift.core.units import Seconds

METRICS = ("tpot", "e2e", "throughput")
# Below 1.3x of end-to-end latency on representative traffic it is not worth shipping [S3].
MIN_SPEEDUP_DEFAULT = 1.3
# A tail shown to be at least this fast against the baseline's passes.
TAIL_TOLERANCE_DEFAULT = 0.8
SLO_METRICS = ("ttft", "tpot", "e2e")
SLO_PERCENTILES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A latency limit at one percentile, such as ttft p99 <= 1 s."""

    metric: str
    percentile: str
    limit_s: Seconds

    @property
    def label(self) -> str:
        return f"{self.metric}_{self.percentile}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    min_speedup: float = MIN_SPEEDUP_DEFAULT
    metric: str = "tpot"
    slos: tuple[Slo, ...] = ()
    tail_tolerance: float = TAIL_TOLERANCE_DEFAULT

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise unknown_name(what="metric", seen=self.metric, allowed=METRICS)
        if not self.min_speedup > 0:
            raise UsageError(f"--min-speedup must be above 0, saw {self.min_speedup}")
        if not 0 < self.tail_tolerance <= 1:
            raise UsageError(f"--tail-tolerance lies between 0 and 1, saw {self.tail_tolerance}")


def parse_slos(text: str) -> tuple[Slo, ...]:
    """`ttft_p99=1s,tpot_p99=50ms`"""
    return tuple(_parse_slo(part.strip()) for part in text.split(",") if part.strip())


def _parse_slo(text: str) -> Slo:
    name, separator, limit = text.partition("=")
    metric, _, percentile = name.strip().partition("_")
    names = [f"{m}_{p}" for m in SLO_METRICS for p in SLO_PERCENTILES]
    if not separator:
        raise UsageError(
            f"--slo takes name=limit, saw {text!r}", hint="for example ttft_p99=1s,tpot_p99=50ms"
        )
    if metric not in SLO_METRICS or percentile not in SLO_PERCENTILES:
        raise unknown_name(what="SLO", seen=name.strip(), allowed=names)
    return Slo(metric=metric, percentile=percentile, limit_s=parse_duration_s(limit.strip(), flag="--slo"))


def parse_duration_s(text: str, *, flag: str) -> Seconds:
    """`90`, `90s`, `250ms`, `10m`, `1.5h` as seconds."""
    units = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = text, "s"
    for suffix in ("ms", "s", "m", "h"):
        if text.endswith(suffix):
            number, unit = text[: -len(suffix)], suffix
            break
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{flag} takes a duration such as 50ms, 10s or 5m, saw {text!r}")
    return value * units[unit]
