"""A watch while it goes on: what it serves, what it posts, what it takes up again, and settings read anew."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from live_pages import Served, text_of
from processes import eventually
from running import hosted
from scripted_http import ScriptedServer, answered, scripted
from speclift.cli.watching import FLAGS, read_watch_file
from speclift.core.errors import OperatingError
from speclift.core.flags import assembled
from speclift.core.live import Payoff, Watched
from speclift.live.ask import Listening, WatchAsk
from speclift.verbs.watch import watch
from speclift.verbs.watch_plan import WatchPlan, WatchTarget

pytestmark = pytest.mark.slow

ANY = Listening(host="127.0.0.1", port=0)
BRIEF: dict[str, Any] = {"interval_s": 0.1, "window_s": 2.0, "break_even": 2.0}


# In the file, from its syntax to its values.
BROKEN = (
    "urls = [",
    "urls = []",
    'urls = ["x"]',
    'urls = ["http://a"]\nnonsense = 1',
    'urls = ["http://a"]\ninterval = "0s"',
)


class Engine:
    """A server whose traffic goes on with every page that is asked for."""

    def __init__(self) -> None:
        self.accepted = 2.2
        self.is_up = True
        self._served, self._count = Served(), 0

    def __call__(self, head: bytes, _: bytes) -> bytes:
        if not head.startswith(b"GET /metrics "):
            return answered(b'{"version": "0.32.0"}')
        if not self.is_up:
            return answered(b"down", status=503)
        self._count += 1
        spread = 0.99 if self._count % 2 else 1.01
        return answered(
            text_of(self._served.interval(accepted=self.accepted * spread, requests=2000)).encode()
        )


class Run:
    """What was heard of a watch so far."""

    def __init__(self) -> None:
        self.heard: list[Watched] = []
        self.said: list[str] = []

    def tell(self, watched: Watched) -> None:
        self.heard.append(watched)

    @property
    def address(self) -> str:
        line = next(line for line in self.said if line.startswith("listening on "))
        return line.removeprefix("listening on ").rstrip("/")

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_so():
                await asyncio.sleep(0.01)

    async def answers(self, payoff: Payoff) -> None:
        await self.until(lambda: bool(self.heard) and self.heard[-1].verdict is payoff)


def plan(*urls: str, **fields: Any) -> WatchPlan:
    return WatchPlan(targets=tuple(WatchTarget(url=url) for url in urls), ask=WatchAsk(**{**BRIEF, **fields}))


@asynccontextmanager
async def watching(planned: WatchPlan, reread: Callable[[], WatchPlan] | None = None) -> AsyncIterator[Run]:
    run = Run()
    work = asyncio.create_task(watch(planned, tell=run.tell, say=run.said.append, reread=reread))
    try:
        yield run
    finally:
        work.cancel()
        (ended,) = await asyncio.gather(work, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended


async def got(url: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "state" / "watch.db"


class TestWhatIsServed:
    def test_the_page_metrics_and_json_say_the_same(self, history: Path) -> None:
        async def go() -> None:
            async with (
                scripted(Engine()) as server,
                watching(plan(server.url, listen=ANY, history=history)) as run,
            ):
                await run.answers(Payoff.PAYS)
                assert "Speculation pays" in await got(run.address)
                metrics = await got(f"{run.address}/metrics")
                assert f'speclift_pays{{server="{server.url}"}} 1' in metrics
                assert 'version="0.32.0"' in metrics
                (document,) = json.loads(await got(f"{run.address}/api/now"))["servers"]
                assert (document["url"], document["verdict"]) == (server.url, "pays")
                kept = json.loads(await got(f"{run.address}/api/history?server={server.url}&hours=1"))
                assert len(kept["looks"]) >= 1
                assert kept["looks"][-1]["accepted_length"] == pytest.approx(3.2, rel=0.05)
                assert await got(f"{run.address}/healthz") == "ok\n"
                assert oct(history.stat().st_mode)[-3:] == "600"

        asyncio.run(go())

    def test_several_servers_are_a_list_and_each_has_its_page(self, history: Path) -> None:
        async def go() -> None:
            losing = Engine()
            losing.accepted = 0.2
            async with (
                scripted(Engine()) as one,
                scripted(losing) as other,
                watching(plan(one.url, other.url, listen=ANY, history=history)) as run,
            ):
                await run.until(
                    lambda: {Payoff.PAYS, Payoff.DOES_NOT_PAY} <= {each.verdict for each in run.heard}
                )
                page = await got(run.address)
                assert page.index(other.url) < page.index(one.url)
                assert "Speculation pays" in await got(f"{run.address}/?server={one.url}")

        asyncio.run(go())

    def test_two_watches_do_not_share_a_history(self, history: Path) -> None:
        async def go() -> None:
            async with (
                scripted(Engine()) as server,
                watching(plan(server.url, listen=ANY, history=history)) as run,
            ):
                await run.until(lambda: bool(run.heard))
                with pytest.raises(OperatingError, match="another speclift watch"):
                    await watch(plan(server.url, listen=ANY, history=history), tell=run.tell)

        asyncio.run(go())


class TestTakenUp:
    def test_a_new_watch_knows_since_when_and_shows_what_was(self, history: Path) -> None:
        async def go() -> None:
            engine = Engine()
            async with scripted(engine) as server:
                async with watching(plan(server.url, listen=ANY, history=history)) as run:
                    await run.answers(Payoff.PAYS)
                    since_s = run.heard[-1].since_s
                    ended_s = time.time()
                async with watching(plan(server.url, listen=ANY, history=history)) as run:
                    await run.answers(Payoff.PAYS)
                    assert run.heard[-1].since_s == since_s
                    kept = json.loads(await got(f"{run.address}/api/history?server={server.url}"))["looks"]
                    assert kept[0]["at"] < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ended_s + 1))

        asyncio.run(go())


class TestWebhook:
    @pytest.mark.slow
    def test_a_change_is_posted_once_and_so_is_its_end(self) -> None:
        async def go() -> list[str]:
            engine = Engine()
            async with scripted(engine) as server, scripted(lambda *_: answered()) as hook:
                async with watching(plan(server.url, webhook=f"{hook.url}/x", window_s=0.5)) as run:
                    await run.answers(Payoff.PAYS)
                    engine.accepted = 0.1
                    await run.answers(Payoff.DOES_NOT_PAY)
                    await run.until(lambda: len(hook.requests) == 1)
                    engine.accepted = 2.2
                    await run.answers(Payoff.PAYS)
                    await run.until(lambda: len(hook.requests) == 2)
                return posted(hook)

        assert asyncio.run(go()) == ["does-not-pay", "pays"]

    @pytest.mark.slow
    def test_a_server_that_goes_is_news_after_three_looks_and_when_it_is_back(self) -> None:
        async def go() -> list[bool]:
            engine = Engine()
            async with scripted(engine) as server, scripted(lambda *_: answered()) as hook:
                async with watching(plan(server.url, webhook=hook.url)) as run:
                    await run.answers(Payoff.PAYS)
                    engine.is_up = False
                    await run.until(lambda: len(hook.requests) == 1)
                    assert sum(bool(each.unreachable) for each in run.heard) >= 3
                    engine.is_up = True
                    await run.until(lambda: len(hook.requests) == 2)
                return [json.loads(body)["unreachable"] is not None for _, body in hook.requests]

        assert asyncio.run(go()) == [True, False]


def posted(hook: ScriptedServer) -> list[str]:
    return [json.loads(body)["verdict"] for _, body in hook.requests]


class TestReadAnew:
    @pytest.mark.slow
    def test_servers_come_and_go_and_the_others_keep_what_they_know(self, tmp_path: Path) -> None:
        async def go() -> None:
            engines = [Engine() for _ in range(3)]
            async with (
                scripted(engines[0]) as kept,
                scripted(engines[1]) as gone,
                scripted(engines[2]) as new,
            ):
                config = tmp_path / "watch.toml"
                config.write_text(f'urls = ["{kept.url}", "{gone.url}"]\ninterval = "100ms"\nwindow = "5s"\n')

                def reread() -> WatchPlan:
                    targets, values = read_watch_file(config, FLAGS)
                    return WatchPlan(targets=targets, ask=assembled(WatchAsk, values))

                async with watching(reread(), reread) as run:
                    await run.until(lambda: {each.url for each in run.heard} == {kept.url, gone.url})
                    await run.until(lambda: latest(run, kept.url).window_s > 0.4)
                    config.write_text(
                        f'urls = ["{kept.url}", "{new.url}"]\ninterval = "150ms"\nwindow = "5s"\n'
                    )
                    os.kill(os.getpid(), signal.SIGHUP)
                    await run.until(lambda: any(each.url == new.url for each in run.heard))
                    assert "settings read anew: 2 servers" in run.said
                    asked, window_s = len(gone.requests), latest(run, kept.url).window_s
                    await run.until(lambda: latest(run, kept.url).window_s > window_s + 0.3)
                    assert len(gone.requests) <= asked + 1
                    assert window_s > 0.4

        asyncio.run(go())

    @pytest.mark.parametrize("text", BROKEN)
    def test_a_broken_file_changes_nothing(self, tmp_path: Path, text: str) -> None:
        async def go() -> None:
            async with scripted(Engine()) as server:
                config = tmp_path / "watch.toml"
                config.write_text(text)

                def reread() -> WatchPlan:
                    from speclift.cli.watching import watch_plan

                    return watch_plan((), {}, config)

                async with watching(plan(server.url), reread) as run:
                    await run.until(lambda: bool(run.heard))
                    os.kill(os.getpid(), signal.SIGHUP)
                    await run.until(lambda: bool(run.said))
                    assert "the old ones stay" in run.said[0]
                    looks = len(run.heard)
                    await run.until(lambda: len(run.heard) > looks + 1)

        asyncio.run(go())


def latest(run: Run, url: str) -> Watched:
    return next(each for each in reversed(run.heard) if each.url == url)


class TestKeys:
    def test_each_server_gets_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KEY_OF_ALL", "key-of-all")
        monkeypatch.setenv("KEY_OF_ONE", "key-of-one")

        async def go() -> None:
            async with scripted(Engine()) as one, scripted(Engine()) as other:
                config = tmp_path / "watch.toml"
                config.write_text(
                    f'urls = ["{other.url}"]\napi_key_env = "KEY_OF_ALL"\ninterval = "100ms"\n'
                    f'[[server]]\nurl = "{one.url}"\napi_key_env = "KEY_OF_ONE"\n'
                )
                targets, values = read_watch_file(config, FLAGS)
                async with watching(WatchPlan(targets=targets, ask=assembled(WatchAsk, values))) as run:
                    await run.until(lambda: {each.url for each in run.heard} == {one.url, other.url})
                assert all(b"Bearer key-of-one\r\n" in head for head, _ in one.requests)
                assert all(b"Bearer key-of-all\r\n" in head for head, _ in other.requests)

        asyncio.run(go())

    @pytest.mark.slow
    def test_over_tls_with_the_systems_trust(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from tls_front import certificate, tls_front

        monkeypatch.setenv("WATCH_KEY", "open-sesame")
        trusted = certificate(tmp_path)

        async def go(url: str) -> Watched:
            async with watching(plan(url, api_key_env="WATCH_KEY")) as run:
                await run.until(lambda: bool(run.heard))
            return run.heard[0]

        with hosted("flavour=vllm") as url, tls_front(url, certificate=trusted, key="open-sesame") as front:
            assert "CERTIFICATE_VERIFY_FAILED" in (asyncio.run(go(front.url)).unreachable or "")
            monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
            assert asyncio.run(go(front.url)).engine == "vllm"


@pytest.mark.slow
class TestAsAProcess:
    def test_killed_and_started_again_its_history_goes_on(self, history: Path) -> None:
        with hosted("flavour=vllm") as url:
            first = started(url, history)
            # Nobody asks for them: they are written by themselves.
            eventually(lambda: len(written_looks(history)) >= 3, what="three looks were written")
            before = written_looks(history)
            os.kill(first[0].pid, signal.SIGKILL)
            first[0].communicate()
            second = started(url, history)
            eventually(lambda: len(kept(second[1], url)) > len(before) + 2, what="looks after it")
            assert written_looks(history)[: len(before)] == before
            second[0].send_signal(signal.SIGTERM)
            second[0].communicate(timeout=10)
            assert second[0].returncode == 130

    def test_a_hangup_does_not_end_a_service(self, tmp_path: Path) -> None:
        """Neither one with a file of settings nor one without."""
        with hosted("flavour=vllm") as url:
            config = tmp_path / "watch.toml"
            config.write_text(f'urls = ["{url}"]\ninterval = "200ms"\n')
            services = [
                started("--config", tmp_path / "one.db", str(config)),
                started(url, tmp_path / "other.db"),
            ]
            for process, _ in services:
                for _ in range(2):
                    process.send_signal(signal.SIGHUP)
                    assert process.stderr is not None
                    while "settings read anew" not in (line := process.stderr.readline()):
                        assert line, "it ended"
            time.sleep(5.5)  # longer than an interrupt takes to end for sure
            for process, address in services:
                assert process.poll() is None
                assert len(kept(address, url)) > 3
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=10)
                assert process.returncode == 130


def started(*words: str | Path) -> tuple[subprocess.Popen[str], str]:
    first, history, *more = words
    command = [sys.executable, "-m", "speclift", "watch", str(first), *map(str, more)]
    if not more:
        command += ["--interval", "200ms", "--window", "5s"]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--history", str(history)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("listening on "), line + process.stderr.read()
    return process, line.removeprefix("listening on ").strip().rstrip("/")


def written_looks(history: Path) -> list[tuple[object, ...]]:
    """As another process finds them in the file, the oldest first."""
    try:
        with closing(sqlite3.connect(f"file:{history}?mode=ro", uri=True)) as database:
            return database.execute("SELECT * FROM looks ORDER BY at_s").fetchall()
    except sqlite3.OperationalError:  # not there yet
        return []


def kept(address: str, url: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{address}/api/history?server={url}&hours=1", timeout=10) as answer:
            looks: list[dict[str, Any]] = json.loads(answer.read())["looks"]
            return looks
    except urllib.error.HTTPError as error:
        error.close()
        return []
