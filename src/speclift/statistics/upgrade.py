"""What an upgrade of the engine did to an arm's speedup: was it acceptance, or the cost of a step?

speedup = accepted length / cost of a step, the latter in tokens of the baseline's time. Both studies sent the same
prompts, so each prompt is compared with itself; what launches add is taken from each study's own launches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from speclift.core.records import Phase, Record
from speclift.core.results import CONFIDENCE, Estimate, Moved, Upgrade, UpgradeSide
from speclift.statistics.balance import Observation, Stratum, fit_table, pair_table
from speclift.statistics.pairs import PairKey, PromptOf, pair_key, pairs
from speclift.statistics.stats import CrossedFit, LaunchSpread, bonferroni, interval_of, launch_spread

# Fewer tell too little of what launches differ by: what is expected of them counts beside it.
LAUNCHES_KNOWN = 3
PARTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStudy:
    """What a study holds that was measured on one version of its engine."""

    version: str
    records: Sequence[Record]
    prompt_of: PromptOf
    by_temperature: bool


def upgrade_of(arm: str, before: VersionStudy, after: VersionStudy) -> Upgrade | None:
    """None where no prompt was answered on both versions with and without speculation."""
    speeds = [_log_speedups(study, arm) for study in (before, after)]
    lengths = [_log_lengths(study, arm) for study in (before, after)]
    known = [
        {key: value for key, value in speed.items() if key in length}
        for speed, length in zip(speeds, lengths, strict=True)
    ]
    has_lengths = bool(_shared(before, after, *known))
    if has_lengths:
        speeds = known
    if not _shared(before, after, *speeds):
        return None
    studies = (before, after)
    speedup = _change(studies, speeds, level=CONFIDENCE, expects_launches=True)
    changes = _split(studies, speeds, lengths) if has_lengths else {}
    moved = tuple(part for part, change in changes.items() if change.excludes(1.0))
    shown = {part: change.interval for part, change in changes.items()}
    sides = [
        UpgradeSide(engine_version=study.version, speedup=math.exp(_fit(study, speed).mean))
        for study, speed in zip(studies, speeds, strict=True)
    ]
    return Upgrade(
        arm=arm,
        before=sides[0],
        after=sides[1],
        speedup=speedup.interval,
        accepted_length=shown.get(Moved.ACCEPTANCE),
        step_cost=shown.get(Moved.STEP_COST),
        moved=moved,
        sentence=_sentence(changes, moved),
    )


def _split(
    studies: Sequence[VersionStudy], speeds: Sequence[Logs], lengths: Sequence[Logs]
) -> dict[Moved, Estimate]:
    """The two that the speedup consists of; what is accepted follows from the prompt, how fast a server is depends on
    its start too."""
    pairs_of = list(zip(speeds, lengths, strict=True))
    costs = [{key: length[key] - value for key, value in speed.items()} for speed, length in pairs_of]
    both = [{key: length[key] for key in speed} for speed, length in pairs_of]
    level = bonferroni(CONFIDENCE, PARTS)
    return {
        Moved.ACCEPTANCE: _change(studies, both, level=level, expects_launches=False),
        Moved.STEP_COST: _change(studies, costs, level=level, expects_launches=True),
    }


_WORDS = {Moved.ACCEPTANCE: "acceptance", Moved.STEP_COST: "the cost of a step"}


def _sentence(changes: Mapping[Moved, Estimate], moved: Sequence[Moved]) -> str:
    """Which of the two moved; where neither did, or nobody can tell, that."""
    if not changes:
        return "Whether acceptance or the cost of a step moved cannot be told: answers do not count their drafts."
    if not moved:
        return "Neither acceptance nor the cost of a step is shown to have moved."
    parts = " and ".join(f"{_WORDS[part]} {_direction(changes[part].value)}" for part in moved)
    still = [_WORDS[part] for part in Moved if part not in moved]
    rest = f"; {still[0]} is not shown to have moved" if still else ""
    return f"{parts[0].upper()}{parts[1:]}{rest}."


def _direction(change: float) -> str:
    return f"rose by {change - 1:.0%}" if change > 1 else f"fell by {1 - change:.0%}"


# One value per request of a round; what the request belongs to.
Logs = Mapping[PairKey, float]
Setting = tuple[str, Stratum]


def _log_speedups(study: VersionStudy, arm: str) -> dict[PairKey, float]:
    found = pairs(study.records, arm, "tpot", prompt_of=study.prompt_of)
    return {pair.key: pair.log_speedup for pair in found}


def _log_lengths(study: VersionStudy, arm: str) -> dict[PairKey, float]:
    return {
        pair_key(record.place): math.log((record.output_tokens - 1) / record.decode_steps)
        for record in _measured(study.records, arm)
        if record.output_tokens is not None and record.output_tokens > 1 and record.decode_steps
    }


def _measured(records: Iterable[Record], arm: str) -> list[Record]:
    return [
        record
        for record in records
        if record.place.arm == arm and record.place.phase is Phase.MEASURED and record.is_ok
    ]


def _settings(study: VersionStudy) -> dict[PairKey, Setting]:
    found = {}
    for record in study.records:
        place = record.place
        prompt = study.prompt_of.get(place.request_id, place.request_id)
        found[pair_key(place)] = (prompt, Stratum(place.segment, place.load, place.temperature))
    return found


def _means(study: VersionStudy, logs: Logs) -> dict[Setting, float]:
    """Of each prompt at each setting, over rounds and repeats."""
    settings = _settings(study)
    groups: dict[Setting, list[float]] = defaultdict(list)
    for key, value in logs.items():
        groups[settings[key]].append(value)
    return {setting: math.fsum(values) / len(values) for setting, values in groups.items()}


def _shared(before: VersionStudy, after: VersionStudy, old: Logs, new: Logs) -> set[Setting]:
    return _means(before, old).keys() & _means(after, new).keys()


def _fit(study: VersionStudy, logs: Logs) -> CrossedFit:
    settings = _settings(study)
    observations = [
        Observation(key[0], settings[key][0], settings[key][1], value) for key, value in logs.items()
    ]
    return fit_table(pair_table(observations), by_temperature=study.by_temperature)


def _change(
    studies: Sequence[VersionStudy], logs: Sequence[Logs], *, level: float, expects_launches: bool
) -> Estimate:
    """After / before, of what both studies hold."""
    old, new = (_means(study, values) for study, values in zip(studies, logs, strict=True))
    differences = [
        Observation(0, prompt, setting, new[(prompt, setting)] - value)
        for (prompt, setting), value in old.items()
        if (prompt, setting) in new
    ]
    table, by_temperature = pair_table(differences), studies[0].by_temperature
    launches = _launches(
        [_fit(study, values) for study, values in zip(studies, logs, strict=True)],
        expects_launches=expects_launches,
    )
    fit = fit_table(table, by_temperature=by_temperature, launches=launches)
    return _exponentiated(interval_of(fit, level=level))


def _launches(fits: Sequence[CrossedFit], *, expects_launches: bool) -> LaunchSpread | None:
    """What the launches of both studies add to the variance of a difference, as that of one launch."""
    terms = []
    for fit in fits:
        spread = launch_spread(fit) if expects_launches else None
        is_known = fit.launch_variance is not None and fit.launches >= LAUNCHES_KNOWN
        if is_known or not expects_launches:
            spread = LaunchSpread(variance=fit.launch_variance or 0.0, df=max(1.0, fit.launches - 1))
        if spread is not None:
            terms.append((spread.variance / fit.launches, spread.df))
    variance = sum(term for term, _ in terms)
    if not variance:
        return None
    return LaunchSpread(variance=variance, df=variance**2 / sum(term**2 / df for term, df in terms))


def _exponentiated(estimate: Estimate) -> Estimate:
    value, low, high = np.exp(np.clip([estimate.value, estimate.low, estimate.high], -700.0, 700.0)).tolist()
    return replace(estimate, value=value, low=low, high=high, method="paired-prompts-t")
