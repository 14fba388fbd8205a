"""What does looking at a stream cost the gateway, per chunk and per answer?

    python benchmarks/gateway_observed.py

Chunks as vLLM and llama.cpp send them, one event each; the best of several passes, because others use the machine too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from speclift.live.gateway.observed import ObservedAnswer

CHUNKS = 2000
PASSES = 15


def chunk(text: str) -> bytes:
    delta = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    head = {"id": "chatcmpl-9f0b6c1e8d1f4f0f", "object": "chat.completion.chunk", "created": 1763300000}
    body = {**head, "model": "HuggingFaceTB/SmolLM2-135M-Instruct", "choices": [delta]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def answer() -> list[bytes]:
    finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": CHUNKS}}
    timings = {"predicted_n": CHUNKS, "draft_n": 900, "draft_n_accepted": 700}
    ends = [f"data: {json.dumps(each)}\n\n".encode() for each in (finish, {**usage, "timings": timings})]
    return [chunk(f" word{index}") for index in range(CHUNKS)] + ends + [b"data: [DONE]\n\n"]


def per_chunk_s(bodies: Sequence[bytes], *, keeps_text: bool) -> tuple[float, float]:
    """Of feeding one chunk, and of reading the end."""
    observed = ObservedAnswer(keeps_text=keeps_text)
    start = time.perf_counter()
    for index, body in enumerate(bodies):
        observed.feed(index * 0.02, body)
    fed = time.perf_counter()
    seen = observed.result()
    end = time.perf_counter()
    assert (seen.output_tokens, seen.drafted, seen.accepted) == (CHUNKS, 900, 700)
    return (fed - start) / len(bodies), end - fed


def main() -> None:
    bodies = answer()
    print(f"{CHUNKS} chunks of {len(bodies[5])} bytes, the best of {PASSES} passes")
    for keeps_text in (False, True):
        passes = [per_chunk_s(bodies, keeps_text=keeps_text) for _ in range(PASSES)]
        chunk_s, end_s = (min(values) for values in zip(*passes, strict=True))
        what = "with its text " if keeps_text else "without text  "
        print(f"{what} {chunk_s * 1e6:6.2f} us a chunk, {end_s * 1e6:6.1f} us at the end of an answer")


if __name__ == "__main__":
    main()
