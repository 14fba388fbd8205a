"""The first lines on a terminal: twelve at most, in every state, and a command that can be copied."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from answers import STATES
from speclift.core.answer import NextCommand, answered
from speclift.verdict.answer import answer_to
from speclift.views.answer_terminal import LINES_MAX, AnswerScreen
from speclift.views.terminal import STYLES


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


def test_a_command_is_one_line_to_copy_and_cannot_act_on_the_terminal() -> None:
    command = "speclift decide --model 'a\x1b[31m" + "x" * 100 + "'"
    answer = answered("Yes.", [], NextCommand(command=command, seconds=3))
    above, _ = printed(AnswerScreen(answer, style="bold"), width=80)
    assert "\x1b" not in above
    assert any(len(line) > 100 for line in above.splitlines())
