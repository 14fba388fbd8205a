"""A soak of servers that misbehave: it ends in its time with what was seen, and never with a traceback."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import pytest
from server import (
    COMPLETIONS,
    Behaviour,
    HostileServer,
    after,
    answers,
    chunk,
    drips,
    endless,
    event,
    hangs,
    head,
    raw,
    resets,
    streams,
    streams_events,
)

from speclift.bench import soak_gate, soak_run
from speclift.bench.observer import Observer
from speclift.bench.soak_gate import SoakSettings, check_soak
from speclift.core.arm import Arm, ServerSettings
from speclift.core.deadline import Deadline
from speclift.core.engine_spec import AttachSettings, EngineSpec
from speclift.core.speculation import Attached
from speclift.lossless.gate import Soak
from speclift.lossless.soak.traffic import SoakKind

SOAK_S = 3.0
# A machine that is kept busy by others may not get to the arm within that: then it is asked once more, for longer.
PATIENT_SOAK_S = 20.0
# What is sent: few kinds, so that the baseline's part is over soon.
SENT = (SoakKind.COPY, SoakKind.AGENT, SoakKind.SCHEMA, SoakKind.CHOICES)
# The machine may be busy.
MARGIN_S = 20.0
MEMORY_MAX = 400 << 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]


def soaked(behaviour: Behaviour, study: Path, *, soak_s: float = SOAK_S, keeps_text: bool = True) -> Soak:
    well = streams(tpot_s=0.0)
    with (
        HostileServer({"/v1/completions": well}) as baseline,
        HostileServer({COMPLETIONS: behaviour}) as spec,
    ):
        settings = SoakSettings(
            engine_spec=EngineSpec(
                kind="attach",
                settings=ServerSettings(model=""),
                attach=AttachSettings(baseline_url=baseline.url, spec_url=spec.url),
            ),
            arms=(Arm(name="spec", speculation=Attached()),),
            soak_s=soak_s,
            levels=(1, 4),
            launches=1,
            seed=1,
            tokens_max=8,
            keeps_text=keeps_text,
            study=study,
            leaves_out=frozenset(kind for kind in SoakKind if kind not in SENT),
        )
        return check_soak(settings, Observer(), deadline=Deadline(clock=time.monotonic))


CALLED = {"index": 0, "id": 7, "function": {"name": ["find"], "arguments": {"order": 1}}}
BEHAVIOURS: dict[str, Behaviour] = {
    "never ends a stream": drips(event(chunk("a")), every_s=0.05, start=head(kind="text/event-stream")),
    "sends without end": endless(event(chunk("word " * 200)), start=head(kind="text/event-stream")),
    "sends one endless line": endless(b"data: " + b"a" * 4096, start=head(kind="text/event-stream")),
    "never answers": hangs,
    "resets": resets,
    "dies in mid-stream": streams_events(chunk("a"), chunk("b"), ends=b""),
    "works, then resets": after(30, resets, streams(tpot_s=0.0)),
    "nonsense": answers("{" * 50_000),
    "nonsense events": streams_events("{not json"),
    "no HTTP": raw(b"\x00\xff\x00\xff"),
    "odd tool calls": streams_events(
        {"choices": [{"index": 0, "delta": {"tool_calls": [CALLED, 7, None]}, "finish_reason": "tool_calls"}]}
    ),
    "choices twice": streams_events(
        {"choices": [chunk("a", finish="stop")["choices"][0]] * 2, "usage": {"completion_tokens": -5}}
    ),
    "choices of any index": streams_events({"choices": [{"index": 10**30, "delta": {"content": "x"}}]}),
    "lone surrogates": streams_events({"choices": [{"index": 0, "delta": {"content": "\ud800"}}]}),
}


@pytest.fixture(autouse=True)
def brief_soaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_gate, "SOAK_MIN_S", SOAK_S)


@pytest.mark.parametrize("behaviour", BEHAVIOURS.values(), ids=BEHAVIOURS.keys())
def test_a_soak_of_any_server_ends_in_time_with_what_was_seen(
    behaviour: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak_run, "ANSWER_LIMIT_MIN_S", 0.3)
    monkeypatch.setattr(soak_run, "SLOWEST_TIMES", 0.0)
    for soak_s in (SOAK_S, PATIENT_SOAK_S):
        study = tmp_path / f"study-{soak_s}"
        tracemalloc.start()
        try:
            soak = soaked(behaviour, study, soak_s=soak_s)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert soak.seconds <= soak_s + MARGIN_S
        assert peak < MEMORY_MAX
        if soak.arms[0].requests:
            break
    assert soak.arms[0].requests
    lines = (study / "soak" / "answers.jsonl").read_text().splitlines()
    assert sum(json.loads(line).get("kept") is not None for line in lines) == soak.requests


def test_what_a_server_says_in_its_errors_is_not_kept_without_text(tmp_path: Path) -> None:
    told = answers({"error": {"message": "the prompt was TOP SECRET"}}, status=500)
    soaked(told, tmp_path / "study", keeps_text=False)
    assert "TOP SECRET" not in (tmp_path / "study" / "soak" / "answers.jsonl").read_text()
