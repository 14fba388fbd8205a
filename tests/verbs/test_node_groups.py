"""A study whose nodes are unlike: a verdict on the largest group, the others beside it by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples import NGRAM, launch, new_study, plan, record, request
from speclift.core.arm import BASELINE
from speclift.core.fleet import NodeFacts
from speclift.studies.study import Study
from speclift.verbs.judge import judge
from speclift.verdict.document import verdict_document

PROMPTS = tuple(f"p{number}" for number in range(12))
# By node: what is drafted away of every token's time, and on which GPU.
GAINS = {"ash": (1.5, "H200"), "birch": (1.5, "H200"), "cedar": (3.0, "L4")}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = new_study(tmp_path / "s", plan=plan(requests=tuple(request(name) for name in PROMPTS)))
    for index, (node, (gain, _)) in enumerate(GAINS.items()):
        for arm in (BASELINE, NGRAM.name):
            number = made.next_launch_id()
            made.add_launch(launch(number, arm=arm, round=index, node=node))
            for position, name in enumerate(PROMPTS):
                tpot_s = (
                    0.1 * (1 + 0.01 * (position % 3) + 0.005 * index) / (gain if arm != BASELINE else 1.0)
                )
                made.add_record(
                    record(
                        tpot_s=tpot_s, arm=arm, launch=number, round=index, block=position, request_id=name,
                        node=node,
                    )
                )  # fmt: skip
    return made


def joined(*, alike: bool) -> list[NodeFacts]:
    return [
        NodeFacts(
            name=node,
            host={"cpu": "x", "cores": 8, "gpus": ["H200" if alike else gpu]},
            engine_version="fake 1",
            model_sha256="",
        )
        for node, (_, gpu) in GAINS.items()
    ]


def test_unlike_nodes_are_named_and_not_pooled(study: Study) -> None:
    study.add_nodes(joined(alike=False))
    with study:
        judgement = judge([study])
    (finding,) = [each for each in judgement.findings if each.check == "unlike-nodes"]
    assert "the verdict is on ash, birch (gpus H200)" in finding.message
    assert "cedar (gpus L4): ngram-k8 2." in finding.message
    document = verdict_document(judgement)
    assert [(list(group.nodes), group.judged) for group in document.node_groups] == [
        (["ash", "birch"], True),
        (["cedar"], False),
    ]
    assert document.node_groups[0].speedups[0].value < 1.6
    assert document.node_groups[1].speedups[0].value > 2.0
    assert [node.name for node in document.provenance.nodes] == list(GAINS)


def test_a_node_that_joins_again_is_kept_once(study: Study) -> None:
    study.add_nodes(joined(alike=False))
    study.add_nodes(joined(alike=True))
    with study:
        assert judge([study]).node_groups == ()
