"""The smallest reproduction of a fault that a bounded number of tries finds: fewer streams, fewer other requests, fewer
settings, shorter answers. Ask and tell: `ask` says what to try next, `told` takes what came of it.

A fault that strikes one request in fifty needs a hundred and fifty of them before its absence says anything; every
attempt has a nonce of its own, for what strikes one prompt and not another may follow from the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, log

from speclift.core.document import Json
from speclift.core.json_reading import as_object, as_objects, as_text
from speclift.lossless.gate import SoakFault
from speclift.lossless.soak.faults import SPECIAL_TOKENS, THINKING_SLACK
from speclift.lossless.soak.prompts import nonce_for
from speclift.lossless.soak.values import TURNS_MAX, Promise, SoakRequest

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
    return _TEMPLATE.replace("@FAULT@", fault.value).replace("@DATA@", repr(lines))


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


_TEMPLATE = r'''#!/usr/bin/env python3
"""Reproduces: @FAULT@. Python 3.9 or newer, nothing to install.

    python3 reproduce.py http://127.0.0.1:8000 [--streams N] [--attempts N] [--model NAME]

Exits with 1 where an answer shows the fault, with 0 where none does.
"""
import argparse, json, os, random, re, threading, urllib.error, urllib.request

SETUP = json.loads(@DATA@)
LETTERS = "bcdfghjkmnpqrstvwxz"
NONCE = re.compile(r"(?<![A-Za-z0-9])[%s]{4}\d{4}[%s]{4}(?![A-Za-z0-9])" % (LETTERS, LETTERS))


def fresh_nonce():
    draw = lambda letters: "".join(random.choice(letters) for _ in range(4))
    return draw(LETTERS) + draw("0123456789") + draw(LETTERS)


def renamed(request):
    """The same with a nonce of its own; a prompt without one stays as it is."""
    nonce = fresh_nonce()
    if not request["nonce"]:
        return request
    return json.loads(json.dumps(request).replace(request["nonce"], nonce))


def ask(options, request):
    """The choices as [text, thoughts, {call: [name, arguments]}, finish_reason] by index, and the tokens counted."""
    body = dict(request["body"], model=request["model"] or options.model)
    body.update(stream=True, stream_options={"include_usage": True})
    head = {"Content-Type": "application/json"}
    if os.environ.get("API_KEY"):
        head["Authorization"] = "Bearer " + os.environ["API_KEY"]
    post = urllib.request.Request(options.url.rstrip("/") + request["path"], json.dumps(body).encode(), head)
    choices, tokens = {}, None
    with urllib.request.urlopen(post, timeout=options.timeout) as answer:
        for line in answer:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            if "error" in event:
                raise OSError(str(event["error"]))
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            for part in event.get("choices", ()):
                take(choices.setdefault(part.get("index", 0), ["", "", {}, None]), part)
    return choices, tokens


def take(choice, part):
    said = part.get("delta") or {}
    choice[0] += said.get("content") or part.get("text") or ""
    choice[1] += said.get("reasoning_content") or said.get("reasoning") or ""
    for call in said.get("tool_calls") or ():
        known = choice[2].setdefault(call.get("index", 0), ["", ""])
        known[0] += (call.get("function") or {}).get("name") or ""
        known[1] += (call.get("function") or {}).get("arguments") or ""
    choice[3] = part.get("finish_reason") or choice[3]


def misfit(value, schema, whole=True):
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
    kind = kinds.get(schema.get("type"))
    if kind and (not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)):
        return True
    if "enum" in schema and value not in schema["enum"]:
        return True
    if isinstance(value, list):
        wrong = whole and len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", len(value))
        return wrong or any(misfit(each, schema.get("items", {}), whole) for each in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        wrong = whole and set(schema.get("required", ())) - set(value)
        wrong = wrong or (schema.get("additionalProperties") is False and set(value) - set(known))
        return bool(wrong) or any(misfit(each, known.get(name, {}), whole) for name, each in value.items())
    return False


def closed(text):
    """A beginning of JSON up to its last whole value, with its brackets closed."""
    brackets, end, string, escaped = [], 0, False, False
    for place, letter in enumerate(text):
        if string:
            string, escaped = escaped or letter != '"', letter == "\\" and not escaped
        elif letter == '"':
            string = True
        elif letter in "{[,]}":
            if letter in "{[":
                brackets.append({"{": "}", "[": "]"}[letter])
            elif letter != "," and brackets:
                brackets.pop()
            end = place + (letter != ",")
    return text if not brackets and text[end:].strip() else text[:end] + "".join(reversed(brackets))


def breaks(text, schema, cut=False):
    if cut and text.lstrip()[:1] not in ("{", "["):
        return text.lstrip()[:1] not in ("", *'"-0123456789tfn')
    try:
        return misfit(json.loads(closed(text) if cut else text), schema, not cut)
    except (ValueError, RecursionError):
        return True


def wrong_call(calls, schemas, cut):
    """The last one may be cut."""
    for place, (name, arguments) in enumerate(calls):
        last = cut and place == len(calls) - 1
        unfinished = last and (arguments.strip() == "{}" or breaks(arguments, {}))
        if unfinished and not arguments.strip():
            continue
        if name not in schemas or breaks(arguments, schemas[name], unfinished):
            return True
    return False


def spans_again(text, copied):
    words, seen = text.split(), set()
    for at in range(len(words) - 4):
        span = " ".join(words[at : at + 5])
        if span in seen and copied.count(span) == 1:
            return True
        seen.add(span)
    return False


def breaks_off(text, copied):
    """A copy that is over inside a word, or with five words to come."""
    end = text.strip()[-16:]
    if len(end) < 6 or end not in copied:
        return False
    rest = copied.rpartition(end)[2]
    return (end[-1].isalnum() and rest[:1].isalnum()) or len(rest.split()) >= 5


def alters(text, copied):
    """A copy with other words than its text."""
    start = text.find(copied[:16]) if copied else -1
    said = text[start:].rstrip().rstrip("\ufffd") if start >= 0 else ""
    return any(a != b for a, b in zip(said, copied))


def shows(request, choices, tokens, sent, first):
    """What is wrong with an answer, or nothing."""
    asked = json.dumps(request["body"], ensure_ascii=False)
    fault, most, count = SETUP["fault"], request["tokens_max"], max(1, len(choices))
    if fault == "budget-ignored":
        thought = max((len(choice[1].split()) for choice in choices.values()), default=0)
        many = tokens is not None and most is not None and tokens > most * count
        few = tokens is not None and tokens < (request["tokens_min"] or 0)
        long = request["thinking_max"] is not None and thought > request["thinking_max"] + SETUP["thinking_slack"]
        return many or few or long or len(choices) != request["choices"]
    for text, thoughts, calls, reason in choices.values():
        everything = " ".join([text, thoughts] + [arguments for _, arguments in calls.values()])
        answered = reason not in (None, "abort", "error")
        at_limit = tokens is not None and most is not None and tokens >= most
        cut = reason == "length" or (reason == "tool_calls" and at_limit)
        ended, schemas = answered and not cut, request["tools"]
        misused = answered and bool(schemas) and wrong_call(list(calls.values()), schemas, cut)
        wrong = {
            "special-token": [t for t in SETUP["special_tokens"] if t in everything],
            "text-after-stop": [stop for stop in request["stops"] if stop in text],
            "cross-talk": [n for n in NONCE.findall(everything) if n in sent and n not in asked],
            "truncated": reason in (None, "abort", "error"),
            "broken-off": reason == "stop" and not request["stops"] and breaks_off(text, request["copies"]),
            "altered-copy": alters(text, request["copies"]),
            "repeated-span": bool(request["copies"]) and spans_again(text, request["copies"]),
            "invalid-json": (answered and request["schema"] is not None and breaks(text, request["schema"], cut))
            or (ended and request["pattern"] is not None and not re.fullmatch(request["pattern"], text)),
            "tool-arguments": misused,
            "loose-arguments": misused,
            "no-call": ended and bool(schemas) and not calls,
            "banned-token": [word for word in request["banned"] if word in text],
            "broken-text": "\ufffd" in (text if ended else text.rstrip("\ufffd")),
            "other-text": bool(first) and text not in first,
        }.get(fault)
        if wrong:
            return wrong
    return False


def main():
    parser = argparse.ArgumentParser(description="Reproduces %(fault)s on %(about)s" % SETUP)
    parser.add_argument("url", nargs="?", default=SETUP["url"])
    parser.add_argument("--streams", type=int, default=SETUP["streams"])
    parser.add_argument("--attempts", type=int, default=SETUP["attempts"])
    parser.add_argument("--model", default=SETUP["model"])
    parser.add_argument("--timeout", type=float, default=120.0)
    options = parser.parse_args()
    sent, found, answered, failed, lock = set(), [], [], [], threading.Lock()
    first = []
    if SETUP["fault"] == "other-text":  # alone, twice: what the server says without any load
        first = [choice[0] for _ in range(2) for choice in ask(options, SETUP["culprit"])[0].values()]
    waiting = []
    for attempt in range(options.attempts):
        waiting.append((SETUP["culprit"] if first else renamed(SETUP["culprit"]), True))
        others = SETUP["companions"]
        for place in range(min(len(others), options.streams - 1)):
            waiting.append((renamed(others[(attempt + place) % len(others)]), False))
    waiting.reverse()

    def work():
        while True:
            with lock:
                if not waiting:
                    return
                request, counts = waiting.pop()
                sent.add(request["nonce"])
            try:
                choices, tokens = ask(options, request)
            except (OSError, ValueError) as error:
                with lock:
                    failed.append("%s: %s" % (type(error).__name__, error))
                    if counts and SETUP["fault"] in ("refused", "hung"):
                        found.append((failed[-1], ""))
                continue
            with lock:
                wrong = shows(request, choices, tokens, sent, first)
                if counts:
                    answered.append(tokens)
                if counts and wrong:
                    found.append((wrong, json.dumps(list(choices.values()), ensure_ascii=True)))

    threads = [threading.Thread(target=work) for _ in range(max(1, options.streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = (SETUP["fault"], len(found), len(answered), options.streams, len(failed))
    print("%s: %d of %d answers at %d streams, %d failed" % counts)
    for wrong, answer in found[:3]:
        print("  %s\n    %s" % (ascii(wrong), answer[:600]))
    for error in failed[:1]:
        print("  first failure: %s" % error[:300])
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
'''
