"""Is there time to search, and is that quicker than measuring every arm? From launches alone: cells are cut to the time
there is, launches are not."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.quantities import duration
from speclift.core.units import Seconds

# Of the time that the lossless gate leaves; the rest is the confirmation's.
SEARCH_SHARE = 0.4
QUICK_SEARCH_SHARE = 0.285
# What a search may take of it at the most where launches are slow, and what one costs with its cell, in launches.
SEARCH_SHARE_MAX = 0.57
LAUNCH_ROOM = 1.5
# Of the confirmation, at the least: the baseline and the winner.
CONFIRMED_LAUNCHES = 2
# Of a whole search: the baseline and one way of drafting, without which there is nothing to choose between, and those.
# Further ways of drafting join while time lasts.
SHORTEST_LAUNCHES = 2 + CONFIRMED_LAUNCHES
# What launches may take where they are what takes the time: a vLLM server starts in 90 s and more on a GPU and answers
# a cell of two dozen prompts in a few seconds.
LAUNCHING_SHARE_MAX = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTime:
    """What there is, and what a launch takes, by what is known before the first."""

    # Of search, confirmation and gate together; None is for as long as it takes.
    budget_s: Seconds | None
    # The gate's part of it.
    gate_share: float
    launch_s: Seconds
    is_quick: bool

    @property
    def working_s(self) -> Seconds | None:
        """For search and confirmation."""
        return None if self.budget_s is None else self.budget_s * (1.0 - self.gate_share)

    def search_s(self, *, drafters: int) -> Seconds | None:
        """The search's part; None where it has no limit."""
        if self.working_s is None:
            return None
        share = QUICK_SEARCH_SHARE if self.is_quick else SEARCH_SHARE
        most_s = max(self.working_s * share, self.working_s - CONFIRMED_LAUNCHES * self.launch_s)
        return min(max(self.working_s * share, self._calibrating_s(drafters)), most_s)

    def cells_s(self, *, drafters: int) -> Seconds | None:
        """What of that its cells may take: launches that they cannot do without come first."""
        search_s = self.search_s(drafters=drafters)
        if self.working_s is None or search_s is None:
            return None
        left_s = max(0.0, self.working_s - SHORTEST_LAUNCHES * self.launch_s)
        return min(search_s, max(left_s, (1.0 - LAUNCHING_SHARE_MAX) * self.working_s))

    def course(self, *, drafters: int, arms: int, is_named: bool) -> Course:
        """`arms`: how many would be measured without a search; not `is_named`: the few that the engine has by default,
        which the search goes beyond."""
        if self.working_s is None or self._calibrating_s(drafters) <= SEARCH_SHARE_MAX * self.working_s:
            return Course(searches=True)
        searching, shortest = 1 + drafters + CONFIRMED_LAUNCHES, SHORTEST_LAUNCHES
        fits = shortest * self.launch_s <= LAUNCHING_SHARE_MAX * self.working_s
        each = f"of about {duration(self.launch_s)}"
        if fits and (searching <= arms or not is_named):
            why = f"a search takes {shortest} to {searching} launches {each}"
            return Course(
                searches=True, why=f"{why}, measuring all {arms} arms {1 + arms}" if is_named else why
            )
        if fits:
            return Course(
                searches=False,
                why=f"all take {1 + arms} launches {each}, a search {searching}: it is not quicker",
            )
        return Course(
            searches=False,
            why=f"a search takes at least {shortest} launches {each}, and there are {duration(self.working_s)}",
        )

    def _calibrating_s(self, drafters: int) -> Seconds:
        """Baseline and one run of every way of drafting, one after the other."""
        return (1 + drafters) * self.launch_s * LAUNCH_ROOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Whether to search; why, where launches are so slow that it is a question."""

    searches: bool
    why: str = ""
