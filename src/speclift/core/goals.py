"""What the user wants from speculation: the bar to clear and the limits to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from speclift.core.errors import UsageError, unknown_name
from speclift.core.flags import GOALS, Flag, Reading, read_duration_s
from speclift.core.units import Seconds

METRICS = ("e2e", "tpot", "throughput")
# Below 1.3x of end-to-end latency on representative traffic it is not worth shipping [S3].
MIN_SPEEDUP_DEFAULT = 1.3
# Further off nobody means it, and no figure shows where it lies.
MIN_SPEEDUP_LOW, MIN_SPEEDUP_HIGH = 0.01, 1_000
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


def read_slos(text: str, flag: str) -> tuple[Slo, ...]:
    """`ttft_p99=1s,tpot_p99=50ms`"""
    return tuple(_read_slo(part.strip(), flag) for part in text.split(",") if part.strip())


def _read_slo(text: str, flag: str) -> Slo:
    name, separator, limit = text.partition("=")
    metric, _, percentile = name.strip().partition("_")
    names = [f"{m}_{p}" for m in SLO_METRICS for p in SLO_PERCENTILES]
    if not separator:
        raise UsageError(
            f"{flag} takes name=limit, saw {text!r}", hint="for example ttft_p99=1s,tpot_p99=50ms"
        )
    if metric not in SLO_METRICS or percentile not in SLO_PERCENTILES:
        raise unknown_name(what="SLO", seen=name.strip(), allowed=names)
    return Slo(metric=metric, percentile=percentile, limit_s=read_duration_s(limit.strip(), flag))


SLOS = Reading(read_slos, takes_commas=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    min_speedup: Annotated[
        float, Flag("Speedup required for SHIP (lower bound of the interval).", GOALS, "X")
    ] = MIN_SPEEDUP_DEFAULT
    metric: Annotated[
        str, Flag("Metric for the speedup: e2e (end to end), tpot or throughput.", GOALS, "NAME")
    ] = "e2e"
    slos: Annotated[
        tuple[Slo, ...],
        Flag(
            "Latency limits, such as ttft_p99=1s,tpot_p99=50ms.",
            GOALS,
            "NAME=TIME,...",
            names=("--slo",),
            reading=SLOS,
        ),
    ] = ()
    tail_tolerance: Annotated[
        float, Flag("Required speed of the slowest requests relative to the baseline's.", GOALS, "X")
    ] = TAIL_TOLERANCE_DEFAULT

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise unknown_name(what="metric", seen=self.metric, allowed=METRICS)
        if not MIN_SPEEDUP_LOW <= self.min_speedup <= MIN_SPEEDUP_HIGH:
            raise UsageError(
                f"--min-speedup takes {MIN_SPEEDUP_LOW:g} to {MIN_SPEEDUP_HIGH:,}, saw {self.min_speedup:g}"
            )
        if not 0 < self.tail_tolerance <= 1:
            raise UsageError(f"--tail-tolerance must be between 0 and 1, saw {self.tail_tolerance}")
