"""verify --soak on the fake engine, the whole way: servers, traffic, faults, the document and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from in_threads import use_threads
from running import Cli, Result, called
from soaking import SOAK, TIMES, found, only, soak_words
from speclift.bench.soak_gate import SOAK_MIN_S
from speclift.lossless.soak.traffic import SoakKind
from speclift.lossless.soak.values import TURNS_MAX
from speclift.testing.running import running

ARMS = ("baseline", "ngram-k4")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clean")


@pytest.fixture(scope="module")
def clean(folder: Path) -> Result:
    """A soak of an engine that does nothing wrong, without requests of two kinds."""
    with pytest.MonkeyPatch.context() as patch:
        use_threads(patch)
        return called(*soak_words("--leave-out", "schema,agent", "--study", "study", soak_s=10), cwd=folder)


def test_a_clean_engine_stands_a_soak_and_its_answers_are_kept(clean: Result, folder: Path) -> None:
    assert clean.code in {0, 5}, clean.stderr
    assert found(clean) == {}
    document = clean.document["soak"]
    assert {fault["name"] for fault in document["faults"]} >= {
        "special-token",
        "cross-talk",
        "refused",
        "hung",
    }
    assert not any(fault["count"] for fault in document["faults"])
    lines = (folder / "study" / "soak" / "answers.jsonl").read_text().splitlines()
    kept = [json.loads(line)["kept"] for line in lines if line.startswith('{"kept"')]
    assert len(kept) == document["requests"]
    stages = {(one["answer"]["exposure"]["arm"], one["step"]["stage"]) for one in kept}
    assert stages == {(arm, stage) for arm in ARMS for stage in ("before", "during", "after")}
    assert max(one["answer"]["exposure"]["streams"] for one in kept) == 4
    slots = {
        arm: {one["answer"]["index"] // TURNS_MAX for one in kept if one["answer"]["exposure"]["arm"] == arm}
        for arm in ARMS
    }
    # The arm is asked the same, and at most half as much beyond.
    assert len(slots["ngram-k4"] - slots["baseline"]) <= len(slots["baseline"]) / 2


def test_kinds_that_are_left_out_are_not_sent(clean: Result) -> None:
    sent = clean.document["soak"]["kinds"]
    assert "copy" in sent
    assert not {"schema", "agent"} & set(sent)
    assert "JSON schema" not in [edge["name"] for edge in clean.document["arms"][0]["edges"]]


def test_servers_that_run_already_are_put_under_fire_once_and_not_restarted(cli: Cli) -> None:
    with running(*TIMES) as baseline, running(*TIMES, "k=4", "corruption=cross-talk") as spec:
        result = cli(
            *SOAK,
            *("--engine", "attach", "--baseline-url", baseline, "--spec-url", spec),
            *only(SoakKind.COPY),
            *("--soak", f"{SOAK_MIN_S}s", "--launches", 3, "--json"),
        )
    assert result.code == 6, result.stderr
    assert result.document["soak"]["launches"] == 2
    assert "cross-talk" in found(result)
    script = found(result)["cross-talk"]["script"]
    assert spec in Path(script).read_text()


WRONG = {
    "no time": (("--soak", "soon"), "--soak takes a duration"),
    "too short": (("--soak", "1s"), "--soak must be at least 5 s"),
    "no such kind": (("--soak", "10s", "--leave-out", "schemas"), "unknown kind of request in --leave-out"),
    "nothing left to send": (("--soak", "10s", "--leave-out", ",".join(SoakKind)), "leaves nothing to send"),
    "nothing to resume": (("--soak", "10s", "--resume"), "no soak to resume"),
    "resumes no soak": (("--resume",), "verify cannot be resumed without --soak"),
}


@pytest.mark.parametrize(("words", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_words_are_told_before_anything_is_launched(
    words: tuple[str, ...], message: str, cli: Cli
) -> None:
    result = cli(*SOAK, "--engine", "fake", *words)
    assert result.code in {1, 2}
    assert message in result.stderr
