"""Requests, answers and observations of a soak, short to write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from speclift.core.records import AnswerChoice, ToolCall
from speclift.lossless.gate import SoakFault
from speclift.lossless.soak.faults import HeldAgainst, SoakObservation, looked_at, observe
from speclift.lossless.soak.prompts import nonce_for
from speclift.lossless.soak.traffic import SoakTraffic
from speclift.lossless.soak.values import TURNS_MAX, Exposure, Promise, SoakAnswer, SoakRequest, Stage
from speclift.testing.fake_corruption import Around
from speclift.testing.fake_truth import Truth
from speclift.testing.simulated_server import simulated_answer

EXPOSURE = Exposure(
    arm="spec",
    launch=1,
    stage=Stage.DURING,
    sent_s=0.0,
    ended_s=1.0,
    streams=4,
    streams_max=4,
    before=0,
    joined=0,
)
NONCE, OTHER = "bcdf1234ghjk", "kjhg4321fdcb"


def asked(text: str = f"Say something of {NONCE}.", **changed: object) -> SoakRequest:
    promise = changed.pop("promise", Promise(tokens_max=20))
    settings: dict[str, object] = {
        "index": 4,
        "kind": "copy",
        "nonce": NONCE,
        "path": "/v1/chat/completions",
        "body": json.dumps({"messages": [{"role": "user", "content": text}]}),
        "promise": promise,
        "temperature": 0.0,
    }
    return SoakRequest(**{**settings, **changed})  # type: ignore[arg-type]


def said(*texts: str, finish: str | None = "stop", **changed: object) -> SoakAnswer:
    choices = tuple(AnswerChoice(text=text, finish_reason=finish) for text in texts or ("Fine.",))
    return SoakAnswer(**{"index": 4, "exposure": EXPOSURE, "choices": choices, **changed})  # type: ignore[arg-type]


def called(name: str, arguments: str, finish: str = "tool_calls") -> SoakAnswer:
    call = ToolCall(name=name, arguments=arguments)
    return said(choices=(AnswerChoice(text="", finish_reason=finish, calls=(call,)),))


def shown(request: SoakRequest, answer: SoakAnswer, held: HeldAgainst | None = None) -> set[SoakFault]:
    """The faults that an answer shows."""
    return {fault for fault, evidence in looked_at(request, answer, held).items() if evidence}


def observed(
    faulty: int,
    exposed: int,
    *,
    fault: SoakFault = SoakFault.SPECIAL_TOKEN,
    kind: str = "copy",
    **place: object,
) -> list[SoakObservation]:
    """So many requests, the first of them faulty; `place` is where they stood."""
    start = place.pop("start", 0)
    assert isinstance(start, int)
    return [
        SoakObservation(
            fault=fault,
            index=(start + slot) * TURNS_MAX,
            kind=kind,
            exposure=replace(EXPOSURE, **{"ended_s": float(slot), **place}),  # type: ignore[arg-type]
            evidence="seen" if slot < faulty else "",
        )
        for slot in range(exposed)
    ]


def read_answer(request: SoakRequest, data: Mapping[str, Any], exposure: Exposure = EXPOSURE) -> SoakAnswer:
    """The JSON of a whole answer as the soak keeps it."""
    choices = tuple(
        AnswerChoice(
            text=choice["message"]["content"] or "",
            finish_reason=choice["finish_reason"],
            thoughts=choice["message"].get("reasoning_content", ""),
            calls=tuple(ToolCall(**call["function"]) for call in choice["message"].get("tool_calls", ())),
        )
        for choice in data["choices"]
    )
    tokens = data["usage"]["completion_tokens"]
    return SoakAnswer(index=request.index, exposure=exposure, choices=choices, tokens=tokens)


def simulated_soak(
    truth: Truth, traffic: SoakTraffic, *, slots: int, place: Around | None = None
) -> list[SoakObservation]:
    """The observations of so many slots, each asked of the clean server first as the answer alone."""
    nonces = {nonce_for(traffic.seed, slot) for slot in range(slots)}
    found: list[SoakObservation] = []
    for slot in range(slots):
        request: SoakRequest | None = traffic.opening(slot)
        while request is not None:
            other = traffic.opening(slot - 1).body if slot else ""
            around = (
                replace(place, other=other)
                if place
                else Around(streams=4, before=slot, joined=1, other=other)
            )
            body = json.loads(request.body)
            answer = read_answer(request, simulated_answer(truth, body, around))
            alone = read_answer(request, simulated_answer(replace(truth, corruption=""), body, around))
            found += observe(request, answer, HeldAgainst(nonces=nonces, alone=alone))
            request = traffic.following(request, answer)
    return found
