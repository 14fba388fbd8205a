"""Where answers part and how close a call it was."""

from __future__ import annotations

import math

import pytest

from speclift.lossless.answers import (
    Alternative,
    Answer,
    Kind,
    Said,
    aligned,
    compare,
    hazard,
    more_often,
    tokens_for_rate,
)
from speclift.lossless.gate import Hazard


def said(token: str, logprob: float, **others: float) -> Said:
    """`others` are the alternatives; _ stands for a space."""
    choices = [Alternative(data=token.encode(), logprob=logprob)]
    choices += [
        Alternative(data=name.replace("_", " ").encode(), logprob=value) for name, value in others.items()
    ]
    return Said(data=token.encode(), logprob=logprob, choices=tuple(choices))


def reference(*tokens: Said, finish: str = "length") -> Answer:
    text = b"".join(token.data for token in tokens).decode()
    return Answer(case="p", text=text, finish_reason=finish, tokens=len(tokens), said=tokens)


def answer(text: str, *, finish: str = "length", tokens: int | None = 3) -> Answer:
    return Answer(case="p", text=text, finish_reason=finish, tokens=tokens)


RIVER = reference(
    said("The", -0.1, A=-2.5), said(" river", -0.7, _lake=-0.75, _sea=-4.0), said(" is", -0.2, _was=-1.9)
)


class TestMargins:
    def test_the_same_text_does_not_part(self) -> None:
        compared = compare(RIVER, answer("The river is"))
        assert compared.divergence is None
        assert compared.tokens == 3

    def test_a_tie_has_the_gap_between_the_two_tokens_and_the_other_ones_rank(self) -> None:
        divergence = compare(RIVER, answer("The lake is")).divergence
        assert divergence is not None
        assert divergence.kind is Kind.TOKEN
        assert divergence.position == 1
        assert divergence.margin == pytest.approx(0.05)
        assert divergence.rank == 2
        assert not divergence.is_at_least

    def test_a_token_that_is_not_listed_is_at_least_as_far_as_the_last_that_is(self) -> None:
        divergence = compare(RIVER, answer("The xylophone is")).divergence
        assert divergence is not None
        assert divergence.is_at_least
        assert divergence.margin == pytest.approx(3.3)

    def test_a_token_of_the_same_letters_and_more_may_have_been_taken_a_token_earlier(self) -> None:
        """`"_` for `"`: the letters part only where the baseline would never go on so (vLLM 0.26 on an H200)."""
        held = reference(
            said(" 4,", -0.1, x=-9.0),
            Said(
                data=b' "',
                logprob=-0.9,
                choices=(Alternative(data=b' "', logprob=-0.9), Alternative(data=b' "_', logprob=-0.95)),
            ),
            said("wind", -0.01, warning=-5.0, _gust=-7.0),
        )
        divergence = compare(held, answer(' 4, "_warning')).divergence
        assert divergence is not None
        assert divergence.margin == pytest.approx(6.99)
        assert divergence.is_at_least
        assert divergence.unseen_margin == pytest.approx(0.05)
        assert divergence.closest == pytest.approx(0.05)

    def test_letters_that_may_have_been_other_tokens_before_they_part(self) -> None:
        held = reference(said("a", -0.7, ab=-0.72), said("b", -0.1, c=-3.0), said("cd", -0.1, x=-8.0))
        divergence = compare(held, answer("abX")).divergence
        assert divergence is not None
        assert divergence.unseen_margin == pytest.approx(0.02)

    def test_a_token_that_the_other_text_does_not_have_is_no_reading_of_it(self) -> None:
        divergence = compare(RIVER, answer("The river was")).divergence
        assert divergence is not None
        assert divergence.unseen_margin is None

    def test_an_answer_that_was_cut_off_is_not_excused(self) -> None:
        held = reference(said("a", -0.7, ab=-0.72), said("b", -0.1), said("cd", -0.1))
        divergence = compare(held, answer("ab", finish="abort")).divergence
        assert divergence is not None
        assert (divergence.kind, divergence.unseen_margin) == (Kind.TRUNCATED, None)

    def test_a_difference_inside_a_token_is_read_as_the_token_that_reaches_past_it(self) -> None:
        held = reference(said(" rivers", -0.3, _river=-3.0, _rivet=-0.4))
        divergence = compare(held, answer(" rivet", tokens=1)).divergence
        assert divergence is not None
        assert divergence.margin == pytest.approx(0.1)

    def test_without_log_probabilities_the_margin_is_unknown(self) -> None:
        divergence = compare(answer("one two three"), answer("one two tree")).divergence
        assert divergence is not None
        assert divergence.margin is None

    def test_tokens_that_do_not_make_up_the_text_are_not_trusted(self) -> None:
        torn = Answer(case="p", text="Le river is", finish_reason="length", tokens=3, said=RIVER.said)
        assert aligned(torn) == ()
        divergence = compare(torn, answer("Le lake is")).divergence
        assert divergence is not None
        assert divergence.margin is None


class TestEnds:
    def test_text_cut_off_with_the_same_count_of_tokens_is_beyond_any_margin(self) -> None:
        divergence = compare(RIVER, answer("The river")).divergence
        assert divergence is not None
        assert divergence.kind is Kind.TRUNCATED
        assert divergence.margin == math.inf

    def test_an_end_that_the_model_could_have_chosen_has_its_margin(self) -> None:
        held = reference(said("Yes", -0.1, No=-2.0), said(".", -0.9, **{"<|im_end|>": -1.2}))
        divergence = compare(held, answer("Yes", finish="stop", tokens=2)).divergence
        assert divergence is not None
        assert divergence.kind is Kind.ENDED
        assert divergence.margin == pytest.approx(0.3)

    def test_an_end_that_no_listed_token_explains_is_at_least_the_last_listed(self) -> None:
        divergence = compare(RIVER, answer("The", finish="stop", tokens=2)).divergence
        assert divergence is not None
        assert divergence.is_at_least

    def test_going_on_where_the_reference_ended_has_no_margin_to_read(self) -> None:
        held = reference(said("Yes", -0.1), finish="stop")
        divergence = compare(held, answer("Yes indeed")).divergence
        assert divergence is not None
        assert divergence.kind is Kind.LONGER
        assert divergence.margin is None

    def test_an_end_token_behind_the_text_is_allowed(self) -> None:
        held = reference(said("Yes", -0.1), finish="stop")
        with_end = Answer(
            case="p", text="Yes", finish_reason="stop", tokens=2, said=(*held.said, said("<|im_end|>", -0.1))
        )
        assert len(aligned(with_end)) == 2
        assert compare(with_end, answer("Yes", finish="stop", tokens=2)).divergence is None

    def test_a_refusal_of_one_side_is_told_apart(self) -> None:
        refused = Answer(case="p", text="", finish_reason=None, tokens=None, error="400: no")
        compared = compare(RIVER, refused)
        assert compared.divergence is not None
        assert compared.divergence.kind is Kind.REFUSED
        assert compared.tokens == 0
        assert hazard([compared]).events == 0


class TestRates:
    def test_equal_exposure_without_control_events_is_a_coin_per_event(self) -> None:
        arm, control = Hazard(events=10, tokens=500.0), Hazard(events=0, tokens=500.0)
        assert more_often(arm, control) == pytest.approx(0.5**10)

    def test_the_rate_of_the_control_is_no_alarm(self) -> None:
        assert more_often(Hazard(events=6, tokens=1000.0), Hazard(events=6, tokens=1000.0)) > 0.5

    @pytest.mark.parametrize("events", [0, 3])
    def test_nothing_compared_is_no_evidence(self, events: int) -> None:
        assert more_often(Hazard(events=events, tokens=0.0), Hazard(events=0, tokens=100.0)) == 1.0

    def test_no_event_in_n_tokens_bounds_the_rate_by_3_over_n(self) -> None:
        assert Hazard(events=0, tokens=1000.0).upper() == pytest.approx(0.002996, abs=1e-6)
        assert tokens_for_rate(0.02) == 150
        assert Hazard(events=0, tokens=0.0).upper() == math.inf


class TestCounts:
    @pytest.mark.parametrize(
        ("ours", "theirs", "finishes", "parts"),
        [
            pytest.param(None, 5, ("length", "length"), False, id="the baseline's count is unknown"),
            pytest.param(3, None, ("length", "length"), False, id="the other count is unknown"),
            pytest.param(3, 3, ("length", "stop"), False, id="as many tokens"),
            pytest.param(3, 5, ("length", "length"), True, id="the same text in more tokens, cut off"),
            pytest.param(3, 5, ("stop", "stop"), False, id="the same text in more tokens, both at their end"),
            pytest.param(3, 5, ("stop", "length"), True, id="one at its end, the other cut off"),
        ],
    )
    def test_the_same_text_parts_only_where_more_was_to_come(
        self, ours: int | None, theirs: int | None, finishes: tuple[str, str], parts: bool
    ) -> None:
        before, after = finishes
        held = Answer(case="p", text="The river is", finish_reason=before, tokens=ours)
        compared = compare(held, answer("The river is", finish=after, tokens=theirs))
        assert (compared.divergence is not None) is parts

    def test_tokens_up_to_the_one_that_differs_were_seen(self) -> None:
        assert compare(RIVER, answer("The lake is")).tokens == 2.0
        assert compare(RIVER, answer("A river is")).tokens == 1.0

    def test_without_tokens_their_number_follows_from_the_bytes_that_agree(self) -> None:
        """Four bytes of twelve agree, and the fifth was seen to differ: five of thirteen with the end."""
        held = Answer(case="p", text="The river is", finish_reason="length", tokens=39)
        assert compare(held, answer("The lake is")).tokens == pytest.approx(15.0)

    def test_a_refusal_shows_what_was_said_on_both_sides(self) -> None:
        broken = Answer(case="p", text="The ri", finish_reason=None, tokens=None, error="connection lost")
        refused = compare(RIVER, broken).divergence
        assert refused is not None
        assert (refused.kind, refused.reference, refused.answer) == (
            Kind.REFUSED,
            "The river is",
            "connection lost",
        )
        mirrored = compare(broken, RIVER).divergence
        assert mirrored is not None
        assert (mirrored.reference, mirrored.answer) == ("connection lost", "The river is")
        assert compare(broken, broken).divergence is None


class TestWhichTokenWasTaken:
    def test_at_the_start_of_a_token_any_listed_one_may_be_it(self) -> None:
        divergence = compare(RIVER, answer("A river is")).divergence
        assert divergence is not None
        assert divergence.margin == pytest.approx(2.4)
        assert (divergence.rank, divergence.is_at_least) == (2, False)

    def test_of_tokens_that_fit_the_one_past_the_difference_is_taken_though_a_shorter_is_likelier(
        self,
    ) -> None:
        held = reference(said(" rivers", -0.3, _rive=-0.35, _rivet=-0.4))
        divergence = compare(held, answer(" rivet", tokens=1)).divergence
        assert divergence is not None
        assert divergence.margin == pytest.approx(0.1)
        assert divergence.rank == 3

    def test_a_shorter_one_is_taken_where_nothing_listed_reaches_past_the_difference(self) -> None:
        held = reference(said(" rivers", -0.3, _rive=-0.35))
        divergence = compare(held, answer(" rivet", tokens=1)).divergence
        assert divergence is not None
        assert divergence.margin == pytest.approx(0.05)
        assert not divergence.is_at_least

    def test_an_end_inside_a_token_is_read_as_the_shorter_token(self) -> None:
        held = reference(said(" rivers", -0.3, _river=-0.8), finish="stop")
        divergence = compare(held, answer(" river", tokens=1, finish="stop")).divergence
        assert divergence is not None
        assert divergence.kind is Kind.ENDED
        assert divergence.margin == pytest.approx(0.5)
