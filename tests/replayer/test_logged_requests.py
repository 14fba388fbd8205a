"""Log entries: every way a response is logged, and what makes an entry unreadable."""

from __future__ import annotations

from typing import Any

import pytest

from speclift.core.traffic import Message
from speclift.replayer.logged import UnreadableEntry, logged
from speclift.weights.tokenizer_files import ChatTemplate

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
