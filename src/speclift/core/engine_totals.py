"""What engines count about themselves, under one name each: engines and their versions differ in the words."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from speclift.core.records import Counters, Refused, Usage
from speclift.core.units import Seconds

# First the name of today, then what older versions called it. vLLM: Prometheus names of 0.32; `gpu_prefix_cache_*`
# until 0.10. llama.cpp: b11549.
DRAFTED = ("vllm:spec_decode_num_draft_tokens_total", "llamacpp:spec_decode_num_draft_tokens_total")
ACCEPTED = ("vllm:spec_decode_num_accepted_tokens_total", "llamacpp:spec_decode_num_accepted_tokens_total")
PREEMPTIONS = ("vllm:num_preemptions_total",)
PREFIX_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
PREFIX_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")

# How full a server is at the moment: its KV cache as a share, requests running and waiting. llama.cpp says its KV
# cache's until b5441 only.
KV_USED = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "llamacpp:kv_cache_usage_ratio",
)
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")

# How many drafts were accepted as far as each position, from 0 on.
PER_POSITION = (
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
)
# What is read of an engine's totals, and so must be possible.
USED = frozenset((*DRAFTED, *ACCEPTED, *PREEMPTIONS, *PREFIX_QUERIES, *PREFIX_HITS, *PER_POSITION))
# Beyond this a float no longer counts by ones.
TOTAL_MAX = 2.0**53
_POSITION = re.compile(r'position="(\d{1,6})"', re.ASCII)


def engine_total(counters: Counters, names: tuple[str, ...]) -> float | None:
    """The first of the names that this engine has; None where it counts no such thing."""
    totals = (counters.total(name) for name in names)
    return next((total for total in totals if total is not None), None)


def usage_of(reading: Counters, *, at_s: Seconds) -> Usage | None:
    """How full the server was at this reading; None where it does not say, or says what cannot be."""
    shares = [value for key, value in reading.values.items() if _name(key) in KV_USED]
    running, waiting = (engine_total(reading, names) or 0.0 for names in (RUNNING, WAITING))
    counts_are_possible = all(0 <= count <= TOTAL_MAX for count in (running, waiting))
    # Of several engines behind one page, the fullest.
    if not shares or not all(0 <= share <= 1 for share in shares) or not counts_are_possible:
        return None
    return Usage(at_s=at_s, running=int(running), waiting=int(waiting), kv_share=max(shares))


def counted_between(before: Counters, after: Counters) -> tuple[Counters, tuple[Refused, ...]]:
    """What an engine counted between two readings; where any of what is used cannot be true none of it is left, and
    what was said instead."""
    refused = tuple(_refused_readings(before, after))
    counted = after.since(before)
    if not refused:
        refused = tuple(_refused_shares(counted))
    if refused:
        counted = Counters(values={key: n for key, n in counted.values.items() if _name(key) not in USED})
    return counted, refused


def _refused_readings(before: Counters, after: Counters) -> Iterator[Refused]:
    """Each reading by itself, and each beside the one before."""
    for reading in (before, after):
        for key, value in reading.values.items():
            if _name(key) in USED and not (math.isfinite(value) and 0 <= value <= TOTAL_MAX):
                yield Refused(rule="not-a-total", said=f"{key} is {value:g}")
    for key, value in after.values.items():
        earlier = before.values.get(key, value)
        if _name(key) in USED and value < earlier:
            yield Refused(rule="total-fell", said=f"{key} fell from {earlier:g} to {value:g}")


def _refused_shares(counted: Counters) -> Iterator[Refused]:
    """What was counted beside what it is a part of."""
    for part, whole, words in ((ACCEPTED, DRAFTED, "accepted"), (PREFIX_HITS, PREFIX_QUERIES, "hits")):
        some, all_of_it = engine_total(counted, part), engine_total(counted, whole)
        if some is not None and all_of_it is not None and some > all_of_it:
            yield Refused(
                rule=f"{words}-over-all", said=f"{part[0]} rose by {some:g}, {whole[0]} by {all_of_it:g}"
            )
    by_position: dict[int, float] = defaultdict(float)
    for key, value in counted.values.items():
        position = _POSITION.search(key) if _name(key) in PER_POSITION else None
        if position is not None:
            by_position[int(position[1])] += value
    reached = [by_position[position] for position in sorted(by_position)]
    if any(later > earlier for earlier, later in pairwise(reached)):
        said = ", ".join(f"{value:g}" for value in reached)
        yield Refused(
            rule="later-over-earlier", said=f"more drafts accepted at a later position: {said}"[:200]
        )


def _name(key: str) -> str:
    return key.partition("{")[0]
