"""The bodies a fake server reads and writes: what a request asks for, and how each engine words its answer.

Shapes were taken from running servers: llama.cpp in xllamacpp 2026.10.11549, and vLLM 0.32.0. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from speclift.core.document import Json
from speclift.core.errors import UsageError
from speclift.core.json_reading import as_list, as_number, as_object, as_objects, as_text, as_whole
from speclift.core.records import Step
from speclift.core.traffic import DEFAULT_MAX_TOKENS
from speclift.core.units import Seconds, Tokens
from speclift.testing.fake_corruption import Corrupted
from speclift.testing.fake_truth import (
    SEGMENT_MARKER,
    VOCABULARY,
    Burst,
    FakeAnswer,
    FakeRequest,
    Truth,
    token_text,
)
from speclift.testing.fake_words import AskedWords, FakeWords

MODEL = "fake"
# What an OpenAI-compatible server assumes when the request does not say.
DEFAULT_TEMPERATURE = 1.0
# A script is drawn up whole before its first token; this many tokens take well under a second.
MAX_TOKENS_LIMIT = 100_000

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """How the client wants the answer."""

    is_chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    timings_per_token: bool
    return_token_ids: bool
    # Log-probabilities of this many tokens per position.
    listed: int = 0


def read_body(body: object, *, is_chat: bool) -> tuple[FakeRequest, AnswerForm]:
    """UsageError on anything a real server would answer with 400."""
    if not isinstance(body, dict):
        raise UsageError(f"the body must be a JSON object, saw {type(body).__name__}")
    for name in _UNKNOWN_SETTINGS:
        if name in body:
            raise UsageError(f"{name} is nothing that this server knows")
    prompt = _chat_prompt(body.get("messages")) if is_chat else _typed(body, "prompt", str)
    marker = SEGMENT_MARKER.search(prompt)
    max_tokens_name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    max_tokens = _typed(body, max_tokens_name, int, DEFAULT_MAX_TOKENS)
    if not 1 <= max_tokens <= MAX_TOKENS_LIMIT:
        raise UsageError(f"{max_tokens_name} must lie in 1..{MAX_TOKENS_LIMIT}, saw {max_tokens}")
    temperature = float(_number(body, "temperature", DEFAULT_TEMPERATURE))
    if not 0 <= temperature < float("inf"):
        raise UsageError(f"temperature must be at least 0, saw {temperature}")
    options = _typed(body, "stream_options", dict, {})
    ask = FakeRequest(
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        segment=_typed(body, "speclift_segment", str, marker[1] if marker else ""),
        seed=_typed(body, "seed", int, 0) if body.get("seed") is not None else None,
        ignore_eos=_typed(body, "ignore_eos", bool, False),
        words=_asked_words(body),
    )
    return ask, AnswerForm(
        is_chat=is_chat,
        stream=_typed(body, "stream", bool, False),
        include_usage=_typed(options, "include_usage", bool, False),
        continuous_usage=_typed(options, "continuous_usage_stats", bool, False),
        timings_per_token=_typed(body, "timings_per_token", bool, False),
        return_token_ids=_typed(body, "return_token_ids", bool, False),
        listed=_listed(body, is_chat=is_chat),
    )


# A server without grammars, as many are built: it says so instead of answering without one.
_UNKNOWN_SETTINGS = ("grammar", "structured_outputs", "guided_regex")
CHOICES_MAX = 8


def _asked_words(body: Mapping[str, object]) -> AskedWords:
    choices = _typed(body, "n", int, 1)
    if not 1 <= choices <= CHOICES_MAX:
        raise UsageError(f"n must lie in 1..{CHOICES_MAX}, saw {choices}")
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else as_list(stop)
    biases = as_object(body.get("logit_bias"))
    return AskedWords(
        stops=tuple(each for each in stops if isinstance(each, str) and each),
        schema=_schema(body),
        tools=_tools_to_call(body),
        thinking_max=as_whole(body.get("thinking_budget_tokens", body.get("thinking_token_budget"))),
        choices=choices,
        banned=tuple(int(id) for id, bias in biases.items() if id.isdigit() and bias == -100),
    )


def _schema(body: Mapping[str, object]) -> Mapping[str, object] | None:
    wanted = as_object(body.get("response_format"))
    if wanted.get("type") not in ("json_schema", "json_object"):
        return None
    return as_object(as_object(wanted.get("json_schema")).get("schema")) or {"type": "object"}


def _tools_to_call(body: Mapping[str, object]) -> tuple[tuple[str, Mapping[str, object]], ...]:
    """Where one must be called; where it may be, this server rather talks."""
    if body.get("tool_choice") != "required" and not isinstance(body.get("tool_choice"), dict):
        return ()
    functions = [as_object(tool.get("function")) for tool in as_objects(body.get("tools"))]
    return tuple((as_text(each.get("name")) or "", as_object(each.get("parameters"))) for each in functions)


def _listed(body: Mapping[str, object], *, is_chat: bool) -> int:
    if not is_chat:
        return _typed(body, "logprobs", int, 0)
    return _typed(body, "top_logprobs", int, 0) if _typed(body, "logprobs", bool, False) else 0


def _typed(body: Mapping[str, object], name: str, kind: type[Kind], default: Kind | None = None) -> Kind:
    value = body.get(name)
    value = default if value is None else value
    is_stray_bool = isinstance(value, bool) and kind is not bool
    if is_stray_bool or not isinstance(value, kind):
        raise UsageError(f"{name} has the wrong type: saw {value!r}")
    return value


def _number(body: Mapping[str, object], name: str, default: float) -> float:
    value = body.get(name)
    number = default if value is None else as_number(value)
    if number is None:
        raise UsageError(f"{name} has the wrong type: saw {value!r}")
    return number


def _chat_prompt(messages: object) -> str:
    if not isinstance(messages, list) or not messages:
        raise UsageError("messages must be a list of at least one message")
    return "\n".join(map(_message_text, messages))


def _message_text(message: object) -> str:
    """Content is a string or, as vLLM's own client sends it, a list of parts."""
    content = message.get("content") if isinstance(message, dict) else None
    if content is None and isinstance(message, dict) and message.get("tool_calls"):
        return ""  # nothing was said, a tool was called
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text") for part in content]
        content = "".join(texts) if texts and all(isinstance(text, str) for text in texts) else None
    if not isinstance(content, str):
        raise UsageError("each message must be an object whose content is a string or a list of texts")
    return content


# The fake is sure of each of its tokens: the runner-up is e^3 times less likely.
_LOGPROB, _RUNNER_UP_LOGPROB = -0.05, -3.05


def _sure_of(token_id: int, text: str) -> dict[str, Json]:
    """One entry of `logprobs.content`, as llama.cpp words it."""
    said = _listed_token(token_id, text, _LOGPROB)
    other = (token_id + 1) % len(VOCABULARY)
    return {**said, "top_logprobs": [said, _listed_token(other, token_text(other), _RUNNER_UP_LOGPROB)]}


def _listed_token(token_id: int, text: str, logprob: float) -> dict[str, Json]:
    return {"id": token_id, "token": text, "bytes": list(text.encode()), "logprob": logprob}


class Reply:
    """The JSON of one answer in the dialect of the truth's flavour."""

    def __init__(
        self, truth: Truth, script: FakeAnswer, form: AnswerForm, *, id: str, created: int, prompt_s: Seconds
    ) -> None:
        self.truth, self.script, self.form = truth, script, form
        self.prompt_s = prompt_s
        self.prompt_ids: Sequence[int] = ()
        self.words: FakeWords = script.words
        # Of the choices beside the first, where more were asked for.
        self.others: Sequence[FakeWords] = ()
        self._tokens_extra = 0
        self._finish_reason: str | None = script.finish_reason
        kind = "chat.completion" if form.is_chat else "text_completion"
        self._head: dict[str, Json] = {
            "id": id,
            "object": kind + (".chunk" if form.is_chat and form.stream else ""),
            "created": created,
            "model": MODEL,
        }

    def corrupt(self, corrupted: Corrupted) -> None:
        """From here on the words of an answer gone wrong."""
        self.words = corrupted.words
        self._tokens_extra = corrupted.tokens_extra
        self._finish_reason = self._finish_reason if corrupted.has_reason else None

    def opening(self) -> list[dict[str, Json]]:
        if not self.form.is_chat:
            return []
        # llama.cpp sends null, vLLM an empty string; neither carries a token.
        content = "" if self.truth.flavour == "vllm" else None
        return [self._chunk({"delta": {"role": "assistant", "content": content}})]

    def tokens(self, start: int, end: int, burst: Burst, *, decode_s: Seconds) -> dict[str, Json]:
        ids = self.script.token_ids[start:end]
        choice: dict[str, Json] = (
            {"delta": self._message(start, end)}
            if self.form.is_chat
            else {"text": "".join(self.words.texts[start:end])}
        )
        extra: dict[str, Json] = {}
        if self.truth.flavour == "vllm" and self.form.return_token_ids:
            choice["token_ids"] = list(ids)
        if self.truth.flavour == "vllm" and self.form.continuous_usage:
            extra["usage"] = self._usage(end)
        if self.truth.flavour == "llamacpp" and self.form.timings_per_token:
            extra["timings"] = self._timings(end, burst, decode_s=decode_s)
        return self._chunk(choice, **extra)

    def closing(self, *, decode_s: Seconds) -> list[dict[str, Json]]:
        choice: dict[str, Json] = {"delta": {}} if self.form.is_chat else {"text": ""}
        finish = self._chunk({**choice, "finish_reason": self._finish_reason})
        figures = self._figures(decode_s=decode_s)
        return [*self._other_choices(), *self._ended(finish, figures)]

    def _ended(self, finish: dict[str, Json], figures: Mapping[str, Json]) -> list[dict[str, Json]]:
        if self.truth.flavour == "llamacpp" and not self.form.is_chat:
            return [{**finish, **figures}]  # llama.cpp has no usage chunk on this route
        if self.form.include_usage:
            return [finish, {**self._head, "choices": [], **figures}]
        return [{**finish, "timings": figures["timings"]}] if "timings" in figures else [finish]

    def whole(self, *, decode_s: Seconds) -> dict[str, Json]:
        choice = {"index": 0, **self._whole_text(self.words), "finish_reason": self._finish_reason}
        if self.form.listed and self.truth.flavour != "plain":
            said = zip(self.script.token_ids, self.words.texts, strict=True)
            choice["logprobs"] = {"content": [_sure_of(token_id, text) for token_id, text in said]}
        extra: dict[str, Json] = {}
        if self.truth.flavour == "vllm" and self.form.return_token_ids:
            choice["token_ids"] = list(self.script.token_ids)
            extra["prompt_token_ids"] = list(self.prompt_ids)
        others = [
            {"index": place, **self._whole_text(words), "finish_reason": words.finish_reason}
            for place, words in enumerate(self.others, start=1)
        ]
        return {**self._head, "choices": [choice, *others], **extra, **self._figures(decode_s=decode_s)}

    def _whole_text(self, words: FakeWords) -> dict[str, Json]:
        if not self.form.is_chat:
            return {"text": "".join(words.texts)}
        message: dict[str, Json] = {"role": "assistant", "content": None if words.tool else words.said}
        if words.thoughts:
            message["reasoning_content"] = "".join(words.texts[: words.thoughts])
        if words.tool:
            message["tool_calls"] = [self._call(words.tool, words.said)]
        return {"message": message}

    def _message(self, start: int, end: int) -> dict[str, Json]:
        """What tokens [start, end) add to the message of a stream."""
        words = self.words
        thoughts = "".join(words.texts[start : min(end, words.thoughts)])
        said = "".join(words.texts[max(start, words.thoughts) : end])
        if words.tool:
            first = start <= words.thoughts < end
            call = self._call(words.tool, said) if first else {"function": {"arguments": said}}
            return {"tool_calls": [{"index": 0, **call}]}
        if not words.thoughts:
            return {"content": said}
        return {name: text for name, text in (("reasoning_content", thoughts), ("content", said)) if text}

    def _call(self, name: str, arguments: str) -> dict[str, Json]:
        id = f"call-{self._head['id']}"
        return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _other_choices(self) -> list[dict[str, Json]]:
        """At once, at the end: what matters is that they are told apart."""
        found = []
        for place, words in enumerate(self.others, start=1):
            said: dict[str, Json] = (
                {"delta": {"content": words.said}} if self.form.is_chat else {"text": words.said}
            )
            choice: dict[str, Json] = {"index": place, **said, "finish_reason": words.finish_reason}
            found.append({**self._head, "choices": [choice]})
        return found

    def _chunk(self, choice: dict[str, Json], **extra: Json) -> dict[str, Json]:
        return {**self._head, "choices": [{"index": 0, "finish_reason": None, **choice}], **extra}

    def _figures(self, *, decode_s: Seconds) -> dict[str, Json]:
        last = self.script.bursts[-1]
        further = sum(len(words.texts) for words in self.others)
        figures: dict[str, Json] = {"usage": self._usage(last.end + self._tokens_extra + further)}
        if self.truth.flavour == "llamacpp":
            figures["timings"] = self._timings(last.end, last, decode_s=decode_s)
        if self.truth.flavour == "vllm" and self.truth.k:
            figures["metrics"] = {"speculative_decoding": self._step_metrics()}
        return figures

    def _usage(self, tokens: Tokens) -> dict[str, int]:
        prompt = self.script.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}

    def _timings(self, tokens: Tokens, burst: Burst, *, decode_s: Seconds) -> dict[str, float]:
        prompt_n, prompt_s, later = self.script.prompt_tokens, self.prompt_s, tokens - 1
        drafts = {"draft_n": burst.drafted, "draft_n_accepted": burst.accepted} if burst.drafted else {}
        return {
            "cache_n": 0,
            "prompt_n": prompt_n,
            "prompt_ms": prompt_s * 1e3,
            "prompt_per_token_ms": prompt_s * 1e3 / prompt_n if prompt_n else 0.0,
            "prompt_per_second": prompt_n / prompt_s if prompt_s else 0.0,
            "predicted_n": tokens,
            "predicted_ms": decode_s * 1e3,
            "predicted_per_token_ms": decode_s * 1e3 / later if later else 0.0,
            "predicted_per_second": later / decode_s if decode_s else 0.0,
            **drafts,
        }

    def _step_metrics(self) -> dict[str, Json]:
        steps = [step for step in self.script.steps if step.drafted]
        last = self.script.bursts[-1]
        by_accepted = Counter(step.accepted for step in steps)
        return {
            "mean_acceptance_length": 1 + last.accepted / len(steps) if steps else None,
            "draft_acceptance_rate": last.accepted / last.drafted if last.drafted else None,
            "acceptance_histogram": [by_accepted[count] for count in range(self.truth.k + 1)],
            "num_spec_steps": len(steps),
            "num_accepted_draft_tokens": last.accepted,
            "num_draft_tokens": last.drafted,
            "num_spec_tokens": self.truth.k,
            "per_step_accepted": [step.accepted for step in steps],
            "per_step_drafted": [step.drafted for step in steps],
        }


def chunk_spans(script: FakeAnswer, *, tokens_per_chunk: int | str) -> Iterator[list[tuple[int, int]]]:
    """Per burst the token ranges of its chunks: the first token at once, then full chunks, then the rest."""
    sent, last = 0, script.bursts[-1]
    for burst in script.bursts:
        spans = []
        size = burst.end - sent if isinstance(tokens_per_chunk, str) else tokens_per_chunk
        while sent < burst.end and (sent == 0 or burst is last or burst.end - sent >= size):
            spans.append((sent, min(sent + size, burst.end)))
            sent = spans[-1][1]
        yield spans


# Upper bounds of vLLM's histograms (0.32, v1/metrics/buckets.py).
TTFT_BOUNDS_S: tuple[Seconds, ...] = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
TPOT_BOUNDS_S: tuple[Seconds, ...] = (
    *(
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.4,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
        7.5,
        10.0,
        20.0,
        40.0,
        80.0,
    ),
)
E2E_BOUNDS_S: tuple[Seconds, ...] = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)


@dataclass(slots=True, kw_only=True)
class ServedTimes:
    """A histogram of seconds."""

    bounds_s: tuple[Seconds, ...]
    # By the first bound that it does not exceed; beyond the last bound at infinity.
    counts: Counter[float] = field(default_factory=Counter)
    sum_s: Seconds = 0.0

    def add(self, seconds: Seconds) -> None:
        self.counts[next((bound for bound in self.bounds_s if seconds <= bound), float("inf"))] += 1
        self.sum_s += seconds

    def lines(self, name: str, labels: str) -> list[str]:
        """As Prometheus has them: each bucket counts all that is not above its bound."""
        buckets: dict[str, float] = {}
        seen = 0
        for bound in (*self.bounds_s, float("inf")):
            seen += self.counts[bound]
            buckets[_joined(labels, f'le="{"+Inf" if bound == float("inf") else bound}"')] = seen
        first, kind, *values = _sample_lines(f"{name}_bucket", "histogram", buckets)
        return [
            *(line.replace("_bucket", "", 1) for line in (first, kind)),
            *values,
            f"{name}_sum{{{labels}}} {self.sum_s}",
            f"{name}_count{{{labels}}} {seen}",
        ]


@dataclass(slots=True, kw_only=True)
class ServedTotals:
    """Counters over all finished requests, added when a request ends, as llama.cpp does."""

    # When the server began, in seconds since the Unix epoch.
    started_s: Seconds = 0.0
    ttft: ServedTimes = field(default_factory=lambda: ServedTimes(bounds_s=TTFT_BOUNDS_S))
    tpot: ServedTimes = field(default_factory=lambda: ServedTimes(bounds_s=TPOT_BOUNDS_S))
    e2e: ServedTimes = field(default_factory=lambda: ServedTimes(bounds_s=E2E_BOUNDS_S))
    prompt_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: Counter[int] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)

    def add(self, script: FakeAnswer) -> None:
        self.prompt_tokens += script.prompt_tokens
        self.tokens += len(script.token_ids)
        self.finish_reasons[script.finish_reason] += 1
        for step in script.steps:
            self._add_step(step)

    def add_times(self, *, ttft_s: Seconds, decode_s: Seconds, tokens: Tokens) -> None:
        """`decode_s` is from the first token to the last; an answer of one token has no time per token, and counts as
        zero in vLLM."""
        self.ttft.add(ttft_s)
        self.tpot.add(decode_s / (tokens - 1) if tokens > 1 else 0.0)
        self.e2e.add(ttft_s + decode_s)

    def _add_step(self, step: Step) -> None:
        self.steps += 1
        self.drafts += step.drafted > 0
        self.drafted += step.drafted
        self.accepted += step.accepted
        self.accepted_at.update(range(step.accepted))


def metrics_text(truth: Truth, totals: ServedTotals, *, running: int, waiting: int) -> str:
    """Prometheus text under the names of the truth's flavour."""
    is_vllm = truth.flavour == "vllm"
    prefix, labels = ("vllm:", f'engine="0",model_name="{MODEL}"') if is_vllm else ("llamacpp:", "")
    counters: dict[str, float] = {"prompt_tokens_total": totals.prompt_tokens}
    gauges: dict[str, float]
    if is_vllm:
        counters["generation_tokens_total"] = totals.tokens
        # Every prompt is looked up, and none is kept.
        counters |= {"prefix_cache_queries_total": totals.prompt_tokens, "prefix_cache_hits_total": 0}
        gauges = {"num_requests_running": running, "num_requests_waiting": waiting}
        if truth.slots:
            # Every slot has its share of the KV cache.
            gauges["kv_cache_usage_perc"] = min(1.0, running / truth.slots)
    else:
        counters["tokens_predicted_total"] = totals.tokens
        counters["n_decode_total"] = totals.steps
        gauges = {"requests_processing": running, "requests_deferred": waiting}
    # vLLM shows these only under a speculative configuration, llama.cpp always.
    if truth.k or not is_vllm:
        counters["spec_decode_num_drafts_total"] = totals.drafts
        counters["spec_decode_num_draft_tokens_total"] = totals.drafted
        counters["spec_decode_num_accepted_tokens_total"] = totals.accepted
    lines: list[str] = []
    for kind, values in (("counter", counters), ("gauge", gauges)):
        for name, value in values.items():
            lines += _sample_lines(prefix + name, kind, {labels: value})
    if is_vllm:
        reasons = {_joined(labels, f'finished_reason="{r}"'): n for r, n in totals.finish_reasons.items()}
        lines += _sample_lines(prefix + "request_success_total", "counter", reasons)
        lines += totals.ttft.lines(prefix + "time_to_first_token_seconds", labels)
        lines += totals.tpot.lines(prefix + "request_time_per_output_token_seconds", labels)
        lines += totals.e2e.lines(prefix + "e2e_request_latency_seconds", labels)
        lines += _sample_lines("process_start_time_seconds", "gauge", {"": totals.started_s})
    # llama.cpp adds the positions with its first speculative request.
    if truth.k and (is_vllm or totals.drafts):
        name = prefix + "spec_decode_num_accepted_tokens_per_pos_total"
        positions = {_joined(labels, f'position="{i}"'): totals.accepted_at[i] for i in range(truth.k)}
        lines += _sample_lines(name, "counter", positions)
    return "\n".join(lines) + "\n"


def _sample_lines(name: str, kind: str, samples: Mapping[str, float]) -> list[str]:
    values = [
        f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in samples.items()
    ]
    return [f"# HELP {name} Fake server.", f"# TYPE {name} {kind}", *values]


def _joined(*labels: str) -> str:
    return ",".join(filter(None, labels))
