"""What an answer of the soak shows: each fault on what is one and on what only looks like one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from soaked import EXPOSURE, NONCE, OTHER, asked, called, said, shown
from speclift.core.records import AnswerChoice, ToolCall
from speclift.lossless.gate import SoakFault
from speclift.lossless.soak.faults import SPECIAL_TOKENS, HeldAgainst, looked_at, observe
from speclift.lossless.soak.prompts import answer_schema, session_tools
from speclift.lossless.soak.rates import PROMISED
from speclift.lossless.soak.values import Promise, SoakAnswer, SoakRequest

TEXT = (
    f"The quiet harbour follows the pale river twice. Code {NONCE}. "
    f"The golden engineer answers the island. {NONCE} ends."
)
COPY = asked(f"Copy <<<{TEXT}>>>", copies=TEXT, promise=Promise(tokens_max=60))
HELD = HeldAgainst(nonces={NONCE, OTHER})
LIMIT = 96


def found(request: SoakRequest, answer: SoakAnswer, against: HeldAgainst = HELD) -> set[SoakFault]:
    return shown(request, answer, against)


def test_a_working_servers_copy_shows_nothing() -> None:
    assert found(COPY, said(TEXT, tokens=40)) == set()
    assert found(COPY, said(TEXT[:50], finish="length", tokens=60)) == set()


@pytest.mark.parametrize("token", [token for family in SPECIAL_TOKENS.values() for token in family])
def test_a_token_of_a_chat_template_has_leaked(token: str) -> None:
    assert found(asked(), said(f"Fine.{token} user")) == {SoakFault.SPECIAL_TOKEN}


def test_a_token_that_stands_in_the_request_has_not_leaked() -> None:
    assert found(asked("What does <|im_end|> mean?"), said("<|im_end|> ends a turn.")) == set()


def test_a_request_about_templates_tells_nothing_of_leaks() -> None:
    """Asked about one token, a model writes the others as well, and at another temperature not."""
    request, answer = asked("Explain <|im_end|>."), said("<|im_start|> begins a turn, <|im_end|> ends it.")

    assert SoakFault.SPECIAL_TOKEN not in looked_at(request, answer, HELD)


@pytest.mark.parametrize("reason", [None, "abort", "error"])
def test_an_end_that_nobody_asked_for_is_one_fault_and_no_broken_json(reason: str | None) -> None:
    request = asked(promise=Promise(tokens_max=20, schema="{}"))

    assert found(request, said('{"a": ', finish=reason)) == {SoakFault.TRUNCATED}


def test_a_leak_in_what_came_before_the_caller_left_counts() -> None:
    assert found(asked(), said("Fine.<|im_end|>", finish=None, left=True)) == {SoakFault.SPECIAL_TOKEN}


def test_what_a_model_does_by_itself_is_not_counted_in_streams_that_the_caller_left() -> None:
    """After so many chunks or seconds, speculation has said more: the same model would be wrong more often."""
    exposed = looked_at(COPY, said(TEXT[:60], finish=None, left=True), HELD)

    assert {SoakFault.SPECIAL_TOKEN, SoakFault.CROSS_TALK} <= set(exposed)
    assert not {
        SoakFault.BROKEN_OFF,
        SoakFault.REPEATED,
        SoakFault.ALTERED,
        SoakFault.BROKEN_TEXT,
    } & set(exposed)


class TestStops:
    request = asked(f"Copy <<<{TEXT}>>>", copies=TEXT, promise=Promise(stops=("eer ans",), tokens_max=60))
    before, _, after = TEXT.partition("eer ans")

    def test_text_that_ends_at_the_stop_string_is_exposed_and_fine(self) -> None:
        assert SoakFault.AFTER_STOP in looked_at(self.request, said(self.before), HELD)
        assert found(self.request, said(self.before)) == set()

    def test_the_stop_string_itself_is_a_fault(self) -> None:
        assert found(self.request, said(f"{self.before}eer answers")) == {SoakFault.AFTER_STOP}

    def test_going_on_behind_it_is_a_fault(self) -> None:
        assert found(self.request, said(self.before + self.after)) == {SoakFault.AFTER_STOP}

    def test_every_answer_to_a_prompt_of_the_users_could_have_passed_it(self) -> None:
        own = asked("Tell me of herons.", nonce="", promise=Promise(stops=("END",), tokens_max=60))

        assert SoakFault.AFTER_STOP in looked_at(own, said("They fly."), HELD)
        assert found(own, said("They fly. END They")) == {SoakFault.AFTER_STOP}

    def test_an_answer_that_never_came_to_it_says_nothing(self) -> None:
        assert SoakFault.AFTER_STOP not in looked_at(self.request, said("I cannot do that."), HELD)


class TestEnds:
    def test_an_end_without_a_reason_is_truncated(self) -> None:
        assert found(asked(), said("Fine", finish=None)) == {SoakFault.TRUNCATED}

    def test_a_copy_that_stops_inside_a_word_is_broken_off(self) -> None:
        assert found(COPY, said("The quiet harb")) == {SoakFault.BROKEN_OFF}

    def test_a_copy_that_stops_words_before_its_text_is_broken_off_whatever_it_began_with(self) -> None:
        assert found(COPY, said("The quiet harbour")) == {SoakFault.BROKEN_OFF}
        assert found(COPY, said("Sure, here it is:\n<<<The quiet harbour")) == {SoakFault.BROKEN_OFF}

    @pytest.mark.parametrize(
        "text", [TEXT, f"{TEXT}>>>", TEXT.rsplit(" ", 4)[0], "I will not copy.", "", "The"]
    )
    def test_whole_copies_their_last_words_and_what_is_no_copy_are_not(self, text: str) -> None:
        assert SoakFault.BROKEN_OFF not in found(COPY, said(text))

    def test_the_limit_may_cut_a_word(self) -> None:
        assert found(COPY, said("The quiet harb", finish="length")) == set()

    def test_a_stream_that_the_caller_left_is_not_cut(self) -> None:
        assert found(COPY, said("The quiet harb", finish=None, left=True)) == set()


class TestAltered:
    def test_other_words_than_the_text_has_are_found_wherever_the_copy_begins(self) -> None:
        changed = TEXT.replace("engineer", "engine")

        assert found(COPY, said(changed)) == {SoakFault.ALTERED}
        assert found(COPY, said(f"Of course.\n<<<{changed}>>>")) == {SoakFault.ALTERED}
        assert found(COPY, said(changed[:-20], finish="length")) == {SoakFault.ALTERED}

    @pytest.mark.parametrize(
        "text", [TEXT, f"Of course:\n{TEXT}\nAnything else?", f"{TEXT[:40]}\ufffd", f"{TEXT[:40]} \n"]
    )
    def test_what_comes_around_a_copy_and_where_the_limit_cuts_it_are_no_other_words(self, text: str) -> None:
        assert SoakFault.ALTERED not in found(COPY, said(text, finish="length"))

    def test_an_answer_that_is_no_copy_says_nothing(self) -> None:
        assert SoakFault.ALTERED not in looked_at(COPY, said("I would rather talk."), HELD)
        assert SoakFault.ALTERED not in looked_at(COPY, said("The quiet"), HELD)
        assert SoakFault.ALTERED not in looked_at(asked(), said(TEXT), HELD)

    @pytest.mark.parametrize("worse", ["<|im_end|>", OTHER, "\ufffd"])
    def test_a_fault_with_a_name_of_its_own_counts_there(self, worse: str) -> None:
        seen = found(COPY, said(TEXT.replace("harbour", f"harbour {worse}")))

        assert seen
        assert SoakFault.ALTERED not in seen


def test_a_span_that_stands_once_in_the_text_and_twice_in_the_copy_is_repeated() -> None:
    again = TEXT.replace("Code", "The quiet harbour follows the pale river twice. Code", 1)

    assert found(COPY, said(again)) == {SoakFault.REPEATED}


class TestCrossTalk:
    def test_another_requests_nonce_is_proof(self) -> None:
        assert found(COPY, said(f"Code {OTHER}.")) == {SoakFault.CROSS_TALK}

    def test_a_nonce_that_nobody_sent_is_none(self) -> None:
        assert found(COPY, said("Code bbbb0000cccc.")) == set()

    def test_its_own_nonce_is_none(self) -> None:
        assert SoakFault.CROSS_TALK not in found(COPY, said(f"Code {NONCE}."))

    def test_what_a_session_was_already_told_is_no_new_fault(self) -> None:
        assert found(asked(f"{NONCE}, earlier {OTHER}"), said(OTHER)) == set()

    def test_it_is_found_in_arguments_of_tools_too(self) -> None:
        assert SoakFault.CROSS_TALK in found(asked(), called("find_order", json.dumps({"order": OTHER})))

    def test_alone_on_a_server_nobody_elses_text_can_be_seen(self) -> None:
        assert SoakFault.CROSS_TALK not in looked_at(COPY, said(TEXT), HeldAgainst(nonces={NONCE}))


class TestJson:
    request = asked(promise=Promise(schema=json.dumps(answer_schema(NONCE))))
    good = json.dumps({"id": NONCE, "colour": "red", "done": True, "sizes": [1, 2]})

    def test_what_fits_is_fine(self) -> None:
        assert found(self.request, said(self.good)) == set()

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("}", ""),
            ("red", "pink"),
            ("true", "1"),
            ("[1, 2]", "[1]"),
            ("[1, 2]", "[1, 4]"),
            ('"done"', '"over"'),
            ("{", '{"more": 1, '),
            ("[1, 2]", "[1, true]"),
        ],
    )
    def test_what_does_not_is_invalid(self, old: str, new: str) -> None:
        assert found(self.request, said(self.good.replace(old, new, 1))) == {SoakFault.INVALID_JSON}

    def test_what_the_limit_cut_has_to_begin_as_the_schema_allows(self) -> None:
        """A small model may write blanks between two values until it comes to its limit."""
        fine, wrong = self.good[:-4] + " " * 50, self.good.replace("red", "pink")[:-4]
        for answer in (said(text, finish="length") for text in (fine, wrong)):
            assert SoakFault.INVALID_JSON in looked_at(self.request, answer, HELD)

        assert found(self.request, said(fine, finish="length")) == set()
        assert found(self.request, said(wrong, finish="length")) == {SoakFault.INVALID_JSON}

    def test_a_grammar_is_a_promise_as_well(self) -> None:
        request = asked(promise=Promise(pattern="a+"))

        assert found(request, said("aaa")) == set()
        assert found(request, said("aab")) == {SoakFault.INVALID_JSON}


def called_all(*arguments: str) -> SoakAnswer:
    """One call after the other, until the limit of tokens."""
    calls = tuple(ToolCall(name="find_order", arguments=each) for each in arguments)
    return said(choices=(AnswerChoice(text="", finish_reason="tool_calls", calls=calls),), tokens=LIMIT)


class TestTools:
    request = asked(
        promise=Promise(tools=tuple((n, json.dumps(s)) for n, s in session_tools(NONCE)), tokens_max=LIMIT)
    )
    good = json.dumps({"order": NONCE, "colour": "red"})

    def test_a_call_that_fits_is_fine(self) -> None:
        assert found(self.request, called("find_order", self.good)) == set()

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [("find_order", good[:-1]), ("find_order", "{}"), ("delete", good), ("add_note", good)],
    )
    def test_a_call_that_does_not_is_a_fault(self, name: str, arguments: str) -> None:
        assert found(self.request, called(name, arguments)) == {SoakFault.TOOL_ARGUMENTS}

    def test_arguments_of_tools_that_are_not_strict_are_a_matter_of_their_own(self) -> None:
        """They are the model's, and held against the baseline's rate."""
        loose = replace(self.request, promise=replace(self.request.promise, is_strict=False))

        assert found(loose, called("find_order", "{}")) == {SoakFault.LOOSE_ARGUMENTS}
        assert SoakFault.TOOL_ARGUMENTS not in looked_at(loose, called("find_order", self.good), HELD)
        assert SoakFault.LOOSE_ARGUMENTS not in PROMISED

    def test_no_call_where_one_is_required_is_a_fault(self) -> None:
        answer = said("I would rather talk.")
        assert found(self.request, answer) == {SoakFault.NO_CALL}
        # Of arguments that nobody gave nothing is known.
        assert SoakFault.TOOL_ARGUMENTS not in looked_at(self.request, answer, HELD)

    @pytest.mark.parametrize(("finish", "tokens"), [("length", None), ("tool_calls", LIMIT)])
    def test_a_call_that_the_limit_cut_is_none(self, finish: str, tokens: int | None) -> None:
        """Whatever the server calls it: vLLM says tool_calls."""
        answer = replace(called("find_order", '{"ord', finish=finish), tokens=tokens)

        assert found(self.request, answer) == set()
        assert SoakFault.TOOL_ARGUMENTS in looked_at(self.request, answer, HELD)

    def test_of_a_call_that_the_limit_cut_before_its_arguments_nothing_is_known(self) -> None:
        answer = replace(called("find_or", " "), tokens=LIMIT)

        assert SoakFault.TOOL_ARGUMENTS not in looked_at(self.request, answer, HELD)
        assert SoakFault.NO_CALL not in looked_at(self.request, answer, HELD)

    @pytest.mark.parametrize(
        "arguments", ['{"order": "other", "co', '{"order" "x",', '{"price": 3, "', "Well, {"]
    )
    def test_a_call_that_was_wrong_before_the_limit_cut_it_is_a_fault(self, arguments: str) -> None:
        assert found(self.request, called_all(arguments)) == {SoakFault.TOOL_ARGUMENTS}

    @pytest.mark.parametrize("tokens", [None, LIMIT - 1])
    def test_a_call_in_pieces_before_the_limit_is_a_fault(self, tokens: int | None) -> None:
        answer = replace(called("find_order", '{"ord'), tokens=tokens)

        assert found(self.request, answer) == {SoakFault.TOOL_ARGUMENTS}

    @pytest.mark.parametrize(("first", "faults"), [(good, set()), ("{}", {SoakFault.TOOL_ARGUMENTS})])
    @pytest.mark.parametrize("last", ['{"ord', "", "{}"])
    def test_calls_before_the_one_that_was_cut_are_judged(
        self, first: str, last: str, faults: set[SoakFault]
    ) -> None:
        answer = called_all(first, last)

        assert SoakFault.TOOL_ARGUMENTS in looked_at(self.request, answer, HELD)
        assert found(self.request, answer) == faults

    @pytest.mark.parametrize(
        ("only", "faults"), [(good, set()), (good.replace("red", "pink"), {SoakFault.TOOL_ARGUMENTS})]
    )
    def test_a_call_that_is_whole_is_judged_though_the_limit_came_after_it(
        self, only: str, faults: set[SoakFault]
    ) -> None:
        assert found(self.request, called_all(only)) == faults


class TestBudgets:
    @pytest.mark.parametrize(
        ("promise", "answer", "is_fault"),
        [
            (Promise(tokens_max=20), said(tokens=20, finish="length"), False),
            (Promise(tokens_max=20), said(tokens=21, finish="length"), True),
            (Promise(tokens_max=20), said(tokens=None, finish="length"), False),
            (Promise(tokens_min=5), said(tokens=5), False),
            (Promise(tokens_min=5), said(tokens=4), True),
            (Promise(choices=2, tokens_max=20), said("a", "b", tokens=40), False),
            (Promise(choices=2, tokens_max=20), said("a", tokens=4), True),
            (Promise(thinking_max=8), said(thinking_tokens=20), False),
            (Promise(thinking_max=8), said(thinking_tokens=60), True),
        ],
    )
    def test_limits_are_kept_or_broken(self, promise: Promise, answer: SoakAnswer, is_fault: bool) -> None:
        assert (SoakFault.BUDGET in found(asked(promise=promise), answer)) is is_fault

    def test_thoughts_are_counted_in_words_where_the_server_does_not_count(self) -> None:
        thoughts = AnswerChoice(text="50 kg", finish_reason="stop", thoughts="so " * 60)

        assert found(asked(promise=Promise(thinking_max=8)), said(choices=(thoughts,))) == {SoakFault.BUDGET}

    def test_an_answer_that_came_to_no_limit_says_nothing(self) -> None:
        assert SoakFault.BUDGET not in looked_at(asked(), said(tokens=3), HELD)


def test_a_forbidden_token_is_a_fault() -> None:
    assert found(asked(promise=Promise(banned=("7",))), said("6, 8")) == set()
    assert found(asked(promise=Promise(banned=("7",))), said("6, 7")) == {SoakFault.BANNED_TOKEN}


def test_bytes_that_are_no_text_are_broken_unless_the_limit_cut_them() -> None:
    assert found(asked(), said("caf\ufffd and more")) == {SoakFault.BROKEN_TEXT}
    assert found(asked(), said("caf\ufffd", finish="length")) == set()
    assert found(asked(), said("caf\ufffd", finish="stop")) == {SoakFault.BROKEN_TEXT}


class TestOtherText:
    request = asked(is_repeatable=True)

    def test_greedy_text_is_held_against_what_was_said_alone(self) -> None:
        held = HeldAgainst(alone=said("Fine."))

        assert found(self.request, said("Fine."), held) == set()
        assert found(self.request, said("Good."), held) == {SoakFault.OTHER_TEXT}

    def test_without_that_nothing_can_be_said(self) -> None:
        assert SoakFault.OTHER_TEXT not in looked_at(self.request, said("Good."))
        assert SoakFault.OTHER_TEXT not in looked_at(
            self.request, said("Good."), HeldAgainst(alone=said(error="broken"))
        )
        assert SoakFault.OTHER_TEXT not in looked_at(asked(), said("Good."), HeldAgainst(alone=said("Fine.")))


class TestFailures:
    def test_an_error_is_refused_and_no_end_is_hung(self) -> None:
        assert found(asked(), said(choices=(), error="HTTP 500", status=500)) == {SoakFault.REFUSED}
        assert found(asked(), said(choices=(), error="no end in 60 s", is_hung=True)) == {SoakFault.HUNG}

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_busy_server_is_not_broken(self, status: int) -> None:
        assert looked_at(asked(), said(choices=(), error="busy", status=status)) == {}

    def test_a_caller_that_left_was_not_refused(self) -> None:
        assert SoakFault.REFUSED not in looked_at(asked(), said("Fi", finish=None, left=True))


def test_every_fault_is_seen_only_in_answers_that_are_exposed_to_it() -> None:
    seen = observe(COPY, said(f"Code {OTHER}.<|im_end|>"), HELD)

    assert {each.fault for each in seen if each.is_faulty} == {SoakFault.CROSS_TALK, SoakFault.SPECIAL_TOKEN}
    assert {each.fault for each in seen} == set(looked_at(COPY, said(f"Code {OTHER}."), HELD))
    assert all(each.exposure == EXPOSURE for each in seen)
