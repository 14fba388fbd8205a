"""What can be read of a request, whoever wrote it."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.routing import SESSION_FIELD, RequestFeatures
from speclift.routing.features import BODY_BYTES_MAX, NAME_CHARACTERS_MAX, read_features

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def features(path: str = CHAT, *, fields: dict[str, str] | None = None, **body: Any) -> RequestFeatures:
    return read_features(path, fields or {}, json.dumps(body).encode())


def talk(*contents: object, system: str | None = None) -> list[dict[str, object]]:
    roles = ("user", "assistant")
    turns = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


class TestOrdinaryRequests:
    def test_a_chat(self) -> None:
        seen = features(
            model="m",
            messages=talk("Repeat this: abc", "abc", "again", system="Be brief."),
            temperature=0.25,
            max_tokens=64,
            stream=True,
            tools=[{"type": "function", "function": {"name": "f"}}],
            response_format={"type": "json_schema", "json_schema": {}},
        )

        assert seen.is_generation
        assert seen.is_stream
        assert (seen.model, seen.temperature, seen.max_tokens) == ("m", 0.25, 64)
        assert (seen.response_format, seen.has_tools, seen.turns) == ("json_schema", True, 4)
        assert seen.prompt_characters == len("Be brief.") + len("Repeat this: abc") + len("abc") + len(
            "again"
        )

    @pytest.mark.parametrize(
        ("body", "wanted"),
        [
            ({"response_format": {"type": "text"}}, "text"),
            ({"response_format": {"type": "json_object"}}, "json_object"),
            ({"response_format": "json"}, None),
            ({"guided_json": {"type": "object"}}, "grammar"),
            ({"grammar": "root ::= x"}, "grammar"),
            ({"response_format": {"type": "text"}, "json_schema": {}}, "grammar"),
            ({"guided_regex": None, "grammar": ""}, None),
        ],
    )
    def test_constraints_of_openai_and_of_engines(self, body: dict[str, Any], wanted: str | None) -> None:
        assert features(messages=HELLO, **body).response_format == wanted


class TestWhatCannotBeRead:
    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"{", b"[]", b"null", b'"text"', b"7", b"\xff\xfe{}", b'{"temperature": NaN}'),
            *(b'{"temperature": 1e400}', b"[" * 10_000, b'{"a":' * 10_000, b'{"a": "\\ud800"}'),
        ],
    )
    def test_it_is_passed_on_unread(self, body: bytes) -> None:
        seen = read_features(CHAT, {"a": "b"}, body)

        assert seen == RequestFeatures(path=CHAT, fields={"a": "b"})

    def test_so_is_what_is_too_large(self) -> None:
        fits = b'{"prompt": "%s"}' % (b"x" * (BODY_BYTES_MAX - 14))

        assert len(fits) == BODY_BYTES_MAX
        assert read_features("/completion", {}, fits).is_generation
        assert not read_features("/completion", {}, fits + b" ").is_generation

    def test_names_are_cut(self) -> None:
        seen = features(messages=HELLO, model="m" * 9999, response_format={"type": "t" * 9999})

        assert len(seen.model or "") == len(seen.response_format or "") == NAME_CHARACTERS_MAX


class TestSessions:
    def test_later_turns_are_the_same_conversation(self) -> None:
        first = features(model="m", messages=talk("hi", system="s"))
        later = features(model="m", messages=talk("hi", "hello", "more", system="s"), temperature=1.0)

        assert first.session is not None
        assert first.session == later.session

    @pytest.mark.parametrize(
        "other",
        [
            {"messages": talk("ho", system="s")},
            {"messages": talk("hi", system="t")},
            {"messages": talk("hi")},
            {"messages": talk("hi", system="s"), "model": "n"},
            {"messages": talk("hi", system="s"), "user": "u"},
            {"messages": talk("hi", system="s"), "prompt_cache_key": "u"},
        ],
    )
    def test_another_beginning_is_another(self, other: dict[str, Any]) -> None:
        assert features(messages=talk("hi", system="s")).session != features(**other).session

    def test_the_header_wins(self) -> None:
        told = {SESSION_FIELD: "abc"}

        seen = features(messages=talk("a"), fields=told).session
        assert seen == features(messages=talk("b"), fields=told).session
        assert seen == features("/v1/completions", prompt="x", fields=told).session
        assert seen != features(messages=talk("a")).session
        assert "abc" not in str(seen)

    def test_the_key_makes_names_this_process_s_own(self) -> None:
        body = json.dumps({"messages": HELLO}).encode()

        assert (
            read_features(CHAT, {}, body, key=b"a").session != read_features(CHAT, {}, body, key=b"b").session
        )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(
    [
        *("messages", "prompt", "temperature", "max_tokens", "max_completion_tokens", "n_predict", "stream"),
        *("model", "user", "prompt_cache_key", "tools", "response_format", "grammar"),
    ]
)
paths = st.sampled_from([CHAT, "/v1/completions", "/completion", "/v1/models"])


@pytest.mark.slow
@given(path=paths, body=st.dictionaries(keys, json_values, max_size=8))
def test_no_body_makes_it_raise(path: str, body: dict[str, object]) -> None:
    data = msgspec.json.encode(body)

    seen = read_features(path, {}, data, repeats=lambda _text: 0.1)

    assert seen.temperature is None or math.isfinite(seen.temperature)
    assert seen.max_tokens is None or seen.max_tokens >= 0
    assert 0 <= seen.prompt_characters <= 4 * len(data)
    assert 1 <= seen.turns <= max(1, len(data))


@pytest.mark.parametrize(
    "piece", [b"{},", b"[],", b'{"content":[]},', b'{"content":[{"text":""}]},', b"1,", b'"",']
)
@pytest.mark.parametrize("key", [b"messages", b"prompt"])
def test_a_body_made_of_brackets_and_commas_is_not_read(piece: bytes, key: bytes) -> None:
    path = "/v1/chat/completions" if key == b"messages" else "/v1/completions"
    body = b'{"%b":[%b0]}' % (key, piece * (BODY_BYTES_MAX // len(piece) - 20))
    started_s = time.thread_time()
    seen = read_features(path, {}, body)
    assert not seen.is_generation
    # All streams wait for it: it was seconds.
    assert time.thread_time() - started_s < 0.2
