"""What does looking at a stream cost the gateway, per chunk and per answer, and what counting and learning?

    python benchmarks/gateway_observed.py

Chunks as vLLM and llama.cpp send them, one event each; the best of several passes, because others use the machine too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

from speclift.core.routing import RequestEnd, RequestFeatures, Route, RoutedRequest, ServerPool
from speclift.live.gateway.observed import ObservedAnswer
from speclift.live.gateway.tallies import Tallies
from speclift.routing.learning import Learner

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


def passed_s(bodies: Sequence[bytes], *, together: int) -> float:
    """Of one chunk that is passed on as it came: looked at, noted and written, with several in a read."""
    observed, written = ObservedAnswer(), 0

    def write(_: bytes) -> None:
        nonlocal written
        written += 1

    observed.feed(0.0, bodies[0])
    pass_on = observed.passing(write, time.monotonic)
    assert pass_on is not None
    chunks = [b"%x\r\n%b\r\n" % (len(body), body) for body in bodies]
    reads = [b"".join(chunks[place : place + together]) for place in range(0, len(chunks), together)]
    start = time.perf_counter()
    for read in reads:
        pass_on(read)
    end = time.perf_counter()
    assert (written, observed.result().output_tokens) == (len(reads), CHUNKS)
    return (end - start) / len(chunks)


def ended(number: int) -> RoutedRequest:
    pool = ServerPool.PLAIN if number % 20 == 0 else ServerPool.SPEC
    features = RequestFeatures(
        path="/v1/chat/completions", is_generation=True, temperature=0.0, max_tokens=64
    )
    route = Route(
        pool=pool, servers=("http://x",), segment="chat", reasons=("policy",), is_canary=number % 20 == 0
    )
    return RoutedRequest(
        request_id=str(number),
        arrived_s=1.7e9,
        features=features,
        route=route,
        server="http://x",
        pool=pool,
        end=RequestEnd.OK,
        status=200,
        running=1,
        ttft_s=0.1,
        e2e_s=1.0 + number % 7,
        tpot_s=0.01,
        output_tokens=50,
    )


def per_request_s(note: Callable[[RoutedRequest, float], None]) -> float:
    requests = [ended(number) for number in range(5000)]
    start = time.perf_counter()
    for number, request in enumerate(requests):
        note(request, number * 0.1)
    return (time.perf_counter() - start) / len(requests)


def main() -> None:
    bodies = answer()
    print(f"{CHUNKS} chunks of {len(bodies[5])} bytes, the best of {PASSES} passes")
    for keeps_text in (False, True):
        passes = [per_chunk_s(bodies, keeps_text=keeps_text) for _ in range(PASSES)]
        chunk_s, end_s = (min(values) for values in zip(*passes, strict=True))
        what = "with its text " if keeps_text else "without text  "
        print(f"{what} {chunk_s * 1e6:6.2f} us a chunk, {end_s * 1e6:6.1f} us at the end of an answer")
    for together in (1, 4):
        chunk_s = min(passed_s(bodies, together=together) for _ in range(PASSES))
        print(f"passed on as it came, {together} in a read: {chunk_s * 1e6:.2f} us a chunk")
    tallies, learner = Tallies(), Learner(canary=0.05)
    counting_s = min(
        per_request_s(lambda each, now_s: tallies.note(each, now_s=now_s)) for _ in range(PASSES)
    )
    learning_s = min(
        per_request_s(lambda each, now_s: learner.note(each, now_s=now_s)) for _ in range(PASSES)
    )
    print(f"counting {counting_s * 1e6:.1f} us, learning {learning_s * 1e6:.1f} us a request")


if __name__ == "__main__":
    main()
