"""The baseline is the server that one would run otherwise; a second one without what drafts switch off explains."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from running import Cli, fake_flags, records_of
from samples import NGRAM, launch, record
from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.bench.opening import prepare_named
from speclift.bench.run import StudyRun
from speclift.core.arm import BASELINE, CONTROL
from speclift.core.deadline import Deadline
from speclift.core.records import Phase
from speclift.engines.build import build_engine
from speclift.engines.fake.kind import Fake
from speclift.statistics.control import explained_gains
from speclift.studies.study import Study
from speclift.verbs.judge import judge

# Without scheduling ahead a step takes half as long again; drafts that are always right and cost nothing halve it.
TRUTH = (
    "flavour=vllm",
    "unscheduled_cost=0.5",
    "acceptance=1",
    "step_cost=0",
    "tpot_s=0.004",
    "ttft_s=0.002",
)
SIZE = ("--segment", "chat", "--requests", 12, "--max-tokens", 13, "--temperature", 0, "--verify", "off")
ARM = "ngram-k1"
# Enough that two servers start in it on a busy machine, and far less than the requests take.
SPENT = ("--requests", 48, "--budget", "2.5s")


def decide(cli: Cli, *more: object, truth: tuple[str, ...] = TRUTH) -> dict[str, Any]:
    flags = fake_flags(*truth, fast=False)
    arms = ("--method", "ngram", "--k", "1")
    result = cli("decide", *SIZE, *arms, *flags, "--json", "--study", "s", *more)
    assert result.code in (0, 3, 4, 5), result.stderr
    return result.document


def named(document: dict[str, Any], check: str) -> list[dict[str, Any]]:
    return [finding for finding in document["findings"] if finding["check"] == check]


@pytest.mark.alone
@pytest.mark.timeout(90)
class TestAStudy:
    def test_is_decided_against_the_baseline_as_it_comes_and_says_where_the_gain_is_from(
        self, cli: Cli, tmp_path: Path
    ) -> None:
        document = decide(cli, "--launches", 2, "--fixed")
        # Two tokens a step at 1.5 times the time: 1.33x, not the 2x that a slowed baseline would show.
        assert document["speedup"]["value"] == pytest.approx(4 / 3, rel=0.25)
        (said,) = named(document, "async-scheduling")
        assert (said["level"], ARM in said["message"]) == ("info", True)
        (explained,) = named(document, "gain-explained")
        assert explained["arm"] == ARM
        factors = [
            float(word.rstrip(",").rstrip("x")) for word in explained["message"].split() if word[0].isdigit()
        ]
        assert factors == pytest.approx([4 / 3, 1 / 1.5, 2.0], rel=0.25)
        self.only_the_arms_compete(document)
        alone = decide(cli, "--fixed", "--launches", 1, "--async-scheduling", "off", "--study", "without")
        assert document["speedup"]["level"] == alone["speedup"]["level"]
        with Study.open(tmp_path / "s") as study:
            launched = [launch.arm for launch, _ in study.launches()]
        assert sorted(launched) == sorted([BASELINE, ARM] * 2 + [CONTROL])
        assert launched[-1] == CONTROL

    def only_the_arms_compete(self, document: dict[str, Any]) -> None:
        assert [each["arm"] for each in document["speedups"]] == [ARM]
        assert {cell["arm"] for cell in document["cells"]} == {BASELINE, ARM}
        assert not named(document, "single-launch")
        assert not named(document, "unequal-settings")

    def test_whose_control_does_not_start_is_decided_all_the_same(self, cli: Cli) -> None:
        document = decide(cli, "--launches", 1, truth=(*TRUTH, "control.crash_on_start=1"))
        assert document["failed_arms"] == []
        assert document["speedup"]["value"] == pytest.approx(4 / 3, rel=0.25)
        assert [finding["arm"] for finding in named(document, "arm-failed")] == [CONTROL]

    def test_resumed_measures_the_control_it_lacks(self, cli: Cli, tmp_path: Path) -> None:
        decide(cli, "--fixed", "--launches", 1, *SPENT)
        result = cli("decide", "--study", "s", "--resume", "--json", "--verify", "off")
        assert len(named(result.document, "gain-explained")) == 1
        own = [r for r in records_of(tmp_path / "s") if r.place.arm == CONTROL]
        assert [r.place.phase for r in own].count(Phase.MEASURED) > 0

    def test_after_a_search_has_its_control_too(self, cli: Cli, tmp_path: Path) -> None:
        flags = fake_flags(*TRUTH, fast=False)
        arms = ("--method", "ngram", "--k", "1,2,3,4", "--launches", 1)
        result = cli("decide", *SIZE, *arms, *flags, "--requests", 24, "--json", "--study", "s")
        assert result.document["tuning"] is not None
        explained = {finding["arm"] for finding in named(result.document, "gain-explained")}
        assert explained == {each["arm"] for each in result.document["speedups"]}

    def test_whose_later_rounds_the_budget_left_out_is_explained_by_the_round_there_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Servers that start one after the other in ten seconds each, on an engine that could start four at once."""
        monkeypatch.setattr(Fake, "launches_at_once", 4)
        ask = Ask.of(
            engine="fake",
            methods=("ngram",),
            ks=(1,),
            segments=("chat",),
            requests=12,
            max_tokens=13,
            temperatures=(0.0,),
            launches=3,
            side_by_side=False,
            engine_args=TRUTH,
            study=tmp_path / "s",
        )
        study = prepare_named(ask, Observer()).study
        with study:

            def seconds() -> float:
                return 10.0 * sum(launch.ready_s is not None for launch, _ in study.launches())

            engine = build_engine(study.engine)
            deadline = Deadline.after(35.0, clock=seconds)
            asyncio.run(StudyRun(study, engine, observer=Observer(), deadline=deadline).run())
            # A second round takes 20 of the 15 seconds left: it is not begun, and the control has its 10.
            launched = [(launch.arm, launch.round) for launch, _ in study.launches()]
            assert launched[:2] == [(BASELINE, 0), (ARM, 0)]
            assert [arm for arm, _ in launched[2:]] == [CONTROL]
            (explained,) = [each for each in judge([study]).findings if each.check == "gain-explained"]
        assert (explained.arm, "scheduling alone gives" in explained.message) == (ARM, True)


class TestAControl:
    def test_says_what_else_the_engine_changed_for_the_arm(self) -> None:
        """vLLM 0.26 runs n-gram drafts on its older model runner, the control on the newer one."""
        took = {BASELINE: 0.01, CONTROL: 0.02, NGRAM.name: 0.0125}
        answered = [
            record(tpot_s=tpot_s, arm=arm, request_id=f"p{number}")
            for arm, tpot_s in took.items()
            for number in range(12)
        ]
        told = {BASELINE: ("enabled", "V2"), CONTROL: ("disabled", "V2"), NGRAM.name: ("disabled", "V1")}
        launches = [
            launch(number, arm=arm, settings={"async_scheduling": scheduling, "model_runner": runner})
            for number, (arm, (scheduling, runner)) in enumerate(told.items())
        ]
        (unlike,) = explained_gains(answered, [NGRAM], launches, metric="tpot")
        assert unlike.message.endswith(
            "scheduling alone gives 0.50x, drafting and model_runner V1 (control V2) together give 1.60x"
        )
        (alike,) = explained_gains(answered, [NGRAM], launches[:2], metric="tpot")
        assert alike.message.endswith("scheduling alone gives 0.50x, drafting gives 1.60x")
