"""From a study to a policy: what is allowed, up to which load, and by which rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from samples import plan, provenance, record, request
from simulated import ARM, LOADS, ONE_STREAM, by_segment, by_streams, constant, quiet_truth
from speclift.core.arm import BASELINE, Arm, ServerSettings, baseline_arm
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import StudyError, UsageError
from speclift.core.records import Record
from speclift.core.results import Decision
from speclift.core.routing import PoolStates, RequestFeatures, ServerPool, ServerState
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency, Load, Message, Request
from speclift.routing.policy import LoadLimit, SegmentRule, faults
from speclift.routing.router import Router
from speclift.studies.study import Study
from speclift.testing.simulated_study import SpeedupOf, StudyTruth
from speclift.verbs.gateway_policy import (
    StudyPolicy,
    load_policy,
    policy_from,
    policy_of_study,
    prompt_look,
)
from speclift.verbs.judge import judge_and_keep, prefill_s_per_1000
from written import write_study

pytestmark = pytest.mark.slow

SPEC, PLAIN = ServerPool.SPEC, ServerPool.PLAIN
SEGMENTS = ("copy", "chat", "code")
LOOK_UP = Arm(name="arm", speculation=NGram(k=8, n=4))
# What requests of each segment look like, by the number of the prompt.
ALIKE: Mapping[str, Mapping[str, Any]] = {}
APART: Mapping[str, Mapping[str, Any]] = {
    "copy": {"temperature": 0.0, "max_tokens": 200},
    "chat": {"temperature": 0.7, "max_tokens": 100},
    "code": {"temperature": 0.2, "max_tokens": 400},
}


def study(
    folder: Path,
    truth: StudyTruth,
    *,
    looks: Mapping[str, Mapping[str, Any]] = APART,
    arm: Arm = LOOK_UP,
    prompts: int = 36,
    loads: tuple[Load, ...] = ONE_STREAM,
    kind: str = "llamacpp",
    **parts: Any,
) -> Path:
    requests = tuple(
        Request(
            id=f"p{number}",
            segment=SEGMENTS[number % 3],
            messages=(Message(role="user", content=f"number {number} of {SEGMENTS[number % 3]} " * 5),),
            **looks.get(SEGMENTS[number % 3], {}),
        )
        for number in range(prompts)
    )
    planned = plan(arms=(baseline_arm(), arm), loads=loads, requests=requests, rounds=3)
    model = "/models/target.gguf"
    ordinary = {
        "plan": planned,
        "engine": EngineSpec(kind=kind, settings=ServerSettings(model=model)),
        "provenance": provenance(engine=kind, engine_version="xllamacpp 2026.10.11549", model=model),
    }
    truth = replace(truth, arms={arm.name: truth.arms[ARM.name]})
    return write_study(
        folder / "study", truth, arms=(arm,), loads=loads, prompts=prompts, rounds=3, **{**ordinary, **parts}
    )


def found(folder: Path, speedup: SpeedupOf, *, learn: bool = False, **parts: Any) -> StudyPolicy:
    return policy_of_study(study(folder, quiet_truth(speedup), **parts), learn=learn)


PARTLY = by_segment(copy=2.0, chat=0.8, code=0.8)


class TestWhatIsAllowed:
    def test_all_of_it_where_all_of_it_ships(self, tmp_path: Path) -> None:
        policy = found(tmp_path, constant(2.0)).policy

        assert policy.elsewhere is SPEC
        assert {segment.pool for segment in policy.segments} == {SPEC}
        assert policy.source is not None
        assert policy.source.is_for_all_traffic
        assert policy.source.verdict is Decision.SHIP

    def test_the_part_that_ships(self, tmp_path: Path) -> None:
        made = found(tmp_path, PARTLY)
        pools = {segment.name: segment.pool for segment in made.policy.segments}
        copy = made.policy.segment("copy")

        assert pools == {"copy": SPEC, "chat": PLAIN, "code": PLAIN}
        assert made.policy.elsewhere is PLAIN
        assert copy is not None
        assert copy.speedup == pytest.approx(2.0, rel=0.05)
        assert copy.low is not None
        assert 1.8 < copy.low < 2.0
        assert copy.prompts == 12
        assert copy.e2e_s == pytest.approx(0.68, rel=0.3)
        assert copy.max_temperature == 0.0

    def test_not_what_was_not_shown_to_be_no_slower(self, tmp_path: Path) -> None:
        """Four prompts are too few to stand in the way of the verdict."""
        names = (*("copy", "chat") * 5, "copy", "rare")
        requests = tuple(request(f"p{number}", segment=names[number % 12]) for number in range(48))
        planned = plan(arms=(baseline_arm(), LOOK_UP), loads=ONE_STREAM, requests=requests, rounds=3)
        truth = by_segment(copy=2.0, chat=2.0, rare=0.97)
        policy = found(tmp_path, truth, plan=planned, segments=names, prompts=48).policy
        rare = policy.segment("rare")

        assert policy.elsewhere is SPEC
        assert rare is not None
        assert (rare.pool, rare.prompts, rare.max_temperature) == (PLAIN, 4, None)
        assert list(faults(policy)) == []

    @pytest.mark.parametrize(("speedup", "verdict"), [(0.8, "do-not-ship")])
    def test_nothing_where_nothing_ships_but_learning_may_begin(
        self, tmp_path: Path, speedup: float, verdict: str
    ) -> None:
        path = study(tmp_path, quiet_truth(constant(speedup)))

        with pytest.raises(StudyError, match=f"allows nothing .*{verdict}") as refused:
            load_policy(path, learn=False)
        assert "--learn" in refused.value.hint
        policy = load_policy(path, learn=True)
        assert policy.elsewhere is PLAIN
        assert {segment.pool for segment in policy.segments} == {PLAIN}
        assert policy.load == LoadLimit()

    def test_what_may_come_to_pay_is_told_apart_for_those_who_learn(self, tmp_path: Path) -> None:
        made = found(tmp_path, by_segment(copy=1.01, chat=0.8, code=0.8), learn=True)
        rules = {segment.name: segment.when for segment in made.policy.segments}

        assert rules == {"copy": (SegmentRule(temperature_max=0.0),), "chat": (), "code": ()}
        assert {segment.pool for segment in made.policy.segments} == {PLAIN}
        assert list(faults(made.policy)) == []

    def test_never_where_the_output_changed(self, tmp_path: Path) -> None:
        with Study.open(study(tmp_path, quiet_truth(constant(2.0)))) as opened:
            _, judged = judge_and_keep(opened)
            facts = structs.replace(judged.routing, verdict=Decision.OUTPUT_CHANGED)
            changed = structs.replace(judged, routing=facts)
            for learn in (False, True):
                with pytest.raises(StudyError, match="changed the output"):
                    policy_from(opened, changed, learn=learn)

    def test_up_to_the_temperature_that_pays(self, tmp_path: Path) -> None:
        """On every segment alike, measured cold and hot."""
        temperatures = (0.0, 1.0)
        requests = tuple(request(f"p{number}", segment=SEGMENTS[number % 3]) for number in range(36))
        planned = plan(
            arms=(baseline_arm(), LOOK_UP),
            loads=ONE_STREAM,
            requests=requests,
            rounds=3,
            temperatures=temperatures,
        )
        policy = found(
            tmp_path,
            lambda _segment, _load, temperature: 0.7 if temperature else 2.0,
            plan=planned,
            temperatures=temperatures,
        ).policy

        assert policy.elsewhere is PLAIN
        assert {(segment.pool, segment.max_temperature) for segment in policy.segments} == {(SPEC, 0.0)}
        assert [segment.when for segment in policy.segments] == [(SegmentRule(temperature_max=0.0),), (), ()]
        assert list(faults(policy)) == []

    @pytest.mark.parametrize("kind", ["pipe", "/dev/zero"])
    def test_a_path_that_is_no_file_is_not_waited_for(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / "policy.toml" if kind == "pipe" else Path(kind)
        if kind == "pipe":
            os.mkfifo(path)
        with pytest.raises(UsageError, match="is no file"):
            load_policy(path, learn=False)


class TestLoad:
    def test_up_to_the_highest_that_pays(self, tmp_path: Path) -> None:
        load = found(tmp_path, by_streams({1: 2.0, 4: 1.8, 16: 0.6}), loads=LOADS).policy.load

        assert (load.leave, load.back, load.pays_to) == (4, 2, 4.0)


def answer(tokens: int | None, ttft_s: float, *, streams: int = 1, arm: str = BASELINE) -> Record:
    made = record(arm=arm, load=Concurrency(streams=streams))
    return replace(made, prompt_tokens=tokens, first_token_s=made.intended_s + ttft_s)


class TestPrefix:
    LENGTHS = tuple(range(100, 1100, 100))

    def test_what_a_thousand_tokens_more_take_until_the_first_token(self) -> None:
        records = [answer(tokens, 0.05 + tokens * 0.0003) for tokens in self.LENGTHS]

        assert prefill_s_per_1000(records) == pytest.approx(0.3)
        # Other loads and arms, a slow answer and one without a count change nothing.
        records += [answer(tokens, 9.0, streams=8) for tokens in self.LENGTHS]
        records += [answer(tokens, 9.0, arm="arm") for tokens in self.LENGTHS]
        records += [answer(100, 5.0), answer(None, 1.0)]
        assert prefill_s_per_1000(records) == pytest.approx(0.3, rel=0.1)


class TestRules:
    def test_by_what_the_requests_look_like(self, tmp_path: Path) -> None:
        made = found(tmp_path, PARTLY)
        copy = made.policy.segment("copy")

        assert copy is not None
        assert copy.when == (SegmentRule(temperature_max=0.0),)
        assert copy.sorted_right == 1.0
        assert any("send 100% of the study's prompts to the right pool" in line for line in made.remarks[""])
        assert "rules made without them find 100%" in made.remarks["copy"][0]

    def test_live_requests_go_where_the_study_says(self, tmp_path: Path) -> None:
        router = Router(found(tmp_path, PARTLY).policy)
        pools = PoolStates(spec=(ServerState(url="s"),), plain=(ServerState(url="p"),))

        for look, wanted in zip(APART.values(), (SPEC, PLAIN, PLAIN), strict=True):
            features = RequestFeatures(path="/v1/chat/completions", is_generation=True, **look)
            assert router.route(features, pools, now_s=0.0).pool is wanted

    def test_a_study_without_text_knows_nothing_of_lengths(self, tmp_path: Path) -> None:
        looks = {name: {**look, "temperature": 0.0} for name, look in APART.items()}
        path = study(tmp_path, quiet_truth(PARTLY), looks=looks, keeps_text=False)
        with Study.open(path) as opened:
            assert not opened.keeps_text

        rules = [rule for segment in policy_of_study(path).policy.segments for rule in segment.when]
        assert rules
        assert all(rule.prompt_characters_min is rule.repetition_min is None for rule in rules)


class TestRepetition:
    def test_by_the_arm_s_own_look_up(self, tmp_path: Path) -> None:
        """Only what repeats tells the segments apart."""
        path = study(tmp_path, quiet_truth(PARTLY), looks=ALIKE)
        with Study.open(path) as opened:
            requests = opened.plan.requests
        poem = " ".join(f"word{number}" for number in range(60))
        told = tuple(
            replace(request, messages=(Message(role="user", content=f"{request.id} {poem} {poem}"),))
            if request.segment == "copy"
            else replace(
                request, messages=(Message(role="user", content=f"{request.id} {poem} x{poem[::-1]}"),)
            )
            for request in requests
        )
        planned = plan(arms=(baseline_arm(), LOOK_UP), loads=ONE_STREAM, requests=told, rounds=3)
        policy = policy_of_study(study(tmp_path / "b", quiet_truth(PARTLY), plan=planned)).policy

        assert policy.repetition is not None
        assert (policy.repetition.engine, policy.repetition.drafter) == ("llamacpp", "ngram:simple,n=4,k=8")
        look = prompt_look(policy)
        assert look is not None
        assert (look(f"{poem} {poem}") or 0) > 0.3
        assert look(poem) == 0.0

    def test_a_drafter_that_remembers_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "p.toml"
        file.write_text(
            'schema = 1\n[repetition]\nengine = "llamacpp"\ndrafter = "ngram:mod,n=4,k=8"\n', "utf-8"
        )

        with pytest.raises(UsageError, match="remembers earlier requests"):
            load_policy(file, learn=False)
