from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from samples import NGRAM, engine_spec, launch, new_study, plan, provenance, record, request
from speclift.core.arm import BASELINE, Arm
from speclift.core.errors import StudyError
from speclift.core.results import Decision
from speclift.core.speculation import NGram
from speclift.studies.merge import merged_records
from speclift.studies.study import Study
from speclift.verbs.judge import judge

PROMPTS = tuple(f"p{i}" for i in range(12))
OTHER = Arm(name="ngram-k2", speculation=NGram(k=2))
# What a fast arm takes per token, against the baseline's 10 ms.
FAST = {BASELINE: 0.10, NGRAM.name: 0.05, OTHER.name: 0.04}


class Make(Protocol):
    def __call__(self, *arms: str, rounds: int = 3, **parts: Any) -> Study: ...


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes studies s0, s1, ... in which each of these arms met every prompt in every round."""
    with ExitStack() as opened:
        count = iter(range(99))

        def study(*arms: str, rounds: int = 3, **parts: Any) -> Study:
            parts.setdefault("plan", plan(requests=tuple(request(name) for name in PROMPTS)))
            made = opened.enter_context(new_study(tmp_path / f"s{next(count)}", **parts))
            for round_index in range(rounds):
                for arm in arms:
                    number = made.next_launch_id()
                    made.add_launch(launch(number, arm=arm, round=round_index))
                    for position, name in enumerate(PROMPTS):
                        # A little spread over prompts and rounds, so that intervals have a width.
                        factor = 1 + 0.01 * (position % 3) + 0.005 * round_index
                        at: dict[str, Any] = {"arm": arm, "launch": number, "round": round_index}
                        one = record(tpot_s=FAST[arm] * factor, request_id=name, block=position, **at)
                        made.add_record(one)
            return made

        yield study


def rounds_of(records: Any, arm: str) -> set[int]:
    return {each.place.round for each in records if each.place.arm == arm}


class TestLikeStudies:
    def test_the_same_arms_extend_each_other_by_rounds_of_other_launches(self, make: Make) -> None:
        merged = merged_records([make(BASELINE, NGRAM.name), make(BASELINE, NGRAM.name, rounds=2)])

        assert rounds_of(merged, BASELINE) == rounds_of(merged, NGRAM.name) == set(range(5))
        launches = {(r.place.arm, r.place.round): r.place.launch for r in merged}
        assert len(set(launches.values())) == 10

    def test_a_study_of_the_baseline_and_one_of_an_arm_pair_round_by_round(self, make: Make) -> None:
        merged = merged_records([make(BASELINE), make(NGRAM.name)])

        assert rounds_of(merged, BASELINE) == rounds_of(merged, NGRAM.name) == {0, 1, 2}
        assert len({r.place.launch for r in merged}) == 6

    def test_no_record_is_lost_or_doubled(self, make: Make) -> None:
        studies = [make(BASELINE, NGRAM.name), make(NGRAM.name, rounds=1), make(BASELINE)]

        merged = merged_records(studies)
        assert len(merged) == sum(len(study.records()) for study in studies)
        places = {(r.place.arm, r.place.launch, r.place.round, r.place.request_id) for r in merged}
        assert len(places) == len(merged)


class TestTheVerdictOnSeveral:
    def test_rests_on_the_launches_of_all(self, make: Make) -> None:
        judgement = judge([make(BASELINE, NGRAM.name), make(BASELINE, NGRAM.name)])

        assert judgement.verdict.decision is Decision.SHIP
        (evidence,) = judgement.on_all
        assert evidence.overall is not None
        assert evidence.overall.launches == 6
        # 0.2 s to the first token and ten more of 100 or 50 ms.
        assert evidence.overall.speedup.value == pytest.approx(1.2 / 0.7, rel=0.01)

    def test_can_be_given_where_baseline_and_arm_lie_apart(self, make: Make) -> None:
        judgement = judge([make(NGRAM.name), make(BASELINE)])

        (evidence,) = judgement.on_all
        assert evidence.overall is not None
        assert (evidence.overall.launches, evidence.overall.prompts) == (3, len(PROMPTS))
        assert evidence.overall.speedup.value == pytest.approx(1.2 / 0.7, rel=0.01)

    def test_needs_a_baseline_in_one_of_them(self, make: Make) -> None:
        with pytest.raises(StudyError, match="has no successful baseline request"):
            judge([make(NGRAM.name), make(NGRAM.name)])


UNLIKE: list[tuple[dict[str, Any], str]] = [
    ({"provenance": provenance(engine="other")}, "engine: fake / other"),
    ({"provenance": provenance(engine_version="2")}, "engine_version: 1 / 2"),
    ({"provenance": provenance(model_sha256="n")}, "model_sha256: m / n"),
    ({"provenance": provenance(prompts_sha256="q")}, "prompts_sha256: p / q"),
    ({"provenance": provenance(host={"cpu": "b cpu", "cores": 2, "gpus": []})}, "cpu: a cpu / b cpu"),
    ({"provenance": provenance(host={"cpu": "a cpu", "cores": 4, "gpus": []})}, "cores: 2 / 4"),
    ({"provenance": provenance(host={"cpu": "a cpu", "cores": 2, "gpus": ["H200"]})}, "gpus: [] / ['H200']"),
    ({"engine": engine_spec(threads=2)}, "threads: 1 / 2"),
    ({"engine": engine_spec(kv_type_k="q8_0")}, "kv_type_k: None / q8_0"),
    ({"engine": engine_spec(engine_args=("--flash-attn",))}, "engine_args"),
    ({"engine": engine_spec(slots=8)}, "slots: 1 / 8"),
    ({"plan": plan(requests=(request("p1", max_tokens=9),))}, "request p1: max_tokens: 256 / 9"),
    (
        {"plan": plan(arms=(Arm(name=NGRAM.name, speculation=NGram(k=8, n=3)),), requests=(request("p1"),))},
        "arm ngram-k8: ",
    ),
]  # fmt: skip


class TestUnlikeStudies:
    @pytest.mark.parametrize(("parts", "difference"), UNLIKE, ids=[difference for _, difference in UNLIKE])
    def test_are_refused_with_what_differs(self, make: Make, parts: dict[str, Any], difference: str) -> None:
        with pytest.raises(StudyError, match="different environments") as caught:
            merged_records([make(BASELINE, NGRAM.name), make(BASELINE, NGRAM.name, **parts)])

        assert difference in str(caught.value)
        assert "s0 and " in str(caught.value)
        assert "s1 were" in str(caught.value)

    def test_every_difference_is_named_at_once(self, make: Make) -> None:
        other = make(BASELINE, provenance=provenance(engine_version="2", model_sha256="n"))

        with pytest.raises(StudyError, match="engine_version: 1 / 2; model_sha256: m / n"):
            merged_records([make(BASELINE), other])

    def test_the_same_study_twice_is_no_evidence(self, make: Make) -> None:
        study = make(BASELINE, NGRAM.name)

        with Study.open(study.path) as again, pytest.raises(StudyError, match="is given twice"):
            merged_records([study, again])
