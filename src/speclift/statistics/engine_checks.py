"""Findings from what the engines say about themselves: counters that disagree, settings that differ between arms,
a cache that was full. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from speclift.core.arm import BASELINE
from speclift.core.engine_totals import DRAFTED, PREEMPTIONS, PREFIX_HITS, PREFIX_QUERIES, engine_total
from speclift.core.records import Launch, Phase, Record
from speclift.core.results import Finding, Level, Resources, warn
from speclift.core.units import Bytes, Tokens

COUNTER_SHARE = 0.02
# A prefix cache that serves this much less under speculation costs prefill time (92 to 71 % in vLLM issue 53670).
PREFIX_HIT_DROP = 0.05
KV_FULL_SHARE = 0.95
# Speculation widens what one step verifies, so these differ by design and say nothing about fairness.
BY_DESIGN = ("max_num_scheduled_tokens",)


def check_engines(launches: Sequence[Launch], records: Sequence[Record]) -> Iterator[Finding]:
    for launch in launches:
        yield from _counters_disagree(launch, records)
    yield from _unequal_settings(launches)
    yield from _notices(launches)
    yield from _preemptions(launches)
    yield from _prefix_hits(launches)
    yield from _kv_pressure(launches)


def _counters_disagree(launch: Launch, records: Sequence[Record]) -> Iterator[Finding]:
    """What the responses say was drafted against what the engine counted over the same launch. Accepted tokens
    are not compared: vLLM counts them before it cuts a draft off at the end of an answer (v1/metrics, 0.32)."""
    counted = engine_total(launch.counters, DRAFTED)
    own = [r for r in records if r.place.launch == launch.id and r.place.phase is not Phase.WARMUP]
    if counted is None or not own or any(not r.is_ok or r.drafted is None for r in own):
        return
    said = sum(record.drafted or 0 for record in own)
    if abs(counted - said) > COUNTER_SHARE * max(counted, said):
        yield warn(
            "counters-disagree",
            f"{launch.arm}: responses report {said} draft tokens, the engine's metrics {counted:.0f}",
            then="does another client use this server? do not trust the acceptance rate",
            arm=launch.arm,
        )


def _unequal_settings(launches: Sequence[Launch]) -> Iterator[Finding]:
    """A setting the engine changed for one arm alone is part of what is compared, whether one wants it or not."""
    by_arm = {launch.arm: launch.settings for launch in launches if launch.settings}
    baseline = by_arm.pop(BASELINE, {})
    for arm, settings in by_arm.items():
        changed = changed_settings(settings, baseline, of=BASELINE)
        if changed:
            yield warn(
                "unequal-settings",
                f"{arm} differs from the baseline in more than speculation: {', '.join(changed)}",
                then="the engine chose this itself. If speculation requires it, it is part of the cost; if not, "
                "set the same value for both servers with --engine-arg",
                arm=arm,
            )


def changed_settings(settings: Mapping[str, str], others: Mapping[str, str], *, of: str) -> list[str]:
    """In words, beside what the server `of` has."""
    return [
        f"{name} {settings[name]} ({of} {value})"
        for name, value in others.items()
        if settings.get(name, value) != value and name not in BY_DESIGN
    ]


# Words of a warning that says the engine does something else than it was asked to.
CHANGED = ("instead", "disabl", "overrid", "falling back", "not supported", "reduced")


def _notices(launches: Sequence[Launch]) -> Iterator[Finding]:
    """Start-up warnings of speculating servers that the baseline did not give."""
    if not any(launch.arm == BASELINE and launch.ready_s is not None for launch in launches):
        return
    arms_by_notice: dict[str, dict[str, None]] = {}
    for launch in launches:
        for notice in launch.notices:
            arms_by_notice.setdefault(notice, {})[launch.arm] = None
    for notice, arms in arms_by_notice.items():
        if BASELINE not in arms:
            is_change = any(word in notice.lower() for word in CHANGED)
            yield Finding(
                check="engine-warning",
                level=Level.WARN if is_change else Level.INFO,
                message=f"{', '.join(arms)}: warning when the engine started: {notice}",
                next_step="the baseline did not get this warning; see the engine's log",
            )


def _preemptions(launches: Sequence[Launch]) -> Iterator[Finding]:
    for arm, total in _per_arm(launches, PREEMPTIONS).items():
        if total > 0:
            yield warn(
                "preemptions",
                f"{arm}: the engine preempted {total:.0f} running requests (KV cache full) and computed them "
                "again",
                then="lower the load or give it more KV cache; a draft model uses part of it",
                arm=arm,
            )


def _prefix_hits(launches: Sequence[Launch]) -> Iterator[Finding]:
    shares = prefix_hit_rates(launches)
    baseline = shares.pop(BASELINE, None)
    for arm, share in shares.items():
        if baseline is not None and baseline - share > PREFIX_HIT_DROP:
            yield warn(
                "prefix-hits",
                f"{arm}: the prefix cache served {share:.0%} of prompt tokens, {baseline:.0%} without "
                "speculation",
                then="TTFT becomes longer; compare TTFT at your prompt lengths",
                arm=arm,
            )


def _kv_pressure(launches: Sequence[Launch]) -> Iterator[Finding]:
    for arm, peak in kv_peaks(launches).items():
        if peak >= KV_FULL_SHARE:
            yield warn(
                "kv-full",
                f"{arm}: the KV cache was {peak:.0%} full at its peak: requests had to wait",
                then="lower --concurrency or --context, or give the server more memory",
                arm=arm,
            )


def kv_peaks(launches: Sequence[Launch]) -> dict[str, float]:
    """The fullest each arm's KV cache was seen; arms whose engine does not say are left out."""
    peaks: dict[str, float] = {}
    for launch in launches:
        for point in launch.usage:
            peaks[launch.arm] = max(peaks.get(launch.arm, 0.0), point.kv_share)
    return peaks


def prefix_hit_rates(launches: Sequence[Launch]) -> dict[str, float]:
    """Of each arm's prompt tokens, the share that its prefix cache served."""
    hits, queries = _per_arm(launches, PREFIX_HITS), _per_arm(launches, PREFIX_QUERIES)
    return {arm: hits.get(arm, 0.0) / asked for arm, asked in queries.items() if asked > 0}


def resources_of(launches: Sequence[Launch], kv_tokens: Mapping[str, Tokens]) -> tuple[Resources, ...]:
    """Of every arm that was launched, in that order."""
    peaks, hit_rates = kv_peaks(launches), prefix_hit_rates(launches)
    memory: dict[str, Bytes] = {}
    for launch in launches:
        if launch.gpu_memory_peak_bytes is not None:
            memory[launch.arm] = max(memory.get(launch.arm, 0), launch.gpu_memory_peak_bytes)
    return tuple(
        Resources(
            arm=arm,
            kv_tokens=kv_tokens.get(arm),
            kv_used_peak=peaks.get(arm),
            prefix_hit_rate=hit_rates.get(arm),
            gpu_memory_peak_bytes=memory.get(arm),
        )
        for arm in dict.fromkeys(launch.arm for launch in launches)
    )


def _per_arm(launches: Sequence[Launch], names: tuple[str, ...]) -> Mapping[str, float]:
    totals: dict[str, float] = {}
    for launch in launches:
        counted = engine_total(launch.counters, names)
        if counted is not None:
            totals[launch.arm] = totals.get(launch.arm, 0.0) + counted
    return totals
