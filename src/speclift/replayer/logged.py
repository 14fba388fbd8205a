"""One log entry to what replay needs: what was asked, what was answered, and with which sampling settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from speclift.core.json_reading import as_list, as_number, as_object, as_objects, as_text, as_whole
from speclift.core.traffic import DEFAULT_SEGMENT, Message
from speclift.core.units import Tokens

TOKEN_ID_MAX = (1 << 31) - 1  # engines hold ids in 32 signed bits


class UnreadableEntry(ValueError):
    """The entry is JSON and still no request; says which part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Text or ids of each side. No response at all is `response` None and `response_ids` None."""

    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    response: str | None = None
    response_ids: tuple[int, ...] | None = None
    segment: str = DEFAULT_SEGMENT
    temperature: float | None = None
    max_tokens: Tokens | None = None
    finish_reason: str | None = None
    # What else was asked for, by name: some of it an engine may refuse.
    params: Mapping[str, object] = field(default_factory=dict)

    @property
    def has_response(self) -> bool:
        return bool(self.response_ids) or bool(self.response)

    @property
    def needs_tokenizer(self) -> bool:
        return self.prompt_ids is None or self.response_ids is None


def logged(fields: Mapping[str, object]) -> Logged:
    """From an entry under our own keys (workload/formats.py). UnreadableEntry says what is wrong with it."""
    answer = _response(fields)
    messages = _messages(fields.get("messages"))
    response = answer.text
    if response is None and answer.ids is None and messages and messages[-1].role == "assistant":
        # A conversation logged whole: its last turn is the answer.
        messages, response = messages[:-1], messages[-1].content
    params = {**fields, **as_object(fields.get("sampling_params"))}
    return Logged(
        messages=messages,
        prompt=_text(fields, "prompt"),
        prompt_ids=_ids(fields, "prompt_token_ids"),
        response=response,
        response_ids=answer.ids,
        segment=_text(fields, "segment") or DEFAULT_SEGMENT,
        temperature=_number(params.get("temperature")),
        max_tokens=_count(params.get("max_completion_tokens")) or _count(params.get("max_tokens")),
        finish_reason=answer.finish_reason,
        params=params,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    text: str | None
    ids: tuple[int, ...] | None
    finish_reason: str | None


def _response(fields: Mapping[str, object]) -> _Answer:
    """Text, token ids, or what an OpenAI-compatible server answered, alone or inside a batch line."""
    ids = _ids(fields, "response_token_ids")
    reason = fields.get("finish_reason")
    value = fields.get("response")
    if isinstance(value, dict):
        body = value.get("body")
        choices = (body if isinstance(body, dict) else value).get("choices")
        choice = next(iter(as_list(choices)), None)
        if not isinstance(choice, dict):
            return _Answer(text=None, ids=ids, finish_reason=None)
        message = choice.get("message")
        value = message.get("content") if isinstance(message, dict) else choice.get("text")
        ids = ids or _ids(choice, "token_ids")
        reason = choice.get("finish_reason", reason)
    if value is not None and not isinstance(value, str):
        raise UnreadableEntry(f"'response' must be text, saw {type(value).__name__}")
    return _Answer(text=value, ids=ids, finish_reason=as_text(reason))


def _messages(value: object) -> tuple[Message, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise UnreadableEntry(f"'messages' must be a list, saw {type(value).__name__}")
    messages = []
    for index, entry in enumerate(value):
        if not isinstance(entry, dict) or not isinstance(entry.get("role"), str):
            raise UnreadableEntry(f"messages[{index}] needs a text 'role'")
        messages.append(Message(role=entry["role"], content=_content(entry.get("content"), index)))
    return tuple(messages)


def _content(value: object, index: int) -> str:
    if value is None:
        return ""  # an assistant turn that only called a tool
    if isinstance(value, str):
        return value
    parts = as_objects(value)
    texts = [text for part in parts if (text := as_text(part.get("text"))) is not None]
    if not texts or len(texts) < len(parts):
        raise UnreadableEntry(f"messages[{index}] has content that is not text")
    return "\n".join(texts)


def _ids(fields: Mapping[str, object], key: str) -> tuple[int, ...] | None:
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, list):
        raise UnreadableEntry(f"'{key}' must be a list of token ids, saw {type(value).__name__}")
    for token in value:
        if type(token) is not int or not 0 <= token <= TOKEN_ID_MAX:
            raise UnreadableEntry(f"'{key}' holds {token!r}, which is no token id")
    return tuple(value)


def _text(fields: Mapping[str, object], key: str) -> str | None:
    value = fields.get(key)
    if value is not None and not isinstance(value, str):
        raise UnreadableEntry(f"'{key}' must be text, saw {type(value).__name__}")
    return value


def _number(value: object) -> float | None:
    number = as_number(value)
    return None if number is None else float(number)


def _count(value: object) -> Tokens | None:
    count = as_whole(value)
    return count if count is not None and count > 0 else None
