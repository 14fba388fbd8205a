"""What will a study cost in node-hours? Said before it starts, from its plan alone; nothing is launched and no model is
needed.

An open loop takes as long as its requests take to arrive. How long a closed loop takes nobody knows before it was
measured, so that is said for a speed that is named; a budget is a limit whatever the speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from speclift.bench.ask import Ask
from speclift.bench.gate_study import GATE_SHARES
from speclift.bench.observer import Observer
from speclift.bench.prepare import CONFIRMED_MAX, Experiment, prepare
from speclift.bench.search_plan import ways_of_drafting
from speclift.bench.search_study import prospect
from speclift.core.engine_spec import EngineSpec
from speclift.core.quantities import duration
from speclift.core.traffic import Concurrency, Load, Rate, Request
from speclift.core.units import Seconds
from speclift.engines.kind import engine_kind
from speclift.search.problem import Settings
from speclift.search.selection import GRID_REPEATS
from speclift.workload.experiment import StudyPlan

# Nobody knows a server's pace before it ran; most serve a stream at 20 to 200 tokens a second.
STREAM_TOKENS_PER_S = 50.0
HOUR_S: Seconds = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCost:
    """`launches` and `answers` are what is planned; a verdict that is settled ends a study earlier."""

    nodes: int
    gpus_per_node: int
    launches: int
    launch_s: Seconds
    answers: int
    # Of one node after the other.
    work_s: Seconds
    # Launches that can run at the same time, each on a node of its own.
    rounds: int
    budget_s: Seconds | None
    has_closed_loops: bool

    @property
    def wall_s(self) -> Seconds:
        """From the first launch to the end."""
        spread_s = self.work_s / min(self.nodes, self.rounds)
        return spread_s if self.budget_s is None else self.budget_s

    @property
    def node_hours(self) -> float:
        """Of nodes that are held until the study ends."""
        return self.nodes * self.wall_s / HOUR_S

    def sentence(self) -> str:
        hours = f"{self.node_hours:.2f} node-hours"
        if self.gpus_per_node:
            hours += f" ({self.node_hours * self.gpus_per_node:.2f} GPU-hours)"
        if self.budget_s is not None:
            return f"It costs at most {hours}: its budget is {duration(self.budget_s)}."
        launches = (
            f"{self.launches} launches of about {duration(self.launch_s)} and " if self.launches else ""
        )
        speed = f", if every stream yields {STREAM_TOKENS_PER_S:g} tokens/s" if self.has_closed_loops else ""
        return (
            f"It costs about {hours}: {launches}{self.answers:,} answers at most{speed}. "
            "A budget in the study file sets a limit."
        )


def study_cost(ask: Ask, *, verb: str, nodes: int = 1) -> StudyCost:
    """Of `decide`, `tune` or `measure`."""
    ask = replace(ask, is_elsewhere=True, fetches=False)
    found = None if verb == "measure" else prospect(ask, Observer(), always=verb == "tune")
    experiment = prepare(ask, Observer()) if found is None else found
    plan, spec = experiment.plan, experiment.engine_spec
    kind = engine_kind(spec.kind)
    launch_s = kind.launch_guess_s if kind.launches else 0.0
    passes = _passes(experiment)
    pass_s = math.fsum(sending_s(plan, load) for load in plan.loads)
    gate_share = 0.0 if verb == "measure" else GATE_SHARES[ask.verify]
    return StudyCost(
        nodes=nodes,
        gpus_per_node=gpus_of(spec),
        launches=passes if kind.launches else 0,
        launch_s=launch_s,
        answers=passes * len(plan.items) * len(plan.loads),
        work_s=passes * (launch_s + pass_s) / (1.0 - gate_share),
        rounds=plan.rounds,
        budget_s=experiment.budget_s,
        has_closed_loops=any(isinstance(load, Concurrency) for load in plan.loads),
    )


def gpus_of(spec: EngineSpec) -> int:
    """That one of its servers takes."""
    return spec.settings.tp * spec.settings.pp if engine_kind(spec.kind).is_on_gpu(spec) else 0


def _passes(experiment: Experiment) -> int:
    """How often a server is launched and sent all requests, at the most: every arm in every round, or what a search
    takes of its grid and then confirms."""
    plan = experiment.plan
    if not experiment.is_search:
        return plan.rounds * sum(not arm.is_control for arm in plan.arms)
    calibrating = 1 + ways_of_drafting(experiment.candidates)
    probing = Settings().grid_share * GRID_REPEATS * len(experiment.candidates)
    return calibrating + math.ceil(probing) + plan.rounds * (1 + CONFIRMED_MAX)


def sending_s(plan: StudyPlan, load: Load) -> Seconds:
    """All requests to one arm at one load."""
    match load:
        case Rate(per_s=per_s):
            return len(plan.items) / per_s
        case Concurrency(streams=streams):
            tokens = _answer_tokens(plan.requests, len(plan.items))
            return tokens / STREAM_TOKENS_PER_S / min(streams, len(plan.items))


def _answer_tokens(requests: Iterable[Request], items: int) -> float:
    """Of as many answers as are asked for, each as long as it may be."""
    lengths = [request.max_tokens for request in requests]
    return items * sum(lengths) / len(lengths)
