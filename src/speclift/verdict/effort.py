"""What a study took, so that the time of the next one can be told from it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from speclift.core.units import Seconds, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    # As planned: servers beside each other, requests per load and launch, launches of each server.
    arms: int
    requests: int
    launches: int
    # All requests of the plan, and those of them that were sent; arms that failed are in neither.
    planned: int
    asked: int
    # Server starts, and the time in which any server started or any request was under way.
    starts: int
    starting_s: Seconds
    asking_s: Seconds
    # Of the lossless gate; 0 where none ran.
    checking_s: Seconds
    # From start to ready, by arm.
    ready_s: Mapping[str, Seconds]
    # The prompts' segments, and the highest limit of any.
    segments: tuple[str, ...]
    max_tokens: Tokens | None
    # Distinct prompts to be had, by segment; None where only their file knows.
    pool: Mapping[str, int] | None
    # Ended before all was sent, because nothing more could change the verdict.
    is_settled: bool = False

    @property
    def missing(self) -> int:
        """Requests that would still be sent if the study went on."""
        return 0 if self.is_settled else max(0, self.planned - self.asked)

    def seconds_for(self, *, arms: int, requests: int, launches: int) -> Seconds | None:
        """Of a study of so many; None where this one has measured too little to tell."""
        if not self.asked or not self.planned:
            return None
        cells = self.planned / (self.arms * self.requests * self.launches)
        return (
            arms * launches * self._start_s
            + arms * launches * requests * cells * self._request_s
            + self.checking_s
        )

    def seconds_to_end(self) -> Seconds | None:
        """What is left of the plan."""
        if not self.asked:
            return None
        rounds = math.ceil(self.missing / (self.planned / self.launches))
        return rounds * self.arms * self._start_s + self.missing * self._request_s + self.checking_s

    @property
    def _start_s(self) -> Seconds:
        return self.starting_s / self.starts if self.starts else 0.0

    @property
    def _request_s(self) -> Seconds:
        return self.asking_s / self.asked
