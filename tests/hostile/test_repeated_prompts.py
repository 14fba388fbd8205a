"""More requests than prompts: the prompts come again, marked, and nothing takes a repeat for a new prompt."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from running import Cli, fake_flags, measured_places, planned_places, records_of
from samples import plan, record, request
from simulated import ARM, constant, drawn, quiet_truth, study_places
from speclift.core.arm import BASELINE, Arm
from speclift.core.errors import UsageError
from speclift.core.records import Phase, Record
from speclift.core.results import Level
from speclift.core.speculation import Combined, DraftModel, NGram, Speculation, Suffix
from speclift.core.traffic import Rate
from speclift.lossless.recorded import gate_from_records
from speclift.statistics.compare import idle_tax
from speclift.statistics.pairs import pairs
from speclift.statistics.repeats import check_repeats, without_echoes
from speclift.studies.study import DATABASE
from speclift.workload.arrivals import again, arrival_offsets, period_s
from speclift.workload.experiment import REQUEST_COUNT_MAX

PROMPTS = 6
SENT = 15
SIZE = ("--segment", "chat", "--max-tokens", 12, "--launches", 1, "--temperature", 0.7)
CHAT_PROMPTS = 24


def findings(document: dict[str, Any], check: str) -> list[dict[str, Any]]:
    return [finding for finding in document["findings"] if finding["check"] == check]


class TestThePlan:
    @pytest.mark.slow
    def test_refuses_more_repeats_than_a_memory_holds_before_it_makes_them(self) -> None:
        with pytest.raises(UsageError, match=r"--requests 1000000000 repeats 2 prompts"):
            plan(request_count=10**9)
        assert len(plan(request_count=REQUEST_COUNT_MAX).items) == REQUEST_COUNT_MAX


class TestRecordedArrivals:
    def test_begin_again_after_the_last_one_instead_of_doubling_the_load(self) -> None:
        requests = [request(f"p{number}", arrival_s=100.0 + number) for number in range(4)]
        period = period_s(requests)
        sent = [again(each, repeat=repeat, period_s=period) for repeat in range(3) for each in requests]
        offsets = arrival_offsets(Rate(per_s=1.0, arrivals="replay"), sent, seed=0)
        assert offsets == pytest.approx([float(number) for number in range(12)])


class TestPairs:
    def test_form_between_the_same_repeat_of_both_arms(self) -> None:
        sides = [
            record(arm=arm, repeat=repeat, tpot_s=tpot_s)
            for arm, tpots in ((BASELINE, (0.02, 0.04)), (ARM.name, (0.01, 0.01)))
            for repeat, tpot_s in enumerate(tpots)
        ]
        found = pairs(sides, ARM.name, "tpot")
        assert {pair.key[-1]: pair.log_speedup for pair in found} == pytest.approx(
            {0: math.log(2.0), 1: math.log(4.0)}
        )
        assert {pair.prompt for pair in found} == {"p1"}

    def test_a_repeat_without_drafts_is_idle_by_itself(self) -> None:
        sides = [
            replace(
                record(arm=arm, repeat=repeat, request_id=f"p{number}"),
                drafted=0 if arm == ARM.name and repeat == 1 else 5,
            )
            for arm in (BASELINE, ARM.name)
            for repeat in range(2)
            for number in range(9)
        ]
        tax = idle_tax(sides, ARM.name)
        assert tax is not None
        assert tax.prompts == 9


class TestFindings:
    def records(self) -> tuple[Record, ...]:
        return drawn(study_places(prompts=PROMPTS, requests=SENT), quiet_truth(constant(1.5)))

    @pytest.mark.parametrize(
        "speculation",
        [
            pytest.param(Suffix(), id="suffix decoding"),
            pytest.param(NGram(variant="mod"), id="a table of all requests"),
            pytest.param(
                Combined(parts=(DraftModel(model="d"), NGram(variant="cache"))), id="one of several"
            ),
        ],
    )
    def test_a_drafter_that_remembers_answers_is_not_compared_on_repeats(
        self, speculation: Speculation
    ) -> None:
        arm = Arm(name=ARM.name, speculation=speculation)
        records = self.records()
        _, said = check_repeats(records, [arm])
        assert (said.check, said.level, said.arm) == ("repeats-remembered", Level.WARN, ARM.name)
        assert len(pairs(without_echoes(records, [arm]), ARM.name, "tpot")) == 3 * PROMPTS
        assert len(pairs(without_echoes(records, [ARM]), ARM.name, "tpot")) == 3 * SENT


class TestTheLosslessGate:
    def test_compares_an_answer_with_that_to_the_same_repeat(self) -> None:
        sides = [
            replace(record(arm=arm, repeat=repeat, temperature=0.7), text=f"answer {repeat}")
            for arm in (BASELINE, ARM.name)
            for repeat in range(3)
        ]
        sides[-1] = replace(sides[-1], text="another answer")
        (gate,) = gate_from_records(sides, [ARM], [request()]).arms
        assert gate.sampled is not None
        assert gate.sampled.tokens == 3 * 11


class TestAStudy:
    @pytest.mark.slow
    @pytest.mark.timeout(60)
    def test_sends_repeats_of_its_own_accord(self, cli: Cli, tmp_path: Path) -> None:
        asked = 2 * CHAT_PROMPTS + 5
        result = cli("decide", *SIZE, "--requests", asked, *fake_flags(), "--json", "--study", "s")
        document = result.document
        whole = [cell for cell in document["cells"] if cell["segment"] == "all"]
        assert {(cell["requests"], cell["prompts"]) for cell in whole} == {(asked, CHAT_PROMPTS)}
        (said,) = findings(document, "repeated-prompts")
        assert said["level"] == "info"
        assert f"{CHAT_PROMPTS} distinct prompts were sent as {asked} requests" in said["message"]
        assert document["speedup"]["n"] == CHAT_PROMPTS
        records = [r for r in records_of(tmp_path / "s") if r.place.phase is Phase.MEASURED]
        by_repeat = Counter((r.place.arm, r.place.repeat) for r in records)
        assert sorted(by_repeat.values()) == [5, 5, *[CHAT_PROMPTS] * 4]
        # Above temperature 0 another seed is another answer.
        texts = {(r.place.request_id, r.place.repeat): r.text for r in records if r.place.arm == BASELINE}
        assert len(set(texts.values())) > CHAT_PROMPTS

    @pytest.mark.slow
    @pytest.mark.timeout(60)
    def test_after_a_search_repeats_the_prompts_it_held_out(self, cli: Cli) -> None:
        arms = ("--method", "ngram", "--k", "1,2,3,4", "--verify", "off")
        result = cli("tune", *SIZE, *arms, "--requests", 40, *fake_flags(), "--json", "--study", "s")
        whole = [cell for cell in result.document["cells"] if cell["segment"] == "all"]
        assert {cell["requests"] for cell in whole} == {40}
        assert all(cell["prompts"] < CHAT_PROMPTS for cell in whole)

    @pytest.mark.slow
    @pytest.mark.timeout(60)
    def test_after_a_search_sends_as_many_as_asked_though_it_held_out_fewer(self, cli: Cli) -> None:
        arms = ("--method", "ngram", "--k", "1,2,3,4", "--verify", "off")
        asked = CHAT_PROMPTS - 4
        result = cli("tune", *SIZE, *arms, "--requests", asked, *fake_flags(), "--json", "--study", "s")
        whole = [cell for cell in result.document["cells"] if cell["segment"] == "all"]
        assert {cell["requests"] for cell in whole} == {asked}
        assert all(cell["prompts"] < asked for cell in whole)
        assert findings(result.document, "repeated-prompts")

    @pytest.mark.slow
    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("load", [("--concurrency", "1,4"), ("--qps", "200")], ids=["closed", "open"])
    def test_measure_without_text_sends_all_of_them(
        self, load: tuple[str, str], cli: Cli, tmp_path: Path
    ) -> None:
        asked = 2 * CHAT_PROMPTS + 1
        size = (*SIZE, "--requests", asked, *load, "--no-text")
        document = cli("measure", *size, *fake_flags(), "--json", "--study", "s").document
        whole = [cell for cell in document["cells"] if cell["segment"] == "all"]
        assert {(cell["requests"], cell["prompts"]) for cell in whole} == {(asked, CHAT_PROMPTS)}
        assert "Prefix caching was off" in findings(document, "repeated-prompts")[0]["message"]
        repeats = {r.place.repeat for r in records_of(tmp_path / "s") if r.place.phase is Phase.MEASURED}
        assert repeats == {0, 1, 2}

    @pytest.mark.slow
    @pytest.mark.timeout(60)
    def test_says_how_many_the_budget_left_out(self, cli: Cli) -> None:
        size = (*SIZE, "--requests", 5000, "--budget", "3s")
        document = cli("measure", *size, *fake_flags(), "--json", "--study", "s").document
        sent = {cell["requests"] for cell in document["cells"] if cell["segment"] == "all"}
        assert max(sent) < 5000
        (said,) = findings(document, "budget-spent")
        assert f"{max(sent)} of the 5000 requests planned at c=1 were sent" in said["message"]

    @pytest.mark.slow
    @pytest.mark.timeout(60)
    def test_cut_short_goes_on_with_the_repeats_it_lacks(self, cli: Cli, tmp_path: Path) -> None:
        cli("decide", *SIZE, "--requests", CHAT_PROMPTS + 6, *fake_flags(), "--study", "s")
        study = tmp_path / "s"
        forget(
            study, "repeat = 1 AND request_id IN (SELECT request_id FROM records WHERE repeat = 1 LIMIT 3)"
        )
        before = len(records_of(study))
        result = cli("decide", "--study", "s", "--resume", "--json")
        assert result.code in (0, 3, 4, 5), result.stderr
        places = measured_places(records_of(study))
        assert set(places) == planned_places(study)
        assert {place for place, times in places.items() if times > 1} == set()
        assert len(records_of(study)) > before


def forget(study: Path, which: str) -> None:
    with closing(sqlite3.connect(study / DATABASE)) as database, database:
        database.execute(f"DELETE FROM records WHERE {which}")
