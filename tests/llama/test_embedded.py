"""The embedded llama.cpp, for real: every method it can run drafts, and what it hides is found out."""

from __future__ import annotations

import asyncio
import shutil
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import speclift.weights
from running import Cli
from speclift.client.client import Client, now_s
from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.errors import EngineError
from speclift.core.records import Place, Record
from speclift.core.speculation import Combined, DraftModel, NGram, Speculation, Synthetic
from speclift.core.traffic import Concurrency, Message, Request
from speclift.engines.llamacpp import engine as llamacpp
from speclift.engines.llamacpp.dialect.command_line import DIALECT
from speclift.engines.llamacpp.dialect.tables import NEWEST
from speclift.engines.llamacpp.engine import LlamaCpp
from speclift.engines.process import free_port
from speclift.engines.protocol import Server
from speclift.linter.metrics import SUFFIXES
from speclift.linter.rows import Life
from speclift.weights.gguf_header import Array, open_gguf

pytestmark = pytest.mark.llama

CONTEXT_TOKENS = 512
EDITED_ID = 20_000
(BUNDLED_DRAFT,) = Path(speclift.weights.__file__).parent.glob("bundled/*.gguf")
TEXT = "The small red fox jumped over the quiet stream and ran into the green forest near the old stone mill."
COPY = f"Repeat this text exactly, word for word, three times.\n\n{TEXT}\n{TEXT}\n{TEXT}\n"

# Each takes the path of the draft model.
METHODS: dict[str, Callable[[str], Speculation]] = {
    "ngram": lambda _: NGram(k=7, n=3),
    "ngram:map-k": lambda _: NGram(variant="map-k", k=8, n=4),
    "ngram:map-k4v": lambda _: NGram(variant="map-k4v", k=8, n=4),
    "ngram:mod": lambda _: NGram(variant="mod", k=16, n=16),
    "ngram:cache": lambda _: NGram(variant="cache"),
    "draft": lambda model: DraftModel(model=model, k=3),
    "draft, probabilistic": lambda model: DraftModel(model=model, k=3, sampling="probabilistic"),
    "draft, p_min and k_min": lambda model: DraftModel(model=model, k=4, k_min=1, p_min=0.3),
    "draft, KV of q8_0": lambda model: DraftModel(model=model, k=3, kv_type_k="q8_0", kv_type_v="q8_0"),
    "ngram+draft": lambda model: Combined(parts=(NGram(k=7, n=3), DraftModel(model=model, k=3))),
    "synthetic, all accepted": lambda model: Synthetic(inner=DraftModel(model=model, k=2), rates=(1.0, 1.0)),
    "synthetic, none accepted": lambda model: Synthetic(inner=DraftModel(model=model, k=2), rates=(0.0, 0.0)),
}


def settings(model: Path, *, kv_type: str | None = None) -> ServerSettings:
    return ServerSettings(
        model=str(model),
        context_tokens=CONTEXT_TOKENS,
        threads=1,
        kv_type_k=kv_type,
        kv_type_v=kv_type,
    )


async def say(server: Server, *, temperature: float = 0.0, max_tokens: int = 40) -> Record:
    request = Request(id="copy", messages=(Message(role="user", content=COPY),), max_tokens=max_tokens)
    place = Place(
        arm="any",
        launch=1,
        round=0,
        block=0,
        load=Concurrency(streams=1),
        request_id=request.id,
        segment=request.segment,
        temperature=temperature,
    )
    async with Client(server.endpoint, seed=7) as client:
        return await client.send(request, place, intended_s=now_s())


Use = Callable[[Server], Awaitable[list[Record]]]


def on_server(engine: LlamaCpp, speculation: Speculation | None, log: Path, use: Use) -> list[Record]:
    """What `use` measured on a server launched for it alone."""

    async def run() -> list[Record]:
        arm = baseline_arm() if speculation is None else Arm(name="spec", speculation=speculation)
        server = await engine.launch(arm, log=log)
        try:
            return await use(server)
        finally:
            await server.stop()

    return asyncio.run(run())


async def once(server: Server) -> list[Record]:
    return [await say(server)]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_launches_and_drafts(name: str, embedded_model: Path, tmp_path: Path) -> None:
    speculation = METHODS[name](str(BUNDLED_DRAFT))
    (record,) = on_server(LlamaCpp(settings(embedded_model)), speculation, tmp_path / "log", once)
    assert record.is_ok, record.error
    assert record.drafted is not None
    assert record.accepted is not None
    assert record.drafted > 0
    if name == "synthetic, all accepted":
        assert record.accepted == record.drafted
    if name == "synthetic, none accepted":
        assert record.accepted == 0


def test_the_page_of_metrics_is_what_lint_takes_it_for(embedded_model: Path, tmp_path: Path) -> None:
    exported: set[str] = set()

    async def use(server: Server) -> list[Record]:
        record = await say(server)
        exported.update(name.partition("{")[0] for name in (await server.counters()).values)
        return [record]

    on_server(LlamaCpp(settings(embedded_model)), NGram(k=7, n=3), tmp_path / "log", use)
    names = {
        f"llamacpp:{row.name}{SUFFIXES[row.kind][0]}"
        for row in DIALECT.metrics.table
        if row.life(NEWEST) is Life.THERE
    }
    assert exported == names


async def cold_and_hot(server: Server) -> list[Record]:
    return [await say(server, temperature=temperature) for temperature in (0.0, 1.0)]


@pytest.fixture(scope="module")
def plain(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """What the model says without speculation, cold and hot."""
    log = tmp_path_factory.mktemp("plain") / "log"
    return on_server(LlamaCpp(settings(embedded_model)), None, log, cold_and_hot)


@pytest.mark.parametrize("name", ["ngram", "draft"])
def test_the_same_seed_gives_the_same_text_with_and_without_speculation(
    name: str, plain: list[Record], embedded_model: Path, tmp_path: Path
) -> None:
    speculation = METHODS[name](str(BUNDLED_DRAFT))
    speculated = on_server(LlamaCpp(settings(embedded_model)), speculation, tmp_path / "spec", cold_and_hot)
    assert [record.text for record in speculated] == [record.text for record in plain]
    assert plain[0].text != plain[1].text
    assert all(record.drafted for record in speculated)


def test_a_taken_port_is_tried_again_with_another(
    embedded_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(llamacpp, "free_port", lambda: next(ports))
        (record,) = on_server(LlamaCpp(settings(embedded_model)), None, tmp_path / "log", once)
    assert record.is_ok, record.error
    assert list(ports) == []


# Drafts that do not fit


@pytest.fixture(scope="module")
def other_vocabulary(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A copy of the model with the first letter of one token changed; the token before and after."""
    path = tmp_path_factory.mktemp("models") / "other.gguf"
    shutil.copyfile(embedded_model, path)
    with open_gguf(embedded_model) as header:
        tokens = header.fields["tokenizer.ggml.tokens"]
        assert isinstance(tokens, Array)
        position = tokens.start
        for _ in range(EDITED_ID):
            (length,) = struct.unpack_from("<Q", header.data, position)
            position += 8 + length
        before = header.texts(tokens)[EDITED_ID]
    assert isinstance(before, str)
    last = len(before.encode()) - 1
    after = before[:-1] + "@"
    with path.open("r+b") as stream:
        stream.seek(position + 8 + last)
        stream.write(b"@")
    return path, before, after


def test_a_draft_of_another_vocabulary_is_refused_before_any_launch_with_the_token_named(
    other_vocabulary: tuple[Path, str, str], embedded_model: Path, cli: Cli, tmp_path: Path
) -> None:
    draft, before, after = other_vocabulary
    result = cli("decide", "--model", embedded_model, "--draft", draft, "--study", "s")
    assert result.code == 1
    assert "other.gguf does not fit" in result.stderr
    named = (f"id {EDITED_ID}", repr(before), repr(after))
    assert [words for words in named if words not in result.stderr] == []
    assert not (tmp_path / "s").exists()


def test_llama_cpps_silent_fallback_is_caught_even_where_the_check_before_is_bypassed(
    other_vocabulary: tuple[Path, str, str], embedded_model: Path, tmp_path: Path
) -> None:
    draft = DraftModel(model=str(other_vocabulary[0]), k=3)
    with pytest.raises(EngineError, match=r"needs draft, .*speculative=\[False\]") as caught:
        on_server(LlamaCpp(settings(embedded_model)), draft, tmp_path / "log", once)
    assert "vocab" in caught.value.log_tail


def test_a_whole_study_on_the_embedded_engine_ends_with_a_verdict(
    embedded_model: Path, cli: Cli, tmp_path: Path
) -> None:
    size = (
        "--segment",
        "verbatim-rewrite",
        "--requests",
        2,
        "--max-tokens",
        16,
        "--launches",
        1,
        "--threads",
        1,
    )
    arms = ("--model", embedded_model, "--method", "ngram,k=7,n=6")
    result = cli("decide", *arms, *size, "--json", "--study", "s")
    assert result.code in {0, 3, 4, 5}, result.stderr
    document = result.document
    assert document["kv_tokens"]["baseline"] == 2048
    assert document["provenance"]["engine_version"].startswith("xllamacpp ")
    assert document["provenance"]["model_sha256"]
    assert {cell["arm"] for cell in document["cells"]} == {"baseline", "ngram-k7-n6"}
    assert {cell["failed"] for cell in document["cells"]} == {0}
