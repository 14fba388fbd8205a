"""What a server might send, drawn by hypothesis: nearly right, with pieces that are not, and bytes that were cut or
exchanged on the way."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

# JSON that no dumps would write: too large, too long, too deep, not a number.
LITERALS = (
    *(
        "1e400",
        "-1e400",
        "NaN",
        "Infinity",
        "-Infinity",
        "-0",
        "1.0",
        "2.5",
        "16777216",
        "16777217",
        "1e3",
        "-1",
    ),
    *(
        "9" * 19,
        "9" * 400,
        "9" * 5000,
        "[" * 3000,
        '{"a":' * 3000,
        "tru",
        '"\\ud800"',
        '"\\u0000"',
        "\u0661",
        "",
    ),
)
_MARK = re.compile(r'"@(\d+)@"')
NAMES = (
    *(
        "choices",
        "delta",
        "content",
        "text",
        "finish_reason",
        "usage",
        "prompt_tokens",
        "completion_tokens",
        "error",
    ),
    *("timings", "predicted_n", "draft_n", "draft_n_accepted", "metrics", "speculative_decoding", "message"),
    *("num_draft_tokens", "num_accepted_draft_tokens", "per_step_drafted", "per_step_accepted", "logprobs"),
    *(
        "data",
        "id",
        "owned_by",
        "max_model_len",
        "n_ctx",
        "speculative",
        "speculative_algorithm",
        "reasoning",
    ),
    *("max_total_num_tokens", "token_ids", "top_logprobs", "logprob", "bytes", "token", "tokens", "version"),
)
TEXT = st.text(st.characters(exclude_categories=()), max_size=12)

literal = st.integers(0, len(LITERALS) - 1).map(lambda number: f"@{number}@")
scalar = st.none() | st.booleans() | st.integers() | st.integers(0, 40) | st.floats() | TEXT | literal
wild = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)


def or_wild(usual: Any, *, often: int = 4) -> st.SearchStrategy[Any]:
    """Mostly as it should be."""
    strategy = usual if isinstance(usual, st.SearchStrategy) else st.just(usual)
    return st.one_of(*[strategy] * often, wild)


def record_of(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Fields as they should be or wild; each may be missing."""
    return st.fixed_dictionaries({}, optional={name: or_wild(value) for name, value in fields.items()})


def as_json(value: Any) -> bytes:
    text = json.dumps(value)
    return _MARK.sub(lambda found: LITERALS[int(found[1])], text).encode("utf-8", "surrogatepass")


tokens = st.integers(0, 20) | literal
timings = record_of(predicted_n=tokens, draft_n=tokens, draft_n_accepted=tokens)
speculative = record_of(
    num_draft_tokens=tokens,
    num_accepted_draft_tokens=tokens,
    per_step_drafted=st.lists(tokens, max_size=4),
    per_step_accepted=st.lists(tokens, max_size=4),
)
delta = record_of(content=TEXT, reasoning=TEXT, reasoning_content=TEXT)
choice = record_of(delta=delta, text=TEXT, finish_reason=st.sampled_from([None, "stop", "length"]))
chunk = st.fixed_dictionaries(
    {"choices": or_wild(st.lists(or_wild(choice), max_size=2))},
    optional={
        "usage": or_wild(record_of(prompt_tokens=tokens, completion_tokens=tokens)),
        "timings": or_wild(timings),
        "metrics": or_wild(record_of(speculative_decoding=speculative)),
        "error": wild,
    },
)
good_chunk = st.sampled_from(["a", "word ", "\U0001f6a2"]).map(
    lambda text: {"choices": [{"delta": {"content": text}, "finish_reason": None}]}
)
last_chunk = st.fixed_dictionaries(
    {"choices": st.just([{"delta": {}, "finish_reason": "length"}])},
    optional={
        "usage": or_wild(record_of(prompt_tokens=tokens, completion_tokens=tokens)),
        "timings": timings,
        "metrics": record_of(speculative_decoding=speculative),
    },
)
line = st.one_of(
    *[(good_chunk | last_chunk | chunk | wild).map(lambda payload: b"data: " + as_json(payload))] * 5,
    st.binary(max_size=30),
    st.sampled_from([b": ping", b"event: error", b"data: [DONE]", b"data:", b"data: {", b"id: 7"]),
)
events = st.lists(
    st.tuples(line, st.sampled_from([b"\n\n"] * 6 + [b"\r\n\r\n", b"\n", b""])), max_size=9
).map(lambda pairs: b"".join(part for pair in pairs for part in pair))


@st.composite
def pieces(draw: st.DrawFn, source: st.SearchStrategy[bytes]) -> list[bytes]:
    """Bytes as a network cuts them, sometimes with a few of them exchanged."""
    data = draw(source)
    if data and draw(st.integers(0, 4)) == 0:
        place, other = draw(st.integers(0, len(data) - 1)), draw(st.binary(max_size=4))
        data = data[:place] + other + data[place + draw(st.integers(0, 4)) :]
    edges = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    return [data[start:end] for start, end in zip([0, *edges], [*edges, len(data)], strict=True)]


status_line = st.one_of(
    *[st.just(b"HTTP/1.1 200 OK")] * 4,
    st.sampled_from(
        [
            *(
                b"HTTP/1.1 503 No",
                b"HTTP/1.0 200 OK",
                b"HTTP/1.1 100 Continue",
                b"HTTP/1.1 204 None",
                b"HTTP/1.1 2000",
            ),
            *(
                b"HTTP/1.1 \xb2\xb3\xb9 Odd",
                b"HTTP/2 200",
                b"HTTP/1.1 200",
                b"HTTP/1.1  200",
                b"SSH-2.0-x",
                b"",
            ),
        ]
    ),
    st.binary(max_size=20),
)
field = st.one_of(
    st.sampled_from(
        [
            *(
                b"Transfer-Encoding: chunked",
                b"Content-Length: 5",
                b"Content-Length: 0",
                b"Connection: close",
            ),
            *(
                b"Content-Length: -1",
                b"Content-Length: \xb9\xb2",
                b"Content-Length: " + b"9" * 5000,
                b": x",
                b"x",
            ),
            *(
                b"Content-Encoding: gzip",
                b"Location: http://elsewhere/",
                b"Content-Type: text/html",
                b"\tfolded",
            ),
        ]
    ),
    st.binary(max_size=20),
)


def framed(body: bytes, sizes: list[int]) -> bytes:
    """In HTTP chunks of these sizes."""
    parts, place = [], 0
    for size in [*sizes, len(body)]:
        piece = body[place : place + size]
        if piece:
            parts.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        place += size
    return b"".join(parts) + b"0\r\n\r\n"


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    head = [draw(status_line), *draw(st.lists(field, max_size=3))]
    body = draw(events)
    if draw(st.booleans()):
        head.append(b"Transfer-Encoding: chunked")
        body = framed(body, draw(st.lists(st.integers(1, 200), max_size=5)))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


used_totals = st.sampled_from(
    [
        *("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"),
        *(
            "llamacpp:spec_decode_num_draft_tokens_total",
            "vllm:prefix_cache_hits_total",
            "vllm:num_preemptions_total",
        ),
        *(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "vllm:cache_config_info",
            "other_total",
            "\u0661",
        ),
    ]
)
labels = st.sampled_from(
    [
        *("", "", '{engine="0"}', '{position="0"}', '{position="1"}', '{position="\u0661"}', "{", '{a="}"}'),
        *('{num_gpu_blocks="\u0661",block_size="16"}', '{kv_cache_size_tokens="' + "9" * 5000 + '"}'),
    ]
)
value = st.sampled_from(
    ["0", "1", "5", "9", "NaN", "+Inf", "-Inf", "1e400", "-3", "1e300", "0x1p3", "1_0", ""]
)
sample = st.tuples(used_totals, labels, st.just(" "), value | st.integers().map(str)).map("".join)
metrics_page = st.lists(sample | TEXT | st.just("# TYPE a counter"), max_size=12).map("\n".join)
