"""Which command comes next, and how long it takes: from the study's own command line and its own time."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from answers import ARGV, EFFORT, judged, needing, part
from samples import provenance
from simulated import ARM, comparison, evidence
from speclift.core.arm import Arm
from speclift.core.rerun_command import CommandLine
from speclift.core.speculation import NGram
from speclift.search.tuning import ConfirmedTuning, PromptSplit
from speclift.verdict.answer import next_step

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


class TestTheCommand:
    def test_a_quick_look_is_asked_for_the_traffic_it_chose(self) -> None:
        words = command_of("decide")
        assert value(words, "--segment") == ["chat", "copy"]
        assert value(words, "--max-tokens") == ["64"]

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


def test_a_command_line_knows_its_flags_however_they_are_written() -> None:
    line = CommandLine(("decide", "--k=4", "--requests", "12", "--json", "--out", "x"))
    assert line.has("--k")
    assert line.value("--k") == "4"
    assert not line.has("--launches")
    assert line.changed({}) == "speclift decide --k 4 --requests 12"
