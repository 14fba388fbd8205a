"""Does it pay? In a sentence, with its reasons and what to do next. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from speclift.core.answer import NextCommand, ShortAnswer, answered
from speclift.core.live import Payoff, Watched
from speclift.core.quantities import duration
from speclift.core.results import Level
from speclift.live.explanation import clock


def watch_answer(watched: Watched, following: NextCommand | None = None) -> ShortAnswer:
    """`following` is what to run where it no longer pays."""
    stops = watched.payoff is Payoff.DOES_NOT_PAY
    return answered(_sentence(watched), _because(watched), following if stops else None)


def _sentence(watched: Watched) -> str:
    if watched.unreachable:
        return f"Unreachable: {watched.unreachable}"
    since = f"since {clock(watched.since_s)}"
    match watched.payoff:
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
