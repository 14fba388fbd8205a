"""A running server's metrics page, whichever engine wrote it, as one MetricsReading. Pure.

Names were read off running servers (vLLM 0.32, llama.cpp b11549) and off the definitions of SGLang (metrics collector,
main of autumn 2026) and TensorRT-LLM (1.3, served at /prometheus/metrics). Older names stand after those of today.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from speclift.core.engine_totals import (
    ACCEPTED,
    DRAFTED,
    KV_USED,
    PER_POSITION,
    PREFIX_HITS,
    PREFIX_QUERIES,
    RUNNING,
    TOTAL_MAX,
    WAITING,
)
from speclift.core.errors import EngineError
from speclift.core.live import Buckets, LiveTotals, MetricsReading
from speclift.core.quantities import printable
from speclift.core.units import Seconds

Names = tuple[str, ...]

# Each engine by how its metrics begin on its own page.
PREFIXES: Mapping[str, str] = {
    "vllm:": "vllm",
    "llamacpp:": "llamacpp",
    "sglang:": "sglang",
    "trtllm_": "tensorrt-llm",
}
TOKENS: Names = (
    "vllm:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
    "sglang:generation_tokens_total",
    "trtllm_generation_tokens_total",
)
# First tokens where they are counted, since tokens are counted as they come; else finished requests. llama.cpp counts
# neither.
REQUESTS: Names = (
    "vllm:time_to_first_token_seconds_count",
    "vllm:request_success_total",
    "sglang:num_requests_total",
    "trtllm_request_success_total",
)
PROMPT_TOKENS: Names = (
    "vllm:prompt_tokens_total",
    "llamacpp:prompt_tokens_total",
    "sglang:prompt_tokens_total",
    "trtllm_prompt_tokens_total",
)
DRAFTS: Names = ("vllm:spec_decode_num_drafts_total", "llamacpp:spec_decode_num_drafts_total")
STEPS: Names = ("sglang:spec_verify_calls_total",)
DRAFTED_LIVE: Names = (*DRAFTED, "trtllm_spec_decode_num_draft_tokens_total")
ACCEPTED_LIVE: Names = (*ACCEPTED, "trtllm_spec_decode_num_accepted_tokens_total")
DECODE_S: Names = ("llamacpp:tokens_predicted_seconds_total",)
KV_USED_LIVE: Names = (*KV_USED, "trtllm_kv_cache_utilization")
RUNNING_LIVE: Names = (*RUNNING, "trtllm_num_requests_running")
WAITING_LIVE: Names = (*WAITING, "trtllm_num_requests_waiting")
ACCEPTED_LENGTH: Names = ("sglang:spec_accept_length", "trtllm_spec_decode_acceptance_length")
K: Names = ("sglang:spec_num_steps",)
TTFT: Names = (
    "vllm:time_to_first_token_seconds_bucket",
    "sglang:time_to_first_token_seconds_bucket",
    "trtllm_time_to_first_token_seconds_bucket",
)
# Not the time between outputs: with speculation one of those carries several tokens.
TPOT: Names = (
    "vllm:request_time_per_output_token_seconds_bucket",
    "vllm:time_per_output_token_seconds_bucket",
    "sglang:request_time_per_output_token_seconds_bucket",
    "sglang:time_per_output_token_seconds_bucket",
    "trtllm_time_per_output_token_seconds_bucket",
)
STARTED: Names = ("process_start_time_seconds",)
_READ = (
    *(TOKENS, REQUESTS, PROMPT_TOKENS, DRAFTS, STEPS, DRAFTED_LIVE, ACCEPTED_LIVE, PER_POSITION),
    *(PREFIX_QUERIES, PREFIX_HITS, DECODE_S, RUNNING_LIVE, WAITING_LIVE, KV_USED_LIVE, ACCEPTED_LENGTH, K),
    *(TTFT, TPOT, STARTED),
)
# One engine's page has some dozens of these for each of its cores and models.
SAMPLES_MAX = 20_000
POSITIONS_MAX = 256
SHOWN_CHARACTERS = 80
_POSITION = re.compile(r'(?:^|[,{])position="(\d{1,3})"', re.ASCII)
_LE = re.compile(r'(?:^|[,{])le="([^"]{1,24})"')
_MODEL = re.compile(r'(?:^|[,{])model_name="([^"]{1,200})"')


@dataclass(frozen=True, slots=True)
class _Samples:
    """Values by name, each with its labels."""

    by_name: Mapping[str, list[tuple[str, float]]]

    def first(self, names: Names) -> list[tuple[str, float]]:
        return next((self.by_name[name] for name in names if name in self.by_name), [])

    def total(self, names: Names) -> float | None:
        """Summed over engines and models behind one page; None where nobody counts it, or counts what cannot be."""
        values = [value for _, value in self.first(names)]
        possible = all(0 <= value <= TOTAL_MAX for value in values)  # not of NaN
        return sum(values) if values and possible else None

    def mean(self, names: Names) -> float | None:
        values = [value for _, value in self.first(names) if 0 <= value <= TOTAL_MAX]
        return sum(values) / len(values) if values else None

    def most(self, names: Names) -> float | None:
        values = [value for _, value in self.first(names) if 0 <= value <= TOTAL_MAX]
        return max(values, default=None)


def read_page(text: str, *, at_s: Seconds, wall_s: Seconds) -> MetricsReading:
    """EngineError where this is no page of an engine that we know."""
    samples = _samples(text)
    engine = _engine(samples, text)
    k = samples.most(K)
    return MetricsReading(
        at_s=at_s,
        wall_s=wall_s,
        engine=engine,
        model=_model(samples),
        started_s=samples.most(STARTED),
        running=samples.total(RUNNING_LIVE),
        waiting=samples.total(WAITING_LIVE),
        kv_used=_share(samples.most(KV_USED_LIVE)),
        k=int(k) if k is not None and k <= POSITIONS_MAX else None,
        accepted_length=samples.mean(ACCEPTED_LENGTH),
        totals=_totals(samples),
    )


def _totals(samples: _Samples) -> LiveTotals:
    return LiveTotals(
        tokens=samples.total(TOKENS),
        requests=samples.total(REQUESTS),
        drafts=samples.total(DRAFTS),
        drafted=samples.total(DRAFTED_LIVE),
        accepted=samples.total(ACCEPTED_LIVE),
        accepted_at=_by_position(samples.first(PER_POSITION)),
        steps=samples.total(STEPS),
        prompt_tokens=samples.total(PROMPT_TOKENS),
        prefix_queries=samples.total(PREFIX_QUERIES),
        prefix_hits=samples.total(PREFIX_HITS),
        decode_s=samples.total(DECODE_S),
        ttft=_buckets(samples, TTFT),
        tpot=_buckets(samples, TPOT),
    )


@cache
def _wanted() -> re.Pattern[str]:
    """Only lines that are read: an engine's page has thousands of others, and there may be hundreds of servers. Each
    with the end of the line before it, which is looked for three times as fast as a line's beginning."""
    read = (*_READ, _sums(TTFT), _sums(TPOT))
    names = sorted({name for group in read for name in group}, key=len, reverse=True)
    return re.compile(rf"\n({'|'.join(map(re.escape, names))})(?:\{{(.{{0,2000}})\}})?[ \t]+(\S{{1,40}})")


def _samples(text: str) -> _Samples:
    by_name: dict[str, list[tuple[str, float]]] = {}
    for count, match in enumerate(_wanted().finditer(f"\n{text}")):
        if count >= SAMPLES_MAX:
            raise EngineError(
                f"the metrics page has more than {SAMPLES_MAX:,} samples of one kind of engine",
                hint="give the address of one server, not of what collects many",
            )
        try:
            value = float(match[3])
        except ValueError:
            value = math.nan
        by_name.setdefault(match[1], []).append((match[2] or "", value))
    return _Samples(by_name)


def _engine(samples: _Samples, text: str) -> str:
    for name in samples.by_name:
        for prefix, engine in PREFIXES.items():
            if name.startswith(prefix):
                return engine
    for prefix, engine in PREFIXES.items():
        if re.search(rf"^{re.escape(prefix)}", text, re.MULTILINE):
            raise EngineError(
                f"the page is {engine}'s, but counts no tokens",
                hint="is statistics logging off (--disable-log-stats)?",
            )
    looks_like = "HTML" if "<html" in text[:2000].lower() else "metrics of something else"
    seen = printable(text.strip().partition("\n")[0], limit=SHOWN_CHARACTERS)
    raise EngineError(
        f"no metrics of vLLM, llama.cpp, SGLang or TensorRT-LLM: {looks_like}, beginning {seen!r}"
        if text.strip()
        else "the metrics page is empty",
        hint="give the address whose /metrics shows them; llama-server needs --metrics, SGLang --enable-metrics",
    )


def _model(samples: _Samples) -> str | None:
    for labels, _ in samples.first(TOKENS):
        match = _MODEL.search(labels)
        if match is not None:
            return match[1]
    return None


def _share(value: float | None) -> float | None:
    return value if value is not None and value <= 1 else None


def _by_position(found: list[tuple[str, float]]) -> tuple[float, ...]:
    """Empty where a position is missing or its count cannot be."""
    by_position: dict[int, float] = {}
    for labels, value in found:
        position = _POSITION.search(labels)
        if position is None or not 0 <= value <= TOTAL_MAX:
            return ()
        index = int(position[1])
        by_position[index] = by_position.get(index, 0.0) + value
    if sorted(by_position) != list(range(len(by_position))) or len(by_position) > POSITIONS_MAX:
        return ()
    return tuple(by_position[index] for index in range(len(by_position)))


@lru_cache(maxsize=64)
def _kept_once(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """The same for every page that has them: a watch keeps some thousand pages."""
    return bounds


def _buckets(samples: _Samples, names: Names) -> Buckets | None:
    by_bound: dict[float, float] = {}
    for bound, value in _bounded(samples.first(names)):
        if math.isnan(bound) or not 0 <= value <= TOTAL_MAX:
            return None
        by_bound[bound] = by_bound.get(bound, 0.0) + value
    bounds = _kept_once(tuple(sorted(by_bound)))
    counts = tuple(by_bound[bound] for bound in bounds)
    if not bounds or bounds[-1] != math.inf or list(counts) != sorted(counts):
        return None
    return Buckets(bounds=bounds, counts=counts, sum=samples.total(_sums(names)))


def _bounded(found: list[tuple[str, float]]) -> Iterator[tuple[float, float]]:
    for labels, value in found:
        bound = _LE.search(labels)
        try:
            yield float(bound[1]) if bound is not None else math.nan, value
        except ValueError:
            yield math.nan, value


def _sums(buckets: Names) -> Names:
    return tuple(name.removesuffix("_bucket") + "_sum" for name in buckets)
