"""From what was asked to a workplace: this machine, or a fleet whose nodes were found able and whose cost was said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from speclift.bench.observer import Observer
from speclift.bench.prepare import Bench, Experiment, model_fingerprint
from speclift.bench.search_study import SEARCH_HERE, SearchPlace
from speclift.bench.study_paths import launch_seen_s
from speclift.bench.workplace import HERE, Workplace
from speclift.core.errors import UsageError
from speclift.core.fleet import fleet_address
from speclift.engines.kind import engine_kind

# More jobs at a time than these would be asked for in the dark: most of a search's launches depend on those before.
SEARCH_NODES_MAX = 4


@contextmanager
def workplace_for(bench: Bench, observer: Observer) -> Iterator[Workplace]:
    """A study goes on where it began: rounds of one machine and rounds of a fleet are told apart by their nodes."""
    study, on = bench.study, bench.ask.on
    was_on_fleet = bool(study.nodes)
    if on is None:
        if was_on_fleet:
            raise UsageError(f"{study.path} was measured on a fleet", hint="resume it with --on ray")
        yield HERE
        return
    if not was_on_fleet and study.launches():
        raise UsageError(f"{study.path} was begun on one machine", hint="resume it without --on")
    from speclift.fleet.cost import fleet_cost
    from speclift.fleet.fleet import needs_of, staffed
    from speclift.fleet.workplace import OnFleet

    plan = study.plan
    needs = needs_of(study.engine, plan.arms, study.provenance.model_sha256)
    with staffed(fleet_address(on), needs, most=plan.rounds, observer=observer) as fleet:
        launch_s = (
            launch_seen_s(study.path.parent, study.engine) or engine_kind(study.engine.kind).launch_guess_s
        )
        left_s = bench.deadline.left_s if bench.deadline.is_set else None
        cost = fleet_cost(plan, nodes=len(fleet.workers), launch_s=launch_s, budget_s=left_s)
        observer.say(f"this study: {cost.words}")
        yield OnFleet(fleet)


@contextmanager
def gate_place(on: str | None, experiment: Experiment, observer: Observer) -> Iterator[Workplace]:
    """For the lossless gate by itself, which is no study: one node is enough."""
    if on is None:
        yield HERE
        return
    from speclift.fleet.fleet import needs_of, staffed
    from speclift.fleet.workplace import OnFleet

    spec = experiment.engine_spec
    needs = needs_of(spec, experiment.plan.arms, model_fingerprint(spec.settings.model))
    with staffed(fleet_address(on), needs, most=1, observer=observer) as fleet:
        yield OnFleet(fleet)


@contextmanager
def search_place(bench: Bench, observer: Observer) -> Iterator[SearchPlace]:
    """This machine, or with --on the nodes of a fleet that are alike."""
    study, on = bench.study, bench.ask.on
    if on is None or not bench.searches:
        yield SEARCH_HERE
        return
    from speclift.fleet.fleet import needs_of, staffed
    from speclift.fleet.search import SearchOnFleet

    needs = needs_of(study.engine, study.plan.arms, study.provenance.model_sha256)
    with staffed(
        fleet_address(on), needs, most=SEARCH_NODES_MAX, observer=observer, only_alike=True
    ) as fleet:
        yield SearchOnFleet(fleet)
