"""Whatever a server says is read or refused, by every reader: no other error, and no value that cannot be kept."""

from __future__ import annotations

import math
from random import Random

from fuzzed import answer, metrics, page
from hypothesis import given, settings
from hypothesis import strategies as st

from speclift.core.foreign_text import error_text, parse_json
from speclift.engine.detect import llamacpp_facts, sglang_facts, vllm_facts
from speclift.engine.prometheus import parse_counters
from speclift.measure.frames import frame
from speclift.measure.stream import StreamReader
from speclift.measure.wire import ResponseReader, WireError

# The largest whole number that a study has room for.
KEPT_MAX = 2**63 - 1
SOURCES = st.randoms(use_true_random=False)


@settings(max_examples=1500)
@given(SOURCES)
def test_an_answer_is_read_or_refused(random: Random) -> None:
    data = answer(random)
    response, stream = ResponseReader(), StreamReader()
    place, bodies = 0, []
    try:
        while place < len(data):
            size = random.choice([1, 7, 100, 16_384])
            body = response.feed(data[place : place + size])
            bodies.append(body)
            stream.feed(float(place), body)
            place += size
    except WireError:
        pass
    result = stream.result()
    counts = (result.prompt_tokens, result.output_tokens, result.drafted, result.accepted)
    assert all(count is None or 0 <= count <= KEPT_MAX for count in counts)
    assert result.finish_reason is None or len(result.finish_reason) < 100
    assert len(result.error) <= 500
    assert len(error_text(b"".join(bodies), limit=500)) <= 500
    assert frame(result)


@settings(max_examples=500)
@given(SOURCES)
def test_a_metrics_page_is_read_or_refused(random: Random) -> None:
    found = parse_counters(metrics(random))
    assert all(math.isfinite(value) for value in found.values.values())
    tokens = vllm_facts(found, longest=None).kv_tokens
    assert tokens is None or 0 <= tokens <= KEPT_MAX


@settings(max_examples=500)
@given(SOURCES)
def test_a_page_about_the_server_is_read_or_refused(random: Random) -> None:
    try:
        found = parse_json(page(random))
    except ValueError:
        return
    facts = [llamacpp_facts(found), *([sglang_facts(found)] if isinstance(found, dict) else [])]
    for each in facts:
        assert each.kv_tokens is None or 0 < each.kv_tokens <= KEPT_MAX
        assert all(len(text) <= 100 for text in each.settings.values())


@settings(max_examples=300)
@given(st.text(max_size=400))
def test_any_text_is_a_metrics_page_or_none(text: str) -> None:
    found = parse_counters(text).values
    assert all(math.isfinite(value) for value in found.values())
    assert all(name.partition("{")[0] in text for name in found)
