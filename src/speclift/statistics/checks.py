"""Validity findings: what in the records makes a comparison worth less than it looks.

FAIL without an arm means the whole study cannot support a verdict; everything else informs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy import special

from speclift.core.arm import BASELINE
from speclift.core.records import Phase, Record, TurnHealth
from speclift.core.results import Finding, fail, inform, warn
from speclift.core.traffic import Concurrency, Load, Rate
from speclift.statistics.answer_checks import check_answers
from speclift.statistics.balance import PromptCounts
from speclift.statistics.bursts import check_bursts
from speclift.statistics.cells import values_of
from speclift.statistics.failures import causes_of, told
from speclift.statistics.loops import degenerate_segments
from speclift.statistics.pairs import LENGTH_SHARE, paired_lengths

PROMPTS_MIN = 20  # fewer hide how unlike prompts are (method.md 4.2)
SEGMENT_PROMPTS_MIN = 10
LAUNCHES_MIN = 3
# A client later than this share of TTFT P50 distorts what it measures (method.md 4.4).
CLIENT_LAG_SHARE = 0.05
CLIENT_CPU_SHARE_MAX = 0.8
# A starved moment blurs a turn or two and moves no median; beyond a tenth of the turns it is the client's habit.
BLURRED_TURNS_PERCENTILE = 90
# No claim of this tool rests on less than a millisecond of TTFT.
CLIENT_LATE_FLOOR_S = 0.001
DRIFT_SHARE = 0.10
DRIFT_SIGNIFICANCE = 0.01
QUEUE_GROWTH = 2.0
REQUESTS_PER_STREAM_MIN = 4


def check_records(
    records: Sequence[Record], *, prompt_counts: PromptCounts | None = None
) -> tuple[Finding, ...]:
    """`prompt_counts` are the workload's where a study ends as soon as it is settled: that few of them were sent,
    and that a dropped arm was launched once, is then no lack."""
    measured = [record for record in records if record.place.phase is Phase.MEASURED]
    if not measured:
        return ()
    return (
        *_failed(measured),
        *_few_prompts(measured, prompt_counts or {}),
        *_few_launches(measured, in_laps=prompt_counts is not None),
        *_short_loads(measured),
        *_client_lag(measured),
        *_drift(measured),
        *_saturation(measured),
        *_output_length(measured),
        *_degenerate(measured),
        *_unknown_tokens(measured),
        *check_answers(records),
        *check_bursts(records),
    )


def check_client(turns: Sequence[TurnHealth], records: Sequence[Record] = ()) -> Iterator[Finding]:
    """The load generator at each load: near a whole core it queues behind itself; late, it blurs what it reads."""
    for load in dict.fromkeys(turn.load for turn in turns):
        here = [turn for turn in turns if turn.load == load]
        yield from _client_reading(load, here, records)
        wall_s = sum(turn.wall_s for turn in here)
        share = sum(turn.cpu_s for turn in here) / wall_s if wall_s > 0 else 0.0
        if share > CLIENT_CPU_SHARE_MAX:
            lag_s = max(turn.loop_lag_p99_s for turn in here)
            yield warn(
                "client-cpu",
                f"at {load.label} the load generator used {share:.0%} of a core; its event loop "
                f"was up to {lag_s * 1000:.1f} ms late (P99 of the worst turn)",
                then="add --workers 2, leave a core free (--threads), or send from another machine",
            )


def _client_reading(load: Load, turns: Sequence[TurnHealth], records: Sequence[Record]) -> Iterator[Finding]:
    own = [r for r in records if r.place.load == load and r.place.phase is Phase.MEASURED]
    ttfts = values_of(own, "ttft")
    blur_s = float(np.percentile([turn.stamp_blur_p99_s for turn in turns], BLURRED_TURNS_PERCENTILE))
    if ttfts and blur_s > max(CLIENT_LATE_FLOOR_S, CLIENT_LAG_SHARE * float(np.median(ttfts))):
        yield fail(
            "client-reading",
            f"at {load.label} the client read first tokens late in over 10% of its turns: up to "
            f"{blur_s * 1000:.1f} ms at P99, more than {CLIENT_LAG_SHARE:.0%} of the TTFT P50 of "
            f"{float(np.median(ttfts)) * 1000:.1f} ms",
            then="free a core for the client, add --workers 2, or lower the load",
        )


def _failed(measured: Sequence[Record]) -> Iterator[Finding]:
    for arm, members in _by_arm(measured).items():
        failed = [record for record in members if not record.is_ok]
        if failed:
            causes = causes_of(failed)
            yield warn(
                "failed-requests",
                f"{arm}: {len(failed)} of {len(members)} requests failed{told(causes)}",
                then=causes[0].hint,
                arm=arm,
            )


def _few_prompts(measured: Sequence[Record], prompt_counts: PromptCounts) -> Iterator[Finding]:
    by_segment: dict[str, set[str]] = defaultdict(set)
    for record in measured:
        by_segment[record.place.segment].add(record.place.request_id)
    there = {name: max(len(ids), prompt_counts.get(name, 0)) for name, ids in by_segment.items()}
    prompts = sum(there.values())
    if prompts < PROMPTS_MIN:
        yield warn(
            "few-prompts",
            f"only {prompts} prompts; use at least {PROMPTS_MIN} to see how much prompts differ",
            then="give more --prompts, or raise --requests or --budget",
        )
    thin = sorted(name for name, count in there.items() if count < SEGMENT_PROMPTS_MIN)
    if thin and len(there) > 1:
        yield inform(
            "few-prompts-per-segment",
            f"under {SEGMENT_PROMPTS_MIN} prompts in: {', '.join(thin)}; a slowdown there does not stop a SHIP",
            then="raise --requests or --budget",
        )


def _few_launches(measured: Sequence[Record], *, in_laps: bool) -> Iterator[Finding]:
    counts = [len({r.place.round for r in members}) for members in _by_arm(measured).values()]
    launches = max(counts) if in_laps else min(counts)
    if launches == 1:
        yield warn(
            "single-launch",
            "one launch per arm: the interval does not include differences between launches",
            then="use --launches 3 or more",
        )
    elif launches < LAUNCHES_MIN and not in_laps:
        yield warn(
            "few-launches",
            f"only {launches} launches per arm: the confidence intervals are wide",
            then=f"use --launches {LAUNCHES_MIN} or a longer --budget",
        )


def _short_loads(measured: Sequence[Record]) -> Iterator[Finding]:
    items: dict[Load, set[tuple[str, float | None, int]]] = defaultdict(set)
    for record in measured:
        place = record.place
        items[place.load].add((place.request_id, place.temperature, place.repeat))
    for load, sent in items.items():
        if isinstance(load, Concurrency) and len(sent) < REQUESTS_PER_STREAM_MIN * load.streams:
            yield warn(
                "short-load",
                f"only {len(sent)} requests at {load.label}: much of the time is ramp-up and ramp-down",
                then=f"use at least {REQUESTS_PER_STREAM_MIN * load.streams} requests at this load",
            )


def _client_lag(measured: Sequence[Record]) -> Iterator[Finding]:
    by_load: dict[Load, list[Record]] = defaultdict(list)
    for record in measured:
        by_load[record.place.load].append(record)
    for load, members in by_load.items():
        ttfts = values_of(members, "ttft")
        lag_s = float(np.percentile([record.lag_s for record in members], 99))
        if ttfts and lag_s > max(CLIENT_LATE_FLOOR_S, CLIENT_LAG_SHARE * float(np.median(ttfts))):
            yield fail(
                "client-lag",
                f"at {load.label} the client sent requests {lag_s * 1000:.1f} ms late at P99, more than "
                f"{CLIENT_LAG_SHARE:.0%} of the TTFT P50 of {float(np.median(ttfts)) * 1000:.1f} ms",
                then="lower the load, free a core for the client, or send from another machine",
            )


def _drift(measured: Sequence[Record]) -> Iterator[Finding]:
    """The baseline's own TPOT against time, prompts held fixed: interleaving cancels it, but say so."""
    baseline = [r for r in measured if r.place.arm == BASELINE and r.is_ok and r.tpot_s]
    times, logs = _within_units(baseline)
    if len(times) < 10 or np.ptp(times) == 0:
        return
    slope = np.dot(times, logs) / np.dot(times, times)
    change = float(np.expm1(slope * np.ptp([record.sent_s for record in baseline])))
    if abs(change) > DRIFT_SHARE and _slope_p_value(times, logs) < DRIFT_SIGNIFICANCE:
        yield warn(
            "drift",
            f"the baseline's own time per token changed by {change:+.0%} during the study",
            then="check what else runs on this machine; interleaving cancels only a steady drift",
        )


def _within_units(records: Iterable[Record]) -> tuple[list[float], list[float]]:
    """When each request was sent and its log TPOT, both against the mean of its prompt, load and temperature: where in
    a round a prompt comes says nothing about the machine."""
    by_unit: dict[tuple[str, Load, float | None], list[Record]] = defaultdict(list)
    for record in records:
        by_unit[(record.place.request_id, record.place.load, record.place.temperature)].append(record)
    times: list[float] = []
    logs: list[float] = []
    for members in by_unit.values():
        if len(members) > 1:
            sent = np.array([record.sent_s for record in members])
            log_tpot = np.log([record.tpot_s or 1.0 for record in members])
            times += (sent - sent.mean()).tolist()
            logs += (log_tpot - log_tpot.mean()).tolist()
    return times, logs


def _slope_p_value(x: Sequence[float], y: Sequence[float]) -> float:
    """Of a correlation this far from none, by Student's t."""
    unexplained = 1.0 - float(np.corrcoef(x, y)[0, 1]) ** 2
    return float(special.betainc(len(x) / 2 - 1, 0.5, max(0.0, unexplained)))


def _saturation(measured: Sequence[Record]) -> Iterator[Finding]:
    """An open loop whose TTFT keeps growing is beyond capacity: its percentiles are of the run's length."""
    turns: dict[tuple[str, Load, int], list[Record]] = defaultdict(list)
    for record in measured:
        if isinstance(record.place.load, Rate) and record.ttft_s is not None:
            turns[(record.place.arm, record.place.load, record.place.launch)].append(record)
    seen: set[tuple[str, Load]] = set()
    for (arm, load, _), members in turns.items():
        members.sort(key=lambda record: record.intended_s)
        third = len(members) // 3
        if third < 5 or (arm, load) in seen:
            continue
        first = float(np.median(values_of(members[:third], "ttft")))
        last = float(np.median(values_of(members[-third:], "ttft")))
        if last > QUEUE_GROWTH * first:
            seen.add((arm, load))
            yield warn(
                "saturation",
                f"{arm} at {load.label}: TTFT grew from {first * 1000:.0f} to {last * 1000:.0f} ms "
                "within a turn; the queue was still growing",
                then="this load is above capacity: compare at lower loads",
                arm=arm,
            )


def _output_length(measured: Sequence[Record]) -> Iterator[Finding]:
    """A shift of lengths is no speed: it moves the raw end-to-end ratio, and not the one at the baseline's lengths."""
    for arm in dict.fromkeys(record.place.arm for record in measured):
        lengths = [] if arm == BASELINE else paired_lengths(measured, arm)
        if not lengths:
            continue
        reference, mean = (float(value) for value in np.mean(lengths, axis=0))
        if abs(mean / reference - 1) > LENGTH_SHARE:
            yield warn(
                "output-length",
                f"{arm} wrote {mean:.1f} tokens per answer, the baseline {reference:.1f}: look at the e2e "
                "speedup, which is at the baseline's lengths; e2e_raw mixes speed with length",
                then="lower --max-tokens so that answers end at the limit",
                arm=arm,
            )


def _degenerate(measured: Sequence[Record]) -> Iterator[Finding]:
    for found in degenerate_segments(measured):
        yield warn(
            "degenerate-output",
            f"{found.looping} of {found.answers} answers in {found.segment} end in a repetition loop: a loop "
            "accepts every draft token, so its speedup is not real",
            then="lower --max-tokens, raise the temperature, or use a larger model",
        )


def _unknown_tokens(measured: Sequence[Record]) -> Iterator[Finding]:
    for arm, members in _by_arm(measured).items():
        good = [record for record in members if record.is_ok]
        if good and all(record.output_tokens is None for record in good):
            yield warn(
                "no-token-counts",
                f"{arm}: the server sends no token counts, so time per token is unknown",
                then="enable usage in streams (stream_options.include_usage)",
                arm=arm,
            )


def _by_arm(records: Iterable[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.place.arm].append(record)
    return groups
