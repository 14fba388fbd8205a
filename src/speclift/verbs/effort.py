"""What a study took, read from what it holds: starts of servers, requests under way, what is left of its plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from speclift.core.arm import BASELINE, CONTROL
from speclift.core.records import Launch, Phase, Record
from speclift.core.units import Seconds
from speclift.lossless.gate import Gate
from speclift.studies.prompt_files import bundled_workload
from speclift.studies.study import Study
from speclift.verdict.effort import Effort


def effort_of(
    studies: Sequence[Study], records: Sequence[Record], gate: Gate, *, is_settled: bool = False
) -> Effort:
    """Of several pooled studies, the first one's plan and the time of all. Of one that is settled nothing is left."""
    plan, launches = studies[0].plan, [launch for study in studies for launch, _ in study.launches()]
    arms = {arm.name for arm in plan.arms if not arm.is_control}
    arms -= {launch.arm for launch in launches if launch.failure and launch.arm != BASELINE}
    rounds, starts = plan.rounds * len(studies), _starts(launches)
    asked = sum(r.place.phase is Phase.MEASURED and r.place.arm in arms for r in records)
    planned = len(arms) * len(plan.loads) * len(plan.items) * rounds
    return Effort(
        arms=max(1, len(arms)),
        requests=max(1, len(plan.items) // len(plan.temperatures)),
        launches=rounds,
        planned=planned,
        asked=asked,
        is_settled=is_settled,
        starts=len(starts),
        starting_s=busy_s((begin, ready) for _, begin, ready in starts),
        asking_s=busy_s((record.sent_s, record.end_s) for record in records),
        checking_s=gate.wall_s,
        ready_s=_ready_s(starts),
        segments=tuple(dict.fromkeys(request.segment for request in plan.requests)),
        max_tokens=max((request.max_tokens for request in plan.requests), default=None),
        pool=_pool(studies[0]),
    )


def _starts(launches: Sequence[Launch]) -> list[tuple[str, Seconds, Seconds]]:
    """Arm, start and readiness of every server that got ready; the control is none of the arms that a study names."""
    return [
        (launch.arm, launch.started_s, launch.ready_s)
        for launch in launches
        if launch.ready_s is not None and launch.arm != CONTROL
    ]


def busy_s(spans: Iterable[tuple[Seconds, Seconds]]) -> Seconds:
    """The time that spans cover together: what overlaps counts once, and a night between two of them not at all."""
    total = 0.0
    until = float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _pool(study: Study) -> Mapping[str, int] | None:
    """Of prompts that come along the number is known; those of a file may have changed since."""
    argv = study.provenance.argv
    if not argv or any(word.partition("=")[0] == "--prompts" for word in argv):
        return None
    return Counter(request.segment for request in bundled_workload().requests)


def _ready_s(starts: Sequence[tuple[str, Seconds, Seconds]]) -> dict[str, Seconds]:
    taken: dict[str, list[Seconds]] = {}
    for arm, begin, ready in starts:
        taken.setdefault(arm, []).append(ready - begin)
    return {arm: median(each) for arm, each in taken.items()}
