"""What is odd about a server's pages, whatever the answer is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from speclift.core.live import Event, MetricsReading
from speclift.core.results import Finding, warn
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
        yield warn(
            "no-token-counter",
            "the page counts no generated tokens, or a number that cannot be: nothing can be judged",
            then="look at the page itself with curl",
        )
    elif not speculates(page):
        yield warn(
            "not-speculating",
            "the page has no counter of drafts: this server runs without speculation",
            then="watch the server that speculates",
        )
    elif sums.has_traffic and sums.drafts == 0:
        yield warn(
            "no-drafts",
            "tokens were generated and none was drafted",
            then="is speculation configured? look-up drafts nothing where nothing repeats",
        )


def _of_acceptance(sums: LiveSums) -> Iterator[Finding]:
    rate = sums.acceptance_rate
    if rate is None:
        return
    if rate < COLLAPSED:
        yield warn(
            "acceptance-collapsed",
            f"{rate:.1%} of drafted tokens are accepted",
            then="restart the server; if it stays so, the draft does not fit the model: speclift verify",
        )
    elif rate > SUSPICIOUS:
        yield warn(
            "acceptance-near-one",
            f"{rate:.1%} of drafted tokens are accepted, as when answers repeat themselves",
            then="look at some answers; speclift verify compares them",
        )


def _of_events(events: Sequence[Event]) -> Iterator[Finding]:
    if Event.REPLICAS in events:
        yield warn(
            "replicas",
            "several servers answer in turn at this address: rates are those of the one that answered",
            then="give the address of each server",
        )
    if Event.IMPOSSIBLE in events:
        yield warn(
            "impossible-counters",
            "the counters say what cannot be, such as more accepted than drafted; this page was left out",
            then="is there a proxy that caches or merges pages?",
        )
