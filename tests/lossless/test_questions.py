"""What the gate asks and how its corners are judged: turns, seeds, stop words, limits, schemas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samples import request
from speclift.core.traffic import Message
from speclift.lossless.answers import Alternative, Answer, Said
from speclift.lossless.gate import Result
from speclift.lossless.greedy import gap_noise
from speclift.lossless.judge import judge_edge
from speclift.lossless.questions import (
    Edge,
    Question,
    edges,
    second_turns,
)

LONG = "The old stone bridge crosses a quiet river near Hamburg harbour today"


def question(case: str = "p1", *, chats: bool = True) -> Question:
    messages = (Message(role="user", content="Where?"),) if chats else ()
    asked = replace(request(case), messages=messages, prompt=None if chats else "Where?")
    return Question(case=case, request=asked, temperature=0.0, seed=1)


def answer(text: str, *, case: str = "p1", error: str = "", finish: str = "stop", tokens: int = 9) -> Answer:
    return Answer(case=case, text=text, finish_reason=finish, tokens=tokens, error=error)


class TestSecondTurns:
    def test_a_chat_that_was_answered_goes_on_from_the_baselines_answer(self) -> None:
        (turn,) = second_turns([question()], [answer("In Hamburg.")], 3)
        assert turn.case == "p1, second turn"
        assert [message.role for message in turn.request.messages] == ["user", "assistant", "user"]
        assert turn.request.messages[1].content == "In Hamburg."


class TestEdges:
    def names(self, *answers: Answer) -> list[str]:
        return [edge.name for edge in edges([question("p1"), question("p2")], answers)]

    def test_the_first_question_with_an_answer_is_asked_in_every_corner(self) -> None:
        assert self.names(answer("", case="p1"), answer(LONG, case="p2")) == [
            *("stop string", "max_tokens 1", "max_tokens 2", "max_tokens 7", "JSON schema", "min_p")
        ]
        with_ids = replace(answer(LONG), ids=(42, 7))
        assert "logit_bias" in self.names(with_ids)

    @pytest.mark.parametrize(
        ("text", "stop"),
        [
            pytest.param(LONG, "crosses", id="the first long word behind the first third"),
            pytest.param(
                "one two six ten sly (Hamburg) wells dry", "wells", id="neither short nor with signs"
            ),
            pytest.param("river is a river wells", "wells", id="not one that stood before"),
            pytest.param("river river river", None, id="none that is new"),
        ],
    )
    def test_a_stop_string_comes_from_behind_the_first_third(self, text: str, stop: str | None) -> None:
        stops = [edge.forbidden for edge in edges([question()], [answer(text)]) if edge.name == "stop string"]
        assert stops == ([] if stop is None else [stop])


class TestBrokenEdges:
    def result(self, edge: Edge, text: str, *, finish: str = "stop", tokens: int | None = 3) -> Result:
        """Of an arm beside a baseline that keeps to it."""
        kept = answer('{"city": "Hamburg", "bridges": 2}', tokens=3)
        arm = Answer(case="p1", text=text, finish_reason=finish, tokens=tokens)
        return judge_edge(edge, kept, arm, fault_nats=3.0).check.result

    @pytest.mark.parametrize(("tokens", "result"), [(7, Result.PASS), (8, Result.FAIL), (None, Result.PASS)])
    def test_one_token_over_the_limit_is_a_fault(self, tokens: int | None, result: Result) -> None:
        edge = Edge(name="max_tokens 7", question=question(), tokens_max=7)
        assert self.result(edge, "any", tokens=tokens) is result

    def test_a_stop_string_in_the_answer_is_a_fault(self) -> None:
        edge = Edge(name="stop string", question=question(), forbidden="river")
        assert self.result(edge, "a river") is Result.FAIL
        assert self.result(edge, "a bank") is Result.PASS

    @pytest.mark.parametrize(
        ("text", "finish", "result"),
        [
            ("Hamburg", "stop", Result.FAIL),
            ("Hamburg", "length", Result.PASS),  # cut off, which is no fault of the schema
            ('{"city": "Bremen", "bridges": 2}', "stop", Result.PASS),
        ],
    )
    def test_a_finished_answer_that_misses_the_schema_is_a_fault(
        self, text: str, finish: str, result: Result
    ) -> None:
        edge = Edge(name="JSON schema", question=question(), is_schema=True)
        assert self.result(edge, text, finish=finish) is result


class TestGapNoise:
    def said(self, token: str, logprob: float, **others: float) -> Said:
        choices = {token: logprob, **others}
        return Said(
            data=token.encode(),
            logprob=logprob,
            choices=tuple(Alternative(data=name.encode(), logprob=value) for name, value in choices.items()),
        )

    def answered(self, *tokens: Said) -> Answer:
        text = b"".join(token.data for token in tokens).decode()
        return Answer(case="p", text=text, finish_reason="stop", tokens=len(tokens), said=tokens)

    def test_is_how_far_the_gap_to_the_first_rival_moved(self) -> None:
        first = self.answered(self.said("a", -0.2, b=-1.2, c=-3.0), self.said("d", -0.1, e=-4.0))
        again = self.answered(self.said("a", -0.3, b=-1.0, c=-3.0), self.said("d", -0.1, e=-4.5))
        assert gap_noise(first, again) == pytest.approx([0.3, 0.5])

    def test_ends_where_they_part(self) -> None:
        first = self.answered(self.said("a", -0.2, b=-1.2), self.said("d", -0.1, e=-4.0))
        again = self.answered(self.said("a", -0.2, b=-1.2), self.said("e", -0.1, d=-4.0))
        assert gap_noise(first, again) == [0.0]

    def test_a_token_without_a_rival_or_whose_rival_is_no_longer_listed_says_nothing(self) -> None:
        first = self.answered(self.said("a", -0.2), self.said("d", -0.1, e=-4.0))
        again = self.answered(self.said("a", -0.2), self.said("d", -0.1, f=-4.0))
        assert gap_noise(first, again) == []
