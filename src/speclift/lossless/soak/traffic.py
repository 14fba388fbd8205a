"""The requests of a soak: traffic that is known to break speculation, request by request from a seed.

A request follows from the seed and its slot alone, so a soak goes on anywhere; a later turn follows from the turn
before and what was answered. A kind that the baseline refuses is left out; the slots of other kinds stay as they are.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

from speclift.core.document import Json
from speclift.core.json_reading import as_object
from speclift.core.traffic import Request
from speclift.core.units import Seconds, Tokens
from speclift.lossless.soak.prompts import (
    COLOURS,
    NOTE_TOOL,
    SEARCH_TOOL,
    SoakDialect,
    answer_schema,
    asks_to_copy,
    draws_for,
    nonce_for,
    passage,
    sentence,
    session_tools,
    wide_passage,
    with_nonces,
)
from speclift.lossless.soak.rates import exposed_needed
from speclift.lossless.soak.schemas import is_json, promised_format, whole_calls
from speclift.lossless.soak.values import TURNS_MAX, Promise, SoakAnswer, SoakRequest, slot_of

CHAT_PATH, COMPLETION_PATH = "/v1/chat/completions", "/v1/completions"
TEMPERATURES = (0.0, 0.0, 0.4, 0.7, 1.0)
# Of the answers of a soak whose scale is below 1, these may be of full length nevertheless.
FULL_SHARE = 1 / 8
# No answer is limited to less for lack of time: so many tokens copy a sentence with its nonces.
SCALED_TOKENS_MIN = 32
TURNS_MIN = 2
# A baseline that refuses this many requests of a kind, and answers none of it, does not offer it.
REFUSALS = 2
# Beyond any slot that a soak reaches: what is asked from here on repeats nothing of it.
SPARE_SLOTS = 10**6
# Prefixes that many requests share, so that a cache is hit, and few enough to be evicted by what comes between.
PREFIXES = 5


class SoakKind(StrEnum):
    COPY = "copy"
    AGENT = "agent"
    SCHEMA = "schema"
    GRAMMAR = "grammar"
    THINKING = "thinking"
    STOP = "stop"
    BIAS = "bias"
    MINIMUM = "min-tokens"
    PENALTIES = "penalties"
    SEEDED = "seeded"
    CHOICES = "choices"
    LOGPROBS = "logprobs"
    UNICODE = "unicode"
    LONG = "long"
    PREFIX = "prefix"
    SHORT = "short"
    OWN = "own"
    ADAPTER = "adapter"
    LEAVING = "leaving"
    LATE = "late"


# How often each comes, in parts; copying is where drafts are long, tools and schemas where engines broke most.
WEIGHTS: Mapping[SoakKind, float] = {
    SoakKind.COPY: 4,
    SoakKind.AGENT: 4,
    SoakKind.SCHEMA: 4,
    SoakKind.STOP: 4,
    SoakKind.GRAMMAR: 1.5,
    SoakKind.THINKING: 1.5,
    SoakKind.BIAS: 1.5,
    SoakKind.MINIMUM: 1,
    SoakKind.SHORT: 2.5,
    SoakKind.OWN: 3,
    SoakKind.UNICODE: 2,
    SoakKind.LONG: 1.5,
    SoakKind.PREFIX: 2,
    SoakKind.ADAPTER: 1.5,
} | dict.fromkeys(
    (
        SoakKind.PENALTIES,
        SoakKind.SEEDED,
        SoakKind.CHOICES,
        SoakKind.LOGPROBS,
        SoakKind.LEAVING,
        SoakKind.LATE,
    ),
    1,
)

# What takes longest to read: its prompts stay as long as they are, and come more rarely where time is short.
LONG_KINDS = frozenset({SoakKind.LONG, SoakKind.PREFIX, SoakKind.LATE, SoakKind.AGENT})


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakTraffic:
    seed: int
    dialect: SoakDialect
    kinds: frozenset[SoakKind]
    prompts: tuple[Request, ...] = ()
    adapters: tuple[str, ...] = ()
    # Tokens to forbid, with their text; the server's own ids.
    banned: tuple[tuple[int, str], ...] = ()
    tokens_max: Tokens = 96
    context_tokens: Tokens = 2048
    honours_seeds: bool = False
    # As often as each stands here; nothing but 0 is greedy throughout.
    temperatures: tuple[float, ...] = TEMPERATURES
    # Of full length, for most answers: below 1 where the engine has no time for more.
    scale: float = 1.0

    def opening(self, slot: int) -> SoakRequest:
        """The request of a slot, or the first turn of its session."""
        kind = self.kind_of(slot)
        draws = draws_for(self.seed, kind, slot)
        drawn = _DRAWN[kind](_Slot(self._sized(slot), draws, nonce_for(self.seed, slot)))
        return drawn.as_request(slot=slot, kind=kind, turn=0)

    def kind_of(self, slot: int) -> SoakKind:
        """The first of the slot's own order of kinds that is offered, so that dropping one moves no other."""
        draws = draws_for(self.seed, "kind", slot)
        # Exponential races: each kind comes first as often as its weight says.
        order = sorted(SoakKind, key=lambda kind: draws.expovariate(self._weight(kind)))
        return next(kind for kind in order if kind in self.kinds)

    def turns(self, slot: int) -> int:
        """The number of turns of the slot's session, were it one."""
        most = TURNS_MAX if self._is_full(slot) else TURNS_MIN
        return draws_for(self.seed, "turns", slot).randint(TURNS_MIN, most)

    def following(self, request: SoakRequest, answer: SoakAnswer) -> SoakRequest | None:
        """The next turn of a session; None where it is over, or the answer is none to go on from."""
        if request.session is None or not answer.is_whole or not answer.choices:
            return None
        slot, turn = slot_of(request.index), request.turn + 1
        if turn >= self.turns(slot):
            return None
        drawn = _next_turn(self, request, answer, turn)
        return None if drawn is None else drawn.as_request(slot=slot, kind=SoakKind(request.kind), turn=turn)

    def offering(self, *, adapters: Sequence[str], banned: Sequence[tuple[int, str]]) -> SoakTraffic:
        """The same with what a running server says that it has beside its model."""
        more = {SoakKind.ADAPTER: adapters, SoakKind.BIAS: banned}
        return replace(
            self,
            adapters=tuple(adapters) or self.adapters,
            banned=tuple(banned) or self.banned,
            kinds=self.kinds | {kind for kind, has in more.items() if has},
        )

    def without(self, kinds: Iterable[SoakKind]) -> SoakTraffic:
        return replace(self, kinds=self.kinds - frozenset(kinds))

    def _weight(self, kind: SoakKind) -> float:
        return WEIGHTS[kind] * (math.sqrt(self.scale) if kind in LONG_KINDS else 1.0)

    def _is_full(self, slot: int) -> bool:
        return self.scale >= 1 or draws_for(self.seed, "full", slot).random() < FULL_SHARE

    def _sized(self, slot: int) -> SoakTraffic:
        """The same with the longest answer of this slot."""
        if self._is_full(slot):
            return self
        least = min(self.tokens_max, SCALED_TOKENS_MIN)
        return replace(self, tokens_max=max(least, round(self.scale * self.tokens_max)))


def soak_traffic(
    *,
    seed: int,
    dialect: SoakDialect,
    prompts: Sequence[Request] = (),
    adapters: Sequence[str] = (),
    banned: Sequence[tuple[int, str]] = (),
    tokens_max: Tokens = 96,
    context_tokens: Tokens = 2048,
    honours_seeds: bool = False,
) -> SoakTraffic:
    """All kinds that could be asked of such a server; which of them it refuses, its baseline shows."""
    left_out = {
        SoakKind.OWN: not prompts,
        SoakKind.ADAPTER: not adapters,
        SoakKind.BIAS: not banned,
        SoakKind.GRAMMAR: dialect is SoakDialect.OPENAI,
        SoakKind.THINKING: dialect is SoakDialect.OPENAI,
        # llama.cpp has nothing of the kind and does not say so (b11549).
        SoakKind.MINIMUM: dialect is not SoakDialect.VLLM,
    }
    return SoakTraffic(
        seed=seed,
        dialect=dialect,
        kinds=frozenset(kind for kind in SoakKind if not left_out.get(kind, False)),
        prompts=tuple(prompts),
        adapters=tuple(adapters),
        banned=tuple(banned),
        tokens_max=tokens_max,
        context_tokens=context_tokens,
        honours_seeds=honours_seeds,
    )


def refused_kinds(asked: Iterable[tuple[str, SoakAnswer]]) -> dict[SoakKind, str]:
    """Kinds that a server does not offer, with what it said: it refused them (4xx) and answered none of them. `asked`
    are answers, each with the kind of its request."""
    refused: dict[str, list[str]] = defaultdict(list)
    answered: set[str] = set()
    for kind, answer in asked:
        if answer.is_refusal:
            refused[kind].append(answer.error)
        elif answer.is_whole or answer.left:
            answered.add(kind)
    return {
        SoakKind(kind): words[0]
        for kind, words in refused.items()
        if kind not in answered and len(words) >= REFUSALS
    }


# Kinds


class _Slot(NamedTuple):
    """The source that a request is drawn from."""

    traffic: SoakTraffic
    draws: random.Random
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """A request before it has its place in the sequence."""

    nonce: str
    messages: tuple[Mapping[str, Json], ...] = ()
    prompt: str | None = None
    tokens_max: Tokens
    temperature: float
    settings: Mapping[str, Json]
    promise: Promise
    prompt_id: str = ""
    copies: str = ""
    model: str | None = None
    is_session: bool = False
    leaves_after_chunks: int | None = None
    leaves_after_s: Seconds | None = None
    repeats: bool = True

    def as_request(self, *, slot: int, kind: SoakKind, turn: int) -> SoakRequest:
        prompt: dict[str, Json] = (
            {"prompt": self.prompt} if self.prompt is not None else {"messages": self.messages}
        )
        body = {**prompt, "max_tokens": self.tokens_max, "temperature": self.temperature, **self.settings}
        stays = self.leaves_after_chunks is None and self.leaves_after_s is None
        return SoakRequest(
            index=slot * TURNS_MAX + turn,
            kind=kind.value,
            nonce=self.nonce,
            path=COMPLETION_PATH if self.prompt is not None else CHAT_PATH,
            body=json.dumps(body, ensure_ascii=False),
            promise=replace(self.promise, tokens_max=self.tokens_max),
            temperature=self.temperature,
            prompt_id=self.prompt_id,
            copies=self.copies,
            model=self.model,
            is_repeatable=self.repeats and stays and turn == 0,
            session=f"s{slot}" if self.is_session else None,
            turn=turn,
            leaves_after_chunks=self.leaves_after_chunks,
            leaves_after_s=self.leaves_after_s,
        )


def _asked(
    slot: _Slot,
    text: str,
    *,
    copies: str = "",
    tokens: Tokens | None = None,
    temperature: float | None = None,
    settings: Mapping[str, Json] | None = None,
    promise: Promise | None = None,
) -> _Drawn:
    heat = _heat(slot, temperature)
    seeded: dict[str, Json] = {"seed": slot.draws.randrange(2**31)} if heat else {}
    return _Drawn(
        nonce=slot.nonce,
        messages=({"role": "user", "content": text},),
        tokens_max=tokens
        or slot.draws.randint(max(1, slot.traffic.tokens_max // 2), slot.traffic.tokens_max),
        temperature=heat,
        settings={**seeded, **(settings or {})},
        promise=promise or Promise(),
        copies=copies,
        repeats=heat == 0 or slot.traffic.honours_seeds,
    )


def _heat(slot: _Slot, wanted: float | None) -> float:
    """The temperature that the request wants, unless everything is to be greedy."""
    if wanted is None:
        return slot.draws.choice(slot.traffic.temperatures)
    return wanted if any(slot.traffic.temperatures) else 0.0


def _text_to_copy(slot: _Slot) -> str:
    """Most of it fits the limit: a word takes up to five thirds of a token, a nonce nine."""
    most = slot.traffic.tokens_max
    most_words = 3 * (most - 18) // 5 if most > 64 else 8
    words = slot.draws.randint(min(12, most // 6, most_words), most_words)
    return with_nonces(passage(slot.draws, words=words), slot.nonce)


def _copy(slot: _Slot) -> _Drawn:
    text = _text_to_copy(slot)
    return _asked(slot, asks_to_copy(text), copies=text, tokens=slot.traffic.tokens_max)


def _unicode(slot: _Slot) -> _Drawn:
    text = f"{slot.nonce} {wide_passage(slot.draws, words=slot.draws.randint(5, 12))}"
    return _asked(slot, asks_to_copy(text), copies=text, tokens=slot.traffic.tokens_max)


def _short(slot: _Slot) -> _Drawn:
    """A limit inside the first drafts."""
    text = _text_to_copy(slot)
    return _asked(slot, asks_to_copy(text), copies=text, tokens=slot.draws.choice((1, 2, 3, 5, 7, 11)))


def _stop(slot: _Slot) -> _Drawn:
    """Stops in the middle of two words, where drafts run on; the text holds that once, and not at its beginning."""
    text = _text_to_copy(slot)
    places = [
        at
        for at in range(len(text) // 3, len(text) - 8)
        if text[at] == " " and text[at + 1 : at + 4].isalpha()
    ]
    slot.draws.shuffle(places)
    stop = next(
        (text[at - 3 : at + 4] for at in places if text.count(text[at - 3 : at + 4]) == 1), slot.nonce[2:9]
    )
    return _asked(
        slot,
        asks_to_copy(text),
        copies=text,
        tokens=slot.traffic.tokens_max,
        settings={"stop": [stop]},
        promise=Promise(stops=(stop,)),
    )


def _long(slot: _Slot) -> _Drawn:
    words = slot.draws.randint(slot.traffic.context_tokens // 8, slot.traffic.context_tokens // 4)
    line = with_nonces(sentence(slot.draws), slot.nonce)
    text = f"{passage(slot.draws, words=words)}\n{asks_to_copy(line)}"
    return _asked(slot, text, copies=line)


def _prefix(slot: _Slot) -> _Drawn:
    """Text that many requests begin with, then a line of its own."""
    shared = draws_for(slot.traffic.seed, "prefix", slot.draws.randrange(PREFIXES))
    before = passage(shared, words=slot.traffic.context_tokens // 10)
    line = with_nonces(sentence(slot.draws), slot.nonce)
    return _asked(slot, f"{before}\n{asks_to_copy(line)}", copies=line)


def _schema(slot: _Slot) -> _Drawn:
    schema = answer_schema(slot.nonce)
    wanted: dict[str, Json] = {
        "type": "json_schema",
        "json_schema": {"name": "parcel", "strict": True, "schema": schema},
    }
    return _asked(
        slot,
        f"{sentence(slot.draws)} Describe parcel {slot.nonce} as JSON with the keys id, colour, done and sizes.",
        tokens=max(slot.traffic.tokens_max, 96),
        settings={"response_format": wanted},
        promise=Promise(schema=json.dumps(schema)),
    )


def _grammar(slot: _Slot) -> _Drawn:
    colours = "|".join(COLOURS)
    pattern = rf"parcel {slot.nonce}: ({colours}), ({colours}), [0-9][0-9]"
    choice = " | ".join(f'"{colour}"' for colour in COLOURS)
    rules = f'root ::= "parcel {slot.nonce}: " colour ", " colour ", " [0-9] [0-9]\ncolour ::= {choice}'
    settings: dict[str, Json] = (
        {"grammar": rules}
        if slot.traffic.dialect is SoakDialect.LLAMACPP
        else {"structured_outputs": {"regex": pattern}}
    )
    return _asked(
        slot,
        f"Which two colours has parcel {slot.nonce}, and what is its number?",
        tokens=max(slot.traffic.tokens_max, 64),
        settings=settings,
        promise=Promise(pattern=pattern),
    )


def _thinking(slot: _Slot) -> _Drawn:
    budget = slot.draws.choice((8, 16, 32))
    name = (
        "thinking_budget_tokens" if slot.traffic.dialect is SoakDialect.LLAMACPP else "thinking_token_budget"
    )
    return _asked(
        slot,
        f"Think first: which is heavier, parcel {slot.nonce} of {slot.draws.randint(2, 99)} kg or one of 50 kg?",
        tokens=max(slot.traffic.tokens_max, 2 * budget),
        settings={name: budget, "chat_template_kwargs": {"enable_thinking": True}},
        promise=Promise(thinking_max=budget),
    )


def _bias(slot: _Slot) -> _Drawn:
    count = slot.draws.randint(1, len(slot.traffic.banned))
    banned = slot.draws.sample(slot.traffic.banned, count)
    words = ", ".join(text.strip() for _, text in banned)
    return _asked(
        slot,
        f"Parcel {slot.nonce}. Write this ten times: {words} and {sentence(slot.draws)}",
        settings={"logit_bias": {str(id): -100 for id, _ in banned}},
        promise=Promise(banned=tuple(text for _, text in banned)),
    )


def _minimum(slot: _Slot) -> _Drawn:
    least = slot.draws.choice((12, 20, 32))
    return _asked(
        slot,
        f"Parcel {slot.nonce}: answer in one word, yes or no. {sentence(slot.draws)} Is that a place?",
        tokens=max(slot.traffic.tokens_max, 2 * least),
        settings={"min_tokens": least},
        promise=Promise(tokens_min=least),
    )


def _penalties(slot: _Slot) -> _Drawn:
    return _asked(
        slot,
        f"Parcel {slot.nonce}. Go on with this story: {sentence(slot.draws)}",
        settings={
            "frequency_penalty": slot.draws.choice((0.3, 0.8, 1.5)),
            "presence_penalty": slot.draws.choice((0.0, 0.5)),
        },
    )


def _seeded(slot: _Slot) -> _Drawn:
    return _asked(
        slot,
        f"Parcel {slot.nonce}. Go on with this story: {sentence(slot.draws)}",
        temperature=slot.draws.choice((0.0, 0.7, 1.0)),
        settings={"seed": slot.draws.randrange(2**31)},
    )


def _choices(slot: _Slot) -> _Drawn:
    count = slot.draws.choice((2, 3))
    text = with_nonces(sentence(slot.draws), slot.nonce)
    return replace(
        _asked(
            slot,
            asks_to_copy(text),
            copies=text,
            temperature=slot.draws.choice((0.4, 0.8)),
            settings={"n": count},
            promise=Promise(choices=count),
        ),
        repeats=False,
    )


def _logprobs(slot: _Slot) -> _Drawn:
    text = _text_to_copy(slot)
    return _asked(
        slot,
        asks_to_copy(text),
        copies=text,
        settings={"logprobs": True, "top_logprobs": slot.draws.choice((1, 3, 5))},
    )


def _adapter(slot: _Slot) -> _Drawn:
    """vLLM serves an adapter as a model of its own; llama.cpp applies those that a request lists by number (b11549)."""
    copy, name = _copy(slot), slot.draws.choice(slot.traffic.adapters)
    if slot.traffic.dialect is SoakDialect.LLAMACPP and name.isdecimal():
        return replace(copy, settings={**copy.settings, "lora": [{"id": int(name), "scale": 1.0}]})
    return replace(copy, model=name)


def _leaving(slot: _Slot) -> _Drawn:
    return replace(_copy(slot), leaves_after_chunks=slot.draws.choice((1, 2, 4, 8, 16)))


def _late(slot: _Slot) -> _Drawn:
    return replace(_long(slot), leaves_after_s=slot.draws.choice((0.02, 0.1, 0.3, 1.0)))


def _own(slot: _Slot) -> _Drawn:
    """The user's prompt to the letter: no nonce, and what it asks for itself."""
    request = slot.draws.choice(slot.traffic.prompts)
    heat = _heat(slot, request.temperature)
    seeded: dict[str, Json] = {"seed": slot.draws.randrange(2**31)} if heat else {}
    nucleus: dict[str, Json] = {} if request.top_p is None else {"top_p": request.top_p}
    return _Drawn(
        nonce="",
        prompt_id=request.id,
        messages=tuple({"role": message.role, "content": message.content} for message in request.messages),
        prompt=request.prompt,
        tokens_max=min(request.max_tokens, slot.traffic.tokens_max),
        temperature=heat,
        settings={**seeded, **nucleus, **request.answer_settings},
        promise=_own_promise(request),
        repeats=heat == 0 or slot.traffic.honours_seeds,
    )


def _own_promise(request: Request) -> Promise:
    """The promise that the user's request itself asks of the server."""
    if request.answer_format is None:
        return Promise()
    promised = promised_format(request.answer_format)
    # A model that may call a tool or talk has promised neither.
    tools = promised.tools if promised.must_call else ()
    # Where it has to stop is the end of JSON as well.
    schema = None if promised.tools or promised.stops else promised.schema
    return Promise(schema=schema, tools=tools, is_strict=promised.is_strict, stops=promised.stops)


# Sessions


def _agent(slot: _Slot) -> _Drawn:
    text = f"{sentence(slot.draws)} Find order {slot.nonce} with {SEARCH_TOOL}."
    return _tool_turn(slot, ({"role": "user", "content": text},))


def _tool_turn(slot: _Slot, messages: tuple[Mapping[str, Json], ...]) -> _Drawn:
    tools = session_tools(slot.nonce)
    listed: list[Json] = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"{name} of an order",
                "parameters": schema,
                "strict": True,
            },
        }
        for name, schema in tools
    ]
    drawn = _asked(
        slot,
        "",
        tokens=max(slot.traffic.tokens_max, 96),
        settings={"tools": listed, "tool_choice": "required"},
        promise=Promise(tools=tuple((name, json.dumps(schema)) for name, schema in tools)),
    )
    return replace(drawn, messages=messages, is_session=True)


def _next_turn(traffic: SoakTraffic, request: SoakRequest, answer: SoakAnswer, turn: int) -> _Drawn | None:
    draws = draws_for(traffic.seed, "turn", request.index, turn)
    choice = answer.choices[0]
    whole = whole_calls(answer, choice, request.promise.tokens_max)
    # Broken arguments are a fault of this turn; sent back, they would be one of the next.
    if not whole or any(not is_json(call.arguments) for call in whole):
        return None
    messages_before = tuple(json.loads(request.body)["messages"])
    calls = [
        {
            "id": f"call_{turn}_{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for place, call in enumerate(whole)
    ]
    results = [
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "content": json.dumps(
                {"order": request.nonce, "state": draws.choice(("packed", "sent", "lost"))}
            ),
        }
        for call in calls
    ]
    question = (
        f"Now find {request.nonce} again with {SEARCH_TOOL}, in another colour."
        if turn % 2 == 0
        else f"Add a note to order {request.nonce} with {NOTE_TOOL}."
    )
    messages = (
        *messages_before,
        {"role": "assistant", "content": choice.text or None, "tool_calls": calls},
        *results,
        {"role": "user", "content": question},
    )
    return _tool_turn(_Slot(traffic, draws, request.nonce), messages)


_DRAWN: Mapping[SoakKind, Callable[[_Slot], _Drawn]] = {
    SoakKind.COPY: _copy,
    SoakKind.AGENT: _agent,
    SoakKind.SCHEMA: _schema,
    SoakKind.GRAMMAR: _grammar,
    SoakKind.THINKING: _thinking,
    SoakKind.STOP: _stop,
    SoakKind.BIAS: _bias,
    SoakKind.MINIMUM: _minimum,
    SoakKind.PENALTIES: _penalties,
    SoakKind.SEEDED: _seeded,
    SoakKind.CHOICES: _choices,
    SoakKind.LOGPROBS: _logprobs,
    SoakKind.UNICODE: _unicode,
    SoakKind.LONG: _long,
    SoakKind.PREFIX: _prefix,
    SoakKind.SHORT: _short,
    SoakKind.OWN: _own,
    SoakKind.ADAPTER: _adapter,
    SoakKind.LEAVING: _leaving,
    SoakKind.LATE: _late,
}


# Of full length. Below a quarter, answers would end within the first drafts.
SCALES = (1.0, 0.7, 0.5, 0.35, 0.25)
# A token has about four characters, and is read in a quarter of the time in which one is written.
READING = 1 / 16
# Of a body, what a model reads; a schema of the answer is none of it.
PROMPT_KEYS = ("messages", "prompt", "tools")
# What JSON, calls and grammars of the soak's own take; they end by themselves.
SETTLED_TOKENS: Tokens = 48
# More than are needed: some callers leave, some answers are asked for twice.
WANTED_TIMES = 1.3
# Openings whose work is taken for that of all.
LOOKED_AT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The work that an engine got done with as many requests at once as the soak sends."""

    work: float
    seconds: Seconds

    @property
    def work_per_s(self) -> float:
        return self.work / self.seconds if self.seconds > 0 else float("inf")


def pace_of(asked: Iterable[tuple[SoakRequest, SoakAnswer]], seconds: Seconds) -> Pace:
    """The pace of requests that were sent together; refusals are no work."""
    work = (_work(request, answer.tokens or 0) for request, answer in asked if answer.is_whole)
    return Pace(work=sum(work), seconds=seconds)


def slot_s(traffic: SoakTraffic, pace: Pace) -> Seconds:
    """The seconds that one request takes on the average, a session with all its turns, while as many others run as
    may."""
    return expected_work(traffic) / pace.work_per_s if pace.work else 0.0


def scale_for(traffic: SoakTraffic, pace: Pace, *, seconds: Seconds) -> float:
    """The largest at which enough requests for a result are answered in so many seconds; the smallest where at none."""
    if not pace.work:
        return 1.0  # nothing was answered, so that nothing is known
    wanted = WANTED_TIMES * exposed_needed()
    fits = (scale for scale in SCALES if wanted * slot_s(replace(traffic, scale=scale), pace) <= seconds)
    return next(fits, SCALES[-1])


@lru_cache(maxsize=16)  # asked for at every scale, and again with a second pace
def expected_work(traffic: SoakTraffic) -> float:
    """The work of one slot, with all the turns of a session."""
    slots = range(LOOKED_AT)
    openings = ((traffic.opening(slot), traffic.turns(slot)) for slot in slots)
    return fmean(
        _work(request, _expected_tokens(request)) * (turns if request.session else 1)
        for request, turns in openings
    )


def _expected_tokens(request: SoakRequest) -> float:
    promise, most = request.promise, request.promise.tokens_max or 0
    if promise.schema or promise.pattern or promise.tools:
        most = min(most, SETTLED_TOKENS)
    if request.leaves_after_chunks is not None:
        most = min(most, request.leaves_after_chunks)
    return float(most * promise.choices)


def _work(request: SoakRequest, tokens: float) -> float:
    body = as_object(json.loads(request.body))
    read = [body[name] for name in PROMPT_KEYS if name in body]
    return tokens + READING * len(json.dumps(read, ensure_ascii=False))
