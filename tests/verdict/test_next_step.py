"""Which command comes next, and how long it takes: from the study's own command line and its own time."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from answers import ARGV, EFFORT, STATES, judged, needing, part
from samples import provenance
from simulated import ARM, comparison, evidence
from speclift.core.arm import Arm
from speclift.core.goals import Goals
from speclift.core.rerun_command import CommandLine
from speclift.core.speculation import NGram
from speclift.search.tuning import ConfirmedTuning, PromptSplit
from speclift.verbs.effort import busy_s
from speclift.verdict.next_step import next_step

OPEN = evidence(overall=needing(0.9, 1.1, 1.4))
SEARCHED = ConfirmedTuning(
    winner="arm",
    runner_up=None,
    confirmed=("arm",),
    cells=(),
    choices=(),
    eliminated=(),
    errors=(),
    jobs=(),
    ending="done",
    expected_regret=0.0,
    spent_s=60.0,
    grid_s=None,
    prompts=PromptSplit(tuning=4, held_out=12, is_held_out=True),
    schedule=None,
    confirmed_errors=(),
    best=None,
)


def command_of(*argv: str, **changes: Any) -> list[str]:
    found = next_step(judged(OPEN, provenance=provenance(argv=argv or ARGV), **changes))
    assert found is not None
    return shlex.split(found.command)


def value(words: list[str], flag: str) -> list[str]:
    return [words[place + 1] for place, word in enumerate(words) if word == flag]


class TestTime:
    def test_it_grows_with_requests_and_launches(self) -> None:
        """72 requests in 36 s and 6 starts in 12 s: half a second and two seconds each; the gate took 4 s."""
        assert EFFORT.seconds_for(arms=2, requests=12, launches=3) == pytest.approx(12 + 36 + 4)
        assert EFFORT.seconds_for(arms=2, requests=24, launches=3) == pytest.approx(12 + 72 + 4)
        assert EFFORT.seconds_for(arms=2, requests=12, launches=6) == pytest.approx(24 + 72 + 4)
        assert EFFORT.seconds_for(arms=3, requests=12, launches=3) == pytest.approx(18 + 54 + 4)

    def test_what_is_left_is_what_was_not_asked_yet(self) -> None:
        half = replace(EFFORT, asked=36, asking_s=18.0)
        assert half.missing == 36
        assert half.seconds_to_end() == pytest.approx(2 * 2 * 2.0 + 36 * 0.5 + 4)

    def test_nothing_measured_tells_no_time(self) -> None:
        nothing = replace(EFFORT, asked=0, asking_s=0.0)
        assert nothing.seconds_for(arms=2, requests=12, launches=3) is None
        assert nothing.seconds_to_end() is None
        assert next_step(judged(OPEN, effort=nothing)) is None

    @pytest.mark.parametrize(
        ("spans", "expected"),
        [
            ((), 0.0),
            (((0.0, 2.0),), 2.0),
            (((0.0, 2.0), (1.0, 3.0)), 3.0),  # two at once
            (((0.0, 5.0), (1.0, 2.0)), 5.0),  # one inside another
            (((0.0, 1.0), (36_000.0, 36_002.0)), 3.0),  # a night between two runs
        ],
    )
    def test_what_overlaps_counts_once(self, spans: tuple[tuple[float, float], ...], expected: float) -> None:
        assert busy_s(spans) == pytest.approx(expected)


class TestTheCommand:
    def test_the_cheaper_way_is_taken(self) -> None:
        assert value(command_of(), "--launches") == ["5"]
        assert value(command_of(), "--requests") == ["12"]
        slow_starts = replace(EFFORT, starting_s=6000.0)
        assert value(command_of(effort=slow_starts), "--launches") == ["3"]
        assert value(command_of(effort=slow_starts), "--requests") == ["60"]

    def test_its_own_flags_stay_and_where_results_went_does_not(self) -> None:
        words = command_of(
            *ARGV, "--study", "s", "--out", "r.html", "--json", "--engine-arg", "--threads", "--seed=3"
        )
        assert words[:2] == ["speclift", "decide"]
        assert value(words, "--engine-arg") == ["--threads"]
        assert value(words, "--seed") == ["3"]
        assert not {"--study", "s", "--out", "r.html", "--json"} & set(words)

    def test_a_quick_look_is_asked_for_the_traffic_it_chose(self) -> None:
        words = command_of("decide")
        assert value(words, "--segment") == ["chat", "copy"]
        assert value(words, "--max-tokens") == ["64"]

    def test_a_pasted_line_stays_behind_its_dashes(self) -> None:
        words = command_of("decide", "--requests", "12", "--", "vllm", "serve", "m", "--requests", "9")
        assert words[words.index("--") :] == ["--", "vllm", "serve", "m", "--requests", "9"]
        assert words.index("--launches") < words.index("--")

    def test_what_was_only_measured_is_decided(self) -> None:
        assert command_of("measure", *ARGV[1:])[1] == "decide"

    def test_the_bar_and_the_metric_are_those_of_the_verdict(self) -> None:
        words = command_of(goals=Goals(min_speedup=1.2, metric="tpot"))
        assert value(words, "--min-speedup") == ["1.2"]
        assert value(words, "--metric") == ["tpot"]

    def test_a_budget_is_long_enough_for_what_it_takes(self) -> None:
        """84 s and half as much again are three minutes."""
        assert value(command_of(*ARGV, "--budget", "30s"), "--budget") == ["3m"]

    def test_a_segment_is_measured_alone(self) -> None:
        found = next_step(STATES["do not ship, a part is open"])
        assert found is not None
        assert value(shlex.split(found.command), "--segment") == ["copy"]

    @pytest.mark.parametrize(("pool", "requests"), [({"chat": 24, "copy": 40}, "60"), ({"chat": 24}, None)])
    def test_prompts_that_do_not_exist_are_not_asked_for(
        self, pool: dict[str, int], requests: str | None
    ) -> None:
        needs_prompts = evidence(overall=needing(0.9, 1.1, 1.4, launches_needed=None))
        found = next_step(judged(needs_prompts, effort=replace(EFFORT, pool=pool)))
        if requests is None:
            assert found is None
        else:
            assert found is not None
            assert value(shlex.split(found.command), "--requests") == [requests]

    def test_no_study_is_too_small_to_ship(self) -> None:
        few = evidence(
            overall=comparison(1.0, 1.1, 1.2), parts=(part(1.2, 1.4, 1.6, prompts=3, launches_needed=4),)
        )
        found = next_step(judged(few))
        assert found is not None
        assert value(shlex.split(found.command), "--requests") == ["8"]

    def test_of_a_search_only_the_arm_in_question_is_measured(self) -> None:
        arm = Arm(name=ARM.name, speculation=NGram(k=15, n=4))
        open_arm = evidence(arm=arm, overall=needing(0.9, 1.1, 1.4))
        argv = ("tune", "--method", "ngram", "--k", "7,15", "--draft", "d.gguf", "--requests", "12")
        found = next_step(judged(open_arm, tuning=SEARCHED, provenance=provenance(argv=argv)))
        assert found is not None
        words = shlex.split(found.command)
        assert words[1] == "decide"
        assert value(words, "--method") == ["ngram,k=15,n=4"]
        assert "--k" not in words
        assert "--draft" not in words

    @pytest.mark.parametrize("name", ["arm", "yours"])
    def test_what_one_method_does_not_say_is_searched_again(self, name: str) -> None:
        """Server settings that were searched too, or a line that brings an arm of its own; the search took 60 s."""
        whole = evidence(
            arm=replace(ARM, name=name), overall=needing(0.9, 1.1, 1.4, arm=name, prompts_needed=None)
        )
        varied = ("--target-quant", "none,fp8") if name == "arm" else ()
        known = provenance(argv=("tune", *ARGV[1:], *varied))
        plain = next_step(judged(whole, provenance=known))
        found = next_step(judged(whole, tuning=SEARCHED, provenance=known))
        assert found is not None
        assert plain is not None
        assert found.command == plain.command
        assert found.command.startswith("speclift tune ")
        assert found.seconds == plain.seconds + 60

    @pytest.mark.parametrize("argv", [(), ("decide", "--baseline-url", "http://***@host:1")])
    def test_what_cannot_be_repeated_gives_no_command(self, argv: tuple[str, ...]) -> None:
        assert next_step(judged(OPEN, provenance=provenance(argv=argv))) is None

    def test_a_study_that_was_cut_short_is_continued_whatever_started_it(self) -> None:
        half = replace(EFFORT, asked=30)
        assert command_of("tune", "--requests", "12", effort=half)[:3] == ["speclift", "tune", "--resume"]
        found = next_step(judged(OPEN, provenance=provenance(argv=()), effort=half))
        assert found is not None
        assert shlex.split(found.command)[:5] == ["speclift", "decide", "--resume", "--study", "studies/mine"]

    @pytest.mark.parametrize(
        ("argv", "has_budget"),
        [
            (("decide", "--requests", "12"), False),
            (("decide", "--requests", "12", "--budget", "1m"), True),
            (("decide", "--method", "ngram"), True),
        ],
    )
    def test_it_is_continued_within_a_budget_only_where_one_bounded_it(
        self, argv: tuple[str, ...], has_budget: bool
    ) -> None:
        words = command_of(*argv, effort=replace(EFFORT, asked=30))
        assert words[2] == "--resume"
        assert ("--budget" in words) == has_budget


def test_a_command_line_knows_its_flags_however_they_are_written() -> None:
    line = CommandLine(("decide", "--k=4", "--requests", "12", "--json", "--out", "x"))
    assert line.has("--k")
    assert line.value("--k") == "4"
    assert not line.has("--launches")
    assert line.changed({}) == "speclift decide --k 4 --requests 12"
