"""One server process: when it counts as ready, and what is said when it never is."""

from __future__ import annotations

import asyncio
import socket
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from speclift.core.errors import EngineError
from speclift.engines import process as process_module
from speclift.engines.process import ServerProcess, free_port

SILENT = """
    import socket, sys, time
    server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    print("listening", flush=True)
    time.sleep(600)
"""
ANSWERS = """
    import sys
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            code = {"/health": 200, "/loading": 503}.get(self.path, 404)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(b"an answer")

        def do_POST(self):
            self.send_response(200)
            if self.path == "/cut":
                self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"{")

    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

Use = Callable[[ServerProcess], Awaitable[None]]


def with_server(script: str, log: Path, use: Use) -> ServerProcess:
    """Runs `use` on a server and stops it, also when that raises."""

    async def run() -> ServerProcess:
        port = free_port()
        command = (sys.executable, "-c", textwrap.dedent(script), str(port))
        process = await ServerProcess.start(command, base_url=f"http://127.0.0.1:{port}", log=log)
        try:
            await use(process)
        finally:
            await process.stop()
        return process

    return asyncio.run(run())


def ready(path: str = "/health", *, limit_s: float = 30.0) -> Use:
    async def use(process: ServerProcess) -> None:
        await process.wait_until_ready(path=path, limit_s=limit_s)

    return use


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "HEALTH_ANSWER_S", 0.3)


def test_an_engine_that_ends_first_fails_at_once_with_its_code_and_log(tmp_path: Path) -> None:
    script = "import sys; print('out of memory, sorry', file=sys.stderr); sys.exit(9)"
    with pytest.raises(EngineError, match="ended with code 9") as caught:
        with_server(script, tmp_path / "log", ready(limit_s=60))
    assert caught.value.log_tail == "out of memory, sorry"
    assert str(tmp_path / "log") in caught.value.hint


@pytest.mark.slow
def test_an_engine_that_ended_is_seen_even_while_another_program_holds_its_port(tmp_path: Path) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            command = (sys.executable, "-c", "raise SystemExit('cannot bind')")
            process = await ServerProcess.start(command, base_url=url, log=tmp_path / "log")
            try:
                await process.wait_until_ready(path="/health", limit_s=600)
            finally:
                await process.stop()

    with pytest.raises(EngineError, match="ended with code 1") as caught:
        asyncio.run(run())
    assert caught.value.log_tail == "cannot bind"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "path"),
    [(SILENT, "/health"), (ANSWERS, "/loading")],
    ids=["takes connections and never answers", "always says it is loading"],
)
def test_an_engine_that_never_gets_ready_is_given_up_and_stopped(
    script: str, path: str, tmp_path: Path
) -> None:
    seen: list[ServerProcess] = []

    async def use(process: ServerProcess) -> None:
        seen.append(process)
        await process.wait_until_ready(path=path, limit_s=0.8)

    with pytest.raises(EngineError, match="not ready after"):
        with_server(script, tmp_path / "log", use)
    assert seen[0].exit_code is not None
