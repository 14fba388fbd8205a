"""The accepted length of a running server: its interval over a window of scrapes, how much it varies by itself, and
whether it changed. Pure: scrapes in, plain numbers as state.

The doubt is taken from how scrapes differ, not from counts of steps: steps of one request are alike, and so are
requests of one minute. How much a server varies from one stretch of time to the next is expected at first, then learnt.

A change: a reference follows the server slowly, so that a daily rhythm moves it too. By how much scrapes lie above or
below it, beyond what does not matter, is added up as evidence (a two-sided CUSUM of log likelihood ratios); enough of
it is a change, and it began where the evidence did. A scrape costs a few microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from speclift.core.live import Increment, LiveEstimate
from speclift.core.results import CONFIDENCE
from speclift.core.units import Seconds

Floats = NDArray[np.float64]

# For a server that is looked at every 15 s for weeks, over windows of ten minutes. One that lies exactly at its
# break-even is then said not to pay 0.7 times a week (200 weeks of benchmarks/watch_alarms.py), and to pay as often;
# one 5 % above it 0.14 times. At 0.999 it was 1.1 times a week at the edge.
WATCH_LEVEL = 0.9995
# Cosines over the window. At the level above and with nothing learnt, 30 weeks at the edge gave no false answer with
# two, and intervals a third wider; 0.2 a week with four, and 1.6 with eight: these no longer see what neighbouring
# minutes have in common.
WAVES = 4
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


class Scrape(NamedTuple):
    """Decoding between two readings."""

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
        """Variance of the log accepted length of a stretch of `seconds` that rests on so many requests.

        By day many requests show that the mix hardly wanders; that says nothing about single requests, which are what
        matters at night. So these are never taken to differ by less than expected.
        """
        return max(1.0, self.scale) * REQUEST_SD**2 / requests + self.scale * MIX_SD**2 * MIX_S / seconds


EXPECTED_SPREAD = TrafficSpread()


@dataclass(slots=True)
class WindowSums:
    """Sums over scrapes, and how many requests they rest on."""

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
        """The spread that was seen together with the expected one. Each window is in two differences, so that three of
        these tell as much as two that share none."""
        return TrafficSpread(
            scale=(EXPECTED_DF + self.squares) / (EXPECTED_DF + self.differences),
            df=EXPECTED_DF + self.differences * 2 / 3,
        )

    def interrupt(self) -> None:
        """Compares nothing with what was before; how much the server varies is remembered."""
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


def accepted_length(
    increments: Sequence[Increment], *, level: float = CONFIDENCE, spread: TrafficSpread = EXPECTED_SPREAD
) -> LiveEstimate | None:
    """Tokens over steps; None where nothing was decoded.

    `spread`: what was learnt of this server before (`ChangeWatch.spread`), else what is expected of any.
    """
    scrapes = [scrape for scrape in map(scrape_of, increments) if scrape is not None and scrape.steps > 0]
    if not scrapes:
        return None
    variance, df = _log_variance(scrapes, spread)
    value = math.exp(window_sums(scrapes).log_length)
    stretch = math.exp(float(special.stdtrit(df, (1.0 + level) / 2.0)) * math.sqrt(variance))
    return LiveEstimate(
        value=value, low=max(1.0, value / stretch), high=value * stretch, level=level, scrapes=len(scrapes)
    )


def _log_variance(scrapes: Sequence[Scrape], spread: TrafficSpread) -> tuple[float, float]:
    tokens = np.array([scrape.tokens for scrape in scrapes])
    steps = np.array([scrape.steps for scrape in scrapes])
    seen, seen_df = seen_variance(tokens, steps)
    expected = np.array(spread.variance(window_sums(scrapes).requests))
    variance, df = together(seen, seen_df, expected, np.array(spread.df))
    return float(variance), float(df)


def seen_variance(tokens: Floats, steps: Floats) -> tuple[Floats, Floats]:
    """Variance of the log of the ratio of sums along the last axis, and its degrees of freedom.

    Residuals of the ratio are projected on the slowest cosines over the steps (the equal-weighted cosine estimator of a
    long-run variance): what varies within seconds averages out in these as it does in the ratio, what varies
    over minutes does in neither. One scrape that has nearly all steps leaves less than one degree of freedom.
    """
    total = steps.sum(axis=-1, keepdims=True)
    share = steps / total
    ratio = np.maximum(1.0, tokens.sum(axis=-1, keepdims=True) / total)
    residuals = (tokens / ratio - steps) / total
    middle = np.cumsum(share, axis=-1) - share / 2.0
    # Rounding makes scrapes that are all equal one too many by a hair.
    df = np.clip(1.0 / np.sum(share**2, axis=-1) - 1.0, 0.0, WAVES)
    squares = np.zeros_like(df)
    for order in range(1, WAVES + 1):
        wave = math.sqrt(2.0) * np.sum(residuals * np.cos(math.pi * order * middle), axis=-1)
        squares = squares + np.clip(df - order + 1.0, 0.0, 1.0) * wave**2
    return squares / np.maximum(df, np.finfo(np.float64).tiny), df


def together(seen: Floats, seen_df: Floats, expected: Floats, expected_df: Floats) -> tuple[Floats, Floats]:
    """Seen and expected variance, weighed by degrees of freedom; never less than what was seen."""
    df = seen_df + expected_df
    return np.maximum(seen, (seen_df * seen + expected_df * expected) / df), df


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the accepted length, on the clock of the scrapes."""

    at_s: Seconds
    before: float
    after: float


@dataclass(slots=True)
class _Evidence:
    """Evidence of a change in one direction, since it was last nought."""

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
    """One server's. `dataclasses.asdict` keeps it, `core.document.read` brings it back."""

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
        """Learns anew: what comes next is another server, or another k."""
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
