"""What a fake server does to each request, and what an honest study of it must therefore find.

Everything about one request follows from (truth.seed, its prompt, its own seed), so the order of arrival
and the other traffic change only how long steps take. Pure: no clock, no I/O.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Literal

from speclift.core.errors import UsageError, unknown_name
from speclift.core.json_reading import built
from speclift.core.records import Step
from speclift.core.units import Seconds, Tokens
from speclift.testing.fake_corruption import Around, Corruption, kinds_of
from speclift.testing.fake_words import (
    FREE_WORDS,
    AskedWords,
    FakeWords,
    told_words,
    until_limit,
    until_stop,
    with_thoughts,
)

FLAVOURS = ("llamacpp", "vllm", "plain")
SAMPLERS = ("rejection", "block", "without-residual", "relaxed-1.3", "typical")
SEGMENT_MARKER = re.compile(r"\[segment:([^\]\s]+)\]")

_SEGMENT_PREFIX = "acceptance."
_SHARES = frozenset(
    {
        "acceptance",
        "tail_share",
        "stall_share",
        "wrong_token_share",
        "http_500_share",
        "cut_share",
        "garbage_share",
        "corruption_share",
    }
)
# A speedup is a ratio of step times and is taken on the log scale, so neither factor may be 0.
_LOWEST = {"tpot_s": 1e-6, "tail_factor": 1e-3, "tokens_per_chunk": 1, "launch": 1}
# Far above any draft length in use; keeps a mistyped k from filling memory with position counters.
_HIGHEST = {"k": 256}
_SWITCH_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One server's behaviour. Step time of d drafted tokens with n requests in flight:
    tpot_s * (1 + (step_cost + batch_verify_cost * (n-1)) * d) * (1 + load_cost * (n-1))."""

    ttft_s: Seconds = 0.02
    tpot_s: Seconds = 0.005
    prefill_s_per_token: Seconds = 0.0
    draft_prefill_s: Seconds = 0.0  # added to the time to first token when speculating
    flavour: str = "llamacpp"
    k: int = 0
    schedule: str = ""  # k by requests in flight when one arrives: 1-4:5/5-64:0
    acceptance: float = 0.7
    segment_acceptance: tuple[tuple[str, float], ...] = ()
    step_cost: float = 0.1
    load_cost: float = 0.0
    batch_verify_cost: float = 0.0
    temperature_slope: float = 0.0
    tail_share: float = 0.0
    tail_factor: float = 1.0
    launch_sd: float = 0.0  # of the log, median 1: one factor per process
    noise_sd: float = 0.0  # of the log, median 1: one factor per request
    prompt_sd: float = 0.0  # of the log, median 1: one factor per prompt, the same in every launch
    tokens_per_chunk: int | Literal["step"] = 1
    seed: int = 0
    slots: int = 0  # 0: no queue
    stop_after: Tokens = 0  # 0: always run to max_tokens
    stall_share: float = 0.0
    stall_s: Seconds = 0.0
    crash_after: int = 0  # 0: never
    crash_on_start: bool = False
    never_ready: bool = False
    wrong_token_share: float = 0.0
    http_500_share: float = 0.0
    cut_share: float = 0.0
    garbage_share: float = 0.0
    silent_fallback: bool = False
    sampler: str = ""  # token mode (fake_chain.py): how drafts are verified above temperature 0
    # Answers that go wrong in their middle (fake_corruption.py): which way, several with / between, and how many of
    # those that meet all of the conditions below.
    corruption: str = ""
    corruption_share: float = 1.0
    corruption_above_streams: int = 0
    corruption_after_requests: int = 0
    corruption_with_tools: bool = False
    corruption_on_launch: int = 0  # 0: on every one
    corruption_on_join: bool = False  # while another prompt is taken in
    launch: int = 1  # of this arm; the fake engine counts
    adapters: str = ""  # further model names, with / between

    def __post_init__(self) -> None:
        if self.flavour not in FLAVOURS:
            raise unknown_name(what="flavour", seen=self.flavour, allowed=FLAVOURS)
        if self.sampler and self.sampler not in SAMPLERS:
            raise unknown_name(what="sampler", seen=self.sampler, allowed=SAMPLERS)
        for word in self.corruption.split("/") if self.corruption else ():
            if word not in {kind.value for kind in Corruption}:
                raise unknown_name(what="corruption", seen=word, allowed=[kind.value for kind in Corruption])
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float):
                _require_in_range(field.name, value)
        for segment, rate in self.segment_acceptance:
            _require_in_range(_SEGMENT_PREFIX + segment, rate)

    @property
    def drafted_per_step(self) -> int:
        """k, unless the server quietly runs without the speculation it was asked for."""
        return 0 if self.silent_fallback else self.k

    def drafted_at(self, in_flight: int) -> int:
        ranges = [part.replace("-", ":").split(":") for part in self.schedule.split("/") if part]
        ks = [int(k) for _, end, k in ranges if in_flight <= int(end)]
        return ks[0] if ks and not self.silent_fallback else self.drafted_per_step

    def acceptance_for(self, *, segment: str | None, temperature: float) -> float:
        rate = dict(self.segment_acceptance).get(segment or "", self.acceptance)
        return min(1.0, max(0.0, rate - self.temperature_slope * temperature))

    def step_s(self, *, drafted: Tokens, in_flight: int) -> Seconds:
        others = max(0, in_flight - 1)
        draft_cost = (self.step_cost + self.batch_verify_cost * others) * drafted
        return self.tpot_s * (1 + draft_cost) * (1 + self.load_cost * others)

    def prefill_s(self, prompt_tokens: Tokens) -> Seconds:
        drafter_s = self.draft_prefill_s if self.drafted_per_step else 0.0
        return self.ttft_s + self.prefill_s_per_token * prompt_tokens + drafter_s


def parse_truth(pairs: Iterable[str]) -> Truth:
    """From `key=value` words; a key given twice takes its last value."""
    defaults = {field.name: field.default for field in fields(Truth) if field.name != "segment_acceptance"}
    values: dict[str, object] = {}
    segments: dict[str, float] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"a truth is given as key=value, saw {pair!r}", hint="for example k=4")
        if key.startswith(_SEGMENT_PREFIX) and key != _SEGMENT_PREFIX:
            segments[key.removeprefix(_SEGMENT_PREFIX)] = _number(key, text, whole=False)
        elif key not in defaults:
            raise unknown_name(what="truth", seen=key, allowed=[*defaults, f"{_SEGMENT_PREFIX}SEGMENT"])
        else:
            values[key] = _value(key, text, default=defaults[key])
    return built(Truth, {**values, "segment_acceptance": tuple(segments.items())})


# What a server is from its first moment on; a change in mid-run would be half done.
_LASTING = frozenset({"flavour", "slots", "seed", "launch_sd", "never_ready", "crash_on_start", "launch"})


def changed_truth(truth: Truth, pairs: Iterable[str]) -> Truth:
    """The truth of a running server with some of its values changed, for requests from then on."""
    pairs = tuple(pairs)
    names = [pair.partition("=")[0] for pair in pairs]
    for name in names:
        if name in _LASTING:
            raise UsageError(f"{name} cannot change while a server runs")
    told = parse_truth(pairs)
    changes = {name: getattr(told, name) for name in names if not name.startswith(_SEGMENT_PREFIX)}
    segments = dict((*truth.segment_acceptance, *told.segment_acceptance))
    return replace(truth, **changes, segment_acceptance=tuple(segments.items()))


def _value(key: str, text: str, *, default: object) -> object:
    if isinstance(default, bool):
        if text.lower() not in _SWITCH_WORDS:
            raise UsageError(f"{key} is a switch, saw {text!r}", hint=f"allowed: {', '.join(_SWITCH_WORDS)}")
        return _SWITCH_WORDS[text.lower()]
    if isinstance(default, str) or (key == "tokens_per_chunk" and text == "step"):
        return text
    return _number(key, text, whole=isinstance(default, int))


def _number(key: str, text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        also = " or 'step'" if key == "tokens_per_chunk" else ""
        raise UsageError(f"{key} must be {kind}{also}, saw {text!r}") from None


def _require_in_range(name: str, value: float) -> None:
    is_share = name in _SHARES or name.startswith(_SEGMENT_PREFIX)
    low, high = _LOWEST.get(name, 0), _HIGHEST.get(name, 1 if is_share else math.inf)
    if not (math.isfinite(value) and low <= value <= high):
        allowed = f"{low}..{high}" if math.isfinite(high) else f"at least {low}"
        raise UsageError(f"{name} is out of range, saw {value}", hint=f"allowed: {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRequest:
    """The part of a request that decides what happens to it."""

    prompt: str
    max_tokens: Tokens
    temperature: float = 0.0
    segment: str | None = None
    seed: int | None = None
    ignore_eos: bool = False
    words: AskedWords = FREE_WORDS


class Fault(StrEnum):
    HTTP_500 = "http-500"
    CUT = "cut"
    GARBAGE = "garbage"
    STALL = "stall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Tokens [start, end) of the output, sent at one moment: the prefill's token, or one decode step's."""

    start: int
    end: int
    step: Step | None
    # Running totals including this burst.
    drafted: Tokens
    accepted: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeAnswer:
    """All that happens to one request except when; the load decides that."""

    token_ids: tuple[int, ...]
    bursts: tuple[Burst, ...]
    finish_reason: str
    prompt_tokens: Tokens
    noise_factor: float
    tail_factor: float
    prompt_factor: float
    faults: frozenset[Fault]
    words: FakeWords

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(burst.step for burst in self.bursts if burst.step)

    @property
    def middle(self) -> int:
        """Index of the burst at which a cut, a stall or garbage strikes."""
        return len(self.bursts) // 2

    def burst_s(self, truth: Truth, burst: Burst, *, in_flight: int) -> Seconds:
        """From the previous burst (or from the start) to this one, before the launch factor and stalls."""
        if burst.step is None:
            return truth.prefill_s(self.prompt_tokens) * self.noise_factor
        step_s = truth.step_s(drafted=burst.step.drafted, in_flight=in_flight)
        return step_s * self.noise_factor * self.tail_factor * self.prompt_factor


def script_for(truth: Truth, ask: FakeRequest, *, in_flight: int = 1) -> FakeAnswer:
    token_ids, words = _said(truth, ask)
    count = len(words.texts)
    chance = truth.acceptance_for(segment=ask.segment, temperature=ask.temperature)
    draws = _draws("accept", truth.seed, ask.prompt, ask.seed)
    # One draw per output position, so that runs with another k meet the same easy and hard tokens.
    would_accept = [draws.random() < chance for _ in range(count)]
    draws = _draws("factors", truth.seed, ask.prompt, ask.seed)
    in_tail = draws.random() < truth.tail_share
    return FakeAnswer(
        token_ids=token_ids,
        bursts=_bursts(would_accept, k=truth.drafted_at(in_flight)),
        finish_reason=words.finish_reason,
        prompt_tokens=len(ask.prompt.split()),
        noise_factor=math.exp(draws.gauss(0.0, truth.noise_sd)),
        tail_factor=truth.tail_factor if in_tail else 1.0,
        prompt_factor=math.exp(_draws("prompt", ask.prompt).gauss(0.0, truth.prompt_sd)),
        faults=_faults(truth, ask),
        words=words,
    )


def other_choices(truth: Truth, ask: FakeRequest) -> list[FakeWords]:
    """Of the choices beside the first, where the request asks for more: other draws of the same."""
    return [
        script_for(truth, replace(ask, seed=(ask.seed or 0) + choice)).words
        for choice in range(1, ask.words.choices)
    ]


def corruption_of(truth: Truth, ask: FakeRequest, around: Around) -> Corruption | None:
    """What goes wrong with this answer, as far as the truth and what goes on around it say so."""
    kinds = kinds_of(truth.corruption)
    may = (
        around.streams > truth.corruption_above_streams
        and around.before >= truth.corruption_after_requests
        and (ask.words.has_tools or not truth.corruption_with_tools)
        and truth.corruption_on_launch in (0, truth.launch)
        and (around.joined > 0 or not truth.corruption_on_join)
    )
    draws = _draws("corruption", truth.seed, ask.prompt, ask.seed)
    if not kinds or not may or draws.random() >= truth.corruption_share:
        return None
    return draws.choice(kinds)


def _said(truth: Truth, ask: FakeRequest) -> tuple[tuple[int, ...], FakeWords]:
    """The answer's tokens as ids and as text: what the request says to say, or else syllables."""
    asked = ask.words
    # Like greedy text, it does not depend on truth.seed.
    told = told_words(ask.prompt, asked, _draws("told", ask.prompt, ask.seed))
    if told is None:
        stops_early = 0 < truth.stop_after < ask.max_tokens and not ask.ignore_eos
        count = truth.stop_after if stops_early else ask.max_tokens
        ids = _token_ids(truth, ask, count=count)
        free = FakeWords(texts=tuple(map(token_text, ids)), finish_reason="stop" if stops_early else "length")
        if asked.thinking_max is None and not asked.stops:
            return ids, free
        told = free
    words = until_limit(until_stop(with_thoughts(told, asked.thinking_max), asked.stops), ask.max_tokens)
    return tuple(map(_id_of, words.texts)), words


def _id_of(text: str) -> int:
    """Of a syllable its own; of any other text one that stays the same."""
    known = _IDS.get(text)
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % len(VOCABULARY) if known is None else known


def launch_factor(truth: Truth) -> float:
    """Multiplies every time of one process; another seed is another launch."""
    return math.exp(_draws("launch", truth.seed).gauss(0.0, truth.launch_sd))


def _bursts(would_accept: list[bool], *, k: int) -> tuple[Burst, ...]:
    count = len(would_accept)
    bursts = [Burst(start=0, end=1, step=None, drafted=0, accepted=0)]
    while (last := bursts[-1]).end < count:
        drafted = min(k, count - last.end - 1)
        window = would_accept[last.end : last.end + drafted]
        accepted = window.index(False) if False in window else drafted
        bursts.append(
            Burst(
                start=last.end,
                end=last.end + accepted + 1,
                step=Step(drafted=drafted, accepted=accepted),
                drafted=last.drafted + drafted,
                accepted=last.accepted + accepted,
            )
        )
    return tuple(bursts)


_SYLLABLES = tuple(consonant + vowel for consonant in "bdfklmrs" for vowel in "ao")
VOCABULARY = tuple(first + second for first in _SYLLABLES for second in _SYLLABLES)


_IDS = {" " + word: token_id for token_id, word in enumerate(VOCABULARY)}


def token_text(token_id: int) -> str:
    """Each token is one word with its space, so the words of a text count its tokens."""
    return " " + VOCABULARY[token_id]


def _token_ids(truth: Truth, ask: FakeRequest, *, count: Tokens) -> tuple[int, ...]:
    # Greedy text must not depend on truth.seed: arms and launches differ in it and say the same.
    greedy = _draws("greedy", ask.prompt)
    ids = [greedy.randrange(len(VOCABULARY)) for _ in range(count)]
    if ask.temperature > 0 and truth.sampler:
        from speclift.testing.fake_chain import sampled_ids  # numpy, which no other fake waits for

        seed = repr((truth.seed, ask.prompt, ask.seed))
        return sampled_ids(
            truth.sampler,
            prompt=ask.prompt,
            count=count,
            k=truth.drafted_per_step,
            temperature=ask.temperature,
            seed=seed,
            tokens=len(VOCABULARY),
        )
    if ask.temperature > 0:
        sampled = _draws("sampled", truth.seed, ask.prompt, ask.seed)
        odd_share = ask.temperature / (1 + ask.temperature)
        ids = [_altered(token_id, sampled, share=odd_share) for token_id in ids]
    if truth.drafted_per_step and truth.wrong_token_share:
        wrong = _draws("wrong", truth.seed, ask.prompt, ask.seed)
        ids = [_altered(token_id, wrong, share=truth.wrong_token_share) for token_id in ids]
    return tuple(ids)


def _altered(token_id: int, draws: random.Random, *, share: float) -> int:
    """Another token with probability `share`; always two draws, so that a share does not shift the rest."""
    is_altered, distance = draws.random() < share, 1 + draws.randrange(len(VOCABULARY) - 1)
    return (token_id + distance) % len(VOCABULARY) if is_altered else token_id


def _faults(truth: Truth, ask: FakeRequest) -> frozenset[Fault]:
    shares = {
        Fault.HTTP_500: truth.http_500_share,
        Fault.CUT: truth.cut_share,
        Fault.GARBAGE: truth.garbage_share,
        Fault.STALL: truth.stall_share,
    }
    return frozenset(
        fault
        for fault, share in shares.items()
        if share and _draws(fault, truth.seed, ask.prompt, ask.seed).random() < share
    )


def _draws(purpose: str, *parts: object) -> random.Random:
    return random.Random(hashlib.sha256(repr((str(purpose), *parts)).encode()).digest())


def expected_tokens_per_step(*, acceptance: float, k: int) -> float:
    """L = 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a); k + 1 where a = 1."""
    return sum(acceptance**position for position in range(k + 1))


def true_ttft_s(truth: Truth, *, prompt_tokens: Tokens) -> Seconds:
    """Arithmetic mean over launches and requests, without waiting for a slot."""
    return truth.prefill_s(prompt_tokens) * _mean_factor(replace(truth, tail_share=0.0))


def true_tpot_s(
    truth: Truth,
    *,
    segment: str | None = None,
    temperature: float = 0.0,
    in_flight: int = 1,
    tokens: Tokens | None = None,
) -> Seconds:
    """Arithmetic mean time per output token after the first, faults aside.

    Without `tokens` that of long outputs, step time / L; with it the exact mean for outputs of that length,
    whose last steps draft less.
    """
    chance = truth.acceptance_for(segment=segment, temperature=temperature)
    return _typical_tpot_s(truth, acceptance=chance, in_flight=in_flight, tokens=tokens) * _mean_factor(truth)


def true_speedup(
    baseline: Truth,
    spec: Truth,
    *,
    segment: str | None = None,
    temperature: float = 0.0,
    in_flight: int = 1,
    tokens: Tokens | None = None,
) -> float:
    """Per-token speedup as a paired log-ratio estimates it, faults aside. Log-normal factors have median 1 and drop
    out; a slow tail counts as tail_factor ** tail_share. The spread of acceptance inside a request is averaged before
    the log is taken, so over short outputs the mean log ratio lies above this by half the variance of the log time."""

    def log_scale_tpot_s(truth: Truth) -> Seconds:
        chance = truth.acceptance_for(segment=segment, temperature=temperature)
        tail = math.pow(truth.tail_factor, truth.tail_share)
        return _typical_tpot_s(truth, acceptance=chance, in_flight=in_flight, tokens=tokens) * tail

    return log_scale_tpot_s(baseline) / log_scale_tpot_s(spec)


def _typical_tpot_s(truth: Truth, *, acceptance: float, in_flight: int, tokens: Tokens | None) -> Seconds:
    k = truth.drafted_per_step
    if tokens is None:
        step_s = truth.step_s(drafted=k, in_flight=in_flight)
        return step_s / expected_tokens_per_step(acceptance=acceptance, k=k)
    if tokens < 2:
        raise UsageError(f"time per output token needs at least 2 tokens, saw {tokens}")
    # decode_s[r] is the expected time to emit r more tokens; j accepted drafts leave r - j - 1.
    decode_s = [0.0]
    for left in range(1, tokens):
        drafted = min(k, left - 1)
        after_s = sum(
            acceptance**j * (1 - acceptance if j < drafted else 1.0) * decode_s[left - j - 1]
            for j in range(drafted + 1)
        )
        decode_s.append(truth.step_s(drafted=drafted, in_flight=in_flight) + after_s)
    return decode_s[-1] / (tokens - 1)


def _mean_factor(truth: Truth) -> float:
    log_normal_mean = math.exp((truth.launch_sd**2 + truth.noise_sd**2 + truth.prompt_sd**2) / 2)
    return log_normal_mean * (1 + truth.tail_share * (truth.tail_factor - 1))
