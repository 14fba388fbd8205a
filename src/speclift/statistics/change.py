"""Has the accepted length of a running server changed: when, from what, to what?

A reference follows the server slowly, so that a daily rhythm moves it too. By how much scrapes lie above or below it,
beyond what does not matter, is added up as evidence (a two-sided CUSUM of log likelihood ratios); enough of it is a
change, and it began where the evidence did. Pure: the state is plain numbers, and a scrape costs a few microseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from speclift.core.live import Increment
from speclift.core.units import Seconds
from speclift.statistics.live_spread import MIX_S, Scrape, SpreadWatch, TrafficSpread, scrape_of

# In logs: what lies within a tenth of the reference flips no decision and is no evidence, however long it lasts. It is
# half of the shift that the likelihood ratio is for.
RELEVANT = 0.10
# How long the reference remembers. A rhythm of 24 hours and 12 % either way leaves it behind by 3 % at most.
REFERENCE_S: Seconds = 3600.0
# A reference has to be known to about 7 % (one over its variance, in logs) before anything is compared with it: 2
# minutes with many requests, 15 with one a minute. Until it is known well, a change must be larger by its own sd.
REFERENCE_INFORMATION = 200.0
REFERENCE_DOUBT = 1.0
# Log of the likelihood ratio that is enough. Over 1,000 weeks it leaves 0.05 false alarms a week; 15 leaves 0.02, and a
# change takes a fifth longer to be noticed (benchmarks/watch_alarms.py).
EVIDENCE = 12.0
# No single scrape counts for more: it takes several.
DISTANCE_MAX = 1.0
# Over which the number of requests is smoothed: an answer's tokens come for a while after it began.
RATE_S: Seconds = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Of the accepted length, on the clock of the scrapes."""

    at_s: Seconds
    before: float
    after: float


@dataclass(slots=True)
class _Evidence:
    """For a change in one direction, since it was last nought."""

    total: float = 0.0
    since_s: Seconds = 0.0
    before: float = 0.0
    tokens: float = 0.0
    steps: float = 0.0

    def add(self, ratio: float, scrape: Scrape, reference: float) -> None:
        if self.total <= 0.0:
            self.total, self.since_s, self.before = 0.0, scrape.from_s, reference
            self.tokens = self.steps = 0.0
        self.total += ratio
        self.tokens += scrape.tokens
        self.steps += scrape.steps

    def change(self) -> Change | None:
        if self.total < EVIDENCE:
            return None
        return Change(
            at_s=self.since_s, before=math.exp(self.before), after=max(1.0, self.tokens / self.steps)
        )


@dataclass(slots=True)
class ChangeWatch:
    """One server's. `dataclasses.asdict` keeps it, `core.typed_json.read_as` brings it back."""

    # The log of the accepted length as it was, and one over its variance.
    reference: float = 0.0
    information: float = 0.0
    # Answers begun and seconds, each the less the longer ago.
    begun: float = 0.0
    seconds: Seconds = 0.0
    rise: _Evidence = field(default_factory=_Evidence)
    fall: _Evidence = field(default_factory=_Evidence)
    spreads: SpreadWatch = field(default_factory=SpreadWatch)

    @property
    def spread(self) -> TrafficSpread:
        """How much this server varies, for `accepted_length`."""
        return self.spreads.spread

    def forget(self) -> None:
        """What comes next is another server, or another k: it is learnt anew."""
        self.information = 0.0
        self.rise, self.fall = _Evidence(), _Evidence()
        self.spreads.interrupt()

    def follow(self, increment: Increment) -> Change | None:
        """The change that this scrape made certain, if it did; what is after it is then learnt anew."""
        scrape = scrape_of(increment)
        return None if scrape is None or scrape.seconds <= 0 else self.follow_scrape(scrape)

    def follow_scrape(self, scrape: Scrape) -> Change | None:
        self.spreads.follow(scrape)
        self.information *= math.exp(-scrape.seconds / REFERENCE_S)
        kept = math.exp(-scrape.seconds / RATE_S)
        self.begun = self.begun * kept + scrape.begun
        self.seconds = self.seconds * kept + scrape.seconds
        if scrape.steps <= 0:
            return None
        variance = self.spread.variance(self._requests(scrape), scrape.seconds)
        log_length = scrape.log_length
        if self.information >= REFERENCE_INFORMATION:
            distance = max(-DISTANCE_MAX, min(DISTANCE_MAX, log_length - self.reference))
            change = self._weigh(distance, variance, scrape)
            if change is not None:
                self.forget()
                return change
            log_length = self.reference + distance
        self.information += 1.0 / variance
        self.reference += (log_length - self.reference) / (variance * self.information)
        return None

    def _requests(self, scrape: Scrape) -> float:
        """The scrape's share: those under way at once count once in ten minutes, not at every scrape."""
        return scrape.seconds * max(self.begun / self.seconds, max(1.0, scrape.at_once) / MIX_S)

    def _weigh(self, distance: float, variance: float, scrape: Scrape) -> Change | None:
        margin = RELEVANT + REFERENCE_DOUBT / math.sqrt(self.information)
        for evidence, beyond in ((self.rise, distance), (self.fall, -distance)):
            evidence.add(2.0 * RELEVANT * (beyond - margin) / variance, scrape, self.reference)
        return self.rise.change() or self.fall.change()
