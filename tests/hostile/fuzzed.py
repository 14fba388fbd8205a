"""Answers of servers that say anything: mostly right, with something wrong in any place. Drawn from a random source
that comes in, so that a test can shrink them and a benchmark can repeat them."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from server import chunk, event

ODD_VALUES: tuple[str, ...] = (
    *(
        "null",
        "true",
        "-1",
        "0",
        "7",
        "1e400",
        "-1e-400",
        "NaN",
        "Infinity",
        "[]",
        "{}",
        '""',
        '"x"',
        '"\\ud800"',
    ),
    *(
        "9" * 30,
        "9" * 5000,
        "[" * 2000,
        "[[[[1]]]]",
        '{"a": {"a": {"a": 1}}}',
        '"\\u0000\\u001b[2J"',
        "16777217",
    ),
)
STATUS_LINES = (
    *(b"HTTP/1.1 200 OK",) * 12,
    *(b"HTTP/1.1 500 Oh", b"HTTP/1.1 429 Slow", b"HTTP/1.1 302 Found", b"HTTP/1.0 200", b"HTTP/1.1 204 No"),
    *(
        b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 200 OK",
        b"HTTP/1.1 \xb2\xb900 OK",
        b"HTTP/2 200",
        b"HTTP/1.1  200",
        b"200",
    ),
    *(
        b"HTTP/1.1 -20 OK",
        b"HTTP/1.1 2e2 OK",
        b"HTTP/1.1 2000 OK",
        b"",
        b"\x00",
        b"HTTP/1.1 200 " + b"x" * 70_000,
    ),
)
FIELDS = (
    *(
        b"Content-Length: 0",
        b"Content-Length: 99",
        b"Content-Length: \xb2",
        b"Content-Length: -1",
        b"Content-Length:",
    ),
    *(
        b"Content-Length: " + b"9" * 5000,
        b"Content-Encoding: gzip",
        b"Connection: close",
        b"Location: http://[::1",
    ),
    *(
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"X" * 900,
        b": : :",
        b"\xff\xfe: \x00",
    ),
)

EVENT_FIELDS = tuple(
    f'"{name}": '
    for name in (
        *("choices", "delta", "content", "finish_reason", "index", "usage", "completion_tokens", "timings"),
        *("predicted_n", "draft_n", "metrics", "per_step_accepted"),
    )
)


def answer(random: Random) -> bytes:
    """A whole answer to a request for a completion."""
    body = b"".join(event(payload(random)) for _ in range(random.randrange(6))) + b"0\r\n\r\n"
    if random.random() < 0.2:
        body = random.choice(
            [b"<html><script", b'{"error":', b"\x1f\x8b\x08", b"data: ", b"ffffffffffffffff\r\n"]
        )
    fields = [b"Transfer-Encoding: chunked"] if random.random() < 0.8 else []
    fields += [random.choice(FIELDS) for _ in range(random.choice([0, 0, 0, 1, 2]))]
    head = b"\r\n".join([random.choice(STATUS_LINES), *fields])
    return mangled(random, head + b"\r\n\r\n" + body)


def mangled(random: Random, data: bytes) -> bytes:
    """Half of them as they are, the others cut, doubled or with other bytes in some place."""
    for _ in range(random.choice([0, 0, 1, 3])):
        start = random.randrange(len(data) + 1)
        end = min(len(data), start + random.randrange(20))
        change: Callable[[bytes], bytes] = random.choice(
            [
                lambda part: b"",
                lambda part: part * 2,
                lambda part: random.randbytes(len(part)),
                bytes.swapcase,
            ]
        )
        data = data[:start] + change(data[start:end]) + (data[end:] if random.random() < 0.9 else b"")
    return data


def payload(random: Random) -> str:
    """One event of a stream as JSON, with any of its values replaced."""
    counts = {"prompt_tokens": random.randrange(99), "completion_tokens": random.randrange(99)}
    finish = random.choice([None, None, "stop", "length"])
    whole: dict[str, Any] = chunk(random.choice(["a", " b", "é", "", "\n"]), finish=finish, usage=counts)
    if random.random() < 0.3:
        whole["timings"] = {"predicted_n": random.randrange(9), "draft_n": 4, "draft_n_accepted": 3}
    if random.random() < 0.3:
        steps = {"per_step_accepted": [1, 0], "per_step_drafted": [2, 2], "num_draft_tokens": 4}
        whole["metrics"] = {"speculative_decoding": steps}
    text = json.dumps(whole)
    for _ in range(random.choice([0, 0, 1, 2])):
        path = random.choice(EVENT_FIELDS)
        text = text.replace(path, f'{path}{random.choice(ODD_VALUES)}, "was": ', 1)
    return text


def metrics(random: Random) -> str:
    """A metrics page."""
    names = [
        "vllm:generation_tokens_total",
        "vllm:cache_config_info",
        "vllm:spec_decode_num_draft_tokens_total",
        "a",
    ]
    labels = [
        "",
        '{engine="0"}',
        '{num_gpu_blocks="100",block_size="16"}',
        "{",
        '{a="}"}',
        '{num_gpu_blocks="²"}',
    ]
    values = ["1.0", "1", "-1", "NaN", "+Inf", "1e999", "9" * 400, "x", "", "１"]
    lines = (
        f"{random.choice(names)}{random.choice(labels)} {random.choice(values)}"
        for _ in range(random.randrange(12))
    )
    return mangled(random, "\n".join(lines).encode()).decode("utf-8", "replace")


def page(random: Random) -> str:
    """A page of JSON about the server: a list of models, slots or settings."""
    pages = [
        {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]},
        [{"n_ctx": 512, "speculative": True}],
        {"version": "1", "build_info": "b1", "max_total_num_tokens": 9, "speculative_algorithm": None},
    ]
    text = json.dumps(random.choice(pages))
    for _ in range(random.choice([0, 1, 2])):
        name = random.choice(
            ['"id": ', '"data": ', '"owned_by": ', '"n_ctx": ', '"version": ', '"speculative": ']
        )
        text = text.replace(name, f'{name}{random.choice(ODD_VALUES)}, "was": ', 1)
    return mangled(random, text.encode()).decode("utf-8", "replace")
