"""What watch is asked, each flag with its field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from speclift.core.errors import UsageError
from speclift.core.flags import Flag, Reading, read_duration_s
from speclift.core.units import Seconds

TIMES, WORTH = "Times", "When it pays"
INTERVAL_MIN_S, INTERVAL_MAX_S = 0.1, 3600.0
WINDOW_MAX_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAsk:
    interval_s: Annotated[
        Seconds,
        Flag(
            "Time between two looks at a server.",
            TIMES,
            "15s",
            names=("--interval",),
            reading=Reading(read_duration_s, default="15s"),
        ),
    ] = 15.0
    window_s: Annotated[
        Seconds,
        Flag(
            "The answer is about the last so many minutes.",
            TIMES,
            "10m",
            names=("--window",),
            reading=Reading(read_duration_s, default="10m"),
        ),
    ] = 600.0
    for_s: Annotated[
        Seconds | None,
        Flag("Stop after this time.", TIMES, "1h", names=("--for",), reading=Reading(read_duration_s)),
    ] = None
    once: Annotated[bool, Flag("Two looks one interval apart, one answer, and stop.", TIMES)] = False
    study: Annotated[
        Path | None, Flag("Hold it against the break-even that this study measured.", WORTH, "DIR")
    ] = None
    arm: Annotated[
        str | None, Flag("The study's arm that is running; default: its winner.", WORTH, "NAME")
    ] = None
    break_even: Annotated[
        float | None, Flag("Accepted length from which on it pays, where you know it.", WORTH, "X")
    ] = None
    api_key_env: Annotated[
        str | None,
        Flag("Environment variable with the key that the servers want for /metrics.", "Servers", "VAR"),
    ] = None

    def __post_init__(self) -> None:
        if not INTERVAL_MIN_S <= self.interval_s <= INTERVAL_MAX_S:
            raise UsageError(f"--interval must be between 0.1s and 1h, saw {self.interval_s:g}s")
        if not self.interval_s <= self.window_s <= WINDOW_MAX_S:
            raise UsageError(
                f"--window must be between --interval and 24h, saw {self.window_s:g}s with an interval of "
                f"{self.interval_s:g}s"
            )
        if self.break_even is not None and not 1 <= self.break_even <= 1000:
            raise UsageError(
                f"--break-even is an accepted length of at least 1, saw {self.break_even:g}",
                hint="1 + accepted / drafts; a study measures it: --study DIR",
            )
        if self.break_even is not None and self.study is not None:
            raise UsageError("--break-even and --study were both given", hint="give one of them")
        if self.once and self.for_s is not None:
            raise UsageError("--once and --for were both given", hint="give one of them")
