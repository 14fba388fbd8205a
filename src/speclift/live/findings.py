"""The words of a watch: does it pay, why, what is odd about the pages, what changed since it paid. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from speclift.core.answer import NextCommand, ShortAnswer, answered
from speclift.core.live import (
    BreakEvenPoint,
    BreakEvenSource,
    Event,
    Increment,
    MetricsReading,
    Payoff,
    Watched,
)
from speclift.core.quantities import duration
from speclift.core.results import Finding, Level, inform, warn
from speclift.core.units import Seconds
from speclift.live.readings import ratio
from speclift.statistics.live import Change

# Heads that never loaded and answers that repeat themselves accept nearly nothing and nearly everything (pains 4, 17).
COLLAPSED, SUSPICIOUS = 0.05, 0.98
# Smaller differences come and go.
POSITION_POINTS = 0.05
HIT_RATE_POINTS = 0.10
FACTOR = 1.3
BREAK_EVEN_FACTOR = 1.02


def watch_answer(watched: Watched, following: NextCommand | None = None) -> ShortAnswer:
    """`following` is what to run where it no longer pays."""
    stops = watched.verdict is Payoff.DOES_NOT_PAY
    return answered(_sentence(watched), _because(watched), following if stops else None)


def _sentence(watched: Watched) -> str:
    if watched.unreachable:
        return f"Unreachable: {watched.unreachable}"
    since = f"since {_clock(watched.since_s)}"
    match watched.verdict:
        case Payoff.PAYS:
            return f"Speculation pays, {since}."
        case Payoff.DOES_NOT_PAY:
            return f"Speculation does not pay, {since}: the server would be faster without it."
        case Payoff.NO_TRAFFIC:
            return f"No traffic, {since}: nothing to judge."
        case Payoff.UNSURE:
            return "Unsure whether speculation pays."


def _because(watched: Watched) -> Iterator[str]:
    length, point = watched.accepted_length, watched.break_even
    if length is not None:
        compared = "" if point is None else f"; break-even {point.accepted_length:.2f} ({point.source.value})"
        span = f"over {duration(watched.window_s)}" if watched.window_s else "since its start"
        yield f"accepted length {length.value:.2f} [{length.low:.2f}, {length.high:.2f}] {span}{compared}"
    changed = [finding for finding in watched.findings if finding.check.startswith("changed-")]
    warned = [finding for finding in watched.findings if finding.level is not Level.INFO]
    yield from (finding.message for finding in (*changed, *warned))


def page_findings(page: MetricsReading, window: Increment, events: Sequence[Event]) -> tuple[Finding, ...]:
    return (*_of_page(page, window), *_of_acceptance(window), *_of_events(events))


def speculates(page: MetricsReading) -> bool:
    """vLLM's draft counters are there only with a speculative configuration; llama.cpp's always."""
    totals = page.totals
    return totals.drafted is not None or totals.steps is not None or page.accepted_length is not None


def _of_page(page: MetricsReading, window: Increment) -> Iterator[Finding]:
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
    elif window.totals.tokens and window.totals.drafts == 0:
        yield warn(
            "no-drafts",
            "tokens were generated and none was drafted",
            then="is speculation configured? look-up drafts nothing where nothing repeats",
        )


def _of_acceptance(window: Increment) -> Iterator[Finding]:
    rate = ratio(window.totals.accepted, window.totals.drafted)
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


def break_even_findings(point: BreakEvenPoint | None) -> tuple[Finding, ...]:
    if point is None:
        return ()
    if point.source is BreakEvenSource.PLANNED:
        return (
            warn(
                "break-even-guessed",
                f"the break-even of {point.accepted_length:.2f} is a guess, between {point.low:.2f} and "
                f"{point.high:.2f}: what a step costs on this server was not measured",
                then="measure it once with speclift decide, then watch with --study DIR",
            ),
        )
    if point.high is None:
        return (
            warn(
                "load-beyond-study",
                f"{point.running:.0f} requests are under way, more than twice the study's largest load",
                then="measure that load too: speclift decide --concurrency",
            ),
        )
    return ()


def what_changed(before: Watched, now: Watched) -> tuple[Finding, ...]:
    """The likeliest cause first."""
    changes = (*_server(before, now), *_acceptance(before, now), *_load(before, now), *_mix(before, now))
    return tuple(inform(check, message) for check, message in changes)


def changed_finding(change: Change, wall_s: Seconds) -> Finding:
    return warn(
        "changed-accepted-length",
        f"the accepted length changed from {change.before:.2f} to {change.after:.2f} around {_clock(wall_s)}",
    )


def _clock(wall_s: Seconds) -> str:
    """The day too: a watch runs for weeks."""
    return datetime.fromtimestamp(wall_s, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _server(before: Watched, now: Watched) -> Iterator[tuple[str, str]]:
    if before.version and now.version and before.version != now.version:
        yield "changed-version", f"the engine is {now.version}, it was {before.version} when it paid"
    positions = len(before.per_position), len(now.per_position)
    if all(positions) and positions[0] != positions[1]:
        yield "changed-k", f"{positions[1]} tokens are drafted at a time, {positions[0]} when it paid"


def _acceptance(before: Watched, now: Watched) -> Iterator[tuple[str, str]]:
    fallen = [
        (place, was, share)
        for place, (was, share) in enumerate(zip(before.per_position, now.per_position, strict=False), 1)
        if was - share > POSITION_POINTS
    ]
    if fallen:
        place, was, share = fallen[0]
        yield (
            "changed-acceptance",
            f"drafts are accepted as far as position {place} in {share:.0%} of steps, {was:.0%} when it paid",
        )
        return
    rates = before.acceptance_rate, now.acceptance_rate
    if rates[0] is not None and rates[1] is not None and rates[0] - rates[1] > POSITION_POINTS:
        yield (
            "changed-acceptance",
            f"{rates[1]:.0%} of drafted tokens are accepted, {rates[0]:.0%} when it paid",
        )


def _load(before: Watched, now: Watched) -> Iterator[tuple[str, str]]:
    was, point = before.break_even, now.break_even
    if was is None or point is None:
        return
    # The means of both windows; a page's own load is a moment's.
    if _differs(was.running, point.running):
        yield "changed-load", f"{point.running:.0f} requests are under way, {was.running:.0f} when it paid"
    if point.accepted_length > was.accepted_length * BREAK_EVEN_FACTOR:
        yield (
            "changed-break-even",
            f"the break-even at this load is {point.accepted_length:.2f}, it was {was.accepted_length:.2f}",
        )


def _mix(before: Watched, now: Watched) -> Iterator[tuple[str, str]]:
    if _differs(before.prompt_tokens_per_request, now.prompt_tokens_per_request):
        yield (
            "changed-prompts",
            f"prompts have {now.prompt_tokens_per_request:.0f} tokens, "
            f"{before.prompt_tokens_per_request:.0f} when it paid",
        )
    if _differs(before.tokens_per_request, now.tokens_per_request):
        yield (
            "changed-answers",
            f"answers have {now.tokens_per_request:.0f} tokens, {before.tokens_per_request:.0f} when it paid",
        )
    rates = before.prefix_hit_rate, now.prefix_hit_rate
    if rates[0] is not None and rates[1] is not None and abs(rates[0] - rates[1]) > HIT_RATE_POINTS:
        yield (
            "changed-prefix-hits",
            f"{rates[1]:.0%} of prompt tokens are cached, {rates[0]:.0%} when it paid",
        )


def _differs(before: float | None, now: float | None) -> bool:
    if before is None or now is None or before <= 0:
        return False
    return not before / FACTOR <= now <= before * FACTOR
