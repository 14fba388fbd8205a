"""The smallest reproduction of a fault that a bounded number of tries finds: fewer streams, fewer other requests, fewer
settings, shorter answers. Ask and tell: `ask` says what to try next, `told` takes what came of it.

A fault that strikes one request in fifty needs a hundred and fifty of them before its absence says anything; every
attempt has a nonce of its own, for what strikes one prompt and not another may follow from the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from math import ceil, log

from speclift.core.document import Json
from speclift.core.json_reading import as_object, as_objects, as_text
from speclift.lossless.gate import SoakFault
from speclift.lossless.soak.faults import SPECIAL_TOKENS, THINKING_SLACK
from speclift.lossless.soak.prompts import nonce_for
from speclift.lossless.soak.values import TURNS_MAX, Promise, SoakRequest

# The script that shows a fault again, beside this module.
TEMPLATE = "reproduce.py.txt"
TRIES_MAX = 24
# Requests of the fault's own kind over all tries, and in one.
ATTEMPTS_TOTAL = 3000
ATTEMPTS_MAX = 400
# A setup that still has the fault is taken for one that has not this often.
MISSED = 0.05
# The rate of a few dozen requests is a guess; half of it is a careful one.
CAREFUL = 0.5
TOKENS_MIN = 8
COMPANIONS_MAX = 16
# Slots of these are far beyond those of any soak, so that no nonce is drawn twice.
FRESH_SLOTS = 10**9
# Settings that an answer can do without; what a promise rests on stays, or there would be nothing to break.
DROPPABLE = (
    *("logprobs", "top_logprobs", "frequency_penalty", "presence_penalty", "seed", "top_p", "n", "stop"),
    *("logit_bias", "min_tokens", "chat_template_kwargs", "thinking_budget_tokens", "thinking_token_budget"),
    *("response_format", "grammar", "structured_outputs", "tools", "lora"),
)
TASK_START = "Copy the text between"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSetup:
    """Requests to send: the culprit again and again, so many at a time, among companions where there are some."""

    culprit: SoakRequest
    streams: int
    companions: tuple[SoakRequest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One try of a setup. It is over with the first fault, or after so many attempts without one."""

    setup: SoakSetup
    attempts_max: int
    # Which of all tries this is; every one has nonces of its own.
    number: int

    def requests(self) -> Iterator[tuple[SoakRequest, bool]]:
        """The requests in the order to send them, each with whether it is an attempt: a fault of a companion does not
        count."""
        others, fresh = self.setup.companions, FRESH_SLOTS + self.number * ATTEMPTS_MAX * COMPANIONS_MAX
        for attempt in range(self.attempts_max):
            yield renamed(self.setup.culprit, fresh), True
            fresh += 1
            # As many around each attempt as there are streams, so that it always runs among them.
            for place in range(min(len(others), self.setup.streams - 1)):
                yield renamed(others[(attempt + place) % len(others)], fresh), False
                fresh += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """The state of the tries. `smallest` shows the fault once `is_confirmed`."""

    fault: SoakFault
    smallest: SoakSetup
    # Faults and attempts of all setups that show it, the soak's among them: tries end with the first fault, so that a
    # single one would be taken for common.
    hits: float
    shots: float
    is_confirmed: bool = False
    # Streams at which the smallest setup was clean; the fault begins above.
    streams_clean: int = 0
    clean: frozenset[SoakSetup] = frozenset()
    tries: int = 0
    attempts: int = 0

    @property
    def rate(self) -> float:
        """How often an attempt shows it, rather too low."""
        return min(1.0, CAREFUL * self.hits / self.shots)

    def ask(self) -> Trial | None:
        """None where it cannot be made smaller, could not be seen again, or the tries are used up."""
        if self.tries >= TRIES_MAX or self.attempts >= ATTEMPTS_TOTAL:
            return None
        candidate = self._candidate()
        if candidate is None:
            return None
        wanted = min(attempts_needed(self.rate), ATTEMPTS_TOTAL - self.attempts)
        return Trial(setup=candidate, attempts_max=max(1, wanted), number=self.tries)

    def told(self, trial: Trial, *, attempts: int, faulty: int) -> Reproduction:
        """`attempts` are those of the culprit that were answered, `faulty` those of them with the fault."""
        now = replace(self, tries=self.tries + 1, attempts=self.attempts + attempts)
        if not faulty:
            is_narrower = replace(trial.setup, streams=self.smallest.streams) == self.smallest
            streams = trial.setup.streams if is_narrower else self.streams_clean
            return replace(
                now, clean=self.clean | {trial.setup}, streams_clean=max(self.streams_clean, streams)
            )
        return replace(
            now,
            smallest=trial.setup,
            is_confirmed=True,
            hits=self.hits + faulty,
            shots=self.shots + attempts,
        )

    def _candidate(self) -> SoakSetup | None:
        if not self.is_confirmed:
            return self.smallest if self.smallest not in self.clean else None
        return next((setup for setup in self._smaller() if setup not in self.clean), None)

    def _smaller(self) -> Iterator[SoakSetup]:
        """Next steps from the smallest, the ones that say most first."""
        now = self.smallest
        yield from (replace(now, companions=fewer) for fewer in _fewer(now.companions))
        if now.streams - self.streams_clean > 1:
            middle = 1 if not self.streams_clean else (self.streams_clean + now.streams) // 2
            yield replace(now, streams=middle)
        yield from (replace(now, culprit=culprit) for culprit in _plainer(now.culprit, self.fault))
        yield from (replace(now, culprit=culprit) for culprit in _shorter(now.culprit))


def reproduction_of(
    fault: SoakFault,
    culprit: SoakRequest,
    *,
    companions: Sequence[SoakRequest],
    streams: int,
    rate: float,
) -> Reproduction:
    """A reproduction that begins with a request that showed the fault; `companions` were under way with it, `rate` is
    what the soak saw."""
    setup = SoakSetup(
        culprit=culprit,
        streams=max(1, streams),
        companions=tuple(companions[:COMPANIONS_MAX]) if streams > 1 else (),
    )
    return Reproduction(
        fault=fault, smallest=setup, hits=1.0, shots=1 / min(1.0, max(rate, 1 / ATTEMPTS_MAX))
    )


def attempts_needed(rate: float) -> int:
    """Attempts after which a fault of this rate is missed at most once in twenty times."""
    if rate >= 1:
        return 1
    return min(ATTEMPTS_MAX, ceil(log(MISSED) / log(1 - rate)))


def renamed(request: SoakRequest, slot: int) -> SoakRequest:
    """The same request with another nonce wherever the first one stands; the user's own prompts stay as they are."""
    index = slot * TURNS_MAX + request.turn
    if not request.nonce:
        return replace(request, index=index)
    nonce = nonce_for(0, slot)

    def other(text: str) -> str:
        return text.replace(request.nonce, nonce)

    promise = request.promise
    return replace(
        request,
        index=index,
        nonce=nonce,
        body=other(request.body),
        copies=other(request.copies),
        promise=replace(
            promise,
            stops=tuple(map(other, promise.stops)),
            schema=None if promise.schema is None else other(promise.schema),
            pattern=None if promise.pattern is None else other(promise.pattern),
            tools=tuple((name, other(schema)) for name, schema in promise.tools),
        ),
    )


def _fewer(companions: tuple[SoakRequest, ...]) -> Iterator[tuple[SoakRequest, ...]]:
    """None at all, then those of one kind, then halves."""
    if not companions:
        return
    yield ()
    kinds = list(dict.fromkeys(companion.kind for companion in companions))
    if len(kinds) > 1:
        for kind in kinds:
            yield tuple(companion for companion in companions if companion.kind == kind)
    if len(companions) > 1:
        half = len(companions) // 2
        yield companions[:half]
        yield companions[half:]


def _plainer(request: SoakRequest, fault: SoakFault) -> Iterator[SoakRequest]:
    """Greedy, then without one setting after the other."""
    body = dict(as_object(json.loads(request.body)))
    if request.temperature > 0:
        without_seed = {name: value for name, value in body.items() if name != "seed"}
        yield replace(request, temperature=0.0, body=_dumped({**without_seed, "temperature": 0.0}))
    for name in DROPPABLE:
        promise = _promise_without(request.promise, name)
        if name in body and not _rests_on(fault, name):
            dropped = {name, "tool_choice"} if name == "tools" else {name}
            left = {key: value for key, value in body.items() if key not in dropped}
            yield replace(request, body=_dumped(left), promise=promise)


def _rests_on(fault: SoakFault, setting: str) -> bool:
    """Without these there is nothing that such a fault could break."""
    wanted = {
        SoakFault.AFTER_STOP: ("stop",),
        SoakFault.INVALID_JSON: ("response_format", "grammar", "structured_outputs"),
        SoakFault.TOOL_ARGUMENTS: ("tools",),
        SoakFault.LOOSE_ARGUMENTS: ("tools",),
        SoakFault.NO_CALL: ("tools",),
        SoakFault.BANNED_TOKEN: ("logit_bias",),
    }
    return setting in wanted.get(fault, ())


def _promise_without(promise: Promise, setting: str) -> Promise:
    match setting:
        case "n":
            return replace(promise, choices=1)
        case "stop":
            return replace(promise, stops=())
        case "logit_bias":
            return replace(promise, banned=())
        case "min_tokens":
            return replace(promise, tokens_min=None)
        case "thinking_budget_tokens" | "thinking_token_budget":
            return replace(promise, thinking_max=None)
        case "response_format":
            return replace(promise, schema=None)
        case "grammar" | "structured_outputs":
            return replace(promise, pattern=None)
        case "tools":
            return replace(promise, tools=())
        case _:
            return promise


def _shorter(request: SoakRequest) -> Iterator[SoakRequest]:
    """Half the answer, half of what stands before the task, without the turns before."""
    body = dict(as_object(json.loads(request.body)))
    most = request.promise.tokens_max
    is_cut_harmless = not (request.promise.schema or request.promise.tools or request.promise.pattern)
    if most is not None and most // 2 >= TOKENS_MIN and is_cut_harmless:
        promise = replace(request.promise, tokens_max=most // 2)
        yield replace(request, body=_dumped({**body, "max_tokens": most // 2}), promise=promise)
    messages = as_objects(body.get("messages"))
    if not messages or not request.nonce:
        return
    if len(messages) > 1 and messages[-1].get("role") == "user":
        yield replace(request, body=_dumped({**body, "messages": messages[-1:]}))
    before, start, task = (as_text(messages[-1].get("content")) or "").partition(TASK_START)
    if start and len(before.split()) > 1:
        words = before.split()
        half = " ".join(words[: len(words) // 2])
        shorter = {**messages[-1], "content": f"{half}\n{start}{task}"}
        yield replace(request, body=_dumped({**body, "messages": [*messages[:-1], shorter]}))


def _dumped(body: object) -> str:
    return json.dumps(body, ensure_ascii=False)


def reproduction_script(
    fault: SoakFault,
    setup: SoakSetup,
    *,
    rate: float,
    model: str,
    about: str,
    url: str = "http://127.0.0.1:8000",
) -> str:
    """`about` is what the server is, in a line: engine, version, method; `rate` how often an attempt shows it."""
    data: dict[str, Json] = {
        "fault": fault.value,
        "about": " ".join(about.split()),
        "url": url,
        "model": model,
        "streams": setup.streams,
        "attempts": attempts_needed(rate),
        "culprit": _as_data(setup.culprit),
        "companions": [_as_data(companion) for companion in setup.companions],
        "special_tokens": [token for family in SPECIAL_TOKENS.values() for token in family],
        "thinking_slack": THINKING_SLACK,
    }
    # Only ASCII, and a literal of Python: nothing that stands in a prompt can end it.
    lines = json.dumps(data, indent=1, ensure_ascii=True)
    template = files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    return template.replace("@FAULT@", fault.value).replace("@DATA@", repr(lines))


def _as_data(request: SoakRequest) -> dict[str, Json]:
    promise = request.promise
    return {
        "nonce": request.nonce,
        "path": request.path,
        "model": request.model,
        "body": json.loads(request.body),
        "copies": request.copies,
        "tokens_max": promise.tokens_max,
        "tokens_min": promise.tokens_min,
        "choices": promise.choices,
        "stops": promise.stops,
        "schema": None if promise.schema is None else json.loads(promise.schema),
        "pattern": promise.pattern,
        "tools": {name: json.loads(schema) for name, schema in promise.tools},
        "banned": promise.banned,
        "thinking_max": promise.thinking_max,
    }
