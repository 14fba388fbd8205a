"""Log entries: every way a response is logged, and what makes an entry unreadable."""

from __future__ import annotations

from typing import Any

import pytest

from speclift.core.traffic import Message
from speclift.replayer.logged import UnreadableEntry, logged
from speclift.weights.tokenizer_files import ChatTemplate, joined

ASKED = {"messages": [{"role": "user", "content": "hi"}]}
CHOICE = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "length", "token_ids": [5, 6]}


@pytest.mark.parametrize(
    ("fields", "response", "ids", "reason"),
    [
        ({"response": "yes"}, "yes", None, None),
        ({"response": "yes", "finish_reason": "stop"}, "yes", None, "stop"),
        ({"response": {"choices": [CHOICE]}}, "yes", (5, 6), "length"),
        ({"response": {"status_code": 200, "body": {"choices": [CHOICE]}}}, "yes", (5, 6), "length"),
        ({"response": {"choices": [{"text": "yes"}]}}, "yes", None, None),
        ({"response_token_ids": [1, 2]}, None, (1, 2), None),
        ({}, None, None, None),
        ({"response": {"error": "timeout"}}, None, None, None),
        ({"response": {"choices": []}}, None, None, None),
    ],
)
def test_responses_are_found_wherever_they_stand(
    fields: dict[str, Any], response: str | None, ids: tuple[int, ...] | None, reason: str | None
) -> None:
    found = logged({**ASKED, **fields})

    assert (found.response, found.response_ids, found.finish_reason) == (response, ids, reason)
    assert found.has_response is (response is not None or ids is not None)


def test_a_conversation_logged_whole_ends_with_its_response() -> None:
    found = logged({"messages": [*ASKED["messages"], {"role": "assistant", "content": "yes"}]})

    assert (found.messages, found.response) == ((Message(role="user", content="hi"),), "yes")


def test_an_empty_response_is_none() -> None:
    assert not logged({**ASKED, "response": ""}).has_response


def test_parts_of_text_are_joined_and_tool_calls_are_empty() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = logged(
        {
            "messages": [{"role": "user", "content": content}, {"role": "assistant", "content": None}],
            "response": "x",
        }
    )

    assert [message.content for message in found.messages] == ["a\nb", ""]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"messages": "hi"}, "'messages' must be a list"),
        ({"messages": [{"content": "hi"}]}, r"messages\[0\] needs a text 'role'"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "not text"),
        ({"response": 5}, "'response' must be text, saw int"),
        ({"response_token_ids": "1 2"}, "list of token ids, saw str"),
        ({"response_token_ids": [1, -2]}, "holds -2"),
        ({"response_token_ids": [1, True]}, "holds True"),
        ({"prompt_token_ids": [1 << 40]}, "no token id"),
        ({"segment": 3}, "'segment' must be text"),
    ],
)
def test_what_is_no_request_says_why(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(UnreadableEntry, match=fault):
        logged({**ASKED, **fields})


def test_sampling_parameters_may_stand_in_their_own_object() -> None:
    found = logged({**ASKED, "sampling_params": {"temperature": 0.5, "min_p": 0.1, "max_tokens": 9}})

    assert (found.temperature, found.params["min_p"], found.max_tokens) == (0.5, 0.1, 9)


class TestChatTemplates:
    MESSAGES = (Message(role="user", content="hi"),)

    def test_a_template_writes_the_prompt(self) -> None:
        turns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        text = f"{{{{ bos_token }}}}{turns}{{% if add_generation_prompt %}}>{{% endif %}}"

        assert ChatTemplate(text, bos="<s>", eos="").render(self.MESSAGES) == "<s>[user]hi>"

    @pytest.mark.parametrize(
        "text",
        [
            "{% if %}",
            "{{ raise_exception('no') }}",
            "{{ messages[7].content.upper() }}",
            "{{ 1 / 0 }}",
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        ],
        ids=["broken", "refusing", "out of range", "arithmetic", "escaping the sandbox"],
    )
    def test_a_template_that_cannot_be_used_gives_none(self, text: str) -> None:
        assert ChatTemplate(text, bos="", eos="").render(self.MESSAGES) is None

    def test_without_one_the_messages_are_joined(self) -> None:
        assert joined((*self.MESSAGES, Message(role="assistant", content="yes"))) == "hi\nyes\n"
