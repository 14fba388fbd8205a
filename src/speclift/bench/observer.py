"""What somebody who looks on is told while a command works."""

from __future__ import annotations

from speclift.core.results import Finding
from speclift.core.units import Seconds
from speclift.search.problem import SearchJob


class Observer:
    """One method per event. This one shows nothing; whoever wants to see some of them overrides those."""

    def say(self, text: str) -> None:
        """A sentence on the way."""

    def searching(self, job: SearchJob, *, done: int, left_s: Seconds | None) -> None:
        """The next launch of a search: which, at what loads, why. `left_s` of the search's time, where it has one."""

    def launching(self, arm: str, round_index: int) -> None: ...

    def turn_done(self, arm: str, *, done: int, total: int, left_s: Seconds) -> None: ...

    def soaking(
        self,
        arm: str,
        *,
        launch: int,
        stage: str,
        streams: int,
        requests: int,
        faults: int,
        done: float,
        left_s: Seconds,
    ) -> None:
        """A soak at work, now and then; `done` is the share of its time."""

    def noticed(self, finding: Finding) -> None: ...
