"""What the groups of a fleet say whose nodes are unlike: each by itself, never pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from speclift.core.goals import Goals
from speclift.core.results import ALL_TRAFFIC, CONFIDENCE, Comparison, Evidence, Finding, warn
from speclift.statistics.nodes import node_findings
from speclift.verbs.held import Held, comparer_of
from speclift.verdict.judgement import NodeGroupSpeedups


def group_speedups(held: Held, goals: Goals, on_all: Sequence[Evidence]) -> tuple[NodeGroupSpeedups, ...]:
    """The group that is judged first; none where all nodes are alike."""
    if held.group is None:
        return ()
    judged = tuple(each.overall for each in on_all if each.overall is not None)
    found = [NodeGroupSpeedups(group=held.group, is_judged=True, overall=judged)]
    for group, records in held.unlike:
        comparer = comparer_of(replace(held, records=records), goals, level=CONFIDENCE)
        evidence = [comparer.evidence(arm, ALL_TRAFFIC) for arm in held.competing]
        overall = tuple(each.overall for each in evidence if each.overall is not None)
        found.append(NodeGroupSpeedups(group=group, is_judged=False, overall=overall))
    return tuple(found)


def fleet_findings(held: Held, goals: Goals, groups: Sequence[NodeGroupSpeedups]) -> list[Finding]:
    """How nodes that are alike differ, and which are not."""
    found = node_findings(
        held.records, [arm.name for arm in held.competing], metric=goals.metric, prompt_of=held.prompt_of
    )
    if groups:
        found.append(_unlike_nodes(*groups))
    return found


def _unlike_nodes(judged: NodeGroupSpeedups, *others: NodeGroupSpeedups) -> Finding:
    parts = [
        f"{', '.join(each.group.names)} ({each.group.unlike(judged.group)}): {_speedups(each.overall)}"
        for each in others
    ]
    return warn(
        "unlike-nodes",
        f"nodes are unlike and were not pooled: the verdict is on {', '.join(judged.group.names)} "
        f"({judged.group.unlike(others[0].group)}); beside it {'; '.join(parts)}",
        then="for a verdict on the others, run a study on a cluster of those alone",
    )


def _speedups(overall: Sequence[Comparison]) -> str:
    words = (
        f"{each.arm} {each.speedup.value:.2f}x [{each.speedup.low:.2f}, {each.speedup.high:.2f}]"
        if each.speedup.high < 1e6
        else f"{each.arm} {each.speedup.value:.2f}x (too few launches for an interval)"
        for each in overall
    )
    return ", ".join(words) or "nothing was measured on both sides"
