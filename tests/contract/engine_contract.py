"""What every engine promises, written once. To add an engine: subclass EngineContract in a test file of this
folder and give the three fixtures marked below; all tests here then run against it. What engines rightly do in
different ways is asked through the `expect_…` methods and those beside them, which a subclass may override."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from in_threads import SendingThread
from processes import children, eventually, guardian_of, is_running, listening_addresses
from speclift.client.client import Client, now_s
from speclift.core.arm import Arm, baseline_arm
from speclift.core.errors import EngineError
from speclift.core.records import Counters, Outcome, Phase, Place, Record
from speclift.core.traffic import Concurrency, Message, Request
from speclift.engines.protocol import Engine, Server

LOOPBACK = "0100007F"  # 127.0.0.1 as /proc/net/tcp writes it
MAX_TOKENS = 40
# A text to copy, so that any drafter has something to find.
TEXT = "The small red fox jumped over the quiet stream and ran into the green forest near the old stone mill."
COPY = f"Repeat this text exactly, word for word, three times.\n\n{TEXT}\n{TEXT}\n{TEXT}\n"
CHAT = Request(
    id="chat", messages=(Message(role="user", content=COPY),), temperature=0.0, max_tokens=MAX_TOKENS
)
COMPLETION = Request(id="completion", prompt=f"{TEXT}\n" * 4, temperature=0.0, max_tokens=MAX_TOKENS)


class EngineContract:
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, tmp_path_factory: pytest.TempPathFactory) -> Engine:
        """Given by the subclass: the engine under test."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def speculative(cls) -> Arm:
        """Given by the subclass: an arm that drafts on a text to copy."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def hopeless(cls) -> tuple[Engine, str]:
        """Given by the subclass: an engine whose server cannot start, and a word its log then holds."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def mortal(cls, engine: Engine) -> Engine:
        """An engine whose baseline server may be killed without harm to the servers of `up`."""
        return engine

    @pytest.fixture(scope="class")
    @classmethod
    def runner(cls) -> Iterator[asyncio.Runner]:
        """One event loop for the class, so that one launch can serve many tests."""
        with asyncio.Runner() as runner:
            yield runner

    @pytest.fixture(scope="class")
    @classmethod
    def up(
        cls,
        engine: Engine,
        speculative: Arm,
        runner: asyncio.Runner,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Iterator[dict[str, Server]]:
        """Both sides up, by name: baseline and spec."""
        logs = tmp_path_factory.mktemp("logs")
        servers: dict[str, Server] = {}
        try:
            for name, arm in (("baseline", baseline_arm()), ("spec", speculative)):
                servers[name] = runner.run(engine.launch(arm, log=logs / f"{name}.log"))
            yield servers
        finally:
            for server in servers.values():
                runner.run(server.stop())

    @pytest.fixture(autouse=True)
    def _sender_in_a_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Engines are in question here; tests/client has the process that sends."""
        monkeypatch.setattr("speclift.client.client.SendingProcess", SendingThread)

    # What differs between engines

    version_pattern = r"\d"

    def processes_of(self, server: Server) -> list[int]:
        """The guardian and its engine."""
        guardian = guardian_of(server.command)
        return [guardian, *children(guardian)]

    def kill(self, server: Server) -> None:
        guardian, *engines = self.processes_of(server)
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not is_running(guardian), what="the guardian follows its engine")

    def reason(self, error: EngineError) -> str:
        """Where a failed launch says what the engine said."""
        return error.log_tail

    def expect_command(self, server: Server) -> None:
        assert is_running(guardian_of(server.command))

    def expect_arms_to_differ(self, plain: tuple[str, ...], speculated: tuple[str, ...]) -> None:
        assert [word for word in plain if word not in speculated] == []
        assert len(speculated) > len(plain)

    def expect_configuration(self, engine: Engine, arm: Arm) -> None:
        assert str(arm.k) in engine.configurations(arm)["command"]
        assert engine.config(arm)

    def expect_drafts(self, record: Record) -> None:
        assert record.drafted is not None
        assert record.drafted > 0
        assert record.steps is not None
        assert sum(step.drafted for step in record.steps) == record.drafted
        assert sum(step.accepted for step in record.steps) == record.accepted
        assert all(0 <= step.accepted <= step.drafted for step in record.steps)

    def expect_totals(self, server: Server, runner: asyncio.Runner) -> None:
        before = runner.run(server.counters())
        records = runner.run(ask(server, [CHAT, COMPLETION, CHAT]))
        grown = runner.run(server.counters()).since(before)
        assert total(grown, "num_draft_tokens_total") == sum(record.drafted or 0 for record in records)
        assert total(grown, "num_accepted_tokens_total") == sum(record.accepted or 0 for record in records)
        tokens = total(grown, "tokens_predicted_total") + total(grown, "generation_tokens_total")
        assert tokens == sum(record.output_tokens or 0 for record in records)

    def expect_kv_tokens(self, server: Server) -> None:
        assert server.kv_tokens is not None
        assert server.kv_tokens > MAX_TOKENS

    def expect_death(self, death: str) -> None:
        assert str(128 + signal.SIGKILL) in death

    def expect_after_stop(self, server: Server, pids: list[int]) -> None:
        assert [pid for pid in pids if is_running(pid)] == []
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port_of(server))) != 0

    # Requests

    @pytest.mark.parametrize("side", ["baseline", "spec"])
    @pytest.mark.parametrize("request_", [CHAT, COMPLETION], ids=lambda request: request.id)
    def test_a_streamed_request_becomes_a_record_with_the_servers_token_counts(
        self, side: str, request_: Request, up: dict[str, Server], runner: asyncio.Runner
    ) -> None:
        (record,) = runner.run(ask(up[side], [request_]))
        assert record.outcome is Outcome.OK, record.error
        assert record.output_tokens is not None
        assert 2 <= record.output_tokens <= MAX_TOKENS
        assert record.prompt_tokens
        assert record.text
        assert record.ttft_s is not None
        assert record.tpot_s is not None
        assert record.sent_s <= (record.first_token_s or 0) <= (record.last_token_s or 0) <= record.end_s

    def test_the_baseline_drafts_nothing(self, up: dict[str, Server], runner: asyncio.Runner) -> None:
        (record,) = runner.run(ask(up["baseline"], [CHAT]))
        assert not record.drafted

    @pytest.mark.parametrize("request_", [CHAT, COMPLETION], ids=lambda request: request.id)
    def test_a_speculative_arm_says_what_each_step_drafted_and_accepted(
        self, request_: Request, up: dict[str, Server], runner: asyncio.Runner
    ) -> None:
        (record,) = runner.run(ask(up["spec"], [request_]))
        self.expect_drafts(record)

    def test_greedy_text_is_the_same_with_and_without_speculation(
        self, up: dict[str, Server], runner: asyncio.Runner
    ) -> None:
        plain, speculated = (runner.run(ask(up[side], [CHAT, COMPLETION])) for side in ("baseline", "spec"))
        assert [record.text for record in speculated] == [record.text for record in plain]

    def test_the_engines_totals_grow_by_what_the_responses_say(
        self, up: dict[str, Server], runner: asyncio.Runner
    ) -> None:
        self.expect_totals(up["spec"], runner)

    @pytest.mark.parametrize("side", ["baseline", "spec"])
    def test_the_server_says_how_much_it_can_keep_in_its_kv_cache(
        self, side: str, up: dict[str, Server]
    ) -> None:
        self.expect_kv_tokens(up[side])

    # Commands

    @pytest.mark.parametrize("side", ["baseline", "spec"])
    def test_the_process_that_runs_is_the_command_the_server_names(
        self, side: str, up: dict[str, Server]
    ) -> None:
        self.expect_command(up[side])

    @pytest.mark.parametrize("side", ["baseline", "spec"])
    def test_the_command_shown_beforehand_is_the_one_launched(
        self, side: str, engine: Engine, speculative: Arm, up: dict[str, Server]
    ) -> None:
        arm = baseline_arm() if side == "baseline" else speculative
        shown = engine.command(arm, port=port_of(up[side]))
        assert up[side].command[: len(shown)] == shown

    def test_only_the_speculative_settings_differ_between_the_arms(
        self, engine: Engine, speculative: Arm
    ) -> None:
        plain, speculated = engine.command(baseline_arm(), port=0), engine.command(speculative, port=0)
        self.expect_arms_to_differ(plain, speculated)

    def test_a_user_gets_a_command_and_a_configuration_of_the_arm(
        self, engine: Engine, speculative: Arm
    ) -> None:
        self.expect_configuration(engine, speculative)

    def test_the_engine_names_its_version(self, engine: Engine) -> None:
        assert re.search(self.version_pattern, engine.version())

    def test_whether_arms_fit_side_by_side_is_a_plain_yes_or_no(
        self, engine: Engine, speculative: Arm
    ) -> None:
        assert isinstance(engine.fits_together((baseline_arm(), speculative)), bool)

    @pytest.mark.parametrize("side", ["baseline", "spec"])
    def test_the_server_listens_on_loopback_alone(self, side: str, up: dict[str, Server]) -> None:
        assert urlsplit(up[side].endpoint.base_url).hostname == "127.0.0.1"
        assert listening_addresses(port_of(up[side])) == {LOOPBACK}

    # Ends

    def test_a_server_that_lives_reports_no_death(self, up: dict[str, Server]) -> None:
        assert [server.death() for server in up.values()] == [None, None]

    def test_stop_ends_what_launch_started_and_may_be_called_again(
        self, engine: Engine, speculative: Arm, runner: asyncio.Runner, tmp_path: Path
    ) -> None:
        server = runner.run(engine.launch(speculative, log=tmp_path / "log"))
        pids = self.processes_of(server)
        assert len(pids) == 2
        runner.run(server.stop())
        runner.run(server.stop())
        self.expect_after_stop(server, pids)

    def test_a_killed_engine_is_reported_dead_and_its_requests_fail_as_records(
        self, mortal: Engine, runner: asyncio.Runner, tmp_path: Path
    ) -> None:
        server = runner.run(mortal.launch(baseline_arm(), log=tmp_path / "log"))
        try:
            self.kill(server)
            (record,) = runner.run(ask(server, [CHAT]))
            assert record.outcome is Outcome.DISCONNECTED
            # asyncio learns of an exit in a thread of its own, so the loop must run for it to arrive.
            eventually(lambda: _after_a_moment(runner, server.death) is not None, what="the death is seen")
            self.expect_death(server.death() or "")
            with pytest.raises(EngineError):
                runner.run(server.counters())
        finally:
            runner.run(server.stop())

    def test_a_launch_that_cannot_work_fails_with_what_the_engine_said(
        self, hopeless: tuple[Engine, str], runner: asyncio.Runner, tmp_path: Path
    ) -> None:
        engine, said = hopeless
        with pytest.raises(EngineError) as caught:
            runner.run(engine.launch(baseline_arm(), log=tmp_path / "log"))
        assert said in self.reason(caught.value)


async def ask(server: Server, requests: Iterable[Request]) -> list[Record]:
    async with Client(server.endpoint, seed=0) as client:
        return [await client.send(request, place(request), intended_s=now_s()) for request in requests]


def place(request: Request) -> Place:
    return Place(
        arm="any",
        launch=1,
        round=0,
        block=0,
        load=Concurrency(streams=1),
        request_id=request.id,
        segment=request.segment,
        temperature=request.temperature,
        phase=Phase.MEASURED,
    )


def total(counters: Counters, ending: str) -> float:
    """The sum of a metric over its labels; engines put their own prefix before the name."""
    return sum(value for name, value in counters.values.items() if name.partition("{")[0].endswith(ending))


def port_of(server: Server) -> int:
    port = urlsplit(server.endpoint.base_url).port
    assert port is not None
    return port


def _after_a_moment(runner: asyncio.Runner, look: Callable[[], str | None]) -> str | None:
    runner.run(asyncio.sleep(0.02))
    return look()
