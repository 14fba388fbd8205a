"""What the llama.cpp adapter does about a server that misbehaves at launch. The server is a stub program."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from speclift.core.arm import Arm, ServerSettings, baseline_arm
from speclift.core.errors import EngineError
from speclift.core.speculation import Combined, DraftModel, Head, NGram, Synthetic
from speclift.engines.llamacpp import engine as llamacpp
from speclift.engines.llamacpp.engine import BIND_TRIES, LlamaCpp
from speclift.engines.process import free_port
from speclift.engines.protocol import Server

NGRAM = Arm(name="ngram-k8", speculation=NGram(k=8))
GIB = 2**30

# Counts its starts in a file; fails to bind on the first so many, then serves what the launch looks at.
STUB = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

told = json.loads(Path({told!r}).read_text())
if sys.argv[1:] == ["--version"]:
    print(told.get("version", ""), file=sys.stderr)
    sys.exit(0)
starts = Path({starts!r})
starts.write_text(str(int(starts.read_text()) + 1))
if int(starts.read_text()) <= told.get("bind_failures", 0):
    print("start: couldn't bind HTTP server socket, hostname: 127.0.0.1", file=sys.stderr)
    sys.exit(1)
if "dies_saying" in told:
    print(told["dies_saying"], file=sys.stderr)
    sys.exit(1)


class Handler(BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.answer([{{"n_ctx": 512, "speculative": told.get("speculative", False)}}])

    def do_POST(self):
        drafts = told.get("drafts", {{}})
        self.answer({{"usage": {{"completion_tokens": 96}}, "timings": {{"predicted_n": 96, **drafts}}}})


port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

Program = Callable[..., str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A llama-server that behaves as told."""
    told, starts, path = tmp_path / "told.json", tmp_path / "starts", tmp_path / "llama-server"

    def build(**behaviour: object) -> str:
        told.write_text(json.dumps(behaviour))
        starts.write_text("0")
        path.write_text(STUB.format(python=sys.executable, told=str(told), starts=str(starts)))
        path.chmod(0o755)
        return str(path)

    return build


def starts(tmp_path: Path) -> int:
    return int((tmp_path / "starts").read_text())


def launch(
    binary: str, tmp_path: Path, arm: Arm, use: Callable[[Server], None] = lambda _server: None
) -> None:
    async def run() -> None:
        server = await LlamaCpp(ServerSettings(model="m.gguf"), binary=binary).launch(
            arm, log=tmp_path / "log"
        )
        try:
            use(server)
        finally:
            await server.stop()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("failures", range(BIND_TRIES))
def test_a_port_taken_before_the_engine_bound_it_is_tried_again_with_another(
    failures: int, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []

    def counted_port() -> int:
        ports.append(free_port())
        return ports[-1]

    monkeypatch.setattr(llamacpp, "free_port", counted_port)
    urls: list[str] = []
    launch(
        program(bind_failures=failures),
        tmp_path,
        baseline_arm(),
        lambda server: urls.append(server.endpoint.base_url),
    )
    assert starts(tmp_path) == len(ports) == failures + 1
    assert urls == [f"http://127.0.0.1:{ports[-1]}"]


def test_a_server_that_fell_back_to_no_speculation_is_refused(program: Program, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"needs ngram, .* speculative=\[False\]"):
        launch(program(speculative=False), tmp_path, NGRAM)
    assert starts(tmp_path) == 1


def test_a_server_that_claims_to_speculate_and_drafts_nothing_is_refused(
    program: Program, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="drafted no token"):
        launch(program(speculative=True), tmp_path, NGRAM)


def test_a_server_that_drafts_is_taken_with_the_context_it_reports(program: Program, tmp_path: Path) -> None:
    seen: list[int | None] = []
    drafts = {"draft_n": 80, "draft_n_accepted": 60}
    launch(
        program(speculative=True, drafts=drafts),
        tmp_path,
        NGRAM,
        lambda server: seen.append(server.kv_tokens),
    )
    assert seen == [512]


def sparse_file(path: Path, *, size_bytes: int) -> str:
    with path.open("wb") as stream:
        stream.truncate(size_bytes)
    return str(path)


@pytest.mark.parametrize(
    ("arm", "fits"),
    [
        (NGRAM, True),
        (Arm(name="d", speculation=DraftModel(model="large.gguf")), False),
        (Arm(name="h", speculation=Head(kind="eagle3", model="large.gguf")), False),
        (Arm(name="s", speculation=Synthetic(inner=DraftModel(model="large.gguf", k=1), rates=(1,))), False),
        (Arm(name="c", speculation=Combined(parts=(NGram(), DraftModel(model="large.gguf")))), False),
        (Arm(name="m", speculation=DraftModel(model="missing.gguf")), True),
    ],
    ids=lambda value: value.name if isinstance(value, Arm) else "",
)
def test_arms_stay_up_side_by_side_only_while_all_their_models_fit_in_memory(
    arm: Arm, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(llamacpp, "available_memory_bytes", lambda: 20 * GIB)
    sparse_file(tmp_path / "large.gguf", size_bytes=2 * GIB)
    small = sparse_file(tmp_path / "small.gguf", size_bytes=GIB // 2)
    engine = LlamaCpp(ServerSettings(model=small), binary="sh")
    assert engine.fits_together((baseline_arm(), arm)) is fits
