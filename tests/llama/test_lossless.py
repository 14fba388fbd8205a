"""The embedded llama.cpp keeps its output under every method it can run, and the gate says so; a fault is seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import speclift
from corrupting_proxy import proxy
from running import Cli
from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.speculation import NGram
from speclift.engines.llamacpp.engine import LlamaCpp
from speclift.engines.protocol import Server
from speclift.lossless.gate import Gate, Result

pytestmark = [pytest.mark.llama, pytest.mark.timeout(600)]

SAME_SEED = (
    "ngram,k=7,n=3",
    "ngram:map-k,k=8,n=4",
    "ngram:map-k4v,k=8,n=4",
    "ngram:mod,k=16,n=16",
    "ngram:cache",
    "draft,k=4",
    "ngram,k=7,n=4+draft,k=7",
)
PROBABILISTIC = "draft,k=3,sampling=probabilistic"
# The draft that comes with the package, for the target it was made for.
DRAFT = "smollm2-135m-draft"
# Most repeat themselves, so that look-ups draft, and all are short: reading a prompt takes longer than answering it.
PROMPTS = (
    "Repeat: the red fox ran, the red fox ran, the red fox ran,",
    "Count: one two three four one two three four one two",
    "Say again: tea and cake, tea and cake, tea and cake,",
    "Go on: Monday Tuesday Wednesday Monday Tuesday Wednesday Monday",
    "Copy: a b c d e f g a b c d e f g a b c",
    "Repeat: rain on the roof, rain on the roof, rain on",
    "Go on: up down left right up down left right up down",
    "Say again: salt, sugar, flour, milk; salt, sugar, flour, milk;",
    "What is the capital of France, and on which river is it?",
    "Write two lines about the first snow of a winter.",
    "Name three fruits with the colour of each.",
    "Explain in one sentence why the sky is blue.",
)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return path


def gate_on(model: Path, *methods: str, prompts: Path, detect: float, max_tokens: int) -> Gate:
    return speclift.verify(
        model=str(model),
        drafts=(DRAFT,),
        methods=methods,
        temperatures=(0.0, 1.0),
        requests=len(PROMPTS),
        max_tokens=max_tokens,
        detect=detect,
        prompts=prompts,
        threads=1,
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_method_that_keeps_the_seed_passes_at_temperatures_0_and_1(
    embedded_model: Path, prompts: Path
) -> None:
    gate = gate_on(embedded_model, *SAME_SEED, prompts=prompts, detect=0.1, max_tokens=8)
    said = {arm.arm: (arm.greedy, arm.sampled) for arm in gate.arms}
    assert {arm.arm: arm.result for arm in gate.arms} == dict.fromkeys(said, Result.PASS), said
    assert len(gate.arms) == len(SAME_SEED)
    assert {arm.sampled.method for arm in gate.arms if arm.sampled} == {"same-seed"}


@pytest.mark.long
def test_probabilistic_drafts_lose_the_seed_and_pass_by_the_targets_own_probabilities(
    embedded_model: Path, prompts: Path
) -> None:
    (arm,) = gate_on(embedded_model, PROBABILISTIC, prompts=prompts, detect=0.2, max_tokens=12).arms
    assert arm.sampled is not None
    assert arm.sampled.method == "calibration"
    assert arm.sampled.result is Result.PASS, arm.sampled.message
    assert arm.result is Result.PASS, arm.greedy
    assert arm.sampled.identity is not None
    assert arm.sampled.identity.events > 0


@pytest.fixture(scope="module")
def urls(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server without speculation and one with it."""
    engine = LlamaCpp(ServerSettings(model=str(embedded_model), threads=1, slots=4))
    arms = (baseline_arm(), Arm(name="spec", speculation=NGram(k=7, n=3)))
    logs = tmp_path_factory.mktemp("logs")
    with asyncio.Runner() as runner:
        servers: list[Server] = []
        try:
            servers += [runner.run(_launched(engine, arm, logs)) for arm in arms]
            yield servers[0].endpoint.base_url, servers[1].endpoint.base_url
        finally:
            for server in servers:
                runner.run(server.stop())


async def _launched(engine: LlamaCpp, arm: Arm, logs: Path) -> Server:
    return await engine.launch(arm, log=logs / arm.name)


@pytest.mark.parametrize("tamper", ["corrupt", "swap", "truncate"])
def test_a_proxy_before_the_real_engine_that_tampers_is_caught(
    tamper: str, urls: tuple[str, str], prompts: Path, cli: Cli
) -> None:
    plain, speculating = urls
    with proxy(speculating, tamper) as url:
        where = ("--engine", "attach", "--baseline-url", plain, "--spec-url", url)
        size = ("--requests", len(PROMPTS), "--max-tokens", 20, "--detect", 0.05)
        result = cli("verify", *where, *size, "--prompts", prompts, "--temperature", 0, "--json")
    assert result.code == 6, result.stderr
    assert result.document["greedy"]["faults"] > 0
