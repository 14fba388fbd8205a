"""What will a study on a fleet cost, before it starts? Pure arithmetic with its guesses said.

A node-hour is an hour of one machine, whatever it has in it. Starts cost what they took in the last study of the same
engine and model here, else the engine's own guess; requests what bench/study_cost.py takes them to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from speclift.bench.study_cost import STREAM_TOKENS_PER_S, sending_s
from speclift.core.quantities import duration
from speclift.core.units import Seconds
from speclift.workload.experiment import StudyPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCost:
    """Of all rounds, if nothing is settled on the way. `limit_s` is what a budget allows each node at most."""

    nodes: int
    launches: int
    launch_s: Seconds
    requests: int
    asking_s: Seconds
    limit_s: Seconds | None

    @property
    def node_s(self) -> Seconds:
        expected_s = self.launches * self.launch_s + self.asking_s
        return expected_s if self.limit_s is None else min(expected_s, self.nodes * self.limit_s)

    @property
    def words(self) -> str:
        most = "" if self.limit_s is None else f", at most {hours(self.nodes * self.limit_s)} by --budget"
        return (
            f"about {hours(self.node_s)} on {self.nodes} node{'s' if self.nodes != 1 else ''}{most}: "
            f"{self.launches} launches of about {duration(self.launch_s)}, {self.requests:,} requests "
            f"(a guess, at {STREAM_TOKENS_PER_S:g} tokens a second)"
        )


def fleet_cost(plan: StudyPlan, *, nodes: int, launch_s: Seconds, budget_s: Seconds | None) -> FleetCost:
    arms = [arm for arm in plan.arms if not arm.is_control]
    rounds, per_round = plan.rounds, len(arms) * len(plan.items)
    asking_s = math.fsum(sending_s(plan, load) for load in plan.loads) * len(arms) * rounds
    return FleetCost(
        nodes=min(nodes, rounds),
        launches=len(arms) * rounds,
        launch_s=launch_s,
        requests=per_round * len(plan.loads) * rounds,
        asking_s=asking_s,
        limit_s=budget_s,
    )


def hours(seconds: Seconds) -> str:
    return f"{seconds / 3600:.2g} node-hours"
