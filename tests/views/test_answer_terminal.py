"""The first lines on a terminal: twelve at most, in every state, and a command that can be copied."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from answers import STATES
from speclift.core.answer import BECAUSE_CHARACTERS_MAX, SENTENCE_CHARACTERS_MAX, NextCommand, answered
from speclift.verdict.answer import answer_to
from speclift.views.answer_terminal import LINES_MAX, AnswerScreen
from speclift.views.terminal import STYLES

LONG = "speclift decide " + "--engine-arg some=thing " * 40


def printed(screen: AnswerScreen, *, width: int, colours: bool = False) -> tuple[str, str]:
    """What stands above the table, and below it."""
    texts = []
    for part in (screen.print_above, screen.print_below):
        console = Console(
            file=io.StringIO(), width=width, force_terminal=colours, legacy_windows=False, highlight=False
        )
        part(console)
        assert isinstance(console.file, io.StringIO)
        texts.append(console.file.getvalue())
    return texts[0], texts[1]


def lines_of(text: str, *, width: int) -> int:
    """As a terminal folds them."""
    return sum(max(1, math.ceil(len(line.rstrip()) / width)) for line in text.splitlines())


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("state", STATES)
def test_it_takes_at_most_twelve_lines(state: str, width: int) -> None:
    judgement = STATES[state]
    answer = answer_to(judgement)
    above, below = printed(AnswerScreen(answer, style=STYLES[judgement.verdict.decision]), width=width)
    assert lines_of(above, width=width) <= LINES_MAX
    assert answer.sentence in " ".join(above.split())
    for reason in answer.because:
        assert reason in " ".join(above.split())
    assert below == ""
    if answer.next is not None:
        assert answer.next.command in above.splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_the_longest_answer_keeps_its_reasons_and_moves_its_command_below_the_table(width: int) -> None:
    sentence = ("word " * 60)[: SENTENCE_CHARACTERS_MAX - 1].strip() + "."
    reasons = [f"{n} " + ("figure " * 40)[: BECAUSE_CHARACTERS_MAX - 3] for n in range(3)]
    answer = answered(sentence, reasons, NextCommand(command=LONG, seconds=540))
    above, below = printed(AnswerScreen(answer, style="bold"), width=width)
    assert lines_of(above, width=width) <= LINES_MAX
    assert "next, about 9 min: the command below the table" in above
    assert all(reason in " ".join(above.split()) for reason in answer.because)
    assert LONG.strip() in below


def test_a_command_is_one_line_to_copy_and_cannot_act_on_the_terminal() -> None:
    command = "speclift decide --model 'a\x1b[31m" + "x" * 100 + "'"
    answer = answered("Yes.", [], NextCommand(command=command, seconds=3))
    above, _ = printed(AnswerScreen(answer, style="bold"), width=80)
    assert "\x1b" not in above
    assert any(len(line) > 100 for line in above.splitlines())


def test_a_server_is_said_to_be_ready_and_a_study_to_take_its_time() -> None:
    for command, words in (
        ("vllm serve m", "next, ready in about 8 s:"),
        ("speclift tune", "next, about 8 s:"),
    ):
        answer = answered("Yes.", [], NextCommand(command=command, seconds=7.2))
        assert words in printed(AnswerScreen(answer, style="bold"), width=80)[0]


@pytest.mark.parametrize("state", ["ship", "do not ship", "open", "output changed"])
def test_the_sentence_has_the_colour_of_the_verdict(state: str) -> None:
    judgement = STATES[state]
    screen = AnswerScreen(answer_to(judgement), style=STYLES[judgement.verdict.decision])
    assert "\x1b[1;3" in printed(screen, width=120, colours=True)[0]
