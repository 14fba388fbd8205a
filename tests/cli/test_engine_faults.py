"""Engines that crash, hang or answer nonsense: their arm fails by name with the end of its log, the rest goes
on, and only a lost baseline or the loss of every arm ends a study in an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from in_threads import use_threads
from running import Cli, Result, called, fake_flags, measured_places, planned_places, records_of
from speclift.bench import run
from speclift.core.arm import Arm
from speclift.core.records import Outcome, Record
from speclift.engines.fake import kind as fake_kind
from speclift.engines.fake.kind import READY_LIMIT_S, Fake
from speclift.engines.process import LaunchedServer

pytestmark = pytest.mark.slow

VERDICTS = {0, 3, 4, 5}
REQUESTS = 2

# What is wrong with the arm of that k, and what is said about it.
BROKEN_ARMS = {
    1: (["crash_on_start=1"], ["did not start", "ended with code 134", "told to crash on start"]),
    2: (["never_ready=1"], ["did not start", "not ready after 1 s"]),
    3: (["silent_fallback=1"], ["did not start", "runs without it"]),
    4: (["http_500_share=1"], ["did not start", "answered 500"]),
    5: (["crash_after=4"], ["died: ended with code 134", "aborting after 4 finished requests"]),
    6: (
        ["flavour=vllm", "stall_share=1", "stall_s=60"],
        ["hangs: 2 requests in a row got no complete answer"],
    ),
}
# Failing requests on a living engine; without llama.cpp's probe, so that the requests themselves meet them.
FAILING_REQUESTS = {
    7: (["flavour=vllm", "http_500_share=1"], Outcome.HTTP_ERROR),
    8: (["flavour=vllm", "cut_share=1"], Outcome.CUT),
    9: (["flavour=vllm", "garbage_share=1"], Outcome.MALFORMED),
}
SOUND = 10


class ImpatientFake(Fake):
    """Gives up at once on the one arm that is known never to get ready."""

    async def launch(self, arm: Arm, *, log: Path) -> LaunchedServer:
        self._ready_limit_s = 0.8 if arm.name == "ngram-k2" else READY_LIMIT_S
        return await super().launch(arm, log=log)


@pytest.fixture(autouse=True, scope="module")
def _impatient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_kind, "Fake", ImpatientFake)
        patch.setattr(run, "REQUEST_LIMIT_S", 0.5)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def result(folder: Path, _impatient: None) -> Result:
    """One study in which every arm but the last is broken in its own way, and the verdict on it."""
    truths = {k: words for k, (words, _) in (*BROKEN_ARMS.items(), *FAILING_REQUESTS.items())}
    # An answer takes some moments, so that it does not come as one piece where the machine is busy.
    flags = fake_flags(
        "tpot_s=0.003", *(f"ngram-k{k}.{word}" for k, words in truths.items() for word in words)
    )
    ks = ",".join(str(k) for k in (*truths, SOUND))
    size = ("--segment", "chat", "--requests", REQUESTS, "--max-tokens", 12, "--launches", 1, "--k", ks)
    with pytest.MonkeyPatch.context() as patch:
        use_threads(patch)
        measured = called("measure", *size, *flags, "--study", "s", cwd=folder)
    compared = called("compare", "s", "--json", cwd=folder)
    return replace(compared, stderr=measured.stderr)


@pytest.fixture
def records(result: Result, folder: Path) -> list[Record]:
    return [record for record in records_of(folder / "s") if record.place.phase == "measured"]


@pytest.mark.parametrize("k", BROKEN_ARMS, ids=lambda k: " ".join(BROKEN_ARMS[k][0]))
def test_a_broken_arm_fails_by_name_with_the_cause_and_the_end_of_its_log(k: int, result: Result) -> None:
    (message,) = [
        finding["message"]
        for finding in result.document["findings"]
        if finding["check"] == "arm-failed" and finding["arm"] == f"ngram-k{k}"
    ]
    said = BROKEN_ARMS[k][1]
    assert [words for words in said if words not in message] == []
    assert [words for words in said if words not in result.stderr] == []


def test_only_the_broken_arms_failed(result: Result) -> None:
    assert result.document["failed_arms"] == sorted(f"ngram-k{k}" for k in BROKEN_ARMS)


def test_the_sound_arm_and_the_baseline_are_measured_to_the_end_and_get_their_verdict(
    result: Result, folder: Path, records: list[Record]
) -> None:
    assert result.code in VERDICTS
    sound = {"baseline", f"ngram-k{SOUND}"}
    planned = {place for place in planned_places(folder / "s") if place.arm in sound}
    assert planned <= set(measured_places(record for record in records if record.is_ok))
    (compared,) = [arm for arm in result.document["speedups"] if arm["arm"] == f"ngram-k{SOUND}"]
    assert compared["overall"]["n"] == REQUESTS


@pytest.mark.parametrize("k", FAILING_REQUESTS, ids=lambda k: " ".join(FAILING_REQUESTS[k][0]))
def test_requests_that_fail_on_a_living_engine_are_records_and_no_speedup(
    k: int, result: Result, records: list[Record]
) -> None:
    arm, outcome = f"ngram-k{k}", FAILING_REQUESTS[k][1]
    assert [r.outcome for r in records if r.place.arm == arm] == [outcome] * REQUESTS
    (cell,) = [c for c in result.document["cells"] if c["arm"] == arm and c["segment"] == "all"]
    assert (cell["requests"], cell["failed"]) == (REQUESTS, REQUESTS)
    (compared,) = [entry for entry in result.document["speedups"] if entry["arm"] == arm]
    assert compared["overall"] is None
    said = {f["arm"] for f in result.document["findings"] if f["check"] == "failed-requests"}
    assert arm in said


@pytest.mark.slow
def test_a_baseline_that_dies_midway_ends_the_study_and_keeps_what_was_measured(
    cli: Cli, small: list[object], tmp_path: Path
) -> None:
    result = cli("decide", *small, *fake_flags("baseline.crash_after=4"), "--study", "s")
    assert result.code == 1
    assert "the baseline died" in result.stderr
    assert any(r.is_ok and r.place.phase == "measured" for r in records_of(tmp_path / "s"))
    assert "Speedup over the baseline" in result.stdout  # a partial report


@pytest.mark.slow
def test_an_engine_that_dies_before_its_last_request_ends_is_a_failed_arm_too(
    cli: Cli, small: list[object]
) -> None:
    """After the probe, two warm-up requests and three of four: no later turn of the arm would notice."""
    dying = fake_flags("ngram-k2.crash_after=6", "ngram-k2.ttft_s=0.1")  # the fourth is under way by then
    result = cli("decide", *small, *dying, "--k", "2,4", "--json")
    assert result.document["failed_arms"] == ["ngram-k2"]
