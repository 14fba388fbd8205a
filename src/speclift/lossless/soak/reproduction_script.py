"""A reproduction as a Python script for a bug report: the standard library alone, prompts as data, one answer to read.

Whoever gets it needs nothing of ours: it sends the requests to a server, so many at a time, and says how many answers
show the fault; it exits with 1 where one does. Every attempt has a nonce of its own.
"""

from __future__ import annotations

import json

from speclift.core.document import Json
from speclift.lossless.soak.faults import SPECIAL_TOKENS, THINKING_SLACK
from speclift.lossless.soak.reproduction import SoakSetup, attempts_needed
from speclift.lossless.soak.values import SoakFault, SoakRequest


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
        "companions": [_as_data(each) for each in setup.companions],
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
