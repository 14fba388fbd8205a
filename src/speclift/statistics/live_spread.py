"""How much does the accepted length of a running server vary from one stretch of time to the next?

Expected at first, then learnt. Pure: scrapes in, a variance out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from speclift.core.live import Increment
from speclift.core.units import Seconds

# What requests are expected to differ by, in the log of the accepted length. In SpecDecode-Bench's public data (arXiv
# 2601.11580, Llama-3.1-8B, k 3 and 5, stretches of 100 steps) the sd is 0.09-0.11 on GSM8K and 0.18-0.24 on ShareGPT
# with EAGLE, 0.08-0.09 and 0.25-0.41 with n-gram drafts.
REQUEST_SD = 0.25
# What ten minutes differ by from the next ten, however many requests they have, because the mix wanders: n-gram drafts
# on GSM8K and on ShareGPT are 23 % apart there; shares that move by 13 points make 3 % of it.
MIX_SD = 0.03
MIX_S: Seconds = 600.0
# One page of 1, 4 or 16 requests drawn from the same data is covered at 95 % in 92.4-100 % of draws with 4 degrees of
# freedom; the least with n-gram drafts of k 5 on ShareGPT.
EXPECTED_DF = 4.0
# Where answers are not counted: as many tokens as one is taken to have.
TOKENS_PER_REQUEST = 256.0
STEPS_MIN = 1e-3
# Night and day are both in it.
MEMORY_S: Seconds = 86_400.0
# A difference of more than four expected standard deviations is a change, not the server's way.
SQUARE_MAX = 16.0


class Scrape(NamedTuple):
    """What decoding did between two readings."""

    from_s: Seconds
    seconds: Seconds
    tokens: float
    steps: float
    # Answers that began, and answers under way at once.
    begun: float
    at_once: float

    @property
    def log_length(self) -> float:
        return math.log(max(1.0, self.tokens / self.steps))


def scrape_of(increment: Increment) -> Scrape | None:
    """None where the server does not say how many steps there were."""
    if increment.steps is None or increment.step_tokens is None:
        return None
    counted = increment.totals.requests
    # From gauges steps are no whole numbers; so small a part of one is none.
    steps = increment.steps if increment.steps >= STEPS_MIN else 0.0
    return Scrape(
        from_s=increment.from_s,
        seconds=increment.seconds,
        tokens=increment.step_tokens,
        steps=steps,
        begun=increment.step_tokens / TOKENS_PER_REQUEST if counted is None else counted,
        at_once=increment.running or 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSpread:
    """How much a server varies, as a multiple of what is expected, and with how many degrees of freedom."""

    scale: float = 1.0
    df: float = EXPECTED_DF

    def variance(self, requests: float, seconds: Seconds = MIX_S) -> float:
        """Of the log accepted length of a stretch of `seconds` that rests on so many requests.

        By day many requests show that the mix hardly wanders; that says nothing about single requests, which are what
        matters at night. So these are never taken to differ by less than expected.
        """
        return max(1.0, self.scale) * REQUEST_SD**2 / requests + self.scale * MIX_SD**2 * MIX_S / seconds


EXPECTED_SPREAD = TrafficSpread()


@dataclass(slots=True)
class WindowSums:
    """What scrapes add up to, and how many requests that rests on."""

    seconds: Seconds = 0.0
    tokens: float = 0.0
    steps: float = 0.0
    begun: float = 0.0
    at_once: float = 0.0
    # Of squared steps over requests: large where few scrapes have most of the steps.
    unevenness: float = 0.0

    def add(self, scrape: Scrape) -> None:
        self.seconds += scrape.seconds
        if scrape.steps <= 0:
            return
        self.tokens += scrape.tokens
        self.steps += scrape.steps
        self.begun += scrape.begun
        self.at_once = max(self.at_once, scrape.at_once)
        self.unevenness += scrape.steps**2 / max(1.0, scrape.begun, scrape.at_once)

    @property
    def log_length(self) -> float:
        return math.log(max(1.0, self.tokens / self.steps))

    @property
    def requests(self) -> float:
        """An answer that runs on is no further one, and many that hardly began do not outweigh one with all steps."""
        even = self.steps**2 / self.unevenness if self.unevenness > 0 else 0.0
        return max(1.0, min(max(self.begun, self.at_once), even))


def window_sums(scrapes: Sequence[Scrape]) -> WindowSums:
    sums = WindowSums()
    for scrape in scrapes:
        sums.add(scrape)
    return sums


@dataclass(slots=True)
class SpreadWatch:
    """Learns a server's spread from windows that follow each other, whose difference a daily rhythm hardly moves."""

    window: WindowSums = field(default_factory=WindowSums)
    last_log_length: float | None = None
    last_variance: float = 0.0
    squares: float = 0.0
    differences: float = 0.0

    @property
    def spread(self) -> TrafficSpread:
        """What was seen together with what is expected. Each window is in two differences, so that three of these tell
        as much as two that share none."""
        return TrafficSpread(
            scale=(EXPECTED_DF + self.squares) / (EXPECTED_DF + self.differences),
            df=EXPECTED_DF + self.differences * 2 / 3,
        )

    def interrupt(self) -> None:
        """What comes next is not compared with what was; how much the server varies is remembered."""
        self.window, self.last_log_length = WindowSums(), None

    def follow(self, scrape: Scrape) -> None:
        self.window.add(scrape)
        if self.window.seconds >= MIX_S:
            self._close_window()

    def _close_window(self) -> None:
        window, self.window = self.window, WindowSums()
        kept = math.exp(-window.seconds / MEMORY_S)
        self.squares *= kept
        self.differences *= kept
        if window.steps <= 0:
            return
        log_length, variance = window.log_length, EXPECTED_SPREAD.variance(window.requests)
        if self.last_log_length is not None:
            square = (log_length - self.last_log_length) ** 2 / (variance + self.last_variance)
            self.squares += min(square, SQUARE_MAX)
            self.differences += 1.0
        self.last_log_length, self.last_variance = log_length, variance
