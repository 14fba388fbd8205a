"""Faster on most requests and slower on the slowest: what do the slow ones have in common?

Every way to cut the traffic in two is tried, and the one that best separates slow requests from usual ones is named if
chance would not do as well. It explains and never decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from speclift.core.arm import BASELINE
from speclift.core.records import Phase, Record
from speclift.core.results import Evidence, Finding, TailRatio, inform
from speclift.statistics.cells import METRIC_OF
from speclift.statistics.pairs import ALL_DISTINCT, PromptOf, pair_key

# Slow is beyond this percentile of the baseline at the same load, and slower than the baseline was on the same request.
USUAL = 0.95
# All splits tried share this error; what separates must also matter.
ERROR = 0.05
TIMES_AS_OFTEN = 2.0
# Of the values that requests have, where a number is cut.
CUTS = (0.1, 0.25, 0.5, 0.75, 0.9)

# The finding of a run with homogeneous traffic alone (bench/diagnosis.py).
DIAGNOSIS_CHECK = "tail-diagnosis"

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Separation:
    """The share of slow requests among those that `split` names, and among the others."""

    split: str
    inside: float
    outside: float
    requests: int
    slow: int
    p: float


def slower_tail(evidence: Evidence) -> TailRatio | None:
    """The tail that is shown to be slower on an arm that is faster for certain; the worst of several."""
    if evidence.overall is None or evidence.overall.speedup.low <= 1.0:
        return None
    slower = [tail for tail in evidence.tails if tail.ratio.high < 1.0]
    return min(slower, key=lambda tail: tail.ratio.value, default=None)


def explained_tails(
    records: Sequence[Record], on_all: Sequence[Evidence], *, prompt_of: PromptOf = ALL_DISTINCT
) -> Iterator[Finding]:
    for evidence in on_all:
        tail, arm = slower_tail(evidence), evidence.arm.name
        found = None if tail is None else separation(records, arm, tail.metric, prompt_of=prompt_of)
        if tail is None or found is None:
            continue
        yield inform(
            "slow-requests",
            f"{arm}: most requests are faster and the slowest are slower. {found.inside:.0%} of the requests "
            f"with {found.split} are slow, {found.outside:.0%} of the others (slow: {tail.metric} above the "
            f"baseline's P{100 * USUAL:.0f} and above what the baseline took for the same request; "
            f"{found.slow} of {found.requests})",
            then=f"serve requests with {found.split} without speculation, or measure them alone",
            arm=arm,
        )


def tail_diagnosis(
    mixed: Sequence[Record], alone: Sequence[Record], tail: TailRatio, *, traffic: str
) -> Finding | None:
    """Whether the slow requests are gone where homogeneous `traffic` was sent alone, at the load of `mixed`."""
    own, is_slow = _slow(mixed, tail.arm, tail.metric)
    apart, is_slow_apart = _slow(alone, tail.arm, tail.metric)
    if not own or not apart or not is_slow.any():
        return None
    kind = {(record.place.request_id, record.place.temperature) for record in apart}
    within = np.array([(r.place.request_id, r.place.temperature) in kind for r in own])
    everywhere = np.concatenate([is_slow, is_slow_apart])
    prompts = [record.place.request_id for record in (*own, *apart)]
    by_chance = _by_chance(
        np.arange(len(everywhere)) < len(own), everywhere, _requests_per_independent_one(prompts, everywhere)
    )
    share, share_apart = float(is_slow.mean()), float(is_slow_apart.mean())
    if TIMES_AS_OFTEN * share_apart > share:
        said = "They are slow without the other requests too"
        step = "the mix of requests is not the cause: look at the arm's settings and at other clients of the server"
    elif by_chance > ERROR:
        said = "Too few requests to tell whether the tail is gone without the other requests"
        step = "give more --prompts of this kind, or measure them alone"
    else:
        said = "The tail is gone without the other requests"
        step = f"serve requests with {traffic} with speculation, the others on servers of their own or without it"
    return inform(
        DIAGNOSIS_CHECK,
        f"{tail.arm}: with {traffic} alone {is_slow_apart.sum()} of {len(apart)} requests are slow "
        f"({tail.metric}); in the mixed traffic {is_slow.sum()} of {len(own)}, of these kinds "
        f"{is_slow[within].sum()} of {within.sum()}. {said}",
        then=step,
        arm=tail.arm,
    )


def separation(
    records: Sequence[Record], arm: str, metric: str, *, prompt_of: PromptOf = ALL_DISTINCT
) -> Separation | None:
    """None where no split separates slow requests from usual ones better than chance would."""
    own, is_slow = _slow(records, arm, metric)
    if not 0 < is_slow.sum() < len(own):
        return None
    prompts = [prompt_of.get(record.place.request_id, record.place.request_id) for record in own]
    together = _requests_per_independent_one(prompts, is_slow)
    tried = [
        Separation(
            split=name,
            inside=float(is_slow[inside].mean()),
            outside=float(is_slow[~inside].mean()),
            requests=len(own),
            slow=int(is_slow.sum()),
            p=_by_chance(inside, is_slow, together),
        )
        for name, inside in _splits(own)
    ]
    best = min(tried, key=lambda found: found.p, default=None)
    if best is None or best.p * len(tried) > ERROR or best.inside < TIMES_AS_OFTEN * best.outside:
        return None
    return best


def _slow(records: Sequence[Record], arm: str, metric: str) -> tuple[list[Record], Flags]:
    """The arm's requests that have the metric, and which of them are slow."""
    value_of = METRIC_OF[metric]
    timed = [
        (record, value)
        for record in records
        if record.is_ok and record.place.phase is Phase.MEASURED and (value := value_of(record)) is not None
    ]
    baseline = defaultdict(list)
    before = {}
    for record, value in timed:
        if record.place.arm == BASELINE:
            baseline[record.place.load].append(value)
            before[pair_key(record.place)] = value
    usual = {load: float(np.quantile(values, USUAL)) for load, values in baseline.items()}
    own = [(r, value) for r, value in timed if r.place.arm == arm and r.place.load in usual]
    slow = [
        value > usual[record.place.load] and value > before.get(pair_key(record.place), 0.0)
        for record, value in own
    ]
    return [record for record, _ in own], np.array(slow, dtype=np.bool_)


def _splits(own: Sequence[Record]) -> Iterator[tuple[str, Flags]]:
    """Each with what it is called; the requests inside are the suspects."""
    yield from _one_of("segment", [record.place.segment for record in own])
    yield from _one_of("load", [record.place.load.label for record in own])
    yield from _cuts("temperature", [record.place.temperature for record in own])
    yield from _cuts("prompt", [record.prompt_tokens for record in own], " tokens")
    yield from _cuts("output", [record.output_tokens for record in own], " tokens")
    yield from _cuts("acceptance rate", [_acceptance(record) for record in own])


def _one_of(kind: str, labels: Sequence[str]) -> Iterator[tuple[str, Flags]]:
    names = dict.fromkeys(labels)
    if len(names) > 1:
        for name in names:
            yield f"{kind} {name}", np.array([label == name for label in labels])


def _cuts(kind: str, values: Sequence[float | None], unit: str = "") -> Iterator[tuple[str, Flags]]:
    known = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    if np.isnan(known).all():
        return
    cuts = np.unique(np.nanquantile(known, CUTS, method="inverted_cdf"))
    for cut in cuts[cuts < np.nanmax(known)]:
        # What is unknown is on neither side, so it is with the others.
        yield f"{kind} above {cut:.4g}{unit}", known > cut
        yield f"{kind} up to {cut:.4g}{unit}", known <= cut


def _acceptance(record: Record) -> float | None:
    return record.accepted / record.drafted if record.drafted and record.accepted is not None else None


def _requests_per_independent_one(prompts: Sequence[str], is_slow: Flags) -> float:
    """How far requests of one prompt are slow together: the variance of the slow share, prompts taken whole over
    requests taken one by one."""
    number = {name: index for index, name in enumerate(dict.fromkeys(prompts))}
    centred = is_slow - is_slow.mean()
    sums = np.bincount([number[name] for name in prompts], weights=centred)
    return max(1.0, float(sums @ sums) / float(centred @ centred))


def _by_chance(inside: Flags, is_slow: Flags, together: float) -> float:
    """Fisher's exact test, one-sided, on as many requests as are independent."""
    count, slow, size, both = (
        round(float(flags.sum()) / together)
        for flags in (np.ones_like(is_slow), is_slow, inside, inside & is_slow)
    )
    if not 0 < size < count:
        return 1.0
    at_least = np.arange(both, min(slow, size) + 1)
    at_least = at_least[slow - at_least <= count - size]
    logs = _log_choose(size, at_least) + _log_choose(count - size, slow - at_least) - _log_choose(count, slow)
    return min(1.0, float(np.exp(logs).sum())) if len(at_least) else 1.0


def _log_choose(of: int, taken: NDArray[np.intp] | int) -> NDArray[np.float64]:
    chosen: NDArray[np.float64] = (
        special.gammaln(of + 1)
        - special.gammaln(np.add(taken, 1))
        - special.gammaln(np.subtract(of, taken) + 1)
    )
    return chosen
