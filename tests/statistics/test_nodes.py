"""Nodes of a fleet as blocks: pairs within them, spread over them, unlike ones apart."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from samples import NGRAM, record
from speclift.core.arm import BASELINE
from speclift.core.fleet import NodeFacts, groups_of
from speclift.core.records import Record
from speclift.core.results import ALL_TRAFFIC, Comparison
from speclift.statistics.compare import Comparer
from speclift.statistics.nodes import node_findings, node_spread
from speclift.statistics.pairs import pairs

PROMPTS = tuple(f"p{number}" for number in range(12))


def measured(
    gains: dict[str, float], *, rounds: int = 1, paces: dict[str, float] | None = None
) -> list[Record]:
    """On every node, in so many rounds, both arms; a little noise, so that intervals have a width."""
    random = np.random.default_rng(3)
    found = []
    for number, (node, gain) in enumerate(gains.items()):
        for index in range(number * rounds, (number + 1) * rounds):
            for position, name in enumerate(PROMPTS):
                for arm in (BASELINE, NGRAM.name):
                    tpot_s = 0.01 * (paces or {}).get(node, 1.0) * math.exp(random.normal(0.0, 0.01))
                    tpot_s /= gain if arm == NGRAM.name else 1.0
                    found.append(
                        record(
                            tpot_s=tpot_s, arm=arm, round=index, block=position, request_id=name, node=node,
                            launch=2 * index + (arm == NGRAM.name),
                        )
                    )  # fmt: skip
    return found


def overall(records: list[Record]) -> Comparison:
    comparer = Comparer(records, metric="tpot", bar=1.0, arm_count=1, by_temperature=False)
    found = comparer.evidence(NGRAM, ALL_TRAFFIC).overall
    assert found is not None
    return found


def test_a_baseline_on_one_node_and_an_arm_on_another_are_no_pair() -> None:
    both = measured({"ash": 2.0, "birch": 2.0})
    apart = [r for r in both if (r.place.node, r.place.arm) in {("ash", BASELINE), ("birch", NGRAM.name)}]
    moved = [replace(r, place=replace(r.place, round=0)) for r in apart]
    assert len(pairs(both, NGRAM.name, "tpot")) == 24
    assert pairs(moved, NGRAM.name, "tpot") == []


def test_a_machine_that_is_slow_for_both_arms_changes_nothing() -> None:
    slow = overall(measured({"ash": 1.5, "birch": 1.5, "cedar": 1.5}, paces={"birch": 4.0}))
    assert slow.speedup.value == pytest.approx(1.5, rel=0.01)
    assert slow.speedup.high / slow.speedup.low < 1.05


def test_what_an_arm_gains_on_unlike_machines_is_in_the_interval() -> None:
    alike = overall(measured({"ash": 1.5, "birch": 1.5, "cedar": 1.5}, rounds=3))
    unlike = overall(measured({"ash": 1.2, "birch": 1.5, "cedar": 1.8}, rounds=3))
    assert unlike.speedup.high / unlike.speedup.low > 4 * alike.speedup.high / alike.speedup.low / 3
    assert (unlike.launches, unlike.nodes) == (9, 3)


def test_launches_on_one_machine_do_not_pass_for_several_machines() -> None:
    """Nine launches on three nodes that differ by a fifth: the interval is that of three."""
    once = overall(measured({"ash": 1.2, "birch": 1.5, "cedar": 1.8}))
    thrice = overall(measured({"ash": 1.2, "birch": 1.5, "cedar": 1.8}, rounds=3))
    assert math.log(thrice.speedup.high / thrice.speedup.low) == pytest.approx(
        math.log(once.speedup.high / once.speedup.low), rel=0.1
    )


def test_the_spread_is_told_by_node_and_by_launch() -> None:
    spread = node_spread(pairs(measured({"ash": 1.2, "birch": 1.8}, rounds=2), NGRAM.name, "tpot"))
    assert spread is not None
    assert spread.speedups == pytest.approx({"ash": 1.2, "birch": 1.8}, rel=0.02)
    assert spread.between_nodes == pytest.approx(np.std([math.log(1.2), math.log(1.8)], ddof=1), rel=0.05)
    assert spread.between_launches is not None
    assert spread.between_launches < 0.02
    (finding,) = node_findings(measured({"ash": 1.2, "birch": 1.8}), [NGRAM.name], metric="tpot")
    assert "ash 1.20x, birch 1.80x" in finding.message


def test_one_machine_has_no_spread_of_nodes() -> None:
    assert node_spread(pairs(measured({"": 1.5}, rounds=3), NGRAM.name, "tpot")) is None
    assert node_findings(measured({"": 1.5}), [NGRAM.name], metric="tpot") == []


def facts(name: str, **host: object) -> NodeFacts:
    same = {"cpu": "a CPU", "cores": 8, "gpus": []}
    return NodeFacts(name=name, host={**same, **host}, engine_version="fake 1", model_sha256="")


def test_nodes_of_other_hardware_or_versions_are_other_groups() -> None:
    nodes = [
        facts("ash"),
        facts("birch", gpus=["H200"]),
        facts("cedar"),
        replace(facts("elm"), engine_version="2"),
    ]
    groups = groups_of(nodes)
    assert [group.names for group in groups] == [("ash", "cedar"), ("birch",), ("elm",)]
    assert groups[1].unlike(groups[0]) == "gpus H200"
