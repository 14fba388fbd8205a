"""replay: logs in, accepted lengths out, part by part, here or on the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

from speclift.bench.ask import ReplayAsk
from speclift.bench.log_counting import (
    Progress,
    ShardCounter,
    ShardTotals,
    asked_settings,
    log_drafters,
)
from speclift.core.arm import BASELINE
from speclift.core.errors import StudyError, UsageError
from speclift.core.flags import assembled
from speclift.core.fleet import fleet_address
from speclift.core.speculation import NGram
from speclift.replayer.estimates import StepCost, study_costs
from speclift.replayer.result import LogCounts, ReplayResult, replay_findings
from speclift.studies.log_files import log_shards
from speclift.studies.study import Study


def replay(
    logs: Sequence[Path | str],
    ask: ReplayAsk | None = None,
    *,
    progress: Progress | None = None,
    say: Callable[[str], object] = lambda _: None,
    **settings: object,
) -> ReplayResult:
    """What n-gram drafters would have had accepted on these logs: `speclift.replay(["requests.jsonl"])`.

    Logs are files, patterns such as `logs/*.jsonl.gz` and addresses of object stores. `settings` are the fields of
    ReplayAsk.
    """
    ask = ask or assembled(ReplayAsk, settings)
    known = log_drafters()
    drafters = asked_settings(ask, known)
    costs = _costs(ask.study, ask.cost)
    shards = log_shards(logs)
    unread: tuple[str, ...] = ()
    if ask.on is None:
        found = _counted_here(shards, ask, progress)
    else:
        from speclift.fleet.replaying import counted_on_nodes  # Ray, an extra

        found, unread = counted_on_nodes(
            fleet_address(ask.on), shards, ask, drafters=drafters, progress=progress, say=say
        )
    found.require_replayed(shards, ask.segments)
    findings = replay_findings(
        found.log,
        found.refused,
        drafters,
        known,
        first_fault=found.first_fault,
        tokenizer=found.tokenizer_name,
    )
    return ReplayResult(
        schema=1,
        requests=found.log.replayed,
        segments=found.results(drafters, costs),
        log=found.log,
        refused=dict(sorted(found.refused.items())),
        tokenizer=found.tokenizer_name,
        findings=(*found.findings(), *findings),
        unread=unread,
    )


def _counted_here(shards: Sequence[str], ask: ReplayAsk, progress: Progress | None) -> ShardTotals:
    counter, found = ShardCounter(ask), ShardTotals()
    for number, shard in enumerate(shards):
        before = deepcopy(found.log)

        def so_far(log: LogCounts, before: LogCounts = before) -> None:
            assert progress is not None
            both = deepcopy(before)
            both.merge(log)
            progress(both)

        found.merge(counter.count(shard, number, None if progress is None else so_far))
    return found


def _costs(study: Path | str | None, cost: float | None) -> tuple[StepCost, ...]:
    if cost is not None and not 0 <= cost < float("inf"):
        raise UsageError(f"--cost is a share of a plain step, such as 0.05, saw {cost}")
    given = () if cost is None else (StepCost(per_token=cost, load=None, source="given"),)
    if study is None:
        return given
    path = Path(study)
    with Study.open(path) as opened:
        arms = [arm.name for arm in opened.plan.arms if isinstance(arm.speculation, NGram)]
        found = study_costs(opened.records(), baseline=BASELINE, arms=arms, source=f"study {path.name}")
    if not found:
        raise StudyError(
            f"{path} has no load with a baseline and an n-gram arm that drafted",
            hint="speclift measure --method ngram --study DIR, or give the cost: --cost 0.05",
        )
    return (*given, *found)
