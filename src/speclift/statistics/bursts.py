"""Which answers came in one burst? Something on the way, mostly a proxy, held them until they were whole.

Such an answer says when it was complete and nothing about the time per token. Told by its time per decode step beside
that of other answers at the same load: a fast answer has few steps, a held-back one has none of their time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from speclift.core.records import Phase, Record
from speclift.core.results import Finding, Level
from speclift.core.traffic import Load
from speclift.core.units import Seconds

# Fewer tokens may be one or two steps, or be read together by a client that was late for once.
BURST_TOKENS_MIN = 8
# Of a usual step at the same load. Where the drafts are not told, a step is taken to yield one token, and one that
# yields 49 (llama.cpp's n-gram drafter at its default) has just more than this share.
BURST_STEP_SHARE = 0.02
# Upper quartile: up to three quarters of the answers may be held back and the rest still tells.
USUAL_PERCENTILE = 75
# No engine of 2026 writes 100,000 tokens a second into one stream; the fastest that are sold write some 3,000.
TOKEN_S_MIN = 1e-5
# A few per cent may be an accident of the network.
BURST_SHARE = 0.03


def mark_bursts(records: Sequence[Record]) -> tuple[Record, ...]:
    """The same records; those that came in one burst are marked, and have no time per token."""
    usual_s = _usual_step_s(records)

    def marked(record: Record) -> Record:
        return replace(record, is_in_one_burst=True) if _is_burst(record, usual_s) else record

    return tuple(marked(record) for record in records)


def check_bursts(records: Sequence[Record]) -> Iterator[Finding]:
    """Of marked records."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for record in records:
        if record.place.phase is Phase.MEASURED and _span_s(record) is not None:
            counts[record.place.arm][0] += record.is_in_one_burst
            counts[record.place.arm][1] += 1
    for arm, (bursts, answers) in counts.items():
        if bursts:
            yield Finding(
                check="buffered-answers",
                level=Level.WARN if bursts > BURST_SHARE * answers else Level.INFO,
                message=f"{arm}: {bursts} of {answers} answers with {BURST_TOKENS_MIN} tokens or more came in one "
                "burst: their time per token is unknown, and their TTFT is the time of the whole answer",
                next_step="something buffers the stream: turn buffering off (nginx: proxy_buffering off, or the header "
                "X-Accel-Buffering: no), or measure the server directly",
                arm=arm,
            )


def _usual_step_s(records: Sequence[Record]) -> dict[Load, Seconds]:
    """Of the arm with the slowest steps: of one whose answers are all held back, the others tell."""
    steps: dict[tuple[Load, str], list[Seconds]] = defaultdict(list)
    for record in records:
        span_s = _span_s(record)
        if span_s is not None and record.place.phase is Phase.MEASURED:
            steps[record.place.load, record.place.arm].append(span_s / _steps(record))
    usual: dict[Load, Seconds] = defaultdict(float)
    for (load, _), times in steps.items():
        usual[load] = max(usual[load], float(np.percentile(times, USUAL_PERCENTILE)))
    return usual


def _is_burst(record: Record, usual_s: dict[Load, Seconds]) -> bool:
    span_s = _span_s(record)
    if span_s is None:
        return False
    if span_s < TOKEN_S_MIN * ((record.output_tokens or 0) - 1):
        return True
    return span_s / _steps(record) < BURST_STEP_SHARE * usual_s.get(record.place.load, 0.0)


def _span_s(record: Record) -> Seconds | None:
    """From the first token to the last of an answer long enough to tell."""
    if not record.is_ok or record.first_token_s is None or record.last_token_s is None:
        return None
    if record.output_tokens is None or record.output_tokens < BURST_TOKENS_MIN:
        return None
    return record.last_token_s - record.first_token_s


def _steps(record: Record) -> int:
    return record.decode_steps or max(1, (record.output_tokens or 0) - 1)
