"""Faults in the answers that a study recorded anyway: tokens of the chat template, text behind a stop string, JSON that
is none, calls that do not fit. Held against the baseline's answers to the same requests; the prompts are the user's and
stay as they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from speclift.core.json_reading import as_object
from speclift.core.results import Finding, fail
from speclift.core.traffic import Request
from speclift.lossless.answers import Answer
from speclift.lossless.soak.cuts import is_cut
from speclift.lossless.soak.faults import leaked_tokens
from speclift.lossless.soak.rates import SoakResult, Tally, judge_tallies
from speclift.lossless.soak.schemas import misfit, promised_format, value_misfit
from speclift.lossless.soak.values import SoakFault

CHECKS = {
    SoakFault.SPECIAL_TOKEN: ("special-token", "hold a token of the chat template"),
    SoakFault.AFTER_STOP: ("text-after-stop", "hold a text at which they had to stop"),
    SoakFault.INVALID_JSON: ("invalid-json", "are not the JSON that was asked for"),
    SoakFault.TOOL_ARGUMENTS: ("tool-arguments", "call a tool with arguments that do not fit"),
    SoakFault.LOOSE_ARGUMENTS: ("tool-arguments", "call a tool with arguments that do not fit"),
}
QUOTED = 80


def recorded_faults(
    arm: str, own: Iterable[Answer], theirs: Iterable[Answer], prompts: Mapping[str, Request]
) -> list[Finding]:
    """What the arm's answers show more often than the baseline's; a prompt counts once however often it was sent."""
    mine, others = _seen(own, prompts), _seen(theirs, prompts)
    findings = []
    for fault, (check, words) in CHECKS.items():
        arm_tally, control = _tally(mine[fault]), _tally(others[fault])
        if judge_tallies(fault, arm_tally, control) is not SoakResult.FOUND:
            continue
        case, evidence = next((case, shown) for case, shown in mine[fault].items() if shown)
        findings.append(
            fail(
                f"{check}-recorded",
                f"answers to {arm_tally} prompts {words}, the baseline's to {control}; first: {case}"
                f"\n{evidence[:QUOTED]}",
                then="speclift verify --soak 10m: how often, under which load, and a script that shows it",
                arm=arm,
            )
        )
    return findings


_Seen = dict[SoakFault, dict[str, str]]


def _seen(answers: Iterable[Answer], prompts: Mapping[str, Request]) -> _Seen:
    """By fault the cases that could show it, with what shows it or ""."""
    found: _Seen = {fault: {} for fault in CHECKS}
    for answer in answers:
        if not answer.is_ok or not answer.text:
            continue
        request = prompts.get(answer.case)
        for fault, evidence in _faults(answer, request):
            found[fault][answer.case] = found[fault].get(answer.case) or evidence
    return found


def _faults(answer: Answer, request: Request | None) -> Iterator[tuple[SoakFault, str]]:
    # A model that is shown tokens of a template may well write some, and others than those.
    if request is None or not leaked_tokens(_asked(request)):
        leaked = leaked_tokens(answer.text)
        yield SoakFault.SPECIAL_TOKEN, leaked[0] if leaked else ""
    if request is None or request.answer_format is None:
        return
    promised = promised_format(request.answer_format)
    if answer.finish_reason == "tool_calls" and promised.tools:
        was_cut = is_cut(answer.finish_reason, answer.tokens, request.max_tokens)
        evidence = calls_misfit(answer.text, dict(promised.tools), was_cut=was_cut)
        if evidence is not None:
            yield (SoakFault.TOOL_ARGUMENTS if promised.is_strict else SoakFault.LOOSE_ARGUMENTS), evidence
    elif promised.stops:
        # Where it stops is the end of JSON as well.
        yield SoakFault.AFTER_STOP, next((stop for stop in promised.stops if stop in answer.text), "")
    elif answer.finish_reason == "stop" and promised.schema is not None:
        yield SoakFault.INVALID_JSON, misfit(answer.text, promised.schema)


def _asked(request: Request) -> str:
    """Everything that the prompt holds."""
    return (request.prompt or "") + "\n".join(message.content for message in request.messages)


def calls_misfit(text: str, tools: Mapping[str, str], *, was_cut: bool = False) -> str | None:
    """Of a record's text, where calls stand as name and arguments one after the other, behind what else was said. Of a
    text that the limit cut, only what came before its end can be wrong; None where no call was whole by then."""
    starts = [place for name in tools if (place := text.find(f"{name}{{")) >= 0]
    if not starts:
        return None if was_cut else "no call that can be read"
    rest, reader, fine = text[min(starts) :], json.JSONDecoder(), None if was_cut else ""
    while rest:
        name = max((name for name in tools if rest.startswith(f"{name}{{")), key=len, default="")
        if not name:
            return fine if was_cut else f"what follows a call is none: {rest[:QUOTED]!r}"
        try:
            value, end = reader.raw_decode(rest, len(name))
        except (ValueError, RecursionError) as error:
            return fine if was_cut else f"{name}: not JSON: {error}"
        if why := value_misfit(value, as_object(json.loads(tools[name])), where=""):
            return f"{name}: {why}"
        rest, fine = rest[end:].strip(), ""
    return fine


def _tally(cases: Mapping[str, str]) -> Tally:
    faulty = sum(bool(evidence) for evidence in cases.values())
    return Tally(faulty=faulty, exposed=len(cases), answers=len(cases), faulty_once=faulty)
