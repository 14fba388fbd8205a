"""What is otherwise than it was when speculation still paid, as far as metrics tell. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from speclift.core.live import Watched
from speclift.core.results import Finding, inform, warn
from speclift.core.units import Seconds
from speclift.statistics.change import Change

# Smaller differences come and go.
POSITION_POINTS = 0.05
HIT_RATE_POINTS = 0.10
FACTOR = 1.3
BREAK_EVEN_FACTOR = 1.02


def what_changed(before: Watched, now: Watched) -> tuple[Finding, ...]:
    """The likeliest cause first."""
    changes = (*_server(before, now), *_acceptance(before, now), *_load(before, now), *_mix(before, now))
    return tuple(inform(check, message) for check, message in changes)


def changed_finding(change: Change, wall_s: Seconds) -> Finding:
    return warn(
        "changed-accepted-length",
        f"the accepted length changed from {change.before:.2f} to {change.after:.2f} around {clock(wall_s)}",
    )


def clock(wall_s: Seconds) -> str:
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
