"""The smallest reproduction: on servers with a known condition, within bounds, and as a script that runs alone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from soaked import asked
from speclift.lossless.gate import SoakFault
from speclift.lossless.soak.prompts import SoakDialect, answer_schema
from speclift.lossless.soak.reproduction import (
    ATTEMPTS_MAX,
    Reproduction,
    SoakSetup,
    Trial,
    renamed,
    reproduction_of,
    reproduction_script,
)
from speclift.lossless.soak.schemas import misfit_so_far
from speclift.lossless.soak.traffic import SoakKind, SoakTraffic, soak_traffic
from speclift.lossless.soak.values import SoakRequest
from speclift.testing.running import running

TRAFFIC = soak_traffic(seed=1, dialect=SoakDialect.LLAMACPP)
Condition = Callable[[SoakSetup], float]


def first_of(kind: SoakKind, traffic: SoakTraffic = TRAFFIC) -> SoakRequest:
    return next(traffic.opening(slot) for slot in range(2000) if traffic.kind_of(slot) is kind)


COPY, AGENT, SCHEMA, LONG = map(first_of, (SoakKind.COPY, SoakKind.AGENT, SoakKind.SCHEMA, SoakKind.LONG))
COMPANIONS = (AGENT, SCHEMA, LONG, COPY, first_of(SoakKind.STOP), first_of(SoakKind.SHORT))


def reproduced(
    rate_of: Condition,
    *,
    culprit: SoakRequest = COPY,
    streams: int = 16,
    rate: float = 0.02,
    seed: int = 0,
    fault: SoakFault = SoakFault.SPECIAL_TOKEN,
) -> tuple[Reproduction, int]:
    """On a server whose chance of the fault follows from the setup; with the number of attempts it took."""
    draws, attempts_total = random.Random(seed), 0
    state = reproduction_of(fault, culprit, companions=COMPANIONS, streams=streams, rate=rate)
    while (trial := state.ask()) is not None:
        chance, attempts, faulty = rate_of(trial.setup), 0, 0
        while attempts < trial.attempts_max and not faulty:
            attempts += 1
            faulty += draws.random() < chance
        attempts_total += attempts
        state = state.told(trial, attempts=attempts, faulty=faulty)
    return state, attempts_total


def body_of(setup: SoakSetup) -> dict[str, object]:
    found: dict[str, object] = json.loads(setup.culprit.body)
    return found


def test_streams_are_bisected_down_to_where_it_begins() -> None:
    state, _ = reproduced(lambda setup: 0.3 if setup.streams > 8 else 0.0, rate=0.3)

    assert (state.smallest.streams, state.streams_clean) == (9, 8)
    assert state.smallest.companions == ()


def test_a_fault_that_is_always_there_needs_one_stream_and_nothing_else() -> None:
    state, _ = reproduced(lambda _: 1.0, rate=1.0, culprit=LONG)

    assert state.smallest.streams == 1
    assert state.smallest.culprit.temperature == 0
    assert body_of(state.smallest)["max_tokens"] == state.smallest.culprit.promise.tokens_max
    assert len(state.smallest.culprit.body) < len(LONG.body)


@pytest.mark.parametrize(
    ("fault", "kind", "setting"),
    [
        (SoakFault.AFTER_STOP, SoakKind.STOP, "stop"),
        (SoakFault.INVALID_JSON, SoakKind.SCHEMA, "response_format"),
        (SoakFault.TOOL_ARGUMENTS, SoakKind.AGENT, "tools"),
    ],
)
def test_what_the_fault_breaks_is_kept(fault: SoakFault, kind: SoakKind, setting: str) -> None:
    state, _ = reproduced(lambda _: 1.0, rate=1.0, culprit=first_of(kind), fault=fault)

    assert setting in body_of(state.smallest)


def test_a_fault_of_one_request_in_fifty_is_still_bisected_most_of_the_time() -> None:
    found = [
        reproduced(lambda setup: 0.02 if setup.streams > 8 else 0.0, rate=0.02, seed=seed)[0].smallest.streams
        for seed in range(40)
    ]

    assert sum(streams == 9 for streams in found) >= 30


def test_what_cannot_be_seen_again_is_not_confirmed() -> None:
    state, attempts = reproduced(lambda _: 0.0)

    assert not state.is_confirmed
    assert state.tries == 1
    assert attempts <= ATTEMPTS_MAX


def test_every_attempt_has_a_nonce_of_its_own_and_is_told_from_its_companions() -> None:
    trial = Trial(setup=SoakSetup(culprit=COPY, streams=3, companions=(AGENT,)), attempts_max=4, number=2)
    sent = list(trial.requests())

    assert [counts for _, counts in sent] == [True, False] * 4
    assert len({request.nonce for request, _ in sent}) == 8
    assert len({request.index for request, _ in sent}) == 8


def test_a_users_prompt_is_never_altered() -> None:
    own = asked("What is a heron?", nonce="", kind="own")

    assert renamed(own, 7).body == own.body


class TestScript:
    def run(self, path: Path, script: str, url: str, *more: str) -> subprocess.CompletedProcess[str]:
        file = path / "reproduce.py"
        file.write_text(script, encoding="utf-8")
        return subprocess.run(
            [sys.executable, "-I", str(file), url, *more],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def script(self, fault: SoakFault, culprit: SoakRequest, *, streams: int = 3) -> str:
        setup = SoakSetup(culprit=culprit, streams=streams, companions=(AGENT, COPY))
        return reproduction_script(fault, setup, rate=0.3, model="fake", about="a fake\nserver 'quoted' 100%")

    @pytest.mark.parametrize(
        ("corruption", "fault", "kind"),
        [
            ("leaked-token", SoakFault.SPECIAL_TOKEN, SoakKind.COPY),
            ("text-after-stop", SoakFault.AFTER_STOP, SoakKind.STOP),
            ("cross-talk", SoakFault.CROSS_TALK, SoakKind.COPY),
            pytest.param("invalid-json", SoakFault.INVALID_JSON, SoakKind.SCHEMA, marks=pytest.mark.slow),
            pytest.param("invalid-json", SoakFault.TOOL_ARGUMENTS, SoakKind.AGENT, marks=pytest.mark.slow),
            pytest.param("budget-ignored", SoakFault.BUDGET, SoakKind.SHORT, marks=pytest.mark.slow),
            pytest.param("truncated", SoakFault.TRUNCATED, SoakKind.COPY, marks=pytest.mark.slow),
            pytest.param("broken-off", SoakFault.BROKEN_OFF, SoakKind.COPY, marks=pytest.mark.slow),
            pytest.param("other-words", SoakFault.ALTERED, SoakKind.COPY, marks=pytest.mark.slow),
            pytest.param("broken-text", SoakFault.BROKEN_TEXT, SoakKind.UNICODE, marks=pytest.mark.slow),
            pytest.param("repeated-span", SoakFault.REPEATED, SoakKind.COPY, marks=pytest.mark.slow),
        ],
    )
    def test_it_tells_a_broken_server_from_a_working_one(
        self, tmp_path: Path, corruption: str, fault: SoakFault, kind: SoakKind
    ) -> None:
        script = self.script(fault, first_of(kind))
        fast = ("ttft_s=0.001", "tpot_s=0.0001")
        with running(*fast, f"corruption={corruption}") as broken, running(*fast) as working:
            bad, good = (self.run(tmp_path, script, url) for url in (broken, working))

        assert (bad.returncode, bad.stderr) == (1, "")
        assert f"{fault}: " in bad.stdout
        assert (good.returncode, good.stderr) == (0, "")
        assert "0 failed" in good.stdout

    @pytest.mark.parametrize("end", range(0, 100, 7))
    @pytest.mark.parametrize(
        ("old", "new"), [("", ""), ("red", "pink"), ("[1, 2", "[1, 4"), ('"id":', '"id"')]
    )
    def test_it_reads_what_the_limit_cut_as_the_soak_does(self, old: str, new: str, end: int) -> None:
        names: dict[str, Any] = {"__name__": "read"}
        exec(compile(self.script(SoakFault.INVALID_JSON, COPY), "reproduce.py", "exec"), names)
        schema = answer_schema("abcd")
        whole = '{"id": "abcd", "colour": "red", "done": true, "sizes": [1, 2, 8, 1], "more": {"a": [1'
        text = whole.replace(old, new, 1)[:end]

        assert names["breaks"](text, schema, True) is bool(misfit_so_far(text, json.dumps(schema)))

    def test_prompts_are_data(self, tmp_path: Path) -> None:
        """Quotes, braces, percent signs, marks of ours and odd characters of a prompt end nothing."""
        odd = "''' \"\"\" \\ @DATA@ @FAULT@ %s {x} \ud800 $(rm) `ls` \u2028"
        script = self.script(SoakFault.SPECIAL_TOKEN, asked(odd, nonce="", kind="own"))
        compile(script, "reproduce.py", "exec")
        with running("ttft_s=0.001", "tpot_s=0.0001") as url:
            done = self.run(tmp_path, script, url, "--attempts", "2")

        assert (done.returncode, done.stderr) == (0, "")
