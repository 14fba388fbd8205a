"""How much do the machines of a fleet differ in what an arm gains on them?

Pairs are formed within machines, so that a slow one is slow for both. What is left is that the same arm pays more on
one machine than on another; the interval of the whole has that in it (balance.py), and here it has a name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from speclift.core.records import Record
from speclift.core.results import Finding, inform
from speclift.statistics.pairs import ALL_DISTINCT, Pair, PromptOf, pairs

NODES_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpread:
    """Of one arm: the mean speedup on each node, and standard deviations of its log from node to node and, where a node
    had several launches, from launch to launch."""

    speedups: dict[str, float]
    between_nodes: float
    between_launches: float | None


def node_spread(found: Sequence[Pair]) -> NodeSpread | None:
    """None where there are not several nodes."""
    by_node: dict[str, list[Pair]] = defaultdict(list)
    for pair in found:
        by_node[pair.node].append(pair)
    if len(by_node) < 2:
        return None
    means = {node: _mean(members) for node, members in sorted(by_node.items())}
    return NodeSpread(
        speedups={node: math.exp(mean) for node, mean in means.items()},
        between_nodes=float(np.std(list(means.values()), ddof=1)),
        between_launches=_within(by_node.values()),
    )


def node_findings(
    records: Sequence[Record], arms: Sequence[str], *, metric: str, prompt_of: PromptOf = ALL_DISTINCT
) -> list[Finding]:
    """What each node says of each arm, in words; nothing where there is one machine."""
    findings = []
    for arm in arms:
        spread = node_spread(pairs(records, arm, metric, prompt_of=prompt_of))
        if spread is None:
            continue
        shown = sorted(spread.speedups.items(), key=lambda item: item[1])
        several = "" if len(shown) <= NODES_SHOWN else f" and {len(shown) - NODES_SHOWN} between them"
        half = NODES_SHOWN // 2
        ends = shown if not several else [*shown[:half], *shown[-half:]]
        words = ", ".join(f"{node} {speedup:.2f}x" for node, speedup in ends)
        launches = (
            "" if spread.between_launches is None else f", launches on one by {spread.between_launches:.1%}"
        )
        findings.append(
            inform(
                "node-spread",
                f"{arm} by node ({metric}): {words}{several}; "
                f"nodes differ by {spread.between_nodes:.1%}{launches}",
                then="the interval holds for machines like these; more of them make it narrower",
                arm=arm,
            )
        )
    return findings


def _mean(members: Sequence[Pair]) -> float:
    """Each prompt weighs the same, however often it was sent."""
    by_prompt: dict[str, list[float]] = defaultdict(list)
    for pair in members:
        by_prompt[pair.prompt].append(pair.log_speedup)
    return float(np.mean([np.mean(values) for values in by_prompt.values()]))


def _within(nodes: Iterable[Sequence[Pair]]) -> float | None:
    """Pooled over nodes; None where no node had two launches."""
    square, freedom = 0.0, 0
    for members in nodes:
        by_round: dict[int, list[Pair]] = defaultdict(list)
        for pair in members:
            by_round[pair.round].append(pair)
        means = np.array([_mean(own) for own in by_round.values()])
        square += float(np.sum((means - means.mean()) ** 2))
        freedom += len(means) - 1
    return math.sqrt(square / freedom) if freedom else None
