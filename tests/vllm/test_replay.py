"""vLLM's n-gram drafts, for real: replay says step by step what the server drafted and accepted."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from speclift.bench.log_counting import log_drafters
from speclift.core.arm import Arm, ServerSettings
from speclift.core.speculation import NGram
from speclift.engines.vllm.engine import Vllm
from speclift.http.client import fetch
from speclift.replayer.counts import LoggedAnswer, batch_of
from speclift.replayer.methods import replay_of, settings_for
from speclift.verbs.replay import replay

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

K, N = 5, 3
TEXT = "The small red fox jumped over the quiet stream and ran into the green forest near the old stone mill."
QUESTIONS = (
    (f"Repeat this text exactly, word for word, three times.\n\n{TEXT}\n{TEXT}\n{TEXT}\n", 80),
    ("Count from one to thirty in words, one per line.", 60),
    ("List the days of the week, then list them again in the same words.", 60),
    ("What is the capital of France? LoggedAnswer in one word.", 60),
    ("Write two sentences about the sea, then repeat them.", 60),
)


@pytest.fixture(scope="module")
def answers(
    vllm_python: str, hugging_face_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Answered]:
    settings = ServerSettings(
        model=str(hugging_face_model), context_tokens=1024, threads=1, engine_args=("--enforce-eager",)
    )
    engine = Vllm(settings, python=vllm_python)
    arm = Arm(name="ngram", speculation=NGram(k=K, n=N))

    async def ask_all() -> list[Answered]:
        server = await engine.launch(arm, log=tmp_path_factory.mktemp("replay") / "log")
        try:
            endpoint = server.endpoint
            return [
                await asyncio.to_thread(ask, endpoint.base_url, endpoint.model, *each) for each in QUESTIONS
            ]
        finally:
            await server.stop()

    return asyncio.run(ask_all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One streamed answer. A chunk carries the tokens of one step, the first chunk the prefill's one token."""

    prompt: list[int]
    chunks: list[list[int]]
    drafting: int
    drafted: int
    max_tokens: int

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk]

    @property
    def steps(self) -> int:
        return len(self.chunks) - 1


def ask(base_url: str, model: str, text: str, max_tokens: int) -> Answered:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    lines = fetch(f"{base_url}/v1/chat/completions", data=json.dumps(body).encode()).splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    counts = events[-1]["metrics"]["speculative_decoding"]
    return Answered(
        prompt=next(event["prompt_token_ids"] for event in events if event.get("prompt_token_ids")),
        chunks=[choice["token_ids"] for choice in choices if choice.get("token_ids")],
        drafting=counts["num_spec_steps"],
        drafted=counts["num_draft_tokens"],
        max_tokens=max_tokens,
    )


def test_replay_counts_every_step_and_every_drafted_token_as_the_server_did(answers: list[Answered]) -> None:
    (setting,) = settings_for(("ngram",), log_drafters(), engine="vllm", ks=(K,), ngrams=(N,))
    rows = [
        LoggedAnswer(prompt=np.array(each.prompt), response=np.array(each.tokens), segment="any")
        for each in answers
    ]
    (counts,) = replay_of(setting).counts(batch_of(rows), rows)

    assert counts.steps.tolist() == [each.steps for each in answers]
    assert counts.drafting.tolist() == [each.drafting for each in answers]
    assert counts.drafted.tolist() == [each.drafted for each in answers]
    assert counts.accepted.sum() > 20


def test_accepted_length_from_a_log_is_within_one_percent_of_the_servers(
    answers: list[Answered], tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    lines = [
        {"prompt_token_ids": each.prompt, "response_token_ids": each.tokens, "max_tokens": each.max_tokens}
        for each in answers
    ]
    log.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")

    result = replay([log], methods=("ngram",), engine="vllm", ks=(K,), ngrams=(N,))

    measured = sum(len(each.tokens) - 1 for each in answers) / sum(each.steps for each in answers)
    (length,) = result.segments[0].accepted_length.value
    assert length == pytest.approx(measured, rel=0.01)
    assert result.tokenizer is None
