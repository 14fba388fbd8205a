"""Replay against the embedded llama.cpp: every n-gram drafter it has, request by request, and a whole study."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from running import Cli, records_of
from speclift.bench.log_counting import log_drafters
from speclift.core.arm import BASELINE, Arm, ServerSettings
from speclift.core.json_reading import need_list, need_object, need_whole
from speclift.core.records import Phase
from speclift.core.speculation import NGram, method_name
from speclift.engines.llamacpp.engine import ENVIRONMENT, LlamaCpp
from speclift.engines.process import ServerProcess, free_port
from speclift.replayer.counts import LoggedAnswer, batch_of
from speclift.replayer.methods import replay_of, settings_for
from speclift.studies.prompt_files import bundled_workload
from speclift.verbs.replay import replay
from speclift.weights.tokenizer_files import load_tokenizer

pytestmark = [pytest.mark.llama, pytest.mark.timeout(300)]

TEXT = "The small red fox jumped over the quiet stream and ran into the green forest near the old stone mill."
COPY = f"Repeat this text exactly, word for word, three times.\n\n{TEXT}\n{TEXT}\n{TEXT}\n"
# The copy twice: a drafter that remembers does otherwise the second time. The question ends by itself.
QUESTIONS = (COPY, "List the days of the week. List them again.", "What is the capital of France?", COPY)
DRAFTERS = (
    NGram(k=7, n=3),
    NGram(variant="map-k", k=5, n=2),
    NGram(variant="map-k4v", k=4, n=3),
    NGram(variant="mod", k=8, n=4),
    NGram(variant="cache", k=8, n=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    prompt: list[int]
    tokens: list[int]
    drafted: int
    accepted: int


async def answers_of(model: Path, drafter: NGram, *, log: Path, max_tokens: int) -> list[Answered]:
    """Without the adapter's probe, which a drafter would remember."""
    settings = ServerSettings(model=str(model), context_tokens=1024, threads=1)
    port = free_port()
    command = LlamaCpp(settings).command(Arm(name="arm", speculation=drafter), port=port)
    process = await ServerProcess.start(
        command, base_url=f"http://127.0.0.1:{port}", log=log, env=ENVIRONMENT
    )
    try:
        await process.wait_until_ready(path="/health", limit_s=60)
        return [await ask(process, text, max_tokens) for text in QUESTIONS]
    finally:
        await process.stop()


async def ask(process: ServerProcess, text: str, max_tokens: int) -> Answered:
    chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    tokenized = await process.post("/tokenize", {"content": chat, "parse_special": True})
    prompt = [need_whole(token) for token in need_list(tokenized["tokens"])]
    body = {
        "prompt": prompt,
        "n_predict": max_tokens,
        "temperature": 0,
        "cache_prompt": False,
        "return_tokens": True,
    }
    answer = await process.post("/completion", body)
    timings = need_object(answer["timings"])
    return Answered(
        prompt=prompt,
        tokens=[need_whole(token) for token in need_list(answer["tokens"])],
        drafted=need_whole(timings.get("draft_n", 0)),
        accepted=need_whole(timings.get("draft_n_accepted", 0)),
    )


def replayable(answers: Sequence[Answered], max_tokens: int) -> list[LoggedAnswer]:
    return [
        LoggedAnswer(
            prompt=np.array(each.prompt), response=np.array(each.tokens), segment="any", budget=max_tokens
        )
        for each in answers
    ]


@pytest.mark.parametrize("drafter", DRAFTERS, ids=method_name)
def test_replay_drafts_and_accepts_what_the_server_did(
    drafter: NGram, embedded_model: Path, tmp_path: Path
) -> None:
    answers = asyncio.run(answers_of(embedded_model, drafter, log=tmp_path / "log", max_tokens=60))
    rows = replayable(answers, 60)
    (setting,) = settings_for(
        (f"ngram:{drafter.variant}",), log_drafters(), engine="llamacpp", ks=(drafter.k,), ngrams=(drafter.n,)
    )
    (counts,) = replay_of(setting).counts(batch_of(rows), rows)

    assert counts.drafted.tolist() == [each.drafted for each in answers]
    # Where the end of an answer was drafted, the server may also count what would have followed it.
    cut_off = np.array([each.accepted for each in answers]) - counts.accepted
    assert cut_off.min() >= 0
    assert cut_off.sum() <= 0.01 * sum(len(each.tokens) for each in answers)
    assert counts.accepted.sum() > 0


def test_text_is_cut_as_the_engine_cuts_it(embedded_model: Path) -> None:
    recorded = Path(__file__).parents[1] / "recorded" / "llamacpp-b11549-ngram-drafts.json"
    encoder = load_tokenizer(str(embedded_model)).encoder
    rows = json.loads(recorded.read_text("utf-8"))["tokenized"]

    assert [encoder.encode(row["text"], parse_special=False) for row in rows] == [row["ids"] for row in rows]
    assert [encoder.encode(row["text"], parse_special=True) for row in rows] == [
        row["special_ids"] for row in rows
    ]


def test_a_study_replayed_from_its_texts_has_the_accepted_length_it_measured(
    cli: Cli, embedded_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chat template, tokenizer and end tokens included: nothing but text goes from the study into the log."""
    monkeypatch.setenv("SPECLIFT_CACHE", str(embedded_model.parent.parent))
    flags = (
        "--method ngram,n=3,k=7 --segment verbatim-rewrite --segment chat --requests 6 --max-tokens 32 "
        "--temperature 0 --launches 1 --threads 1 --study s"
    )
    measured = cli("measure", *flags.split())
    assert measured.code == 0, measured.stderr
    records = [
        record
        for record in records_of(tmp_path / "s")
        if record.place.arm != BASELINE and record.place.phase is Phase.MEASURED
    ]
    asked = {request.id: request for request in bundled_workload().requests}
    log = tmp_path / "log.jsonl"
    with log.open("w", encoding="utf-8") as file:
        for record in records:
            messages = asked[record.place.request_id].messages
            line = {
                "messages": [{"role": each.role, "content": each.content} for each in messages],
                "response": record.text,
                "finish_reason": record.finish_reason,
                "max_tokens": 48,
                "temperature": 0,
            }
            file.write(json.dumps(line) + "\n")

    result = replay([log], engine="llamacpp", ks=(7,), ngrams=(3,), tokenizer=str(embedded_model))

    tokens = sum((record.output_tokens or 0) - 1 for record in records)
    steps = sum(record.decode_steps or 0 for record in records)
    (length,) = result.segments[0].accepted_length.value
    assert tokens / steps > 1.2
    assert length == pytest.approx(tokens / steps, rel=0.01)
