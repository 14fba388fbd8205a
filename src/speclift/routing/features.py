"""The features of a request before it is sent: temperature, lengths, constraints, which conversation. Pure.

Bodies are the caller's. What is of another kind than it should be is as good as absent, and what cannot be read at all
is passed on unread: the engine says what is wrong with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import TypeAlias

import msgspec

from speclift.core.json_reading import as_list, as_number, as_object, as_objects, as_text, as_whole
from speclift.core.routing import SESSION_FIELD, RequestFeatures
from speclift.core.units import Bytes, Tokens

# Reading costs about 1 ms per MiB, on the event loop that all streams share (tests/routing/test_features.py has it).
BODY_BYTES_MAX: Bytes = 4 << 20
# A body may also be all brackets and commas: a million empty messages in 4 MiB took 2.5 s, two million token ids 1.6 s.
# So many take some 50 ms at worst; prose of 4 MiB has fewer.
BRACKETS_MAX, COMMAS_MAX = 40_000, 400_000
CHAT_PATHS = ("/v1/chat/completions", "/chat/completions")
COMPLETION_PATHS = ("/v1/completions", "/completions", "/completion")
# The constraints that vLLM, SGLang and llama.cpp take beside OpenAI's response_format.
GRAMMAR_KEYS = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("regex", "ebnf", "grammar", "json_schema"),
)
# llama.cpp's own endpoint calls it n_predict.
MAX_TOKENS_KEYS = ("max_completion_tokens", "max_tokens", "n_predict")
# A prompt of token ids has no characters. The bundled prompts have 4.0 for each token of SmolLM2's vocabulary.
CHARACTERS_PER_TOKEN = 4
# Longer names are no names: they are compared and shown, and many of them kept at once.
NAME_CHARACTERS_MAX = 200
SESSION_BYTES = 16
# Of each message at the beginning of a conversation, beside its length: hashing megabytes would take milliseconds.
HASHED_CHARACTERS_MAX = 8_192

# Share of a prompt's tokens that a look-up drafter would have had right; None where it was not found out in time.
Repeats: TypeAlias = Callable[[str], float | None]


def read_features(
    path: str,
    fields: Mapping[str, str],
    body: bytes,
    *,
    repeats: Repeats | None = None,
    key: bytes = b"",
) -> RequestFeatures:
    """`fields` are the header's, names in lower case. `key` makes the names of sessions this process's own."""
    path = path.partition("?")[0]
    document = _document(path, body)
    if document is None:
        return RequestFeatures(path=path, fields=fields)
    is_chat = path in CHAT_PATHS
    messages = as_objects(document.get("messages"))
    texts = [_text(message.get("content")) for message in messages] if is_chat else _prompts(document)
    return RequestFeatures(
        path=path,
        fields=fields,
        is_generation=True,
        is_stream=document.get("stream") is True,
        model=_name(document.get("model")),
        temperature=_finite(document.get("temperature")),
        max_tokens=_max_tokens(document),
        response_format=_response_format(document),
        has_tools=bool(as_list(document.get("tools")) or as_list(document.get("functions"))),
        prompt_characters=sum(map(len, texts)) + CHARACTERS_PER_TOKEN * _token_ids(document),
        turns=max(1, len(messages)) if is_chat else 1,
        repetition=repeats("\n".join(texts)) if repeats is not None else None,
        session=_session(fields, document, messages if is_chat else (), key),
    )


def _document(path: str, body: bytes) -> Mapping[str, object] | None:
    """None where this is no generation, or nothing that can be read."""
    if path not in (*CHAT_PATHS, *COMPLETION_PATHS) or len(body) > BODY_BYTES_MAX:
        return None
    if len(body) > BRACKETS_MAX and _is_made_to_cost(body):
        return None
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _is_made_to_cost(body: bytes) -> bool:
    return body.count(b"{") + body.count(b"[") > BRACKETS_MAX or body.count(b",") > COMMAS_MAX


def _text(content: object) -> str:
    """Text alone: what an image says is not looked up."""
    if isinstance(content, str):
        return content
    parts = (as_text(part.get("text")) for part in as_objects(content))
    return "\n".join(part for part in parts if part is not None)


def _prompts(document: Mapping[str, object]) -> list[str]:
    """One, or several in one request."""
    prompt = document.get("prompt")
    return (
        [prompt] if isinstance(prompt, str) else [text for text in as_list(prompt) if isinstance(text, str)]
    )


def _token_ids(document: Mapping[str, object]) -> int:
    """Token ids of a prompt that is a list of them, or of such lists. The first entry is taken for all: there may be
    a million."""
    prompt = as_list(document.get("prompt"))
    rows = [prompt, *(row for row in prompt if isinstance(row, list))]
    return sum(len(row) for row in rows if row and as_whole(row[0]) is not None)


def _finite(value: object) -> float | None:
    number = as_number(value)
    return float(number) if number is not None and math.isfinite(number) else None


def _max_tokens(document: Mapping[str, object]) -> Tokens | None:
    """The newer name wins; less than none is llama.cpp's word for no limit."""
    for name in MAX_TOKENS_KEYS:
        count = as_whole(document.get(name))
        if count is not None:
            return count if count >= 0 else None
    return None


def _response_format(document: Mapping[str, object]) -> str | None:
    kind = _name(as_object(document.get("response_format")).get("type"))
    if kind is not None and kind != "text":
        return kind
    has_grammar = any(document.get(name) not in (None, "", False) for name in GRAMMAR_KEYS)
    return "grammar" if has_grammar else kind


def _name(value: object) -> str | None:
    text = as_text(value)
    return None if text is None else text[:NAME_CHARACTERS_MAX]


def _session(
    fields: Mapping[str, str],
    document: Mapping[str, object],
    messages: Sequence[Mapping[str, object]],
    key: bytes,
) -> str | None:
    """The part that stays from turn to turn: the caller's name for it, or how the conversation begins."""
    told = fields.get(SESSION_FIELD)
    if told:
        return _digest(("told", told), key)
    caller = [as_text(document.get(name)) or "" for name in ("user", "prompt_cache_key")]
    beginning = [_text(message.get("content")) for message in _beginning(messages)]
    lengths = [str(len(text)) for text in beginning]
    if not any((*caller, *beginning)):
        return None
    starts = [text[:HASHED_CHARACTERS_MAX] for text in beginning]
    return _digest(("read", as_text(document.get("model")) or "", *caller, *lengths, *starts), key)


def _beginning(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Up to the first message of the user, that one included."""
    before = list(takewhile(lambda message: message.get("role") != "user", messages))
    return [*before, *messages[len(before) : len(before) + 1]]


def _digest(parts: Sequence[str], key: bytes) -> str:
    """Hash of the parts, each with its length, so that no two lists read the same."""
    digest = blake2b(key=key, digest_size=SESSION_BYTES)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
