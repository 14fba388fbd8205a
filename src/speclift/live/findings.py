"""What is odd about a server's pages, whatever the answer is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from speclift.core.live import Event, MetricsReading
from speclift.core.results import Finding, Level
from speclift.live.window import LiveSums

# Heads that never loaded and answers that repeat themselves accept nearly nothing and nearly everything (pains 4, 17).
COLLAPSED, SUSPICIOUS = 0.05, 0.98


def page_findings(page: MetricsReading, sums: LiveSums, events: Sequence[Event]) -> tuple[Finding, ...]:
    return (*_of_page(page, sums), *_of_acceptance(sums), *_of_events(events))


def speculates(page: MetricsReading) -> bool:
    """vLLM's draft counters are there only with a speculative configuration; llama.cpp's always."""
    totals = page.totals
    return totals.drafted is not None or totals.steps is not None or page.accepted_length is not None


def _of_page(page: MetricsReading, sums: LiveSums) -> Iterator[Finding]:
    if page.totals.tokens is None:
        yield Finding(
            check="no-token-counter",
            level=Level.WARN,
            message="the page counts no generated tokens, or a number that cannot be: nothing can be judged",
            next_step="look at the page itself with curl",
        )
    elif not speculates(page):
        yield Finding(
            check="not-speculating",
            level=Level.WARN,
            message="the page has no counter of drafts: this server runs without speculation",
            next_step="watch the server that speculates",
        )
    elif sums.has_traffic and sums.drafts == 0:
        yield Finding(
            check="no-drafts",
            level=Level.WARN,
            message="tokens were generated and none was drafted",
            next_step="is speculation configured? look-up drafts nothing where nothing repeats",
        )


def _of_acceptance(sums: LiveSums) -> Iterator[Finding]:
    rate = sums.acceptance_rate
    if rate is None:
        return
    if rate < COLLAPSED:
        yield Finding(
            check="acceptance-collapsed",
            level=Level.WARN,
            message=f"{rate:.1%} of drafted tokens are accepted",
            next_step="restart the server; if it stays so, the draft does not fit the model: speclift verify",
        )
    elif rate > SUSPICIOUS:
        yield Finding(
            check="acceptance-near-one",
            level=Level.WARN,
            message=f"{rate:.1%} of drafted tokens are accepted, as when answers repeat themselves",
            next_step="look at some answers; speclift verify compares them",
        )


def _of_events(events: Sequence[Event]) -> Iterator[Finding]:
    if Event.REPLICAS in events:
        yield Finding(
            check="replicas",
            level=Level.WARN,
            message="several servers answer in turn at this address: rates are those of the one that answered",
            next_step="give the address of each server",
        )
    if Event.IMPOSSIBLE in events:
        yield Finding(
            check="impossible-counters",
            level=Level.WARN,
            message="the counters say what cannot be, such as more accepted than drafted; this page was left out",
            next_step="is there a proxy that caches or merges pages?",
        )
